"""Tiles that batches share: kept up to a limit, lent for as long as a batch lasts, told apart by file version."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from geostream.buffers import BufferPool
from geostream.plan import Source
from geostream.tilestore import Lease, TileStore
from geostream.transport import Access


class Waiting:
    """Stands for a run that waits for tiles."""

    def __init__(self, lease):
        self.lease = lease


class Version:
    """Stands for a header."""

    def __init__(self, etag):
        self.etag = etag


def put(store, key, nbytes=100, lease=None):
    """Have a tile decoded that a run with ``lease`` waits for; a weak reference to it."""
    from geostream.tilestore import PendingTile

    tile = np.zeros(nbytes, np.uint8)
    pending = store.pending[key] = PendingTile(key, None)
    pending.wanted.append((Waiting(lease), 0))
    while store.settle(pending, tile):
        pass
    assert key not in store.pending
    return weakref.ref(tile)


def has(store, *keys):
    with store.lock:
        return [store.get(key) is not None for key in keys]


def test_the_least_recently_used_go_first():
    store = TileStore(250, 0)
    for number in range(2):
        put(store, (0, 0, number))
    assert has(store, (0, 0, 0)) == [True]
    put(store, (0, 0, 2))
    put(store, (0, 0, 3), nbytes=251)  # does not fit, and drives nothing out
    assert has(store, *((0, 0, number) for number in range(4))) == [True, False, True, False]


def test_a_lease_holds_tiles_until_it_ends():
    store, lease = TileStore(0, 250), Lease()
    tiles = [put(store, (0, 0, number), lease=lease) for number in range(3)]
    assert has(store, (0, 0, 0), (0, 0, 1), (0, 0, 2)) == [True, True, False]
    assert put(store, (0, 0, 3))() is None  # nobody holds it
    del lease
    gc.collect()
    assert [tile() for tile in tiles] == [None] * 3
    assert has(store, (0, 0, 0)) == [False]
    lease = Lease()  # there is room again
    put(store, (0, 0, 4), nbytes=250, lease=lease)
    assert has(store, (0, 0, 4)) == [True]


def test_a_tile_is_held_once_by_a_lease_however_often_it_is_found():
    store, lease = TileStore(100, 250), Lease()
    put(store, (0, 0, 0), lease=lease)
    with store.lock:
        for _ in range(5):
            store.lend(lease, (0, 0, 0), store.get((0, 0, 0)))
    put(store, (0, 0, 1), lease=lease)
    assert has(store, (0, 0, 0), (0, 0, 1)) == [True, True]


def test_the_end_of_a_lease_and_of_memory_runs_no_python():
    """Ctrl-C that arrives in a ``__del__`` or in a weak reference's callback is ignored by Python."""
    store, lease, pool = TileStore(0, 250), Lease(), BufferPool(1000)
    memory = pool.take(100)
    tile = put(store, (0, 0, 0), lease=lease)
    address, calls = memory.ctypes.data, []
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    del lease, memory
    sys.setprofile(None)
    assert calls == []
    assert tile() is None
    assert pool.take(100).ctypes.data == address
    lease = Lease()
    put(store, (0, 0, 1), nbytes=250, lease=lease)
    assert has(store, (0, 0, 0), (0, 0, 1)) == [False, True]
    assert list(store._lent) == [(0, 0, 1)]
    assert list(store._leases.values()) == [250]


def test_a_tile_lent_again_under_its_key_is_found():
    store, first, second = TileStore(0, 1000), Lease(), Lease()
    put(store, (0, 0, 0), lease=first)
    del first
    put(store, (0, 0, 0), lease=second)
    put(store, (0, 0, 1), lease=second)
    assert has(store, (0, 0, 0), (0, 0, 1)) == [True, True]


@pytest.mark.parametrize("etag", ["a", None])
def test_versions_have_numbers_of_their_own(etag):
    store, source = TileStore(0, 0), Source("s3://bucket/a.tif", Access())
    first, second = Version(etag), Version("b" if etag else None)
    numbers = [store.number(source, version) for version in (first, second, first, second)]
    assert numbers[:2] == numbers[2:]
    assert numbers[0] != numbers[1]
    same_words = store.number(source, Version(etag))
    assert (same_words == numbers[0]) == (etag is not None)


def test_versions_are_not_remembered_for_ever():
    store = TileStore(0, 0)
    for number in range(40_000):
        store.number(Source(f"s3://bucket/{number}.tif", Access()), Version("x"))
    assert len(store._by_etag) <= 2**14
