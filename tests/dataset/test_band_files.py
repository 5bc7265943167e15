"""Bands in files of their own, whose pixels differ in size, place and CRS: each is resampled once, by itself."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import torch
from affine import Affine
from rasterio.warp import Resampling, reproject

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

WEST, NORTH = 600_000.0, 5_300_000.0
EXTENT = 2400.0
BANDS = {"B02": 10.0, "B05": 20.0, "B01": 60.0}


class Scenes(gs.RasterDataset):
    filename_glob = "*.tif"
    filename_regex = r"s_(?P<date>\d{8})_(?P<band>B\d\d)"
    all_bands = tuple(BANDS)
    separate_files = True


def place(res, west=WEST, north=NORTH):
    return Affine(res, 0, west, 0, -res, north)


def query(xmin, ymax, width, height, res=10.0):
    """Offsets in metres from the scene's upper left corner, sizes in pixels."""
    x, y = WEST + xmin, NORTH - ymax
    return slice(x, x + width * res, res), slice(y - height * res, y, res)


def bilinear(data, res, xmin, ymax, width, height, step):
    """Linear interpolation between pixel centres, held constant past the outermost."""

    def line(values, axis, first, count):
        at = np.clip((first + (np.arange(count) + 0.5) * step) / res - 0.5, 0, values.shape[axis] - 1)
        low = np.minimum(at.astype(int), values.shape[axis] - 2)
        part = (at - low)[:, None] if axis == 0 else at - low
        return np.take(values, low, axis) * (1 - part) + np.take(values, low + 1, axis) * part

    return line(line(data.astype(float), 0, ymax, height), 1, xmin, width)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    root = tmp_path_factory.mktemp("separate")
    rng = np.random.default_rng(5)
    pixels = {}
    for band, res in BANDS.items():
        side = int(EXTENT / res)
        pixels[band] = rng.integers(1, 10_000, (side, side)).astype(np.uint16)
        write_cog(
            root / f"s_20230101_{band}.tif",
            pixels[band],
            transform=place(res),
            blocksize=128,
            overviews=False,
            nodata=0,
        )
    return SimpleNamespace(root=root, pixels=pixels)


def test_the_first_band_sets_the_pixel_size(scene):
    assert Scenes(scene.root).res == (10.0, 10.0)
    assert Scenes(scene.root, bands=("B01", "B02")).res == (60.0, 60.0)
    assert len(Scenes(scene.root)) == 1


