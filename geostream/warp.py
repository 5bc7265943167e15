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
- An output pixel of a band is valid if the source pixel that contains its centre is valid in that band, so that
  ``nearest``, ``bilinear`` and ``cubic`` agree on what is valid. With ``average`` it is valid if any part of its
  footprint is.
- The footprint of ``average`` is a box with the grid's typical scale, centred on the pixel; GDAL transforms two corners
  of every pixel. Both are the same for aligned grids, but for the outermost rows and columns of an output, where GDAL's
  boxes are too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.coordinates import Coordinates, grid_scale, source_coordinates
from geostream.errors import ConfigError
from geostream.grid import Window
from geostream.rounding import round_half_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from geostream.grid import Grid

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

__all__ = ["RESAMPLINGS", "Coordinates", "grid_scale", "resample", "source_coordinates", "source_window"]

_SNAP = 1e-7
"""Pixels by which a coordinate may miss an edge through rounding and still count as on it."""

_NEARLY_WHOLE = 0.05
"""A scale this close to a whole number counts as that number."""

_LEAST_WEIGHT = 1e-6
"""Share of the weights below which an output pixel counts as having no data."""

_ENOUGH_FOR_CUBIC = 0.1
"""Share of a widened cubic's weights that must remain: dividing by less lets its negative lobes run wild."""

_CHUNK_PIXELS = 1 << 14
"""Output pixels resampled at a time: bounds temporary memory, and keeps it in the processor's cache."""

_SINGLE = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "float16", "float32")))
"""Dtypes whose values float32 holds exactly: they are resampled in it, the others in float64 (or as complex)."""


# ------------------------------------------------------------------------------------------------------------ kernels


def _triangle(x: Array) -> Array:
    weight: Array = 1 - x
    return weight


def _cubic_near(x: Array) -> Array:
    """Cubic convolution with a = -0.5 at distances up to 1."""
    weight: Array = (1.5 * x - 2.5) * (x * x) + 1
    return weight


def _cubic_far(x: Array) -> Array:
    """Cubic convolution with a = -0.5 at distances from 1 to 2: 0.5 (1 - x) (x - 2)²."""
    beyond = x - 2
    weight: Array = (0.5 - 0.5 * x) * (beyond * beyond)
    return weight


@dataclass(frozen=True)
class _Kernel:
    """How far a resampling looks along an axis, and what weight it gives to source pixels there."""

    radius: float
    """Half of the support at a scale of 1, in source pixels; 0 takes the one pixel that contains the centre."""
    pieces: tuple[Callable[[Array], Array], ...] = ()
    """Weight at a distance from 0 to 1, from 1 to 2, … between centres."""
    areal: bool = False
    """Whether it weighs by the area that the output pixel covers, instead of by distance."""
    fallback: _Kernel | None = None
    """What to use where too many taps are missing."""

    def width(self, scale: float) -> float:
        """Factor by which the kernel is stretched at ``scale`` source pixels per output pixel."""
        if self.areal:
            return scale
        whole = round(scale)
        return max(1.0, whole if abs(scale - whole) < _NEARLY_WHOLE else scale)

    def support(self, scale: float) -> float:
        """Half of the support, in source pixels."""
        return self.radius * self.width(scale)

    def margins(self, scale: float) -> tuple[float, float]:
        """How far before the source's first and beyond its last edge a centre may lie, in source pixels."""
        if self.areal:
            return self.support(scale) - _SNAP, self.support(scale) - _SNAP
        return _SNAP, -_SNAP  # a centre on the first edge is inside, one on the last is not

    def weights(self, left: Array, width: float) -> list[Array]:
        """Weights of consecutive source pixels, the first of which has its left edge ``left`` of the centre."""
        if self.areal:
            half = width / 2
            count = math.ceil(width - _SNAP) + 1
            return [np.maximum(np.minimum(left + (k + 1), half) - np.maximum(left + k, -half), 0) for k in range(count)]
        if width == 1:
            # the piece is known beforehand: -2 to -1, -1 to 0, 0 to 1, 1 to 2
            n = len(self.pieces)
            before = [self.pieces[n - 1 - k](-0.5 - k - left) for k in range(n)]
            return before + [piece(left + (n + k + 0.5)) for k, piece in enumerate(self.pieces)]
        count = math.ceil(2 * self.radius * width - _SNAP)
        return [self._weight(np.abs(left + (k + 0.5)) / width) for k in range(count)]

    def _weight(self, distance: Array) -> Array:
        within = [distance < k + 1 for k in range(len(self.pieces))]
        return np.select(within, [piece(distance) for piece in self.pieces], distance.dtype.type(0))


_BILINEAR = _Kernel(1.0, (_triangle,))
_KERNELS = {
    "nearest": _Kernel(0.0),
    "bilinear": _BILINEAR,
    "cubic": _Kernel(2.0, (_cubic_near, _cubic_far), fallback=_BILINEAR),
    "average": _Kernel(0.5, areal=True),
}

