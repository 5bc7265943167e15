"""Which of the scenes that a query meets are read, and in which order. Nothing is asked of the network for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geostream.coordinates import source_coordinates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from geostream.grid import Grid
    from geostream.index import Scene

__all__ = ["by_date", "covers", "in_order", "unhidden"]


def in_order(rows: Sequence[int], times: Sequence[pd.Interval], mosaic: str) -> list[int]:
    """Rows as the mosaic takes them: by path, as they come, or for ``newest`` and ``oldest`` by time, then path."""
    if mosaic == "newest":
        return sorted(rows, key=lambda row: times[row].right, reverse=True)
    if mosaic == "oldest":
        return sorted(rows, key=lambda row: times[row].left)
    return list(rows)


def by_date(rows: Sequence[int], times: Sequence[pd.Interval]) -> list[list[int]]:
    """Rows of each date, dates ascending; scenes are of one date if their names tell the same time."""
    dates: dict[Any, list[int]] = {}
    for row in rows:
        dates.setdefault((times[row].left, times[row].right), []).append(row)
    return [dates[date] for date in sorted(dates)]


def unhidden(rows: Sequence[int], policy: str, hides: Callable[[int], bool]) -> list[int]:
    """Rows that can show in a mosaic.

    Args:
        rows: in the mosaic's order.
        policy: with ``first``, rows behind one that hides all others are left out; with ``last``, those before it.
        hides: whether a row is valid wherever the mosaic is.
    """
    if policy == "first":
        return list(rows[: next((i for i, row in enumerate(rows[:-1]) if hides(row)), len(rows)) + 1])
    if policy == "last":
        return unhidden(rows[::-1], "first", hides)[::-1]
    return list(rows)


def covers(scene: Scene, grid: Grid) -> bool:
    """Whether the header promises that all of ``grid`` is valid: every pixel of it lies in a raster without holes."""
    if not scene.all_valid:
        return False
    place = scene.grid.paste_window(grid)
    if place is not None:
        return place.intersection(scene.grid.window) == place
    at = source_coordinates(scene.grid, grid)
    inside = (
        at.cols.min() >= 0
        and at.cols.max() < scene.grid.width
        and at.rows.min() >= 0
        and at.rows.max() < scene.grid.height
    )
    return bool(inside)  # comparisons with NaN, a place the scene's CRS does not have, are false
