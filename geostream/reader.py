"""Runs read plans: fetches on the background loop, decodes in threads, hands back patches."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from geostream import transport
from geostream.canvas import Canvas, Patch
from geostream.errors import ConfigError, GeostreamError
from geostream.opening import gdal_file, open_source
from geostream.pipeline import Outcome, PriorityPool, Run
from geostream.plan import Job, MergeCosts, ReadPlan, Request, Source, plan_reads
from geostream.room import Room
from geostream.tilestore import Lease, TileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import Future

    from geostream.fallback import GdalFile
    from geostream.header import RasterHeader

__all__ = [
    "Lease",
    "Outcome",
    "Patch",
    "Request",
    "Source",
    "plan_many",
    "read_headers",
    "read_many",
    "set_ahead_bytes",
    "set_cache_bytes",
    "submit_many",
]

K = TypeVar("K")
T = TypeVar("T")

COSTS = MergeCosts(latency=0.04, bandwidth=90e6, in_flight=256, max_size=2**21, max_waste=0.05)
"""A link to an object store in the same country; 2 MiB are some 20 ms of one connection's bandwidth."""

_GDAL_THREADS = 16
_BEFORE_ALL = -1
_REMEMBERED_HEADERS = 4096
_REMEMBERED_FILES = 64
CACHE_BYTES = 2**27
"""Bytes of decoded tiles kept for later batches."""
AHEAD_BYTES = 2**27
"""Bytes of ranges that are being fetched, or wait to be decoded; and as many of decoded tiles that leases hold."""


class _Pools:
    """Threads that decode (one per core) and those that wait for GDAL (which waits for the network)."""

    def __init__(self) -> None:
        self.decode = PriorityPool(os.cpu_count() or 1, "geostream-decode")
        self.gdal = ThreadPoolExecutor(_GDAL_THREADS, thread_name_prefix="geostream-gdal")


class _Memory:
    """What a loop's reads share: headers, files that GDAL reads, decoded tiles, room for ranges in flight."""

    def __init__(self, cache_bytes: int, ahead_bytes: int) -> None:
        self.tiles = TileStore(cache_bytes, ahead_bytes)
        self.room = Room(ahead_bytes)
        self.headers: OrderedDict[Source, asyncio.Task[RasterHeader]] = OrderedDict()
        self.gdal: OrderedDict[tuple[Source, object], asyncio.Task[GdalFile]] = OrderedDict()
        """By source and version: its ETag, or else the very header that was read."""


class _Process:
    """State of this process, made on first use. A forked child starts anew, and never finalises its parent's."""

    def __init__(self) -> None:
        self.forget()
        self._inherited: list[object] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def forget(self) -> None:
        self.numbers = itertools.count()
        self._pools: _Pools | None = None
        self._memory: WeakKeyDictionary[asyncio.AbstractEventLoop, _Memory] = WeakKeyDictionary()

    def _after_fork(self) -> None:
        self._inherited += [self._pools, self._memory]
        self.forget()

    @property
    def pools(self) -> _Pools:
        # Only ever reached from the one background loop's thread, so that it needs no lock.
        if self._pools is None:
            self._pools = _Pools()
        return self._pools

    def limit(self, cache_bytes: int, ahead_bytes: int) -> None:
        for memory in list(self._memory.values()):
            memory.tiles.limit = cache_bytes
            memory.tiles.lent_limit = memory.room.limit = ahead_bytes

    @property
    def memory(self) -> _Memory:
        loop = asyncio.get_running_loop()
        if loop not in self._memory:
            self._memory[loop] = _Memory(CACHE_BYTES, AHEAD_BYTES)
        return self._memory[loop]


_process = _Process()


def set_cache_bytes(limit: int) -> None:
    """Keep at most ``limit`` bytes of decoded tiles in this process for later batches; 0 keeps none.

    Raises:
        ConfigError: not a number of bytes.
    """
    if limit < 0:
        raise ConfigError(f"cache_bytes={limit!r} is no number of bytes")
    global CACHE_BYTES  # noqa: PLW0603 - one cache for each process is the point
    CACHE_BYTES = limit
    _process.limit(CACHE_BYTES, AHEAD_BYTES)


