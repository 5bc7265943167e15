"""Which rows of an index lie at a place and time, found through a tree of boxes. Needs pyarrow."""

from __future__ import annotations

import re
from datetime import UTC
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import shapely

from geostream.errors import ConfigError
from geostream.grid import parse_crs, same_crs
from geostream.index.collector import uncollected
from geostream.index.footprint import projected
from geostream.index.schema import WGS84

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from numpy.typing import NDArray
    from shapely import Geometry

    from geostream.index.table import SceneTable

__all__ = ["Places", "area_of", "microseconds", "span_of"]

_NAMED_PERIOD = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d)?)?)?)?")
"""A year, month, day, minute or second."""
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Places:
    """Footprints and times of a table's rows, and a tree over the footprints' boxes.

    The tree is complete once this is made, so that processes forked later share it.
    """

    def __init__(self, table: SceneTable) -> None:
        self._table = table
        boxes = table.boxes()
        # Diagonals stand for boxes: the tree looks at nothing else, and they take a third of a polygon's memory.
        lines = np.full(len(boxes), None, dtype=object)
        known = np.isfinite(boxes).all(axis=1)
        with uncollected():
            lines[known] = shapely.linestrings(boxes[known].reshape(-1, 2, 2))
        self._tree = shapely.STRtree(lines)
        self._tree.query(shapely.Point(0, 0))  # the first query builds it
        first, last = table.numbers("datetime_start"), table.numbers("datetime_end")
        self._first = first
        self._last = np.where(last == _FIRST, _LAST, last)
        self._open = bool((first == _FIRST).all())

    @cached_property
    def _shapes(self) -> Any:
        return self._table.column("geometry")

    def find(self, area: Geometry | None, span: tuple[int, int] | None) -> NDArray[np.intp]:
        """Rows, ascending, that share a point with ``area`` and an instant with ``span``; None is no restriction.

        Args:
            area: in longitude and latitude.
            span: first and last instant in microseconds since 1970. Rows whose time is not known are at all times.
        """
        if area is None:
            rows: NDArray[np.intp] = np.arange(len(self._first))
        else:
            near = self._tree.query(area)
            shapes = shapely.from_wkb([self._shapes[row].as_py() for row in near.tolist()])
            rows = np.sort(near[shapely.intersects(shapes, area)])
        if span is None or self._open:
            return rows
        return rows[(self._first[rows] <= span[1]) & (self._last[rows] >= span[0])]


def area_of(bounds: Sequence[float] | None, crs: Any) -> Geometry | None:
    """A box in any CRS as an area in longitude and latitude.

    Raises:
        ConfigError: these are no bounds, or no CRS, or the box has no place on the earth.
    """
    if bounds is None:
        return None
    try:
        xmin, ymin, xmax, ymax = map(float, bounds)
    except (TypeError, ValueError):
        xmin = ymin = xmax = ymax = np.nan
    if not (xmin <= xmax and ymin <= ymax):
        raise ConfigError(f"bounds={bounds!r}: pass (xmin, ymin, xmax, ymax)")
    box = shapely.box(xmin, ymin, xmax, ymax)
    parsed = parse_crs(crs)
    return box if same_crs(parsed, WGS84) else projected([box], parsed, WGS84)[0]


def span_of(time: Any) -> tuple[int, int] | None:
    """What a user gives for a time as its first and last microsecond.

    Raises:
        ConfigError: it is neither an instant, nor two of them, a slice or an interval.
    """
    if time is None:
        return None
    if isinstance(time, slice):
        ends: tuple[Any, Any] = time.start, time.stop
    elif isinstance(time, pd.Interval):
        ends = time.left, time.right
    elif isinstance(time, tuple | list) and len(time) == 2:  # noqa: PLR2004 - both ends
        ends = time[0], time[1]
    else:
        ends = time, time
    first = _FIRST + 1 if ends[0] is None else _period(ends[0])[0]
    last = _LAST if ends[1] is None else _period(ends[1])[1]
    return first, last


def _period(time: Any) -> tuple[int, int]:
    """First and last microsecond that a time stands for: text for all of the year, day or second that it names.

    Raises:
        ConfigError: it is no time.
    """
    try:
        if isinstance(time, str) and _NAMED_PERIOD.fullmatch(time):
            period = pd.Period(time)
            return microseconds(period.start_time), microseconds(period.end_time)
        instant = microseconds(time)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{time!r} is no time: pass text such as '2024-04-19', a datetime, or two of them") from error
    return instant, instant


def microseconds(time: str | date | np.datetime64) -> int:
    """Microseconds since 1970 of an instant; UTC unless it says otherwise.

    Raises:
        ValueError: it is none.
    """
    stamp = pd.Timestamp(time)
    if pd.isna(stamp):
        raise ValueError("not a time")
    naive = stamp if stamp.tzinfo is None else stamp.tz_convert(UTC).tz_localize(None)
    return int(naive.as_unit("us").to_datetime64().astype(np.int64))