@pytest.mark.parametrize("corner", [(0, 0), (370, 1110), (1990, 1760), (135, 245)])
def test_10_20_and_60_m_by_nearest_are_the_pixels_under_each_centre(scene, corner):
    image = Scenes(scene.root, resampling="nearest")[query(*corner, 40, 33)]["image"]
    assert image.shape == (3, 33, 40)
    xs, ys = corner[0] + (np.arange(40) + 0.5) * 10, corner[1] + (np.arange(33) + 0.5) * 10
    for channel, (band, res) in zip(image, BANDS.items(), strict=True):
        expected = scene.pixels[band][(ys // res).astype(int)[:, None], (xs // res).astype(int)]
        assert np.array_equal(channel, expected)


@pytest.mark.parametrize("corner", [(0, 0), (370, 1110), (2000, 2070), (135, 245)])
def test_10_20_and_60_m_by_bilinear_are_interpolated_once(scene, corner):
    image = Scenes(scene.root)[query(*corner, 40, 33)]["image"].numpy()
    for channel, (band, res) in zip(image, BANDS.items(), strict=True):
        expected = bilinear(scene.pixels[band], res, *corner, 40, 33, 10.0)
        assert np.abs(channel - expected).max() <= 0.5 + 1e-6
    if corner[0] % 10 == 0:
        assert np.array_equal(image[0], scene.pixels["B02"][corner[1] // 10 :, corner[0] // 10 :][:33, :40])


def test_at_20_m_the_fine_band_is_averaged_the_middle_one_pasted_the_coarse_one_spread(scene):
    image = Scenes(scene.root, resampling="average")[query(240, 360, 30, 24, res=20.0)]["image"].numpy()
    fine = scene.pixels["B02"][36:84, 24:84].reshape(24, 2, 30, 2).mean((1, 3))
    assert np.array_equal(image[0], np.floor(fine + 0.5))
    assert np.array_equal(image[1], scene.pixels["B05"][18:42, 12:42])
    assert np.array_equal(image[2], scene.pixels["B01"][6:14, 4:14].repeat(3, 0).repeat(3, 1))


def test_each_band_equals_a_dataset_of_that_band_alone(scene):
    at = query(133, 247, 50, 50, res=17.0)
    together = Scenes(scene.root, bands=("B01", "B02", "B05"), res=10.0, resampling="cubic")[at]["image"]
    for channel, band in zip(together, ("B01", "B02", "B05"), strict=True):
        alone = Scenes(scene.root, bands=(band,), res=10.0, resampling="cubic")[at]["image"]
        assert torch.equal(channel, alone[0])


def test_batches_equal_single_queries(scene):
    dataset = Scenes(scene.root, valid=True)
    places = [query(0, 0, 32, 32), query(-100, -100, 32, 32), query(905, 905, 32, 32), query(0, 0, 32, 32)]
    for sample, at in zip(dataset.__getitems__(places), places, strict=True):
        expected = dataset[at]
        assert sample.keys() == expected.keys()
        assert all(torch.equal(sample[key], expected[key]) for key in sample)


def test_one_request_for_each_band_under_a_small_window(scene):
    with RangeServer(scene.root) as server:
        dataset = Scenes([server.url_for(f"s_20230101_{band}.tif") for band in BANDS])
        server.reset()
        dataset[query(100, 100, 20, 20)]
        assert sorted(served.path for served in server.log) == sorted(f"s_20230101_{band}.tif" for band in BANDS)


def test_only_the_bands_wanted_are_opened(scene):
    with RangeServer(scene.root) as server:
        Scenes([server.url_for(f"s_20230101_{band}.tif") for band in BANDS], bands=("B05",))
        assert {served.path for served in server.log} == {"s_20230101_B05.tif"}


@pytest.fixture
def ragged(tmp_path):
    """A shifted band, one that ends half way, and one in the next zone."""
    rng = np.random.default_rng(6)
    pixels = {}
    for band, res, side, west in (("B02", 10, 120, WEST), ("B05", 20, 30, WEST + 7), ("B01", 60, 60, 151_600.0)):
        pixels[band] = rng.integers(1, 200, (side, side)).astype(np.uint8)
        north, crs = (NORTH, "EPSG:32632") if band != "B01" else (5_310_200.0, "EPSG:32633")
        write_cog(
            tmp_path / f"s_20230101_{band}.tif",
            pixels[band],
            crs=crs,
            transform=place(res, west, north),
            blocksize=128,
            overviews=False,
        )
    return SimpleNamespace(root=tmp_path, pixels=pixels)


def test_bands_of_other_grids_and_crss(ragged):
    sample = Scenes(ragged.root, resampling="nearest", fill=-1, valid=True)[query(0, 0, 120, 120)]
    fine, shifted, foreign = sample["image"].numpy()
    assert np.array_equal(fine, ragged.pixels["B02"])
    at = (np.arange(120) + 0.5) * 10
    cols, rows = np.floor((at - 7) / 20).astype(int), (at // 20).astype(int)
    inside = (cols >= 0) & (cols < 30) & (rows < 30)[:, None]
    expected = ragged.pixels["B05"].astype(int)[np.clip(rows, 0, 29)[:, None], np.clip(cols, 0, 29)]
    assert np.array_equal(shifted, np.where(inside, expected, -1))
    expected = np.full((120, 120), -1, np.int16)
    with rasterio.open(ragged.root / "s_20230101_B01.tif") as source:
        reproject(
            source.read(1).astype(np.int16),
            expected,
            src_transform=source.transform,
            src_crs=source.crs,
            dst_transform=place(10.0),
            dst_crs="EPSG:32632",
            dst_nodata=-1,
            resampling=Resampling.nearest,
            tolerance=1e-9,
        )
    assert 0.1 < (expected >= 0).mean() < 0.9
    assert np.array_equal(foreign, expected)


def test_a_band_that_ends_holds_its_fill_though_others_go_on(ragged):
    sample = Scenes(ragged.root, bands=("B02", "B05"), fill=255, valid=True)[query(700, 700, 40, 40)]
    assert np.array_equal(sample["image"][0], ragged.pixels["B02"][70:110, 70:110])
    assert (sample["image"][1] == 255).all()
    assert sample["mask_valid"].all()
    (batched,) = Scenes(ragged.root, bands=("B02", "B05"), fill=255).__getitems__([query(700, 700, 40, 40)])
    assert torch.equal(batched["image"], sample["image"])


def test_a_missing_band_s_file_is_named(scene, tmp_path):
    for band in ("B02", "B05"):
        os.link(scene.root / f"s_20230101_{band}.tif", tmp_path / f"s_20230101_{band}.tif")
    with pytest.raises(gs.NotFoundError, match=r"s_20230101_B01\.tif"):
        Scenes(tmp_path)


def test_a_pattern_that_does_not_name_the_band_is_refused(scene):
    """Every channel would be the same file's."""
    nameless = type("Nameless", (Scenes,), {"filename_regex": r"s_(?P<date>\d{8})"})
    with pytest.raises(gs.ConfigError, match="no group 'band'"):
        nameless(scene.root)
    assert len(nameless(scene.root / "s_20230101_B05.tif", bands=("B05",))) == 1


def test_bands_in_one_string_are_refused_with_advice(scene):
    with pytest.raises(gs.ConfigError, match=r"bands=\['B02'\]"):
        Scenes(scene.root, bands="B02")


def test_the_native_type_holds_all_bands(scene, tmp_path):
    for band, dtype in (("B02", "uint8"), ("B05", "float32"), ("B01", "uint16")):
        data = np.full((1, 64, 64), 7, dtype)
        write_cog(tmp_path / f"s_20230101_{band}.tif", data, transform=place(BANDS[band]), blocksize=128)
    dataset = Scenes(tmp_path, dtype="native")
    assert dataset.dtype == dataset[query(0, 0, 32, 32)]["image"].dtype == torch.float32
