"""How many batches to keep in flight: as many as spare the consumer waiting, within a budget of bytes. Pure."""

from __future__ import annotations

from typing import Literal

__all__ = ["LookAhead"]

_FIRST = 4
"""Batches in flight at first: the first batch must not share the link with too many others."""
_GROWTH = 2


class LookAhead:
    """Number of batches in flight ahead of the one that is due.

    By Little's law the requests in flight must cover latency times throughput, which is not known beforehand: 8 batches
    suffice where decoding is slow, 32 where tiles are small and the store is far. So the number doubles whenever the
    consumer had to wait for one of the batches since it last did, and rests where the consumer never waits, or the
    budget ends. Where decoding sets the pace that helps too: batches in flight share their tiles.

    Args:
        batches: a fixed number, or ``"auto"``.
        budget: bytes of pixels that batches in flight may hold, that of the one that is due aside.
    """

    def __init__(self, batches: int | Literal["auto"], budget: int) -> None:
        self._adapts = batches == "auto"
        self._budget = budget
        self._batches = _FIRST if batches == "auto" else batches
        self._cost = 0
        self._delivered, self._waited = 0, False

    @property
    def batches(self) -> int:
        """Batches to keep in flight beyond the one that is due: one at least."""
        if not self._adapts:
            return self._batches
        fitting = self._budget // self._cost if self._cost else _FIRST
        return max(1, min(self._batches, fitting))

    def started(self, cost: int) -> None:
        """Learn what a batch will hold, once it is in flight.

        Args:
            cost: bytes of its pixels, as far as they are known; 0 if they are not.
        """
        self._cost = max(self._cost, cost)

    def delivered(self, *, waited: bool, cost: int) -> None:
        """Learn from a batch.

        Args:
            waited: whether the consumer had to wait for it.
            cost: bytes that it holds.
        """
        self._cost = max(self._cost, cost)
        self._delivered += 1
        self._waited |= waited
        # What a larger number brings shows in the batches started since, not in those that were under way.
        if not self._adapts or self._delivered < self.batches:
            return
        if self._waited and self._batches * self._cost <= self._budget:
            self._batches *= _GROWTH
        self._delivered, self._waited = 0, False
