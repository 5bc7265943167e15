"""The same batches in every epoch, for runs that mean to overfit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SameEpoch"]


class SameEpoch(Sampler[list[Any]]):
    """Batches of another sampler's first epoch, epoch after epoch.

    Lightning's ``overfit_batches`` is of use only if epochs see the same batches, and would see to that by numbering
    the samples of a dataset that is asked for places.

    Args:
        batch_sampler: yields batches; one with ``set_epoch``, or that holds a sampler with it, is told its epoch.
    """

    def __init__(self, batch_sampler: Any) -> None:
        self._batch_sampler = batch_sampler

    @classmethod
    def of(
        cls, batch_sampler: Any = None, sampler: Any = None, batch_size: int = 1, *, drop_last: bool = False
    ) -> SameEpoch:
        """Of the samplers that a DataLoader takes."""
        return cls(BatchSampler(sampler, batch_size, drop_last) if batch_sampler is None else batch_sampler)

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        for sampler in (self._batch_sampler, getattr(self._batch_sampler, "sampler", None)):
            tell = getattr(sampler, "set_epoch", None)
            if callable(tell):
                tell(0)
        yield from self._batch_sampler
