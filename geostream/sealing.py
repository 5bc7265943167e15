"""Batches that reach the data module as they were read, whatever the trainer's precision.

Under half precision Lightning casts every floating point tensor of a batch before it lets anybody see it: coordinates
in metres would be rounded to kilometres, and pixels before they are normalised. It leaves alone what is no tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sealing", "unsealed"]


class _Sealed:
    """A tensor that nobody takes for one."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def pin_memory(self) -> _Sealed:
        """What loaders call to pin a batch."""
        return _Sealed(self.tensor.pin_memory())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.tensor.nbytes


class Sealing:
    """A collate function whose batches have their floating point tensors sealed.

    Args:
        collate: makes a batch of a list of samples.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        """The sealed batch."""
        batch = self._collate(samples)
        if not isinstance(batch, dict):
            return batch
        return {key: _Sealed(value) if _is_floating(value) else value for key, value in batch.items()}


def unsealed(batch: Any) -> Any:
    """The batch with its tensors as they were."""
    if not isinstance(batch, dict):
        return batch
    return {key: value.tensor if isinstance(value, _Sealed) else value for key, value in batch.items()}


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
