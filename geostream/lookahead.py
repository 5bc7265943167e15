"""How many batches to keep in flight: as many as keep the decoding threads fed, within a budget of bytes. Pure."""

from __future__ import annotations

from typing import Literal

__all__ = ["LookAhead"]

_FIRST = 4
"""Batches in flight at first: the first batch must not share the link with too many others."""
_BUSY = 0.85
"""Share of the decoding threads' time above which they, not the network, set the pace."""
_GROWTH = 1.5


class LookAhead:
    """Number of batches in flight ahead of the one that is due.

    By Little's law the requests in flight must cover latency times throughput, which is not known beforehand: 8 batches
    suffice where decoding is slow, 32 where tiles are small and the store is far. So the number grows whenever the
    consumer had to wait for a batch although the decoding threads had time to spare, and stops where they are busy,
    where the consumer never waits, or where the budget ends.

    Args:
        batches: a fixed number, or ``"auto"``.
        budget: bytes of pixels that batches in flight may hold, that of the one that is due aside.
    """

    def __init__(self, batches: int | Literal["auto"], budget: int) -> None:
        self._adapts = batches == "auto"
        self._budget = budget
        self._batches = float(_FIRST if batches == "auto" else batches)
        self._cost = 0

    @property
    def batches(self) -> int:
        """Batches to keep in flight beyond the one that is due: one at least."""
        if not self._adapts:
            return int(self._batches)
        fitting = self._budget // self._cost if self._cost else _FIRST
        return max(1, min(int(self._batches), fitting))

    def started(self, cost: int) -> None:
        """Learn what a batch will hold, once it is in flight.

        Args:
            cost: bytes of its pixels, as far as they are known; 0 if they are not.
        """
        self._cost = max(self._cost, cost)

    def delivered(self, *, waited: bool, busy: float, cost: int) -> None:
        """Learn from a batch.

        Args:
            waited: whether the consumer had to wait for it.
            busy: share of the decoding threads' time that was used since the batch before.
            cost: bytes that it holds.
        """
        self._cost = max(self._cost, cost)
        if self._adapts and waited and busy < _BUSY and self._batches * self._cost <= self._budget:
            self._batches = max(self._batches + 1, self._batches * _GROWTH)
