"""A real HTTP range server for tests, benchmarks and the demo: latency, bandwidth, faults, and an account of it all."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from geostream.testing.answers import Answer, Request, answer, error, parse_request
from geostream.testing.objects import Content, make_store
from geostream.testing.records import Counters, Fault, Faults, Ledger, Served

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from geostream.testing.process import ServerProcess

__all__ = ["Pace", "RangeServer"]

_CHUNK = 256 * 1024
_LONGEST_HEAD = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, no time to linger: close() sends RST


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow the server pretends to be."""

    latency: float = 0.0
    """Seconds before an answer; the median where they vary."""
    jitter: float = 0.0
    """Spread: the standard deviation of the latency's logarithm, or the largest deviation as a part of it."""
    distribution: Literal["lognormal", "uniform"] = "lognormal"
    """How the latencies are spread."""
    bandwidth: float | None = None
    """Bytes a second on each connection; None for as fast as possible."""

    def delay(self, rng: random.Random) -> float:
        """Draw the seconds to wait before one answer."""
        if self.distribution == "uniform":
            return max(0.0, self.latency * (1 + self.jitter * rng.uniform(-1, 1)))
        return self.latency * rng.lognormvariate(0, self.jitter) if self.jitter else self.latency


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
        faults: tuple[Fault, ...] | list[Fault] = (),
        bucket: str = "bucket",
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.bucket = bucket
        self.faults = Faults(tuple(faults), seed=seed)
        self._store = make_store(source)
        self._pace = Pace(latency, jitter, distribution, bandwidth)
        self._random = random.Random(seed)  # noqa: S311 - reproducible latencies, not secrets
        self._ledger = Ledger()
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._failure: BaseException | None = None

    @classmethod
    def spawn(cls, source: str | os.PathLike[str] | Mapping[str, Content], **options: Any) -> ServerProcess:
        """The same server in a process of its own, with the same options, addresses, faults and counters."""
        from geostream.testing.process import ServerProcess  # noqa: PLC0415 - it imports this module

        return ServerProcess(source, **options)

    @property
    def counters(self) -> Counters:
        """What was served since the start or the last `reset`, faults included."""
        return self._ledger.counters

    @property
    def log(self) -> list[Served]:
        """The requests since the start or the last `reset`, in the order in which they arrived."""
        return self._ledger.log

    def reset(self) -> None:
        """Set the counters to zero and forget the log; faults stay."""
        self._ledger.reset()

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
        self._thread = threading.Thread(target=self._run, args=(ready,), name="geostream-range-server", daemon=True)
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
        if self._failure is not None:
            raise RuntimeError("the range server failed to serve a request") from self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self.url if self._loop is not None else "stopped"
        return f"<RangeServer {state} {self._pace}>"

    def _run(self, ready: threading.Event) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        stopping = self._stopping
        server = await self._loop.create_server(lambda: _Connection(self), sock=self._listener, backlog=1024)
        ready.set()
        await stopping.wait()
        server.close()
        while self._connections:
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)

    def _drop_sockets(self) -> None:
        """In a forked child: let go of the sockets, which would otherwise stay open when the parent closes them."""
        sockets = [self._listener, *(c.socket for c in self._connections)]
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


class _Connection(asyncio.Protocol):
    """One client's connection: takes requests off the buffer one after the other and answers each."""

    def __init__(self, server: RangeServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport
        self.socket: socket.socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.socket = transport.get_extra_info("socket")
        self._server._connections.add(self)
        self._server._ledger.connected()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._transport.abort()

    async def _answer_all(self) -> None:
        try:
            while not self._transport.is_closing() and (request := self._next_request()) is not None:
                await self._answer(request)
        except Exception as failure:  # noqa: BLE001 - told to whoever stops the server
            self._server._failure = failure
            self.abort()
        finally:
            self._task = None

    def _next_request(self) -> Request | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LONGEST_HEAD:
                self.abort()
            return None
        try:
            request = parse_request(bytes(self._buffer[:end]), self._server.bucket)
        except ValueError:
            self._transport.write(error(400, "").head(keep_alive=False))
            self._transport.close()
            return None
        if len(self._buffer) < end + 4 + request.length:
            return None
        del self._buffer[: end + 4 + request.length]
        return request

    async def _answer(self, request: Request) -> None:
        server, ledger = self._server, self._server._ledger
        fault = server.faults.draw(request.method, request.key)
        asked = request.headers.get("range"), request.headers.get("if-match")
        number = ledger.begin(Served(request.method, request.key, None, None, *asked, fault=fault and fault.kind))
        try:
            if delay := server._pace.delay(server._random):
                await asyncio.sleep(delay)
            if fault is not None and fault.kind == "reset":
                self._reset()
                return
            if fault is not None and fault.kind == "stall":
                await asyncio.sleep(fault.seconds)
            said = answer(request, server._store, server.bucket, fault)
            ledger.answer(number, said.status, *(said.asked or (None, None)))
            self._transport.write(said.head(keep_alive=request.keep_alive))
            if request.method != "HEAD":
                await self._deliver(said, fault, number)
            if not request.keep_alive:
                self._close()
        finally:
            ledger.end(number)

    async def _deliver(self, said: Answer, fault: Fault | None, number: int) -> None:
        if fault is None or fault.kind not in {"truncate", "reset_body", "stall_body"}:
            await self._send(said, 0, said.length, number)
            return
        part = min(said.length, said.length // 2 if fault.size is None else fault.size)
        await self._send(said, 0, part, number)
        if fault.kind == "truncate":
            self._close()
        elif fault.kind == "reset_body":
            await self._flush()
            self._reset()
        else:
            await asyncio.sleep(fault.seconds)
            await self._send(said, part, said.length, number)

    async def _send(self, said: Answer, start: int, stop: int, number: int) -> None:
        """Send the body's bytes from ``start`` to ``stop``, at the pace of the connection."""
        bandwidth, loop = self._server._pace.bandwidth, asyncio.get_running_loop()
        began = loop.time()
        size = _CHUNK if bandwidth is None else max(1024, min(_CHUNK, int(bandwidth * 0.02)))
        for offset in range(start, stop, size):
            chunk = said.read(said.start + offset, said.start + min(stop, offset + size))
            if bandwidth is not None:
                await asyncio.sleep(max(0.0, began + (offset - start + len(chunk)) / bandwidth - loop.time()))
            # noted first: whoever has received the last byte finds it counted
            self._server._ledger.sent(number, len(chunk))
            self._transport.write(chunk)
            await self._writable.wait()

    async def _flush(self) -> None:
        while self._transport.get_write_buffer_size() and not self._transport.is_closing():
            await asyncio.sleep(0.001)

    def _close(self) -> None:
        self._transport.close()

    def _reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()
