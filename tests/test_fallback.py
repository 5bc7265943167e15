"""What geostream does not decode itself: rasterio reads it, over the same transport and behind the same surface."""

import threading

import fsspec
import numpy as np
import pytest
import rasterio
import rasterio.shutil
from rasterio.enums import Resampling

import geostream as gs
from geostream import transport
from geostream.fallback import needs_copy
from geostream.grid import Window
from geostream.plan import Request, Source
from geostream.reader import read_headers, read_many
from geostream.testing import RangeServer
from geostream.testing.rasters import reference_read, scene, write_cog
from geostream.transport import Access

SIDE = 900
DRIVERS = {
    "a.png": ("PNG", {}),
    "a.jp2": ("JP2OpenJPEG", {"BLOCKXSIZE": 256, "BLOCKYSIZE": 256, "QUALITY": 100, "REVERSIBLE": "YES"}),
    "a.nc": ("netCDF", {}),
    "a.grb2": ("GRIB", {}),
    "a.img": ("HFA", {}),
    "strips.tif": ("GTiff", {"COMPRESS": "LZMA"}),
    "lzma.tif": ("GTiff", {"COMPRESS": "LZMA", "TILED": "YES"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fallback")
    noise = np.random.default_rng(0).integers(0, 8, (3, SIDE, SIDE), dtype=np.uint8)
    source = write_cog(folder / "source.bin", scene(SIDE, SIDE, 3) * 8 + noise, overviews=False)
    for name, (driver, options) in DRIVERS.items():
        single = driver in {"netCDF", "GRIB"}
        if single:
            write_cog(folder / "single.bin", scene(300, 300, 1), overviews=False)
        with rasterio.Env() as env:
            if driver not in env.drivers():
                continue
        rasterio.shutil.copy(folder / "single.bin" if single else source, folder / name, driver=driver, **options)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with RangeServer(folder) as server:
        yield server


@pytest.mark.parametrize("name", DRIVERS)
def test_windows_of_any_format(folder, server, name):
    if not (folder / name).exists():
        pytest.skip(f"this GDAL has no {DRIVERS[name][0]}")
    for url in (folder / name, server.url_for(name)):
        info = gs.info(url)
        assert (info["reader"], info["driver"]) == ("rasterio", DRIVERS[name][0])
        assert info["reason"]
        for window in (Window(100, 150, 90, 80), Window(-20, 250, 100, 100)):
            data, valid = reference_read(folder / name, window)
            patch = gs.read(url, window=(window.col_off, window.row_off, window.width, window.height))
            assert patch.data.dtype == data.dtype
            np.testing.assert_array_equal(patch.data, data)
            np.testing.assert_array_equal(patch.valid, valid)


@pytest.mark.parametrize("name", DRIVERS)
def test_what_opening_costs_is_what_the_server_served(folder, server, name):
    if not (folder / name).exists():
        pytest.skip(f"this GDAL has no {DRIVERS[name][0]}")
    server.reset()
    with gs.stats.measure() as measured:
        info = gs.info(server.url_for(name))
    assert info["requests"] == server.counters.requests == server.counters.get == measured.requests
    assert info["bytes"] == server.counters.bytes_sent == measured.bytes
    assert info["file_bytes"] == (folder / name).stat().st_size


@pytest.mark.parametrize("name", ["a.jp2", "strips.tif", "lzma.tif", "a.img"])
def test_a_small_window_of_a_large_file_fetches_a_part_of_it(folder, server, name):
    server.reset()
    gs.read(server.url_for(name), window=(500, 500, 40, 40))
    assert server.counters.head == server.counters.list == 0
    assert 0 < server.counters.bytes_sent < 0.75 * (folder / name).stat().st_size


def test_overviews_are_used_and_of_their_true_size(tmp_path):
    data = scene(501, 333, 1)
    path = write_cog(tmp_path / "a.tif", data, compress="LZMA", driver="GTiff", overviews=[2, 4])
    with RangeServer(tmp_path) as server:
        for url in (path, server.url_for("a.tif")):
            assert gs.info(url)["reader"] == "rasterio"
            for level, shape in enumerate([(251, 167), (126, 84)]):
                with rasterio.open(path, overview_level=level) as overview:
                    expected = overview.read()
                np.testing.assert_array_equal(gs.read(url, shape=shape).data, expected)


def test_warped_and_shifted_requests_are_what_the_fast_path_gives(tmp_path):
    data = scene(300, 300, 2)
    write_cog(tmp_path / "tiles.tif", data, blocksize=64, driver="GTiff", overviews=False)
    write_cog(tmp_path / "lzma.tif", data, blocksize=64, driver="GTiff", compress="LZMA", overviews=False)
    for options in (
        {"crs": "EPSG:4326"},
        {"window": (20, 30, 100, 90), "shape": (77, 66), "resampling": "average"},
        {"bounds": (600_003, 5_298_000, 601_003, 5_299_996), "resampling": "cubic"},
        {"bands": [2], "crs": "EPSG:3035", "res": 13.0, "resampling": "bilinear"},
    ):
        fast, slow = (gs.read(tmp_path / name, **options) for name in ("tiles.tif", "lzma.tif"))
        np.testing.assert_array_equal(fast.data, slow.data)
        np.testing.assert_array_equal(fast.valid, slow.valid)


def test_sidecars_are_found_beside_local_files_and_looked_for_on_demand(tmp_path):
    holes = np.random.default_rng(0).random((200, 200)) < 0.5
    path = write_cog(tmp_path / "a.tif", shape=(200, 200), blocksize=64, driver="GTiff", overviews=False)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False, TIFF_USE_OVR=True):
        with rasterio.open(path, "r+") as dataset:
            dataset.write_mask(~holes)
        with rasterio.open(path, "r+") as dataset:
            dataset.build_overviews([3], Resampling.nearest)
    with rasterio.open(path, overview_level=0) as dataset:
        coarse, coarse_valid = dataset.read(), dataset.dataset_mask() > 0
    np.testing.assert_array_equal(gs.read(path).valid, ~holes)
    assert gs.info(path)["sidecars"] == [f"{path}.msk", f"{path}.ovr", f"{path}.msk.ovr"]
    assert gs.info(path)["overviews"] == [3]
    patch = gs.read(path, shape=(67, 67))
    np.testing.assert_array_equal(patch.data, coarse)
    np.testing.assert_array_equal(patch.valid, coarse_valid)
    with RangeServer(tmp_path) as server:
        url = server.url_for("a.tif")
        assert gs.info(url)["masks"] == "all valid"
        assert gs.read(url).valid.all()
        assert {served.path for served in server.log} == {"a.tif"}
        server.reset()
        info = gs.info(url, sidecars=True)
        assert info["sidecars"] == [f"{url}.msk", f"{url}.ovr", f"{url}.msk.ovr"]
        assert info["requests"] == server.counters.requests
        assert info["masks"] == gs.info(path)["masks"] == "external mask"
        patch = gs.read(url, sidecars=True)
        np.testing.assert_array_equal(patch.valid, ~holes)
        np.testing.assert_array_equal(patch.data, gs.read(path).data)
        (tmp_path / "a.tif.msk.ovr").unlink()  # overviews without their masks: only full resolution tells validity
        for where in (path, url):
            assert gs.info(where, sidecars=True)["overviews"] == []
            assert gs.read(where, sidecars=True, shape=(67, 67)).valid.mean() < 0.6


@pytest.mark.parametrize("options", [{}, {"tiled": True, "compress": "deflate"}, {"interleave": "band"}])
def test_complex_integers_are_complex_numbers(tmp_path, options):
    parts = np.random.default_rng(0).integers(-999, 999, (2, 2, 90, 100))
    data = (parts[0] + 1j * parts[1]).astype(np.complex64)
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "width": 100, "height": 90, "count": 2, "dtype": "complex_int16"}
    with rasterio.open(path, "w", **profile, **options) as dataset:
        dataset.write(data)
    with RangeServer(tmp_path) as server:
        for url in (path, server.url_for("a.tif")):
            assert gs.info(url)["dtype"] == "complex64"
            np.testing.assert_array_equal(gs.read(url, window=(20, 30, 60, 50)).data, data[:, 30:80, 20:80])
            half = gs.read(url, shape=(45, 50), resampling="average")
            expected = data.reshape(2, 45, 2, 50, 2).mean(axis=(2, 4))
            np.testing.assert_allclose(half.data, expected, rtol=1e-5, atol=1e-3)


def test_a_mask_beside_a_file_that_gdal_reads_is_external(folder, tmp_path):
    holes = np.random.default_rng(0).random((SIDE, SIDE)) < 0.5
    path = tmp_path / "a.png"
    path.write_bytes((folder / "a.png").read_bytes())
    with rasterio.open(path, "r+") as dataset:
        dataset.write_mask(~holes)
    assert (tmp_path / "a.png.msk").exists()
    with RangeServer(tmp_path) as server:
        for url in (path, server.url_for("a.png")):
            assert gs.info(url, sidecars=True)["masks"] == "external mask"
            np.testing.assert_array_equal(gs.read(url, sidecars=True).valid, ~holes)


def test_many_files_at_once_do_not_wait_for_each_other(folder):
    """Filesystems without a loop fetch in threads, and GDAL waits in threads for what they fetch."""
    memory = fsspec.filesystem("memory")
    content = (folder / "a.png").read_bytes()
    expected, _ = reference_read(folder / "a.png", Window(0, 0, 50, 60))
    sources = []
    for number in range(80):
        memory.pipe(f"/fallback/{number}.png", content)
        sources.append(Source(f"memory://fallback/{number}.png", Access()))
    headers = transport.run(read_headers(sources))
    grid = headers[0].grid.part(Window(0, 0, 50, 60))
    for outcome in read_many([Request(source, grid) for source in sources]):
        np.testing.assert_array_equal(outcome.data, expected)


def test_a_file_that_was_rewritten_is_read_anew(tmp_path):
    layout = {"blocksize": None, "driver": "GTiff", "compress": "NONE", "overviews": False}
    files = [
        write_cog(tmp_path / f"{n}.tif", np.full((1, 300, 300), n, np.uint8), **layout).read_bytes() for n in (1, 2)
    ]
    store = {}
    with RangeServer(store) as server:
        for n, content in enumerate(files, 1):
            store["a.tif"] = content
            assert (gs.read(server.url_for("a.tif")).data == n).all()


def test_reading_from_many_threads(folder, server):
    expected, _ = reference_read(folder / "strips.tif", Window(100, 100, 200, 200))
    results = []

    def work():
        results.append(gs.read(server.url_for("strips.tif"), window=(100, 100, 200, 200)).data)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    for data in results:
        np.testing.assert_array_equal(data, expected)


def test_netcdf_and_hdf5_are_copied():
    assert needs_copy(b"CDF\x01rest")
    assert needs_copy(b"\x89HDF\r\n\x1a\nrest")
    assert needs_copy(bytes(1024) + b"\x89HDF\r\n\x1a\nrest")
    assert not needs_copy(b"\x89PNG")
    assert not needs_copy(b"")


def test_a_copy_is_made_once_and_told_of(folder, server):
    if not (folder / "a.nc").exists():
        pytest.skip("this GDAL has no netCDF")
    size = (folder / "a.nc").stat().st_size
    info = gs.info(server.url_for("a.nc"))
    assert info["reason"] == "netCDF files are read through GDAL from a temporary copy of at most 1024 MiB"
    server.reset()
    patch = gs.read(server.url_for("a.nc"), window=(10, 20, 30, 40))
    np.testing.assert_array_equal(patch.data, reference_read(folder / "a.nc", Window(10, 20, 30, 40))[0])
    assert server.counters.bytes_sent <= size + 2**15
    assert gs.info(folder / "a.nc")["reason"] == "netCDF files are read through GDAL"


def test_a_png_is_read_on_in_growing_steps(folder, server):
    server.reset()
    gs.read(server.url_for("a.png"), window=(0, 800, 100, 100))
    size = (folder / "a.png").stat().st_size
    assert size > 1e6
    assert server.counters.requests <= 12
    assert server.counters.bytes_sent <= size + 2**16


def test_a_format_that_needs_a_copy_is_refused_beyond_a_size(folder, server, monkeypatch):
    if not (folder / "a.nc").exists():
        pytest.skip("this GDAL has no netCDF")
    monkeypatch.setattr("geostream.fallback.COPY_LIMIT", 1000)
    with pytest.raises(gs.HeaderError, match="exceed the limit"):
        gs.info(server.url_for("a.nc"))
    assert gs.info(folder / "a.nc")["driver"] == "netCDF"  # where it lies already


def test_copies_go_with_the_process(folder, server, tmp_path):
    if not (folder / "a.nc").exists():
        pytest.skip("this GDAL has no netCDF")
    import os
    import subprocess
    import sys

    code = f"import geostream as gs; print(gs.read({server.url_for('a.nc')!r}, window=(0, 0, 5, 5)).data.shape)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "(1, 5, 5)", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_subdatasets_says_which_there_are(tmp_path):
    path = tmp_path / "a.nc"
    write_cog(tmp_path / "a.tif", scene(8, 9, 2), driver="GTiff", overviews=False)
    with rasterio.Env() as env:
        if "netCDF" not in env.drivers():
            pytest.skip("this GDAL writes no netCDF")
    rasterio.shutil.copy(tmp_path / "a.tif", path, driver="netCDF")
    with pytest.raises(
        gs.HeaderError, match=r"2 subdatasets \(Band1, Band2\).*rasterio.open\('netCDF:\"FILE\":Band1'\)"
    ):
        gs.info(path)
