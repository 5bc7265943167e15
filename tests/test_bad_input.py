"""Bad input, from disk and over HTTP: the right class of error, which names the file and says what to do."""

import os
import pickle
import resource
import struct
from dataclasses import replace

import numpy as np
import pytest
import tifffile

import geostream as gs
from geostream.grid import Window
from geostream.plan import Request, Source
from geostream.reader import read_many
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import reference_read, write_cog
from geostream.transport import Access, RetryPolicy

SHAPE = (300, 300)
WINDOW = (100, 100, 150, 150)


@pytest.fixture(params=["local", "http"])
def place(request, tmp_path):
    """Write a file and say where it is: (name, content) -> (url, options)."""
    with RangeServer(tmp_path) as server:

        def put(name, content):
            if content is not None:
                (tmp_path / name).write_bytes(content)
            if request.param == "local":
                return tmp_path / name, {}
            return server.url_for(name), {}

        yield put


def cog(tmp_path, **layout):
    return write_cog(tmp_path / "cog.bin", **{"shape": SHAPE, "blocksize": 128} | layout).read_bytes()


def assert_says(caught, url, *words):
    error, text = caught.value, str(caught.value)
    assert text.startswith(str(url))
    assert error.url == str(url)
    for word in words:
        assert word in text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == text
    rebuilt = type(error)(text)  # as torch does with a worker's
    assert str(rebuilt) == text


@pytest.mark.parametrize("reading", [gs.read, gs.info])
@pytest.mark.parametrize(
    "content",
    [b"hello, I am text\n" * 500, b"x", b"<html>404</html>", bytes(50_000), b"\x89PNG\r\n\x1a\nbroken", b"CDF\x01junk"],
    ids=["text", "one byte", "html", "zeros", "broken png", "broken netcdf"],
)
def test_what_is_no_raster(place, content, reading):
    url, options = place("labels.tif", content)
    with pytest.raises(gs.HeaderError) as caught:
        reading(url, **options)
    assert isinstance(caught.value, ValueError)
    assert_says(caught, url, "not readable as a raster", "filename_glob")
    assert "/vsi" not in str(caught.value)


def test_errors_are_the_same_over_s3(tmp_path):
    content = bytearray(cog(tmp_path, overviews=False))
    content[-40_000:] = bytes(40_000)
    (tmp_path / "damaged.tif").write_bytes(content)
    (tmp_path / "cut.tif").write_bytes(content[:100])
    (tmp_path / "text.tif").write_text("no raster")
    (tmp_path / "empty.tif").write_text("")
    expected = {
        "damaged.tif": gs.DecodeError,
        "cut.tif": gs.HeaderError,
        "text.tif": gs.HeaderError,
        "empty.tif": gs.HeaderError,
        "absent.tif": gs.NotFoundError,
    }
    with RangeServer(tmp_path) as server:
        for name, kind in expected.items():
            with pytest.raises(kind) as caught:
                gs.read(server.s3_url(name), storage_options=server.storage_options)
            assert_says(caught, server.s3_url(name))


def test_an_empty_file(place):
    url, options = place("empty.tif", b"")
    with pytest.raises(gs.HeaderError) as caught:
        gs.read(url, **options)
    assert_says(caught, url, "the file is empty")


def test_no_such_file(place):
    url, options = place("absent.tif", None)
    with pytest.raises(gs.NotFoundError) as caught:
        gs.read(url, **options)
    assert isinstance(caught.value, FileNotFoundError)
    assert_says(caught, url)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(gs.ReadError) as caught:
        gs.read(tmp_path)
    assert_says(caught, tmp_path)


@pytest.mark.parametrize("keep", [5, 100, 400])
def test_a_header_cut_short(place, tmp_path, keep):
    url, options = place("cut.tif", cog(tmp_path, driver="GTiff")[:keep])
    with pytest.raises(gs.HeaderError) as caught:
        gs.read(url, **options)
    assert isinstance(caught.value, gs.ReadError)  # cut short or never a raster: both are meant
    assert_says(caught, url)


