"""Which pixels are valid: rasterio's rules, value by value."""

import math

import numpy as np
import pytest
import rasterio

import geostream as gs
from geostream.testing.rasters import DEFAULT_TRANSFORM, reference_read, write_cog
from geostream.validity import differs_from_nodata

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("dtype", "nodata", "values", "expected"),
    [
        ("uint8", None, [0, 255], [True, True]),
        ("uint8", 0, [0, 1], [False, True]),
        ("uint8", 300, [0, 44], [True, True]),
        ("uint8", -1, [255], [True]),
        ("uint8", math.nan, [0, 255], [True, True]),
        ("uint8", 7.9, [7, 8], [False, True]),
        ("int64", -(2**63), [-(2**63), -(2**63) + 1], [False, True]),
        ("uint64", 2**64 - 1, [2**64 - 1, 2**64 - 2], [False, True]),
        ("float32", math.nan, [math.nan, 0, math.inf], [False, True, True]),
        ("float32", -9999.0, [-9999.0, -9998.0, math.nan], [False, True, True]),
        ("float32", math.inf, [math.inf, -math.inf, 0], [False, True, True]),
        ("float64", 1.0, [1.0, 1.0 + EPS, 1.0 + 8 * EPS], [False, False, True]),
        ("complex64", 0, [0, 1j, 1], [False, False, True]),
    ],
)
def test_difference_from_nodata(dtype, nodata, values, expected):
    assert differs_from_nodata(np.array(values, dtype), nodata).tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nodata", [1.0, -9999.0, 1e-40, 1e30, 0.1])
def test_nearly_equal_floats_are_told_apart_where_gdal_does(tmp_path, dtype, nodata):
    steps = np.concatenate([np.arange(-40, 41) * EPS / 4, [0.1, -0.1]])
    image = (nodata * (1 + steps)).astype(dtype)[None]
    image = np.stack([image, np.roll(image, 3)])
    path = write_cog(tmp_path / "a.tif", image, nodata=nodata, blocksize=16, driver="GTiff", overviews=False)
    for bands in (None, [1], [2]):
        _, valid = reference_read(path, None, bands)
        np.testing.assert_array_equal(gs.read(path, bands=bands).valid, valid)
        assert 0 < valid.sum() < valid.size


def holes(seed):
    return np.random.default_rng(seed).random((60, 70)) < 0.4


def test_any_band_with_data_makes_a_pixel_valid_and_a_subset_goes_by_its_own_bands(tmp_path):
    image = np.full((3, 60, 70), 9, np.uint8)
    image[0, holes(0)] = image[1, holes(1)] = image[2, holes(2)] = 0
    path = write_cog(tmp_path / "a.tif", image, nodata=0, blocksize=32, driver="GTiff")
    np.testing.assert_array_equal(gs.read(path).valid, ~(holes(0) & holes(1) & holes(2)))
    np.testing.assert_array_equal(gs.read(path, bands=[2]).valid, ~holes(1))
    np.testing.assert_array_equal(gs.read(path, bands=[3, 1]).valid, ~(holes(0) & holes(2)))
    np.testing.assert_array_equal(gs.read(path).band_valid, image != 0)


def test_zeros_are_data_where_no_nodata_is_declared(tmp_path):
    path = write_cog(tmp_path / "a.tif", np.zeros((1, 60, 70), np.uint8), blocksize=32, driver="GTiff")
    assert gs.read(path).valid.all()


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_alpha_decides_even_when_it_is_not_asked_for(tmp_path, interleave, dtype):
    image = np.full((4, 60, 70), 9, dtype)
    image[3] = np.where(holes(0), 0, 1)
    path = write_cog(
        tmp_path / "a.tif", image, alpha=True, blocksize=32, driver="GTiff", interleave=interleave, overviews=False
    )
    for bands in (None, [1], [4], [2, 4, 2]):
        patch = gs.read(path, bands=bands)
        np.testing.assert_array_equal(patch.valid, ~holes(0))
        assert patch.data.shape[0] == len(bands or "RGBA")


