"""Plans carried out: ranges in flight together, each tile decoded once and pasted as soon as its bytes are there.

Batches overlap: a tile that an earlier batch has decoded or is about to is not fetched again. Decoding threads take the
earliest batch's work first, so that look-ahead never delays what is due.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from geostream import transport
from geostream.accounting import stats
from geostream.canvas import Canvas, Patch
from geostream.decode import decode_tile
from geostream.errors import DecodeError, GeostreamError, ReadError, redact
from geostream.plan import tables_of
from geostream.tilestore import PendingTile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from geostream.header import RasterHeader
    from geostream.plan import Fetch, Job, ReadPlan, Source, TileKey
    from geostream.room import Room, Stay
    from geostream.tilestore import Lease, TileStore

    Tile = NDArray[np.generic]

__all__ = ["Outcome", "PriorityPool", "Run"]

Outcome = Patch | Exception
"""What a request gives: pixels, or the error that stands in their place."""

_SMALL_DECODE = 2**18
"""Decoded bytes below which a tile is not worth a thread's attention by itself."""


class PriorityPool:
    """Threads that take the most urgent work first."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        """Number of threads."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._work: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def submit(self, priority: int, work: Callable[[], None]) -> None:
        """Have ``work`` done; lower numbers first, equal ones in turn."""
        with self._lock:
            heapq.heappush(self._work, (priority, next(self._order), work))
        self._executor.submit(self._next)

    def _next(self) -> None:
        with self._lock:
            _, _, work = heapq.heappop(self._work)
        work()


