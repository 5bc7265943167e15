"""Masks that are True everywhere: those of most chips, which need be neither filled nor read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["everywhere", "is_everywhere"]


def everywhere(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """True all over ``shape``, read-only, in one byte."""
    return np.broadcast_to(np.True_, shape)


def is_everywhere(valid: NDArray[np.bool_]) -> bool:
    """Whether all of ``valid`` is True."""
    return bool(valid.flat[0] if valid.size and not any(valid.strides) else valid.all())
