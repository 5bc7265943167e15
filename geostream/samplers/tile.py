"""Batches of chips that use up the tiles they lie on."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from geostream import reader
from geostream.errors import ConfigError
from geostream.samplers.base import ChipOptions, epoch_rng
from geostream.samplers.batch import Batches, BatchGeoSampler
from geostream.samplers.blocks import BlockChips, draw_within, lay_blocks, place_chips
from geostream.samplers.checks import check_count, check_length
from geostream.samplers.chips import Chips
from geostream.samplers.cost import block_bytes
from geostream.samplers.lanes import deal, interleave
from geostream.samplers.shuffling import TileReport, decoded, distinct, quality
from geostream.samplers.tilegrid import tile_grids
from geostream.samplers.units import Units

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from geostream.samplers.base import Iteration
    from geostream.samplers.regions import Place

__all__ = ["TileBatchGeoSampler"]

_OPEN_BYTES = 2**26
"""Bytes of decoded tiles that may be open by default: half of what the reader keeps by default. Not half of what it
keeps now, lest an order that a run shall go on with depend on what else ran before."""
_DRIFT = 10
"""Batches that `TileReport.drift_quality` looks at together."""


class TileBatchGeoSampler(BatchGeoSampler):
    """Batches of random chips that share the scenes' own tiles: once fetched and decoded, a tile yields all its chips.

    Scenes are cut into blocks of whole tiles, as many as a chip needs. A block yields as many chips as it holds side by
    side, at random places that need no tile of another block, other ones in every epoch. Blocks of all scenes are
    opened in random order; some are open at a time, and a batch takes a few chips from each of several. An epoch opens
    each block once; so each tile is fetched once, as long as the open blocks stay in the reader's cache, and the
    default ``buffer`` sees to that.

    Tiles are those of the first image dataset's scene, also in combinations. Scenes in another CRS or resolution than
    the dataset's are sampled by footprint: blocks are laid out in the dataset's pixels, about as large as the tiles
    there, so that tiles along their edges are fetched by both neighbours.

    The epoch consists of ``lanes``, whose batches take turns and share no tile. Ranks whose number divides the lanes
    therefore fetch no tile of each other's, and the order is the same for all of them.

    Args:
        dataset: the GeoDataset to sample.
        size: side of a chip, or (height, width), in ``units``.
        batch_size: chips in a batch; every batch is full.
        length: chips in an epoch, over all ranks, of which whole batches are made. By default every block once; more go
            on with the blocks in another order, fewer stop early.
        roi: shapely polygon in the dataset's CRS to stay within (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` is measured in.
        generator: its ``initial_seed()`` is the seed; by default one is drawn from torch's global generator at the
            first iteration. Epochs differ by themselves: see `set_epoch`.
        tiles_per_batch: blocks that a batch takes its chips from, about: more mix better, fewer need less memory. By
            default as many as ``batch_size`` and ``buffer`` allow.
        buffer: blocks open at a time, in all lanes together. By default as many as 64 MiB of decoded tiles hold, half
            the reader's cache; with a larger ``DataLoader(cache_bytes=…)``, as many as half of that holds mix better.
        block: tiles on a side of a block. By default the fewest that hold two chips on each axis and little besides.
            More let chips lie across more of the tiles' edges, and leave fewer blocks to mix.
        lanes: number of ranks that shall share no tile; fewer are made of datasets with few blocks. One lane mixes best
            where there is but one rank.
        options: see `ChipOptions`.

    Raises:
        ConfigError: no region holds a chip, ``length`` holds no batch, or malformed arguments.
    """

    def __init__(
        self,
        dataset: Any,
        size: tuple[float, float] | float,
        batch_size: int,
        length: int | None = None,
        roi: Any = None,
        toi: Any = None,
        units: Units = Units.PIXELS,
        generator: torch.Generator | None = None,
        *,
        tiles_per_batch: int | None = None,
        buffer: int | None = None,
        block: int | None = None,
        lanes: int = 4,
        **options: Unpack[ChipOptions],
    ) -> None:
        super().__init__(dataset, size, roi=roi, toi=toi, units=units, generator=generator, **options)
        self.batch_size = check_count("batch_size", batch_size)
        chips = check_length(length, self.batch_size)
        _check(self.batch_size, tiles_per_batch=tiles_per_batch, buffer=buffer, block=block)
        self._lanes_asked = check_count("lanes", lanes)
        self.block = block
        self._grids = tile_grids(dataset, self.regions, self.pixels, block)
        self._blocks = lay_blocks(self.regions, self._grids, self.pixels)
        sizes = np.bincount(self._blocks.group, weights=self._blocks.chips).astype(np.int64)
        self._lanes = deal(sizes, self.batch_size, self._lanes_asked)
        self._block_bytes = block_bytes(dataset, self.regions, self._grids, self._blocks)
        self.lanes = self._lanes.count
        """Lanes made."""
        self.buffer = max(self.lanes, _OPEN_BYTES // self._block_bytes) if buffer is None else int(buffer)
        """Blocks open at a time, where there are so many."""
        self._open = max(1, self.buffer // self.lanes)
        self.tiles_per_batch = min(self.batch_size, self._open) if tiles_per_batch is None else int(tiles_per_batch)
        """Blocks that a batch takes its chips from, about."""
        if self.tiles_per_batch > self._open:
            raise ConfigError(
                f"tiles_per_batch={tiles_per_batch}, buffer={self.buffer}: each of {self.lanes} lanes holds "
                f"{self._open} blocks open, which a batch takes its chips from: pass buffer="
                f"{self.tiles_per_batch * self.lanes} or more, or fewer lanes"
            )
        self.length = chips or self._lanes.total * self.batch_size

    @property
    def total(self) -> int:
        """Batches in a whole epoch, over all ranks."""
        return self.length // self.batch_size

    @property
    def blocks(self) -> int:
        """Number of blocks that the dataset is cut into."""
        return len(self._blocks)

    def report(self, epoch: int | None = None) -> TileReport:
        """What this rank's part of an epoch takes to read, and how well it is mixed. Nothing is read.

        Tiles are counted on the image's grid. Those of a scene that is sampled by footprint are taken to lie as its
        blocks do. The seed is drawn if it has not been yet.

        Args:
            epoch: number of the epoch; by default the one that comes next or is being read.
        """
        number = self._epoch if epoch is None else int(epoch)
        plan = self._plan(epoch_rng(self.fix_seed(), number))
        rank, world_size = self.ranks()
        items = (np.arange(len(self)) * world_size + rank) % self.total
        shape = (len(items), self.batch_size)
        mine = plan.take((items[:, None] * self.batch_size + np.arange(self.batch_size)).ravel())
        scenes = np.array([grid.scene for grid in self._grids])[self._blocks.region[mine.block]]
        height, width = self.pixels
        _, middle = self._tiles(BlockChips(mine.block, mine.row + height // 2, mine.col + width // 2), (1, 1))
        chip, tiles = self._tiles(mine, self.pixels)
        pairs = _firsts(np.column_stack([chip // self.batch_size, tiles[:, 0]]))
        batches = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
        known, first = np.unique(tiles[:, 0], return_index=True)
        missing = decoded(batches, self._cached_tiles())
        areas = tiles[first, 1][np.searchsorted(known, missing)]
        return TileReport(
            epoch=number,
            batches=len(items),
            chips=len(mine),
            blocks=len(np.unique(mine.block)),
            tiles=len(known),
            tiles_decoded=len(missing),
            tiles_per_chip=len(missing) / len(mine),
            area_per_chip=float(areas.sum()) / (len(mine) * height * width),
            tiles_per_batch=len(pairs) / len(items),
            blocks_per_batch=distinct(mine.block.reshape(shape)),
            scenes_per_batch=distinct(scenes.reshape(shape)),
            shuffle_quality=quality(middle[:, 0], self.batch_size),
            scene_quality=quality(scenes, self.batch_size),
            drift_quality=quality(middle[:, 0], _DRIFT * self.batch_size),
        )

    def _begin(self) -> Iteration:
        iteration = super()._begin()
        if self.lanes % iteration.world_size:
            warnings.warn(
                f"{iteration.world_size} ranks will fetch some tiles several times: the {self.blocks} blocks are read "
                f"in {self.lanes} lanes, which {iteration.world_size} does not divide. "
                f"{self._remedy(iteration.world_size)}",
                stacklevel=3,
            )
        return iteration

    def _remedy(self, world_size: int) -> str:
        """What would let so many ranks share no tile, tried out."""

        def helps(batch_size: int, lanes: int) -> bool:
            return deal(self._lanes.sizes, batch_size, lanes).count % world_size == 0

        if helps(self.batch_size, world_size):
            return f"Pass lanes={world_size}"
        others = [self.batch_size << doublings for doublings in (1, 2, 3)]  # lanes of fewer batches are as even
        for lanes in dict.fromkeys((self._lanes_asked, world_size)):
            for batch_size in others:
                if batch_size * world_size <= self._lanes.sizes.sum() and helps(batch_size, lanes):
                    also = "" if lanes == self._lanes_asked else f" and lanes={lanes}"
                    return f"Pass batch_size={batch_size}{also}"
        fewer = max(number for number in range(1, world_size + 1) if self.lanes % number == 0)
        return f"So few blocks cannot be shared out between so many ranks: take {fewer} of them, or more scenes"

    def _order(self, rng: np.random.Generator) -> Sequence[list[Place]]:
        plan = self._plan(rng)
        which = self._blocks.region[plan.block]
        return Batches(Chips(self.regions, self.pixels, which, plan.row, plan.col), self.batch_size)

    def _plan(self, rng: np.random.Generator) -> BlockChips:
        """The epoch's chips in order: passes over all blocks, until there are enough."""
        passes = -(-self.total // self._lanes.total)
        chips = BlockChips.joined([self._pass(rng) for _ in range(passes)])
        return chips.take(np.arange(self.total * self.batch_size))

    def _pass(self, rng: np.random.Generator) -> BlockChips:
        """All chips of all blocks in order, and as many more as fill the batches."""
        visit = -(-self.batch_size // self.tiles_per_batch)
        order = interleave(self._lanes, self.batch_size, self._open, visit, rng).ravel()
        chips = place_chips(self._blocks, self.regions, self.pixels, rng)
        turn = rng.random(len(self._blocks))[chips.block]
        chips = chips.take(np.lexsort((np.arange(len(chips)), turn, self._blocks.group[chips.block])))
        # Groups in the order of their numbers have their chips one after the other; the n-th time that the order names
        # a group, it takes the group's n-th chip.
        sizes = self._lanes.sizes
        start = np.cumsum(sizes) - sizes
        times = np.bincount(order, minlength=len(sizes))
        nth = np.empty(len(order), dtype=np.int64)
        nth[np.argsort(order, kind="stable")] = np.arange(len(order)) - np.repeat(np.cumsum(times) - times, times)
        further = nth >= sizes[order]
        placed = chips.take(start[order] + np.minimum(nth, sizes[order] - 1))
        more = draw_within(placed.block[further], self._blocks, self.regions, self.pixels, rng)
        placed.row[further], placed.col[further] = more.row, more.col
        return placed

    def _tiles(self, chips: BlockChips, size: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(M,) numbers of chips and (M, 2) the tiles under chips of ``size``: a number for each, and its pixels."""
        which = self._blocks.region[chips.block]
        ends = [(r.window.row_off, r.window.col_off, r.window.row_stop, r.window.col_stop) for r in self.regions]
        window = np.array(ends)[which]
        grids = np.array([(g.scene, *g.tile, *g.anchor) for g in self._grids])[which]
        spans = []
        for axis, begin in enumerate((chips.row, chips.col)):
            tile, anchor = grids[:, 1 + axis], grids[:, 3 + axis]
            inside = np.clip([begin, begin + size[axis] - 1], window[:, axis], window[:, axis + 2] - 1)
            first, last = (inside - anchor) // tile
            spans.append((first, last - first + 1))
        (top, down), (left, across) = spans
        count = down * across
        chip = np.repeat(np.arange(len(chips)), count)
        nth = np.arange(len(chip)) - np.repeat(np.cumsum(count) - count, count)
        row, col = top[chip] + nth // across[chip], left[chip] + nth % across[chip]
        number = (grids[chip, 0] << 42) + (row << 21) + col
        return chip, np.column_stack([number, (grids[:, 1] * grids[:, 2])[chip]])

    def _cached_tiles(self) -> int:
        """About how many of the image's tiles the reader's cache holds, with the masks and bands that go with them."""
        tiles = np.mean([grid.block[0] * grid.block[1] for grid in self._grids])
        return max(1, int(reader.CACHE_BYTES / self._block_bytes * tiles))


def _firsts(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different rows, where each is first."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]


def _check(batch_size: int, **knobs: int | None) -> None:
    for name, value in knobs.items():
        if value is not None:
            check_count(name, value)
    tiles = knobs["tiles_per_batch"]
    if tiles is not None and tiles > batch_size:
        raise ConfigError(f"tiles_per_batch={tiles}: a batch of {batch_size} chips cannot come from more blocks")