RESAMPLINGS = tuple(_KERNELS)
"""Names that ``resampling`` may take."""


def _kernel(resampling: str) -> _Kernel:
    try:
        return _KERNELS[resampling]
    except KeyError:
        raise ConfigError(f"resampling={resampling!r} is unknown: choose one of {', '.join(RESAMPLINGS)}") from None


# ----------------------------------------------------------------------------------------------- places and windows


@dataclass(frozen=True)
class _Places:
    """Where output pixels lie, along columns and rows."""

    cols: Floats
    """(W,) where the grids are aligned, else (H, W)."""
    rows: Floats
    """(H,) where the grids are aligned, else (H, W)."""
    scale: tuple[float, float]

    @classmethod
    def of(cls, coords: Coordinates, lines: slice = slice(None)) -> _Places:
        if coords.separable:
            return cls(coords.cols[0], coords.rows[lines, 0], coords.scale)
        return cls(coords.cols[lines], coords.rows[lines], coords.scale)

    @property
    def separable(self) -> bool:
        return self.cols.ndim == 1

    def inside(self, window: Window, kernel: _Kernel) -> Bools | None:
        """Whether each output pixel has data in ``window``, (H, W) or broadcasting to it; None if all do."""
        (before_x, after_x), (before_y, after_y) = (kernel.margins(s) for s in self.scale)
        across = _between(self.cols, window.col_off - before_x, window.col_stop + after_x)
        along = _between(self.rows, window.row_off - before_y, window.row_stop + after_y)
        if along is not None and self.separable:
            along = along[:, None]
        return across if along is None else along if across is None else along & across

    def within(self, window: Window, reach: tuple[float, float]) -> _Places:
        """Counted from the window's corner, those farther than ``reach`` outside (and NaN) moved to where it ends."""
        cols = _clamp(self.cols - window.col_off, window.width, reach[0])
        rows = _clamp(self.rows - window.row_off, window.height, reach[1])
        return _Places(cols, rows, self.scale)


def _between(at: Floats, low: float, high: float) -> Bools | None:
    """Whether low <= at < high; None if so everywhere. NaN is not."""
    if at.min() >= low and at.max() < high:
        return None
    return (at >= low) & (at < high)


def _clamp(at: Floats, size: int, reach: float) -> Floats:
    if at.min() >= -reach and at.max() <= size + reach:
        return at
    return np.clip(np.nan_to_num(at), -reach, size + reach)


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
    kernel = _kernel(resampling)
    places = _Places.of(coords)
    cols, rows = places.cols, places.rows
    inside = places.inside(src.window, kernel)
    if inside is not None:
        inside = np.broadcast_to(inside, coords.cols.shape)
        if not inside.any():
            return None
        if places.separable:
            cols, rows = cols[inside.any(axis=0)], rows[inside.any(axis=1)]
        else:
            cols, rows = cols[inside], rows[inside]
    left, right = _needed(cols, kernel, coords.scale[0], src.width)
    top, bottom = _needed(rows, kernel, coords.scale[1], src.height)
    return Window(left, top, right - left, bottom - top)


def _needed(at: Floats, kernel: _Kernel, scale: float, size: int) -> tuple[int, int]:
    """First source pixel of any weight at these positions, and one past the last."""
    low, high = float(at.min()), float(at.max())
    if kernel.radius == 0:
        first, last = math.floor(low + _SNAP), math.floor(high + _SNAP)
    else:
        reach = kernel.support(scale) + (0.5 if kernel.areal else 0.0) - _SNAP
        first, last = math.ceil(low - 0.5 - reach), math.floor(high - 0.5 + reach)
    return min(max(0, first), size - 1), max(1, min(size, last + 1))


# --------------------------------------------------------------------------------------------------------------- taps


@dataclass(frozen=True)
class _Taps:
    """Consecutive source pixels that each output position draws on along one axis."""

    first: Ints
    """First tap of each position; taps may lie outside the source."""
    weights: tuple[Array, ...]
    """Weights of first, first + 1, …: arrays shaped as ``first``."""
    widened: bool
    """Whether the kernel is stretched, or weighs areas: then the weights do not add up to 1."""

    @property
    def total(self) -> Array:
        """Sum of each position's weights."""
        return reduce(np.add, self.weights)

    def outside(self, size: int) -> bool:
        """Whether any tap lies outside ``size`` source pixels."""
        return bool(self.first.min() < 0 or self.first.max() + len(self.weights) > size)


