"""Kernels of the resamplings: which source pixels an output position draws on along one axis, and with what weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

__all__ = [
    "BILINEAR",
    "RESAMPLINGS",
    "SNAP",
    "Kernel",
    "Taps",
    "combine",
    "combine_columns",
    "combine_rows",
    "kernel_named",
    "longest_runs",
    "nearly_whole",
    "taps_at",
]

SNAP = 1e-7
"""Pixels by which a coordinate may miss an edge through rounding and still count as on it."""

_NEARLY_WHOLE = 0.05
"""A scale this close to a whole number counts as that number where grids are not aligned."""


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
class Kernel:
    """How far a resampling looks along an axis, and what weight it gives to source pixels there."""

    radius: float
    """Half of the support at a scale of 1, in source pixels; 0 takes the one pixel that contains the centre."""
    pieces: tuple[Callable[[Array], Array], ...] = ()
    """Weight at a distance from 0 to 1, from 1 to 2, … between centres."""
    areal: bool = False
    """Whether it weighs by the area that the output pixel covers, instead of by distance."""
    counts: bool = False
    """Whether values are counted, not weighed."""
    fallback: Kernel | None = None
    """What to use where too many taps are missing."""

    def width(self, scale: float) -> float:
        """Factor by which the kernel is stretched at ``scale`` source pixels per output pixel."""
        return scale if self.areal else max(1.0, scale)

    def support(self, scale: float) -> float:
        """Half of the support, in source pixels."""
        return self.radius * self.width(scale)

    def margins(self, scale: float) -> tuple[float, float]:
        """How far before the source's first and beyond its last edge a centre may lie, in source pixels."""
        if self.areal:
            return self.support(scale) - SNAP, self.support(scale) - SNAP
        return SNAP, -SNAP  # a centre on the first edge is inside, one on the last is not

    def weights(self, left: Array, width: float) -> list[Array]:
        """Weights of consecutive source pixels, the first of which has its left edge ``left`` of the centre."""
        if self.areal:
            half = width / 2
            count = math.ceil(width - SNAP) + 1
            return [np.maximum(np.minimum(left + (k + 1), half) - np.maximum(left + k, -half), 0) for k in range(count)]
        if width == 1:
            # the piece is known beforehand: -2 to -1, -1 to 0, 0 to 1, 1 to 2
            n = len(self.pieces)
            before = [self.pieces[n - 1 - k](-0.5 - k - left) for k in range(n)]
            return before + [piece(left + (n + k + 0.5)) for k, piece in enumerate(self.pieces)]
        count = math.ceil(2 * self.radius * width - SNAP)
        return [self._weight(np.abs(left + (k + 0.5)) / width) for k in range(count)]

    def _weight(self, distance: Array) -> Array:
        within = [distance < k + 1 for k in range(len(self.pieces))]
        return np.select(within, [piece(distance) for piece in self.pieces], distance.dtype.type(0))


BILINEAR = Kernel(1.0, (_triangle,))
KERNELS = {
    "nearest": Kernel(0.0),
    "bilinear": BILINEAR,
    "cubic": Kernel(2.0, (_cubic_near, _cubic_far), fallback=BILINEAR),
    "average": Kernel(0.5, areal=True),
    "mode": Kernel(0.5, areal=True, counts=True),
}

RESAMPLINGS = tuple(KERNELS)
"""Names that ``resampling`` may take."""


def nearly_whole(scale: float) -> float:
    """The scale that GDAL's warper stretches kernels by: whole if close to it."""
    whole = round(scale)
    return whole if abs(scale - whole) < _NEARLY_WHOLE else scale


def kernel_named(resampling: str) -> Kernel:
    """The kernel of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return KERNELS[resampling]
    except KeyError:
        raise ConfigError(f"resampling={resampling!r} is unknown: choose one of {', '.join(RESAMPLINGS)}") from None


@dataclass(frozen=True)
class Taps:
    """Consecutive source pixels that each output position draws on along one axis."""

    first: Ints
    """First tap of each position; taps may lie outside the source."""
    stop: Ints
    """One past the last tap of any weight."""
    weights: tuple[Array, ...]
    """Weights of first, first + 1, …: arrays shaped as ``first``."""
    widened: bool
    """Whether the kernel is stretched, or weighs areas: then the weights do not add up to 1."""

    @property
    def total(self) -> Array:
        """Sum of each position's weights."""
        return reduce(np.add, self.weights)

    @property
    def touched(self) -> Taps:
        """The same with a weight of 1 on every tap that is one, and 0 on those that only fill up the arrays."""
        ones = [
            ((weight != 0) | (self.first + k < self.stop)).astype(weight.dtype) for k, weight in enumerate(self.weights)
        ]
        return Taps(self.first, self.stop, tuple(ones), self.widened)

    def outside(self, size: int) -> bool:
        """Whether any tap lies outside ``size`` source pixels."""
        return bool(self.first.min() < 0 or self.first.max() + len(self.weights) > size)


def taps_at(kernel: Kernel, at: Floats, scale: float, dtype: np.dtype[Any]) -> Taps:
    """Taps of positions ``at`` (0.5 is the centre of source pixel 0), weights in ``dtype``."""
    width = kernel.width(scale)
    middle = at + ((0.0 if kernel.areal else 0.5) + SNAP)
    first = np.floor(middle - kernel.support(scale))
    # a few pixels at most, so that float32 will do
    weights = kernel.weights((first - at).astype(dtype), width)
    while len(weights) > 1 and not weights[-1].any():
        weights.pop()
    stop = np.floor(middle + kernel.support(scale)).astype(np.intp)
    return Taps(first.astype(np.intp), stop, tuple(weights), kernel.areal or width > 1)


def combine(planes: Array, x: Taps, y: Taps, pad: tuple[int, int]) -> Array:
    """Weighted sums (P, H, W) of planes (P, h, w) that have ``pad`` (columns, rows) more on every side."""
    if x.first.ndim == 1:
        # weights depend on the output's column and row alone: one axis after the other
        return combine_columns(combine_rows(planes, y, pad[1]), x, pad[0])
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


def combine_rows(planes: Array, taps: Taps, pad: int) -> Array:
    """Weighted sums (P, H, w) of the rows of planes (P, h, w) that have ``pad`` more rows above and below."""
    first = taps.first + pad
    lines: Array = planes[:, first] * taps.weights[0][:, None]
    for j, weight in enumerate(taps.weights[1:], start=1):
        lines += planes[:, first + j] * weight[:, None]
    return lines


def combine_columns(planes: Array, taps: Taps, pad: int) -> Array:
    """Weighted sums (P, h, W) of the columns of planes (P, h, w) that have ``pad`` more columns on either side."""
    first = taps.first + pad
    out: Array = planes[:, :, first] * taps.weights[0]
    for i, weight in enumerate(taps.weights[1:], start=1):
        out += planes[:, :, first + i] * weight
    return out


def longest_runs(present: Array, taps: Taps, pad: int) -> Ints:
    """(…, n) most taps in a row, of each of n positions along the last axis, that are present (not 0)."""
    first = taps.first + pad
    run = best = np.zeros((*present.shape[:-1], len(first)), np.intp)
    for k in range(int((taps.stop - taps.first).max())):
        here = (present[..., np.minimum(first + k, present.shape[-1] - 1)] != 0) & (taps.first + k < taps.stop)
        run = np.where(here, run + 1, 0)
        best = np.maximum(best, run)
    return best
