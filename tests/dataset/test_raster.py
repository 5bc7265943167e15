"""RasterDataset on one scene, several scenes, other grids and other times."""

import copy
import os
import pickle
import threading
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
import torch
from affine import Affine
from rasterio.enums import Resampling

import geostream as gs
from geostream.testing.rasters import write_cog

from .conftest import NORTH, RES, SIDE, WEST, Images, Labels, at


def test_a_sample_has_the_keys_shapes_and_types_of_torchgeo(images, archive):
    sample = images[at(0, 30)]
    assert list(sample) == ["bounds", "transform", "image"]
    assert sample["image"].dtype == torch.float32
    assert np.array_equal(sample["image"], archive.pixels["img_a"][:, 30:94, :64])
    x, y = at(0, 30)
    t = images.bounds[2]
    assert sample["bounds"].dtype == sample["transform"].dtype == torch.float64
    numbers = [x.start, x.stop, RES, y.start, y.stop, RES, t.start.timestamp(), t.stop.timestamp(), 1]
    assert sample["bounds"].tolist() == numbers
    assert sample["transform"].tolist() == [RES, 0, x.start, 0, -RES, y.stop, 0, 0, 1]


def test_a_mask_is_int64_without_a_channel_axis(labels, archive):
    sample = labels[at(10, 40)]
    assert "image" not in sample
    assert sample["mask"].dtype == torch.int64
    assert np.array_equal(sample["mask"], archive.pixels["lab_a"][0, 40:104, 10:74])


def test_index_bounds_and_len_describe_the_scenes(images, archive):
    assert len(images) == 2
    assert images.files == [str(archive.img_a), str(archive.img_b)]
    assert images.index.index.name == "datetime"
    assert images.index.index.closed == "both"
    assert list(images.index["filepath"]) == images.files
    assert images.index.total_bounds.tolist() == [WEST, NORTH - SIDE * RES, WEST + 480 * RES, NORTH]
    assert images.bounds[0] == slice(WEST, WEST + 480 * RES, RES)
    assert images.bounds[2] == slice(
        pd.Timestamp("2023-01-01"), pd.Timestamp("2023-01-03") - pd.Timedelta(microseconds=1), 1
    )
    assert images.res == (RES, RES)
    assert images.crs.to_epsg() == 32632


def test_paths_may_be_directories_files_globs_and_several(archive):
    both = [str(archive.img_a), str(archive.img_b)]
    assert Images(str(archive.root)).files == both
    assert Images([archive.img_b, archive.img_a, archive.root]).files == both
    assert Images(archive.root / "*_a_*").files == both[:1]
    assert Images(str(archive.img_b)).files == both[1:]
    assert gs.RasterDataset(p for p in both).files == both


def test_files_can_be_listed_before_construction(archive):
    class Lazy(Images):
        def __init__(self, paths):
            self.paths = paths
            self.seen = self.files
            super().__init__(paths)

    dataset = Lazy(archive.root)
    assert dataset.seen == dataset.files


def test_bands_are_read_in_the_order_asked_for(archive):
    rows = slice(30, 94)
    sample = Images(archive.root, bands=["B", "R"])[at(0, 30)]
    assert np.array_equal(sample["image"], archive.pixels["img_a"][[2, 0], rows, :64])
    by_number = gs.RasterDataset(archive.img_a, bands=[2])[at(0, 30)]
    assert np.array_equal(by_number["image"], archive.pixels["img_a"][[1], rows, :64])


def test_transforms_are_applied(archive):
    dataset = Images(archive.root, transforms=lambda sample: {"half": sample["image"] / 2})
    assert list(dataset[at(0, 0)]) == ["half"]


