"""What a block costs to keep: the bytes of the decoded tiles that its chips need, of all datasets together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from affine import Affine

from geostream.errors import GeostreamError
from geostream.grid import Grid, parse_crs
from geostream.samplers.regions import leaves_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geostream.index import Scene
    from geostream.samplers.blocks import Blocks
    from geostream.samplers.regions import Region
    from geostream.samplers.tilegrid import TileGrid

__all__ = ["block_bytes"]

_LOOKED_AT = 4
"""Blocks that stand for all."""


def block_bytes(dataset: Any, regions: Sequence[Region], grids: Sequence[TileGrid], blocks: Blocks) -> int:
    """Bytes of the decoded tiles under a block, masks and further bands included: the most of a few blocks.

    Told from what an index knows of scenes, so that it does not depend on whether headers are at hand.
    """
    scenes = {url: scene for leaf in leaves_of(dataset) for url, scene in getattr(leaf, "_scenes", {}).items()}
    crs = parse_crs(dataset.crs)
    chosen = {len(blocks) * (2 * i + 1) // (2 * _LOOKED_AT) for i in range(_LOOKED_AT)}
    sizes = []
    for number in sorted(chosen):
        region = regions[int(blocks.region[number])]
        row, col, height, width = (int(axis[number]) for axis in (blocks.row, blocks.col, blocks.height, blocks.width))
        urls = _files(dataset, region.place(row, col, height, width))
        (x, y), (xres, yres) = region.origin, region.res
        grid = Grid(width, height, Affine(xres, 0.0, x + col * xres, 0.0, -yres, y - row * yres), crs)
        known = sum(_tile_bytes(grid, scenes[url]) for url in urls if url in scenes)
        sizes.append(known or height * width * grids[int(blocks.region[number])].depth)
    return max(1, *sizes)


def _files(dataset: Any, place: Any) -> set[str]:
    """Files that a query reads."""
    ask = getattr(dataset, "requests", None)
    try:
        return {request.source.url for request in ask(place)} if ask is not None else set()
    except GeostreamError:
        return set()


def _tile_bytes(grid: Grid, scene: Scene) -> int:
    """Bytes of a scene's tiles under ``grid``; of as many pixels as the grid has, where these are not the scene's."""
    depth = scene.count * scene.dtype.itemsize
    place = scene.grid.paste_window(grid)
    window = None if place is None else place.intersection(scene.grid.window)
    if place is None or not all(scene.block_shape):
        return grid.width * grid.height * depth
    if window is None:
        return 0
    rows, columns = scene.block_shape
    down = -(-window.row_stop // rows) - window.row_off // rows
    across = -(-window.col_stop // columns) - window.col_off // columns
    return down * across * rows * columns * depth
