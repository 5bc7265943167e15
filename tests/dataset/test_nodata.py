"""A dataset class that says itself which value stands for no data, as TorchGeo's may since 0.10."""

import copy
import pickle

import numpy as np
import pytest
import torch
from affine import Affine

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

WEST, NORTH, SIDE = 600_000.0, 5_300_000.0, 160
PLACE = {"transform": Affine(10, 0, WEST, 0, -10, NORTH), "blocksize": 128, "overviews": False}
WHOLE = slice(WEST, WEST + 10 * SIDE), slice(NORTH - 10 * SIDE, NORTH)


class Sevens(gs.RasterDataset):
    filename_glob = "*.tif"
    nodata = 7


def pixels(seed, count=1):
    data = np.random.default_rng(seed).integers(0, 250, (count, SIDE, SIDE), np.uint8)
    data[:, 20:60, 30:90] = 7
    return data


@pytest.mark.parametrize("declared", [{}, {"nodata": 0}, {"mask": np.indices((SIDE, SIDE)).sum(0) % 5 > 0}])
def test_the_class_s_value_counts_and_not_what_the_file_declares(tmp_path, declared):
    write_cog(tmp_path / "a.tif", pixels(0, 2), **PLACE, **declared)
    sample = Sevens(tmp_path, valid=True)[WHOLE]
    data = pixels(0, 2)
    assert np.array_equal(sample["image"], data)
    assert np.array_equal(sample["mask_valid"][0], (data != 7).any(0))
    filled = Sevens(tmp_path, fill=-1)[WHOLE]["image"]
    assert np.array_equal(filled, np.where((data != 7).any(0), data.astype(int), -1))


def test_an_alpha_band_is_a_band_like_others(tmp_path):
    data = pixels(1, 4)
    data[3] = np.where(np.indices((SIDE, SIDE)).sum(0) % 3, 255, 0)
    write_cog(tmp_path / "a.tif", data, alpha=True, driver="GTiff", **PLACE)
    sample = Sevens(tmp_path, valid=True, bands=(1, 2, 3))[WHOLE]
    assert np.array_equal(sample["mask_valid"][0], (data[:3] != 7).any(0))


def test_scenes_behind_show_through_the_holes(tmp_path):
    write_cog(tmp_path / "a.tif", pixels(0), **PLACE)
    write_cog(tmp_path / "b.tif", np.full((1, SIDE, SIDE), 99, np.uint8), **PLACE)
    dataset = Sevens(tmp_path)
    assert len(dataset.requests(WHOLE)) == 2
    data = pixels(0)
    assert np.array_equal(dataset[WHOLE]["image"], np.where(data == 7, 99, data))


def test_the_margin_outside_has_the_class_s_value(tmp_path):
    write_cog(tmp_path / "a.tif", pixels(0), nodata=0, **PLACE)
    x, y = WHOLE
    image = Sevens(tmp_path)[x.start - 100 : x.stop, y]["image"]
    assert (image[:, :, :10] == 7).all()


def test_resampling_leaves_the_value_out(tmp_path):
    data = np.full((1, SIDE, SIDE), 100, np.uint8)
    data[:, ::2, ::2] = 7
    write_cog(tmp_path / "a.tif", data, **PLACE)
    x, y = WHOLE
    image = Sevens(tmp_path)[x.start : x.stop : 20, y.start : y.stop : 20]["image"]
    assert set(image.unique().tolist()) == {100.0}
    assert (gs.RasterDataset(tmp_path)[x.start : x.stop : 20, y.start : y.stop : 20]["image"] < 100).all()


def test_two_classes_of_one_file_do_not_disturb_each_other(tmp_path):
    """Their tiles are the same, what is valid of them is not: also where headers are read when first needed."""
    write_cog(tmp_path / "a.tif", pixels(0), **PLACE)
    with RangeServer(tmp_path) as server:
        url = server.url_for("a.tif")
        index = gs.build_index([url])
        index.save(tmp_path / "index.parquet")
        bare = gs.load_index(tmp_path / "index.parquet")
        server.reset()
        plain = type("Plain", (gs.RasterDataset,), {})(index=bare, valid=True)[WHOLE]
        ours = Sevens(index=bare, valid=True)[WHOLE]
        eights = type("Eights", (gs.RasterDataset,), {"nodata": 8})(index=bare, valid=True)[WHOLE]
    assert plain["mask_valid"].all()
    assert np.array_equal(ours["mask_valid"], pixels(0) != 7)
    assert np.array_equal(eights["mask_valid"], pixels(0) != 8)
    assert torch.equal(plain["image"], ours["image"])


def test_copies_keep_it(tmp_path):
    write_cog(tmp_path / "a.tif", pixels(0), **PLACE)
    dataset = Sevens(tmp_path, valid=True)
    for twin in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert torch.equal(twin[WHOLE]["mask_valid"], dataset[WHOLE]["mask_valid"])


def test_a_value_of_an_instance_of_the_class_and_nan(tmp_path):
    data = pixels(0).astype(np.float32)
    data[:, 5:9] = np.nan
    write_cog(tmp_path / "a.tif", data, nodata=3, **PLACE)
    nans = type("Nans", (gs.RasterDataset,), {"nodata": float("nan")})
    assert np.array_equal(nans(tmp_path, valid=True)[WHOLE]["mask_valid"], ~np.isnan(data))


def test_numpy_s_numbers_are_numbers(tmp_path):
    write_cog(tmp_path / "a.tif", pixels(0), **PLACE)
    numpys = type("NumPys", (gs.RasterDataset,), {"nodata": np.uint8(7)})
    filled = numpys(tmp_path, fill=np.float32(-1))[WHOLE]["image"]
    assert torch.equal(filled, Sevens(tmp_path, fill=-1)[WHOLE]["image"])


def test_what_is_no_number_is_refused(tmp_path):
    write_cog(tmp_path / "a.tif", pixels(0), **PLACE)
    with pytest.raises(gs.ConfigError, match="nodata"):
        type("Words", (gs.RasterDataset,), {"nodata": "none"})(tmp_path)
