"""Runs read plans: fetches on the background loop, decodes in threads, hands back patches."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from geostream import transport
from geostream.accounting import stats
from geostream.assemble import Patch, assemble, read_tiles
from geostream.decode import decode_tile
from geostream.errors import DecodeError, GeostreamError, ReadError, redact
from geostream.opening import gdal_file, open_source
from geostream.plan import Fetch, Job, MergeCosts, ReadPlan, Request, Source, TileKey, plan_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from geostream.fallback import GdalFile
    from geostream.header import RasterHeader, TileCodec

    Tile = NDArray[np.generic]

__all__ = ["Outcome", "Patch", "Request", "Source", "read_headers", "read_many", "submit_many"]

T = TypeVar("T")

Outcome = Patch | Exception
"""What a request gives: pixels, or the error that stands in their place."""

COSTS = MergeCosts(max_gap=2**13, max_size=2**21)
"""A request costs as much as fetching some kilobytes more; 2 MiB are some 20 ms of one connection's bandwidth."""

_GDAL_THREADS = 16
_REMEMBERED = 4096
_SMALL_DECODE = 2**18


class _Pools:
    """Threads that decode (one per core) and those that wait for GDAL (which waits for the network)."""

    def __init__(self) -> None:
        self.decode = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="geostream-decode")
        self.gdal = ThreadPoolExecutor(_GDAL_THREADS, thread_name_prefix="geostream-gdal")


class _Memory:
    """What a loop's reads have learnt: headers, and files that GDAL reads."""

    def __init__(self) -> None:
        self.headers: OrderedDict[Source, asyncio.Task[RasterHeader]] = OrderedDict()
        self.gdal: OrderedDict[Source, asyncio.Task[GdalFile]] = OrderedDict()


class _Process:
    """State of this process, made on first use. A forked child starts anew, and never finalises its parent's."""

    def __init__(self) -> None:
        self.forget()
        self._inherited: list[object] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def forget(self) -> None:
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

    @property
    def memory(self) -> _Memory:
        return self._memory.setdefault(asyncio.get_running_loop(), _Memory())


_process = _Process()


def read_many(requests: Sequence[Request]) -> list[Outcome]:
    """Read a batch as one plan: each tile is fetched and decoded once, everything is in flight together.

    Returns:
        One patch, or the error that stands in its place, for each request, in their order.
    """
    return transport.run(_read(list(requests))) if requests else []


def submit_many(requests: Sequence[Request]) -> Future[list[Outcome]]:
    """Start reading a batch in the background; the future gives what `read_many` returns."""
    return transport.submit(_read(list(requests)))


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
    return await _once(_process.memory.headers, source, lambda: open_source(source))


