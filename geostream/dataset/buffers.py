"""Memory for batches, used again once a batch is gone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from geostream.buffers import BufferPool

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["batch_tensor"]

_KEPT_BYTES = 2**28

_pool = BufferPool(_KEPT_BYTES)


def batch_tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """A tensor with arbitrary content, in memory that is used again once the tensor and all its views are gone."""
    memory = _pool.take(math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(memory.view(dtype).reshape(shape))
