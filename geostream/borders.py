"""The border of a split: ground that its reads may not reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import shapely

from geostream.errors import QueryError
from geostream.grid import PASTE_TOLERANCE, same_crs
from geostream.index import projected

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.grid import Grid

__all__ = ["Border"]

_CARRIED_SLACK = 1.0
"""Pixels by which a chip may reach into closed ground whose outline was reprojected, which bends it a little."""


@dataclass(frozen=True)
class Border:
    """Ground that is closed to a dataset, because other splits have it."""

    closed: Any
    """Shapely geometry of the closed ground."""
    crs: CRS | None
    """CRS of ``closed``."""
    slack: float = PASTE_TOLERANCE
    """Pixels by which a read may reach into the closed ground, for the sake of rounding."""
    origin: Border | None = None
    """The border that this one was carried from, so that the way back is exact."""

    def crossed(self, boxes: NDArray[np.float64], res: tuple[float, float]) -> NDArray[np.bool_]:
        """Which boxes reach into the closed ground.

        Args:
            boxes: (N, 4) xmin, ymin, xmax, ymax in ``crs``.
            res: pixel size (x, y).
        """
        shapely.prepare(self.closed)  # once: what is prepared stays so, but is not pickled
        xmin, ymin, xmax, ymax = boxes.T
        dx, dy = (self.slack * side for side in res)
        inner = shapely.box(xmin + dx, ymin + dy, xmax - dx, ymax - dy)
        return np.asarray(shapely.intersects(self.closed, inner), dtype=bool)

    def check(self, grid: Grid) -> None:
        """Let ``grid``, in ``crs``, pass if it keeps to open ground.

        Raises:
            QueryError: it crosses the border.
        """
        if self.crossed(np.array([grid.bounds]), grid.res)[0]:
            raise QueryError(
                f"the query {grid.bounds} crosses the border of its split into ground that is not its own: ask for "
                "less, within a footprint of the split's index, or ask the dataset that was split"
            )

    def joined(self, other: Border | None) -> Border:
        """The border that keeps out of both grounds, which are in the same CRS."""
        if other is None:
            return self
        closed = shapely.union(self.closed, other.closed)
        return Border(closed, self.crs, max(self.slack, other.slack))

    def carried(self, crs: CRS | None) -> Border:
        """The border in another CRS.

        Raises:
            ConfigError: the closed ground cannot be projected.
        """
        first = self.origin or self
        if same_crs(first.crs, crs):
            return first
        parts = projected(list(shapely.get_parts(first.closed)), first.crs, crs)
        return Border(shapely.union_all(parts), crs, _CARRIED_SLACK, first)