class Run:
    """One plan being carried out on the running loop.

    Args:
        plan: the plan.
        headers: header of each of the plan's sources, or the error that reading it gave.
        number: of the run; earlier ones are more urgent.
        store: tiles shared by all runs of the loop.
        room: for the bytes of ranges, shared likewise.
        pool: threads that decode.
        read_with_gdal: reads a job that geostream does not decode itself.
        lease: holds the tiles for the runs behind this one, for as long as it is held itself; None where none is.
    """

    def __init__(
        self,
        plan: ReadPlan,
        headers: Sequence[RasterHeader | GeostreamError],
        number: int,
        store: TileStore,
        room: Room,
        pool: PriorityPool,
        read_with_gdal: Callable[[Job], Awaitable[Patch]],
        lease: Lease | None,
    ) -> None:
        self.lease = lease
        """What holds its tiles."""
        self._plan = plan
        self._headers = headers
        self._number = number
        self._store = store
        self._room = room
        self._pool = pool
        self._read_with_gdal = read_with_gdal
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._files = [
            -1 if isinstance(header, GeostreamError) else store.number(source, header)
            for source, header in zip(plan.sources, headers, strict=True)
        ]
        self._outcomes: list[Outcome | None] = [None] * len(plan.jobs)
        self._canvases: dict[int, Canvas] = {}
        self._missing = [len(keys) for keys in plan.needs]
        self._open = len(plan.jobs)
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._tasks: dict[asyncio.Task[None], tuple[PendingTile, ...]] = {}

    async def outcomes(self) -> list[Outcome]:
        """Carry out the plan: one outcome for each job."""
        self._start()
        if self._open:
            try:
                await self._done
            except asyncio.CancelledError:
                self._abandon()
                raise
        if self._tasks:
            self._abandon()  # what failed leaves ranges behind, whose failures must not become a later run's
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _start(self) -> None:
        fresh: dict[TileKey, PendingTile] = {}
        at_hand: list[tuple[int, TileKey, Tile]] = []
        every = True
        for number, (job, keys) in enumerate(zip(self._plan.jobs, self._plan.needs, strict=True)):
            if isinstance(job, Exception):
                self._settle(number, job)
            elif job.window is not None and not job.header.levels:
                self._run(self._gdal(number, job))
            else:
                try:
                    self._canvases[number] = Canvas(job, len(keys))
                except Exception as error:  # noqa: BLE001 - such as no memory for its pixels: its own affair only
                    self._settle(number, error)
                    every = False
                    continue
                every &= self._want(number, job, keys, fresh, at_hand)
                if not keys:
                    self._pool.submit(self._number, partial(self._finish, number))
        if at_hand:
            self._pool.submit(self._number, partial(self._take, at_hand))
        fetches = self._plan.fetches if every else self._plan.fetches_of(fresh.keys())
        stats.add(useful_bytes=sum(stop - start for fetch in fetches for _, start, stop in fetch.tiles))
        for fetch in fetches:
            pending = [fresh[key] for key, _, _ in fetch.tiles]
            self._run(self._fetch(fetch, pending), tuple(pending))

    def _want(
        self,
        number: int,
        job: Job,
        keys: Sequence[TileKey],
        fresh: dict[TileKey, PendingTile],
        at_hand: list[tuple[int, TileKey, Tile]],
    ) -> bool:
        """Put the job down for its tiles; whether all are to be fetched, none being there or on its way already."""
        store = self._store
        tables = {table.ifd: table for table, _ in tables_of(job)}
        hits = 0
        with store.lock:
            for key in keys:
                shared = (self._files[key[0]], *key[1:])
                tile = store.get(shared)
                if tile is not None:
                    hits += 1
                    at_hand.append((number, key, tile))
                    if self.lease is not None:
                        store.lend(self.lease, shared, tile)
                    continue
                pending = store.pending.get(shared)
                if pending is None:
                    pending = store.pending[shared] = fresh[key] = PendingTile(shared, tables[key[1]].codec_of(key[2]))
                elif key not in fresh:
                    hits += 1
                pending.wanted.append((self, number))
        if hits:
            stats.add(cache_hits=hits)
        return not hits

    def _run(self, work: Coroutine[None, None, None], pending: tuple[PendingTile, ...] = ()) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = pending
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._done.done():
            self._done.set_exception(error)

    async def _gdal(self, number: int, job: Job) -> None:
        try:
            self._settle(number, await self._read_with_gdal(job))
        except Exception as error:  # noqa: BLE001 - an error is the outcome of its own request only
            self._settle(number, error)

    async def _fetch(self, fetch: Fetch, pending: list[PendingTile]) -> None:
        source, header = self._plan.sources[fetch.source], self._headers[fetch.source]
        etag = None if isinstance(header, GeostreamError) else header.etag
        stay = await self._room.enter(self._number, fetch.stop - fetch.start)
        try:
            body = await transport.get_range(source.url, source.access, fetch.start, fetch.stop, etag=etag)
            _check_complete(source, fetch, len(body.bytes))
        except BaseException as error:
            stay.leave()
            if not isinstance(error, GeostreamError):
                raise
            for tile in pending:
                self._deliver(tile, error)
            return
        view = memoryview(body.bytes)
        parts = [
            (tile, view[start - fetch.start : stop - fetch.start])
            for tile, (_, start, stop) in zip(pending, fetch.tiles, strict=True)
        ]
        portions = _portions(parts)
        stay.split(len(portions))
        for portion in portions:
            self._pool.submit(self._number, partial(self._decode, source, portion, stay))

    def _decode(self, source: Source, parts: list[tuple[PendingTile, memoryview]], stay: Stay) -> None:
        """Decode tiles and paste them wherever they are wanted; runs in a decoding thread."""
        for tile, data in parts:
            began = time.perf_counter()
            pixels: Tile | Exception
            try:
                pixels = decode_tile(data, tile.codec)
            except DecodeError as error:
                pixels = _damaged(source, tile.key, error)
            except Exception as error:  # noqa: BLE001 - a mistake of ours: whoever waits for the tile must hear of it
                pixels = error
            # Counted before it is delivered: whoever has the last tile of a batch may look at the counters.
            stats.add(tiles=1, decode_seconds=time.perf_counter() - began)
            self._deliver(tile, pixels)
        stay.leave()

    def _deliver(self, tile: PendingTile, pixels: Tile | Exception) -> None:
        """Hand a tile, or its failure, to all who want it, those included who come to want it meanwhile."""
        while wanted := self._store.settle(tile, pixels):
            for run, number in wanted:
                run._receive(number, tile.key, pixels)  # noqa: SLF001 - of the same class

    def _take(self, tiles: list[tuple[int, TileKey, Tile]]) -> None:
        """Paste tiles that were at hand; runs in a decoding thread."""
        for number, key, tile in tiles:
            self._receive(number, key, tile)

    def _receive(self, number: int, key: TileKey, pixels: Tile | Exception) -> None:
        if isinstance(pixels, Exception):
            self._settle(number, pixels)
            return
        try:
            self._canvases[number].paste(key[1], key[2], pixels)
        except Exception as error:  # noqa: BLE001 - a mistake of ours is the outcome of this request only
            self._settle(number, error)
            return
        with self._lock:
            self._missing[number] -= 1
            complete = not self._missing[number] and self._outcomes[number] is None
        if complete:
            self._finish(number)

    def _finish(self, number: int) -> None:
        outcome: Outcome
        try:
            outcome = self._canvases[number].finish()
        except Exception as error:  # noqa: BLE001 - an error is the outcome of its own request only
            outcome = error
        self._settle(number, outcome)

    def _settle(self, number: int, outcome: Outcome) -> None:
        """Note what came of a job, from any thread; the loop is woken once, by the last."""
        with self._lock:
            if self._outcomes[number] is not None:
                return
            self._outcomes[number] = outcome
            self._open -= 1
            last = not self._open
        if last:
            self._loop.call_soon_threadsafe(self._complete)

    def _complete(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _abandon(self) -> None:
        """Nobody waits for this run any more: stop what no other run waits for either."""
        with self._store.lock:
            for tile in self._store.pending.values():
                tile.wanted = [(run, number) for run, number in tile.wanted if run is not self]
            idle = [task for task, pending in self._tasks.items() if not any(tile.wanted for tile in pending)]
            for task in idle:
                for tile in self._tasks[task]:
                    self._store.pending.pop(tile.key, None)
        for task in idle:
            task.cancel()


def _check_complete(source: Source, fetch: Fetch, size: int) -> None:
    if size < fetch.stop - fetch.start:
        raise ReadError(
            f"{redact(source.url)}: bytes {fetch.start}-{fetch.stop - 1} lie past the end of the file, which has "
            f"{fetch.start + size} bytes. It is cut short: upload it again.",
            url=source.url,
        )


def _damaged(source: Source, key: TileKey, error: DecodeError) -> DecodeError:
    return DecodeError(
        f"{redact(source.url)}: tile {key[2]} of image {key[1]} is damaged: {error}. Write the file again.",
        url=source.url,
    )


def _portions(parts: list[tuple[PendingTile, memoryview]]) -> list[list[tuple[PendingTile, memoryview]]]:
    """Tiles of a range in portions worth a thread's attention: large tiles each by itself, small ones together."""
    portions: list[list[tuple[PendingTile, memoryview]]] = []
    size = _SMALL_DECODE
    for part in parts:
        if size >= _SMALL_DECODE:
            portions.append([])
            size = 0
        portions[-1].append(part)
        size += part[0].codec.nbytes
    return portions
