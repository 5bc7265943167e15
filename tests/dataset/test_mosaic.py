"""Scenes that overlap, in space and in time: which are read, and which of them shows."""

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import shapely
import torch
from affine import Affine
from pyproj import Transformer

import geostream as gs
from geostream.scan import build_index, load_index
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

RES, WEST, NORTH, SIDE = 10.0, 600_000.0, 5_300_000.0, 200


class Scenes(gs.RasterDataset):
    filename_glob = "*.tif"
    filename_regex = r"(?P<name>\w+)_(?P<date>\d{8})"


def window(col, row, size=64):
    """Pixels of the first scene's grid."""
    x, y = WEST + col * RES, NORTH - row * RES
    return slice(x, x + size * RES), slice(y - size * RES, y)


def write(root, name, value, col=0, row=0, **options):
    data = np.full((1, SIDE, SIDE), value, np.uint8) if np.isscalar(value) else value
    transform = Affine(RES, 0, WEST + col * RES, 0, -RES, NORTH - row * RES)
    options = {"transform": transform, "blocksize": 128, "overviews": False, **options}
    return write_cog(root / f"{name}.tif", data, **options)


def shown(dataset, query):
    return set(np.unique(dataset[query]["image"].numpy()).tolist())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    root = tmp_path_factory.mktemp("three")
    names = ("a_20230103", "b_20230101", "c_20230102")
    for value, name in enumerate(names, 1):
        write(root, name, value, col=100 * (name[0] == "c"), blocksize=256)  # one tile
    return root


@pytest.fixture
def served(three):
    """Without nodata; by path a, b, c; by time b, c, a. Scene c lies 100 columns east of the others.

    A server for each test, since decoded tiles are kept for a while, by URL.
    """
    with RangeServer(three) as server:
        yield SimpleNamespace(server=server, urls=[server.url_for(path.name) for path in sorted(three.iterdir())])


INSIDE_A, ACROSS = window(10, 10), window(110, 10)


@pytest.mark.parametrize(
    ("query", "options", "names"),
    [
        (INSIDE_A, {}, "a"),  # a hides b; c does not reach the window
        (INSIDE_A, {"mosaic": "last"}, "b"),
        (INSIDE_A, {"mosaic": "newest"}, "a"),
        (INSIDE_A, {"mosaic": "oldest"}, "b"),
        (INSIDE_A, {"mosaic": "max"}, "ab"),
        (INSIDE_A, {"mosaic": "mean"}, "ab"),
        (INSIDE_A, {"on_error": "skip"}, "ab"),  # were a to fail, b would show
        (INSIDE_A, {"time_series": True}, "ab"),
        (window(10.5, 10.5), {}, "a"),
        (window(0, 0), {}, "a"),
        (window(136, 136), {}, "a"),
        (window(-1, 0), {}, "ab"),
        (window(136.5, 136), {}, "abc"),
        (ACROSS, {}, "a"),
        (ACROSS, {"mosaic": "last"}, "c"),
        (ACROSS, {"mosaic": "oldest"}, "b"),
        (window(150, 10), {}, "abc"),
        (window(150, 10), {"mosaic": "last"}, "c"),
        (window(210, 10), {}, "c"),
    ],
)
def test_one_request_for_each_scene_that_can_show(served, query, options, names):
    dataset = Scenes(served.urls, **options)
    served.server.reset()
    dataset.__getitems__([query])
    assert sorted(request.path[0] for request in served.server.log) == sorted(names)
    assert len(dataset.requests(query)) == len(names)


def test_what_is_hidden_is_known_from_an_index_too(served, tmp_path):
    build_index(served.urls).save(tmp_path / "index.parquet")
    dataset = Scenes(index=load_index(tmp_path / "index.parquet"))
    assert [request.source.url for request in dataset.requests(INSIDE_A)] == served.urls[:1]


def test_a_scene_in_another_crs_hides_what_lies_behind_it(tmp_path):
    write(tmp_path, "a_20230101", 1)
    write(tmp_path, "b_20230101", 2)
    dataset = Scenes(tmp_path, crs="EPSG:4326")
    x, y, _ = dataset.bounds
    middle = [(part.start + part.stop) / 2 for part in (x, y)]
    inside = tuple(slice(at - 20 * part.step, at + 20 * part.step) for at, part in zip(middle, (x, y), strict=True))
    assert len(dataset.requests(inside)) == 1
    corner = slice(x.start, x.start + 40 * x.step), slice(y.start, y.start + 40 * y.step)
    assert len(dataset.requests(corner)) == 2
    assert shown(dataset, inside) == {1}


