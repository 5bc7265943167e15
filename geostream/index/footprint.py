"""The ground that rasters cover, carried from one CRS to another."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import rasterio.warp
import shapely
from pyproj import Transformer
from pyproj.exceptions import ProjError

from geostream.errors import ConfigError
from geostream.grid import Grid, Window, same_crs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

__all__ = ["converted_res", "footprint", "footprints", "outline", "projected"]

_EDGE_PARTS = 32
"""Straight pieces that stand for a footprint's longer side after reprojection."""
_INNER_POINTS = 7
"""On each axis, points inside a footprint that must come to lie inside it after reprojection."""
_BOX_POINTS = 65
"""On each axis, points inside a footprint around whose images a box is laid."""
_HALF_TURN = 180.0


def outline(grid: Grid) -> Geometry:
    """The ground that ``grid`` covers as a polygon in its own CRS."""
    straight = grid.transform.b == 0 and grid.transform.d == 0 and not grid.curved
    return shapely.orient_polygons(shapely.box(*grid.bounds) if straight else shapely.Polygon(grid.outline))


def footprint(grid: Grid, crs: CRS | None) -> Geometry:
    """The ground that ``grid`` covers as a polygon in ``crs``, its edges following the projection.

    Raises:
        ConfigError: the grid has no CRS while one is asked for, or lies where ``crs`` is not defined.
    """
    shape = outline(grid)
    return shape if same_crs(grid.crs, crs) else projected([shape], grid.crs, crs)[0]


def footprints(grids: Sequence[Grid], crs: CRS | None) -> list[Geometry]:
    """The ground that each of ``grids`` covers, as `footprint` tells it; those of one CRS are carried together.

    Raises:
        ConfigError: as `footprint`.
    """
    shapes = [outline(grid) for grid in grids]
    groups: dict[str | None, list[int]] = {}
    for number, grid in enumerate(grids):
        groups.setdefault(None if grid.crs is None else grid.crs.srs, []).append(number)
    for numbers in groups.values():
        source = grids[numbers[0]].crs
        if not same_crs(source, crs):
            moved = projected([shapes[number] for number in numbers], source, crs)
            for number, shape in zip(numbers, moved, strict=True):
                shapes[number] = shape
    return shapes


def projected(shapes: Sequence[Geometry], source: CRS | None, target: CRS | None) -> list[Geometry]:
    """Polygons carried from one CRS to another, with points added along their edges so that these may bend.

    A polygon that crosses the antimeridian becomes its two parts. Where some points have no image in ``target``, or its
    edges do not go around its inside there (a pole lies within, or the world is cut open elsewhere), a box stands for
    the polygon.

    Raises:
        ConfigError: one of the two is None, PROJ knows no way between them, or a polygon has no image at all.
    """
    if source is None or target is None:
        raise ConfigError(
            "a raster without a CRS cannot be combined with a CRS: leave crs=None for all, or georeference the file"
        )
    try:
        transformer = Transformer.from_crs(source, target, always_xy=True)
    except ProjError as error:
        raise ConfigError(
            f"PROJ knows no way from {source.name!r} to {target.name!r}: {error}. Ask for a crs on the same celestial "
            "body, or leave crs out"
        ) from error
    return [_project(shape, transformer, wraps=target.is_geographic) for shape in shapes]


def _project(shape: Geometry, transformer: Transformer, *, wraps: bool) -> Geometry:
    xmin, ymin, xmax, ymax = shape.bounds
    dense = shapely.segmentize(shape, max(xmax - xmin, ymax - ymin) / _EDGE_PARTS)
    points = shapely.get_coordinates(dense)
    try:
        moved = np.column_stack(transformer.transform(points[:, 0], points[:, 1]))
    except ProjError as error:
        raise ConfigError(f"the area {shape.bounds} cannot be projected: {error}") from error
    finite = np.isfinite(moved).all(axis=1)
    if not finite.any():
        raise ConfigError(
            f"the area {shape.bounds} of {transformer.source_crs} has no place in {transformer.target_crs}"
        )
    if finite.all():
        outline = _outline(dense, moved.copy(), wraps=wraps)
        if shapely.intersects_xy(outline, *_project_inside(shape, transformer, _INNER_POINTS).T).all():
            return outline
    return _box_around(shape, moved[finite], transformer, wraps=wraps)


