"""Chips side by side over whole scenes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, get_args

from geostream.samplers.base import ChipOptions, ChipSampler
from geostream.samplers.checks import check_choice
from geostream.samplers.chips import Edge, grid_chips
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
        stride: distance between chips, or (down, across), in ``units``; by default ``size``. A larger one than
            ``size`` leaves gaps of ``stride - size`` pixels between chips.
        roi: shapely polygon in the dataset's CRS to cover (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` and ``stride`` are measured in.
        edge: where the stride does not end at a region's far edge: ``"shift"`` adds a last row and column of chips
            that end there, so that no pixel outside is covered, and every one inside unless the stride is larger than
            a chip; ``"overhang"`` keeps the stride and lets
            them reach beyond; ``"drop"`` leaves the rest uncovered.
        options: see `ChipOptions`.

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
        **options: Unpack[ChipOptions],
    ) -> None:
        self.edge: Edge = check_choice("edge", edge, get_args(Edge))
        super().__init__(dataset, size, roi=roi, toi=toi, units=units, **options)
        steps = self.pixels if stride is None else pixel_size(stride, units, self.res, "stride")
        self.stride = (steps[0] * self.res[1], steps[1] * self.res[0])
        self._chips = grid_chips(self.regions, self.pixels, steps, self.edge)
        self.length = len(self._chips)

    @property
    def total(self) -> int:
        """Chips that cover the dataset, over all ranks."""
        return self.length

    def _reach(self) -> tuple[float, float]:
        return (self.size[1], self.size[0]) if self.edge == "overhang" else super()._reach()

    @property
    def random(self) -> bool:
        """Nothing is left to chance."""
        return False

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:  # noqa: ARG002
        return self._chips
