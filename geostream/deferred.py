"""Reprojection where the batch goes: source windows and coordinates cross to the device, and are resampled there."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geostream.dataset import RasterDataset
from geostream.dataset.base import GeoDataset, bounds_tensor
from geostream.dataset.pixels import fits
from geostream.dataset.prefetch import fetch, reading_validity
from geostream.errors import ConfigError
from geostream.kernels import SNAP
from geostream.warp import source_coordinates, source_window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyproj import CRS

    from geostream.coordinates import Coordinates
    from geostream.dataset.collate import Sample
    from geostream.dataset.query import GeoSlice
    from geostream.grid import Window
    from geostream.plan import Request
    from geostream.reader import Outcome

__all__ = ["DeferredPixels", "DeviceWarp", "warped"]

_KERNELS = frozenset({"nearest", "bilinear"})
_LEAST_WEIGHT = 1e-6
"""Share of the weights below which a pixel has no data, as on the CPU."""
_WIDENED = 1.05
"""Source pixels to one of the output from which on a bilinear kernel is widened, as on the CPU."""
_BELOW_HALF = float(np.nextafter(0.5, 0.0))
"""Added before the fraction is cut off; 0.5 itself would round up what lies just below n + 0.5."""


class DeviceWarp(GeoDataset):
    """A dataset of rasters whose chips are resampled on the device instead of by the CPU.

    Samples hold, instead of pixels, what they are made of: the part of each source that a chip needs, and where each of
    the chip's pixels lies in it. `geostream.GeoDataModule` moves both to the device and makes ``image``, ``mask`` and
    ``mask_valid`` there, equal to those of the dataset itself, to the rounding of positions. So the CPU decodes only.
    Coordinates take 16 bytes a pixel to cross: worth it where the CPU, not the bus, is short.

    Chips that need another kernel than ``nearest`` or ``bilinear``, or that are coarser than the source, are resampled
    by the CPU as ever.

    Args:
        dataset: a `RasterDataset` of one file a scene, with ``mosaic="first"`` and ``on_error="raise"``, without
            ``transforms`` and ``time_series``.

    Raises:
        ConfigError: another dataset.
    """

    def __init__(self, dataset: Any) -> None:
        if not isinstance(dataset, RasterDataset):
            raise ConfigError(f"a {type(dataset).__name__} cannot be warped on the device: wrap each RasterDataset")
        options = dataset._options  # noqa: SLF001 - one family
        for name, given in (
            ("separate_files", dataset.separate_files),
            ("time_series", dataset.time_series),
            ("transforms", dataset.transforms is not None),
            (f"mosaic={options.mosaic!r}", options.mosaic != "first"),
            (f"on_error={options.on_error!r}", options.on_error != "raise"),
        ):
            if given:
                raise ConfigError(f"datasets with {name} cannot be warped on the device: leave it to the CPU")
        self.dataset = dataset
        self.paths = dataset.paths
        self._follow()

    def _follow(self) -> None:
        self.index, self._res = self.dataset.index, self.dataset.res

    def __getitem__(self, query: GeoSlice) -> Sample:
        """The sample at one place and time: ``image`` or ``mask`` is `DeferredPixels`.

        Raises:
            ConfigError: the query is malformed.
            QueryError: nothing lies there.
            ReadError, DecodeError: a file cannot be read.
        """
        parts = _deferrable(self.dataset.requests(query))
        options = self.dataset._options  # noqa: SLF001 - one family
        sources = None if parts is None else _sources(parts, fetch([part.read for part in parts]))
        if parts is None or sources is None:
            return self._resampled_here(query, wants_valid=options.valid)
        parsed = self.dataset._query(query)  # noqa: SLF001
        return {
            "bounds": bounds_tensor(parsed),
            "transform": torch.tensor(tuple(parsed.grid(self.crs).transform), dtype=torch.float64),
            self._key: DeferredPixels(
                sources,
                _fills(parts[0].request, options.fill),
                self.dataset._output_dtype(),  # noqa: SLF001
                plane=not self.dataset.is_image,
                wants_valid=options.valid,
            ),
        }

    def requests(self, query: GeoSlice) -> list[Request]:
        """What ``self[query]`` will ask of the reader: parts of the sources as they are.

        Raises:
            ConfigError: the query is malformed.
            QueryError: nothing lies there.
        """
        requests = self.dataset.requests(query)
        parts = _deferrable(requests)
        return requests if parts is None else [part.read for part in parts]

    def _resampled_here(self, query: GeoSlice, *, wants_valid: bool) -> Sample:
        with reading_validity():
            sample = dict(self.dataset[query])
        pixels, valid = sample[self._key], sample.pop("mask_valid")
        return {**sample, self._key: DeferredPixels.ready(pixels, valid, wants_valid=wants_valid)}

    @property
    def _key(self) -> str:
        return "image" if self.dataset.is_image else "mask"

    @property
    def is_image(self) -> bool:
        """Whether samples hold ``image``; else ``mask``."""
        return self.dataset.is_image

    @property
    def crs(self) -> CRS | None:
        """Coordinate reference system of queries and chips."""
        return self.dataset.crs

    @crs.setter
    def crs(self, value: Any) -> None:
        self.dataset = copy.copy(self.dataset)
        self.dataset.crs = value
        self._follow()

    @property
    def res(self) -> tuple[float, float]:
        """Pixel size (x, y) in CRS units."""
        return self._res

    @res.setter
    def res(self, value: float | tuple[float, float]) -> None:
        self.dataset = copy.copy(self.dataset)
        self.dataset.res = value
        self._follow()


class DeferredPixels:
    """A chip's pixels before they are resampled. No tensor: Lightning moves it by its own `to`.

    Args:
        sources: in the order in which they are preferred.
        fill: value of each channel's pixels without data.
        dtype: of the pixels; None for the sources'.
        plane: whether one channel is dropped, as masks do.
        wants_valid: whether the batch is to have ``mask_valid``.
    """

    def __init__(
        self,
        sources: Sequence[_Source],
        fill: Sequence[float] = (),
        dtype: torch.dtype | None = None,
        *,
        plane: bool = False,
        wants_valid: bool = False,
    ) -> None:
        self._sources = list(sources)
        self._fill = list(fill)
        self._dtype = dtype
        self._plane = plane
        self.wants_valid = wants_valid
        self._ready: tuple[Tensor, Tensor] | None = None

    @classmethod
    def ready(cls, pixels: Tensor, valid: Tensor, *, wants_valid: bool) -> DeferredPixels:
        """Pixels that are resampled already, and ``valid`` (1, H, W)."""
        deferred = cls([], wants_valid=wants_valid)
        deferred._ready = pixels, valid
        return deferred

    def _with(self, change: Callable[[Tensor], Tensor]) -> DeferredPixels:
        twin = copy.copy(self)
        ready = None if self._ready is None else (change(self._ready[0]), change(self._ready[1]))
        vars(twin).update(_sources=[source.changed(change) for source in self._sources], _ready=ready)
        return twin

    def to(self, device: torch.device, non_blocking: bool = True) -> DeferredPixels:
        """The same on another device, in its own dtypes."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> DeferredPixels:
        """The same in pinned memory."""
        return self._with(Tensor.pin_memory)

    def resampled(self) -> tuple[Tensor, Tensor]:
        """Pixels (C, H, W) or (H, W), and bool (1, H, W) where they hold data; computed where the sources are."""
        if self._ready is not None:
            return self._ready
        native = self._sources[0].pixels.dtype
        pixels, valid = self._sources[0].resampled()
        for source in self._sources[1:]:
            values, there = source.resampled()
            pixels = torch.where(valid | ~there, pixels, values.to(pixels.dtype))
            valid = valid | there
        fill = torch.tensor(self._fill, dtype=pixels.dtype, device=pixels.device)[:, None, None]
        pixels = torch.where(valid, pixels, fill).to(native if self._dtype is None else self._dtype)
        return (pixels.squeeze(0) if self._plane else pixels), valid