def test_pixels_cut_short(place, tmp_path):
    whole = cog(tmp_path, compress="NONE")
    url, options = place("cut.tif", whole[: len(whole) * 2 // 3])
    with pytest.raises(gs.ReadError) as caught:
        gs.read(url, **options)
    assert_says(caught, url, "tile ", "past the end of the file", "upload it again")


@pytest.mark.parametrize("compress", ["DEFLATE", "LZW", "ZSTD", "LERC", "WEBP", "JPEG"])
def test_a_tile_of_garbage(place, tmp_path, compress):
    content = bytearray(cog(tmp_path, compress=compress, overviews=False))
    with tifffile.TiffFile(tmp_path / "cog.bin") as tiff:
        start, size = tiff.pages[0].dataoffsets[4], tiff.pages[0].databytecounts[4]
    content[start : start + size] = np.random.default_rng(0).bytes(size)
    url, options = place("damaged.tif", bytes(content))
    with pytest.raises(gs.DecodeError) as caught:
        gs.read(url, window=WINDOW, **options)
    assert isinstance(caught.value, ValueError)
    assert_says(caught, url, "tile 4 of image 0")
    whole, _ = reference_read(tmp_path / "cog.bin", Window(0, 0, 128, 128))
    np.testing.assert_array_equal(gs.read(url, window=(0, 0, 128, 128), **options).data, whole)  # others are sound


@pytest.mark.parametrize(
    ("compress", "words"), [("DEFLATE", "tile 4 of image 0 is damaged"), ("LZMA", "GDAL could not read")]
)
def test_a_strip_of_garbage(place, tmp_path, compress, words):
    content = bytearray(cog(tmp_path, blocksize=None, driver="GTiff", overviews=False, compress=compress))
    with tifffile.TiffFile(tmp_path / "cog.bin") as tiff:
        start, size = tiff.pages[0].dataoffsets[4], tiff.pages[0].databytecounts[4]
    content[start : start + size] = bytes(size)
    url, options = place("damaged.tif", bytes(content))
    with pytest.raises(gs.DecodeError) as caught:
        gs.read(url, **options)
    assert_says(caught, url, words)


def test_unknown_bands(place, tmp_path):
    url, options = place("three.tif", cog(tmp_path))
    with pytest.raises(gs.ConfigError) as caught:
        gs.read(url, bands=[1, 4], **options)
    assert_says(caught, url, "bands 1 to 3")


QUICK = RetryPolicy(attempts=2, base=0.001)
FAULTS = {
    "busy": (Fault("status", status=503), "503"),
    "denied": (Fault("status", status=403), "403"),
    "reset": (Fault("reset"), ""),
    "cut off": (Fault("truncate"), ""),
    "other bytes": (Fault("wrong_range"), "Content-Range"),
    "replaced": (Fault("changed"), "changed"),
    "replaced unnoticed": (Fault("swapped"), "changed"),
}


@pytest.fixture(params=["fast path", "through GDAL", "png"])
def opened(request, tmp_path):
    """A server, and a request whose header is known, so that faults strike between header and pixels."""
    if request.param == "png":
        import rasterio.shutil

        write_cog(tmp_path / "a.tif", np.random.default_rng(0).integers(0, 255, (3, *SHAPE), np.uint8))
        rasterio.shutil.copy(tmp_path / "a.tif", tmp_path / "pixels.tif", driver="PNG")
    else:
        compress = "NONE" if request.param == "fast path" else "LZMA"
        write_cog(tmp_path / "pixels.tif", shape=SHAPE, compress=compress, blocksize=128, driver="GTiff")
    with RangeServer(tmp_path) as server:
        source = Source(server.url_for("pixels.tif"), Access(retry=QUICK))
        from geostream import transport
        from geostream.opening import open_source

        header = transport.run(open_source(source))
        assert header.reader == ("geostream" if request.param == "fast path" else "rasterio")
        yield server, Request(replace(source, header=header), header.grid.part(Window(*WINDOW)))


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
def test_faults_between_header_and_pixels_are_read_errors(opened, fault, words):
    server, request = opened
    server.faults.add(fault)
    (outcome,) = read_many([request])
    assert isinstance(outcome, gs.ReadError), outcome
    assert not isinstance(outcome, gs.HeaderError | gs.DecodeError)
    assert str(outcome).startswith(server.url_for("pixels.tif"))
    assert words in str(outcome)
    server.faults.clear()
    (patch,) = read_many([request])  # nothing of the failure is remembered
    np.testing.assert_array_equal(patch.data, gs.read(request.source.url, window=WINDOW).data)


@pytest.mark.parametrize("kind", ["status", "reset", "truncate", "short_range", "wrong_length"])
def test_faults_that_pass_are_not_noticed_but_counted(opened, kind):
    server, request = opened
    expected = gs.read(request.source.url, window=WINDOW)
    server.reset()
    server.faults.add(Fault(kind, times=1))
    with gs.stats.measure() as measured:
        (patch,) = read_many([request])
    np.testing.assert_array_equal(patch.data, expected.data)
    assert measured.retries == 1
    assert measured.requests == server.counters.requests


def test_secrets_are_in_no_message(tmp_path):
    (tmp_path / "text.tif").write_text("no raster")
    (tmp_path / "cog.tif").write_bytes(cog(tmp_path))
    with RangeServer(tmp_path) as server:
        host = server.url.removeprefix("http://")
        for name, fault in (
            ("text.tif", None),
            ("absent.tif", None),
            ("cog.tif", Fault("status", status=403)),
            ("cog.tif", Fault("status", status=401, skip=1)),
            ("cog.tif", Fault("swapped", skip=1)),
        ):
            server.faults.clear()
            if fault is not None:
                server.faults.add(fault)
            url = f"http://user:hunter2@{host}/{name}?X-Amz-Signature=topsecret&sig=alsosecret#fragmentsecret"
            with pytest.raises(gs.GeostreamError) as caught:
                gs.read(url)
            error = caught.value
            texts = [str(error), repr(error), str(error.url), str(error.__cause__), repr(error.args)]
            for secret in ("hunter2", "user:", "topsecret", "alsosecret", "fragmentsecret"):
                assert not any(secret in text for text in texts), texts
            assert name in str(error)
        server.faults.clear()
        with pytest.raises(gs.ConfigError) as caught:
            gs.read(f"http://{host}/cog.tif?sig=topsecret", bands=[9])
        assert "topsecret" not in str(caught.value)


def test_a_remote_file_that_points_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "secret.tif").write_bytes(cog(tmp_path))
    vrt = f"""<VRTDataset rasterXSize="300" rasterYSize="300"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>
    <SourceFilename relativeToVRT="0">{tmp_path / "secret.tif"}</SourceFilename><SourceBand>1</SourceBand>
    </SimpleSource></VRTRasterBand></VRTDataset>"""
    (tmp_path / "a.vrt").write_text(vrt)
    (tmp_path / "b.tif").write_text(vrt)
    with RangeServer(tmp_path) as server:
        for name in ("a.vrt", "b.tif"):
            with pytest.raises(gs.HeaderError, match=r"name other places to read from|it names '"):
                gs.read(server.url_for(name))
        assert "secret.tif" not in {served.path for served in server.log}
    assert gs.read(tmp_path / "a.vrt").data.shape == (1, 300, 300)  # one's own files may


@pytest.mark.parametrize("values", [(float("nan"), 10.0, 0.0), (1e-170, 10.0, 0.0), (float("inf"), 1.0, 0.0)])
def test_a_transform_that_places_no_pixels(place, tmp_path, values):
    tags = [(33550, "d", 3, values, True), (33922, "d", 6, (0, 0, 0, 600_000.0, 5_300_000.0, 0), True)]
    tifffile.imwrite(tmp_path / "t.bin", np.zeros((64, 64), np.uint8), tile=(32, 32), extratags=tags)
    url, options = place("t.tif", (tmp_path / "t.bin").read_bytes())
    with pytest.raises(gs.HeaderError) as caught:
        gs.read(url, window=(0, 0, 10, 10), **options)
    assert_says(caught, url, "transform")


def test_a_claim_of_absurd_size_costs_no_memory(place, tmp_path):
    tifffile.imwrite(tmp_path / "t.bin", np.ones((64, 64), np.uint8), tile=(32, 32))
    content = bytearray((tmp_path / "t.bin").read_bytes())
    with tifffile.TiffFile(tmp_path / "t.bin") as tiff:
        for tag in (256, 257):
            at = tiff.pages[0].tags[tag].offset
            content[at : at + 12] = struct.pack("<HHLL", tag, 4, 1, 2**31 - 1)
    url, options = place("huge.tif", bytes(content))
    for window in ((2**30, 2**30, 10, 10), None):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(gs.GeostreamError) as caught:
            gs.read(url, window=window, **options)
        assert_says(caught, url)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.tif")
    with pytest.raises(gs.ReadError, match="not a regular file"):
        gs.read(tmp_path / "a.tif")