def test_overlaps_are_merged_by_path_and_validity(archive):
    """Columns 160 to 319 of a are columns 0 to 159 of b; a has a hole there, over data of b."""
    a, b = archive.pixels["img_a"][:, 10:74, 160:224], archive.pixels["img_b"][:, 10:74, :64]
    place = at(160, 10)
    both_valid = (a != 0).any(0) & (b != 0).any(0)
    assert not both_valid.all()
    assert np.array_equal(Images(archive.root)[place]["image"], np.where((a != 0).any(0), a, b))
    assert np.array_equal(Images(archive.root, mosaic="last")[place]["image"], np.where((b != 0).any(0), b, a))
    assert np.array_equal(Images(archive.root, mosaic="newest")[place]["image"], np.where((b != 0).any(0), b, a))
    assert np.array_equal(Images(archive.root, mosaic="oldest")[place]["image"], np.where((a != 0).any(0), a, b))
    for policy, function in (("min", np.minimum), ("max", np.maximum)):
        combined = Images(archive.root, mosaic=policy)[place]["image"].numpy()
        assert np.array_equal(combined[:, both_valid], function(a, b)[:, both_valid])
    expected = (a.astype(float) + b) / 2
    for dtype, values in ((None, expected), ("native", np.floor(expected + 0.5))):
        mean = Images(archive.root, mosaic="mean", dtype=dtype)[place]["image"].numpy()
        assert np.array_equal(mean[:, both_valid], values[:, both_valid])


def test_time_series_stacks_dates_in_order(archive):
    sample = Images(archive.root, time_series=True, valid=True)[at(160, 10)]
    assert sample["image"].shape == (2, 3, 64, 64)
    assert np.array_equal(sample["image"][0], archive.pixels["img_a"][:, 10:74, 160:224])
    assert np.array_equal(sample["image"][1], archive.pixels["img_b"][:, 10:74, :64])
    assert sample["mask_valid"].shape == (2, 1, 64, 64)
    assert sample["dates"].tolist() == [pd.Timestamp(day).timestamp() for day in ("2023-01-01", "2023-01-02")]
    assert Labels(archive.root, time_series=True)[at(160, 10)]["mask"].shape == (2, 64, 64)


def test_time_series_mosaics_the_tiles_of_one_date(tmp_path, archive):
    (tmp_path / "img_a_20230101.tif").symlink_to(archive.img_a)
    (tmp_path / "img_b_20230101.tif").symlink_to(archive.img_b)
    sample = Images(tmp_path, time_series=True)[at(160, 10)]
    assert sample["image"].shape == (1, 3, 64, 64)
    assert torch.equal(sample["image"][0], Images(tmp_path)[at(160, 10)]["image"])


def test_only_scenes_of_the_time_asked_for_are_read(images, archive):
    place = at(160, 60)
    a, b = archive.pixels["img_a"][:, 60:124, 160:224], archive.pixels["img_b"][:, 60:124, :64]
    second = slice("2023-01-02", "2023-01-02")
    assert np.array_equal(images[*place, second]["image"], b)
    assert np.array_equal(images[*place, slice("2023-01-01T05", "2023-01-01T05")]["image"], a)
    aware = datetime(2023, 1, 2, 12, tzinfo=UTC)
    assert np.array_equal(images[*place, slice(aware, aware)]["image"], b)
    assert len(images.requests(place)) == 2
    assert len(images.requests((*place, slice(None, None, 2)))) == 1


def test_scenes_of_an_instant_are_found(tmp_path, archive):
    class Instants(Images):
        mint = maxt = pd.Timestamp("2021-06-01T10:00")
        filename_regex = ".*"

    dataset = Instants(archive.root)
    assert dataset.bounds[2] == slice(Instants.mint, Instants.mint, 1)
    assert dataset[at(0, 30)]["image"].shape == (3, 64, 64)
    assert Instants(archive.root)[*at(0, 30), slice("2021-06-01T10:00", "2021-06-02")]["image"].shape == (3, 64, 64)
    with pytest.raises(gs.QueryError):
        dataset[*at(0, 30), slice("2021-06-01T10:00:01", "2021-06-02")]


