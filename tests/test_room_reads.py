"""Reads that wait for room: failures and loops that are left give it back, and nothing waits for ever."""

from __future__ import annotations

import time

import pytest
import torch

import geostream as gs
from geostream.reader import AHEAD_BYTES, CACHE_BYTES, set_ahead_bytes, set_cache_bytes
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import write_cog

NARROW = {"prefetch_bytes": 4 * 2**15, "cache_bytes": 0, "prefetch_batches": 6}
"""Room for a range of 32 KiB: two tiles at a time."""


@pytest.fixture(autouse=True)
def _limits():
    yield
    set_cache_bytes(CACHE_BYTES)
    set_ahead_bytes(AHEAD_BYTES)


@pytest.fixture
def scene(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(512, 512), count=1, blocksize=128, overviews=False, compress="NONE")
    with RangeServer(tmp_path) as server:
        yield server, gs.RasterDataset(server.url_for(path.name)), gs.RasterDataset(path)


def chips(dataset):
    generator = torch.Generator().manual_seed(3)
    return gs.samplers.RandomBatchGeoSampler(dataset, 100, 3, length=3 * 12, generator=generator)


def expected(local):
    sampler = chips(local)
    return [[local[query]["image"] for query in batch] for batch in sampler]


def same(batch, images):
    return all(torch.equal(a, b) for a, b in zip(batch["image"], images, strict=True))


def test_all_pixels_come_through_a_narrow_room(scene):
    _, dataset, local = scene
    batches = list(gs.DataLoader(dataset, batch_sampler=chips(dataset), **NARROW))
    assert [same(batch, images) for batch, images in zip(batches, expected(local), strict=True)] == [True] * 12


def test_failures_are_raised_at_their_batches_and_give_their_room_back(scene):
    server, dataset, local = scene
    wanted = expected(local)
    server.faults.add(Fault("status", status=403, skip=4, times=3))
    iterator = iter(gs.DataLoader(dataset, batch_sampler=chips(dataset), **NARROW))
    outcomes = []
    for images in wanted:
        try:
            outcomes.append(same(next(iterator), images))
        except gs.ReadError as error:
            outcomes.append(error.status)
    assert set(outcomes) == {True, 403}
    assert next(iterator, None) is None


def test_a_loop_that_is_left_gives_its_room_to_the_next(scene):
    server, dataset, local = scene
    for _ in range(3):
        for _ in gs.DataLoader(dataset, batch_sampler=chips(dataset), **NARROW):
            break
    server.faults.add(Fault("stall", seconds=0.05, times=20))
    batches = list(gs.DataLoader(dataset, batch_sampler=chips(dataset), **NARROW))
    assert [same(batch, images) for batch, images in zip(batches, expected(local), strict=True)] == [True] * 12


def test_a_range_larger_than_the_room_is_read(scene):
    _, dataset, local = scene
    set_ahead_bytes(100)
    x, y, _ = dataset.bounds
    assert torch.equal(dataset[x, y]["image"], local[x, y]["image"])


def test_decoding_begins_before_the_last_byte_is_there(tmp_path):
    """A read of many tiles side by side comes in several ranges: early ones are decoded while others are under way."""
    path = write_cog(tmp_path / "a.tif", shape=(3072, 3072), count=1, blocksize=256, overviews=False, compress="NONE")
    assert path.stat().st_size > 4 * 2**21
    with RangeServer(tmp_path, faults=[Fault("stall_body", skip=4, times=1, seconds=0.5)]) as server:
        dataset = gs.RasterDataset(server.url_for(path.name))
        query = dataset.bounds
        with gs.stats.measure() as measured:
            reading = dataset.prefetch([query])
            decoded = set()
            while not reading.done():
                decoded.add(gs.stats().tiles)
                time.sleep(0.01)
    assert measured.tiles == 144
    assert len(decoded) > 1
    assert measured.requests == server.counters.requests - 1 >= 5