def set_ahead_bytes(limit: int) -> None:
    """Bound what is in flight in this process.

    Args:
        limit: bytes that ranges may hold which are being fetched, or wait to be decoded, a larger one alone; and as
            many for the decoded tiles that leases hold.
    """
    global AHEAD_BYTES  # noqa: PLW0603 - as above
    AHEAD_BYTES = limit
    _process.limit(CACHE_BYTES, AHEAD_BYTES)


def read_many(requests: Sequence[Request]) -> list[Outcome]:
    """Read a batch as one plan: each tile is fetched and decoded once, everything is in flight together.

    Returns:
        One patch, or the error that stands in its place, for each request, in their order.
    """
    return transport.run(_read(list(requests))) if requests else []


def submit_many(requests: Sequence[Request], lease: Lease | None = None) -> Future[list[Outcome]]:
    """Start reading a batch in the background; the future gives what `read_many` returns.

    Args:
        requests: what is wanted.
        lease: as long as it is held, what the batch decodes is at hand for those behind it, as far as `AHEAD_BYTES` go.
    """
    return transport.submit(_read(list(requests), lease))


def plan_many(requests: Sequence[Request]) -> ReadPlan:
    """The plan by which `read_many` would read a batch with no tile at hand yet; unknown headers are read for it."""
    return transport.run(_plan(list(requests)))


async def _plan(requests: list[Request]) -> ReadPlan:
    sources = list(dict.fromkeys(request.source for request in requests))
    headers = dict(zip(sources, await read_headers(sources), strict=True))
    return plan_reads(requests, headers, costs=COSTS)


async def read_headers(sources: Sequence[Source]) -> list[RasterHeader | GeostreamError]:
    """Read many headers at once, on the running loop; an error stands in the place of its header.

    Headers that sources carry are not read again.
    """
    return await asyncio.gather(*map(_header_or_error, sources))


async def _header_or_error(source: Source) -> RasterHeader | GeostreamError:
    try:
        return await _header(source)
    except GeostreamError as error:
        return error


async def _header(source: Source) -> RasterHeader:
    if source.header is not None:
        return source.header
    return await _once(_process.memory.headers, source, lambda: open_source(source), _REMEMBERED_HEADERS)


async def _once(
    memory: OrderedDict[K, asyncio.Task[T]], key: K, make: Callable[[], Coroutine[Any, Any, T]], limit: int
) -> T:
    """Do something once per key, however many ask for it at the same time; failures are not remembered."""
    task = memory.get(key)
    if task is None:
        task = memory[key] = asyncio.ensure_future(make())
        while len(memory) > limit:
            memory.popitem(last=False)
    memory.move_to_end(key)
    try:
        return await asyncio.shield(task)
    except GeostreamError:
        if memory.get(key) is task:
            del memory[key]
        raise


async def _read(requests: list[Request], lease: Lease | None = None) -> list[Outcome]:
    number = next(_process.numbers)
    sources = list(dict.fromkeys(request.source for request in requests))
    headers = dict(zip(sources, await read_headers(sources), strict=True))
    loop, pool = asyncio.get_running_loop(), _process.pools.decode
    planned: asyncio.Future[ReadPlan] = loop.create_future()

    def plan() -> None:
        # Planning raises no errors of its requests: those are outcomes.
        result = plan_reads(requests, headers, costs=COSTS)
        loop.call_soon_threadsafe(_tell, planned, result)

    pool.submit(_BEFORE_ALL, plan)  # what it fetches shall be on its way while earlier batches decode
    read = await planned
    of_sources = [headers[source] for source in read.sources]
    memory = _process.memory
    return await Run(read, of_sources, number, memory.tiles, memory.room, pool, _read_with_gdal, lease).outcomes()


def _tell(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():  # nobody may be waiting any more
        waiting.set_result(result)


async def _read_with_gdal(job: Job) -> Patch:
    source = job.request.source
    file = await _once(
        _process.memory.gdal,
        (source, job.header.etag or job.header),
        lambda: gdal_file(source, job.header),
        _REMEMBERED_FILES,
    )

    def read() -> Patch:
        canvas = Canvas(job)
        pixels = file.read(job)
        if pixels is not None:
            canvas.draw(*pixels)
        return canvas.finish()

    return await asyncio.get_running_loop().run_in_executor(_process.pools.gdal, read)