def test_scenes_that_only_touch_the_query_are_not_opened(images):
    assert [r.source.url for r in images.requests(at(96, 0))] == images.files[:1]
    assert [r.source.url for r in images.requests(at(97, 0))] == images.files
    x, y = at(96, 0)
    nudged = slice(x.start, x.stop + 1e-6)
    assert len(images.requests((nudged, y))) == 1


def test_pixels_without_data_hold_nodata_or_fill_and_say_so(archive):
    x, y = at(-32, -32)
    outside = Images(archive.root, valid=True)[x, y]
    assert (outside["image"][:, :32, :32] == 0).all()
    assert outside["mask_valid"].shape == (1, 64, 64)
    assert outside["mask_valid"].dtype == torch.bool
    assert outside["mask_valid"][0, 32:, 32:].all()
    assert outside["mask_valid"].sum() == 32 * 32
    filled = Images(archive.root, fill=-1.5)[x, y]["image"]
    assert (filled[:, :32] == -1.5).all()
    assert torch.equal(filled[:, 32:, 32:], outside["image"][:, 32:, 32:])
    assert (Labels(archive.root, fill=255)[x, y]["mask"][:32] == 255).all()


def test_the_files_nodata_is_the_default_fill(tmp_path):
    data = np.full((1, 64, 64), 7, np.int16)
    write_cog(tmp_path / "a.tif", data, transform=Affine(10, 0, 0, 0, -10, 640), nodata=-99)
    sample = gs.RasterDataset(tmp_path)[slice(-320, 320), slice(0, 640)]
    assert (sample["image"][:, :, :32] == -99).all()
    assert (sample["image"][:, :, 32:] == 7).all()


def test_nan_nodata_becomes_zero_in_integers_and_stays_in_floats(tmp_path):
    data = np.full((1, 64, 64), np.nan, np.float32)
    data[:, 10:] = 3
    write_cog(tmp_path / "a.tif", data, transform=Affine(10, 0, 0, 0, -10, 640), nodata=np.nan)
    assert gs.RasterDataset(tmp_path)[:]["image"].isnan().sum() == 640
    assert (gs.RasterDataset(tmp_path, dtype=torch.int64, fill=9)[:]["image"][:, :10] == 9).all()
    assert (gs.RasterDataset(tmp_path, dtype=torch.int64)[:]["image"][:, :10] == 0).all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint32", "float32", "float64"])
def test_native_keeps_the_files_dtype(tmp_path, dtype):
    path = write_cog(tmp_path / "a.tif", count=1, dtype=dtype, shape=(64, 64), predictor=1)
    dataset = gs.RasterDataset(path, dtype="native", valid=True)
    sample = dataset[:]
    assert sample["image"].dtype == getattr(torch, dtype) == dataset.dtype
    assert dataset.resampling == Resampling.bilinear
    shifted = gs.RasterDataset(path, dtype=torch.bfloat16)[:]
    assert shifted["image"].dtype == torch.bfloat16


def test_a_keyword_wins_over_and_does_not_hide_a_subclass_s_property(archive):
    class Picky(Images):
        @property
        def dtype(self):
            return torch.float64

        @property
        def resampling(self):
            return Resampling.nearest

    dataset = Picky(archive.root)
    assert dataset[at(0, 0)]["image"].dtype == torch.float64
    assert dataset.requests(at(0.5, 0))[0].resampling == "nearest"
    told = Picky(archive.root, dtype=torch.float16, resampling=Resampling.cubic)
    assert told[at(0, 0)]["image"].dtype == torch.float16
    assert told.requests(at(0.5, 0))[0].resampling == "cubic"
    assert told.dtype == torch.float64
    assert Images(archive.root, resampling="average").resampling == Resampling.average


def test_images_are_bilinear_and_masks_nearest_by_default(images, labels):
    assert images.resampling == Resampling.bilinear
    assert labels.resampling == Resampling.nearest


@pytest.mark.parametrize("shift", [0.0, 4e-4, -4e-4])
def test_offsets_below_a_thousandth_of_a_pixel_are_pasted(images, archive, shift):
    sample = images[at(3 + shift, 130 - shift)]
    assert np.array_equal(sample["image"], archive.pixels["img_a"][:, 130:194, 3:67])


