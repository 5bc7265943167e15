"""Means and standard deviations of a dataset's channels, estimated from overviews and a few windows of the pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geostream.dataset.prefetch import reading_validity
from geostream.deferred import DeferredPixels
from geostream.errors import ConfigError
from geostream.samplers.regions import regions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from geostream.samplers.regions import Place, Region

__all__ = ["Statistics", "estimate_statistics"]

_TOGETHER = 8
"""Scenes that are read in one plan."""
_WINDOWS = 16
"""Windows at full resolution, at least, that all scenes together are looked at in."""
_SAME = 1e-12
"""Deviations that are a smaller share of the mean are rounding."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What images are normalised with."""

    mean: tuple[float, ...]
    """Mean of each channel's valid pixels, in the units of the samples."""
    std: tuple[float, ...]
    """Their standard deviation; 1 for a channel that is the same everywhere."""


def estimate_statistics(dataset: Any, *, scenes: int = 64, side: int = 256) -> Statistics:
    """Estimate the statistics of a dataset's images from a coarse view of its scenes.

    Each scene is read once, at a resolution that makes it at most ``side`` pixels high and wide, which needs but the
    tiles of an overview. Scenes count by their area. Pixels without data do not count. Means lose what is finer than
    they are: how much variance that is, a few windows at full resolution tell, one or more of each scene, the same in
    each run.

    Args:
        dataset: a dataset of places whose samples have ``image`` (C, H, W) or (T, C, H, W).
        scenes: how many scenes are looked at, at most; they are taken at equal steps from the index.
        side: pixels to which a scene is reduced.

    Returns:
        One mean and one standard deviation for each channel.

    Raises:
        ConfigError: the samples have no image, or none of their pixels holds data.
        GeostreamError: a scene cannot be read.
    """
    regions = regions_of(dataset, None, None)
    chosen = np.unique(np.linspace(0, len(regions) - 1, min(scenes, len(regions))).astype(int))
    views = [_View.of(regions[i], side) for i in chosen]
    total, grain, draw = _Moments(), _Grain(), np.random.default_rng(0)
    for start in range(0, len(views), _TOGETHER):
        part = views[start : start + _TOGETHER]
        samples = _samples(dataset, [view.place for view in part])
        found = [(view, _Planes.of(sample)) for view, sample in zip(part, samples, strict=True) if sample is not None]
        for view, planes in found:
            total.add(*planes.pixels(), area=view.region.area)
        windows = [
            (view, planes, window)
            for view, planes in found
            for window in view.windows(draw, math.ceil(_WINDOWS / len(views)))
        ]
        details = _samples(dataset, [view.detail(window) for view, _, window in windows])
        for (view, planes, (rows, cols)), detail in zip(windows, details, strict=True):
            if detail is not None:
                grain.add(_Planes.of(detail).pixels(), planes.pixels(rows, cols), area=view.region.area)
    return total.statistics(grain.variance)


