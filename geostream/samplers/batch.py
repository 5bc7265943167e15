"""Batches of chips that share a scene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from geostream.errors import ConfigError
from geostream.samplers.base import ChipOptions, ChipSampler
from geostream.samplers.checks import check_count, check_length
from geostream.samplers.chips import Chips, draw_chips, draw_regions
from geostream.samplers.random import default_length
from geostream.samplers.regions import Place, Region
from geostream.samplers.units import Units

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

__all__ = ["BatchGeoSampler", "Batches", "RandomBatchGeoSampler"]

_ROUNDS = 16
"""How often a scene that a batch already has is drawn again."""


class BatchGeoSampler(ChipSampler[list[Place]]):
    """A sampler that yields whole batches: lists of queries."""

    batch_size: int
    """Chips in a batch."""

    @property
    def sampler(self) -> BatchGeoSampler:
        """The sampler itself: Lightning calls `set_epoch` on a batch sampler's ``sampler``, and nowhere else."""
        return self


class RandomBatchGeoSampler(BatchGeoSampler):
    """Batches of random chips, each batch from one scene, so that chips of a batch share the tiles they lie on.

    A scene is as likely as its area; within it every position on its pixel grid that fits is equally likely.

    Args:
        dataset: the GeoDataset to sample.
        size: side of a chip, or (height, width), in ``units``.
        batch_size: chips in a batch.
        length: chips in an epoch, over all ranks, of which whole batches are made; by default about as many as fit
            side by side.
        roi: shapely polygon in the dataset's CRS to stay within (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` is measured in.
        generator: its ``initial_seed()`` is the seed; by default one is drawn from torch's global generator at the
            first iteration. Epochs differ by themselves: see `set_epoch`.
        scenes_per_batch: how many scenes a batch's chips come from, in equal parts; different ones while there are.
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
        scenes_per_batch: int = 1,
        **options: Unpack[ChipOptions],
    ) -> None:
        super().__init__(dataset, size, roi=roi, toi=toi, units=units, generator=generator, **options)
        self.batch_size = check_count("batch_size", batch_size)
        self.scenes_per_batch = check_count("scenes_per_batch", scenes_per_batch)
        if self.scenes_per_batch > self.batch_size:
            raise ConfigError(
                f"scenes_per_batch={scenes_per_batch}: a batch of {batch_size} needs at least one chip of each of its "
                "scenes"
            )
        whole = max(self.batch_size, default_length(self.regions, self.pixels))
        self.length = check_length(length, self.batch_size) or whole

    @property
    def total(self) -> int:
        """Batches in a whole epoch, over all ranks."""
        return self.length // self.batch_size

    def _order(self, rng: np.random.Generator) -> Sequence[list[Place]]:
        scenes = _distinct(self.regions, (self.total, self.scenes_per_batch), rng)
        share = np.arange(self.batch_size) * self.scenes_per_batch // self.batch_size
        return Batches(draw_chips(self.regions, scenes[:, share].ravel(), self.pixels, rng), self.batch_size)


class Batches(Sequence[list[Place]]):
    """Consecutive chips, so many at a time."""

    def __init__(self, chips: Chips, batch_size: int) -> None:
        self._chips = chips
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._chips) // self._batch_size

    @overload
    def __getitem__(self, item: int) -> list[Place]: ...
    @overload
    def __getitem__(self, item: slice) -> list[list[Place]]: ...
    def __getitem__(self, item: int | slice) -> list[Place] | list[list[Place]]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        first = range(len(self))[item] * self._batch_size  # an IndexError ends iteration
        return self._chips[first : first + self._batch_size]


def _distinct(regions: Sequence[Region], shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.int64]:
    """(batches, scenes) numbers of regions, weighted by area, no row naming one twice where that can be helped."""
    scenes = draw_regions(regions, shape, rng)
    for column in range(1, shape[1]):
        for _ in range(_ROUNDS if column < len(regions) else 0):
            twice = np.flatnonzero((scenes[:, :column] == scenes[:, column : column + 1]).any(axis=1))
            if not len(twice):
                break
            scenes[twice, column] = draw_regions(regions, (len(twice),), rng)
    return scenes
