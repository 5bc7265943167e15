"""Bilinear interpolation at scattered positions: one pass of torch's sampler, where NumPy takes twenty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import grid_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["interpolate"]


def interpolate(planes: Floats, cols: Floats, rows: Floats) -> Floats:
    """Values of the planes at any position, from the four pixels around it; beyond the edge, the edge's.

    One image at a time runs in the calling thread alone: torch divides the work by images.

    Args:
        planes: (P, h, w), finite.
        cols: (H, W) columns; 0.5 is the centre of the first.
        rows: (H, W) rows, likewise.

    Returns:
        (P, H, W).
    """
    height, width = planes.shape[1:]
    at = np.empty((*cols.shape, 2))  # as `grid_sample` counts: from -1 on the first edge to 1 on the last
    np.multiply(cols, 2 / width, out=at[:, :, 0])
    np.multiply(rows, 2 / height, out=at[:, :, 1])
    at -= 1
    image, grid = torch.from_numpy(planes)[None], torch.from_numpy(at)[None]
    sampled = grid_sample(image, grid, padding_mode="border", align_corners=False)
    values: Floats = sampled[0].numpy()
    return values
