"""Rasters that ground control points place: a polynomial from the earth to pixels, as GDAL fits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine

from geostream.grid import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyproj import CRS

    Floats = NDArray[np.float64]

__all__ = ["ControlPoint", "CurvedGrid", "fit"]

ControlPoint = tuple[float, float, float, float]
"""(column, row, x, y)."""

_FEWEST = 4
"""Three points fit any plane, mistakes included."""
_ENOUGH_FOR_CURVES = 6
_EDGE_POINTS = 16
"""Points that stand for each edge of an outline."""
_ROUNDS = 10
"""Corrections of a place, each of which leaves a small part of the last one's error: rasters bend little."""


@dataclass(frozen=True, slots=True, eq=False)
class CurvedGrid(Grid):
    """Pixels that a polynomial places; the transform is the affine that comes closest."""

    cols: tuple[float, ...] = ()
    """Coefficients of columns: of 1, x, y, and in the second order of x², xy, y², in normalised coordinates."""
    rows: tuple[float, ...] = ()
    """Coefficients of rows."""
    centre: tuple[float, float] = (0.0, 0.0)
    """Subtracted from (x, y) first."""
    spread: tuple[float, float] = (1.0, 1.0)
    """(x, y) are divided by it then."""

    @property
    def curved(self) -> bool:
        """True."""
        return True

    @property
    def outline(self) -> list[tuple[float, float]]:
        """(x, y) of points along its edges, in order."""
        steps, zeros = np.arange(_EDGE_POINTS) / _EDGE_POINTS, np.zeros(_EDGE_POINTS)
        cols = np.concatenate([steps, zeros + 1, 1 - steps, zeros]) * self.width
        rows = np.concatenate([zeros, steps, zeros + 1, 1 - steps]) * self.height
        x, y = self._place(cols, rows)
        return list(zip(x.tolist(), y.tolist(), strict=True))

    def _place(self, cols: Floats, rows: Floats) -> tuple[Floats, Floats]:
        """Places (x, y) of columns and rows: the polynomial leads there only backwards, and the affine is close."""
        t = self.transform
        x, y = t.a * cols + t.b * rows + t.c, t.d * cols + t.e * rows + t.f
        for _ in range(_ROUNDS):
            at = self.pixels_of(x, y)
            col, row = cols - at[0], rows - at[1]
            x, y = x + t.a * col + t.b * row, y + t.d * col + t.e * row
        return x, y

    def scaled(self, width: int, height: int) -> CurvedGrid:
        """The same extent in ``width`` x ``height`` pixels."""
        sx, sy = self.width / width, self.height / height
        return replace(
            self,
            width=width,
            height=height,
            transform=self.transform @ Affine.scale(sx, sy),
            cols=tuple(c / sx for c in self.cols),
            rows=tuple(c / sy for c in self.rows),
        )

    def paste_window(self, other: Grid) -> None:
        """None: no grid has these pixels."""
        del other

    def pixels_of(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Columns and rows of places (x, y)."""
        terms = _terms(x, y, self.centre, self.spread, len(self.cols))
        return _sum(terms, self.cols), _sum(terms, self.rows)


def fit(points: Sequence[ControlPoint], width: int, height: int, crs: CRS | None) -> CurvedGrid | None:
    """Fit a grid to control points by least squares: in the second order from six points on, as GDAL does by default.

    Args:
        points: (column, row, x, y) each.
        width: columns of the raster.
        height: rows of the raster.
        crs: of (x, y).

    Returns:
        The grid; None with fewer than four points, without a CRS, or if the points lie on a line.
    """
    if len(points) < _FEWEST or crs is None:
        return None
    col, row, x, y = np.asarray(points, dtype=np.float64).T
    centre = float(x.mean()), float(y.mean())
    spread = float(np.ptp(x)) or 1.0, float(np.ptp(y)) or 1.0
    terms = np.stack(_terms(x, y, centre, spread, 6 if len(points) >= _ENOUGH_FOR_CURVES else 3), axis=1)
    (cols, rows), rank = _least_squares(terms, np.stack([col, row], axis=1))
    (a, d), plane = _least_squares(np.stack([np.ones_like(col), col, row], axis=1), np.stack([x, y], axis=1))
    if rank < terms.shape[1] or plane < 3:  # noqa: PLR2004 - terms of a plane
        return None
    transform = Affine(a[1], a[2], a[0], d[1], d[2], d[0])
    return CurvedGrid(width, height, transform, crs, cols, rows, centre, spread)


def _least_squares(terms: Floats, values: Floats) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Coefficients of each of the columns of ``values``, and how many of them the points determine."""
    solution, _, rank, _ = np.linalg.lstsq(terms, values, rcond=None)
    return tuple(map(tuple, solution.T.tolist())), int(rank)


def _terms(x: Floats, y: Floats, centre: tuple[float, float], spread: tuple[float, float], count: int) -> list[Any]:
    x, y = (x - centre[0]) / spread[0], (y - centre[1]) / spread[1]
    return [np.ones_like(x), x, y, x * x, x * y, y * y][:count]


def _sum(terms: list[Any], coefficients: tuple[float, ...]) -> Floats:
    total: Floats = sum((term * c for term, c in zip(terms, coefficients, strict=True)), np.zeros_like(terms[0]))
    return total