@pytest.mark.parametrize("how", ["nodata", "mask", "alpha"])
def test_a_scene_that_may_have_holes_hides_nothing(tmp_path, how):
    data, mask = np.full((1, SIDE, SIDE), 1, np.uint8), np.ones((SIDE, SIDE), bool)
    mask[20:30, 20:30] = False
    extra = {"nodata": {"nodata": 0}, "mask": {"mask": mask}, "alpha": {"alpha": True, "driver": "GTiff"}}[how]
    if how == "nodata":
        data[0, ~mask] = 0
    if how == "alpha":
        data = np.concatenate([data, mask[None] * np.uint8(255)])
    write(tmp_path, "a_20230101", data, **extra)
    write(tmp_path, "b_20230101", np.full((len(data), SIDE, SIDE), 2, np.uint8))
    image = Scenes(tmp_path)[window(0, 0)]["image"][0].numpy()
    assert np.array_equal(image, np.where(mask, 1, 2)[:64, :64])


@pytest.mark.parametrize("policy", ["first", "last", "newest", "oldest", "min", "max", "mean"])
def test_zeros_are_data_where_no_nodata_is_declared(tmp_path, policy):
    write(tmp_path, "a_20230101", 0)
    write(tmp_path, "b_20230102", 8)
    expected = {"first": 0, "last": 8, "newest": 8, "oldest": 0, "min": 0, "max": 8, "mean": 4}[policy]
    dataset = Scenes(tmp_path, mosaic=policy, valid=True)
    assert shown(dataset, window(0, 0)) == {expected}
    assert dataset[window(0, 0)]["mask_valid"].all()


def test_order_by_path_or_by_time(tmp_path):
    """By path a, b, c; by time c, a, b. All overlap, and each has a hole of its own."""
    layers = {}
    for i, (name, day) in enumerate((("a", 2), ("b", 3), ("c", 1))):
        data = np.full((1, SIDE, SIDE), i + 1, np.uint8)
        data[:, 10 * i : 10 * i + 25] = 0
        layers[name] = data[0, :64, :64]
        write(tmp_path, f"{name}_2023010{day}", data, nodata=0)

    def stacked(order):
        result = np.zeros((64, 64), np.uint8)
        for name in reversed(order):
            result = np.where(layers[name] != 0, layers[name], result)
        return result

    for policy, order in (("first", "abc"), ("last", "cba"), ("newest", "bac"), ("oldest", "cab")):
        dataset = Scenes(tmp_path, mosaic=policy)
        assert np.array_equal(dataset[window(0, 0)]["image"][0], stacked(order)), policy
        (batched,) = dataset.__getitems__([window(0, 0)])
        assert torch.equal(batched["image"], dataset[window(0, 0)]["image"])


def test_dates_are_stacked_each_a_mosaic_of_its_tiles(tmp_path):
    for name, value, col in (
        ("a_20230105", 1, 0),
        ("b_20230105", 2, 100),
        ("c_20230101", 3, 0),
        ("d_20230110", 4, 300),
    ):
        write(tmp_path, name, value, col=col)
    dataset = Scenes(tmp_path, time_series=True, valid=True, fill=9)
    sample = dataset[window(150, 0, 100)]
    assert sample["image"].shape == (2, 1, 100, 100)
    assert sample["dates"].dtype == torch.float64
    assert sample["dates"].tolist() == [datetime(2023, 1, day, tzinfo=UTC).timestamp() for day in (1, 5)]
    old, new = sample["image"][:, 0].numpy()
    assert (old[:, :50] == 3).all()
    assert (old[:, 50:] == 9).all()
    assert (new[:, :50] == 1).all()
    assert (new[:, 50:] == 2).all()
    assert sample["mask_valid"][0, 0].float().mean() == 0.5
    assert sample["mask_valid"][1].all()
    assert [request.source.url[-14] for request in dataset.requests(window(210, 0, 20))] == ["b"]
    last = Scenes(tmp_path, time_series=True, mosaic="last")[window(150, 0, 50)]["image"]
    assert last.unique().tolist() == [2, 3]
    (batched,) = dataset.__getitems__([window(150, 0, 100)])
    assert all(torch.equal(batched[key], sample[key]) for key in sample)


