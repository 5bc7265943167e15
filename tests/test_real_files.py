"""Real files of every kind: random windows, from disk, over HTTP and over S3, are what rasterio reads of the disk."""

import zlib

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import MaskFlags

import geostream as gs
from geostream.grid import parse_crs, same_crs
from geostream.testing import RangeServer
from geostream.testing.rasters import random_window, reference_read

from .conftest import DATA

FOLDER = DATA / "geotiff"
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*") if p.is_file())
"""All of them: masks (``.msk``) and overviews (``.ovr``) beside rasters are rasters too."""
REFUSED: dict[str, str] = {}
"""Files that geostream refuses, and why: none. rasterio must refuse those as well."""
WINDOWS = {"local": 10, "http": 8, "s3": 2}
"""Windows read of each file, by the way to it."""
pytestmark = [
    pytest.mark.skipif(not FILES, reason=f"no real files at {FOLDER}"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


@pytest.fixture(scope="module")
def server():
    with RangeServer(FOLDER) as server:
        yield server


def routes(name, server):
    """Ways to one file: (url, options of gs.read)."""
    return {
        "local": (FOLDER / name, {}),
        "http": (server.url_for(name), {"sidecars": True}),
        "s3": (server.s3_url(name), {"sidecars": True, "storage_options": server.storage_options}),
    }


def assert_same_pixels(patch, data, valid):
    assert patch.data.dtype == data.dtype
    assert patch.data.shape == data.shape
    np.testing.assert_array_equal(patch.data, data)
    assert patch.data.tobytes() == data.tobytes()  # NaN payloads and signs of zero too
    np.testing.assert_array_equal(patch.valid, valid)


@pytest.mark.parametrize("name", FILES)
def test_random_windows_are_rasterios(name, server):
    with rasterio.open(FOLDER / name) as dataset:
        shape, count = dataset.shape, dataset.count
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for way, (url, options) in routes(name, server).items():
        for n in range(WINDOWS[way]):
            window = random_window(rng, shape, 400 if n < 2 else 150, outside=n % 3 / 2)
            bands = None if rng.random() < 0.5 else [int(b) for b in rng.integers(1, count + 1, rng.integers(1, 5))]
            patch = gs.read(
                url, window=(window.col_off, window.row_off, window.width, window.height), bands=bands, **options
            )
            assert_same_pixels(patch, *reference_read(FOLDER / name, window, bands))


@pytest.mark.parametrize("name", FILES)
def test_info_says_what_rasterio_says(name, server):
    server.reset()
    url, options = routes(name, server)["http"]
    with gs.stats.measure() as measured:
        info = gs.info(url, **options)
    assert info["requests"] == server.counters.requests == measured.requests
    assert server.counters.head == 0
    assert info["bytes"] == sum(served.bytes_sent for served in server.log if served.status < 400)
    with rasterio.open(FOLDER / name) as dataset:
        assert info["driver"] == dataset.driver == "GTiff"
        assert info["size"] == (dataset.width, dataset.height)
        assert info["bands"] == dataset.count
        assert {info["dtype"]} == set(dataset.dtypes)
        assert same_crs(info["crs"], parse_crs(dataset.crs))
        assert info["transform"] == Affine(*dataset.transform[:6])
        rows, columns = dataset.block_shapes[0]
        assert info["block_size"] == (columns, rows)
        assert info["compression"] == getattr(dataset.compression, "value", dataset.compression)
        assert info["overviews"] == dataset.overviews(1)
        np.testing.assert_array_equal(info["nodata"], np.array(dataset.nodatavals, dtype=object))
        assert info["descriptions"] == dataset.descriptions
        assert info["colorinterp"] == tuple(color.name for color in dataset.colorinterp)
        assert info["scales"] == dataset.scales
        assert info["offsets"] == dataset.offsets
        assert info["units"] == dataset.units
        assert info["tags"] == dataset.tags()
        assert info["gcps"] == len(dataset.gcps[0])
        assert info["file_bytes"] == (FOLDER / name).stat().st_size
        if info["masks"] == "all valid":
            assert dataset.mask_flag_enums[0] == [MaskFlags.all_valid]
        assert info["colormap"] == (dataset.colormap(1) if info["colorinterp"][0] == "palette" else None)


def test_what_is_refused_rasterio_refuses_too():
    assert len(FILES) == 128
    refused = {}
    for name in FILES:
        try:
            gs.info(FOLDER / name)
        except gs.GeostreamError as error:
            refused[name] = str(error)
            with pytest.raises(rasterio.errors.RasterioIOError):
                rasterio.open(FOLDER / name)
    assert refused == REFUSED


LEFT_TO_GDAL = {
    "image-tiff/12bit.cropped.rgb.tiff": "12-bit samples of format 1 are left to GDAL",
    "image-tiff/12bit.cropped.tiff": "12-bit samples of format 1 are left to GDAL",
    "image-tiff/cmyk-3c-16b.tiff": "photometric 5 is left to GDAL",
    "image-tiff/cmyk-3c-32b-float.tiff": "photometric 5 is left to GDAL",
    "image-tiff/cmyk-3c-8b.tiff": "photometric 5 is left to GDAL",
    "image-tiff/logluv-3c-16b.tiff": "compression 34676 is left to GDAL",
    "image-tiff/palette-1c-4b.tiff": "4-bit samples of format 1 are left to GDAL",
    "image-tiff/tiled-cmyk-i8.tif": "photometric 5 is left to GDAL",
}
"""Files that geostream does not decode itself, and why."""


def test_all_other_files_are_read_by_geostream():
    for name in FILES:
        info = gs.info(FOLDER / name)
        beside = "masks or overviews lie in files beside it" if info["sidecars"] else ""
        assert info["reason"] == LEFT_TO_GDAL.get(name, beside), name
        assert info["reader"] == ("rasterio" if info["reason"] else "geostream"), name
