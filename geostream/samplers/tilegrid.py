"""Where a scene's own tiles lie among the pixels that chips are laid on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine

from geostream.errors import ConfigError
from geostream.grid import Grid, parse_crs
from geostream.index import converted_res
from geostream.samplers.regions import covering, leaves_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from geostream.index import Scene
    from geostream.samplers.regions import Region

__all__ = ["TileGrid", "scenes_under", "tile_grids"]

_ASSUMED = (512, 512)
"""Shape of the tiles of a scene whose header nobody has read."""
_FREE_SIDE = 2
"""Least tiles on a block's side where the tiles' edges are known only roughly."""
_WELL_FILLED = 1.15
"""Most that a block may be longer, or shorter, than its chips laid end to end, for its size to be chosen."""
_MOST_CHIPS = 8
"""Chips on a block's side beyond which it is not enlarged any more."""


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The tiles under one region, in pixels of the dataset's resolution counted from the region's origin."""

    scene: int
    """Number of the scene; regions cut from the same scene have the same."""
    tile: tuple[int, int]
    """(rows, columns) of a tile."""
    anchor: tuple[int, int]
    """(row, column) of the first tile's upper left pixel."""
    block: tuple[int, int]
    """Tiles on the sides (down, across) of a block."""
    aligned: bool
    """Whether tiles lie exactly so; False where the scene is resampled, or its tiles are not known."""
    depth: int
    """Bytes of a decoded pixel of the scene, all bands."""


def tile_grids(dataset: Any, regions: Sequence[Region], size: tuple[int, int], block: int | None) -> list[TileGrid]:
    """The tile grid under each region: that of the scene it was cut from, of the first image dataset in ``dataset``.

    Args:
        dataset: a GeoDataset, or a combination of such.
        regions: parts of its scenes.
        size: height and width of a chip.
        block: tiles on a block's side; None for as many as chips of ``size`` need.

    Raises:
        ConfigError: a block of so many tiles holds no chip.
    """
    numbers: dict[tuple[int, str], int] = {}
    grids = []
    for region, (leaf, url, scene) in zip(regions, scenes_under(dataset, regions), strict=True):
        number = numbers.setdefault((id(leaf), url), len(numbers))
        tile, anchor, aligned = _laid(region, scene, parse_crs(dataset.crs))
        least = 1 if aligned else _FREE_SIDE
        down, across = (_block_side(t, chip, least, block) for t, chip in zip(tile, size, strict=True))
        depth = 1 if scene is None else scene.count * scene.dtype.itemsize
        grids.append(TileGrid(number, tile, anchor, (down, across), aligned, depth))
    return grids


def scenes_under(dataset: Any, regions: Sequence[Region]) -> list[tuple[Any, str, Scene | None]]:
    """For each region the dataset and the file it was cut from, and what is known of that file."""
    found: list[tuple[Any, str, Scene | None]] = [(None, str(region.row), None) for region in regions]
    missing = np.ones(len(regions), dtype=bool)
    for leaf in leaves_of(dataset):
        known = getattr(leaf, "_scenes", {})
        urls = list(leaf.index["filepath"]) if "filepath" in leaf.index else list(map(str, range(len(leaf.index))))
        for number, row in _rows(dataset, leaf, regions, missing):
            url = str(urls[row])
            found[number], missing[number] = (leaf, url, known.get(url)), False
    return found


def _rows(dataset: Any, leaf: Any, regions: Sequence[Region], missing: Any) -> Iterator[tuple[int, int]]:
    """Pairs (number of the region, row of the leaf's index) for regions that still miss their scene."""
    if leaf is dataset:
        yield from ((number, region.row) for number, region in enumerate(regions))
        return
    boxes = np.array([region.bounds for region in regions])
    left, right = (np.array([region.interval[end] for region in regions], dtype="datetime64[us]") for end in (0, 1))
    yield from covering(leaf, boxes, left, right, missing)


def _laid(region: Region, scene: Scene | None, crs: Any) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """Tile shape, first tile's place, and whether both are exact."""
    shape = _ASSUMED if scene is None or not all(scene.block_shape) else scene.block_shape
    if scene is None:
        return shape, (0, 0), False
    (x, y), (xres, yres) = region.origin, region.res
    start = Grid(1, 1, Affine(xres, 0.0, x, 0.0, -yres, y), crs)
    place = scene.grid.paste_window(start)
    if place is not None:
        return shape, (-place.row_off, -place.col_off), bool(all(scene.block_shape))
    return _by_footprint(shape, scene, crs, region.res), (0, 0), False


def _by_footprint(shape: tuple[int, int], scene: Scene, crs: Any, res: tuple[float, float]) -> tuple[int, int]:
    """About how many of the dataset's pixels a tile covers, of the overview that will be read."""
    try:
        native = converted_res(scene.grid, crs)
    except ConfigError:
        return shape
    zoom = [native[1] / res[1], native[0] / res[0]]
    factors = [1.0]
    if scene.header is not None:
        factors += [scene.grid.width / width for width, _ in scene.header.overviews]
    factor = max(f for f in factors if f == 1.0 or f * min(zoom) <= 1.1)  # noqa: PLR2004 - as GDAL chooses
    rows, columns = (max(1, round(side * factor * scale)) for side, scale in zip(shape, zoom, strict=True))
    return rows, columns


def _block_side(tile: int, chip: int, least: int, asked: int | None) -> int:
    """Tiles on a block's side: the fewest that hold at least two chips, and little besides."""
    if asked is not None:
        if asked * tile < chip:
            raise ConfigError(
                f"block={asked}: {asked} tiles of {tile} pixels hold no chip of {chip}: pass at least "
                f"{-(-chip // tile)}, or leave it out"
            )
        return asked
    first = max(least, -(-chip // tile))
    sides = range(first, max(first, _MOST_CHIPS * -(-chip // tile)) + 1)
    return next((side for side in sides if _suits(side * tile, chip)), first)


def _suits(length: int, chip: int) -> bool:
    count = math.floor(length / chip + 0.5)
    return count > 1 and 1 / _WELL_FILLED <= length / (count * chip) <= _WELL_FILLED
