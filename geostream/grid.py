"""Pixel geometry: windows of a raster, grids on the earth, and when one is a plain part of the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from affine import Affine
from pyproj import CRS

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PASTE_TOLERANCE", "Bounds", "Grid", "Window", "parse_crs", "same_crs"]

Bounds = tuple[float, float, float, float]
"""``(xmin, ymin, xmax, ymax)`` in the units of a CRS, x (longitude, easting) first whatever the CRS's axis order."""

PASTE_TOLERANCE = 1e-3
"""Offset in source pixels up to which two grids count as aligned, so that pixels are pasted, not resampled."""


@lru_cache(maxsize=256)
def _crs_from_text(text: str) -> CRS:
    return CRS.from_user_input(text)


def parse_crs(value: Any) -> CRS | None:
    """Turn what users pass as a CRS (EPSG code, WKT, PROJ string, rasterio or pyproj CRS) into a pyproj CRS.

    Raises:
        ConfigError: if PROJ does not understand it.
    """
    if value is None or isinstance(value, CRS):
        return value
    if hasattr(value, "to_wkt"):
        value = value.to_wkt()
    elif isinstance(value, int):
        value = f"EPSG:{value}"
    try:
        return _crs_from_text(value) if isinstance(value, str) else CRS.from_user_input(value)
    except Exception as error:  # pyproj raises CRSError, and TypeError or ProjError on odd input
        raise ConfigError(f"{value!r} is not a CRS that PROJ understands: {error}") from error


@lru_cache(maxsize=4096)
def _equivalent(a: CRS, b: CRS) -> bool:
    return a.equals(b, ignore_axis_order=True)


