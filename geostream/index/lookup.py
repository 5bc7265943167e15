"""Which scenes of a dataset's index a query meets."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geostream.grid import PASTE_TOLERANCE, Grid, parse_crs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

    from geostream.grid import Bounds

__all__ = ["SceneLookup", "Times", "interval_index", "scene_frame"]

Times = tuple[pd.DatetimeIndex, pd.DatetimeIndex]
"""First and last instants of scenes, naive UTC."""


def interval_index(times: Times) -> pd.IntervalIndex:
    """Intervals named ``datetime``, closed at both ends, so that instants count."""
    return pd.IntervalIndex.from_arrays(*times, closed="both", name="datetime")


def scene_frame(
    urls: Sequence[str], shapes: Sequence[Geometry] | NDArray[np.object_], times: Times, crs: CRS | None
) -> gpd.GeoDataFrame:
    """A dataset's index: a column ``filepath``, footprints in ``crs``, and intervals of time as the row labels."""
    labels = interval_index(times)
    # As objects, so that a million names are not copied into another kind of array, and out of it again.
    names = pd.Series(urls, index=labels, dtype=object)
    return gpd.GeoDataFrame({"filepath": names}, geometry=shapes, crs=crs)


class SceneLookup:
    """What queries need to know of an index, at hand: a tree of footprints, times, names, and the box around all.

    Data frames take a tenth of a millisecond for such an answer, and a batch of chips asks for hundreds.
    """

    def __init__(self, frame: gpd.GeoDataFrame) -> None:
        self._frame = frame
        shapes = np.asarray(frame.geometry.values)
        self._tree = shapely.STRtree(shapes)
        self._tree.query(shapely.Point(0, 0))  # the first query builds it; processes forked from now on share it
        self._first = _microseconds(frame.index.left)
        self._last = _microseconds(frame.index.right)
        self.crs: CRS | None = parse_crs(frame.crs)
        """CRS of the footprints."""
        self.urls: list[str] = frame["filepath"].to_numpy(object).tolist() if "filepath" in frame else []
        """Files, row by row."""
        # As one, it is indexed and iterated over; a list of a million intervals takes seconds to make.
        self.times: Sequence[pd.Interval] = cast("Sequence[pd.Interval]", frame.index)
        """Intervals, row by row."""
        self.box: Bounds | None = _box(shapes) if len(shapes) else None
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
        if (time.step or 1) == 1:
            return np.sort(near[self._during(time, near)])
        during = np.flatnonzero(self._during(time))[:: time.step]
        return np.intersect1d(near, during, assume_unique=True)

    def find_dates(self, grid: Grid, time: slice) -> NDArray[np.intp]:
        """The same, but ``step`` counts dates, oldest first, wherever they lie; rows of one interval are one."""
        near = self.find(grid, slice(time.start, time.stop))
        if (time.step or 1) == 1:
            return near
        during = np.flatnonzero(self._during(time))
        dates = np.stack([self._first[during], self._last[during]], axis=1)
        numbers = np.unique(dates, axis=0, return_inverse=True)[1].reshape(-1)
        return np.intersect1d(near, during[numbers % time.step == 0], assume_unique=True)

    def _during(self, time: slice, rows: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.bool_]:
        """Whether each of the rows shares an instant with ``time``."""
        start, stop = _microsecond(time.start), _microsecond(time.stop)
        within: NDArray[np.bool_] = (self._first[rows] <= stop) & (self._last[rows] >= start)
        return within


@lru_cache(maxsize=256)  # most queries ask for all of a dataset's time
def _microsecond(instant: pd.Timestamp) -> int:
    # as_unit, since NumPy's own conversion overflows at pandas' first instant
    return int(instant.as_unit("us").to_datetime64().astype(np.int64))


def _box(shapes: NDArray[np.object_]) -> Bounds:
    xmin, ymin, xmax, ymax = map(float, shapely.total_bounds(shapes))
    return xmin, ymin, xmax, ymax


def _microseconds(times: pd.DatetimeIndex) -> NDArray[np.int64]:
    """Whole microseconds since 1970: one unit for all, since pandas keeps several."""
    microseconds: NDArray[np.int64] = times.as_unit("us").asi8
    return microseconds
