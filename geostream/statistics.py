"""Means and standard deviations of a dataset's channels, estimated from overviews."""

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
    tiles of an overview. Scenes count by their area. Pixels without data do not count. Overviews are averages, so that
    the standard deviations of noisy images come out a little too small.

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
    views = [(region, _view(region, side)) for region in (regions[i] for i in chosen)]
    total = _Moments()
    for start in range(0, len(views), _TOGETHER):
        part = views[start : start + _TOGETHER]
        for (region, _), sample in zip(part, _samples(dataset, [place for _, place in part]), strict=True):
            if sample is not None:
                total.add(*_pixels(sample), area=region.area)
    return total.statistics()


def _view(region: Region, side: int) -> Place:
    """The whole region, at a whole number of its pixels to one."""
    window, (xres, yres) = region.window, region.res
    x, y, t = region.place(window.row_off, window.col_off, max(1, window.height), max(1, window.width))
    factor = max(1, math.ceil(max(window.width, window.height) / side))
    return slice(x.start, x.stop, xres * factor), slice(y.start, y.stop, yres * factor), t


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


def _pixels(sample: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values (C, N), and which of them count."""
    image, valid = sample.get("image"), sample.get("mask_valid")
    if isinstance(image, DeferredPixels):
        image, valid = image.resampled()
    if not isinstance(image, torch.Tensor):
        raise ConfigError(f"samples with {sorted(sample)} have no image whose statistics could be estimated")
    channels = image.shape[-3]
    values = image.to(torch.float64).movedim(-3, 0).reshape(channels, -1).numpy()
    counts = np.isfinite(values)
    if isinstance(valid, torch.Tensor):
        counts &= valid.bool().expand_as(image).movedim(-3, 0).reshape(channels, -1).numpy()
    return values, counts


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

    def statistics(self) -> Statistics:
        """Means and standard deviations of all that was added."""
        if self._sums is None or not self._sums[0].all():
            raise ConfigError("no pixel of a channel holds data: its mean cannot be estimated; pass mean= and std=")
        weight, first, second = self._sums
        mean = first / weight
        std = np.sqrt(np.maximum(second / weight - mean**2, 0))
        std = np.where(std > _SAME * np.abs(self._middle + mean), std, 1.0)
        return Statistics(tuple((self._middle + mean).tolist()), tuple(std.tolist()))
