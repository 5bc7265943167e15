"""Splits share no ground and no time, whoever samples them, and what is read of one is its own."""

import copy
import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
import shapely
import torch
from affine import Affine

import geostream as gs
from geostream import splits
from geostream.errors import ConfigError, QueryError
from geostream.samplers import (
    GridGeoSampler,
    PreChippedGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
)
from geostream.testing.rasters import write_cog

pytestmark = pytest.mark.filterwarnings("ignore:.*regions are:UserWarning")

WEST, NORTH, RES, SIDE, STEP = 600_000.0, 5_300_000.0, 10.0, 256, 230
"""Scenes of SIDE pixels lie STEP pixels apart: each overlaps its neighbours by 26."""


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"
    filename_regex = r"^img_\d+_(?P<date>\d{8})"


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def write(root, name, number, col, row, value=None):
    value = number + 1 if value is None else value
    transform = Affine(RES, 0, WEST + col * STEP * RES, 0, -RES, NORTH - row * STEP * RES)
    data = np.full((1, SIDE, SIDE), value, np.uint8)
    write_cog(root / name, data, transform=transform, blocksize=64, overviews=False, driver="GTiff", compress="NONE")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Six overlapping places, the first with two more dates, and labels of their own extent."""
    folder = tmp_path_factory.mktemp("splits")
    for number in range(6):
        write(folder, f"img_{number}_2024010{number + 1}.tif", number, number % 3, number // 3)
        write(folder, f"lab_{number}.tif", number, number % 3, number // 3)
    for number, date in ((6, "20240301"), (7, "20240401")):
        write(folder, f"img_{number}_{date}.tif", number, 0, 0)
    return folder


def box(query):
    x, y, _ = query
    return shapely.box(x.start, y.start, x.stop, y.stop)


def ground(part, size=32):
    """All that samplers draw of a split, read to see that it can be."""
    chips = [
        *RandomGeoSampler(part, size, length=150, generator=seeded()),
        *GridGeoSampler(part, size),
        *itertools.chain.from_iterable(RandomBatchGeoSampler(part, size, 4, length=100, generator=seeded())),
        *itertools.chain.from_iterable(TileBatchGeoSampler(part, size, 4, generator=seeded())),
    ]
    part.__getitems__(chips[::5])
    return shapely.union_all([box(chip) for chip in chips])


SPATIAL = {
    "assignment": lambda ds: splits.random_bbox_assignment(ds, [0.6, 0.2, 0.2], seeded()),
    "splitting": lambda ds: splits.random_bbox_splitting(ds, [0.6, 0.2, 0.2], seeded()),
    "cells": lambda ds: splits.random_grid_cell_assignment(ds, [0.6, 0.2, 0.2], 4, seeded()),
    "rois": lambda ds: splits.roi_split(ds, rois(ds)),
}


def rois(ds):
    xmin, ymin, xmax, ymax = ds.index.total_bounds
    east = xmax + 1
    return [
        shapely.Polygon([(xmin, ymin), (xmin, ymax), (xmin + 0.55 * (xmax - xmin), ymax)]),
        shapely.Polygon([(xmin, ymin), (xmin + 0.55 * (xmax - xmin), ymax), (xmax, ymax), (east, ymin)]),
        shapely.box(east, ymin, east + 1, ymax),
    ][:2]


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("kind", SPATIAL)
def test_splits_share_no_ground(root, kind, combined):
    whole = Images(root) & Labels(root) if combined else Images(root)
    before = whole.index.copy()
    parts = SPATIAL[kind](whole)
    assert all(type(part) is type(whole) for part in parts)
    grounds = [ground(part) for part in parts]
    for one, other in itertools.combinations(grounds, 2):
        assert shapely.intersection(one, other).area == pytest.approx(0, abs=1e-3)
    for part, drawn in zip(parts, grounds, strict=True):
        own = shapely.union_all(part.index.geometry)
        assert shapely.difference(drawn, own).area < 1e-2, "chips lie wholly within the split"
        assert drawn.area > 0.5 * own.area
    assert whole.index.equals(before)
    assert whole.border is None


@pytest.mark.parametrize("kind", ["splitting", "cells"])
def test_cut_scenes_keep_their_own_pixels(root, kind):
    images = Images(root)
    part = SPATIAL[kind](images)[0]
    for x, y, _ in [*RandomGeoSampler(part, 16, length=50, generator=seeded()), *PreChippedGeoSampler(part)]:
        offsets = (x.start - WEST) / RES, (NORTH - y.stop) / RES
        assert offsets == pytest.approx([round(v) for v in offsets], abs=1e-6)
    odd = shapely.box(WEST + 13.7, NORTH - 1003.3, WEST + 1208.1, NORTH - 21.9)
    (part,) = splits.roi_split(images, [odd])
    for x, y, _ in [*RandomGeoSampler(part, 16, length=50, generator=seeded()), *PreChippedGeoSampler(part)]:
        offsets = (x.start - WEST) / RES, (NORTH - y.stop) / RES
        assert offsets == pytest.approx([round(v) for v in offsets], abs=1e-6)
        assert odd.covers(box((x, y, None)))


def test_a_query_across_the_border_is_refused(root):
    images = Images(root)
    middle = WEST + 1000.0
    left, right = splits.roi_split(images, [box_of(WEST, middle), box_of(middle, WEST + 2000.0)])
    mine = slice(middle - 320, middle), slice(NORTH - 320, NORTH)
    assert left[mine]["image"].shape == (1, 32, 32)
    across = slice(middle - 310, middle + 10), slice(NORTH - 320, NORTH)
    for part in (left, right, left & Labels(root), (images & Labels(root)), copy.deepcopy(left)):
        if part.__class__ is type(images & Labels(root)) and part.datasets[0] is images:
            assert part[across]["image"].shape == (1, 32, 32), "the whole dataset has no border"
            continue
        with pytest.raises(QueryError, match="border of its split"):
            part[across]
        with pytest.raises(QueryError, match="border of its split"):
            part.__getitems__([across])
    with pytest.raises(QueryError, match="border of its split"):
        pickle.loads(pickle.dumps(right))[mine]


def box_of(xmin, xmax):
    return shapely.box(xmin, NORTH - 2000.0, xmax, NORTH)


def test_the_border_goes_with_the_dataset_to_another_crs_and_back(root):
    left, _ = splits.roi_split(Images(root), [box_of(WEST, WEST + 1000.0), box_of(WEST + 1000.0, WEST + 2000.0)])
    first = left.border
    left.crs = "EPSG:4326"
    own = shapely.union_all(left.index.geometry)
    chips = list(RandomGeoSampler(left, 16, length=40, generator=seeded()))
    slack = 1.01 * max(left.res)
    assert all(own.buffer(slack).covers(box(chip)) for chip in chips)
    left.__getitems__(chips)
    xmin, ymin, xmax, ymax = own.bounds
    with pytest.raises(QueryError, match="border"):
        left[xmin : xmax + 0.001, ymin:ymax]
    left.crs = "EPSG:32632"
    assert left.border is first


def test_a_split_may_be_split_again(root):
    first, second = splits.random_bbox_splitting(Images(root), [0.5, 0.5], seeded())
    inner = splits.random_grid_cell_assignment(first, [0.5, 0.5], 3, seeded())
    grounds = [ground(part, 16) for part in (*inner, second)]
    for one, other in itertools.combinations(grounds, 2):
        assert shapely.intersection(one, other).area == pytest.approx(0, abs=1e-3)


def test_scenes_of_one_place_stay_together(root):
    for seed in range(8):
        parts = splits.random_bbox_assignment(Images(root), [0.5, 0.5], seeded(seed))
        names = [{path.rsplit("/", 1)[1][4] for path in part.index.filepath} for part in parts]
        assert sum({"0", "6", "7"} <= found for found in names) == 1
        assert set.union(*names) == set("01234567")
        assert not names[0] & names[1]


def test_lengths_are_kept_where_places_allow(tmp_path):
    for number in range(10):
        write(tmp_path, f"img_{number}_20240101.tif", number, 2 * number, 0)
    images = Images(tmp_path)
    assert [len(p) for p in splits.random_bbox_assignment(images, [7, 2, 1], seeded())] == [7, 2, 1]
    assert [len(p) for p in splits.random_bbox_assignment(images, [0.75, 0.25], seeded())] == [8, 2]
    assert [len(p) for p in splits.random_grid_cell_assignment(images, [0.5, 0.5], 2, seeded())] == [20, 20]
    again = [splits.random_bbox_assignment(images, [0.5, 0.5], seeded(seed))[0].index.filepath for seed in (3, 3, 4)]
    assert list(again[0]) == list(again[1]) != list(again[2])
    strips = splits.random_bbox_splitting(images, [0.75, 0.25], seeded())
    areas = [shapely.area(part.index.geometry.to_numpy()) / (SIDE * RES) ** 2 for part in strips]
    assert set(areas[0]) == {0.75}
    assert set(areas[1]) == {0.25}


def test_by_time(root):
    images = Images(root)
    first, second = splits.time_series_split(images, [0.5, 0.5])
    dates = [sorted(path.rsplit("_", 1)[1][:8] for path in part.index.filepath) for part in (first, second)]
    assert dates == [[f"2024010{n}" for n in range(1, 7)], ["20240301", "20240401"]]
    chip = slice(WEST, WEST + 320.0), slice(NORTH - 320.0, NORTH)
    assert set(first[chip]["image"].unique().tolist()) == {1.0}, "all dates of the first split, whatever time is asked"
    assert set(second[chip]["image"].unique().tolist()) == {7.0}
    with pytest.raises(QueryError):
        first[(*chip, slice(pd.Timestamp(2024, 3, 1), pd.Timestamp(2024, 3, 2)))]
    days = [pd.Interval(pd.Timestamp(2024, m, 1), pd.Timestamp(2024, m + 1, 1)) for m in (1, 3, 4)]
    assert [len(part) for part in splits.time_series_split(images, days)] == [6, 1, 1]
    steps = [pd.Timedelta(days=3), pd.Timedelta(days=3), pd.Timedelta(days=300)]
    assert [len(part) for part in splits.time_series_split(images, steps)] == [3, 3, 2]


def test_a_scene_across_a_border_in_time_is_in_no_split(tmp_path):
    class Months(gs.RasterDataset):
        filename_glob = "m_*.tif"
        filename_regex = r"^m_(?P<start>\d{8})_(?P<stop>\d{8})"

    for number, span in enumerate(["20240101_20240131", "20240120_20240220", "20240201_20240228"]):
        write(tmp_path, f"m_{span}.tif", number, 0, 0)
    months = Months(tmp_path)
    cut = pd.Timestamp(2024, 2, 1)
    with pytest.warns(UserWarning, match="1 of 3 scenes"):
        one, other = splits.time_series_split(
            months, [pd.Interval(pd.Timestamp(2024, 1, 1), cut), pd.Interval(cut, pd.Timestamp(2024, 3, 1))]
        )
    chip = slice(WEST, WEST + 320.0), slice(NORTH - 320.0, NORTH)
    assert [set(part[chip]["image"].unique().tolist()) for part in (one, other)] == [{1.0}, {3.0}]


def test_combinations_by_time_read_images_of_their_time_only(root):
    pairs = Images(root) & Labels(root)
    first, second = splits.time_series_split(pairs, [0.5, 0.5])
    chip = slice(WEST, WEST + 320.0), slice(NORTH - 320.0, NORTH)
    samples = [part[(*chip, slice(pd.Timestamp(2024, 1, 1), pd.Timestamp(2024, 12, 1)))] for part in (first, second)]
    assert [set(sample["image"].unique().tolist()) for sample in samples] == [{1.0}, {7.0}]
    assert [set(sample["mask"].unique().tolist()) for sample in samples] == [{1}, {1}]
    assert len(pairs.datasets[0]) == 8


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda ds: splits.random_bbox_assignment(ds, [0.5, 0.2]), "sum to 1"),
        (lambda ds: splits.random_bbox_assignment(ds, [1.5, -0.5]), "positive"),
        (lambda ds: splits.random_bbox_assignment(ds, [0.05] * 20), "empty"),
        (lambda ds: splits.random_bbox_assignment(ds, None), "lengths=None"),
        (lambda ds: splits.random_bbox_assignment(ds, 0.5), "lengths=0.5"),
        (lambda ds: splits.random_bbox_assignment(ds, "ab"), "lengths="),
        (lambda ds: splits.random_bbox_splitting(ds, None), "fractions=None"),
        (lambda ds: splits.random_grid_cell_assignment(ds, 0.5), "fractions=0.5"),
        (lambda ds: splits.roi_split(ds, None), "rois=None"),
        (lambda ds: splits.time_series_split(ds, 0.5), "lengths=0.5"),
        (lambda ds: splits.time_series_split(ds, [0.5, pd.Timedelta(days=1)]), "lengths="),
        (lambda ds: splits.random_bbox_splitting(ds, []), "sum to 1"),
        (lambda ds: splits.random_bbox_splitting(ds, ["a"]), "sum to 1"),
        (lambda ds: splits.random_grid_cell_assignment(ds, [0.5, 0.5], 1), "grid_size"),
        (lambda ds: splits.random_grid_cell_assignment(ds, [0.5, 0.5], True), "grid_size"),
        (lambda ds: splits.roi_split(ds, [shapely.box(0, 0, 1, 1)]), "empty"),
        (lambda ds: splits.roi_split(ds, [box_of(0, 700_000), box_of(500_000, 900_000)]), "overlap"),
        (lambda ds: splits.roi_split(ds, [3]), "polygons"),
        (lambda ds: splits.time_series_split(ds, [0.5, 0.4]), "sum to 1"),
        (
            lambda ds: splits.time_series_split(ds, [pd.Interval(pd.Timestamp(1999, 1, 1), pd.Timestamp(1999, 2, 1))]),
            "empty",
        ),
        (
            lambda ds: splits.time_series_split(
                ds, [pd.Interval(pd.Timestamp(2024, 1, 1), pd.Timestamp(2024, m, 1)) for m in (3, 4)]
            ),
            "overlap",
        ),
    ],
)
def test_what_does_not_split_is_refused(root, call, word):
    with pytest.raises(ConfigError, match=word):
        call(Images(root))


def test_undated_scenes_are_not_split_by_time(root):
    with pytest.raises(ConfigError, match="time"):
        splits.time_series_split(Labels(root), [0.5, 0.5])


def test_chips_do_not_overhang_into_other_ground(root):
    middle = WEST + 1000.0
    left, _ = splits.roi_split(Images(root), [box_of(WEST, middle), box_of(middle, WEST + 2000.0)])
    for sampler in (
        GridGeoSampler(left, 32, edge="overhang"),
        RandomGeoSampler(left, 32, length=100, pad=True, generator=seeded()),
    ):
        assert all(x.stop <= middle + 0.02 for x, _, _ in sampler)
