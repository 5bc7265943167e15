"""Memory used again once nobody holds it any more: touching fresh memory costs more than writing to it."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

__all__ = ["BufferPool"]


class _Lease:
    """Memory on loan: whoever holds an array over it holds this."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class _Loan(weakref.ref[_Lease]):
    """Notes the end of a lease.

    Its callback is a deque's ``append``. In a function of Python, which a ``__del__`` would be, Ctrl-C may arrive, and
    Python ignores what is raised there: the program would go on as if nothing had been pressed.
    """

    __slots__ = ("memory",)
    memory: np.ndarray[Any, np.dtype[np.uint8]]


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
        self._lent: set[_Loan] = set()
        self._ended: deque[_Loan] = deque()
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Memory of that size, its content arbitrary; it returns by itself when the last array over it is gone."""
        self.settle()
        with self._lock:
            free = self._free.get(nbytes)
            memory = free.pop() if free else None
            if memory is not None:
                self._bytes -= nbytes
        if memory is None:
            # NumPy asks for huge pages, which take a tenth of the time to touch first.
            memory = np.empty(nbytes, np.uint8)
        lease = _Lease(memory)
        loan = _Loan(lease, self._ended.append)
        loan.memory = memory
        self._lent.add(loan)
        return np.asarray(lease)

    def settle(self) -> None:
        """Of the memory that has returned, keep what there is room for, and free the rest; `take` does so, too."""
        with self._lock:
            while self._ended:
                loan = self._ended.popleft()
                self._lent.discard(loan)
                memory = loan.memory
                if self._bytes + memory.nbytes <= self._limit:
                    self._free.setdefault(memory.nbytes, []).append(memory)
                    self._bytes += memory.nbytes
