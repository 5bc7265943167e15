"""One client's connection to the range server: requests in, answers out, at the pace and with the faults asked for."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from geostream.testing.answers import Answer, Request, answer, error, parse_request
from geostream.testing.records import Fault, Faults, Ledger, Served

if TYPE_CHECKING:
    import random

    from geostream.testing.objects import Store

__all__ = ["Connection", "Pace", "Site"]

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
    link: float | None = None
    """Bytes a second on all connections together; None for as fast as possible."""

    def delay(self, rng: random.Random) -> float:
        """Draw the seconds to wait before one answer."""
        if self.distribution == "uniform":
            return max(0.0, self.latency * (1 + self.jitter * rng.uniform(-1, 1)))
        return self.latency * rng.lognormvariate(0, self.jitter) if self.jitter else self.latency


@dataclass(slots=True)
class Site:
    """What the connections of one server share. Used on the server's thread, but for ``faults`` and ``ledger``."""

    store: Store
    """Where the objects are."""
    bucket: str
    """First part of path-style URLs."""
    pace: Pace
    """How slow to be."""
    faults: Faults
    """What to do wrong."""
    random: random.Random
    """Draws the latencies."""
    ledger: Ledger = field(default_factory=Ledger)
    """What was done."""
    connections: set[Connection] = field(default_factory=set)
    """Those open."""
    failure: BaseException | None = None
    """The last exception that no fault asked for."""
    link_busy_until: float = 0.0
    """Loop's time at which what the link has taken on will have passed."""

    def pass_link(self, size: int, now: float) -> float:
        """Queue ``size`` bytes on the link that all connections share; returns when they will have passed."""
        if self.pace.link is None:
            return now
        self.link_busy_until = max(self.link_busy_until, now) + size / self.pace.link
        return self.link_busy_until


class Connection(asyncio.Protocol):
    """One client's connection: takes requests off the buffer one after the other and answers each."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport
        self.socket: socket.socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once, first."""
        self._transport = transport  # type: ignore[assignment]
        self.socket = transport.get_extra_info("socket")
        # Or a small answer on a kept connection waits 40 ms for the client's delayed acknowledgement.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._site.connections.add(self)
        self._site.ledger.connected()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by asyncio once, last: what is still to be answered is not."""
        self._site.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Called by asyncio when the client takes up less than is sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by asyncio when the client has caught up."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with whatever arrives: parts of requests, or several."""
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
            self._site.failure = failure
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
            request = parse_request(bytes(self._buffer[:end]), self._site.bucket)
        except ValueError:
            self._transport.write(error(400, "").head(keep_alive=False))
            self._transport.close()
            return None
        if len(self._buffer) < end + 4 + request.length:
            return None
        del self._buffer[: end + 4 + request.length]
        return request

    async def _answer(self, request: Request) -> None:
        site, ledger = self._site, self._site.ledger
        fault = site.faults.draw(request.method, request.key)
        asked = request.headers.get("range"), request.headers.get("if-match")
        number = ledger.begin(
            Served(request.method, request.key, None, None, *asked, fault=None if fault is None else fault.kind)
        )
        try:
            if delay := site.pace.delay(site.random):
                await asyncio.sleep(delay)
            if fault is not None and fault.kind == "reset":
                self._reset()
                return
            if fault is not None and fault.kind == "stall":
                await asyncio.sleep(fault.seconds)
            said = answer(request, site.store, site.bucket, fault)
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
        pace, loop = self._site.pace, asyncio.get_running_loop()
        bandwidth, slowest = pace.bandwidth, min(pace.bandwidth or math.inf, pace.link or math.inf)
        began = loop.time()
        size = int(max(1024, min(_CHUNK, slowest * 0.02)))
        for offset in range(start, stop, size):
            chunk = said.read(said.start + offset, said.start + min(stop, offset + size))
            if slowest < math.inf:
                due = began + (offset - start + len(chunk)) / bandwidth if bandwidth else 0.0
                due = max(due, self._site.pass_link(len(chunk), loop.time()))
                await asyncio.sleep(max(0.0, due - loop.time()))
            if self._transport.is_closing():  # the client hung up; connection_lost() comes in the loop's next turn
                return
            # noted first: whoever has received the last byte finds it counted
            self._site.ledger.sent(number, len(chunk))
            self._transport.write(chunk)
            await self._writable.wait()

    async def _flush(self) -> None:
        # asyncio's transports tell when their buffer runs low, but not when it is empty
        while self._transport.get_write_buffer_size() and not self._transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def _close(self) -> None:
        self._transport.close()

    def _reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()
