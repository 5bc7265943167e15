"""A real HTTP range server for tests, benchmarks and the demo: latency, bandwidth, faults, and an account of it all."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from geostream.testing.connection import Connection, Pace, Site
from geostream.testing.objects import Content, make_store
from geostream.testing.records import Counters, Fault, Faults, Served

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from geostream.testing.process import ServerProcess

__all__ = ["Endpoint", "RangeServer"]


class Endpoint:
    """Addresses of what a range server serves."""

    url: str
    """``http://127.0.0.1:port``, without a slash at the end."""
    bucket: str
    """Name under which the same keys are served path-style: ``/bucket/key`` besides ``/key``."""

    def url_for(self, key: str) -> str:
        """The http URL of an object, its key percent-encoded."""
        return f"{self.url}/{quote(key)}"

    def s3_url(self, key: str = "") -> str:
        """The s3 URL of an object, to be opened with `storage_options`."""
        return f"s3://{self.bucket}/{key}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which s3fs reads `s3_url` from here: anonymous, path-style. Any key and secret do as well."""
        return {
            "anon": True,
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"s3": {"addressing_style": "path"}},
        }


class RangeServer(Endpoint):
    """Serves a directory or a mapping over HTTP from a daemon thread of this process, between enter and exit.

    GET and HEAD with single ranges, If-Match, If-None-Match and If-Range; S3's path-style ListObjectsV2 and XML errors,
    so that s3fs reads from it, anonymously or with any key. A process forked meanwhile closes its copies of the
    server's sockets. Where client and server should not share an interpreter, use `RangeServer.spawn`.

    Args:
        source: directory whose files are served, or a mapping of keys to bytes or paths; both may change meanwhile.
        latency: seconds before each answer; the median where they vary.
        jitter: standard deviation of the latency's logarithm (lognormal), or its largest relative deviation (uniform).
        distribution: ``"lognormal"`` or ``"uniform"``.
        bandwidth: bytes a second on each connection; None for as fast as possible.
        link: bytes a second on all connections together; None for as fast as possible.
        faults: what goes wrong from the start; see `faults` for later.
        bucket: first part of path-style URLs.
        seed: of latencies and of faults with a probability.
        port: port on 127.0.0.1; 0 for any free one.
    """

    faults: Faults
    """What goes wrong: ``server.faults.add(Fault("status", status=503, times=2))``, ``server.faults.clear()``."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Content],
        *,
        latency: float = 0.0,
        jitter: float = 0.0,
        distribution: Literal["lognormal", "uniform"] = "lognormal",
        bandwidth: float | None = None,
        link: float | None = None,
        faults: tuple[Fault, ...] | list[Fault] = (),
        bucket: str = "bucket",
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.bucket = bucket
        self.faults = Faults(tuple(faults), seed=seed)
        self._site = Site(
            store=make_store(source),
            bucket=bucket,
            pace=Pace(latency, jitter, distribution, bandwidth, link),
            faults=self.faults,
            random=random.Random(seed),  # noqa: S311 - reproducible latencies, not secrets
        )
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._listener: socket.socket | None = None

    @classmethod
    def spawn(cls, source: str | os.PathLike[str] | Mapping[str, Content], **options: Any) -> ServerProcess:
        """The same server in a process of its own, with the same options, addresses, faults and counters."""
        from geostream.testing.process import ServerProcess  # noqa: PLC0415 - it imports this module

        return ServerProcess(source, **options)

    @property
    def counters(self) -> Counters:
        """What was served since the start or the last `reset`, faults included."""
        return self._site.ledger.counters

    @property
    def log(self) -> list[Served]:
        """The requests since the start or the last `reset`, in the order in which they arrived."""
        return self._site.ledger.log

    def reset(self) -> None:
        """Set the counters to zero and forget the log; faults stay."""
        self._site.ledger.reset()

    def start(self) -> Self:
        """Listen and serve; returns when requests are being accepted.

        Raises:
            RuntimeError: if it was started before; make a new one.
            OSError: if the port is taken.
        """
        if self._thread is not None:
            raise RuntimeError("this server was started before; make a new RangeServer")
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        ready = threading.Event()
        arguments = (self._listener, ready)
        self._thread = threading.Thread(target=self._run, args=arguments, name="geostream-range-server", daemon=True)
        self._thread.start()
        ready.wait()
        _running.add(self)
        return self

    def stop(self) -> None:
        """Close all connections and end the thread; does nothing if the server does not run.

        Raises:
            RuntimeError: if serving failed for a reason that is no fault asked for: a bug of the server.
        """
        loop, stopping, thread = self._loop, self._stopping, self._thread
        if loop is None or stopping is None or thread is None:
            return
        self._loop = self._stopping = None
        _running.discard(self)
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        if self._site.failure is not None:
            raise RuntimeError("the range server failed to serve a request") from self._site.failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self.url if self._loop is not None else "stopped"
        return f"<RangeServer {state} {self._site.pace}>"

    def _run(self, listener: socket.socket, ready: threading.Event) -> None:
        asyncio.run(self._serve(listener, ready))

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        stopping = self._stopping
        server = await self._loop.create_server(lambda: Connection(self._site), sock=listener, backlog=1024)
        ready.set()
        await stopping.wait()
        server.close()
        while self._site.connections:
            for connection in list(self._site.connections):
                connection.abort()
            await asyncio.sleep(0)

    def _drop_sockets(self) -> None:
        """In a forked child: let go of the sockets, which would otherwise stay open when the parent closes them."""
        sockets = [self._listener, *(c.socket for c in self._site.connections)]
        nothing = os.open(os.devnull, os.O_RDWR)
        for one in sockets:
            if one is not None and one.fileno() >= 0:
                os.dup2(nothing, one.fileno())
        os.close(nothing)


_running: weakref.WeakSet[RangeServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_running):
        server._drop_sockets()  # noqa: SLF001 - the same module


os.register_at_fork(after_in_child=_after_fork)
