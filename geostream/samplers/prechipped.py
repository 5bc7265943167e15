"""Whole scenes, for data that was cut into chips before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from geostream.samplers.base import EpochSampler, RankOptions
from geostream.samplers.regions import Place, Region, dataset_res, index_of, regions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["PreChippedGeoSampler"]


class PreChippedGeoSampler(EpochSampler[Place]):
    """Each scene as one chip, in the index's order or shuffled.

    Args:
        dataset: the GeoDataset to sample.
        roi: shapely polygon in the dataset's CRS; scenes it cuts yield the pixels within its bounding box.
        toi: `pandas.Interval` to stay within, both ends included.
        shuffle: another order every epoch.
        generator: its ``initial_seed()`` is the seed of the shuffle; by default one is drawn from torch's global
            generator at the first iteration.
        options: see `RankOptions`.

    Raises:
        ConfigError: no scene lies within ``roi`` and ``toi``, or malformed arguments.
    """

    def __init__(
        self,
        dataset: Any,
        roi: Any = None,
        toi: Any = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(generator=generator, **options)
        self.index = index_of(dataset)
        self.res = dataset_res(dataset)
        self.roi = roi
        self.toi = toi
        self.shuffle = shuffle
        self.regions = regions_of(dataset, roi, toi)
        self.length = len(self.regions)

    @property
    def total(self) -> int:
        """Scenes in a whole epoch, over all ranks."""
        return self.length

    def _fixed_seed(self, world_size: int) -> int:
        return super()._fixed_seed(world_size) if self.shuffle else self._seed or 0

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:
        order = np.argsort(rng.random(self.length)) if self.shuffle else np.arange(self.length)
        return [_whole(self.regions[int(i)], clipped=self.roi is not None) for i in order]


def _whole(region: Region, *, clipped: bool) -> Place:
    window = region.window
    if clipped and window.width and window.height:
        return region.place(window.row_off, window.col_off, window.height, window.width)
    xmin, ymin, xmax, ymax = region.bounds
    return slice(xmin, xmax, region.res[0]), slice(ymin, ymax, region.res[1]), slice(*region.interval)
