"""How a loader's process may end: with batches in flight, by an error, by Ctrl-C; each in a real process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

CHILD = """
import json, sys, threading
import torch
import geostream as gs

url, options, workers, end = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dataset = gs.RasterDataset(url, **options)
sampler = gs.samplers.RandomBatchGeoSampler(dataset, 128, 8, length=8000, generator=torch.Generator().manual_seed(0))
ahead = "auto" if workers else 30
loader = gs.DataLoader(dataset, batch_sampler=sampler, prefetch_batches=ahead, cache_bytes=0, num_workers=workers)
batches = iter(loader)
next(batches)
if end == "error":
    raise RuntimeError("stop here")
if end == "interrupt":
    try:
        print("ready", flush=True)
        for _ in batches:
            pass
    except KeyboardInterrupt:
        del batches
        x, y, _ = dataset.bounds
        print(dataset[x.start : x.start + 64 * x.step, y.start : y.start + 64 * y.step]["image"].shape[-1])
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server slow enough, and a file of enough tiles, that much is in flight whenever something ends."""
    folder = tmp_path_factory.mktemp("ends")
    write_cog(folder / "a.tif", shape=(4096, 4096), count=1, blocksize=64, overviews=False)
    with RangeServer(folder, latency=0.05) as server:
        yield server


def http(served):
    """URL and options of a dataset."""
    return served.url_for("a.tif"), {}


def by_obstore(served):
    """The same through obstore, whose threads nobody can end."""
    return served.s3_url("a.tif"), {"storage_options": served.storage_options, "transport": "obstore"}


def started(place, workers, end):
    """A process of its own group that trains until it ends in one of the ways above."""
    url, options = place
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, url, json.dumps(options), str(workers), end],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(child):
    """What it printed and its exit code."""
    try:
        out, err = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    return out, err, child.returncode


@pytest.mark.parametrize(("place", "workers"), [(http, 0), (by_obstore, 0), (by_obstore, 1)])
def test_the_interpreter_ends_with_batches_in_flight(served, place, workers):
    assert ended(started(place(served), workers, "exit")) == ("", "", 0)


def test_an_error_of_the_users_is_all_that_is_said(served):
    out, err, code = ended(started(http(served), 0, "error"))
    assert (out, code) == ("", 1)
    assert err.splitlines()[-1] == "RuntimeError: stop here"
    assert err.count("Traceback") == 1


@pytest.mark.parametrize(("place", "workers"), [(http, 0), (by_obstore, 0), (http, 1)])
def test_control_c_ends_a_loop_and_the_dataset_still_reads(served, place, workers):
    child = started(place(served), workers, "interrupt")
    assert child.stdout.readline() == "ready\n", ended(child)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does, to the workers too
    out, err, code = ended(child)
    assert (out, code) == ("64\n", 0), err
    assert workers or not err


@pytest.mark.parametrize("end", ["break", "error", "exhausted"])
@pytest.mark.parametrize("workers", [0, 1])
def test_no_thread_and_no_process_stays_of_a_loop(served, workers, end):
    dataset = gs.RasterDataset(served.url_for("a.tif"))
    sampler = gs.samplers.RandomGeoSampler(dataset, 128, length=24)
    next(iter(gs.DataLoader(dataset, sampler=sampler)))  # the loop and the decoding threads, which all datasets share
    before = set(threading.enumerate())

    def consume():
        for _ in gs.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers):
            if end == "break":
                break
            if end == "error":
                raise RuntimeError

    for _ in range(2):
        with nullcontext() if end != "error" else pytest.raises(RuntimeError):
            consume()
    for thread in set(threading.enumerate()) - before:  # torch does not wait for that of its queues
        assert "QueueFeeder" in thread.name
        thread.join(10)
    assert set(threading.enumerate()) <= before
    assert multiprocessing.active_children() == []
