"""How much of a scene is valid where, told from its overviews once, so that chips of mere nodata are not drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine

from geostream.errors import ConfigError
from geostream.grid import Grid, parse_crs, same_crs
from geostream.reader import read_many
from geostream.samplers.checks import check_count
from geostream.samplers.regions import dataset_res, leaves_of
from geostream.samplers.tilegrid import scenes_under

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.grid import Bounds
    from geostream.plan import Request
    from geostream.reader import Outcome
    from geostream.samplers.regions import Region

__all__ = ["ValidMap", "ValidShares", "read_valid"]

_AT_ONCE = 256
"""Scenes that are read as one plan."""


@dataclass(frozen=True, slots=True, eq=False)
class ValidShares:
    """The valid part of one scene, in coarse cells."""

    bounds: Bounds
    """``(xmin, ymin, xmax, ymax)`` that the cells cover, in CRS units."""
    table: NDArray[np.uint32]
    """(rows + 1, columns + 1) number of valid cells above and to the left of each cell corner, row by row downwards."""

    @classmethod
    def of_cells(cls, bounds: Bounds, valid: NDArray[np.bool_]) -> ValidShares:
        """The shares of cells (rows, columns) that are valid, or not."""
        table = np.zeros((valid.shape[0] + 1, valid.shape[1] + 1), dtype=np.uint32)
        table[1:, 1:] = valid.cumsum(axis=0, dtype=np.uint32).cumsum(axis=1, dtype=np.uint32)
        return cls(bounds, table)

    def of(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The valid share of each box; nothing is valid beyond the cells.

        Args:
            boxes: (N, 4) xmin, ymin, xmax, ymax in CRS units.
        """
        (left, bottom, right, top), (rows, columns) = self.bounds, np.subtract(self.table.shape, 1)
        width, height = (right - left) / columns, (top - bottom) / rows
        first, last = (np.clip((boxes[:, at] - left) / width, 0, columns) for at in (0, 2))
        upper, lower = (np.clip((top - boxes[:, at]) / height, 0, rows) for at in (3, 1))
        cells = self._above(lower, last) - self._above(upper, last) - self._above(lower, first)
        cells += self._above(upper, first)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        return np.asarray(np.clip(cells, 0, None) * (width * height) / area)

    def _above(self, row: NDArray[np.float64], col: NDArray[np.float64]) -> NDArray[np.float64]:
        """Valid cells above and to the left of points: exact between corners too, cells being all of one kind."""
        top, left = (
            np.minimum(at.astype(np.intp), end - 2) for at, end in zip((row, col), self.table.shape, strict=True)
        )
        down, right = row - top, col - left
        corners = [self.table[top + i, left + j].astype(np.float64) for i in (0, 1) for j in (0, 1)]
        upper = corners[0] * (1 - right) + corners[1] * right
        lower = corners[2] * (1 - right) + corners[3] * right
        return np.asarray(upper * (1 - down) + lower * down)


@dataclass(frozen=True)
class ValidMap:
    """What `read_valid` found, for samplers' ``valid=``. Plain facts: pickles, reads nothing."""

    shares: Mapping[str, ValidShares]
    """The valid part of each scene, by path or URL."""
    crs: CRS | None
    """CRS of the boxes that cells lie in."""

    def attached(self, dataset: Any, regions: Sequence[Region]) -> list[Region]:
        """The regions with the valid part of the scene that each was cut from, and weights by it.

        Raises:
            ConfigError: the map was read in another CRS, or knows nothing of a scene.
        """
        if not same_crs(self.crs, parse_crs(dataset.crs)):
            raise ConfigError("valid= was read in another CRS than the dataset has now: call read_valid(dataset) again")
        found = []
        for region, (_, url, _) in zip(regions, scenes_under(dataset, regions), strict=True):
            shares = self.shares.get(url)
            if shares is None:
                raise ConfigError(f"valid= knows nothing of {url}: call read_valid(dataset) with this dataset")
            area = region.area * float(shares.of(np.array([region.bounds]))[0])
            found.append(replace(region, valid=shares, area=area))
        return found


