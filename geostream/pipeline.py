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
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from geostream import transport
from geostream.accounting import stats
from geostream.canvas import Canvas, Patch
from geostream.decode import decode_tile
from geostream.errors import DecodeError, GeostreamError, ReadError, redact
from geostream.plan import tables_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from geostream.header import RasterHeader, TileCodec
    from geostream.plan import Fetch, Job, ReadPlan, Source, TileKey
    from geostream.transport import Access

    Wanted = list[tuple["Run", int]]

    Tile = NDArray[np.generic]

__all__ = ["Outcome", "PriorityPool", "Run", "TileStore"]

K = TypeVar("K")

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


class _Pending:
    """A tile on its way, and who waits for it."""

    __slots__ = ("codec", "key", "wanted")

    def __init__(self, key: TileKey, codec: TileCodec) -> None:
        self.key = key
        self.codec = codec
        self.wanted: list[tuple[Run, int]] = []
        """Runs and the number of the job that needs it."""


class TileStore:
    """Decoded tiles, the least recently used given up first, and those on their way. Used on the loop's thread only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes of decoded tiles to keep at most."""
        self.pending: dict[TileKey, _Pending] = {}
        """Tiles being fetched or decoded."""
        self._tiles: OrderedDict[TileKey, Tile] = OrderedDict()
        self._bytes = 0
        self._next = itertools.count()
        self._by_etag: dict[tuple[str, Access, tuple[str, ...], str], int] = {}
        self._by_header: WeakKeyDictionary[RasterHeader, int] = WeakKeyDictionary()

    def number(self, source: Source, header: RasterHeader) -> int:
        """A number that stands for one version of a file: its ETag, or else what was read by the very same header."""
        if header.etag is None:
            return self._numbered(self._by_header, header)
        return self._numbered(self._by_etag, (source.url, source.access, source.sidecars, header.etag))

    def _numbered(self, numbers: MutableMapping[K, int], key: K) -> int:
        if key not in numbers:
            numbers[key] = next(self._next)
        return numbers[key]

    def get(self, key: TileKey) -> Tile | None:
        """A decoded tile, or None."""
        tile = self._tiles.get(key)
        if tile is not None:
            self._tiles.move_to_end(key)
        return tile

    def put(self, key: TileKey, tile: Tile) -> None:
        """Keep a decoded tile as long as there is room."""
        if tile.nbytes <= self.limit and key not in self._tiles:
            self._tiles[key] = tile
            self._bytes += tile.nbytes
        while self._bytes > self.limit:
            _, dropped = self._tiles.popitem(last=False)
            self._bytes -= dropped.nbytes


