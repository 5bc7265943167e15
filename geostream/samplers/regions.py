"""Where chips may lie: each scene of a dataset as whole pixels of its own grid, clipped to what the user asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import shapely

from geostream.errors import ConfigError
from geostream.grid import PASTE_TOLERANCE, Window, parse_crs, same_crs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import geopandas as gpd
    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.borders import Border
    from geostream.grid import Grid
    from geostream.samplers.valid import ValidShares

__all__ = ["Place", "Region", "border_of", "covering", "dataset_res", "index_of", "leaves_of", "regions_of"]

Place = tuple[slice, slice, slice]
"""One query: ``(xmin:xmax:xres, ymin:ymax:yres, tmin:tmax)``."""

_RECTANGLE = 1 - 1e-6
"""Share of its bounding box that a geometry fills to count as a rectangle."""
_ROUNDING = 1e-6
"""What a share may lack for want of exact arithmetic."""


@dataclass(frozen=True, slots=True)
class Region:
    """One scene's part that may be sampled."""

    origin: tuple[float, float]
    """(x, y) of the upper left corner of the pixel grid that chips are laid on, in CRS units."""
    res: tuple[float, float]
    """Pixel size (x, y) in CRS units, positive."""
    window: Window
    """The pixels that lie inside, counted from ``origin``."""
    interval: tuple[pd.Timestamp, pd.Timestamp]
    """First and last instant, both included."""
    outline: Any
    """The shapely geometry inside, or None where that is the whole window."""
    area: float
    """Area inside, in CRS units; the weight of the scene in random choices."""
    bounds: tuple[float, float, float, float]
    """``(xmin, ymin, xmax, ymax)`` of the geometry inside, not rounded to pixels."""
    row: int = 0
    """Row of the dataset's index that the region was cut from."""
    border: Border | None = None
    """What chips must keep out of, where some could reach it."""
    least: float = 0.0
    """Least share of a chip that must be valid."""
    valid: ValidShares | None = None
    """How much of the scene is valid where, as far as its mask was looked at."""

    @property
    def selective(self) -> bool:
        """Whether some chips inside the window are not admitted."""
        return self.outline is not None or self.border is not None or self.least > 0

    def place(self, row: int, col: int, height: int, width: int) -> Place:
        """The query for ``height`` x ``width`` pixels whose upper left one is (``row``, ``col``) from the origin."""
        (x, y), (xres, yres) = self.origin, self.res
        xs = slice(x + col * xres, x + (col + width) * xres, xres)
        ys = slice(y - (row + height) * yres, y - row * yres, yres)
        return xs, ys, slice(*self.interval)

    def admits(self, rows: NDArray[Any], cols: NDArray[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Which of the chips with these upper left pixels may be taken.

        They hold some of the region, as much valid ground as asked for, and nothing of what lies beyond a border.
        """
        admitted = np.ones(len(rows), dtype=bool)
        if self.outline is not None:
            edge = PASTE_TOLERANCE  # a shared edge alone is no overlap
            inner = self._boxes(rows + edge, cols + edge, size[0] - 2 * edge, size[1] - 2 * edge)
            admitted &= shapely.intersects(self.outline, shapely.box(*inner.T))
        if self.border is not None:
            admitted &= ~self.border.crossed(self._boxes(rows, cols, *size), self.res)
        if self.least > 0:
            admitted &= self.share(rows, cols, *size) >= self.least - _ROUNDING
        return admitted

    def share(self, rows: NDArray[Any], cols: NDArray[Any], height: Any, width: Any) -> NDArray[np.float64]:
        """The valid share of rectangles of pixels: what of them lies inside, and is valid by the mask if it is known.

        Args:
            rows: (N,) first rows, counted from the origin.
            cols: (N,) first columns.
            height: number of rows, one for all or (N,).
            width: number of columns, likewise.
        """
        boxes = self._boxes(rows, cols, height, width)
        if self.outline is None:
            window = self.window
            down = np.minimum(rows + height, window.row_stop) - np.maximum(rows, window.row_off)
            across = np.minimum(cols + width, window.col_stop) - np.maximum(cols, window.col_off)
            inside = np.maximum(down, 0) * np.maximum(across, 0) / (height * width)
        else:
            shapes = shapely.box(*boxes.T)
            inside = shapely.area(shapely.intersection(self.outline, shapes)) / shapely.area(shapes)
        return np.asarray(inside if self.valid is None else np.minimum(inside, self.valid.of(boxes)))

    def _boxes(self, rows: NDArray[Any], cols: NDArray[Any], height: Any, width: Any) -> NDArray[np.float64]:
        """(N, 4) xmin, ymin, xmax, ymax of rectangles of pixels."""
        (x, y), (xres, yres) = self.origin, self.res
        return np.column_stack(
            [x + cols * xres, y - (rows + height) * yres, x + (cols + width) * xres, y - rows * yres]
        )


def dataset_res(dataset: Any) -> tuple[float, float]:
    """Pixel size (x, y) of ``dataset``, which older TorchGeo datasets give as one number."""
    res = dataset.res
    return (float(res), float(res)) if isinstance(res, int | float) else (float(res[0]), float(res[1]))


def index_of(dataset: Any) -> gpd.GeoDataFrame:
    """The dataset's table of scenes.

    Raises:
        ConfigError: the dataset has none.
    """
    index = getattr(dataset, "index", None)
    if not (hasattr(index, "geometry") and isinstance(getattr(index, "index", None), pd.IntervalIndex)):
        raise ConfigError(
            f"a {type(dataset).__name__} cannot be sampled by place: pass a geostream dataset or a TorchGeo GeoDataset "
            "(0.9 or later), whose `index` is a GeoDataFrame over time intervals"
        )
    return index


def regions_of(dataset: Any, roi: Any, toi: Any, reach: tuple[float, float] = (0.0, 0.0)) -> list[Region]:
    """Every scene of ``dataset`` clipped to ``roi`` and ``toi``, in the index's order; empty ones are left out.

    Args:
        dataset: a GeoDataset with ``index``, ``res`` and ``crs``.
        roi: shapely geometry in the dataset's CRS, or None for everything.
        toi: `pandas.Interval`, both ends taken as included, or None for always.
        reach: how far (x, y) chips may reach beyond their region, in CRS units.

    Raises:
        ConfigError: ``roi`` is no geometry, ``toi`` no interval, or nothing is left.
    """
    index, res = index_of(dataset), dataset_res(dataset)
    full = np.asarray(index.geometry.array, dtype=object)
    inside = full if roi is None else shapely.intersection(full, _geometry(roi))
    left, right = _clipped_times(index.index, toi)
    keep = ~shapely.is_empty(inside) & (shapely.area(inside) > 0) & (left <= right)
    rows = np.flatnonzero(keep)
    if not len(rows):
        raise ConfigError(
            f"no scene of this {type(dataset).__name__} lies within roi={_brief(roi)} and toi={toi}; the dataset spans "
            f"{_brief(shapely.box(*index.total_bounds))} from {index.index.left.min()} to {index.index.right.max()}"
        )
    origins = _origins(dataset, rows, left[rows], right[rows])
    regions = [
        _region(inside[row], origin, res, (pd.Timestamp(left[row]), pd.Timestamp(right[row])), int(row))
        for row, origin in zip(rows, origins, strict=True)
    ]
    return _bordered(regions, border_of(dataset), res, reach)


def border_of(dataset: Any) -> Border | None:
    """The border that keeps a dataset, and all it was made of, out of other splits' ground."""
    border: Border | None = getattr(dataset, "border", None)
    for part in getattr(dataset, "datasets", None) or ():
        inner = border_of(part)
        border = border if inner is None else inner.joined(border)
    return border


def _bordered(
    regions: list[Region], border: Border | None, res: tuple[float, float], reach: tuple[float, float]
) -> list[Region]:
    """The regions, those from which a chip could cross the border with it."""
    if border is None:
        return regions
    (dx, dy), boxes = reach, np.array([region.bounds for region in regions])
    near = border.crossed(boxes + np.array([-dx, -dy, dx, dy]), res)
    return [replace(region, border=border) if close else region for region, close in zip(regions, near, strict=True)]


def _region(
    geometry: Any,
    origin: tuple[float, float],
    res: tuple[float, float],
    interval: tuple[pd.Timestamp, pd.Timestamp],
    row: int,
) -> Region:
    xmin, ymin, xmax, ymax = (float(v) for v in geometry.bounds)
    first_col, last_col = _whole((xmin - origin[0]) / res[0], (xmax - origin[0]) / res[0])
    first_row, last_row = _whole((origin[1] - ymax) / res[1], (origin[1] - ymin) / res[1])
    window = Window(first_col, first_row, max(0, last_col - first_col), max(0, last_row - first_row))
    area = float(geometry.area)
    outline = None if area >= _RECTANGLE * (xmax - xmin) * (ymax - ymin) else geometry
    if outline is not None:
        shapely.prepare(outline)
    return Region(origin, res, window, interval, outline, area, (xmin, ymin, xmax, ymax), row)


def _whole(start: float, stop: float) -> tuple[int, int]:
    """The whole pixels between two offsets; an offset within the paste tolerance of a pixel's edge is on it."""
    return math.ceil(start - PASTE_TOLERANCE), math.floor(stop + PASTE_TOLERANCE)


def _geometry(roi: Any) -> Any:
    if not isinstance(roi, shapely.Geometry):
        raise ConfigError(
            f"roi={roi!r} is no shapely geometry: pass shapely.box(xmin, ymin, xmax, ymax) or a polygon in the "
            "dataset's CRS"
        )
    if not shapely.is_valid(roi):
        reason = shapely.is_valid_reason(roi)
        raise ConfigError(f"roi={_brief(roi)} is not valid ({reason}): pass shapely.make_valid(roi) if it is meant")
    if roi.area == 0:
        raise ConfigError(f"roi={_brief(roi)} has no area: pass a polygon in the dataset's CRS")
    return roi


def _brief(roi: Any) -> str:
    if roi is None:
        return "None"
    return f"{roi.geom_type} within ({', '.join(f'{v:g}' for v in roi.bounds)})"


def _clipped_times(index: pd.IntervalIndex, toi: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    left, right = index.left.to_numpy(), index.right.to_numpy()
    if toi is None:
        return left, right
    if not (isinstance(toi, pd.Interval) and isinstance(toi.left, pd.Timestamp)):
        raise ConfigError(f"toi={toi!r} is no time interval: pass pandas.Interval(pd.Timestamp(…), pd.Timestamp(…))")
    return np.maximum(left, _naive(toi.left)), np.minimum(right, _naive(toi.right))


def _naive(value: Any) -> np.datetime64:
    stamp = pd.Timestamp(value)
    return (stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)).to_datetime64()


def _origins(
    dataset: Any, rows: NDArray[np.intp], left: NDArray[Any], right: NDArray[Any]
) -> list[tuple[float, float]]:
    """For each row the upper left corner of the scene it was cut from, so that chips fall on that scene's pixels.

    A combined dataset's footprints are intersections, whose corners need not be corners of pixels: the scene is looked
    up in the datasets it was made of, images before masks.
    """
    if not getattr(dataset, "datasets", None):
        return _corners(dataset, rows)
    boxes = dataset.index.geometry.bounds.to_numpy()[rows]
    origins = [(float(box[0]), float(box[3])) for box in boxes]
    missing = np.ones(len(origins), dtype=bool)
    for leaf in leaves_of(dataset):
        if not same_crs(leaf.crs, dataset.crs):
            continue
        pairs = list(covering(leaf, boxes, left, right, missing))
        corners = _corners(leaf, np.array([scene for _, scene in pairs], dtype=np.intp))
        for (row, _), corner in zip(pairs, corners, strict=True):
            origins[row], missing[row] = corner, False
    return origins


def _corners(leaf: Any, rows: NDArray[np.intp]) -> list[tuple[float, float]]:
    """Upper left corners of the scenes behind rows of an index, whose footprints may have been cut since."""
    boxes = leaf.index.geometry.bounds.to_numpy()[rows]
    corners = [(float(box[0]), float(box[3])) for box in boxes]
    known, crs = getattr(leaf, "_scenes", None), parse_crs(leaf.crs)
    if not known or "filepath" not in leaf.index:
        return corners
    scenes = [known.get(url) for url in leaf.index["filepath"].to_numpy()[rows]]
    return [
        corner if scene is None else _corner(scene.grid, crs, corner)
        for scene, corner in zip(scenes, corners, strict=True)
    ]


def _corner(grid: Grid, crs: CRS | None, footprint: tuple[float, float]) -> tuple[float, float]:
    """Upper left corner of a scene, or of its footprint where its pixels are not the dataset's."""
    upright = grid.transform.b == 0 and grid.transform.d == 0 and not grid.curved
    xmin, _, _, ymax = grid.bounds
    return (xmin, ymax) if upright and same_crs(grid.crs, crs) else footprint


def leaves_of(dataset: Any) -> list[Any]:
    """The datasets that ``dataset`` was made of, or itself; images before masks, else in their order."""
    return sorted(_leaves(dataset), key=lambda leaf: not getattr(leaf, "is_image", True))


def _leaves(dataset: Any) -> Iterator[Any]:
    parts = getattr(dataset, "datasets", None)
    if not parts:
        if getattr(dataset, "index", None) is not None:
            yield dataset
        return
    for part in parts:
        yield from _leaves(part)


def covering(
    leaf: Any, boxes: NDArray[Any], left: NDArray[Any], right: NDArray[Any], missing: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Pairs (row, the leaf's first scene that holds the row's box), for rows that are still missing.

    Args:
        leaf: a dataset with an index of its own, in the CRS of ``boxes``.
        boxes: (N, 4) xmin, ymin, xmax, ymax.
        left: (N,) first instants.
        right: (N,) last instants; a scene must meet them.
        missing: (N,) which rows are asked for.
    """
    index, slack = leaf.index, [PASTE_TOLERANCE * r for r in dataset_res(leaf)]
    starts, stops, scenes = index.index.left.to_numpy(), index.index.right.to_numpy(), index.geometry.bounds.to_numpy()
    rows = np.flatnonzero(missing)
    found, hits = index.sindex.query(shapely.box(*boxes[rows].T), predicate="intersects", sort=True)
    done = set()
    for row, hit in zip(rows[found], hits, strict=True):
        xmin, ymin, xmax, ymax = scenes[hit]
        x0, y0, x1, y1 = boxes[row]
        covers = xmin <= x0 + slack[0] and x1 <= xmax + slack[0] and ymin <= y0 + slack[1] and y1 <= ymax + slack[1]
        meets = starts[hit] <= right[row] and left[row] <= stops[hit]
        if covers and meets and row not in done:
            done.add(row)
            yield int(row), int(hit)
