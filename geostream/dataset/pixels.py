"""From patches to a sample's tensors: mosaic, channels, fill, dtype.

Works in NumPy, since torch's unsigned types lack most operations, and leaves the patches untouched, since samples of
one batch share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geostream.everywhere import everywhere, is_everywhere
from geostream.mosaic import Mosaic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from geostream.reader import Patch

__all__ = ["Layer", "channel_validity", "fits", "mosaicked", "numpy_dtype", "to_tensor", "torch_dtype"]

_WHOLE_PIXELS = ("first", "last")
"""Policies that choose among scenes; the others reckon with values, band by band."""


@dataclass(frozen=True)
class Layer:
    """Channels of one place, and of one date where there are several."""

    data: NDArray[Any]
    """(C, H, W) in the files' dtype; anything where nothing is valid."""
    valid: NDArray[np.bool_]
    """Where each channel has data: (C, H, W), or (1, H, W) where one file holds all channels, which share theirs."""
    drawn: Tensor | None = None
    """The same pixels as a tensor of the sample's type, where they were drawn straight into the batch."""

    @classmethod
    def joined(cls, layers: Sequence[Layer]) -> Layer:
        """The channels of all layers, one after the other."""
        if len(layers) == 1:
            return layers[0]
        return cls(np.concatenate([layer.data for layer in layers]), _joined_validity(layers))

    @classmethod
    def empty(cls, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Layer:
        """No data."""
        return cls(np.zeros(shape, dtype), np.zeros((1, *shape[1:]), bool))

    @property
    def anywhere(self) -> NDArray[np.bool_]:
        """(1, H, W), True where any channel has data."""
        return np.logical_or.reduce(self.valid, axis=0, keepdims=True)


def channel_validity(patches: Sequence[Patch]) -> NDArray[np.bool_]:
    """`Layer.valid` of the channels of several files, one after the other."""
    return _joined_validity([Layer(patch.data, patch.valid[None]) for patch in patches])


def _joined_validity(layers: Sequence[Layer]) -> NDArray[np.bool_]:
    if len(layers) == 1:
        return layers[0].valid
    if all(is_everywhere(layer.valid) for layer in layers):
        return everywhere((1, *layers[0].data.shape[1:]))
    return np.concatenate([np.broadcast_to(layer.valid, layer.data.shape) for layer in layers])


def mosaicked(policy: str, patches: Sequence[Patch], dtype: torch.dtype | None) -> Layer:
    """Several scenes' pixels on one grid, combined in their order.

    A pixel is valid where any of its bands is. ``first`` and ``last`` take it whole; the others count a band's values
    where that band holds data, and where none does, leave what the first valid pixel holds instead.

    Args:
        policy: one of `geostream.mosaic.POLICIES`.
        patches: at least one; of equal shape.
        dtype: of the sample; None for the files'. Of floating point, a mean keeps its fraction.
    """
    if len(patches) == 1:
        return Layer(patches[0].data, patches[0].valid[None])
    common = np.result_type(*(patch.data.dtype for patch in patches))
    if policy == "mean" and dtype is not None and dtype.is_floating_point and common.kind != "c":
        common = numpy_dtype(dtype)
    shared = [(patch.data, patch.valid[None]) for patch in patches]
    if policy in _WHOLE_PIXELS or all(len(patch.band_valid) == 1 for patch in patches):
        data, valid = _combined(policy, shared, common)
        return Layer(data, valid[:1])  # all channels were fed the same
    data, valid = _combined(policy, [(patch.data, patch.band_valid) for patch in patches], common)
    elsewhere, _ = _combined("first", shared, common)
    return Layer(np.where(valid, data, elsewhere), np.logical_or.reduce(valid, axis=0, keepdims=True))


def _combined(
    policy: str, parts: Sequence[tuple[NDArray[Any], NDArray[np.bool_]]], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    mosaic = Mosaic(policy, parts[0][0].shape, dtype)
    for data, valid in parts:
        mosaic.feed(data.astype(dtype, copy=False), valid)
    return mosaic.done()


@lru_cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy type of ``dtype``, or float32 where NumPy has none (bfloat16)."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(np.float32)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The torch type of pixels of ``dtype``."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def to_tensor(layer: Layer, fill: Sequence[float], dtype: torch.dtype | None) -> Tensor:
    """A layer's pixels as a tensor of its own memory.

    Args:
        layer: what was read.
        fill: value of each channel's invalid pixels.
        dtype: of the tensor; None keeps the files'.

    Returns:
        (C, H, W).
    """
    target = layer.data.dtype.newbyteorder("=") if dtype is None else numpy_dtype(dtype)
    if layer.drawn is not None:
        pixels, tensor = layer.data, layer.drawn
    else:
        with np.errstate(invalid="ignore"):  # NaN has no integer; where it stands for no data it is filled below
            pixels = np.ascontiguousarray(layer.data.astype(target))
        tensor = torch.from_numpy(pixels)
    if not is_everywhere(layer.valid):
        values = np.array([_castable(value, target) for value in fill]).astype(target)
        np.copyto(pixels, values[:, None, None], where=~layer.valid)
    return tensor if dtype is None else tensor.to(dtype)


def fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` holds ``value``: an integer type no fraction, NaN or number out of its range."""
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return bool(np.isfinite(value)) and value == int(value) and limits.min <= value <= limits.max


def _castable(value: float, dtype: np.dtype[Any]) -> float:
    return value if fits(value, dtype) else 0
