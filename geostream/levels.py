"""Which level of a raster GDAL reads from for an output, and where in an overview it begins. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from geostream.coordinates import grid_scale
from geostream.grid import PASTE_TOLERANCE, Window
from geostream.kernels import SNAP, kernel_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from geostream.coordinates import Coordinates
    from geostream.grid import Grid
    from geostream.header import RasterHeader
    from geostream.plan import Request

__all__ = ["as_gdal_begins", "choose_level"]

_NEARLY = 0.1
"""How much coarser than wanted GDAL lets an overview be, and how close it must come for no coarser one to be tried."""


def choose_level(
    source: Grid, header: RasterHeader, request: Request, locate: Callable[[Grid, Grid], Coordinates]
) -> int:
    """The level that GDAL reads from (3.10): the coarsest whose factor is below ``f * t + 0.1``.

    ``f`` is the smaller number of source pixels per output pixel of both axes, or that along columns if the output is a
    single row; ``t`` is 1.2 for nearest, else 1. What is wanted no coarser than the raster is read from the raster.
    """
    grid = request.grid
    scale = grid_scale(source, grid, locate) if header.overviews else (1.0, 1.0)
    if max(scale) <= 1 + PASTE_TOLERANCE:
        return 0
    tolerance = 1.2 if request.resampling == "nearest" else 1.0
    sizes = [(header.grid.width, header.grid.height), *header.overviews]
    level = _coarsest(sizes, scale, grid, tolerance)
    if level == 1 and any(side.lower().endswith(".ovr") for side in request.source.sidecars):
        # A file of overviews is a raster with overviews itself: GDAL chooses a second time, for whole pixels of it.
        pixels = _whole_pixels(source, grid, scale, sizes[1])
        level += _coarsest(sizes[1:], (pixels[0] / grid.width, pixels[1] / grid.height), grid, tolerance)
    return level


def _whole_pixels(source: Grid, grid: Grid, scale: tuple[float, float], size: tuple[int, int]) -> tuple[float, float]:
    """Size under ``grid`` of an overview of ``size``, as GDAL rounds it."""
    pixels = []
    corner = ~source.transform @ (grid.transform.c, grid.transform.f)
    for at, step, count, low, full in zip(
        corner, scale, (grid.width, grid.height), size, (source.width, source.height), strict=True
    ):
        first = min(low - 1, int(at * low / full + 0.5 + SNAP))
        pixels.append(min(max(1, int(step * count * low / full + 0.5 + SNAP)), low - first))
    return pixels[0], pixels[1]


def _coarsest(sizes: Sequence[tuple[int, int]], scale: tuple[float, float], grid: Grid, tolerance: float) -> int:
    """Position in ``sizes``, the raster's own first, of the level for ``scale`` source pixels per pixel of ``grid``.

    An overview's factor is the smaller one of both axes, and of equal factors the finest counts: a raster of one column
    is not halved in width.
    """
    wanted = scale[0] if scale[0] < scale[1] or grid.height == 1 else scale[1]
    level, best = 0, 0.0
    for i, (width, height) in enumerate(sizes[1:], 1):
        factor = min(sizes[0][0] / width, sizes[0][1] / height)
        if best < factor < wanted * tolerance + _NEARLY:
            level, best = i, factor
            if abs(wanted - factor) < _NEARLY:
                break
    return level


def as_gdal_begins(window: Window, coordinates: Coordinates, resampling: str) -> tuple[Window, tuple[int, int]]:
    """The part of an overview's ``window`` to read as GDAL does, and `Job.repeated`.

    GDAL rounds the window's corner to whole pixels of the overview. What lies before it, by more than the kernel's
    radius, has no part in the first row and column; but ``average`` gives its share to the pixels that follow.
    """
    kernel = kernel_named(resampling)
    if kernel.radius == 0:
        return window, (0, 0)
    begins = []
    for first, scale in zip((coordinates.cols[0, 0], coordinates.rows[0, 0]), coordinates.scale, strict=True):
        corner = math.floor(float(first) - scale / 2 + 0.5 + SNAP)
        begins.append(corner - int(kernel.radius) * max(1, math.floor(scale + 0.5)))
    left = min(max(0, begins[0] - window.col_off), window.width - 1)
    top = min(max(0, begins[1] - window.row_off), window.height - 1)
    if kernel.areal and not kernel.counts:
        return window, (left, top)
    part = Window(window.col_off + left, window.row_off + top, window.width - left, window.height - top)
    return part, (0, 0)
