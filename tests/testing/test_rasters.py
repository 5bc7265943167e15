"""The writers write the layout asked for, and what is read back is what was written."""

import numpy as np
import pytest
import rasterio
import tifffile
from affine import Affine

from geostream.grid import Window
from geostream.testing.rasters import (
    CLASS_COLORS,
    CLASSES,
    DEFAULT_TRANSFORM,
    random_window,
    reference_read,
    scene,
    scene_labels,
    write_cog,
)

PIXELS = scene(300, 420, 3, seed=5)


def first_page(path):
    with tifffile.TiffFile(path) as tif:
        return tif, tif.pages[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"compression": "ADOBE_DEFLATE", "tilelength": 256, "planarconfig": "CONTIG", "predictor": "NONE"}),
        ({"compress": "ZSTD", "predictor": 2}, {"compression": "ZSTD", "predictor": "HORIZONTAL"}),
        ({"compress": "LZW"}, {"compression": "LZW"}),
        ({"compress": "NONE"}, {"compression": "NONE"}),
        ({"compress": "PACKBITS"}, {"compression": "PACKBITS"}),
        ({"compress": "LERC"}, {"compression": "LERC"}),
        ({"compress": "WEBP", "quality": 100}, {"compression": "WEBP"}),
        ({"interleave": "band"}, {"planarconfig": "SEPARATE"}),
        ({"blocksize": (64, 128)}, {"tilelength": 64, "tilewidth": 128}),
        ({"blocksize": None}, {"is_tiled": False}),
    ],
)
def test_layouts(tmp_path, options, expected):
    path = write_cog(tmp_path / "deep" / "x.tif", PIXELS, **options)
    _, page = first_page(path)
    seen = {name: getattr(page, name) for name in expected}
    assert {name: getattr(value, "name", value) for name, value in seen.items()} == expected
    data, valid = reference_read(path)
    np.testing.assert_array_equal(data, PIXELS)
    assert valid.all()
    with rasterio.open(path) as dataset:
        assert dataset.crs.to_epsg() == 32632
        assert dataset.transform == DEFAULT_TRANSFORM


@pytest.mark.parametrize("driver", ["COG", "GTiff"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_cloud_layout_has_its_ifds_first(tmp_path, driver, bigtiff):
    path = write_cog(tmp_path / "x.tif", PIXELS, driver=driver, bigtiff=bigtiff, blocksize=128)
    with tifffile.TiffFile(path) as tif:
        assert tif.is_bigtiff is bigtiff
        assert len(tif.pages) == 3
        assert max(page.offset for page in tif.pages) < min(min(page.dataoffsets) for page in tif.pages)


@pytest.mark.parametrize("mask", [None, PIXELS[0] > 40])
def test_ifds_at_end(tmp_path, mask):
    path = write_cog(tmp_path / "x.tif", PIXELS, ifds_at_end=True, mask=mask, blocksize=128)
    with tifffile.TiffFile(path) as tif:
        pages = list(tif.pages)
        assert pages[0].offset > max(offset for page in pages for offset in page.dataoffsets)
        assert len(pages) == (3 if mask is None else 6)
    np.testing.assert_array_equal(reference_read(path)[0], PIXELS)


@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"interleave": "band"}, {"predictor": 2}])
def test_big_endian(tmp_path, options):
    pixels = scene(200, 200, 2, dtype="uint16")
    path = write_cog(tmp_path / "x.tif", pixels, big_endian=True, **options)
    tif, _ = first_page(path)
    assert tif.byteorder == ">"
    np.testing.assert_array_equal(reference_read(path)[0], pixels)


@pytest.mark.parametrize("driver", ["COG", "GTiff"])
@pytest.mark.parametrize("nodata", [None, 7])
def test_sparse(tmp_path, driver, nodata):
    path = write_cog(tmp_path / "x.tif", shape=(512, 512), blocksize=128, sparse=True, driver=driver, nodata=nodata)
    _, page = first_page(path)
    assert page.databytecounts[0] == 0
    assert page.databytecounts[-1] > 0
    data, valid = reference_read(path)
    assert (data[:, :256, :256] == (nodata or 0)).all()
    assert valid[:256, :256].any() == (nodata is None)


def test_masks(tmp_path):
    mask = PIXELS[0] > 40
    valid = reference_read(write_cog(tmp_path / "internal.tif", PIXELS, mask=mask))[1]
    np.testing.assert_array_equal(valid, mask)
    assert not (tmp_path / "internal.tif.msk").exists()
    alpha = np.concatenate([PIXELS, mask[None].astype("uint8") * 255])
    for name in ("COG", "GTiff"):
        valid = reference_read(write_cog(tmp_path / f"{name}.tif", alpha, alpha=True, driver=name))[1]
        np.testing.assert_array_equal(valid, mask)
    rgbn = reference_read(write_cog(tmp_path / "rgbn.tif", alpha))[1]
    assert rgbn.all()