def same_crs(a: CRS | None, b: CRS | None) -> bool:
    """Whether coordinates in ``a`` are coordinates in ``b``, axis order aside (x always comes first here)."""
    if a is None or b is None:
        return a is b
    return a is b or a.srs == b.srs or _equivalent(a, b)


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of whole pixels; it may leave the raster."""

    col_off: int
    """First column."""
    row_off: int
    """First row."""
    width: int
    """Number of columns."""
    height: int
    """Number of rows."""

    @property
    def col_stop(self) -> int:
        """One past the last column."""
        return self.col_off + self.width

    @property
    def row_stop(self) -> int:
        """One past the last row."""
        return self.row_off + self.height

    def intersection(self, other: Window) -> Window | None:
        """The part both share, or None."""
        col, row = max(self.col_off, other.col_off), max(self.row_off, other.row_off)
        width = min(self.col_stop, other.col_stop) - col
        height = min(self.row_stop, other.row_stop) - row
        return Window(col, row, width, height) if width > 0 and height > 0 else None


@dataclass(frozen=True, slots=True)
class Grid:
    """Pixels laid on the earth: a shape, an affine transform and a CRS. Georeferencing is float64 throughout."""

    width: int
    """Number of columns."""
    height: int
    """Number of rows."""
    transform: Affine
    """Maps (column, row) of a pixel's upper left corner to (x, y); (0.5, 0.5) is the centre of the first pixel."""
    crs: CRS | None
    """CRS of (x, y), or None where the raster has no georeferencing."""

    def __hash__(self) -> int:
        # A CRS writes out its WKT to be hashed; equal grids have equal transforms.
        return hash((self.width, self.height, self.transform))

    @property
    def window(self) -> Window:
        """The whole grid as a window of itself."""
        return Window(0, 0, self.width, self.height)

    @property
    def res(self) -> tuple[float, float]:
        """Pixel size (x, y) in CRS units, positive; the length of a pixel's edges where the grid is rotated."""
        t = self.transform
        return math.hypot(t.a, t.d), math.hypot(t.b, t.e)

    @property
    def bounds(self) -> Bounds:
        """Box around the four corners."""
        t = self.transform
        if t.b == 0 and t.d == 0:  # which is so for every query, and affine's products take their time
            across, down = (t.c, t.a * self.width + t.c), (t.f, t.e * self.height + t.f)
            return min(across), min(down), max(across), max(down)
        corners = [t @ (c, r) for c in (0, self.width) for r in (0, self.height)]
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        return min(xs), min(ys), max(xs), max(ys)

    @property
    def outline(self) -> list[tuple[float, float]]:
        """(x, y) of its corners in order, and of points between them where its edges bend."""
        corners = [(0, 0), (self.width, 0), (self.width, self.height), (0, self.height)]
        return [self.transform @ corner for corner in corners]

    @property
    def curved(self) -> bool:
        """Whether more than the affine transform places its pixels."""
        return False

    def pixels_of(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Columns and rows of places (x, y) in its CRS."""
        t = self.transform
        x, y = x - t.c, y - t.f
        if t.b == 0 and t.d == 0:
            return x / t.a, y / t.e
        det = t.a * t.e - t.b * t.d
        return (t.e * x - t.b * y) / det, (t.a * y - t.d * x) / det

    def part(self, window: Window) -> Grid:
        """The grid of ``window``, which may leave this one."""
        shifted = self.transform @ Affine.translation(window.col_off, window.row_off)
        return Grid(window.width, window.height, shifted, self.crs)

    def scaled(self, width: int, height: int) -> Grid:
        """The same extent in ``width`` x ``height`` pixels."""
        scale = Affine.scale(self.width / width, self.height / height)
        return Grid(width, height, self.transform @ scale, self.crs)

    def paste_window(self, other: Grid) -> Window | None:
        """Where ``other`` lies among this grid's pixels, if its pixels are these pixels; else None.

        Same CRS, same resolution, and every corner within `PASTE_TOLERANCE` pixels of a corner here.
        """
        if not same_crs(self.crs, other.crs):
            return None
        a, b, c0, d, e, f0 = relative_transform(self.transform, other.transform)
        col, row = round(c0), round(f0)
        for c, r in ((0, 0), (other.width, 0), (0, other.height), (other.width, other.height)):
            x, y = a * c + b * r + c0, d * c + e * r + f0
            if abs(x - c - col) > PASTE_TOLERANCE or abs(y - r - row) > PASTE_TOLERANCE:
                return None
        return Window(col, row, other.width, other.height)

    @classmethod
    def from_bounds(cls, bounds: Iterable[float], res: tuple[float, float], crs: CRS | None) -> Grid:
        """North-up grid anchored at (xmin, ymax) with ``max(1, floor(extent / res + 0.5))`` pixels on each axis."""
        xmin, ymin, xmax, ymax = bounds
        width, height = pixel_count(xmax - xmin, res[0]), pixel_count(ymax - ymin, res[1])
        return cls(width, height, Affine(res[0], 0.0, xmin, 0.0, -res[1], ymax), crs)


def relative_transform(src: Affine, dst: Affine) -> tuple[float, float, float, float, float, float]:
    """Coefficients (a, b, c, d, e, f) of the pixels of ``dst`` -> those of ``src``.

    The origins are subtracted first: composing the transforms as they are would lose digits to large coordinates.
    """
    x, y = dst.c - src.c, dst.f - src.f
    if src.b == 0 and src.d == 0:  # dividing rounds once, multiplying with an inverse twice
        return dst.a / src.a, dst.b / src.a, x / src.a, dst.d / src.e, dst.e / src.e, y / src.e
    ia, ib, id_, ie = _inverse_linear(src)
    return (
        ia * dst.a + ib * dst.d,
        ia * dst.b + ib * dst.e,
        ia * x + ib * y,
        id_ * dst.a + ie * dst.d,
        id_ * dst.b + ie * dst.e,
        id_ * x + ie * y,
    )


def _inverse_linear(t: Affine) -> tuple[float, float, float, float]:
    if t.b == 0 and t.d == 0:
        return 1 / t.a, 0.0, 0.0, 1 / t.e
    det = t.a * t.e - t.b * t.d
    return t.e / det, -t.b / det, -t.d / det, t.a / det


def pixel_count(extent: float, step: float) -> int:
    """Pixels of size ``step`` that stand for ``extent``: rounded half up, never none."""
    return max(1, math.floor(extent / step + 0.5))
