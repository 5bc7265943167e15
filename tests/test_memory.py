"""A window of a huge file costs a window's memory."""

import struct
import subprocess
import sys
import zlib

import pytest

CHILD = """
import resource, sys
import geostream as gs
gs.read(sys.argv[1], window=(0, 0, 16, 16))  # imports, threads, codecs
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
patch = gs.read(sys.argv[2], window=(30_000, 40_000, 256, 256))
assert patch.data.shape == (3, 256, 256) and patch.valid.all() and (patch.data == 7).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""
COUNT = """
import sys
import geostream as gs
from geostream.header import TileTable
from geostream.opening import open_source
from geostream.plan import Source
from geostream.transport import Access, run
import gc
import numpy as np
header = run(open_source(Source(sys.argv[1], Access())))
for level in header.levels:
    assert level.image.offsets.dtype == level.image.counts.dtype == np.uint64
gc.collect()
print(max(len(o) for o in gc.get_objects() if isinstance(o, (list, tuple))))
"""


def huge(path, side, tile=512):
    """A BigTIFF whose tiles are all the same one: its table is as long as that of a file of many gigabytes."""
    tiles = (-(-side // tile)) ** 2
    data = zlib.compress(bytes([7]) * (tile * tile * 3))
    values = [
        (256, 4, 1, side), (257, 4, 1, side), (258, 3, 3, 8 | 8 << 16 | 8 << 32), (259, 3, 1, 8), (262, 3, 1, 2),
        (277, 3, 1, 3), (284, 3, 1, 1), (322, 4, 1, tile), (323, 4, 1, tile), (324, 16, tiles, None),
        (325, 4, tiles, None),
    ]  # fmt: skip
    start = 16 + 8 + 20 * len(values) + 8
    counts_at = start + 8 * tiles
    data_at = counts_at + 4 * tiles
    places = {324: start, 325: counts_at}
    with path.open("wb") as file:
        file.write(struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, len(values)))
        for tag, kind, count, value in values:
            file.write(struct.pack("<HHQQ", tag, kind, count, places.get(tag, value)))
        file.write(bytes(8))
        file.write(struct.pack("<Q", data_at) * tiles)
        file.write(struct.pack("<L", len(data)) * tiles)
        file.write(data)
    return path


def child(code, *paths):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture(scope="module")
def rasters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("huge")
    return huge(folder / "small.tif", 1000), huge(folder / "large.tif", 60_000)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_a_window_of_60000_by_60000_pixels_peaks_under_150_mb(rasters):
    assert child(CHILD, *rasters) < 150 * 1024


def test_tile_tables_are_arrays_not_python_objects(rasters):
    assert child(COUNT, rasters[1]) < 10_000
