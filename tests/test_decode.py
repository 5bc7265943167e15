"""Tiles of every compression decode to GDAL's pixels, and what is no tile is refused."""

import struct
import zlib

import imagecodecs
import numpy as np
import pytest
import rasterio
import tifffile

import geostream as gs
from geostream.decode import decode_tile, unsupported_reason
from geostream.header import TileCodec
from geostream.testing.rasters import reference_read, scene, write_cog

H, W = 110, 130
RNG = np.random.default_rng(7)
HOLES = RNG.random((H, W)) < 0.3


def noise(dtype, count):
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return (RNG.normal(size=(count, H, W)) + 1j * RNG.normal(size=(count, H, W))).astype(dtype)
    if dtype.kind == "f":
        return (RNG.normal(size=(count, H, W)) * 100).astype(dtype)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, (count, H, W), dtype=dtype, endpoint=True)


def assert_reads_as_gdal(path, reader="geostream"):
    info = gs.info(path)
    assert info["reader"] == reader, info["reason"]
    for bands in (None, [info["bands"], 1]):
        data, valid = reference_read(path, None, bands)
        patch = gs.read(path, bands=bands)
        assert patch.data.dtype == data.dtype
        assert patch.data.tobytes() == data.tobytes()
        np.testing.assert_array_equal(patch.valid, valid)


INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
BYTEWISE = [
    (compress, predictor, dtype)
    for compress in ("NONE", "DEFLATE", "LZW", "ZSTD", "PACKBITS")
    for dtype in (*INTEGERS, "float32", "float64", "complex64", "complex128")
    for predictor in (1, 2, 3)
    if (predictor == 1 or compress in {"DEFLATE", "LZW", "ZSTD"})
    and (predictor != 2 or dtype in INTEGERS)
    and (predictor != 3 or dtype in {"float32", "float64"})
]


@pytest.mark.parametrize(("compress", "predictor", "dtype"), BYTEWISE)
def test_byte_compressions(tmp_path, compress, predictor, dtype):
    orders = [("pixel", False), ("band", True)]
    if dtype in {"int16", "float32"}:
        orders += [("band", False), ("pixel", True)]
    for interleave, big_endian in orders:
        path = write_cog(
            tmp_path / f"{interleave}{big_endian}.tif",
            noise(dtype, 3),
            compress=compress,
            predictor=predictor,
            interleave=interleave,
            big_endian=big_endian,
            bigtiff=big_endian,
            blocksize=(48, 64),
            driver="GTiff",
            overviews=False,
        )
        assert_reads_as_gdal(path)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"])
def test_lerc(tmp_path, dtype, interleave, big_endian):
    for compress in ("LERC", "LERC_DEFLATE", "LERC_ZSTD"):
        path = write_cog(
            tmp_path / f"{compress}.tif",
            noise(dtype, 3),
            compress=compress,
            interleave=interleave,
            big_endian=big_endian,
            blocksize=(48, 64),
            driver="GTiff",
            overviews=False,
        )
        assert_reads_as_gdal(path)


@pytest.mark.parametrize("compress", ["LERC", "LERC_DEFLATE", "LERC_ZSTD"])
@pytest.mark.parametrize("holes", ["in all bands", "in one band", "everywhere"])
@pytest.mark.parametrize("count", [1, 3])
def test_lerc_leaves_out_nan(tmp_path, compress, holes, count):
    for number, (dtype, interleave, nodata) in enumerate(
        [("float32", "pixel", None), ("float32", "band", np.nan), ("float64", "pixel", np.nan)]
    ):
        data = noise(dtype, count)
        if holes == "in one band":
            data[0, HOLES] = np.nan
        else:
            data[:, HOLES | (holes == "everywhere")] = np.nan
        layout = {"interleave": interleave, "nodata": nodata, "driver": "GTiff", "overviews": False, "blocksize": 64}
        path = write_cog(tmp_path / f"{number}.tif", data, compress=compress, **layout)
        assert np.isnan(gs.read(path).data).any()
        assert_reads_as_gdal(path)


