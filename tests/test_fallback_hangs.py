"""A server that stops answering ends every read through GDAL in a `ReadError` in time, never in a hang."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import rasterio
import rasterio.shutil

import geostream as gs
from geostream.grid import Window
from geostream.opening import open_source
from geostream.plan import Request, Source
from geostream.reader import read_headers, read_many
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import write_cog
from geostream.transport import Access, RetryPolicy, run

HASTY = RetryPolicy(attempts=2, base=0.001, cap=0.01, attempt_timeout=0.3, deadline=0.5, slowest_rate=1e9)
NEVER = 40
"""Seconds after which a read counts as hanging."""

SIDE = 600
DRIVERS = {  # BAG is HDF5
    "a.png": ("PNG", {}, 3),
    "a.jpg": ("JPEG", {"QUALITY": 98}, 3),
    "a.webp": ("WEBP", {"LOSSLESS": "YES"}, 3),
    "a.gif": ("GIF", {}, 1),
    "a.jp2": ("JP2OpenJPEG", {"BLOCKXSIZE": 256, "BLOCKYSIZE": 256, "QUALITY": 100, "REVERSIBLE": "YES"}, 3),
    "a.grb2": ("GRIB", {}, 1),
    "a.nc": ("netCDF", {}, 1),
    "a.bag": ("BAG", {}, 1),
    "a.img": ("HFA", {}, 3),
    "strips.tif": ("GTiff", {"COMPRESS": "LZMA"}, 3),
    "tiles.tif": ("GTiff", {"COMPRESS": "LZMA", "TILED": "YES"}, 3),
    "nbits.tif": ("GTiff", {"NBITS": 7, "TILED": "YES"}, 3),
}
VRT = """<VRTDataset rasterXSize="600" rasterYSize="600"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>
<SourceFilename relativeToVRT="1">{name}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>
</VRTDataset>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hangs")
    noise = np.random.default_rng(0).integers(0, 128, (3, SIDE, SIDE), dtype=np.uint8)
    sources = {count: write_cog(folder / f"{count}.bin", noise[:count], overviews=False) for count in (1, 3)}
    with rasterio.Env() as env:
        known = env.drivers()
    depths = write_cog(folder / "depths.bin", noise[:1].astype("float32"), overviews=False)
    for name, (driver, options, count) in DRIVERS.items():
        if driver in known:
            source = depths if driver == "BAG" else sources[count]
            rasterio.shutil.copy(source, folder / name, driver=driver, **options)
    (folder / "of-cog.vrt").write_text(VRT.format(name="1.bin"))
    (folder / "of-lzma.vrt").write_text(VRT.format(name="strips.tif"))
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with RangeServer(folder) as server:
        yield server


NAMES = [*DRIVERS, "of-cog.vrt", "of-lzma.vrt"]


def outcome(work):
    """What ``work`` returns or raises; it must end."""
    found = []

    def keep():
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - judged by the caller
            found.append(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    thread.join(NEVER)
    assert not thread.is_alive(), "it hangs"
    return found[0]


def source_of(folder, server, name, policy=HASTY):
    if not (folder / name).exists():
        pytest.skip(f"this GDAL has no {DRIVERS[name][0]}")
    server.faults.clear()
    return Source(server.url_for(name), Access(retry=policy))


def check(error, url):
    assert isinstance(error, gs.ReadError), error
    assert url.rsplit("/", 1)[0] in str(error)


@pytest.mark.parametrize("kind", ["stall", "stall_body"])
@pytest.mark.parametrize("name", NAMES)
def test_opening(folder, server, name, kind):
    source = source_of(folder, server, name)
    server.reset()
    run(open_source(source))
    taken = server.counters.requests
    for let_through in range(taken):  # whichever of its requests it is that is not answered
        server.faults.clear()
        server.faults.add(Fault(kind, skip=let_through))
        check(outcome(lambda: run(open_source(source))), source.url)


@pytest.mark.parametrize("kind", ["stall", "stall_body"])
@pytest.mark.parametrize("name", NAMES)
def test_reading(folder, server, name, kind):
    # a policy for each: what one test has read, the next must not find remembered
    source = source_of(folder, server, name, replace(HASTY, cap=0.01 if kind == "stall" else 0.02))
    (header,) = run(read_headers([source]))
    assert header.reader == "rasterio"
    if "temporary copy" in header.reason:
        pytest.skip("all of it is there once it is open")
    request = Request(source, header.grid.part(Window(300, 500, 90, 80)))
    server.faults.add(Fault(kind))
    (error,) = outcome(lambda: read_many([request]))
    check(error, source.url)
    server.faults.clear()
    (patch,) = outcome(lambda: read_many([request]))  # and nothing is left of it
    assert patch.valid.all()
