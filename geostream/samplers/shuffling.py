"""How well an epoch is mixed, and what it takes to read, told from its plan alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["TileReport", "decoded", "distinct", "quality"]


@dataclass(frozen=True, slots=True)
class TileReport:
    """One epoch of a `TileBatchGeoSampler`, as one rank reads it."""

    epoch: int
    """Number of the epoch."""
    batches: int
    """Batches of this rank."""
    chips: int
    """Chips of this rank."""
    blocks: int
    """Different blocks that they lie in."""
    tiles: int
    """Different tiles that they lie on; as those of one band where bands have tiles or files of their own."""
    tiles_decoded: int
    """Tiles decoded, once each while the cache of decoded tiles holds them."""
    tiles_per_chip: float
    """Tiles decoded for each chip."""
    area_per_chip: float
    """Pixels decoded for each pixel of a chip: 1 where every decoded pixel is used once."""
    tiles_per_batch: float
    """Mean number of different tiles under a batch."""
    blocks_per_batch: float
    """Mean number of different blocks in a batch."""
    scenes_per_batch: float
    """Mean number of different scenes in a batch."""
    shuffle_quality: float
    """Mixing of tiles within batches, against a full shuffle of the same chips, which has 1 (see `quality`). A chip
    counts for the tile under its centre."""
    scene_quality: float
    """The same of scenes."""
    drift_quality: float
    """Mixing of tiles within ten batches in a row, about what momentum averages over."""


def quality(cluster: Ints, window: int) -> float:
    """How well an order mixes clusters: 1 as a full shuffle does, less where chips of a cluster stay together.

    It is one over the design effect of cluster sampling (Kish, Survey Sampling, 1965) in the worst case, chips of a
    cluster being all alike: the variance of the mean over ``window`` chips under a full shuffle, divided by that under
    this order. So a batch of B chips has as much to tell as ``quality * B`` chips of a full shuffle, or more where
    chips of a cluster differ. That variance is what slows stochastic gradient descent on data that is shuffled by
    blocks (the block variance factor of Xu et al., In-Database Machine Learning with CorgiPile, SIGMOD 2022).

    Args:
        cluster: (N,) number of the cluster of each chip (its tile, or its scene), in the order of the epoch.
        window: chips to look at together.
    """
    total = len(cluster)
    size = min(window, total)
    used = cluster[: total // size * size].reshape(-1, size)
    ordered = np.sort(used, axis=1)
    runs = np.flatnonzero(np.column_stack([np.ones(len(used), dtype=bool), ordered[:, 1:] != ordered[:, :-1]]).ravel())
    lengths = np.diff(np.append(runs, used.size))
    together = float((lengths.astype(np.float64) ** 2).sum()) / len(used)
    counts = np.unique(cluster, return_counts=True)[1].astype(np.float64)
    alike = float((counts * (counts - 1)).sum()) / (total * (total - 1)) if total > 1 else 0.0
    return (size + size * (size - 1) * alike) / together


def distinct(values: Ints) -> float:
    """Mean number of different values in a row of (batches, …)."""
    ordered = np.sort(values.reshape(len(values), -1), axis=1)
    return float((1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)).mean())


def decoded(batches: list[Ints], capacity: int) -> list[int]:
    """The tiles that are decoded, one after the other, when each batch looks for its tiles among the last used.

    Args:
        batches: the different tiles that each batch needs, in order.
        capacity: tiles that the cache holds.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    missing = []
    for tiles in batches:
        for tile in tiles.tolist():
            if tile in cache:
                cache.move_to_end(tile)
                continue
            missing.append(tile)
            cache[tile] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return missing
