"""Queries: what users write between a dataset's brackets, completed and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from affine import Affine

from geostream.errors import ConfigError, QueryError
from geostream.grid import Grid

if TYPE_CHECKING:
    from pyproj import CRS

__all__ = ["GeoSlice", "Query", "instant", "parse_query"]

GeoSlice = slice | tuple[slice, ...]
"""``x``, ``(x, y)`` or ``(x, y, t)``: slices of ``start:stop:step``, what is missing being the dataset's own bounds.

``x`` and ``y`` are in CRS units, their step being the pixel size. ``t`` holds timestamps; its step takes every n-th
scene, of a time series every n-th date."""

_AXES = ("x", "y", "t")


@dataclass(frozen=True, slots=True)
class Query:
    """A complete query."""

    x: slice
    """``xmin:xmax:xres`` as floats, in CRS units."""
    y: slice
    """``ymin:ymax:yres`` as floats, in CRS units."""
    t: slice
    """``tmin:tmax:n``: naive UTC `pandas.Timestamp` values, both ends included, and every n-th scene."""

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """The query as the tuple that every TorchGeo-shaped dataset takes."""
        return self.x, self.y, self.t

    def grid(self, crs: CRS | None) -> Grid:
        """Output grid: anchored at (xmin, ymax), the step kept, the number of pixels rounded half up, never none."""
        box = (self.x.start, self.y.start, self.x.stop, self.y.stop)
        return Grid.from_bounds(box, (self.x.step, self.y.step), crs)

    def rows_downwards(self) -> Grid:
        """Output grid where y counts rows from the top down: anchored at (xmin, ymin), of the same shape."""
        grid = self.grid(None)
        place = Affine(self.x.step, 0.0, self.x.start, 0.0, self.y.step, self.y.start)
        return Grid(grid.width, grid.height, place, None)

    def __str__(self) -> str:
        x, y, t = (f"{part.start}:{part.stop}:{part.step}" for part in self.slices)
        return f"[{x}, {y}, {t}]"


def instant(value: Any) -> pd.Timestamp:
    """``value`` as a naive UTC timestamp: timestamps, datetimes, numpy datetimes, and strings in ISO form.

    Raises:
        ConfigError: it is no point in time.
    """
    try:
        stamp = pd.Timestamp(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{value!r} is not a point in time: pass a timestamp, a datetime or an ISO string") from error
    if pd.isna(stamp):
        raise ConfigError(f"{value!r} is not a point in time: pass a timestamp, a datetime or an ISO string")
    return stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)


def parse_query(query: Any, bounds: tuple[slice, slice, slice]) -> Query:
    """Complete ``query`` from ``bounds`` and check it.

    Raises:
        ConfigError: not slices, more than three of them, ends that are no numbers or times, an end before (or, on x and
            y, at) its start, a step that is not positive.
        QueryError: the query lies outside the bounds that would complete it.
    """
    parts = query if isinstance(query, tuple | list) else (query,)
    if not 1 <= len(parts) <= len(_AXES) or not all(isinstance(part, slice) for part in parts):
        raise ConfigError(
            f"{query!r} is not a query: write dataset[xmin:xmax, ymin:ymax] or "
            "dataset[xmin:xmax:xres, ymin:ymax:yres, tmin:tmax], any part of which may be left out"
        )
    given = [*parts, *[slice(None)] * (len(_AXES) - len(parts))]
    x, y = (_space(axis, part, whole) for axis, part, whole in zip("xy", given[:2], bounds[:2], strict=True))
    return Query(x, y, _time(given[2], bounds[2]))


def _complete(part: slice, whole: slice) -> tuple[Any, Any, Any]:
    return (
        whole.start if part.start is None else part.start,
        whole.stop if part.stop is None else part.stop,
        whole.step if part.step is None else part.step,
    )


def _space(axis: str, part: slice, whole: slice) -> slice:
    start, stop, step = (_number(axis, part, value) for value in _complete(part, whole))
    if step <= 0:
        raise ConfigError(f"the {axis} slice {_text(part)} has step {step}: the pixel size must be positive")
    if start >= stop:
        raise _empty(axis, part, whole)
    return slice(start, stop, step)


def _number(axis: str, part: slice, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"the {axis} slice {_text(part)} holds {value!r}, which is not a finite number")
    return number


def _time(part: slice, whole: slice) -> slice:
    start, stop, step = _complete(part, whole)
    start, stop, step = instant(start), instant(stop), 1 if step is None else step
    if not isinstance(step, int | float) or step != int(step) or step < 1:
        raise ConfigError(f"the t slice {_text(part)} has step {step!r}: it takes every n-th scene, n = 1, 2, …")
    if start > stop:
        raise _empty("t", part, whole)
    return slice(start, stop, int(step))


def _empty(axis: str, part: slice, whole: slice) -> ConfigError | QueryError:
    if part.start is not None and part.stop is not None:
        return ConfigError(f"the {axis} slice {_text(part)} is empty: its start must lie before its stop")
    return QueryError(f"the {axis} slice {_text(part)} lies outside the dataset, which spans {_text(whole)}")


def _text(part: slice) -> str:
    ends = ("" if value is None else str(value) for value in (part.start, part.stop, part.step))
    return ":".join(ends)
