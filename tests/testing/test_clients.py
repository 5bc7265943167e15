"""Clients other than s3fs that read from the range server: GDAL over HTTP and S3, fsspec's HTTP filesystem."""

from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest
import rasterio
from rasterio.windows import Window

from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import scene, write_cog

PIXELS = scene(512, 512, 3, seed=2)


@pytest.fixture
def server(tmp_path):
    write_cog(tmp_path / "sub" / "x.tif", PIXELS, blocksize=128)
    with RangeServer(tmp_path) as server:
        yield server


def test_gdal_over_http(server):
    with (
        rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"),
        rasterio.open(f"/vsicurl/{server.url_for('sub/x.tif')}") as dataset,
    ):
        np.testing.assert_array_equal(dataset.read(window=Window(100, 200, 50, 60)), PIXELS[:, 200:260, 100:150])
    assert server.counters.by_status.keys() <= {200, 206}
    assert server.counters.bytes_sent > 0


def test_gdal_over_s3(server):
    options = {
        "AWS_S3_ENDPOINT": urlsplit(server.url).netloc,
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_NO_SIGN_REQUEST": "YES",
    }
    with rasterio.Env(**options), rasterio.open("/vsis3/bucket/sub/x.tif") as dataset:
        np.testing.assert_array_equal(dataset.read(), PIXELS)
    assert server.counters.list > 0


def test_fsspec_over_http(server):
    http = fsspec.filesystem("http", skip_instance_cache=True)
    url = server.url_for("sub/x.tif")
    content = http.cat_file(url)
    assert content[:4] == b"II*\0"
    assert http.cat_file(url, start=100, end=200) == content[100:200]
    assert http.info(url)["size"] == len(content)
    with pytest.raises(FileNotFoundError):
        http.cat_file(server.url_for("missing.tif"))
    server.faults.add(Fault("reset"))
    with pytest.raises(OSError, match=r"disconnected|reset"):
        http.cat_file(url)