def test_a_mask_inside_the_file_decides(tmp_path):
    path = write_cog(tmp_path / "a.tif", np.zeros((2, 60, 70), np.uint8), mask=~holes(3), blocksize=32, driver="GTiff")
    for bands in (None, [2]):
        np.testing.assert_array_equal(gs.read(path, bands=bands).valid, ~holes(3))
    shifted = gs.read(path, window=(-5, 10, 40, 30)).valid
    np.testing.assert_array_equal(shifted[:, 5:], ~holes(3)[10:40, :35])
    assert not shifted[:, :5].any()


def test_four_bands_with_nodata_of_which_rasterio_takes_the_last_for_alpha(tmp_path):
    image = np.full((4, 60, 70), 9, np.uint8)
    image[0, holes(0)] = 0
    image[3, holes(1)] = 0
    path = write_cog(
        tmp_path / "a.tif", image, nodata=0, blocksize=32, driver="GTiff", photometric="RGB", overviews=False
    )
    for bands in (None, [1], [1, 2, 3]):
        _, valid = reference_read(path, None, bands)
        np.testing.assert_array_equal(gs.read(path, bands=bands).valid, valid)
    np.testing.assert_array_equal(gs.read(path, bands=[4, 3, 2, 1]).valid, ~holes(1))  # all bands, whatever their order


@pytest.mark.parametrize("layout", [{}, {"nodata": 7}, {"nodata": 0}, {"mask": ~holes(1)}, {"alpha": True}])
def test_sparse_tiles_are_what_gdal_makes_of_them(tmp_path, layout):
    image = np.full((3, 60, 70), layout.get("nodata", 0), np.uint8)
    image[:, 40:, 40:] = 9
    path = write_cog(tmp_path / "a.tif", image, sparse=True, blocksize=32, driver="GTiff", overviews=False, **layout)
    with gs.stats.measure() as measured:
        patch = gs.read(path)
    data, valid = reference_read(path)
    np.testing.assert_array_equal(patch.data, data)
    np.testing.assert_array_equal(patch.valid, valid)
    assert measured.tiles < (6 if "mask" not in layout else 12)


def test_alpha_beside_a_nodata_value_goes_by_that_value(tmp_path):
    image = np.random.default_rng(0).integers(0, 12, (4, 60, 70), dtype=np.uint8)
    path = write_cog(
        tmp_path / "a.tif",
        image,
        nodata=9,
        blocksize=32,
        driver="GTiff",
        photometric="RGB",
        alpha="YES",
        overviews=False,
    )
    with rasterio.open(path) as file, pytest.warns(rasterio.errors.NodataShadowWarning):
        expected = file.dataset_mask() > 0
    assert not np.array_equal(expected, image[3] != 0)
    np.testing.assert_array_equal(gs.read(path).valid, expected)


def test_nearest_keeps_what_lies_under_a_mask(tmp_path):
    image = np.random.default_rng(0).integers(10, 255, (3, 120, 140), dtype=np.uint8)
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "width": 140, "height": 120, "count": 3, "dtype": "uint8", "nodata": 3}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", **profile, crs="EPSG:32632", transform=DEFAULT_TRANSFORM) as file,
    ):
        file.write(image)
        file.write_mask(np.arange(140)[None] > np.arange(120)[:, None])
    with rasterio.open(path) as file:
        expected = file.read(out_shape=(3, 60, 70))
        mask = file.dataset_mask(out_shape=(60, 70)) > 0
    patch = gs.read(path, shape=(60, 70))
    np.testing.assert_array_equal(patch.data, expected)
    np.testing.assert_array_equal(patch.valid, mask)
    beyond = gs.read(path, window=(-40, 0, 80, 120), shape=(60, 40))
    assert (beyond.data[:, :, :20] == 3).all()
    np.testing.assert_array_equal(beyond.data[:, :, 20:], expected[:, :, :20])
