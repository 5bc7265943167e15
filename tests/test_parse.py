"""Headers: what the tile tables and GDAL say, and why some files are left to GDAL."""

import io

import numpy as np
import pytest
import tifffile

import geostream as gs
from geostream.header import MaskKind
from geostream.ifd import SparseBytes
from geostream.parse import MAX_TILE_BYTES, parse_tiff
from geostream.testing.rasters import scene, write_cog

HOLES = np.random.default_rng(0).random((300, 300)) < 0.5


def parsed(content):
    buffer = SparseBytes(len(content))
    buffer.add(0, content)
    return parse_tiff(buffer, "a.tif", {})


def written(tmp_path, **layout):
    return parsed(write_cog(tmp_path / "a.tif", **{"shape": (300, 300), "blocksize": 64} | layout).read_bytes())


@pytest.mark.parametrize("interleave", ["pixel", "band"])
def test_the_tables_are_the_files(tmp_path, interleave):
    header = written(tmp_path, interleave=interleave, driver="GTiff", mask=~HOLES, compress="LZW", predictor=2)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        pages = {(page.imagewidth, bool(page.subfiletype & 4)): page for page in tiff.pages}
        number = {page.offset: i for i, page in enumerate(tiff.pages)}
    assert header.reader == "geostream"
    assert header.overviews == ((150, 150), (75, 75), (38, 38))
    for level, width in zip(header.levels, (300, 150, 75, 38), strict=True):
        for table, is_mask in ((level.image, False), (level.mask, True)):
            page = pages[width, is_mask]
            assert (table.width, table.height, table.ifd) == (width, width, number[page.offset])
            np.testing.assert_array_equal(table.offsets, page.dataoffsets)
            np.testing.assert_array_equal(table.counts, page.databytecounts)
            assert table.planes == (3 if interleave == "band" and not is_mask else 1)
            assert table.across == table.down == -(-width // 64)
    codec = header.levels[0].image.codec
    assert (codec.compression, codec.predictor, codec.dtype) == (5, 2, np.uint8)
    assert codec.shape == (64, 64, 1 if interleave == "band" else 3)
    assert codec.nbytes == 64 * 64 * codec.shape[2]


@pytest.mark.parametrize(
    ("layout", "kind", "alpha"),
    [
        ({}, MaskKind.ALL_VALID, None),
        ({"nodata": 5}, MaskKind.NODATA, None),
        ({"mask": ~HOLES}, MaskKind.INTERNAL, None),
        ({"alpha": True, "count": 4}, MaskKind.ALPHA, 4),
        ({"alpha": True, "count": 2}, MaskKind.ALPHA, 2),
    ],
)
def test_what_decides_validity(tmp_path, layout, kind, alpha):
    header = written(tmp_path, **layout)
    assert (header.mask, header.alpha) == (kind, alpha)
    assert all((level.mask is not None) == (kind is MaskKind.INTERNAL) for level in header.levels)


def test_names_tags_and_colours(tmp_path):
    colors = {0: (0, 0, 0, 255), 1: (10, 20, 30, 255)}
    header = written(tmp_path, count=1, colormap=colors, tags={"SENSOR": "eye"}, descriptions=["class"])
    assert header.colorinterp == ("palette",)
    assert {index: header.colormap[index] for index in colors} == colors
    assert header.tags["SENSOR"] == "eye"
    assert header.descriptions == ("class",)
    assert header.fill(1) == 0
    assert written(tmp_path, nodata=7).fill(2) == 7


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tile": None, "dtype": "float16", "compression": "lzma", "rowsperstrip": 8}, "compression 34925"),
        ({"compression": "lzma"}, "compression 34925"),
        ({"photometric": "cielab"}, "photometric 8"),
        ({"tile": (2, 32, 32), "volumetric": True}, "volume"),
    ],
)
def test_why_gdal_reads_it(options, reason):
    data = scene(64, 64, 3).transpose(1, 2, 0).astype(options.pop("dtype", "uint8"))
    if options.pop("volumetric", False):
        data, options = data.transpose(2, 0, 1)[:2].copy(), options | {"volumetric": True, "photometric": "minisblack"}
    file = io.BytesIO()
    tifffile.imwrite(file, data, **{"tile": (32, 32), "photometric": "rgb", "metadata": None} | options)
    header = parsed(file.getvalue())
    assert (header.reader, header.levels) == ("rasterio", ())
    assert reason in header.reason


def patched(content, tag, change):
    """The file with one tag of its first directory changed: change(entry's bytes) -> other bytes."""
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        at = tiff.pages[0].tags[tag].offset
    return content[:at] + change(content[at : at + 12]) + content[at + 12 :]


@pytest.fixture
def plain(tmp_path):
    return write_cog(tmp_path / "p.tif", shape=(300, 300), blocksize=64, driver="GTiff", overviews=False).read_bytes()


def test_tables_that_do_not_fit_the_image_are_left_to_gdal(plain):
    assert parsed(plain).reader == "geostream"
    fewer = patched(plain, 324, lambda entry: entry[:4] + (3).to_bytes(4, "little") + entry[8:])
    header = parsed(fewer)
    assert header.reader == "rasterio"
    assert "25 tiles, but 3 offsets" in header.reason
    signed = patched(plain, 325, lambda entry: entry[:2] + (9).to_bytes(2, "little") + entry[4:])
    assert "no unsigned integers" in parsed(signed).reason


def test_tiles_too_large_to_be_meant_are_left_to_gdal(plain):
    side = int(MAX_TILE_BYTES**0.5 // 16 + 1) * 16
    content = plain
    for tag in (322, 323):
        content = patched(content, tag, lambda e: e[:2] + b"\x04\0" + e[4:8] + side.to_bytes(4, "little"))
    header = parsed(content)
    assert header.reader == "rasterio"
    assert "bytes are left to GDAL" in header.reason


def test_what_gdal_refuses_is_a_header_error(plain):
    for content in (plain[:4] + bytes(len(plain) - 4), b"II*\0" + plain[100:]):
        with pytest.raises(gs.HeaderError):
            parsed(content)