def test_half_a_pixel_is_resampled_once_with_the_dataset_s_kernel(archive):
    a = archive.pixels["img_a"][:, 130:194, 3:68].astype(float)
    expected = np.floor((a[:, :, :-1] + a[:, :, 1:]) / 2 + 0.5)
    assert np.array_equal(Images(archive.root)[at(3.5, 130)]["image"], expected)
    nearest = Images(archive.root, resampling="nearest")[at(3.4, 130)]["image"]
    assert np.array_equal(nearest, a[:, :, :-1])


def test_a_scene_in_another_crs_is_warped_when_read(tmp_path, archive):
    """Rewritten into UTM 33, the scene reads back as itself within the error of two resamplings of smooth data."""
    ramp = np.add.outer(np.arange(200.0), np.arange(200.0))[None].astype(np.float32)
    write_cog(tmp_path / "a.tif", ramp, transform=Affine(10, 0, WEST, 0, -10, NORTH), predictor=3)
    there = gs.RasterDataset(tmp_path / "a.tif", crs="EPSG:32633", valid=True)
    assert there.crs.to_epsg() == 32633
    assert there.res == pytest.approx((10, 10), rel=0.05)
    everything = there[:]
    write_cog(
        tmp_path / "b.tif",
        everything["image"].numpy(),
        crs="EPSG:32633",
        transform=Affine(*everything["transform"].tolist()[:6]),
        mask=everything["mask_valid"][0].numpy(),
        predictor=3,
    )
    back = gs.RasterDataset([tmp_path / "b.tif"], crs="EPSG:32632", res=10)
    x, y = slice(WEST + 500, WEST + 1500), slice(NORTH - 1500, NORTH - 500)
    assert np.allclose(back[x, y]["image"], ramp[:, 50:150, 50:150], atol=0.2)


def test_footprints_follow_the_projection(archive):
    there = Images(archive.root, crs="EPSG:4326", res=1e-4)
    assert there.index.crs.to_epsg() == 4326
    assert len(there.index.geometry.iloc[0].exterior.coords) > 100
    assert there.index.geometry.iloc[0].area < there.index.geometry.iloc[0].envelope.area


def test_setting_the_crs_converts_the_resolution_and_replaces_the_index(images):
    before = images.index.copy()
    twin = copy.copy(images)
    twin.crs = "EPSG:3857"
    made = Images(images.paths, crs="EPSG:3857")
    assert twin.res == pytest.approx(made.res, rel=1e-9)
    assert twin.index.total_bounds == pytest.approx(made.index.total_bounds, abs=1e-6)
    assert images.index.equals(before)
    assert images.crs.to_epsg() == 32632
    x, y, _ = twin.bounds
    middle = slice((x.start + x.stop) / 2, (x.start + x.stop) / 2 + 100), slice((y.start + y.stop) / 2, None)
    assert torch.equal(twin[middle]["image"].isnan(), made[middle]["image"].isnan())
    twin.res = 20
    assert twin.res == (20.0, 20.0)
    twin.res = (20, 30)
    assert twin.bounds[1].step == 30.0
    with pytest.raises(gs.ConfigError):
        twin.res = -1


def test_an_index_that_was_cut_restricts_the_dataset(images):
    images.index = images.index.iloc[:1]
    assert images.bounds[0].stop == WEST + SIDE * RES
    assert len(images.requests(at(300, 0))) == 1


