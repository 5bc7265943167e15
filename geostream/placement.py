"""Where a batch's pixels lie after they were moved: `transform` and `bounds` follow, or go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

__all__ = ["Corners", "is_placed", "unplaced"]

_PLACE = ("transform", "bounds")
_NUMBERS = 9
"""Values of ``transform`` and of ``bounds`` to one sample."""
_AFFINE = 1e-2
"""Pixels by which the fourth corner may miss the affine map of the other three; float32 alone costs less."""
_SNAP = 1e-5
"""Linear coefficients this close to whole numbers are those: kornia turns by cosines in float32."""
_SNAP_SHIFT = 1e-3
"""Likewise, of shifts in half pixels."""


def is_placed(batch: dict[str, Any], count: int) -> bool:
    """Whether the batch says where its ``count`` images lie: ``transform`` (B, 9), and, if it has any, ``bounds``."""
    return "transform" in batch and all(_is_place(batch[key], count) for key in _PLACE if key in batch)


def unplaced(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch without ``transform`` and ``bounds``, which are no longer true."""
    return {key: value for key, value in batch.items() if key not in _PLACE}


def _is_place(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (count, _NUMBERS)


@dataclass(frozen=True)
class Corners:
    """The corner pixels of a batch's images, to be moved along with them."""

    size: tuple[int, int]
    """Height and width of the images before they are moved."""
    count: int
    """Images in the batch."""

    @cached_property
    def points(self) -> Tensor:
        """(B, 4, 2) float32, (column, row) of the corner pixels' centres, of which the first pixel's is (0, 0)."""
        bottom, right = (max(1.0, side - 1.0) for side in self.size)
        points = torch.tensor([[0.0, 0.0], [right, 0.0], [0.0, bottom], [right, bottom]])
        return points.repeat(self.count, 1, 1)

    def carry(self, batch: dict[str, Any], points: Tensor, size: tuple[int, int]) -> dict[str, Any]:
        """The batch with ``transform`` and ``bounds`` of pixels that were moved.

        Args:
            batch: with ``transform`` (B, 9) float64 and perhaps ``bounds`` (B, 9) of the pixels before.
            points: (B, 4, 2) where the corners went.
            size: height and width of the images afterwards.

        Returns:
            The batch, without both keys where no affine map takes the corners there.
        """
        before, after = self.points.double(), points.detach().cpu().double()
        linear = torch.stack([after[:, 1] - after[:, 0], after[:, 2] - after[:, 0]], dim=2)
        missed = after[:, 3] - (after[:, 1] + after[:, 2] - after[:, 0])
        linear = _snapped(linear / before[:, 3][:, None, :], 1.0, _SNAP)
        if missed.abs().max() > _AFFINE or linear.det().abs().min() < _SNAP:
            return unplaced(batch)
        # From centres to edges: the first pixel's centre is (0.5, 0.5) to a transform, and (0, 0) to kornia.
        half = torch.full((2,), 0.5, dtype=torch.float64)
        shift = _snapped(after[:, 0] + half - linear @ half, 0.5, _SNAP_SHIFT)
        back = torch.linalg.inv(linear)
        grid = batch["transform"].cpu().double().reshape(-1, 3, 3)
        turned = grid[:, :2, :2] @ back
        origin = grid[:, :2, 2] - (turned @ shift[:, :, None])[:, :, 0]
        placed = torch.cat([torch.cat([turned, origin[:, :, None]], dim=2), grid[:, 2:]], dim=1).flatten(1)
        still = (linear == torch.eye(2, dtype=torch.float64)).all(dim=(1, 2)) & (shift == 0).all(dim=1)
        placed = torch.where(still[:, None], batch["transform"].cpu().double(), placed)
        result = {**batch, "transform": placed.to(batch["transform"].dtype)}
        if "bounds" in batch:
            result["bounds"] = _boxed(batch["bounds"], turned, origin, size)
        return result


def _snapped(values: Tensor, unit: float, within: float) -> Tensor:
    whole = torch.round(values / unit) * unit
    return torch.where((values - whole).abs() < within, whole, values)


def _boxed(bounds: Tensor, linear: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """``bounds`` of the box around the moved pixels; a box that stays where it was keeps its numbers."""
    height, width = size
    corners = torch.tensor([[0.0, 0.0], [width, 0.0], [0.0, height], [width, height]], dtype=torch.float64)
    places = corners @ linear.mT + origin[:, None]
    (x, y), (xres, yres) = places.unbind(2), torch.linalg.vector_norm(linear, dim=2).unbind(1)
    boxes = torch.stack([x.amin(1), x.amax(1), xres, y.amin(1), y.amax(1), yres], dim=1)
    before = bounds.cpu().double()
    slack = _SNAP * torch.stack([xres, xres, xres, yres, yres, yres], dim=1)
    boxes = torch.where((boxes - before[:, :6]).abs() < slack, before[:, :6], boxes)
    return torch.cat([boxes, before[:, 6:]], dim=1).to(bounds.dtype)
