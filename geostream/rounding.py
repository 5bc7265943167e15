"""Turning computed values into a raster's own dtype: the one place where rounding and clamping are decided."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["round_half_away", "round_within"]


@lru_cache(maxsize=64)
def _limits(target: np.dtype[Any], work: np.dtype[Any]) -> tuple[Any, Any]:
    """Smallest and largest value of integer dtype ``target`` and float dtype ``work`` both hold."""
    info = np.iinfo(target)
    low, high = work.type(info.min), work.type(info.max)
    # 2**63 - 1 is no float64: it becomes 2**63, whose cast back overflows
    return low, high if int(high) <= info.max else np.nextafter(high, work.type(0))


def round_half_away(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in ``dtype``: integers rounded half away from zero and clamped to what the dtype holds.

    Args:
        values: any shape, float or complex, finite wherever ``dtype`` is an integer.
        dtype: the raster's dtype. Floating and complex dtypes are only cast.

    Returns:
        A new array of the same shape in ``dtype`` (``values`` itself where it already has that dtype).
    """
    if dtype.kind not in "iu":
        return values.astype(dtype, copy=False)
    low, high = _limits(dtype, values.dtype)
    whole = values + _half(values, dtype)
    np.minimum(np.maximum(whole, low, out=whole), high, out=whole)
    rounded: NDArray[Any] = whole.astype(dtype)  # which cuts off the fraction
    return rounded


def round_within(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `round_half_away`, of values that lie within what ``dtype`` holds and may be overwritten."""
    if dtype.kind in "iu":
        values += _half(values, dtype)
    return values.astype(dtype, copy=False)


def _half(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """What to add before the fraction is cut off: with 0.5, what lies just below n + 0.5 would be rounded up."""
    below = np.nextafter(values.dtype.type(0.5), values.dtype.type(0))
    return np.asarray(below if dtype.kind == "u" else np.copysign(below, values))
