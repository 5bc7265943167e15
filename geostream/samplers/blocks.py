"""Blocks of tiles, which share no tile, and random chips that stay inside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from geostream.grid import Window
from geostream.samplers.chips import draw_chips, some_chips

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from geostream.samplers.regions import Region
    from geostream.samplers.tilegrid import TileGrid

    Ints = NDArray[np.int64]

__all__ = ["BlockChips", "Blocks", "draw_within", "edges", "lay_blocks", "place_chips", "ring"]

_WHOLE = 1 - 1e-6
"""Valid share of a block from which on it counts as all valid."""


@dataclass(frozen=True)
class Blocks:
    """Rectangles of whole tiles, cut off at the edges of their regions; every pixel of a region lies in one."""

    region: Ints
    """(N,) number of the region."""
    row: Ints
    """(N,) first row, counted from the region's origin."""
    col: Ints
    """(N,) first column."""
    height: Ints
    """(N,) rows."""
    width: Ints
    """(N,) columns."""
    down: Ints
    """(N,) chips down the block."""
    across: Ints
    """(N,) chips across the block."""
    chips: Ints
    """(N,) chips the block yields: all of them, fewer where not all of it is valid."""
    group: Ints
    """(N,) number of the tile group: blocks that share a tile, which only blocks of several regions do, have one."""

    def __len__(self) -> int:
        return len(self.region)


@dataclass(frozen=True)
class BlockChips:
    """Chips and the blocks they lie in."""

    block: Ints
    """(N,) number of the block."""
    row: Ints
    """(N,) first row, counted from the region's origin."""
    col: Ints
    """(N,) first column."""

    def __len__(self) -> int:
        return len(self.block)

    def take(self, order: NDArray[np.integer]) -> BlockChips:
        """The chips at those positions."""
        return BlockChips(self.block[order], self.row[order], self.col[order])

    @staticmethod
    def joined(parts: Sequence[BlockChips]) -> BlockChips:
        """Chips of several, one after the other."""
        return BlockChips(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("block", "row", "col")))


def lay_blocks(regions: Sequence[Region], grids: Sequence[TileGrid], size: tuple[int, int]) -> Blocks:
    """Cut every region into blocks that hold at least one chip of ``size`` each, where the region itself does.

    Cuts run along tile edges, at the same places for all regions of a scene; a rest too small for a chip stays with the
    block beside it. Blocks of which their region admits no chip are left out.
    """
    parts = []
    for number, (region, grid) in enumerate(zip(regions, grids, strict=True)):
        window = region.window
        rows = edges(window.row_off, window.row_stop, grid.tile[0] * grid.block[0], grid.anchor[0], size[0])
        cols = edges(window.col_off, window.col_stop, grid.tile[1] * grid.block[1], grid.anchor[1], size[1])
        row, col = (axis.ravel() for axis in np.meshgrid(rows[:-1], cols[:-1], indexing="ij"))
        height, width = (axis.ravel() for axis in np.meshgrid(np.diff(rows), np.diff(cols), indexing="ij"))
        down, across = _count(height, size[0]), _count(width, size[1])
        which = np.full(len(row), number, dtype=np.int64)
        block = Blocks(which, row, col, height, width, down, across, down * across, which)
        parts.append(_admitted(block, region, size) if region.selective else block)
    joined = _joined(parts)
    return replace(joined, group=_groups(joined, grids))


