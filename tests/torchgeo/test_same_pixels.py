"""On a raster's own grid, one scene and one CRS: the same pixels as TorchGeo's, bit for bit."""

import numpy as np
import pytest

import geostream as gs
from geostream.testing.rasters import random_window, write_cog

SHAPE = 300, 260


def both(theirs, paths, **attributes):
    """The same class from both libraries, on the same files."""
    return tuple(type("Both", (base,), attributes)(paths) for base in (theirs.RasterDataset, gs.RasterDataset))


def check(pair, window, key, outside=0.5):
    rng = np.random.default_rng(11)
    places = [random_window(rng, SHAPE, 128, outside=outside) for _ in range(30)]
    for at in places:
        x, y = window(at.col_off, at.row_off, at.width, at.height)
        expected, ours = (dataset[x, y][key] for dataset in pair)
        assert ours.dtype == expected.dtype
        assert np.array_equal(ours, expected, equal_nan=True), at


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("uint8", {}),
        ("uint8", {"nodata": 0}),
        ("uint8", {"nodata": 7, "interleave": "band"}),
        ("uint16", {"nodata": 0, "predictor": 2}),
        ("int16", {"nodata": -99, "compress": "LZW"}),
        ("float32", {"predictor": 3}),
        ("float32", {"nodata": float("nan")}),
        ("int8", {}),
        ("int32", {"nodata": -5}),
        ("uint32", {}),
        ("float64", {"nodata": -1.5}),
        ("uint8", {"blocksize": None}),
        ("uint8", {"mask": np.indices(SHAPE).sum(0) % 7 > 0}),
    ],
)
def test_images(theirs, window, tmp_path, dtype, options):
    write_cog(tmp_path / "a.tif", shape=SHAPE, dtype=dtype, **{"blocksize": 128, **options})
    check(both(theirs, tmp_path, filename_glob="*.tif"), window, "image")


def test_images_with_an_alpha_band(theirs, window, tmp_path):
    data = np.random.default_rng(0).integers(0, 255, (4, *SHAPE), np.uint8)
    data[3] = np.where(np.indices(SHAPE).sum(0) % 7 > 1, 255, 0)
    write_cog(tmp_path / "a.tif", data, alpha=True, driver="GTiff", blocksize=128)
    check(both(theirs, tmp_path, filename_glob="*.tif"), window, "image")


def test_masks_with_a_colour_map(theirs, window, tmp_path):
    data = np.random.default_rng(0).integers(0, 9, (1, *SHAPE), np.uint8)
    colors = {value: (20 * value, 255 - value, 7, 255) for value in range(9)}
    write_cog(tmp_path / "a.tif", data, colormap=colors, blocksize=128)
    pair = both(theirs, tmp_path, filename_glob="*.tif", is_image=False)
    check(pair, window, "mask")
    known = pair[0].cmap  # 0.8 keeps the file's own dict
    expected = np.array(list(known.values())) / 255 if isinstance(known, dict) else known.colors
    assert np.allclose(pair[1].cmap.colors, expected)


@pytest.mark.parametrize("options", [{}, {"nodata": 255}])
def test_masks(theirs, window, tmp_path, options):
    data = np.random.default_rng(0).integers(0, 9, (1, *SHAPE), np.uint8)
    write_cog(tmp_path / "a.tif", data, blocksize=128, **options)
    check(both(theirs, tmp_path, filename_glob="*.tif", is_image=False), window, "mask")


def test_bands(theirs, window, tmp_path):
    write_cog(tmp_path / "a.tif", shape=SHAPE, count=4, blocksize=128)
    pair = both(theirs, tmp_path, all_bands=("R", "G", "B", "N"))
    assert pair[0].bounds == pair[1].bounds
    chosen = tuple(type(dataset)(tmp_path, bands=("N", "G")) for dataset in pair)
    check(chosen, window, "image")


def test_bands_in_files_of_their_own(theirs, window, tmp_path):
    for i, band in enumerate(("B1", "B2")):
        write_cog(tmp_path / f"s_{band}.tif", shape=SHAPE, count=1, dtype="uint16", seed=i, blocksize=128)
    attributes = {"filename_glob": "*_B1.tif", "filename_regex": r"s_(?P<band>B\d)", "all_bands": ("B1", "B2")}
    check(both(theirs, tmp_path, separate_files=True, **attributes), window, "image")


def test_scenes_side_by_side_whose_zeros_are_nodata(theirs, window, tmp_path):
    """More than was promised: two scenes, where every pixel is valid in all bands or in none."""
    for i in range(2):
        data = np.random.default_rng(i).integers(1, 255, (3, *SHAPE), np.uint8)
        data[:, 40 * i + 20 : 40 * i + 60] = 0
        write_cog(tmp_path / f"{i}.tif", data, nodata=0, blocksize=128)
    check(both(theirs, tmp_path, filename_glob="*.tif"), window, "image")


def test_times_and_bounds(theirs, window, tmp_path):
    for day in (1, 2):
        write_cog(tmp_path / f"a_2023010{day}.tif", shape=SHAPE, seed=day, blocksize=128, nodata=0)
    pair = both(theirs, tmp_path, filename_regex=r"a_(?P<date>\d{8})")
    assert pair[0].bounds == pair[1].bounds
    assert pair[0].res == pair[1].res
    assert list(pair[0].index.index) == list(pair[1].index.index)
    assert list(pair[0].index["filepath"]) == list(pair[1].index["filepath"])
    x, y = window(5, 5, 60, 60)
    theirs_, ours = (dataset[x, y, pair[1].index.index[1].left : pair[1].index.index[1].right] for dataset in pair)
    assert np.array_equal(theirs_["image"], ours["image"])
