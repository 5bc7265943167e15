"""Memory used again once nobody holds it any more: touching fresh memory costs more than writing to it."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

__all__ = ["BufferPool"]


class _Lease:
    """Memory on loan: whoever holds an array over it holds this, and when it goes the memory returns to its pool."""

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]], pool: BufferPool) -> None:
        self._memory = memory
        self._pool = pool
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._memory)


class BufferPool:
    """Buffers of batches that nobody holds any more, for the next batches of the same size.

    Args:
        limit: bytes to keep at most while nobody uses them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start()
        # A fork may come while another thread holds the lock, which nobody would ever release in the child.
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._free: dict[int, list[np.ndarray[Any, np.dtype[np.uint8]]]] = {}
        self._bytes = 0
        self._lock = threading.RLock()  # a lease may end within `take`, by the garbage collector's hand

    def take(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Memory of that size, its content arbitrary; it returns by itself when the last array over it is gone."""
        with self._lock:
            free = self._free.get(nbytes)
            memory = free.pop() if free else None
            if memory is not None:
                self._bytes -= nbytes
        if memory is None:
            # NumPy asks for huge pages, which take a tenth of the time to touch first.
            memory = np.empty(nbytes, np.uint8)
        return np.asarray(_Lease(memory, self))

    def give_back(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Keep memory for later, if there is room."""
        with self._lock:
            if self._bytes + memory.nbytes <= self._limit:
                self._free.setdefault(memory.nbytes, []).append(memory)
                self._bytes += memory.nbytes
