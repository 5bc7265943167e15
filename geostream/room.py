"""Room for bytes in flight: a range is asked for once there is room for it, the earliest batch's first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading

__all__ = ["Room", "Stay"]


class Stay:
    """A range's place in a room, until all parts that it came apart into are done with."""

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self._size = size
        self._parts = 1
        self._lock = threading.Lock()

    def split(self, parts: int) -> None:
        """Say, before the first `leave`, how many of those there will be."""
        self._parts = parts

    def leave(self) -> None:
        """Be done with a part, in any thread; the last one makes room."""
        with self._lock:
            self._parts -= 1
            last = not self._parts
        if last:
            self._room.give_back(self._size)


class Room:
    """Bytes that ranges hold from before they are asked for until they are decoded; made and entered on one loop.

    A range larger than the room is alone in it.

    Args:
        limit: bytes that ranges may hold together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes that ranges may hold together."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._held = 0
        self._waiting: list[tuple[int, int, int, asyncio.Future[Stay]]] = []
        self._order = itertools.count()

    def __repr__(self) -> str:
        return f"<Room {self._held} of {self.limit} bytes held, {len(self._waiting)} waiting>"

    async def enter(self, priority: int, size: int) -> Stay:
        """Wait for room for ``size`` bytes; lower priorities first, equal ones in turn."""
        turn: asyncio.Future[Stay] = self._loop.create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), size, turn))
        self._admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # there was room at last, and nobody to use it
                turn.result().leave()
            raise

    def _admit(self) -> None:
        while self._waiting:
            _, _, size, turn = self._waiting[0]
            with self._lock:
                fits = turn.cancelled() or not self._held or self._held + size <= self.limit
                if fits and not turn.cancelled():
                    self._held += size
            if not fits:
                return
            heapq.heappop(self._waiting)
            if not turn.cancelled():
                turn.set_result(Stay(self, size))

    def give_back(self, size: int) -> None:
        """Make room again, from any thread."""
        with self._lock:
            self._held -= size
            awaited = bool(self._waiting)
        if awaited:
            self._loop.call_soon_threadsafe(self._admit)