def read_valid(dataset: Any, cells: int = 64) -> ValidMap:
    """Look at the masks of all scenes of a dataset, once, for samplers with ``min_valid=``.

    Of each scene a thumbnail is read, from its smallest overviews; what is valid there is what ``mask_valid`` says.
    Scenes whose headers tell that all pixels are valid are not read. Files without overviews are read whole.

    Args:
        dataset: a raster dataset, or a combination of some, whose images are looked at.
        cells: cells along a scene's longer side.

    Raises:
        ConfigError: there is no raster dataset of geostream's in it.
        ReadError, DecodeError, HeaderError: a scene cannot be read.
    """
    count = check_count("cells", cells)
    leaves = [leaf for leaf in leaves_of(dataset) if hasattr(leaf, "_row_requests")]
    images = [leaf for leaf in leaves if leaf.is_image] or leaves
    if not images:
        raise ConfigError(f"a {type(dataset).__name__} has no scenes whose masks can be read: leave out valid=")
    shares: dict[str, ValidShares] = {}
    for leaf in images:
        shares |= dict(_shares(leaf, count))
    return ValidMap(shares, parse_crs(dataset.crs))


def _shares(leaf: Any, cells: int) -> Iterator[tuple[str, ValidShares]]:
    """Path and valid part of each scene of a raster dataset."""
    boxes, res, crs = leaf.index.geometry.bounds.to_numpy(), dataset_res(leaf), parse_crs(leaf.crs)
    rows: dict[str, list[int]] = {}
    for row, url in enumerate(leaf.index["filepath"]):
        rows.setdefault(url, []).append(row)
    names = list(rows)
    for start in range(0, len(names), _AT_ONCE):
        grids = {url: _cells(boxes[rows[url]], res, cells, crs) for url in names[start : start + _AT_ONCE]}
        asked = {url: _requests(leaf, rows[url][0], grid) for url, grid in grids.items()}
        outcomes = iter(read_many([request for requests in asked.values() for request in requests]))
        for url, requests in asked.items():
            valid = [_valid(next(outcomes)) for _ in requests]
            shape = grids[url].height, grids[url].width
            anywhere = np.logical_or.reduce(valid) if valid else np.ones(shape, dtype=bool)
            yield url, ValidShares.of_cells(grids[url].bounds, anywhere)


def _cells(boxes: NDArray[np.float64], res: tuple[float, float], cells: int, crs: CRS | None) -> Grid:
    """Cells over all of some boxes, about square and none smaller than a pixel."""
    (xmin, ymin), (xmax, ymax) = boxes[:, :2].min(axis=0).tolist(), boxes[:, 2:].max(axis=0).tolist()
    side = max(xmax - xmin, ymax - ymin) / cells
    width = max(1, round((xmax - xmin) / max(side, res[0])))
    height = max(1, round((ymax - ymin) / max(side, res[1])))
    transform = Affine((xmax - xmin) / width, 0.0, xmin, 0.0, -(ymax - ymin) / height, ymax)
    return Grid(width, height, transform, crs)


def _requests(leaf: Any, row: int, grid: Grid) -> list[Request]:
    """What shows where a scene is valid; nothing where its header says that it is everywhere."""
    scene = leaf._scenes.get(leaf.index["filepath"].iloc[row])  # noqa: SLF001 - of raster datasets
    if scene is not None and scene.all_valid and same_crs(scene.grid.crs, grid.crs):
        transform = scene.grid.transform
        if transform.b == 0 and transform.d == 0:
            return []
    requests: list[Request] = leaf._row_requests(row, grid)  # noqa: SLF001
    return [replace(request, resampling="nearest") for request in requests]


def _valid(outcome: Outcome) -> NDArray[np.bool_]:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.valid
