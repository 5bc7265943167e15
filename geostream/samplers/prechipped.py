"""Whole scenes, for data that was cut into chips before."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from geostream.errors import ConfigError
from geostream.samplers.base import EpochSampler, RankOptions
from geostream.samplers.checks import check_flag
from geostream.samplers.regions import Place, Region, border_of, dataset_res, index_of, regions_of

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
        self.shuffle = check_flag("shuffle", shuffle)
        self.regions = _uncrossed(regions_of(dataset, roi, toi))
        self._clipped = roi is not None or border_of(dataset) is not None
        self.length = len(self.regions)

    @property
    def total(self) -> int:
        """Scenes in a whole epoch, over all ranks."""
        return self.length

    @property
    def random(self) -> bool:
        """Whether epochs differ."""
        return self.shuffle

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:
        order = np.argsort(rng.random(self.length)) if self.shuffle else np.arange(self.length)
        return [_whole(self.regions[int(i)], clipped=self._clipped) for i in order]


def _uncrossed(regions: list[Region]) -> list[Region]:
    """The regions whose bounding box keeps within their split."""
    kept = [region for region in regions if region.border is None]
    if not kept:
        raise ConfigError("no scene has a rectangle of its own in this split: use RandomGeoSampler or GridGeoSampler")
    if len(kept) < len(regions):
        warnings.warn(
            f"{len(regions) - len(kept)} of {len(regions)} scenes are left out, since the box around what this split "
            "has of them reaches into other ground",
            stacklevel=3,
        )
    return kept


def _whole(region: Region, *, clipped: bool) -> Place:
    window = region.window
    if clipped and window.width and window.height:
        return region.place(window.row_off, window.col_off, window.height, window.width)
    xmin, ymin, xmax, ymax = region.bounds
    return slice(xmin, xmax, region.res[0]), slice(ymin, ymax, region.res[1]), slice(*region.interval)
