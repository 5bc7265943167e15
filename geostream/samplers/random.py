"""Single chips at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from geostream.samplers.base import ChipOptions, ChipSampler
from geostream.samplers.checks import check_length
from geostream.samplers.chips import draw_chips, draw_regions, tile_count
from geostream.samplers.regions import Place, Region
from geostream.samplers.units import Units

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

__all__ = ["RandomGeoSampler", "default_length"]


def default_length(regions: Sequence[Region], size: tuple[int, int]) -> int:
    """About as many chips as fit side by side, counted as TorchGeo counts them; at least one."""
    return sum(tile_count(r.window.height, size[0]) * tile_count(r.window.width, size[1]) for r in regions)


class RandomGeoSampler(ChipSampler[Place]):
    """Chips from random scenes, at random places; they may overlap.

    A scene is as likely as its area; within it every position on its pixel grid that fits is equally likely, the last
    row and column included. `RandomBatchGeoSampler` reads far fewer tiles for as many chips.

    Args:
        dataset: the GeoDataset to sample.
        size: side of a chip, or (height, width), in ``units``.
        length: chips in an epoch, over all ranks; by default about as many as fit side by side.
        roi: shapely polygon in the dataset's CRS to stay within (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` is measured in.
        generator: its ``initial_seed()`` is the seed; by default one is drawn from torch's global generator at the
            first iteration. Epochs differ by themselves: see `set_epoch`.
        options: see `ChipOptions`.

    Raises:
        ConfigError: no region holds a chip, or malformed arguments.
    """

    def __init__(
        self,
        dataset: Any,
        size: tuple[float, float] | float,
        length: int | None = None,
        roi: Any = None,
        toi: Any = None,
        units: Units = Units.PIXELS,
        generator: torch.Generator | None = None,
        **options: Unpack[ChipOptions],
    ) -> None:
        super().__init__(dataset, size, roi=roi, toi=toi, units=units, generator=generator, **options)
        self.length = check_length(length) or default_length(self.regions, self.pixels)

    @property
    def total(self) -> int:
        """Chips in a whole epoch, over all ranks."""
        return self.length

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:
        which = draw_regions(self.regions, (self.length,), rng)
        return draw_chips(self.regions, which, self.pixels, rng)