def _project_inside(shape: Geometry, transformer: Transformer, count: int) -> NDArray[np.float64]:
    """Images (n, 2) of points inside a polygon, ``count`` on each axis of its box, as far as they have one."""
    xmin, ymin, xmax, ymax = shape.bounds
    steps = (np.arange(count) + 0.5) / count
    x, y = (line.ravel() for line in np.meshgrid(xmin + steps * (xmax - xmin), ymin + steps * (ymax - ymin)))
    within = shapely.contains_xy(shape, x, y)
    moved = np.column_stack(transformer.transform(x[within], y[within]))
    found: NDArray[np.float64] = moved[np.isfinite(moved).all(axis=1)]
    return found


def _box_around(shape: Geometry, edge: NDArray[np.float64], transformer: Transformer, *, wraps: bool) -> Geometry:
    """A box around a polygon's image, of which ``edge`` is known: rather too large, up to a pole that lies within."""
    points = np.concatenate([edge, _project_inside(shape, transformer, _BOX_POINTS)])
    margin = 2 * np.ptp(points, axis=0) / _BOX_POINTS  # between two points there may be a jump
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    if wraps:
        low, high = np.maximum(low, [-_HALF_TURN, -_HALF_TURN / 2]), np.minimum(high, [_HALF_TURN, _HALF_TURN / 2])
    if wraps and high[0] - low[0] > _HALF_TURN:
        low[0], high[0] = -_HALF_TURN, _HALF_TURN
        poles = np.array([-_HALF_TURN / 2, _HALF_TURN / 2])
        within = shapely.intersects_xy(shape, *transformer.transform([0, 0], poles, direction="INVERSE"))
        low[1], high[1] = min([low[1], *poles[within]]), max([high[1], *poles[within]])
    return shapely.box(*low, *high)


def _outline(dense: Geometry, moved: NDArray[np.float64], *, wraps: bool) -> Geometry:
    """The polygon with its points at ``moved``."""
    if wraps and np.ptp(moved[:, 0]) > _HALF_TURN and np.ptp(moved[:, 0] % (2 * _HALF_TURN)) < _HALF_TURN:
        moved[:, 0] %= 2 * _HALF_TURN
        return _split_at_antimeridian(shapely.set_coordinates(dense, moved))
    return shapely.make_valid(shapely.set_coordinates(dense, moved))


def _split_at_antimeridian(shape: Geometry) -> Geometry:
    """Cut a polygon of longitudes 0 to 360 where the longitudes -180 to 180 wrap."""
    xmin, ymin, xmax, ymax = shape.bounds
    west = shapely.clip_by_rect(shape, xmin, ymin, _HALF_TURN, ymax)
    east = shapely.clip_by_rect(shape, _HALF_TURN, ymin, xmax, ymax)
    return shapely.union(west, shapely.transform(east, lambda points: points - [2 * _HALF_TURN, 0.0]))


def converted_res(grid: Grid, target: CRS | None) -> tuple[float, float]:
    """Pixel size in ``target`` that keeps the detail of ``grid``, as GDAL suggests it; that of the grid in its own CRS.

    Raises:
        ConfigError: the area cannot be projected.
    """
    if grid.crs is None or target is None or same_crs(grid.crs, target):
        return grid.res
    wkt, target_wkt = grid.crs.to_wkt(), target.to_wkt()
    halves = [grid.part(Window(at, 0, max(1, grid.width // 2), grid.height)) for at in (0, grid.width // 2)]
    try:
        # GDAL takes a box across the antimeridian for one around the earth; one half of it does not cross.
        whole = (
            part
            for part in (grid, *halves)
            if (box := rasterio.warp.transform_bounds(wkt, target_wkt, *part.bounds))[0] < box[2]
        )
        part = next(whole, grid)
        with warnings.catch_warnings():
            # rasterio 1.4 multiplies transforms by `*`, which affine 3 speaks up against
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            transform, _, _ = rasterio.warp.calculate_default_transform(
                wkt, target_wkt, part.width, part.height, *part.bounds
            )
    except Exception as error:  # rasterio lets GDAL's own exception classes through
        raise ConfigError(f"the resolution of {grid.bounds} cannot be converted, pass res=: {error}") from error
    return float(transform.a), float(-transform.e)