def test_every_nth_date_whatever_its_tiles_and_the_order_of_their_paths(tmp_path):
    """By path the dates are 4, 3, 2, 1; the east has tiles of its own, on the second and third date only."""
    for name, day, col in (("a", 4, 0), ("b", 3, 0), ("c", 3, 200), ("d", 2, 0), ("e", 2, 200), ("f", 1, 0)):
        write(tmp_path, f"{name}_2023010{day}", day, col=col)
    dataset = Scenes(tmp_path, time_series=True)

    def days(place, time):
        return [pd.Timestamp(date, unit="s").day for date in dataset[*place, time]["dates"].tolist()]

    assert days(window(150, 0, 100), slice(None, None, 2)) == [1, 3]
    assert days(window(150, 0, 100), slice("2023-01-02", None, 2)) == [2, 4]
    assert days(window(150, 0, 100), slice("2023-01-02", "2023-01-03T12:00", 3)) == [2]
    assert days(window(250, 0, 100), slice(None, None, 2)) == [3]  # every second date of the dataset, not of the place
    assert dataset[*window(150, 0, 100), slice(None, None, 2)]["image"][1].unique().tolist() == [3]
    with pytest.raises(gs.QueryError):
        dataset[*window(250, 0, 100), slice(None, None, 3)]


