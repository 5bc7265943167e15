"""Reading before a fork, in the child, and in the parent again: nothing that was made before is used across it."""

import functools
import multiprocessing
import os
import pickle
import signal

import numpy as np
import pytest
import rasterio
import rasterio.shutil

import geostream as gs
from geostream.grid import Window
from geostream.testing import RangeServer
from geostream.testing.rasters import reference_read, scene, write_cog

WINDOW = (30, 40, 100, 90)
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # threads and fork: what is tested here
]


@pytest.fixture(params=["tiles.tif", "lzma.tif", "a.nc"])
def raster(request, tmp_path):
    """URL of a raster on a server in a process of its own, and its pixels in `WINDOW`."""
    path = tmp_path / request.param
    if request.param == "a.nc":
        with rasterio.Env() as env:
            if "netCDF" not in env.drivers():
                pytest.skip("this GDAL has no netCDF")
        write_cog(tmp_path / "source.tif", scene(300, 300, 1), overviews=False)
        rasterio.shutil.copy(tmp_path / "source.tif", path, driver="netCDF")
    else:
        write_cog(path, scene(300, 300, 3), compress="DEFLATE" if request.param == "tiles.tif" else "LZMA",
                  blocksize=64, driver="GTiff")  # fmt: skip
    with RangeServer.spawn(tmp_path) as server:
        yield server.url_for(request.param), reference_read(path, Window(*WINDOW))[0]


def forked(work):
    """Run ``work`` in a forked child and return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            signal.alarm(60)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    return pickle.loads(answer)


def test_reading_goes_on_after_a_fork_on_both_sides(raster):
    url, expected = raster
    np.testing.assert_array_equal(gs.read(url, window=WINDOW).data, expected)
    for _ in range(2):
        np.testing.assert_array_equal(forked(lambda: gs.read(url, window=WINDOW).data), expected)
        np.testing.assert_array_equal(gs.read(url, window=WINDOW).data, expected)


def test_a_child_of_a_child_reads_too(raster):
    url, expected = raster
    gs.read(url, window=WINDOW)

    def child():
        gs.read(url, window=WINDOW)
        return forked(lambda: gs.read(url, window=WINDOW).data)

    np.testing.assert_array_equal(forked(child), expected)


def test_a_child_counts_its_own_requests(raster):
    url, _ = raster
    gs.read(url, window=WINDOW)
    before = gs.stats().requests

    def child():
        began = gs.stats()
        gs.read(url, window=WINDOW)
        return began.requests, gs.stats().requests

    began, made = forked(child)
    assert began == 0
    assert made > 0
    assert gs.stats().requests == before


def test_a_pool_of_forked_workers_reads(raster):
    url, expected = raster
    gs.read(url, window=WINDOW)
    reading = functools.partial(gs.read, window=WINDOW, bands=[1])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        patches = pool.map_async(reading, [url] * 4).get(timeout=120)
    for patch in patches:
        np.testing.assert_array_equal(patch.data, expected[:1])
    np.testing.assert_array_equal(gs.read(url, window=WINDOW).data, expected)


def test_a_spawned_worker_reads(raster):
    url, expected = raster
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        patch = pool.apply_async(gs.read, (url,), {"window": WINDOW}).get(timeout=120)
    np.testing.assert_array_equal(patch.data, expected)


def test_a_child_that_ends_leaves_the_parents_files(raster):
    url, expected = raster
    np.testing.assert_array_equal(gs.read(url, window=WINDOW).data, expected)
    worker = multiprocessing.get_context("fork").Process(target=gs.read, args=(url,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    np.testing.assert_array_equal(gs.read(url, window=WINDOW).data, expected)