def test_jpeg(tmp_path):
    for name, options in {"rgb": {"photometric": "RGB"}, "ycbcr": {"photometric": "YCBCR"}, "default": {}}.items():
        path = write_cog(tmp_path / f"{name}.tif", PIXELS, compress="JPEG", **options)
        _, page = first_page(path)
        assert page.photometric.name == ("RGB" if name == "rgb" else "YCBCR")
        assert np.abs(reference_read(path)[0].astype(int) - PIXELS).mean() < 8


def test_overviews_tags_descriptions_colormap(tmp_path):
    labels = scene_labels(300, 420, seed=5)
    path = write_cog(
        tmp_path / "labels.tif",
        labels,
        colormap=dict(enumerate(CLASS_COLORS)),
        overviews=[3, 9],
        overview_resampling="mode",
        tags={"TIFFTAG_DATETIME": "2024:01:02 03:04:05"},
        descriptions=["cover"],
        crs=4326,
        transform=Affine(0.1, 0, 8, 0, -0.1, 50),
    )
    with rasterio.open(path) as dataset:
        assert dataset.overviews(1) == [3, 9]
        assert dataset.tags()["TIFFTAG_DATETIME"] == "2024:01:02 03:04:05"
        assert dataset.descriptions == ("cover",)
        assert dataset.colormap(1)[3][:3] == CLASS_COLORS[3]
        assert dataset.crs.to_epsg() == 4326
    with rasterio.open(write_cog(tmp_path / "plain.tif", labels, overviews=False)) as dataset:
        assert dataset.overviews(1) == []


@pytest.mark.parametrize(
    "options",
    [{"big_endian": True}, {"interleave": "band"}, {"ifds_at_end": True}, {"photometric": "RGB"}, {"blocksize": None}],
)
def test_what_the_cog_driver_cannot_write(tmp_path, options):
    with pytest.raises(ValueError, match='driver="GTiff"'):
        write_cog(tmp_path / "x.tif", PIXELS, driver="COG", **options)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "float32", "float64"])
def test_every_type(tmp_path, dtype):
    path = write_cog(tmp_path / "x.tif", shape=(64, 64), count=2, dtype=dtype, blocksize=128)
    np.testing.assert_array_equal(reference_read(path)[0], scene(64, 64, 2, dtype=dtype))


def test_scene_is_reproducible_and_matches_its_labels():
    one, two = scene(256, 256, 5, seed=9), scene(256, 256, 5, seed=9)
    np.testing.assert_array_equal(one, two)
    assert (scene(256, 256, 5, seed=10) != one).any()
    image, labels = scene(1024, 1024, 4, seed=1).astype(float), scene_labels(1024, 1024, seed=1)
    present = np.unique(labels)
    assert present.tolist() == list(range(len(CLASSES)))
    means = np.array([image[:, labels == value].mean(axis=1) for value in present])
    nearest = np.abs(image[:, None] - means.T[:, :, None, None]).sum(axis=0).argmin(axis=0)
    assert (nearest == labels).mean() > 0.75


def test_reference_pads_and_masks(tmp_path):
    pixels = np.arange(1, 26, dtype="int16").reshape(1, 5, 5)
    pixels[0, 0, 0] = -5
    path = write_cog(tmp_path / "x.tif", pixels, nodata=-5)
    data, valid = reference_read(path, Window(-1, -2, 4, 4))
    np.testing.assert_array_equal(data[0], [[-5] * 4, [-5] * 4, [-5, -5, 2, 3], [-5, 6, 7, 8]])
    np.testing.assert_array_equal(valid, [[0] * 4, [0] * 4, [0, 0, 1, 1], [0, 1, 1, 1]])
    data, valid = reference_read(path, Window(50, 50, 2, 3))
    assert data.shape == (1, 3, 2)
    assert (data == -5).all()
    assert not valid.any()


def test_reference_of_some_bands_takes_their_nodata(tmp_path):
    pixels = np.ones((2, 4, 4), dtype="uint8")
    pixels[0, 0, 0] = pixels[:, 1, 1] = 9
    path = write_cog(tmp_path / "x.tif", pixels, nodata=9)
    assert reference_read(path)[1].sum() == 15
    assert reference_read(path, bands=[1])[1].sum() == 14
    assert reference_read(path, bands=[2])[1].sum() == 15
    assert reference_read(path, bands=[2, 1])[0].shape == (2, 4, 4)


def test_random_windows_overlap_the_raster():
    rng = np.random.default_rng(0)
    whole = Window(0, 0, 40, 30)
    inside = [random_window(rng, (30, 40), 50) for _ in range(200)]
    assert all(window.intersection(whole) == window for window in inside)
    drawn = [random_window(rng, (30, 40), (20, 25), outside=1.0) for _ in range(200)]
    assert all(window.intersection(whole) is not None for window in drawn)
    assert any(window.intersection(whole) != window for window in drawn)
    assert max(w.height for w in drawn) == 20
    assert max(w.width for w in drawn) == 25
