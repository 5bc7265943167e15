"""The one background event loop of a process, and short-lived ones for construction. Neither survives a fork."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from geostream.transport import obstores
from geostream.transport.clients import ClientPool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

__all__ = ["LoopThread", "current_pool", "run", "scan_session", "submit"]

T = TypeVar("T")

_THREADS = 32
_STOP_SECONDS = 10.0


class LoopThread:
    """An event loop in a thread of its own, with the clients that belong to it.

    Args:
        name: Of the thread.
        lasting: Whether the process keeps it, so that clients may be used which cannot be shut down.
    """

    def __init__(self, name: str, *, lasting: bool = False) -> None:
        self.loop = asyncio.new_event_loop()
        self.lasting = lasting
        self.pool: ClientPool | None = None
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"{name}-io")
        self.loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        _loops[self.loop] = self
        self._thread.start()

    def __repr__(self) -> str:
        return f"<LoopThread {self._thread.name} {'running' if self._thread.is_alive() else 'stopped'}>"

    def submit(self, coro: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, from any thread; the future gives its result."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. Interrupted, it cancels the coroutine.

        Raises:
            RuntimeError: Called on the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coro.close()
            raise RuntimeError("geostream: run() was called on the event loop's own thread: await it instead")
        future = self.submit(coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # does nothing to one that is done
            raise

    def stop(self) -> None:
        """Cancel what runs, close every client, and end the thread."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            with suppress(RuntimeError):  # the loop may have been closed meanwhile
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            try:
                self.loop.run_until_complete(self._wind_up())
            finally:
                _loops.pop(self.loop, None)
                asyncio.set_event_loop(None)
                self.loop.close()
                self._executor.shutdown(wait=True, cancel_futures=True)

    async def _wind_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.pool is not None:
            await self.pool.aclose()
        await self.loop.shutdown_asyncgens()
        await asyncio.sleep(0)  # transports close themselves in the loop's next turn


_loops: dict[asyncio.AbstractEventLoop, LoopThread] = {}
_background: LoopThread | None = None
_lock = threading.Lock()


def background() -> LoopThread:
    """Return this process's background loop, starting it on first use."""
    global _background  # noqa: PLW0603 - one for each process is the point
    with _lock:
        if _background is None:
            _background = LoopThread("geostream-loop", lasting=True)
        return _background


def submit(coro: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop, from any thread, and return the future of its result."""
    return background().submit(coro)


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and return its result. Interrupted, it cancels the coroutine.

    Raises:
        RuntimeError: Called on the loop's own thread, which would wait for itself.
    """
    return background().run(coro)


@contextmanager
def scan_session() -> Iterator[LoopThread]:
    """Yield a temporary loop in a temporary thread: ``session.run(coro)`` works on it as `run` does.

    When the block is left, its clients are closed and its threads have ended: nothing remains that a fork would
    inherit.
    """
    session = LoopThread("geostream-scan")
    try:
        yield session
    finally:
        session.stop()


def current_pool() -> ClientPool:
    """Return the clients of the running loop, which must be one of geostream's.

    Raises:
        RuntimeError: It is another loop, on which nothing would close them.
    """
    owner = _loops.get(asyncio.get_running_loop())
    if owner is None:
        raise RuntimeError("geostream: this coroutine runs on geostream's own loop only: use geostream.transport.run()")
    if owner.pool is None:
        owner.pool = ClientPool(lasting=owner.lasting)
    return owner.pool


def _stop_background() -> None:
    if _background is not None:
        _background.stop()
    obstores.let_finish()


def _forget_after_fork() -> None:
    """Start the child without a loop, and keep the parent's from ever being finalised in it.

    The child shares the parent's sockets and its epoll object: closing a transport here would stop the parent from
    hearing of it. So one reference is given away for good.
    """
    global _background, _lock, _loops
    inherited = (_background, _loops)
    if _loops:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    _background, _loops, _lock = None, {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_background)