async def _once(
    memory: OrderedDict[Source, asyncio.Task[T]], source: Source, make: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Do something once per source, however many ask for it at the same time; failures are not remembered."""
    task = memory.get(source)
    if task is None:
        task = memory[source] = asyncio.ensure_future(make())
        while len(memory) > _REMEMBERED:
            memory.popitem(last=False)
    try:
        return await asyncio.shield(task)
    except GeostreamError:
        if memory.get(source) is task:
            del memory[source]
        raise


async def _read(requests: list[Request]) -> list[Outcome]:
    sources = list(dict.fromkeys(request.source for request in requests))
    headers = dict(zip(sources, await read_headers(sources), strict=True))
    loop = asyncio.get_running_loop()
    plan = await loop.run_in_executor(_process.pools.decode, lambda: plan_reads(requests, headers, costs=COSTS))
    stats.add(useful_bytes=plan.useful_bytes)
    return await _Run(plan, headers).outcomes()


class _Run:
    """One plan being carried out."""

    def __init__(self, plan: ReadPlan, headers: Mapping[Source, RasterHeader | GeostreamError]) -> None:
        self._plan = plan
        self._headers = headers
        self._tiles: dict[TileKey, Tile | Exception] = {}
        self._loop = asyncio.get_running_loop()

    async def outcomes(self) -> list[Outcome]:
        tasks = [asyncio.ensure_future(self._fetch(fetch)) for fetch in self._plan.fetches]
        arrived = asyncio.gather(*tasks)
        return await asyncio.gather(*(self._finish(i, arrived) for i in range(len(self._plan.jobs))))

    async def _fetch(self, fetch: Fetch) -> None:
        source = self._plan.sources[fetch.source]
        header = self._header(source)
        try:
            body = await transport.get_range(source.url, source.access, fetch.start, fetch.stop, etag=header.etag)
            if len(body.bytes) < fetch.stop - fetch.start:
                raise ReadError(
                    f"{redact(source.url)}: bytes {fetch.start}-{fetch.stop - 1} lie past the end of the file, which "
                    f"has {fetch.start + len(body.bytes)} bytes. It is cut short: upload it again.",
                    url=source.url,
                )
        except GeostreamError as error:
            self._tiles.update((key, error) for key, _, _ in fetch.tiles)
            return
        view = memoryview(body.bytes)
        await asyncio.gather(
            *(
                self._decode(source, header, [(k, view[a - fetch.start : b - fetch.start]) for k, a, b in part])
                for part in _portions(fetch, header)
            )
        )

    async def _decode(self, source: Source, header: RasterHeader, parts: list[tuple[TileKey, memoryview]]) -> None:
        codecs = _codecs(header)
        work = [(key, data, codecs[key[1]]) for key, data in parts]
        self._tiles.update(await self._loop.run_in_executor(_process.pools.decode, _decode_all, source, work))

    def _header(self, source: Source) -> RasterHeader:
        header = self._headers[source]
        if isinstance(header, Exception):
            raise header
        return header

    async def _finish(self, number: int, arrived: asyncio.Future[list[None]]) -> Outcome:
        job = self._plan.jobs[number]
        if isinstance(job, Exception):
            return job
        try:
            if not job.header.levels and job.window is not None:
                return await self._read_through_gdal(job)
            await asyncio.shield(arrived)
            tiles: dict[tuple[int, int], Tile] = {}
            for key in self._plan.needs[number]:
                tile = self._tiles[key]
                if isinstance(tile, Exception):
                    return tile
                tiles[key[1:]] = tile
            return await self._loop.run_in_executor(
                _process.pools.decode, lambda: assemble(job, read_tiles(job, tiles) if job.header.levels else None)
            )
        except GeostreamError as error:
            return error

    async def _read_through_gdal(self, job: Job) -> Patch:
        source = job.request.source
        file = await _once(_process.memory.gdal, source, lambda: gdal_file(source, job.header))
        return await self._loop.run_in_executor(_process.pools.gdal, lambda: assemble(job, file.read(job)))


def _codecs(header: RasterHeader) -> dict[int, TileCodec]:
    tables = [table for level in header.levels for table in (level.image, level.mask) if table is not None]
    return {table.ifd: table.codec for table in tables}


def _portions(fetch: Fetch, header: RasterHeader) -> list[list[tuple[TileKey, int, int]]]:
    """Tiles of a range in portions worth a thread's attention: large tiles each by itself, small ones together."""
    codecs = _codecs(header)
    portions: list[list[tuple[TileKey, int, int]]] = []
    size = _SMALL_DECODE
    for tile in fetch.tiles:
        if size >= _SMALL_DECODE:
            portions.append([])
            size = 0
        portions[-1].append(tile)
        size += codecs[tile[0][1]].nbytes
    return portions


def _decode_all(source: Source, work: list[tuple[TileKey, memoryview, TileCodec]]) -> dict[TileKey, Tile | Exception]:
    began = time.perf_counter()
    tiles: dict[TileKey, Tile | Exception] = {}
    for key, data, codec in work:
        try:
            tiles[key] = decode_tile(data, codec)
        except DecodeError as error:
            tiles[key] = DecodeError(
                f"{redact(source.url)}: tile {key[2]} of image {key[1]} is damaged: {error}. Write the file again.",
                url=source.url,
            )
    stats.add(tiles=len(work), decode_seconds=time.perf_counter() - began)
    return tiles
