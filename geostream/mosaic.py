"""Combining several sources on one grid: feed them in order, then take the result.

Which source comes first is the caller's business (path, time); here the order is the order of feeding. A policy decides
pixel by pixel and band by band, and only on valid pixels. NumPy, because torch lacks most operations on uint16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from geostream.errors import ConfigError
from geostream.rounding import round_half_away

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Shape = tuple[int, int, int]

__all__ = ["POLICIES", "Mosaic"]


class _Policy(Protocol):
    """What happens where sources overlap. Every array is (C, H, W); `have` is what was valid in any source so far."""

    def add(self, data: Array, valid: Bools, have: Bools) -> None:
        """Take in one more source."""

    def result(self) -> Array:
        """Values so far, in the mosaic's dtype; anything where nothing was valid."""


class _First:
    """The first valid value stays."""

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.values = np.zeros(shape, dtype)

    def add(self, data: Array, valid: Bools, have: Bools) -> None:
        np.copyto(self.values, data, where=valid & ~have)

    def result(self) -> Array:
        return self.values


class _Last(_First):
    """A later valid value replaces an earlier one."""

    def add(self, data: Array, valid: Bools, have: Bools) -> None:  # noqa: ARG002 (the policy's signature)
        np.copyto(self.values, data, where=valid)


class _Extreme(_First):
    """The smallest or largest value; NaN loses to a number."""

    choose: np.ufunc

    def add(self, data: Array, valid: Bools, have: Bools) -> None:
        self.choose(self.values, data, out=self.values, where=valid & have)
        np.copyto(self.values, data, where=valid & ~have)


class _Min(_Extreme):
    choose = np.fmin


class _Max(_Extreme):
    choose = np.fmax


class _Mean:
    """The mean of the valid values, summed in float64 (complex128 for complex)."""

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.sums = np.zeros(shape, np.complex128 if dtype.kind == "c" else np.float64)
        self.counts = np.zeros(shape, np.int32)

    def add(self, data: Array, valid: Bools, have: Bools) -> None:  # noqa: ARG002 (the policy's signature)
        np.add(self.sums, data, out=self.sums, where=valid)
        self.counts += valid

    def result(self) -> Array:
        return round_half_away(self.sums / np.maximum(self.counts, 1), self.dtype)


_POLICIES: dict[str, type[_First | _Mean]] = {"first": _First, "last": _Last, "min": _Min, "max": _Max, "mean": _Mean}

POLICIES = tuple(_POLICIES)
"""Names that a mosaic's policy may take."""


class Mosaic:
    """Several sources, one grid.

    Args:
        policy: ``"first"``, ``"last"``, ``"min"``, ``"max"`` or ``"mean"``, applied in the order of feeding.
        shape: (C, H, W).
        dtype: of every source and of the result.
        fill: value of pixels that no source has; it must be one that ``dtype`` can hold.

    Raises:
        ConfigError: for an unknown policy, or a fill that ``dtype`` cannot hold.
    """

    def __init__(self, policy: str, shape: Shape, dtype: np.dtype[Any], fill: float = 0) -> None:
        if policy not in _POLICIES:
            raise ConfigError(f"mosaic={policy!r} is unknown: choose one of {', '.join(POLICIES)}")
        dtype = np.dtype(dtype)
        self._policy_name = policy
        self._fill = _as_dtype(fill, dtype)
        self._policy: _Policy = _POLICIES[policy](shape, dtype)
        self._have = np.zeros(shape, bool)

    def __repr__(self) -> str:
        return f"Mosaic({self._policy_name!r}, {self._have.shape}, valid={self._have.mean():.1%})"

    @property
    def complete(self) -> bool:
        """Whether every pixel of every band has a valid value: further sources cannot change a ``"first"``."""
        return bool(self._have.all())

    def feed(self, data: Array, valid: Bools) -> None:
        """Add a source.

        Args:
            data: (C, H, W) in the mosaic's dtype. What it holds where ``valid`` is False does not matter.
            valid: (C, H, W) or (1, H, W) bool.
        """
        self._policy.add(data, np.broadcast_to(valid, self._have.shape), self._have)
        self._have |= valid

    def done(self) -> tuple[Array, Bools]:
        """The combined data (C, H, W), fill where nothing is valid, and valid (C, H, W) bool."""
        data = self._policy.result()
        np.copyto(data, self._fill, where=~self._have)
        return data, self._have


def _as_dtype(fill: float, dtype: np.dtype[Any]) -> Any:
    try:
        with np.errstate(over="raise", invalid="raise"):
            value = np.array(fill).astype(dtype)[()]
    except (FloatingPointError, OverflowError) as error:
        raise ConfigError(f"fill={fill!r} does not fit {dtype.name}: {error}") from error
    if dtype.kind in "iu" and value != fill:
        raise ConfigError(f"fill={fill!r} does not fit {dtype.name}: choose a value that the files' dtype can hold")
    return value