def _taps(kernel: _Kernel, at: Floats, scale: float, dtype: np.dtype[Any]) -> _Taps:
    """Taps of positions ``at`` (0.5 is the centre of source pixel 0), weights in ``dtype``."""
    width = kernel.width(scale)
    first = np.floor(at + ((0.0 if kernel.areal else 0.5) + _SNAP - kernel.support(scale)))
    # a few pixels at most, so that float32 will do
    weights = kernel.weights((first - at).astype(dtype), width)
    while len(weights) > 1 and not weights[-1].any():
        weights.pop()
    return _Taps(first.astype(np.intp), tuple(weights), kernel.areal or width > 1)


def _combine(planes: Array, x: _Taps, y: _Taps, pad: tuple[int, int]) -> Array:
    """Weighted sums (P, H, W) of planes (P, h, w) that have ``pad`` (columns, rows) more on every side."""
    if x.first.ndim == 1:
        return _combine_axes(planes, x, y, pad)
    line = planes.shape[2]
    base = (y.first + pad[1]) * line + (x.first + pad[0])
    out = np.zeros((len(planes), *base.shape), planes.dtype)
    row, term = np.empty_like(out[0]), np.empty_like(out[0])
    for plane, result in zip(planes.reshape(len(planes), -1), out, strict=True):
        for j, weight_y in enumerate(y.weights):
            for i, weight_x in enumerate(x.weights):
                # the indices are right by construction; "clip" only spares NumPy a copy of the output
                np.take(plane[j * line + i :], base, out=term, mode="clip")
                np.multiply(term, weight_x, out=term if i else row)
                if i:
                    np.add(row, term, out=row)
            np.multiply(row, weight_y, out=row)
            np.add(result, row, out=result)
    return out


def _combine_axes(planes: Array, x: _Taps, y: _Taps, pad: tuple[int, int]) -> Array:
    """As `_combine` where weights depend on the output's column and row alone: one axis after the other."""
    first = y.first + pad[1]
    lines = planes[:, first] * y.weights[0][:, None]
    for j, weight in enumerate(y.weights[1:], start=1):
        lines += planes[:, first + j] * weight[:, None]
    first = x.first + pad[0]
    out: Array = lines[:, :, first] * x.weights[0]
    for i, weight in enumerate(x.weights[1:], start=1):
        out += lines[:, :, first + i] * weight
    return out


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
    kernel = _kernel(resampling)
    shape = data.shape[0], *coords.cols.shape
    out, out_valid = np.empty(shape, data.dtype), np.empty(shape, bool)
    stock = _Stock(data, None if valid.all() else valid, window, kernel, coords.scale)
    for lines in _chunks(*coords.cols.shape):
        _resample_lines(stock, _Places.of(coords, lines), out[:, lines], out_valid[:, lines])
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
    kernel: _Kernel
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
        col = np.clip((places.cols + _SNAP).astype(np.intp), 0, width - 1)
        row = np.clip((places.rows + _SNAP).astype(np.intp), 0, height - 1)
        if places.separable:
            picked: Array = planes[:, row[:, None], col]
            return picked
        taken: Array = planes.reshape(len(planes), -1).take(row * width + col, axis=1)
        return taken

    def weighted(self, places: _Places, kernel: _Kernel) -> tuple[Array, Bools | None]:
        """Weighted means (C, H, W), and whether anything was there to weigh; None if everything was."""
        x = _taps(kernel, places.cols, self.scale[0], self.real)
        y = _taps(kernel, places.rows, self.scale[1], self.real)
        values = _combine(self.planes, x, y, self.pad)
        widened = x.widened or y.widened
        if self.valid is None and not x.outside(self.window.width) and not y.outside(self.window.height):
            return (values / _total(x, y) if widened else values), None
        total = _total(x, y) if widened else self.real.type(1)
        weight = _combine(self.presence, x, y, self.pad)
        found = weight > _LEAST_WEIGHT * total
        values /= np.where(found, weight, 1)
        if kernel.fallback is not None:
            lean = weight < _ENOUGH_FOR_CUBIC * total if widened else self._tap_missing(x, y)
            if lean.any():
                simple, simple_found = self.weighted(places, kernel.fallback)
                values = np.where(lean, simple, values)
                found = found | lean if simple_found is None else np.where(lean, simple_found, found)
        return values, found

    def _tap_missing(self, x: _Taps, y: _Taps) -> Bools:
        """Whether any tap has no data, whatever its weight."""
        missing = np.logical_not(self.presence)
        for axis, taps in ((1, y), (2, x)):
            reach = missing.shape[axis] - len(taps.weights) + 1
            parts = (np.take(missing, range(k, k + reach), axis) for k in range(len(taps.weights)))
            missing = np.logical_or.reduce(list(parts))
        row, col = y.first + self.pad[1], x.first + self.pad[0]
        short: Bools = missing[:, row[:, None] if row.ndim == 1 else row, col]
        return short


def _total(x: _Taps, y: _Taps) -> Array:
    total: Array = (y.total[:, None] if x.first.ndim == 1 else y.total) * x.total
    return total


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
