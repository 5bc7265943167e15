"""Scenes merged as TorchGeo merges them, with `rasterio.merge`'s rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geostream.dataset.pixels import fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from geostream.reader import Patch

__all__ = ["as_tensor", "merged"]

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
"""What TorchGeo makes of types that torch hardly supports."""


def merged(patches: Sequence[Patch | None], dtype: np.dtype[Any], shape: tuple[int, int, int], nodata: Any) -> Any:
    """One array of several scenes' pixels, each filling the holes of those before it.

    Args:
        patches: pixels in their order; None for a scene that does not reach the place.
        dtype: type of the result, that of the first file.
        shape: (C, H, W).
        nodata: the first file's nodata value. Pixels of that value are holes; without one, zeros are.

    Returns:
        (C, H, W) of its own memory; holes are ``nodata``, or 0.
    """
    hole = nodata if nodata is not None and fits(nodata, dtype) else 0
    merged = np.full(shape, hole, dtype)
    for patch in patches:
        if patch is not None:
            np.copyto(merged, patch.data, where=_holes(merged, hole) & patch.band_valid, casting="unsafe")
    return merged


def _holes(pixels: NDArray[Any], hole: float) -> NDArray[np.bool_]:
    if pixels.dtype.kind in "iu":
        return np.asarray(pixels == hole)
    return np.asarray(np.isnan(pixels) if np.isnan(hole) else np.isclose(pixels, hole))


def as_tensor(pixels: NDArray[Any]) -> Tensor:
    """The array as a tensor: of its own type, uint16 as int32, uint32 as int64."""
    native = pixels.astype(_WIDER.get(pixels.dtype, pixels.dtype.newbyteorder("=")), copy=False)
    return torch.from_numpy(native)