class Run:
    """One plan being carried out on the running loop.

    Args:
        plan: the plan.
        headers: header of each of the plan's sources, or the error that reading it gave.
        number: of the run; earlier ones are more urgent.
        store: tiles shared by all runs of the loop.
        pool: threads that decode.
        read_with_gdal: reads a job that geostream does not decode itself.
    """

    def __init__(
        self,
        plan: ReadPlan,
        headers: Sequence[RasterHeader | GeostreamError],
        number: int,
        store: TileStore,
        pool: PriorityPool,
        read_with_gdal: Callable[[Job], Awaitable[Patch]],
    ) -> None:
        self._plan = plan
        self._headers = headers
        self._number = number
        self._store = store
        self._pool = pool
        self._read_with_gdal = read_with_gdal
        self._loop = asyncio.get_running_loop()
        self._files = [
            -1 if isinstance(header, GeostreamError) else store.number(source, header)
            for source, header in zip(plan.sources, headers, strict=True)
        ]
        self._outcomes: list[Outcome | None] = [None] * len(plan.jobs)
        self._canvases: dict[int, Canvas] = {}
        self._missing = [len(keys) for keys in plan.needs]
        self._open = len(plan.jobs)
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._tasks: dict[asyncio.Task[None], tuple[_Pending, ...]] = {}

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
        fresh: dict[TileKey, _Pending] = {}
        known = False
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
                    known = True  # so that its tiles are left out
                    continue
                known |= self._want(number, job, keys, fresh)
                if not keys:
                    self._finish(number)
        fetches = self._plan.fetches_of(fresh.keys()) if known else self._plan.fetches
        stats.add(useful_bytes=sum(stop - start for fetch in fetches for _, start, stop in fetch.tiles))
        for fetch in fetches:
            pending = [fresh[key] for key, _, _ in fetch.tiles]
            self._run(self._fetch(fetch, pending), tuple(pending))

    def _want(self, number: int, job: Job, keys: Sequence[TileKey], fresh: dict[TileKey, _Pending]) -> bool:
        """Put the job down for its tiles; whether some were there or on their way already for earlier runs."""
        store, known = self._store, False
        codecs = {table.ifd: table.codec for table, _ in tables_of(job)}
        for key in keys:
            shared = (self._files[key[0]], *key[1:])
            tile = store.get(shared)
            pending = store.pending.get(shared)
            if tile is not None:
                known = True
                stats.add(cache_hits=1)
                self._paste_later(key, tile, [(self, number)])
                continue
            if pending is None:
                pending = store.pending[shared] = fresh[key] = _Pending(shared, codecs[key[1]])
            elif key not in fresh:
                known = True
                stats.add(cache_hits=1)
            pending.wanted.append((self, number))
        return known

    def _run(self, work: Coroutine[None, None, None], pending: tuple[_Pending, ...] = ()) -> None:
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

    async def _fetch(self, fetch: Fetch, pending: list[_Pending]) -> None:
        source, header = self._plan.sources[fetch.source], self._headers[fetch.source]
        etag = None if isinstance(header, GeostreamError) else header.etag
        try:
            body = await transport.get_range(source.url, source.access, fetch.start, fetch.stop, etag=etag)
            _check_complete(source, fetch, len(body.bytes))
        except GeostreamError as error:
            for tile in pending:
                self._arrived(tile, error, [])
            return
        view = memoryview(body.bytes)
        parts = [
            (tile, view[start - fetch.start : stop - fetch.start])
            for tile, (_, start, stop) in zip(pending, fetch.tiles, strict=True)
        ]
        for portion in _portions(parts):
            self._pool.submit(self._number, partial(self._decode, source, portion))

    def _decode(self, source: Source, parts: list[tuple[_Pending, memoryview]]) -> None:
        """Decode tiles and paste them where they are wanted by now; runs in a decoding thread."""
        began = time.perf_counter()
        results: list[tuple[_Pending, Tile | Exception, Wanted]] = []
        for tile, data in parts:
            pixels: Tile | Exception
            wanted: Wanted = []
            try:
                pixels = decode_tile(data, tile.codec)
                wanted = list(tile.wanted)
                _paste(tile.key, pixels, wanted)
            except DecodeError as error:
                pixels = _damaged(source, tile.key, error)
            except Exception as error:  # noqa: BLE001 - a mistake of ours: whoever waits for the tile must hear of it
                pixels = error
            results.append((tile, pixels, wanted))
        stats.add(tiles=len(parts), decode_seconds=time.perf_counter() - began)
        self._loop.call_soon_threadsafe(self._decoded, results)

    def _decoded(self, results: list[tuple[_Pending, Tile | Exception, Wanted]]) -> None:
        for tile, pixels, pasted in results:
            self._arrived(tile, pixels, pasted)

    def _arrived(self, tile: _Pending, pixels: Tile | Exception, pasted: Wanted) -> None:
        """A tile is decoded and pasted for some of those who want it, or has failed."""
        if self._store.pending.get(tile.key) is tile:
            del self._store.pending[tile.key]
        if isinstance(pixels, Exception):
            for run, number in tile.wanted:
                run._settle(number, pixels)  # noqa: SLF001 - of the same class
            return
        self._store.put(tile.key, pixels)
        for run, number in pasted:
            run._pasted(number)  # noqa: SLF001 - of the same class
        late = [want for want in tile.wanted if want not in pasted]
        if late:
            self._paste_later(tile.key, pixels, late)

    def _paste_later(self, key: TileKey, tile: Tile, wanted: Wanted) -> None:
        """Paste a decoded tile for those who came to want it only now."""

        def paste() -> None:
            error: Exception | None = None
            try:
                _paste(key, tile, wanted)
            except Exception as mistake:  # noqa: BLE001 - whoever waits for the tile must hear of it
                error = mistake
            self._loop.call_soon_threadsafe(done, error)

        def done(error: Exception | None) -> None:
            for run, number in wanted:
                run._pasted(number) if error is None else run._settle(number, error)  # noqa: SLF001 - of the same class

        self._pool.submit(self._number, paste)

    def _pasted(self, number: int) -> None:
        self._missing[number] -= 1
        if self._missing[number] == 0 and self._outcomes[number] is None:
            self._finish(number)

    def _finish(self, number: int) -> None:
        canvas = self._canvases[number]
        if not canvas.resamples:
            self._settle(number, canvas.finish())
            return

        def finish() -> None:
            outcome: Outcome
            try:
                outcome = canvas.finish()
            except Exception as error:  # noqa: BLE001 - an error is the outcome of its own request only
                outcome = error
            self._loop.call_soon_threadsafe(self._settle, number, outcome)

        self._pool.submit(self._number, finish)

    def _settle(self, number: int, outcome: Outcome) -> None:
        if self._outcomes[number] is not None:
            return
        self._outcomes[number] = outcome
        self._open -= 1
        if not self._open and not self._done.done():
            self._done.set_result(None)

    def _abandon(self) -> None:
        """Nobody waits for this run any more: stop what no other run waits for either."""
        for tile in list(self._store.pending.values()):
            tile.wanted[:] = [(run, number) for run, number in tile.wanted if run is not self]
        for task, pending in list(self._tasks.items()):
            if not any(tile.wanted for tile in pending):
                task.cancel()
                for tile in pending:
                    self._store.pending.pop(tile.key, None)


def _paste(key: TileKey, tile: Tile, wanted: Wanted) -> None:
    for run, number in wanted:
        run._canvases[number].paste(key[1], key[2], tile)  # noqa: SLF001 - a run's other half


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


def _portions(parts: list[tuple[_Pending, memoryview]]) -> list[list[tuple[_Pending, memoryview]]]:
    """Tiles of a range in portions worth a thread's attention: large tiles each by itself, small ones together."""
    portions: list[list[tuple[_Pending, memoryview]]] = []
    size = _SMALL_DECODE
    for part in parts:
        if size >= _SMALL_DECODE:
            portions.append([])
            size = 0
        portions[-1].append(part)
        size += part[0].codec.nbytes
    return portions