@dataclass(frozen=True, slots=True)
class _View:
    """A whole region, at a whole number of its pixels to one."""

    region: Region
    factor: int
    """How many pixels, down and across, are one."""

    @classmethod
    def of(cls, region: Region, side: int) -> _View:
        """A view of at most ``side`` pixels."""
        return cls(region, max(1, math.ceil(max(region.window.width, region.window.height) / side)))

    @property
    def place(self) -> Place:
        """The query for it."""
        window, (xres, yres) = self.region.window, self.region.res
        height, width = max(1, window.height), max(1, window.width)
        x, y, t = self.region.place(window.row_off, window.col_off, height, width)
        return slice(x.start, x.stop, xres * self.factor), slice(y.start, y.stop, yres * self.factor), t

    def windows(self, draw: np.random.Generator, count: int) -> list[tuple[slice, slice]]:
        """Rows and columns of some of its pixels, in ``count`` places drawn; none where it shows all there is."""
        height, width = self.region.window.height // self.factor, self.region.window.width // self.factor
        # Enough pixels for their variance to be known, of a window that is but some tiles of the file.
        side = max(4, 128 // self.factor, min(8, 512 // self.factor))
        rows, cols = min(side, height), min(side, width)
        if self.factor == 1 or not rows or not cols:
            return []
        tops, lefts = draw.integers(height - rows + 1, size=count), draw.integers(width - cols + 1, size=count)
        return [
            (slice(top, top + rows), slice(left, left + cols))
            for top, left in zip(tops.tolist(), lefts.tolist(), strict=True)
        ]

    def detail(self, window: tuple[slice, slice]) -> Place:
        """The query for the region's own pixels under a window of the view."""
        (rows, cols), whole, factor = window, self.region.window, self.factor
        top, left = whole.row_off + rows.start * factor, whole.col_off + cols.start * factor
        return self.region.place(top, left, (rows.stop - rows.start) * factor, (cols.stop - cols.start) * factor)


def _samples(dataset: Any, places: Sequence[Place]) -> list[dict[str, Any] | None]:
    """Samples with ``mask_valid``, as far as the dataset knows; None where it has nothing after all."""
    with reading_validity():
        try:
            if hasattr(dataset, "__getitems__"):
                return list(dataset.__getitems__(places))
            return _one_by_one(dataset, places)
        except IndexError:
            return _one_by_one(dataset, places)


def _one_by_one(dataset: Any, places: Sequence[Place]) -> list[dict[str, Any] | None]:
    samples: list[dict[str, Any] | None] = []
    for place in places:
        try:
            samples.append(dataset[place])
        except IndexError:  # TorchGeo's way to say that nothing is there, and QueryError's class
            samples.append(None)
    return samples


@dataclass(frozen=True, slots=True)
class _Planes:
    """An image (…, C, H, W), and which of its values count."""

    values: torch.Tensor
    """In float64."""
    counts: torch.Tensor
    """The same shape, bool."""

    @classmethod
    def of(cls, sample: dict[str, Any]) -> _Planes:
        """A sample's image."""
        image, valid = sample.get("image"), sample.get("mask_valid")
        if isinstance(image, DeferredPixels):
            image, valid = image.resampled()
        if not isinstance(image, torch.Tensor):
            raise ConfigError(f"samples with {sorted(sample)} have no image whose statistics could be estimated")
        values = image.to(torch.float64)
        counts = values.isfinite()
        if isinstance(valid, torch.Tensor):
            counts = counts & valid.bool().expand_as(image)
        return cls(values, counts)

    def pixels(
        self, rows: slice = slice(None), cols: slice = slice(None)
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Values (C, N) of some rows and columns, and which of them count."""
        values, counts = (
            planes[..., rows, cols].movedim(-3, 0).flatten(1).numpy() for planes in (self.values, self.counts)
        )
        return values, counts


class _Grain:
    """The variance that a coarse view lacks: that of windows' own pixels less that of the view's."""

    def __init__(self) -> None:
        self._sums: tuple[Any, Any] = (0.0, 0.0)

    def add(
        self,
        fine: tuple[NDArray[np.float64], NDArray[np.bool_]],
        coarse: tuple[NDArray[np.float64], NDArray[np.bool_]],
        *,
        area: float,
    ) -> None:
        """Compare a window's values (C, N) with the view's (C, M), standing for the share of ``area`` that counts."""
        known = (fine[1].sum(1) > 1) & (coarse[1].sum(1) > 1)
        weight = area * fine[1].mean(1) * known
        lacking = np.where(known, _variance(*fine) - _variance(*coarse), 0)
        self._sums = self._sums[0] + weight, self._sums[1] + weight * lacking

    @property
    def variance(self) -> Any:
        """For each channel; 0 where nothing was compared."""
        weight, lacking = self._sums
        return lacking / np.where(weight == 0, 1, weight)


def _variance(values: NDArray[np.float64], counts: NDArray[np.bool_]) -> NDArray[np.float64]:
    number = counts.sum(1)
    mean = np.where(counts, values, 0).sum(1) / np.maximum(number, 1)
    apart = np.where(counts, values - mean[:, None], 0)
    spread: NDArray[np.float64] = (apart**2).sum(1) / np.maximum(number - 1, 1)
    return spread


class _Moments:
    """Weighted sums of values and of their squares, about a value near the mean."""

    def __init__(self) -> None:
        self._sums: NDArray[np.float64] | None = None
        self._middle: NDArray[np.float64] = np.zeros(0)

    def add(self, values: NDArray[np.float64], counts: NDArray[np.bool_], *, area: float) -> None:
        """Count ``values`` (C, N), those of ``counts``, as standing for ``area``."""
        present = np.where(counts, values, 0)
        if self._sums is None:
            self._sums = np.zeros((3, len(values)))
            self._middle = present.sum(1) / np.maximum(counts.sum(1), 1)
        if self._sums.shape[1] != len(values):
            raise ConfigError(
                f"scenes have {self._sums.shape[1]} and {len(values)} channels: pass bands= to read the same ones"
            )
        apart = np.where(counts, values - self._middle[:, None], 0)
        weight = area / max(1, values.shape[1])
        self._sums += weight * np.stack([counts.sum(1), apart.sum(1), (apart**2).sum(1)])

    def statistics(self, lacking: Any) -> Statistics:
        """Means and standard deviations of all that was added, with the variance that it is ``lacking``."""
        if self._sums is None or not self._sums[0].all():
            raise ConfigError("no pixel of a channel holds data: its mean cannot be estimated; pass mean= and std=")
        weight, first, second = self._sums
        mean = first / weight
        std = np.sqrt(np.maximum(second / weight - mean**2 + lacking, 0))
        std = np.where(std > _SAME * np.abs(self._middle + mean), std, 1.0)
        return Statistics(tuple((self._middle + mean).tolist()), tuple(std.tolist()))
