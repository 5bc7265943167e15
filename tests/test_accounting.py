"""Counters: snapshots, stretches, threads, forks."""

import os
import threading

import pytest

import geostream as gs
from geostream.accounting import Stats, StatsRegistry


def test_a_stretch_counts_what_happened_in_it():
    registry = StatsRegistry()
    registry.add(requests=2, bytes=100)
    with registry.measure() as used:
        registry.add(requests=1, tiles=3, network_seconds=0.5)
    assert used == Stats(requests=1, tiles=3, network_seconds=0.5)
    assert used.tiles_decoded == 3
    assert registry() == Stats(requests=3, bytes=100, tiles=3, network_seconds=0.5)
    assert registry() - used == Stats(requests=2, bytes=100)
    assert used.as_dict()["tiles"] == 3


def test_threads_lose_no_count():
    registry = StatsRegistry()
    threads = [threading.Thread(target=lambda: [registry.add(requests=1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry().requests == 8000


def test_an_unknown_counter_is_a_mistake():
    with pytest.raises(AttributeError):
        StatsRegistry().add(request=1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is POSIX")
def test_a_forked_child_starts_from_zero():
    gs.stats.add(requests=1)
    child = os.fork()
    if child == 0:
        os._exit(int(gs.stats() != Stats()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
