"""Scenes: where they lie, when they were taken, what their headers say, and which of them a query meets. No network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import geopandas as gpd
import numpy as np
import pandas as pd
import rasterio.warp
import shapely
from affine import Affine
from pyproj import Transformer
from pyproj.exceptions import ProjError

from geostream.errors import ConfigError, NotFoundError
from geostream.grid import PASTE_TOLERANCE, Grid, Window, parse_crs, same_crs
from geostream.header import MaskKind

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

    from geostream.grid import Bounds
    from geostream.header import RasterHeader

__all__ = [
    "Scene",
    "SceneIndex",
    "SceneLookup",
    "converted_res",
    "footprint",
    "interval_index",
    "load_index",
    "projected",
    "scene_frame",
]

_EDGE_PARTS = 32
"""Straight pieces that stand for a footprint's longer side after reprojection."""
_INNER_POINTS = 7
"""On each axis, points inside a footprint that must come to lie inside it after reprojection."""
_BOX_POINTS = 65
"""On each axis, points inside a footprint around whose images a box is laid."""
_HALF_TURN = 180.0
_WGS84 = "EPSG:4326"


@dataclass(frozen=True, slots=True)
class Scene:
    """One raster file and what its header says. Plain facts: pickles, needs no file to be open."""

    url: str
    """Path or URL."""
    sidecars: tuple[str, ...]
    """Mask, overview and metadata files that were listed beside it."""
    grid: Grid
    """Full resolution pixel grid."""
    count: int
    """Number of bands."""
    dtype: np.dtype[np.generic]
    """Pixel type, that of the first band."""
    nodata: tuple[float | None, ...]
    """Declared nodata value of each band."""
    colormap: Mapping[int, tuple[int, ...]] | None
    """Colours (R, G, B, A; 0-255) of a palette raster's values."""
    header: RasterHeader | None
    """The header as read, which spares later reads the request for it; None when an index came without headers."""
    block_shape: tuple[int, int] = (0, 0)
    """(rows, columns) of a tile or strip; (0, 0) where that is not known."""
    all_valid: bool = False
    """Whether every pixel is valid: no nodata value, mask or alpha. False where that is not known."""

    @classmethod
    def from_header(cls, url: str, sidecars: tuple[str, ...], header: RasterHeader) -> Scene:
        """The scene that ``header`` describes."""
        nodata = tuple(header.nodata)
        dtype = np.dtype(header.dtype)
        return cls(
            url,
            sidecars,
            header.grid,
            header.count,
            dtype,
            nodata,
            header.colormap,
            header,
            header.block_shape,
            header.mask is MaskKind.ALL_VALID,
        )


def footprint(grid: Grid, crs: CRS | None) -> Geometry:
    """The ground that ``grid`` covers as a polygon in ``crs``, its edges following the projection.

    Raises:
        ConfigError: the grid has no CRS while one is asked for, or lies where ``crs`` is not defined.
    """
    if grid.transform.b == 0 and grid.transform.d == 0:
        shape = shapely.box(*grid.bounds)
    else:
        corners = [(0, 0), (grid.width, 0), (grid.width, grid.height), (0, grid.height)]
        shape = shapely.Polygon([grid.transform @ corner for corner in corners])
    shape = shapely.orient_polygons(shape)
    return shape if same_crs(grid.crs, crs) else projected([shape], grid.crs, crs)[0]


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
        transform, _, _ = rasterio.warp.calculate_default_transform(
            wkt, target_wkt, part.width, part.height, *part.bounds
        )
    except Exception as error:  # rasterio lets GDAL's own exception classes through
        raise ConfigError(f"the resolution of {grid.bounds} cannot be converted, pass res=: {error}") from error
    return float(transform.a), float(-transform.e)


def interval_index(times: Sequence[tuple[pd.Timestamp, pd.Timestamp]]) -> pd.IntervalIndex:
    """Intervals named ``datetime``, closed at both ends, so that instants count."""
    left = pd.DatetimeIndex([first for first, _ in times])
    right = pd.DatetimeIndex([last for _, last in times])
    return pd.IntervalIndex.from_arrays(left, right, closed="both", name="datetime")


def scene_frame(
    urls: Sequence[str],
    shapes: Sequence[Geometry],
    times: Sequence[tuple[pd.Timestamp, pd.Timestamp]],
    crs: CRS | None,
) -> gpd.GeoDataFrame:
    """A dataset's index: a column ``filepath``, footprints in ``crs``, and intervals of time as the row labels."""
    return gpd.GeoDataFrame({"filepath": list(urls)}, index=interval_index(times), geometry=list(shapes), crs=crs)


@dataclass(frozen=True)
class SceneIndex:
    """A scan to keep: what files there are and what their headers say, so that datasets open without a request.

    Tile tables are not part of it: a saved index's files cost one request for their header when first read.
    """

    scenes: Mapping[str, Scene]
    """Facts about each file, by path or URL."""

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def gdf(self) -> gpd.GeoDataFrame:
        """One row a file: ``filepath``, the facts of `Scene`, and the footprint in EPSG:4326 (None without a CRS)."""
        rows = [_row(scene) for scene in self.scenes.values()]
        shapes = [None if s.grid.crs is None else footprint(s.grid, parse_crs(_WGS84)) for s in self.scenes.values()]
        return gpd.GeoDataFrame(rows, geometry=shapes, crs=_WGS84)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a GeoParquet file, for `load_index`.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            self.gdf.to_parquet(path)
        except ImportError as error:
            raise ConfigError("saving an index needs pyarrow: pip install 'geostream[index]'") from error


