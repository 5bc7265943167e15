"""What it takes to carry a dataset to another CRS, and back without loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from geostream.errors import QueryError
from geostream.grid import Grid, parse_crs, same_crs
from geostream.index import converted_res, projected

if TYPE_CHECKING:
    from geopandas import GeoDataFrame
    from pyproj import CRS

__all__ = ["Origin", "reprojected"]


def reprojected(frame: GeoDataFrame, crs: CRS | None) -> GeoDataFrame:
    """A copy of an index with its footprints in ``crs``."""
    moved = frame.copy()
    shapes = projected(list(frame.geometry), parse_crs(frame.crs), crs)
    return moved.set_geometry(type(frame.geometry)(shapes, index=frame.index, crs=crs))


@dataclass(frozen=True, eq=False)
class Origin:
    """Index and resolution as they were before a dataset's CRS was first set.

    Whatever CRS is set later is reached from here in one step: polygons and pixel sizes carried from CRS to CRS would
    drift, and the way back would not end where it began.
    """

    index: GeoDataFrame
    """Footprints in the first CRS."""
    grid: Grid
    """Pixels of the first resolution on the ground of the first scene."""
    result: GeoDataFrame | None = None
    """The index that was made from it."""

    @classmethod
    def of(cls, index: GeoDataFrame, res: tuple[float, float], crs: CRS | None) -> Origin:
        """What a dataset holds now.

        Raises:
            QueryError: it holds nothing, so that its pixel size has no place to be converted at.
        """
        if index.empty:
            raise QueryError("the dataset's index is empty, so that it cannot be brought to another CRS")
        return cls(index, Grid.from_bounds(index.geometry.iloc[0].bounds, res, crs))

    def leads_to(self, index: GeoDataFrame) -> bool:
        """Whether ``index`` was made from here, and not replaced or cut since."""
        return len(index) == len(self.index) and index is self.result

    def leading_to(self, index: GeoDataFrame) -> Origin:
        """The same, with the index that was made from it."""
        return replace(self, result=index)

    def carried(self, crs: CRS | None) -> tuple[GeoDataFrame, tuple[float, float]]:
        """Index and pixel size in ``crs``.

        Raises:
            ConfigError: one of the CRSs is None, or the area cannot be projected.
        """
        if same_crs(crs, self.grid.crs):
            return self.index.copy(), self.grid.res
        return reprojected(self.index, crs), converted_res(self.grid, crs)
