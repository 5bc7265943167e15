"""Resampling: one step from a source's pixels to an output grid, with invalid pixels left out of the weights.

Every kernel is separable: weights along columns and weights along rows, found per output pixel (or once per output
column and row where the grids are aligned). Bands share them. NumPy does the work: its threads and forks mix with
anything, and it is as fast here as one thread of torch.

Rules, which are GDAL's unless said otherwise:

- A pixel is outside, and invalid, where its centre lies outside the source (for ``average``: where its footprint does).
- Kernels widen by the scale where the output is coarser than the source; a scale within 0.05 of a whole number counts
  as that number, except for ``average``, whose footprint is exact. The scale is the length of the coordinates'
  gradient, so that turning the grid does not change it. GDAL divides the source window's size by the output's, which
  overestimates it for turned grids (a blur of several counts from UTM to the next zone at equal resolution) and is off
  by the window's margins otherwise.
- Taps outside the source or on invalid pixels have no weight and the others are renormalised. ``cubic`` at the
  source's resolution or finer falls back to ``bilinear`` where one of its sixteen taps is missing; widened, where less
  than a tenth of its weight remains (GDAL divides by whatever there is, and returns values far outside the data's).
- Where the grids are aligned (reduced reads), kernels, scales and the treatment of invalid pixels are those of GDAL's
  reads at reduced resolution: exact scales, and means along columns before means along rows.
- ``mode`` counts every pixel that the footprint touches in full, and the value that first reaches the highest count
  wins.
- An output pixel of a band is valid if the source pixel that contains its centre is valid in that band, so that
  ``nearest``, ``bilinear`` and ``cubic`` agree on what is valid. With ``average`` and ``mode`` it is so if any
  part of its footprint is.
- The footprint of ``average`` is a box with the grid's typical scale, centred on the pixel; GDAL transforms two corners
  of every pixel. Both are the same for aligned grids, but for the outermost rows and columns of an output, where GDAL's
  boxes are too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.bilinear import counted, interpolate
from geostream.coordinates import Coordinates, Lattice, grid_scale, source_coordinates
from geostream.everywhere import everywhere, is_everywhere
from geostream.grid import Window
from geostream.kernels import (
    BILINEAR,
    RESAMPLINGS,
    SNAP,
    combine,
    combine_columns,
    combine_rows,
    kernel_named,
    longest_runs,
    nearly_whole,
    taps_at,
)
from geostream.modes import modes
from geostream.rounding import round_half_away, round_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from geostream.grid import Grid
    from geostream.kernels import Kernel, Taps

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

__all__ = ["RESAMPLINGS", "Coordinates", "grid_scale", "resample", "source_coordinates", "source_window"]

_LEAST_WEIGHT = 1e-6
"""Share of the weights below which an output pixel counts as having no data."""

_ENOUGH_FOR_CUBIC = 0.1
"""Share of a widened cubic's weights that must remain: dividing by less lets its negative lobes run wild."""

_CHUNK_PIXELS = 1 << 14
"""Output pixels resampled at a time: bounds temporary memory, and keeps it in the processor's cache."""

_SINGLE = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "float16")))
"""Dtypes whose values float32 holds exactly: they are resampled in it, the others in float64 (or as complex)."""