def load_index(path: str | os.PathLike[str]) -> SceneIndex:
    """Read an index that `SceneIndex.save` wrote.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: it is no index, or pyarrow is not installed.
    """
    try:
        frame = gpd.read_parquet(path)
        return SceneIndex({row["filepath"]: _scene(row) for row in frame.to_dict("records")})
    except ImportError as error:
        raise ConfigError("loading an index needs pyarrow: pip install 'geostream[index]'") from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: there is no such index: make one with build_index(…).save({str(path)!r})"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not an index that SceneIndex.save wrote: {error}") from error


def _row(scene: Scene) -> dict[str, Any]:
    grid = scene.grid
    return {
        "filepath": scene.url,
        "sidecars": json.dumps(scene.sidecars),
        "width": grid.width,
        "height": grid.height,
        "transform": json.dumps(grid.transform[:6]),
        "crs_wkt": None if grid.crs is None else grid.crs.to_wkt(),
        "count": scene.count,
        "dtype": scene.dtype.name,
        "nodata": json.dumps(scene.nodata),
        "colormap": None if scene.colormap is None else json.dumps(list(scene.colormap.items())),
        "block_shape": json.dumps(scene.block_shape),
        "all_valid": scene.all_valid,
    }


def _scene(row: Mapping[str, Any]) -> Scene:
    crs = parse_crs(row["crs_wkt"]) if isinstance(row["crs_wkt"], str) else None
    grid = Grid(int(row["width"]), int(row["height"]), Affine(*json.loads(row["transform"])), crs)
    colors = {k: tuple(rgba) for k, rgba in json.loads(row["colormap"])} if isinstance(row["colormap"], str) else None
    nodata, sidecars = tuple(json.loads(row["nodata"])), tuple(json.loads(row["sidecars"]))
    dtype, (rows, columns) = np.dtype(row["dtype"]), json.loads(row["block_shape"])
    block = int(rows), int(columns)
    return Scene(
        row["filepath"], sidecars, grid, int(row["count"]), dtype, nodata, colors, None, block, bool(row["all_valid"])
    )


class SceneLookup:
    """What queries need to know of an index, at hand: a tree of footprints, times, names, and the box around all.

    Data frames take a tenth of a millisecond for such an answer, and a batch of chips asks for hundreds.
    """

    def __init__(self, frame: gpd.GeoDataFrame) -> None:
        self._frame = frame
        shapes = np.asarray(frame.geometry.values)
        self._tree = shapely.STRtree(shapes)
        self._first = _microseconds(frame.index.left)
        self._last = _microseconds(frame.index.right)
        self.crs: CRS | None = parse_crs(frame.crs)
        """CRS of the footprints."""
        self.urls: list[str] = list(frame["filepath"]) if "filepath" in frame else []
        """Files, row by row."""
        self.times: list[pd.Interval] = list(frame.index)
        """Intervals, row by row."""
        xmin, ymin, xmax, ymax = map(float, shapely.total_bounds(shapes))
        self.box: Bounds | None = (xmin, ymin, xmax, ymax) if len(shapes) else None
        """Box around the footprints; None without any."""
        self.span: tuple[pd.Timestamp, pd.Timestamp] = (frame.index.left.min(), frame.index.right.max())
        """First and last instant."""

    def describes(self, frame: gpd.GeoDataFrame) -> bool:
        """Whether this lookup still stands for ``frame``: users replace an index, and drop rows of it in place."""
        return self._frame is frame and len(self._first) == len(frame)

    def find(self, grid: Grid, time: slice) -> NDArray[np.intp]:
        """Positions, ascending, of the rows that share ground with ``grid`` and time with ``time``.

        Footprints that only touch the grid, or reach into it by less than `PASTE_TOLERANCE` pixels, do not count.

        Args:
            grid: what is to be read, north up, in the index's CRS.
            time: first and last instant, both included; of the rows between them every ``step``-th counts.
        """
        xmin, ymin, xmax, ymax = grid.bounds
        dx, dy = (PASTE_TOLERANCE * side for side in grid.res)
        near = self._tree.query(shapely.box(xmin + dx, ymin + dy, xmax - dx, ymax - dy), predicate="intersects")
        # as_unit, since NumPy's own conversion overflows at pandas' first instant.
        start, stop = (end.as_unit("us").to_datetime64().astype(np.int64) for end in (time.start, time.stop))
        if (time.step or 1) == 1:
            return np.sort(near[(self._first[near] <= stop) & (self._last[near] >= start)])
        during = np.flatnonzero((self._first <= stop) & (self._last >= start))[:: time.step]
        return np.intersect1d(near, during, assume_unique=True)


def _microseconds(times: pd.DatetimeIndex) -> NDArray[np.int64]:
    """Whole microseconds since 1970: one unit for all, since pandas keeps several."""
    microseconds: NDArray[np.int64] = times.as_unit("us").asi8
    return microseconds