def test_bands_in_files_of_their_own(tmp_path, archive):
    for name in "ab":
        for i, band in enumerate("RGB"):
            data = archive.pixels[f"img_{name}"][i : i + 1]
            transform = Affine(RES, 0, WEST + 160 * (name == "b") * RES, 0, -RES, NORTH)
            write_cog(tmp_path / f"img_{name}_20230101_{band}.tif", data, transform=transform, nodata=0, blocksize=128)

    class Separate(Images):
        filename_glob = "*_R.tif"
        filename_regex = r"img_(?P<name>\w)_(?P<date>\d{8})_(?P<band>[RGB])"
        separate_files = True

    dataset = Separate(tmp_path, valid=True)
    assert len(dataset) == 2
    assert len(dataset.requests(at(160, 10))) == 6
    whole = Images(archive.root, valid=True)
    assert torch.equal(dataset[at(160, 10)]["image"], whole[at(160, 10)]["image"])
    assert torch.equal(dataset[at(160, 10)]["mask_valid"], whole[at(160, 10)]["mask_valid"])
    subset = Separate(tmp_path, bands=("B", "G"))
    assert torch.equal(subset[at(0, 0)]["image"], Images(archive.root, bands=("B", "G"))[at(0, 0)]["image"])

    class AllMatch(Separate):
        filename_glob = "*.tif"

    assert len(AllMatch(tmp_path)) == 2
    assert torch.equal(AllMatch(tmp_path)[at(160, 10)]["image"], dataset[at(160, 10)]["image"])


def test_bands_of_other_resolution_are_resampled_once(tmp_path):
    rng = np.random.default_rng(1)
    fine, coarse = rng.integers(0, 255, (1, 80, 80), np.uint8), rng.integers(0, 255, (1, 40, 40), np.uint8)
    write_cog(tmp_path / "s_F.tif", fine, transform=Affine(10, 0, 0, 0, -10, 800))
    write_cog(tmp_path / "s_C.tif", coarse, transform=Affine(20, 0, 0, 0, -20, 800))

    class Mixed(gs.RasterDataset):
        filename_glob = "*_F.tif"
        filename_regex = r"s_(?P<band>\w)"
        all_bands = ("F", "C")
        separate_files = True

    sample = Mixed(tmp_path, resampling="nearest")[:]
    assert np.array_equal(sample["image"][0], fine[0])
    assert np.array_equal(sample["image"][1], coarse[0].repeat(2, 0).repeat(2, 1))


def test_constructing_leaves_no_thread_behind(archive):
    before = set(threading.enumerate())
    Images(archive.root)
    assert set(threading.enumerate()) <= before


def test_datasets_pickle_and_copy(images, archive):
    expected = images[at(160, 10)]["image"]
    for twin in (pickle.loads(pickle.dumps(images)), copy.deepcopy(images), copy.copy(images)):
        assert torch.equal(twin[at(160, 10)]["image"], expected)
        assert twin.files == images.files


def test_samples_of_one_batch_share_no_memory(archive):
    native = Images(archive.root, dtype="native")
    one, two = native.__getitems__([at(0, 30), at(0, 30)])
    one["image"].zero_()
    assert np.array_equal(two["image"], archive.pixels["img_a"][:, 30:94, :64])


def test_a_palette_is_the_colour_map(tmp_path):
    pytest.importorskip("matplotlib")
    colors = {0: (0, 0, 0, 255), 1: (255, 0, 0, 255)}
    write_cog(tmp_path / "a.tif", np.zeros((1, 64, 64), np.uint8), colormap=colors)
    dataset = gs.RasterDataset(tmp_path)
    assert dataset.cmap(1) == (1.0, 0.0, 0.0, 1.0)

    class Named(gs.RasterDataset):
        cmap = "viridis"

    assert Named(tmp_path).cmap == "viridis"


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_read_what_the_parent_reads(images, context):
    places = [at(0, 30), at(160, 10), at(200, 100), at(40, 40)]
    before = [images[place]["image"] for place in places]
    loader = torch.utils.data.DataLoader(
        images,
        sampler=places,
        batch_size=2,
        num_workers=1,
        collate_fn=gs.stack_samples,
        multiprocessing_context=context,
    )
    batches = torch.cat([batch["image"] for batch in loader])
    assert torch.equal(batches, torch.stack(before))
    assert torch.equal(images[places[0]]["image"], before[0])


