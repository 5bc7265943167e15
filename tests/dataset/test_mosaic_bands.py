"""Mosaics of scenes whose bands are not valid in the same places, judged by plain NumPy."""

import numpy as np
import pytest
import rasterio
import torch
from affine import Affine

import geostream as gs

SIDE, WEST, NORTH = 96, 600_000.0, 5_300_000.0
PLACE = Affine(10, 0, WEST, 0, -10, NORTH)
WHOLE = slice(WEST, WEST + 10 * SIDE), slice(NORTH - 10 * SIDE, NORTH)
NODATA = (0, 200, 7)
POLICIES = ["first", "last", "newest", "oldest", "min", "max", "mean"]
DAYS = {"a": 2, "b": 3, "c": 1}
ORDER = {"first": "abc", "last": "cba", "newest": "bac", "oldest": "cab", "min": "abc", "max": "abc", "mean": "abc"}


class Scenes(gs.RasterDataset):
    filename_glob = "*.tif"
    filename_regex = r"\w_(?P<date>\d{8})"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Three scenes of three bands, each band with a nodata value of its own, which stands all over the place.

    GeoTIFF holds one value for all bands; a VRT beside it holds one for each.
    """
    root = tmp_path_factory.mktemp("bands")
    rng = np.random.default_rng(3)
    data = {}
    for name, day in DAYS.items():
        pixels = rng.integers(1, 100, (3, SIDE, SIDE), np.uint8)
        for band, value in enumerate(NODATA):
            pixels[band][rng.random((SIDE, SIDE)) < 0.4] = value
        data[name] = pixels
        profile = {"width": SIDE, "height": SIDE, "count": 3, "dtype": "uint8", "crs": "EPSG:32632", "transform": PLACE}
        (root / "data").mkdir(exist_ok=True)
        with rasterio.open(root / "data" / f"{name}.tif", "w", driver="GTiff", **profile) as file:
            file.write(pixels)
        bands = "".join(
            f'<VRTRasterBand dataType="Byte" band="{band}"><NoDataValue>{value}</NoDataValue><SimpleSource>'
            f'<SourceFilename relativeToVRT="1">data/{name}.tif</SourceFilename><SourceBand>{band}</SourceBand>'
            "</SimpleSource></VRTRasterBand>"
            for band, value in enumerate(NODATA, 1)
        )
        (root / f"{name}_2023010{day}.vrt").write_text(
            f'<VRTDataset rasterXSize="{SIDE}" rasterYSize="{SIDE}"><SRS>EPSG:32632</SRS>'
            f"<GeoTransform>{WEST}, 10, 0, {NORTH}, 0, -10</GeoTransform>{bands}</VRTDataset>"
        )
    return root, data


def expected(data, policy, fill):
    """By the rules of docs/datasets.md: values (C, H, W) float64, and where a pixel is valid."""
    stack = np.stack([data[name] for name in ORDER[policy]]).astype(float)
    nodata = np.array(NODATA)[:, None, None]
    bands = stack != nodata
    pixels = bands.any(axis=1)
    valid = pixels.any(axis=0)
    chosen = np.take_along_axis(stack, pixels.argmax(axis=0)[None, None], axis=0)[0]
    if policy in ("min", "max", "mean"):
        counted = np.where(bands, stack, np.nan)
        with np.errstate(all="ignore"):
            numbers = {"min": np.fmin.reduce, "max": np.fmax.reduce, "mean": np.nanmean}[policy](counted, axis=0)
        chosen = np.where(bands.any(axis=0), numbers, chosen)
    return np.where(valid, chosen, nodata if fill is None else fill), valid


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("fill", [None, -9])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_with_a_nodata_value_for_each_band(scenes, policy, fill):
    root, data = scenes
    dataset = type("Vrts", (Scenes,), {"filename_glob": "*.vrt"})(root, mosaic=policy, valid=True, fill=fill)
    sample = dataset[WHOLE]
    pixels, valid = expected(data, policy, fill)
    assert 0.9 < valid.mean() < 1
    assert np.array_equal(sample["mask_valid"][0], valid)
    np.testing.assert_allclose(sample["image"].numpy(), pixels, rtol=1e-6)
    (batched,) = dataset.__getitems__([WHOLE])
    assert all(torch.equal(batched[key], sample[key]) for key in sample)


@pytest.mark.parametrize("policy", POLICIES)
def test_some_bands_of_all(scenes, policy):
    """Validity is that of the bands read."""
    root, data = scenes
    vrts = type("Vrts", (Scenes,), {"filename_glob": "*.vrt", "all_bands": ("x", "y", "z")})
    sample = vrts(root, bands=("y",), mosaic=policy, valid=True)[WHOLE]
    y = np.stack([data[name][1] for name in ORDER[policy]])
    valid = (y != 200).any(axis=0)
    assert np.array_equal(sample["mask_valid"][0], valid)
    if policy not in ("min", "max", "mean"):
        first = np.take_along_axis(y, (y != 200).argmax(axis=0)[None], axis=0)[0]
        assert np.array_equal(sample["image"][0], np.where(valid, first, 200))


@pytest.mark.parametrize(("dtype", "mean"), [(None, 1.5), (torch.float64, 1.5), ("native", 2), (torch.int32, 2)])
def test_a_mean_keeps_its_fraction_where_samples_can_hold_it(tmp_path, dtype, mean):
    profile = {"width": 64, "height": 64, "count": 1, "dtype": "uint8", "crs": "EPSG:32632", "transform": PLACE}
    for name, value in (("a", 1), ("b", 2)):
        with rasterio.open(tmp_path / f"{name}_20230101.tif", "w", driver="GTiff", **profile) as file:
            file.write(np.full((1, 64, 64), value, np.uint8))
    image = Scenes(tmp_path, mosaic="mean", dtype=dtype)[slice(WEST, WEST + 320), slice(NORTH - 320, NORTH)]["image"]
    assert image.unique().tolist() == [mean]
    labels = type("Labels", (Scenes,), {"is_image": False})(tmp_path, mosaic="mean")
    assert labels[slice(WEST, WEST + 320), slice(NORTH - 320, NORTH)]["mask"].unique().tolist() == [2]
