"""Bytes of ours before GDAL's eyes: what it finds, and what becomes of errors."""

import contextlib

import numpy as np
import pytest
import rasterio

import geostream as gs
from geostream.ifd import SparseBytes
from geostream.opener import GDAL_ERRORS, SparseSource, open_with_gdal
from geostream.testing.rasters import reference_read, write_cog


class Source:
    """Bytes, of which reads fail from a number of reads on."""

    def __init__(self, content, sound=10**9):
        self.content, self.sound, self.reads = content, sound, 0

    @property
    def total(self):
        return len(self.content)

    def read_ranges(self, ranges):
        self.reads += 1
        if self.reads > self.sound:
            raise gs.ReadError("the network went away", url="https://host/a.tif")
        return [self.content[start:stop] for start, stop in ranges]


@pytest.fixture
def content(tmp_path):
    return write_cog(tmp_path / "a.tif", shape=(200, 200), blocksize=None, driver="GTiff", overviews=False).read_bytes()


def test_pixels_are_the_files(content, tmp_path):
    with open_with_gdal("a.tif", {"a.tif": Source(content)}) as dataset:
        np.testing.assert_array_equal(dataset.read(), reference_read(tmp_path / "a.tif")[0])


def test_only_named_files_exist(content, tmp_path):
    (tmp_path / "a.tif.msk").write_bytes(content)  # GDAL must not look there
    with open_with_gdal("a.tif", {"a.tif": Source(content)}) as dataset:
        assert dataset.mask_flag_enums[0] == [rasterio.enums.MaskFlags.all_valid]
    with pytest.raises(gs.HeaderError), open_with_gdal("b.tif", {"a.tif": Source(content)}):
        pass


@pytest.mark.parametrize("sound", [0, 1, 2, 5])
def test_the_sources_error_comes_out_whatever_gdal_makes_of_it(content, sound, capfd):
    source = Source(content, sound)
    with pytest.raises(gs.ReadError, match="network went away"), open_with_gdal("a.tif", {"a.tif": source}) as dataset:
        dataset.read()
    assert source.reads == sound + 1  # no more is asked for once something has failed
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_after_the_pixels_were_read_is_raised_too(content):
    source = Source(content)

    def carelessly():
        with open_with_gdal("a.tif", {"a.tif": source}) as dataset:
            source.sound = source.reads
            with contextlib.suppress(*GDAL_ERRORS):
                dataset.read()

    with pytest.raises(gs.ReadError):
        carelessly()


def test_formats_that_point_elsewhere_are_refused():
    vrt = b'<VRTDataset rasterXSize="5" rasterYSize="5"><VRTRasterBand dataType="Byte" band="1"/></VRTDataset>'
    with (
        pytest.raises(gs.HeaderError, match="VRT files name other places"),
        open_with_gdal("a.vrt", {"a.vrt": Source(vrt)}),
    ):
        pass


def test_what_has_not_arrived_reads_as_zeros():
    buffer = SparseBytes(100)
    buffer.add(10, b"abc")
    assert SparseSource(buffer).read_ranges([(10, 13), (11, 12), (9, 11)]) == [b"abc", b"b", bytes(2)]
    assert SparseSource(buffer).total == 100