def test_numbers_of_a_query_may_be_arrays_of_one(archive):
    query = at(0, 0)
    x, y = query[:2]
    arrays = (slice(np.array(x.start), np.array(x.stop), x.step), y)
    dataset = gs.RasterDataset(archive.img_a)
    (batched,) = dataset.__getitems__([arrays])
    assert torch.equal(batched["image"], dataset[query]["image"])


def test_reading_hidden_and_sidecar_files_is_not_tried(tmp_path, archive):
    os.link(archive.img_a, tmp_path / "img_a_20230101.tif")
    (tmp_path / ".hidden.tif").write_text("no raster")
    (tmp_path / "img_a_20230101.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
    (tmp_path / "img_a_20230101.tfw").write_text("1")
    dataset = gs.RasterDataset(tmp_path)
    assert len(dataset) == 1
    sidecars = {str(name) for name in dataset.requests(at(0, 0))[0].source.sidecars}
    assert sidecars == {f"{tmp_path}/img_a_20230101.tif.aux.xml", f"{tmp_path}/img_a_20230101.tfw"}


def test_native_samples_of_files_of_several_types_are_of_one_type(tmp_path):
    """Else a batch of them could not be stacked."""
    for i, dtype in enumerate(("uint8", "uint16")):
        place = Affine(10, 0, 640 * i, 0, -10, 640)
        write_cog(tmp_path / f"{i}.tif", np.full((1, 64, 64), 7 + i, dtype), transform=place, blocksize=128)
    dataset = gs.RasterDataset(tmp_path, dtype="native")
    queries = [(slice(x, x + 320), slice(0, 320)) for x in (0, 640, 480)]
    for samples in ([dataset[query] for query in queries], dataset.__getitems__(queries)):
        assert {sample["image"].dtype for sample in samples} == {torch.uint16} == {dataset.dtype}
        assert [sample["image"].unique().tolist() for sample in samples] == [[7], [8], [7, 8]]
    assert gs.stack_samples(dataset.__getitems__(queries))["image"].shape == (3, 1, 32, 32)
    assert gs.RasterDataset(tmp_path, dtype="native", fill=300)[-310:10, 0:320]["image"].unique().tolist() == [7, 300]


def test_files_without_georeferencing_are_read_in_pixels_as_they_lie(tmp_path):
    data = np.random.default_rng(0).integers(0, 9, (1, 60, 80), np.uint8)
    for name in ("image", "mask"):
        write_cog(tmp_path / f"{name}.tif", data, crs=None, transform=None, driver="GTiff", overviews=False)
    images = type("Images", (gs.RasterDataset,), {"filename_glob": "image.tif"})(tmp_path, valid=True)
    masks = type("Masks", (gs.RasterDataset,), {"filename_glob": "mask.tif", "is_image": False})(tmp_path)
    assert images.crs is None
    pairs = images & masks
    sample = pairs[:]
    assert np.array_equal(sample["image"], data)
    assert np.array_equal(sample["mask"], data[0])
    assert sample["transform"].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    part = pairs[10:30, 5:45]
    assert np.array_equal(part["mask"], data[0, 5:45, 10:30])
    assert part["transform"].tolist() == [1, 0, 10, 0, 1, 5, 0, 0, 1]
    (batched,) = pairs.__getitems__([(slice(10, 30), slice(5, 45))])
    assert all(torch.equal(batched[key], part[key]) for key in part)
    over = images[70:90, 50:70]
    assert np.array_equal(over["mask_valid"][0], np.pad(np.ones((10, 10), bool), ((0, 10), (0, 10))))
    half = images[0:80:2, 0:60:2]
    assert half["image"].shape == (1, 30, 40)
    assert torch.equal(copy.deepcopy(images)[:]["image"], images[:]["image"])
    loader = gs.DataLoader(pairs, sampler=gs.samplers.GridGeoSampler(pairs, 20), batch_size=2)
    chips = [mask for batch in loader for mask in batch["mask"]]
    assert len(chips) == 12
    assert sum(int(chip.sum()) for chip in chips) == int(data.sum())
