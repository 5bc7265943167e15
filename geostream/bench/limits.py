"""What no loader can exceed: decoding the tiles of random batches, and fetching their ranges, each by itself."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream import transport
from geostream.bench.cases import open_dataset
from geostream.bench.jobs import draw_queries
from geostream.decode import decode_tile
from geostream.plan import Job as PlannedJob
from geostream.plan import plan_reads, tables_of
from geostream.reader import CACHE_BYTES, COSTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import geostream as gs
    from geostream.bench.jobs import Job
    from geostream.header import TileCodec, TileTable
    from geostream.plan import Fetch, ReadPlan, Source

__all__ = ["Need", "decoded", "fetched", "size", "trace"]

_AHEAD = 32
"""Batches in flight."""


@dataclass(frozen=True)
class Need:
    """What one batch needs that none of the batches before has left in a cache as large as geostream's."""

    chips: int
    """Chips of the batch."""
    sources: tuple[Source, ...]
    """Files."""
    tiles: list[tuple[Source, int, int, TileCodec]]
    """File, first byte, one past the last byte, and the way to decode, of each tile."""
    ranges: tuple[Fetch, ...]
    """Ranges that hold them."""


def trace(dataset: gs.GeoDataset, job: Job) -> list[Need]:
    """What each of the round's random batches needs."""
    cache: OrderedDict[tuple[str, int, int], int] = OrderedDict()
    needs = []
    for queries in draw_queries(dataset, job):
        requests = list(dict.fromkeys(request for query in queries for request in dataset.requests(query)))
        headers = {request.source: request.source.header for request in requests}
        plan = plan_reads(requests, {s: h for s, h in headers.items() if h is not None}, costs=COSTS)
        needs.append(_need(len(queries), plan, cache))
    return needs


def _need(chips: int, plan: ReadPlan, cache: OrderedDict[tuple[str, int, int], int]) -> Need:
    tables: dict[tuple[Source, int], TileTable] = {}
    for job in plan.jobs:
        if isinstance(job, PlannedJob):
            tables |= {(job.request.source, table.ifd): table for table, _ in tables_of(job)}
    fresh, tiles = set(), []
    for key, start, stop in plan.tiles:
        source = plan.sources[key[0]]
        codec = tables[source, key[1]].codec_of(key[2])
        name = (source.url, key[1], key[2])
        if name not in cache:
            fresh.add(key)
            tiles.append((source, start, stop, codec))
        cache[name] = codec.nbytes
        cache.move_to_end(name)
    while sum(cache.values()) > CACHE_BYTES:
        cache.popitem(last=False)
    return Need(chips, plan.sources, tiles, plan.fetches_of(fresh))


def size(need: Need) -> int:
    """Chips of a batch."""
    return need.chips


def decoded(job: Job) -> Iterator[Need]:
    """Decode the batches' tiles from memory on all cores; yields each batch once its tiles are decoded."""
    needs = trace(open_dataset(job.known_case, job.urls, None), job)
    files = {source.url: memoryview(Path(source.url).read_bytes()) for need in needs for source in need.sources}
    cores = os.cpu_count() or 1
    return _decoded(needs, files, cores)


def _decoded(needs: list[Need], files: dict[str, memoryview], cores: int) -> Iterator[Need]:
    def decode(part: list[tuple[Source, int, int, TileCodec]]) -> None:
        for source, start, stop, codec in part:
            decode_tile(files[source.url][start:stop], codec)

    with ThreadPoolExecutor(cores) as pool:
        running: deque[tuple[Need, list[Any]]] = deque()
        waiting = iter(needs)
        while True:
            while len(running) < _AHEAD and (need := next(waiting, None)) is not None:
                parts = [need.tiles[i :: 2 * cores] for i in range(2 * cores)]
                running.append((need, [pool.submit(decode, part) for part in parts if part]))
            if not running:
                return
            need, parts_done = running.popleft()
            for part_done in parts_done:
                part_done.result()
            yield need


def fetched(job: Job) -> Iterator[Need]:
    """Fetch the batches' ranges, many batches in flight; yields each batch once its bytes are there."""
    needs = trace(open_dataset(job.known_case, job.urls, job.storage_options), job)
    return _fetched(needs)


def _fetched(needs: list[Need]) -> Iterator[Need]:
    running: deque[tuple[Need, Any]] = deque()
    waiting = iter(needs)
    try:
        while True:
            while len(running) < _AHEAD and (need := next(waiting, None)) is not None:
                running.append((need, transport.submit(_fetch(need))))
            if not running:
                return
            need, done = running.popleft()
            done.result()
            yield need
    finally:
        for _, rest in running:
            rest.cancel()


async def _fetch(need: Need) -> None:
    asked = ((need.sources[one.source], one) for one in need.ranges)
    await asyncio.gather(*(transport.get_range(s.url, s.access, one.start, one.stop) for s, one in asked))