@pytest.mark.parametrize("alpha", ["on and off", "all on", "all off", "shades"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_lerc_keeps_alpha_in_its_mask(tmp_path, alpha, count, dtype):
    data = noise("uint8", count).astype(dtype)
    on = {"on and off": ~HOLES, "all on": True, "all off": False}
    data[-1] = data[-1] if alpha == "shades" else np.where(on[alpha], 255, 0)
    for interleave in ("pixel", "band"):
        path = write_cog(
            tmp_path / f"{interleave}.tif", data, compress="LERC", alpha=True, driver="GTiff", interleave=interleave,
            blocksize=(48, 64), overviews=False,
        )  # fmt: skip
        assert_reads_as_gdal(path)


@pytest.mark.parametrize(
    "layout",
    [
        {"count": count, "photometric": photometric, "jpeg_quality": quality, "mask": mask, "interleave": interleave}
        for count, photometric in ((1, None), (2, None), (3, None), (3, "YCBCR"), (3, "RGB"), (4, None))
        for quality in (50, 90)
        for mask, interleave in ((None, "pixel"), (~HOLES, "pixel"), (None, "band"))
        if interleave == "pixel" or photometric != "YCBCR"
    ],
    ids=lambda layout: "-".join(str(v) for v in layout.values() if not isinstance(v, np.ndarray)),
)
def test_jpeg(tmp_path, layout):
    data = scene(H, W, layout.pop("count"), seed=3)
    assert_reads_as_gdal(write_cog(tmp_path / "a.tif", data, compress="JPEG", driver="GTiff", blocksize=64, **layout))


def test_jpeg_of_the_cog_driver(tmp_path):
    for count, mask in ((1, None), (3, None), (3, ~HOLES)):
        path = write_cog(tmp_path / f"{count}{mask is None}.tif", scene(H, W, count), compress="JPEG", mask=mask)
        assert_reads_as_gdal(path)


def test_cmyk_is_left_to_gdal(tmp_path):
    path = write_cog(
        tmp_path / "a.tif", scene(H, W, 4), compress="JPEG", photometric="CMYK", driver="GTiff", blocksize=64
    )
    assert_reads_as_gdal(path, reader="rasterio")


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("how", [{"webp_lossless": True}, {"webp_level": 40}, {"webp_level": 90}])
def test_webp(tmp_path, count, how):
    data = scene(H, W, count, seed=5)
    if count == 4:
        data[3] = np.where(HOLES, 0, 255)
    for mask in (None, ~HOLES):
        path = write_cog(tmp_path / f"{mask is None}.tif", data, compress="WEBP", driver="GTiff", blocksize=64,
                         mask=mask, alpha=count == 4 and mask is None, **how)  # fmt: skip
        assert_reads_as_gdal(path)


@pytest.mark.parametrize("shape", [(1, 1), (1, 100), (100, 1), (16, 16), (17, 15), (33, 48)])
@pytest.mark.parametrize("compress", ["NONE", "DEFLATE", "LERC", "JPEG", "WEBP", "PACKBITS"])
def test_sizes_that_no_block_divides(tmp_path, shape, compress):
    for mask in (None, HOLES[: shape[0], : shape[1]]):
        path = write_cog(
            tmp_path / f"{mask is None}.tif", scene(*shape, 3), compress=compress, blocksize=16, driver="GTiff",
            mask=mask,
        )  # fmt: skip
        assert_reads_as_gdal(path)


STRIPS = [
    ("uint8", "band", 1, False),
    ("int16", "pixel", 2, True),
    ("float32", "pixel", 3, False),
    ("float64", "band", 1, True),
]


@pytest.mark.parametrize("rows", [1, 7, 16, 55, H])
@pytest.mark.parametrize("compress", ["NONE", "DEFLATE", "LZW", "ZSTD", "PACKBITS", "LERC", "LERC_ZSTD"])
def test_strips(tmp_path, compress, rows):
    for number, (dtype, interleave, predictor, big_endian) in enumerate(STRIPS):
        path = write_cog(
            tmp_path / f"{number}.tif",
            noise(dtype, 3),
            compress=compress,
            predictor=predictor if compress in {"DEFLATE", "LZW", "ZSTD"} else 1,
            interleave=interleave,
            big_endian=big_endian,
            mask=~HOLES if number % 2 else None,
            blocksize=None,
            blockysize=rows,
            driver="GTiff",
            overviews=[2],
        )
        assert_reads_as_gdal(path)
        with rasterio.open(path, overview_level=0) as overview:
            assert gs.read(path, shape=overview.shape).data.tobytes() == overview.read().tobytes()


@pytest.mark.parametrize(
    ("compress", "count", "photometric"),
    [("JPEG", 1, None), ("JPEG", 3, "RGB"), ("JPEG", 3, "YCBCR"), ("WEBP", 3, None)],
)
def test_strips_of_pictures(tmp_path, compress, count, photometric):
    for rows in (16, 32, 48):
        data = scene(H, W, count, seed=3)
        options = {"blocksize": None, "blockysize": rows, "driver": "GTiff", "photometric": photometric}
        assert_reads_as_gdal(write_cog(tmp_path / f"{rows}.tif", data, compress=compress, **options))


def test_sparse_strips(tmp_path):
    data = noise("uint16", 2)
    data[:, 20:60] = 0
    layout = {"blocksize": None, "blockysize": 10, "driver": "GTiff", "sparse": True, "overviews": False}
    for interleave in ("pixel", "band"):
        assert_reads_as_gdal(write_cog(tmp_path / f"{interleave}.tif", data, interleave=interleave, **layout))


def test_strips_too_large_to_read_a_window_of_are_left_to_gdal(tmp_path):
    data = np.broadcast_to(np.arange(4200, dtype=np.uint8), (1, 4200, 4200))
    path = write_cog(tmp_path / "a.tif", data, blocksize=None, blockysize=4200, driver="GTiff", overviews=False)
    info = gs.info(path)
    assert info["reader"] == "rasterio"
    assert "strips of 17640000 bytes" in info["reason"]
    assert (gs.read(path, window=(4000, 4000, 50, 50)).data == data[:, 4000:4050, 4000:4050]).all()


@pytest.mark.parametrize(("bits", "dtype"), [(1, "uint8"), (2, "uint8"), (4, "uint8"), (12, "uint16"), (16, "float32")])
def test_odd_numbers_of_bits(tmp_path, bits, dtype):
    data = RNG.integers(0, 2 ** min(bits, 10), (2, H, W)).astype(dtype)
    path = write_cog(tmp_path / "a.tif", data, nbits=bits, driver="GTiff", blocksize=64, overviews=False)
    assert_reads_as_gdal(path, reader="geostream" if bits in {1, 16} else "rasterio")


@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
@pytest.mark.parametrize("data", [HOLES, noise("uint8", 1)[0]], ids=["bits", "bytes"])
def test_bits_in_reverse_order(tmp_path, compression, data):
    plain, path = tmp_path / "plain.tif", tmp_path / "reversed.tif"
    stand_in = [(269, "H", 1, 2, True)]  # tifffile does not write FillOrder (266)
    options = {"tile": (64, 64), "photometric": "minisblack", "compression": compression}
    tifffile.imwrite(plain, data, **options)
    tifffile.imwrite(path, data, extratags=stand_in, **options)
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        struct.pack_into("<H", content, tiff.pages[0].tags[269].offset, 266)
        for start, size in zip(tiff.pages[0].dataoffsets, tiff.pages[0].databytecounts, strict=True):
            content[start : start + size] = imagecodecs.bitorder_decode(bytes(content[start : start + size]))
    path.write_bytes(content)
    with tifffile.TiffFile(path) as tiff:
        assert tiff.pages[0].fillorder == 2
    assert_reads_as_gdal(path)
    np.testing.assert_array_equal(gs.read(path).data, gs.read(plain).data)


def codec(**changes):
    facts = {"compression": 8, "predictor": 1, "dtype": np.dtype("<u2"), "shape": (16, 32, 2), "photometric": 1}
    return TileCodec(**facts | changes)


def test_a_tile_that_is_too_short_is_refused():
    whole = RNG.integers(0, 9, (16, 32, 2)).astype("<u2")
    np.testing.assert_array_equal(decode_tile(zlib.compress(whole.tobytes()), codec()), whole)
    with pytest.raises(gs.DecodeError, match="holds 100 bytes where a tile has 2048"):
        decode_tile(zlib.compress(whole.tobytes()[:100]), codec())
    with pytest.raises(gs.DecodeError, match="holds 100 bytes where a tile has 2048"):
        decode_tile(whole.tobytes()[:100], codec(compression=1))


@pytest.mark.parametrize("compression", [5, 7, 8, 32773, 34887, 50000, 50001])
@pytest.mark.parametrize("data", [b"", b"\0", b"garbage" * 40, bytes(range(256)) * 20])
def test_garbage_is_refused(compression, data):
    dtype = np.dtype("u1")
    with pytest.raises(gs.DecodeError):
        decode_tile(data, codec(compression=compression, dtype=dtype, shape=(512, 512, 3)))


def test_an_image_of_another_size_than_its_tile_is_refused():
    image = scene(32, 32, 3).transpose(1, 2, 0).copy()
    webp = imagecodecs.webp_encode(image, lossless=True)
    facts = {"compression": 50001, "dtype": np.dtype("u1"), "photometric": 2}
    np.testing.assert_array_equal(decode_tile(webp, codec(**facts, shape=(32, 32, 3))), image)
    for shape in ((32, 48, 3), (16, 64, 3), (16, 16, 3)):
        with pytest.raises(gs.DecodeError, match="was expected"):
            decode_tile(webp, codec(**facts, shape=shape))
    lerc = imagecodecs.lerc_encode(image[:, :, 0].copy())
    for shape in ((32, 48, 1), (16, 16, 1)):
        with pytest.raises(gs.DecodeError):
            decode_tile(lerc, codec(**facts | {"compression": 34887}, shape=shape))


def test_lerc_of_another_type_is_refused():
    blob = imagecodecs.lerc_encode(np.zeros((16, 16), "f4"))
    with pytest.raises(gs.DecodeError, match="float32 pixels where uint8"):
        decode_tile(blob, codec(compression=34887, dtype=np.dtype("u1"), shape=(16, 16, 1)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"photometric": 5}, "photometric 5"),
        ({"photometric": 8}, "photometric 8"),
        ({"photometric": 6}, "YCbCr without JPEG"),
        ({"compression": 7}, "JPEG or WebP of uint16"),
        ({"compression": 34887, "lerc_compression": 3}, "additional compression 3"),
        ({"compression": 50001, "dtype": np.dtype("u1"), "reverse_bits": True}, "bits in reverse order"),
        ({"predictor": 34892}, "predictor 34892"),
        ({"predictor": 2, "dtype": np.dtype("c8")}, "predictor 2 on complex64"),
    ],
)
def test_what_is_left_to_gdal_is_said(changes, reason):
    assert unsupported_reason(codec()) == ""
    assert reason in unsupported_reason(codec(**changes))
