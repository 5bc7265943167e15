"""A remote VRT reads the files it is made of, by the same transport, and nothing else."""

import numpy as np
import pytest

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import reference_read, scene, write_cog

BAND = """<VRTDataset rasterXSize="300" rasterYSize="200"><SRS>EPSG:32632</SRS>
<GeoTransform>600000, 10, 0, 5300000, 0, -10</GeoTransform>{bands}</VRTDataset>"""


def source(name, band, *, relative=1, more=""):
    return (
        f'<VRTRasterBand dataType="Byte" band="{band}"{more}><SimpleSource>'
        f'<SourceFilename relativeToVRT="{relative}">{name}</SourceFilename><SourceBand>{band}</SourceBand>'
        "</SimpleSource></VRTRasterBand>"
    )


@pytest.fixture
def folder(tmp_path):
    write_cog(tmp_path / "a.tif", scene(200, 300, 2), overviews=False)
    write_cog(tmp_path / "deep" / "b.tif", scene(200, 300, 2, seed=1), overviews=False)
    return tmp_path


@pytest.fixture
def server(folder):
    with RangeServer(folder) as server:
        yield server


def vrt(folder, *bands):
    (folder / "a.vrt").write_text(BAND.format(bands="".join(bands)))
    return folder / "a.vrt"


def test_relative_sources_local_and_remote(folder, server):
    path = vrt(folder, source("a.tif", 1), source("deep/b.tif", 2))
    data, valid = reference_read(path)
    ways = (
        (path, {}),
        (server.url_for("a.vrt"), {}),
        (server.s3_url("a.vrt"), {"storage_options": server.storage_options}),
    )
    for url, options in ways:
        assert gs.info(url, **options)["driver"] == "VRT"
        patch = gs.read(url, **options)
        np.testing.assert_array_equal(patch.data, data)
        np.testing.assert_array_equal(patch.valid, valid)
        part = gs.read(url, window=(250, 150, 100, 100), bands=2, **options)
        np.testing.assert_array_equal(part.data[0, :50, :50], data[1, 150:, 250:])


def test_sources_by_url_of_the_same_host(folder, server):
    url = server.url_for("deep/b.tif")
    vrt(folder, source(url, 1, relative=0), source(f"/vsicurl/{url}", 2, relative=0))
    expected = reference_read(folder / "deep" / "b.tif")[0]
    np.testing.assert_array_equal(gs.read(server.url_for("a.vrt")).data, expected)


@pytest.mark.parametrize(
    ("band", "words"),
    [
        (source("/etc/passwd", 1, relative=0), "below its folder"),
        (source("/etc/passwd", 1), "below its folder"),
        (source("../other/a.tif", 1), "below its folder"),
        (source("/vsizip//tmp/a.zip/a.tif", 1, relative=0), "names"),
        (source("https://elsewhere.example/a.tif", 1, relative=0), "another host"),
        (source("s3://elsewhere/a.tif", 1, relative=0), "another host"),
        (source("a.tif", 1, more=' subClass="VRTDerivedRasterBand"'), "VRTDerivedRasterBand"),
        ("<PansharpeningOptions/>", "PansharpeningOptions"),
        (source("nested.vrt", 1), "no TIFF"),
    ],
)
def test_what_a_remote_vrt_may_not_name(folder, server, band, words):
    (folder / "nested.vrt").write_text("<VRTDataset/>")
    vrt(folder, band)
    with pytest.raises(gs.HeaderError, match=words):
        gs.info(server.url_for("a.vrt"))


def test_a_vrt_in_disguise_is_refused(folder, server):
    vrt(folder, source("/etc/hostname", 1, relative=0)).rename(folder / "a.tif")
    with pytest.raises(gs.HeaderError):
        gs.info(server.url_for("a.tif"))


def test_a_missing_source_is_not_found(folder, server):
    vrt(folder, source("none.tif", 1))
    with pytest.raises(gs.NotFoundError):
        gs.read(server.url_for("a.vrt"))


def test_a_missing_source_of_a_local_vrt_is_not_found_and_named(folder):
    path = vrt(folder, source("none.tif", 1))
    with pytest.raises(gs.NotFoundError, match=r"a\.vrt: .*none\.tif: No such file") as caught:
        gs.read(path)
    assert "previous exception" not in str(caught.value)
