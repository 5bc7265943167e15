"""Chips side by side over whole scenes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geostream.samplers.base import ChipSampler, Uneven
from geostream.samplers.chips import Edge, check_edge, grid_chips
from geostream.samplers.regions import Place
from geostream.samplers.units import Units, pixel_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["GridGeoSampler"]


class GridGeoSampler(ChipSampler[Place]):
    """Every scene, chip by chip, row by row from its upper left corner; the same in every epoch.

    Args:
        dataset: the GeoDataset to sample.
        size: side of a chip, or (height, width), in ``units``.
        stride: distance between chips, or (down, across), in ``units``; by default ``size``.
        roi: shapely polygon in the dataset's CRS to cover (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` and ``stride`` are measured in.
        edge: where the stride does not end at a region's far edge: ``"shift"`` adds a last row and column of chips
            that end there, so that every pixel is covered and none outside; ``"overhang"`` keeps the stride and lets
            them reach beyond; ``"drop"`` leaves the rest uncovered.
        pad: also take regions smaller than a chip; their chips reach beyond the data.
        rank: this process's rank; by default torch.distributed's, asked at iteration.
        world_size: number of ranks, given together with ``rank``.
        uneven: what becomes of chips the ranks cannot share equally: ``"pad"`` repeats the first, ``"drop"`` leaves
            the last out.

    Raises:
        ConfigError: no region holds a chip, or malformed arguments.
    """

    def __init__(
        self,
        dataset: Any,
        size: tuple[float, float] | float,
        stride: tuple[float, float] | float | None = None,
        roi: Any = None,
        toi: Any = None,
        units: Units = Units.PIXELS,
        *,
        edge: Edge = "shift",
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(
            dataset, size, roi=roi, toi=toi, units=units, pad=pad, rank=rank, world_size=world_size, uneven=uneven
        )
        self.edge = check_edge(edge)
        steps = self.pixels if stride is None else pixel_size(stride, units, self.res, "stride")
        self.stride = (steps[0] * self.res[1], steps[1] * self.res[0])
        self._chips = grid_chips(self.regions, self.pixels, steps, self.edge)
        self.length = len(self._chips)

    @property
    def total(self) -> int:
        """Chips that cover the dataset, over all ranks."""
        return self.length

    def _fixed_seed(self, world_size: int) -> int:  # noqa: ARG002 - nothing here is random: draw none
        return self._seed or 0

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:  # noqa: ARG002
        return self._chips