_NARROW = frozenset(
    map(np.dtype, ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32", "float64"))
)
"""Dtypes of whose values float64 is exact."""


# ----------------------------------------------------------------------------------------------- places and windows


@dataclass(frozen=True)
class _Places:
    """Where output pixels lie, along columns and rows."""

    cols: Floats
    """(W,) where the grids are aligned, else (H, W)."""
    rows: Floats
    """(H,) where the grids are aligned, else (H, W)."""
    scale: tuple[float, float]
    extent: tuple[float, float, float, float]
    """Bounds of the positions, possibly wide ones: least and greatest column and row."""

    @classmethod
    def of(cls, coords: Coordinates, kernel: Kernel, lines: slice = slice(None)) -> _Places:
        scale = _kernel_scale(coords, kernel)
        if coords.separable:
            return cls(coords.cols[0], coords.rows[lines, 0], scale, coords.extent)
        return cls(coords.cols[lines], coords.rows[lines], scale, coords.extent)

    @property
    def separable(self) -> bool:
        return self.cols.ndim == 1

    def inside(self, window: Window, kernel: Kernel) -> Bools | None:
        """Whether each output pixel has data in ``window``, (H, W) or broadcasting to it; None if all do."""
        if _all_inside(self.extent, self.scale, window, kernel):
            return None
        (before_x, after_x), (before_y, after_y) = (kernel.margins(s) for s in self.scale)
        across = _between(self.cols, window.col_off - before_x, window.col_stop + after_x)
        along = _between(self.rows, window.row_off - before_y, window.row_stop + after_y)
        if along is not None and self.separable:
            along = along[:, None]
        return across if along is None else along if across is None else along & across

    def within(self, window: Window, reach: tuple[float, float]) -> _Places:
        """Counted from the window's corner, those farther than ``reach`` outside (and NaN) moved to where it ends."""
        left, right, top, bottom = self.extent
        x, y = (left - window.col_off, right - window.col_off), (top - window.row_off, bottom - window.row_off)
        cols, x = _clamp(self.cols - window.col_off, x, window.width, reach[0])
        rows, y = _clamp(self.rows - window.row_off, y, window.height, reach[1])
        return _Places(cols, rows, self.scale, (*x, *y))


def _kernel_scale(coords: Coordinates, kernel: Kernel) -> tuple[float, float]:
    if coords.separable or kernel.areal:
        return coords.scale
    return nearly_whole(coords.scale[0]), nearly_whole(coords.scale[1])


def _all_inside(
    extent: tuple[float, float, float, float], scale: tuple[float, float], window: Window, kernel: Kernel
) -> bool:
    """Whether all positions have data in ``window``, going by their bounds."""
    left, right, top, bottom = extent
    (before_x, after_x), (before_y, after_y) = (kernel.margins(s) for s in scale)
    across = window.col_off - before_x <= left and right < window.col_stop + after_x
    return across and window.row_off - before_y <= top and bottom < window.row_stop + after_y


def _between(at: Floats, low: float, high: float) -> Bools | None:
    """Whether low <= at < high; None if so everywhere. NaN is not."""
    within = (at >= low) & (at < high)
    return None if within.all() else within


def _clamp(at: Floats, extent: tuple[float, float], size: int, reach: float) -> tuple[Floats, tuple[float, float]]:
    if extent[0] >= -reach and extent[1] <= size + reach:
        return at, extent
    return np.clip(np.nan_to_num(at), -reach, size + reach), (-reach, size + reach)


def source_window(src: Grid, coords: Coordinates, resampling: str) -> Window | None:
    """The source pixels that resampling needs: kernel support included, clipped to the source.

    Args:
        src: the source's grid.
        coords: where the output's pixels lie on it.
        resampling: one of `RESAMPLINGS`.

    Returns:
        A window inside the source, or None if no output pixel has its centre (``average``: any part) in the source.

    Raises:
        ConfigError: for an unknown resampling.
    """
    kernel = kernel_named(resampling)
    scale = _kernel_scale(coords, kernel)
    left, right, top, bottom = coords.extent
    if not _all_inside(coords.extent, scale, src.window, kernel):
        inside = _Places.of(coords, kernel).inside(src.window, kernel)
        inside = np.broadcast_to(True if inside is None else inside, coords.shape)
        if not inside.any():
            return None
        cols, rows = coords.cols[inside], coords.rows[inside]
        left, right, top, bottom = (float(v) for v in (cols.min(), cols.max(), rows.min(), rows.max()))
    first_col, last_col = _needed(left, right, kernel, scale[0], src.width)
    first_row, last_row = _needed(top, bottom, kernel, scale[1], src.height)
    return Window(first_col, first_row, last_col - first_col, last_row - first_row)


def _needed(low: float, high: float, kernel: Kernel, scale: float, size: int) -> tuple[int, int]:
    """First source pixel of any weight at positions from ``low`` to ``high``, and one past the last."""
    if kernel.radius == 0:
        first, last = math.floor(low + SNAP), math.floor(high + SNAP)
    else:
        reach = kernel.support(scale) + (0.5 if kernel.areal else 0.0) - SNAP
        first, last = math.ceil(low - 0.5 - reach), math.floor(high - 0.5 + reach)
    return min(max(0, first), size - 1), max(1, min(size, last + 1))


# ----------------------------------------------------------------------------------------------------------- resample


def resample(data: Array, valid: Bools, coords: Coordinates, window: Window, resampling: str) -> tuple[Array, Bools]:
    """Resample a window of a source to the output grid.

    Integers are rounded half away from zero and clamped to their dtype. Values of up to 16 bits and float32 are
    computed in float32, others in float64: 64-bit integers beyond 2**53 are exact with ``nearest`` only.

    Args:
        data: (C, h, w) source pixels of ``window``, any numeric dtype, complex included.
        valid: (C, h, w) or (1, h, w) bool. What ``data`` holds where it is False does not matter (NaN included).
        coords: where the output's pixels lie on the source.
        window: as `source_window` gives it for the same coordinates and resampling.
        resampling: one of `RESAMPLINGS`.

    Returns:
        Data (C, H, W) in the source's dtype, 0 where invalid, and valid (C, H, W) bool.

    Raises:
        ConfigError: for an unknown resampling.
    """
    kernel = kernel_named(resampling)
    shape = data.shape[0], *coords.shape
    stock = _Stock(data, None if is_everywhere(valid) else valid, window, kernel, _kernel_scale(coords, kernel))
    if isinstance(coords.places, Lattice) and stock.is_plain(coords):
        return round_within(stock.plain(coords.places), data.dtype), everywhere(shape)
    out, out_valid = np.empty(shape, data.dtype), np.empty(shape, bool)
    for lines in _chunks(*coords.shape):
        _resample_lines(stock, _Places.of(coords, kernel, lines), out[:, lines], out_valid[:, lines])
    return out, out_valid


def _chunks(height: int, width: int) -> Iterator[slice]:
    lines = max(1, _CHUNK_PIXELS // width)
    return (slice(top, min(top + lines, height)) for top in range(0, height, lines))


@dataclass(frozen=True)
class _Stock:
    """A window of a source, made ready to be drawn on."""

    data: Array
    """(C, h, w) in the file's dtype."""
    valid: Bools | None
    """(C, h, w) or (1, h, w); None if all are."""
    window: Window
    kernel: Kernel
    scale: tuple[float, float]

    @cached_property
    def reach(self) -> tuple[float, float]:
        """How far outside the window positions are let stray, in source pixels (columns, rows)."""
        col, row = (max(0.0, *self.kernel.margins(s)) for s in self.scale)
        return col, row

    @cached_property
    def pad(self) -> tuple[int, int]:
        """Empty pixels (columns, rows) around the planes, so that every tap has something to take."""
        col, row = (math.ceil(r + self.kernel.support(s)) + 2 for r, s in zip(self.reach, self.scale, strict=True))
        return col, row

    @cached_property
    def real(self) -> np.dtype[Any]:
        """Dtype of weights."""
        single = self.data.dtype in _SINGLE or self.data.dtype == np.complex64
        return np.dtype(np.float32 if single else np.float64)

    @cached_property
    def planes(self) -> Array:
        """(C, h + 2 pad, w + 2 pad) values to compute with, 0 where invalid (0 * NaN would be NaN)."""
        planes = self._padded(self.data, self.data.dtype if self.data.dtype.kind == "c" else self.real)
        if self.valid is not None:
            inner = planes[:, self.pad[1] : -self.pad[1], self.pad[0] : -self.pad[0]]
            np.copyto(inner, 0, where=~self.valid)
        return planes

    @cached_property
    def floats(self) -> tuple[Array, Array | None]:
        """(C, h, w) values, 0 where invalid, and (C or 1, h, w) 1 where valid, else 0; None where all are.

        In float32 a position is exact to some 1e-5 pixels: 0.005 of a value of 8 bits, and too much of others.
        """
        values = self.data.astype(np.float32 if self.data.dtype.itemsize == 1 else np.float64)
        if self.valid is None:
            return values, None
        np.copyto(values, 0, where=~self.valid)
        return values, self.valid.astype(values.dtype)

    @cached_property
    def presence(self) -> Array:
        """(C or 1, h + 2 pad, w + 2 pad) 1 where there is valid data, else 0."""
        return self._padded(np.ones((1, *self.data.shape[1:]), bool) if self.valid is None else self.valid, self.real)

    def _padded(self, values: Array, dtype: np.dtype[Any]) -> Array:
        bands, height, width = values.shape
        col, row = self.pad
        out = np.zeros((bands, height + 2 * row, width + 2 * col), dtype)
        out[:, row:-row, col:-col] = values
        return out

    def nearest(self, planes: Array, places: _Places) -> Array:
        """(P, H, W) values of the pixels of ``planes`` (P, h, w) that contain the positions."""
        height, width = planes.shape[1:]
        col = np.clip((places.cols + SNAP).astype(np.intp), 0, width - 1)
        row = np.clip((places.rows + SNAP).astype(np.intp), 0, height - 1)
        if places.separable:
            picked: Array = planes[:, row[:, None], col]
            return picked
        taken: Array = planes.reshape(len(planes), -1).take(row * width + col, axis=1)
        return taken

    @cached_property
    def unlimited(self) -> Bools | None:
        """(C, h + 2 pad, w + 2 pad) valid values that are NaN or infinite; None if there are none."""
        if self.data.dtype.kind not in "fc":
            return None
        unlimited = ~np.isfinite(self.planes)
        return unlimited if unlimited.any() else None

    @cached_property
    def limited(self) -> _Stock:
        """This with 0 for what is NaN or infinite."""
        return replace(self, data=np.where(np.isfinite(self.data), self.data, self.data.dtype.type(0)))

    def weighted(self, places: _Places, kernel: Kernel) -> tuple[Array, Bools | None]:
        """Weighted means (C, H, W), and whether anything was there to weigh; None if everything was."""
        values, found = self._weighted(places, kernel)
        if places.separable and self.unlimited is not None:
            # 0 * NaN is NaN: beyond the taps it must not spread
            x, y = (taps_at(kernel, at, scale, self.real).touched for at, scale in
                    zip((places.cols, places.rows), self.scale, strict=True))  # fmt: skip
            touched = combine(self.unlimited.astype(self.real), x, y, self.pad) > 0
            values = np.where(touched, values, self.limited.weighted(places, kernel)[0])
        return values, found

    def _weighted(self, places: _Places, kernel: Kernel) -> tuple[Array, Bools | None]:
        """As `weighted`, but that what is NaN or infinite may spread to what has no part in it."""
        if not places.separable and self._takes_four(kernel):
            return self._between_four(places)
        x = taps_at(kernel, places.cols, self.scale[0], self.real)
        y = taps_at(kernel, places.rows, self.scale[1], self.real)
        if places.separable and not kernel.areal:
            return self._weighted_by_axis(places, kernel, x, y)
        values = combine(self.planes, x, y, self.pad)
        widened = x.widened or y.widened
        if self.valid is None and not x.outside(self.window.width) and not y.outside(self.window.height):
            return (values / _total(x, y) if widened else values), None
        total = _total(x, y) if widened else self.real.type(1)
        weight = combine(self.presence, x, y, self.pad)
        found = weight > _LEAST_WEIGHT * total
        values /= np.where(found, weight, 1)
        if kernel.fallback is not None:
            lean = weight < _ENOUGH_FOR_CUBIC * total if widened else self._tap_missing(x, y)
            if lean.any():
                simple, simple_found = self.weighted(places, kernel.fallback)
                values = np.where(lean, simple, values)
                found = found | lean if simple_found is None else np.where(lean, simple_found, found)
        return values, found

    def _takes_four(self, kernel: Kernel) -> bool:
        """Whether each result lies between four pixels: the kernel is bilinear, and not widened."""
        return kernel is BILINEAR and max(self.scale) <= 1 and self.data.dtype.kind != "c"

    def is_plain(self, coords: Coordinates) -> bool:
        """Whether all pixels are valid, and all results means between four of them."""
        narrow = self._takes_four(self.kernel) and self.data.dtype in _NARROW
        return narrow and self.valid is None and _all_inside(coords.extent, self.scale, self.window, self.kernel)

    def plain(self, lattice: Lattice) -> Array:
        """Means (C, H, W), where `is_plain`: places are counted as the sampler wants them before they are filled in."""
        values, _ = self.floats
        at = lattice.filled(counted(lattice.cols, lattice.rows, self.window))
        return interpolate(values, at.astype(values.dtype, copy=False))

    def _between_four(self, places: _Places) -> tuple[Array, Bools | None]:
        """As `_weighted`, for a bilinear kernel that is not widened."""
        values, presence = self.floats
        size = Window(0, 0, self.window.width, self.window.height)
        at = counted(places.cols, places.rows, size).astype(values.dtype, copy=False)
        means = interpolate(values, at)
        if presence is None:
            return means, None
        weight = interpolate(presence, at)
        found: Bools = weight > _LEAST_WEIGHT
        means /= np.where(found, weight, 1)
        return means, found

    def _weighted_by_axis(self, places: _Places, kernel: Kernel, x: Taps, y: Taps) -> tuple[Array, Bools | None]:
        """As `_weighted` where the grids are aligned: means along columns, then means of these along rows.

        That is how GDAL reads at reduced resolution: a line counts in full if anything of it is valid, and in a cubic
        only if half of its taps are in one piece.
        """
        top = int(y.first.min()) + self.pad[1]
        used = slice(top, int(y.first.max()) + self.pad[1] + len(y.weights))
        lines = combine_columns(self.planes[:, used], x, self.pad[0])
        if self.valid is None and not x.outside(self.window.width) and not y.outside(self.window.height):
            lines /= x.total
            means: Array = combine_rows(lines, y, self.pad[1] - top) / y.total[:, None]
            return means, None
        presence = self.presence[:, used]
        weight = combine_columns(presence, x, self.pad[0])
        present = weight > _LEAST_WEIGHT * x.total
        if kernel.fallback is not None:
            present &= longest_runs(presence, x, self.pad[0]) >= _half(x, self.window.width)
        lines /= np.where(present, weight, 1)
        np.copyto(lines, 0, where=~present)
        weight = combine_rows(present.astype(self.real), y, self.pad[1] - top)
        found: Bools = weight > _LEAST_WEIGHT * y.total[:, None]
        if kernel.fallback is not None:
            runs = longest_runs(np.swapaxes(present, 1, 2), y, self.pad[1] - top)
            found &= np.swapaxes(runs >= _half(y, self.window.height), 1, 2)
        values: Array = combine_rows(lines, y, self.pad[1] - top) / np.where(found, weight, 1)
        if kernel.fallback is not None and not found.all():
            simple, simple_found = self.weighted(places, kernel.fallback)
            values = np.where(found, values, simple)
            found = found | True if simple_found is None else found | simple_found
        return values, found

    def _tap_missing(self, x: Taps, y: Taps) -> Bools:
        """Whether any tap has no data, whatever its weight."""
        missing = np.logical_not(self.presence)
        for axis, taps in ((1, y), (2, x)):
            reach = missing.shape[axis] - len(taps.weights) + 1
            parts = (np.take(missing, range(k, k + reach), axis) for k in range(len(taps.weights)))
            missing = np.logical_or.reduce(list(parts))
        row, col = y.first + self.pad[1], x.first + self.pad[0]
        short: Bools = missing[:, row[:, None] if row.ndim == 1 else row, col]
        return short


def _half(taps: Taps, size: int) -> Ints:
    """Half the number of each position's taps that lie within ``size`` source pixels."""
    half: Ints = (np.minimum(taps.stop, size) - np.maximum(taps.first, 0)) // 2
    return half


def _total(x: Taps, y: Taps) -> Array:
    total: Array = (y.total[:, None] if x.first.ndim == 1 else y.total) * x.total
    return total


def _count(stock: _Stock, places: _Places, out: Array) -> Bools:
    """Fill ``out`` with the most frequent values; where there were any."""
    shape = out.shape[1:]
    rows = places.rows[:, None] if places.separable else places.rows
    cols, rows = (np.broadcast_to(at, shape).ravel() for at in (places.cols, rows))
    values, found = modes(stock.data, stock.valid, cols, rows, stock.scale)
    out[...] = values.reshape(out.shape)
    return found.reshape(out.shape)


def _resample_lines(stock: _Stock, places: _Places, out: Array, out_valid: Bools) -> None:
    """Fill ``out`` and ``out_valid``, (C, H, W), with some lines of the output."""
    inside = places.inside(stock.window, stock.kernel)
    if inside is not None and not inside.any():
        out[...] = 0
        out_valid[...] = False
        return
    places = places.within(stock.window, stock.reach)
    found: Bools | None = None
    if stock.kernel.radius == 0:
        out[...] = stock.nearest(stock.data, places)
    elif stock.kernel.counts:
        found = _count(stock, places, out)
    else:
        values, found = stock.weighted(places, stock.kernel)
        out[...] = round_half_away(values, out.dtype)
    if not stock.kernel.areal and stock.valid is not None:
        containing = stock.nearest(stock.valid, places)
        found = containing if found is None else found & containing
    out_valid[...] = True
    for condition in (inside, found):
        if condition is not None:
            out_valid &= condition
    if inside is not None or found is not None:
        out[~out_valid] = 0