def edges(start: int, stop: int, step: int, anchor: int, chip: int) -> Ints:
    """Where to cut the pixels ``start`` to ``stop``: every ``step`` from ``anchor``, no end piece below ``chip``."""
    inner = np.arange(anchor + ((start - anchor) // step + 1) * step, stop, step, dtype=np.int64)
    cuts = np.concatenate([[start], inner, [stop]])
    if len(cuts) > 2 and cuts[1] - cuts[0] < chip:  # noqa: PLR2004 - more than the two ends
        cuts = np.delete(cuts, 1)
    if len(cuts) > 2 and cuts[-1] - cuts[-2] < chip:  # noqa: PLR2004
        cuts = np.delete(cuts, -2)
    return cuts


def _count(length: Ints, chip: int) -> Ints:
    return np.maximum(1, (2 * length + chip) // (2 * chip))


def _joined(parts: Sequence[Blocks]) -> Blocks:
    names = Blocks.__dataclass_fields__
    return Blocks(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _admitted(blocks: Blocks, region: Region, size: tuple[int, int]) -> Blocks:
    """The blocks of which the region admits chips, each with chips for the share of it that is valid."""
    share = region.share(blocks.row, blocks.col, blocks.height, blocks.width)
    kept = share > 0
    larger = (blocks.height >= size[0]) & (blocks.width >= size[1])
    sure = larger & (share >= _WHOLE) if region.border is None else np.zeros(len(blocks), dtype=bool)
    for i in np.flatnonzero(kept & ~sure):
        kept[i] = len(some_chips(_part(blocks, region, int(i)), size)) > 0
    count = np.maximum(1, np.rint(blocks.chips * share).astype(np.int64))
    arrays = {name: getattr(blocks, name)[kept] for name in Blocks.__dataclass_fields__}
    return Blocks(**{**arrays, "chips": count[kept]})


def _part(blocks: Blocks, region: Region, number: int) -> Region:
    """A block as a region of its own."""
    window = Window(*(int(axis[number]) for axis in (blocks.col, blocks.row, blocks.width, blocks.height)))
    return replace(region, window=window)


def _groups(blocks: Blocks, grids: Sequence[TileGrid]) -> Ints:
    """Number each block's tile group: its own, unless regions of one scene share tiles across it."""
    scene = np.array([grid.scene for grid in grids])
    regions_of_scene = np.bincount(scene)
    group = np.arange(len(blocks))
    shared = np.flatnonzero(regions_of_scene[scene[blocks.region]] > 1)
    if not len(shared):
        return group
    owner: dict[tuple[int, int, int], int] = {}

    def root(block: int) -> int:
        while group[block] != block:
            group[block] = group[group[block]]
            block = int(group[block])
        return block

    for block in shared.tolist():
        grid = grids[int(blocks.region[block])]
        rows = _tiles(blocks.row[block], blocks.height[block], grid.anchor[0], grid.tile[0])
        cols = _tiles(blocks.col[block], blocks.width[block], grid.anchor[1], grid.tile[1])
        for row in rows:
            for col in cols:
                group[root(owner.setdefault((grid.scene, row, col), block))] = root(block)
    roots = np.array([root(block) for block in range(len(blocks))])
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def _tiles(start: int, length: int, anchor: int, tile: int) -> range:
    """Numbers of the tiles under some pixels of an axis."""
    return range(int(start - anchor) // tile, int(start + length - 1 - anchor) // tile + 1)


def ring(length: Ints, chip: int, count: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Random offsets of ``count`` chips on axes of ``length`` pixels.

    They lie evenly on the axis laid as a ring, at a random phase; one that would leave the axis moves to the nearer
    end. So none reaches outside, none lies on another, every offset that fits may be drawn, and a pixel is covered as
    often as its neighbours, from half to one and a half times the mean within a chip of the ends. A chip longer than
    its axis holds all of it.

    Args:
        length: (N,) pixels.
        chip: pixels of a chip.
        count: (N,) chips on each axis, the rounded quotient of both.
        rng: where randomness comes from.

    Returns:
        (M,) number of the axis and (M,) offset of each chip, axis by axis.
    """
    axis = np.repeat(np.arange(len(length)), count)
    turn = np.arange(len(axis)) - np.repeat(np.cumsum(count) - count, count)
    phase = (rng.random(len(length))[axis] + turn / count[axis]) % 1.0
    full = length[axis]
    room, place = full - chip, phase * full
    nearer = np.where(2 * place < room + 1 + full, room, 0)
    inside = np.where(place < room + 1, place.astype(np.int64), nearer)
    beyond = room + (phase * (1 - room)).astype(np.int64)
    return axis, np.where(room < 0, beyond, inside)


def place_chips(
    blocks: Blocks, regions: Sequence[Region], size: tuple[int, int], rng: np.random.Generator
) -> BlockChips:
    """All chips of all blocks, block by block, at random places inside and in random order."""
    block, down = ring(blocks.height, size[0], blocks.down, rng)
    line, right = ring(blocks.width[block], size[1], blocks.across[block], rng)
    block = block[line]
    chips = BlockChips(block, blocks.row[block] + down[line], blocks.col[block] + right)
    chips = chips.take(np.lexsort((rng.random(len(chips)), block)))
    if (blocks.chips == blocks.down * blocks.across).all() and not any(region.selective for region in regions):
        return chips
    return _only_admitted(chips, blocks, regions, size, rng)


def _only_admitted(
    chips: BlockChips, blocks: Blocks, regions: Sequence[Region], size: tuple[int, int], rng: np.random.Generator
) -> BlockChips:
    """The chips that their regions admit, as many of each block as it yields, others drawn for more."""
    admitted = np.ones(len(chips), dtype=bool)
    which = blocks.region[chips.block]
    for number, region in enumerate(regions):
        if region.selective:
            here = np.flatnonzero(which == number)
            admitted[here] = region.admits(chips.row[here], chips.col[here], size)
    chips = chips.take(np.flatnonzero(admitted))
    start = np.searchsorted(chips.block, np.arange(len(blocks)))
    kept = chips.take(np.flatnonzero(np.arange(len(chips)) - start[chips.block] < blocks.chips[chips.block]))
    lacking = blocks.chips - np.bincount(kept.block, minlength=len(blocks))
    more = draw_within(np.repeat(np.arange(len(blocks)), lacking), blocks, regions, size, rng)
    both = BlockChips.joined([kept, more])
    return both.take(np.lexsort((rng.random(len(both)), both.block)))


def draw_within(
    which: Ints, blocks: Blocks, regions: Sequence[Region], size: tuple[int, int], rng: np.random.Generator
) -> BlockChips:
    """One more chip in each of the blocks named by ``which``, every position that fits being equally likely."""
    numbers, inverse = np.unique(which, return_inverse=True)
    if not len(numbers):
        return BlockChips(which, which, which)
    parts = [_part(blocks, regions[int(blocks.region[number])], int(number)) for number in numbers]
    chips = draw_chips(parts, inverse.astype(np.int64), size, rng)
    return BlockChips(which, chips.row, chips.col)