def warped(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with deferred pixels resampled on the device they are on, and ``mask_valid`` where it is wanted."""
    result = dict(batch)
    for key, values in batch.items():
        if not (isinstance(values, list) and values and isinstance(values[0], DeferredPixels)):
            continue
        pixels, valid = zip(*(value.resampled() for value in values), strict=True)
        result[key] = torch.stack(pixels)
        if values[0].wants_valid:
            found = torch.stack(valid)
            result["mask_valid"] = found & result["mask_valid"] if "mask_valid" in result else found
    return result


@dataclass(frozen=True)
class _Part:
    """What a chip needs of one source."""

    request: Request
    """What the dataset would have asked for."""
    read: Request
    """The source's own pixels of `window`."""
    window: Window
    coordinates: Coordinates


def _deferrable(requests: Sequence[Request]) -> list[_Part] | None:
    """What to read to resample later; None where the CPU must do it."""
    parts = []
    for request in requests:
        header = request.source.header
        if header is None or header.ground is not None or header.grid.curved or request.resampling not in _KERNELS:
            return None
        coordinates = source_coordinates(header.grid, request.grid)
        if coordinates.separable or max(coordinates.scale) >= _WIDENED:
            return None
        window = source_window(header.grid, coordinates, request.resampling)
        if window is not None:
            read = replace(request, grid=header.grid.part(window), resampling="nearest", layout=None)
            parts.append(_Part(request, read, window, coordinates))
    return parts or None


def _sources(parts: Sequence[_Part], outcomes: Sequence[Outcome]) -> list[_Source] | None:
    """What was read, with where the chip's pixels lie in it; None where a value would spoil its neighbours."""
    sources = []
    for part, patch in zip(parts, outcomes, strict=True):
        if isinstance(patch, Exception):
            raise patch
        data, valid = patch.data, patch.valid
        if data.dtype.kind == "c" or (data.dtype.kind == "f" and not np.isfinite(data[:, valid]).all()):
            return None
        window, at = part.window, part.coordinates
        sources.append(
            _Source(
                torch.from_numpy(np.where(valid, data, data.dtype.type(0))),
                torch.from_numpy(np.ascontiguousarray(valid)),
                torch.from_numpy(at.cols - window.col_off),
                torch.from_numpy(at.rows - window.row_off),
                part.request.resampling,
            )
        )
    return sources


def _fills(request: Request, fill: float | None) -> list[float]:
    header = request.source.header
    assert header is not None
    bands = request.bands or range(1, header.count + 1)
    declared = [header.nodata[band - 1] if fill is None else fill for band in bands]
    return [value if value is not None and fits(value, header.dtype) else 0 for value in declared]


@dataclass(frozen=True)
class _Source:
    """Part of one source, and where a chip's pixels lie in it."""

    pixels: Tensor
    """(C, h, w) in the file's dtype, 0 where invalid."""
    valid: Tensor
    """(h, w) bool."""
    cols: Tensor
    """(H, W) float64, columns of the part; 0.5 is the centre of the first."""
    rows: Tensor
    """(H, W) float64, likewise."""
    kernel: str

    def changed(self, change: Callable[[Tensor], Tensor]) -> _Source:
        """With every tensor changed."""
        return _Source(change(self.pixels), change(self.valid), change(self.cols), change(self.rows), self.kernel)

    def resampled(self) -> tuple[Tensor, Tensor]:
        """Values (C, H, W), whole where the file's are, and bool (1, H, W)."""
        height, width = self.pixels.shape[1:]
        inside = (self.cols >= 0) & (self.cols < width) & (self.rows >= 0) & (self.rows < height)
        cols, rows = (at.nan_to_num(0.0).clamp(0, size) for at, size in ((self.cols, width), (self.rows, height)))
        col, row = ((at + SNAP).long().clamp(max=size - 1) for at, size in ((cols, width), (rows, height)))
        valid = (inside & self.valid[row, col])[None]
        exact = self.pixels if self.pixels.dtype == torch.int64 else self.pixels.to(torch.float64)
        if self.kernel == "nearest":
            return exact[:, row, col], valid
        at = torch.stack([cols * (2 / width) - 1, rows * (2 / height) - 1], dim=2)
        values = self._between_four(torch.cat([exact.double(), self.valid[None].double()]), at)
        weight = values[-1:]
        values = values[:-1] / torch.where(weight > _LEAST_WEIGHT, weight, 1)
        if not self.pixels.dtype.is_floating_point:
            values = torch.trunc(values + torch.copysign(torch.full_like(values, _BELOW_HALF), values))
        return values, valid & (weight > _LEAST_WEIGHT)

    @staticmethod
    def _between_four(planes: Tensor, at: Tensor) -> Tensor:
        return grid_sample(planes[None], at[None], padding_mode="border", align_corners=False)[0]
