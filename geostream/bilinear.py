"""Bilinear interpolation at scattered positions: one pass of torch's sampler, where NumPy takes twenty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import grid_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from geostream.grid import Window

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

__all__ = ["counted", "interpolate"]


def interpolate(planes: Array, at: Array) -> Array:
    """Values of the planes at any position, from the four pixels around it; beyond the edge, the edge's.

    One image at a time runs in the calling thread alone: torch divides the work by images.

    Args:
        planes: (P, h, w), finite, float32 or float64.
        at: (H, W, 2) columns and rows in the same dtype, as `counted` gives them.

    Returns:
        (P, H, W), of the planes' dtype.
    """
    image, grid = torch.from_numpy(planes)[None], torch.from_numpy(at)[None]
    values: Array = grid_sample(image, grid, padding_mode="border", align_corners=False)[0].numpy()
    return values


def counted(cols: Floats, rows: Floats, window: Window) -> Floats:
    """(…, 2) columns and rows (…) of a source, counted from -1 on a window's first edge to 1 on its last."""
    at = np.empty((*cols.shape, 2))
    for axis, (positions, start, size) in enumerate(
        ((cols, window.col_off, window.width), (rows, window.row_off, window.height))
    ):
        np.subtract(positions * (2 / size), 2 * start / size + 1, out=at[..., axis])
    return at