def test_a_series_of_masks_and_of_band_files(tmp_path):
    class Bands(gs.RasterDataset):
        filename_regex = r"\w+_(?P<date>\d{8})_(?P<band>B\d)"
        all_bands = ("B1", "B2")
        separate_files = True

    for day in (1, 2):
        for band, res in ((1, 10), (2, 20)):
            data = np.full((1, 2000 // res, 2000 // res), 10 * day + band, np.uint8)
            write(tmp_path, f"s_2023010{day}_B{band}", data, transform=Affine(res, 0, WEST, 0, -res, NORTH))
    sample = Bands(tmp_path, time_series=True)[window(0, 0)]
    assert sample["image"].shape == (2, 2, 64, 64)
    assert sample["image"][:, :, 0, 0].tolist() == [[11, 12], [21, 22]]

    class Masks(Scenes):
        filename_glob = "*_B1.tif"
        filename_regex = r"s_(?P<date>\d{8})_B1"
        is_image = False

    assert Masks(tmp_path, time_series=True)[window(0, 0)]["mask"].shape == (2, 64, 64)


def test_scenes_of_several_crss_are_mosaicked_on_one_grid(tmp_path):
    rng = np.random.default_rng(2)
    write(tmp_path, "a_20230101", rng.integers(1, 100, (1, SIDE, SIDE), np.uint8), nodata=0)
    east, north = Transformer.from_crs(32632, 32633, always_xy=True).transform(WEST + 1500, NORTH - 300)
    there = Affine(RES, 0, round(east, -1), 0, -RES, round(north, -1))
    write(tmp_path, "b_20230101", rng.integers(100, 200, (1, SIDE, SIDE), np.uint8), crs="EPSG:32633", transform=there)
    both = Scenes(tmp_path, valid=True)
    assert both.crs.to_epsg() == 32632
    assert len(both.requests(window(150, 40))) == 2
    whole = both[window(150, 40)]
    a, b = (Scenes(tmp_path / f"{n}_20230101.tif", crs=32632, res=RES, valid=True)[window(150, 40)] for n in "ab")
    assert 0 < a["mask_valid"].float().mean() < 1
    assert torch.equal(whole["image"], torch.where(a["mask_valid"], a["image"], b["image"]))
    assert torch.equal(whole["mask_valid"], a["mask_valid"] | b["mask_valid"])


def test_a_footprint_narrower_than_the_raster_decides_where_the_scene_is(tmp_path):
    write(tmp_path, "a_20230101", 1)
    write(tmp_path, "b_20230101", 2)
    dataset = Scenes(tmp_path)
    x0, y0, x1, y1 = WEST, NORTH - SIDE * RES, WEST + SIDE * RES, NORTH
    upper_left = shapely.Polygon([(x0, y0), (x0, y1), (x1, y1)])
    dataset.index = dataset.index.set_geometry([upper_left, shapely.box(x0, y0, x1, y1)], crs=dataset.crs)
    lower_right = window(130, 130)
    assert [request.source.url[-14] for request in dataset.requests(lower_right)] == ["b"]
    assert shown(dataset, lower_right) == {2}
    assert shown(dataset, window(0, 0)) == {1}
    dataset.index = dataset.index.iloc[:1]
    with pytest.raises(gs.QueryError):
        dataset[lower_right]
    moved = Scenes(tmp_path)
    moved.index = dataset.index
    moved.crs = "EPSG:4326"
    assert len(moved) == 1
    assert moved.index.geometry.iloc[0].area < 0.6 * moved.index.geometry.iloc[0].envelope.area


def test_a_footprint_is_where_the_scene_is_in_another_crs_too(tmp_path):
    """The box around a scene of the next zone has corners where the scene is not."""
    write(tmp_path, "a_20230101", 1, crs="EPSG:32631", transform=Affine(100, 0, 400_000, 0, -100, 6_700_000))
    dataset = Scenes(tmp_path, crs="EPSG:32632", res=100)
    x, y, _ = dataset.bounds
    with pytest.raises(gs.QueryError):
        dataset[x.start : x.start + 200, y.start : y.start + 200]
    assert dataset.index.geometry.iloc[0].area < 0.95 * dataset.index.geometry.iloc[0].envelope.area


def test_times(tmp_path):
    for day in range(1, 6):
        write(tmp_path, f"a_2023010{day}", day, nodata=0)
    dataset = Scenes(tmp_path, time_series=True)
    place = window(0, 0)

    def days(time):
        return [pd.Timestamp(date, unit="s").day for date in dataset[*place, time]["dates"].tolist()]

    assert days(slice(None)) == [1, 2, 3, 4, 5]
    assert days(slice("2023-01-02", "2023-01-04")) == [2, 3, 4]
    assert days(slice("2023-01-04", None)) == [4, 5]
    assert days(slice(None, "2023-01-02T23:59")) == [1, 2]
    assert days(slice(None, None, 2)) == [1, 3, 5]
    assert days(slice("2023-01-02", None, 3)) == [2, 5]
    noon = datetime(2023, 1, 3, 12, tzinfo=UTC)
    assert days(slice(noon, noon)) == [3]
    late = datetime(2023, 1, 3, 20, tzinfo=timezone(timedelta(hours=-8)))  # the 4th in UTC
    assert days(slice(late, late)) == [4]
    assert days(slice(np.datetime64("2023-01-05"), pd.Timestamp("2024", tz="Asia/Tokyo"))) == [5]
    with pytest.raises(gs.QueryError):
        dataset[*place, slice("2022", "2022-06")]


def test_an_index_may_hold_instants_and_time_zones(tmp_path):
    for day in (1, 2):
        write(tmp_path, f"a_2023010{day}", day)
    dataset = Scenes(tmp_path, time_series=True)
    at = pd.DatetimeIndex(["2023-06-01T10:30:15", "2023-06-02T10:30:15"], tz="UTC")
    frame = dataset.index.copy()
    frame.index = pd.IntervalIndex.from_arrays(at, at, closed="both", name="datetime")
    dataset.index = frame
    assert dataset[window(0, 0)]["dates"].tolist() == [moment.timestamp() for moment in at]
    assert dataset[*window(0, 0), slice(at[1], at[1])]["image"].unique().tolist() == [2]
    assert dataset[*window(0, 0), slice("2023-06-01T10:30:15", "2023-06-01T10:30:15")]["image"].unique().tolist() == [1]
    assert (dataset & dataset)[window(0, 0)]["image"].shape == (2, 2, 64, 64)
    plain = Scenes(tmp_path, time_series=True)
    plain.index = plain.index.set_axis(
        pd.IntervalIndex.from_arrays(at.tz_localize(None), at.tz_localize(None), closed="both", name="datetime")
    )
    for pairs in (dataset & plain, plain & dataset):
        assert len(pairs) == 2
        assert pairs[window(0, 0)]["dates"].tolist() == [moment.timestamp() for moment in at]
    assert len(dataset | plain) == 4
    assert (dataset | plain)[window(0, 0)]["image"].shape == (2, 1, 64, 64)


def test_fill_stands_where_no_scene_has_data(tmp_path):
    data = np.full((1, SIDE, SIDE), 5, np.uint8)
    data[:, :10] = 0
    write(tmp_path, "a_20230101", data, nodata=0)
    write(tmp_path, "b_20230101", data, col=SIDE, nodata=0)
    dataset = Scenes(tmp_path, fill=-3.5, valid=True)
    sample = dataset[window(SIDE - 32, -10)]
    assert (sample["image"][:, :20] == -3.5).all()
    assert (sample["image"][:, 20:] == 5).all()
    assert torch.equal(sample["mask_valid"], sample["image"] == 5)
    assert (Scenes(tmp_path)[window(SIDE - 32, -10)]["image"][:, :20] == 0).all()
