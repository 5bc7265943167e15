"""Where chips lie: inside, on the scene's pixels, of the exact size, within region and time of interest."""

import math

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
import torch

from geostream.errors import ConfigError
from geostream.grid import pixel_count
from geostream.samplers import (
    GridGeoSampler,
    PreChippedGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
    Units,
)
from geostream.testing.memory import MemoryDataset, MemoryScene


def scene(height, width, corner=(0.0, 0.0), res=(1.0, 1.0), **kw):
    return MemoryScene(np.zeros((1, height, width), np.uint8), corner, res, **kw)


def one(height, width, **kw):
    return MemoryDataset([scene(height, width, **kw)])


def windows(chips, corner=(0.0, 0.0), res=(1.0, 1.0)):
    """(row, col, height, width) of each chip from the scene's corner, in pixels that must be whole."""
    found = []
    for x, y, _ in chips:
        exact = ((corner[1] - y.stop) / res[1], (x.start - corner[0]) / res[0])
        assert exact == pytest.approx([round(v) for v in exact], abs=1e-6)
        size = pixel_count(y.stop - y.start, y.step), pixel_count(x.stop - x.start, x.step)
        found.append((*(round(v) for v in exact), *size))
    return found


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_last_row_and_column_are_drawn():
    chips = windows(RandomGeoSampler(one(11, 12), 10, length=200, generator=generator()))
    assert {row for row, *_ in chips} == {0, 1}
    assert {col for _, col, *_ in chips} == {0, 1, 2}


def test_scenes_are_drawn_by_area():
    two = MemoryDataset([scene(100, 300), scene(100, 100, corner=(1000.0, 0.0))])
    chips = list(RandomGeoSampler(two, 10, length=4000, generator=generator()))
    share = sum(x.start < 1000 for x, _, _ in chips) / len(chips)
    assert share == pytest.approx(0.75, abs=0.03)


def test_a_batch_lies_in_one_scene_and_scenes_change():
    corners = [(1000.0 * i, 0.0) for i in range(5)]
    five = MemoryDataset([scene(50, 50, corner=corner) for corner in corners])
    sampler = RandomBatchGeoSampler(five, 8, 6, length=240, generator=generator())
    batches = [[int(x.start // 1000) for x, _, _ in batch] for batch in sampler]
    assert len(batches) == len(sampler) == 40
    assert all(len(batch) == 6 and len(set(batch)) == 1 for batch in batches)
    assert {batch[0] for batch in batches} == set(range(5))


def test_a_batch_may_take_several_scenes_in_equal_parts():
    five = MemoryDataset([scene(50, 50, corner=(1000.0 * i, 0.0)) for i in range(5)])
    sampler = RandomBatchGeoSampler(five, 8, 6, length=240, generator=generator(), scenes_per_batch=3)
    for batch in sampler:
        scenes = [int(x.start // 1000) for x, _, _ in batch]
        assert [scenes[i] == scenes[i + 1] for i in range(0, 6, 2)] == [True] * 3
        assert len(set(scenes)) == 3


def test_default_lengths_are_torchgeos_and_never_none():
    # ceil((i - k) / k) + 1 chips on each axis
    assert len(RandomGeoSampler(one(100, 64), 32)) == 4 * 2
    assert len(RandomBatchGeoSampler(one(100, 64), 32, 3)) == 8 // 3
    assert len(RandomBatchGeoSampler(one(32, 32), 32, 16)) == 1
    assert len(RandomGeoSampler(one(10, 10), 32, pad=True)) == 1


def test_the_grid_shifts_its_last_row_and_column_in():
    chips = windows(GridGeoSampler(one(10, 9), 4))
    assert [c[:2] for c in chips] == [(r, c) for r in (0, 4, 6) for c in (0, 4, 5)]


@pytest.mark.parametrize(("edge", "rows"), [("shift", [0, 4, 6]), ("overhang", [0, 4, 8]), ("drop", [0, 4])])
def test_the_grids_far_edge_is_an_option(edge, rows):
    assert [row for row, *_ in windows(GridGeoSampler(one(10, 4), 4, edge=edge))] == rows


def test_the_grids_stride_may_overlap_or_leave_gaps():
    assert [row for row, *_ in windows(GridGeoSampler(one(10, 4), 4, stride=3))] == [0, 3, 6]
    assert [row for row, *_ in windows(GridGeoSampler(one(11, 4), 4, stride=(3, 4)))] == [0, 3, 6, 7]
    assert [row for row, *_ in windows(GridGeoSampler(one(10, 2), 2, stride=6))] == [0, 6, 8]
    assert [row for row, *_ in windows(GridGeoSampler(one(7, 2), 2, stride=6, edge="overhang"))] == [0, 6]
    assert [row for row, *_ in windows(GridGeoSampler(one(6, 2), 2, stride=6, edge="overhang"))] == [0]


@pytest.mark.parametrize(
    ("edge", "lefts"), [("shift", [0, 30, 60, 85]), ("overhang", [0, 30, 60, 90]), ("drop", [0, 30, 60])]
)
def test_a_stride_larger_than_a_chip_leaves_gaps_of_the_difference(edge, lefts):
    chips = windows(GridGeoSampler(one(10, 95), 10, 30, edge=edge))
    assert [col for _, col, *_ in chips] == lefts


def test_a_stride_larger_than_the_scene_leaves_its_first_and_last_chip():
    assert [col for _, col, *_ in windows(GridGeoSampler(one(10, 100), 10, 10**9))] == [0, 90]


@pytest.mark.parametrize("make", [RandomGeoSampler, lambda *a, **k: RandomBatchGeoSampler(*a, 4, **k)])
def test_lengths_that_no_memory_holds_are_refused(make):
    with pytest.raises(ConfigError, match=r"length=1000000000.*GiB"):
        make(one(60, 60), 16, length=10**9)


def test_what_is_no_flag_is_refused():
    ground = one(60, 60)
    for make in (lambda: RandomGeoSampler(ground, 16, pad="yes"), lambda: PreChippedGeoSampler(ground, shuffle="no")):
        with pytest.raises(ConfigError, match="pass True or False"):
            make()


def test_what_is_no_map_of_valid_ground_is_refused():
    for valid in ({}, 0.5):
        with pytest.raises(ConfigError, match=r"valid=.*read_valid"):
            RandomGeoSampler(one(60, 60), 16, valid=valid)


def test_regions_smaller_than_a_chip():
    small = one(10, 40)
    for make in (
        lambda **kw: RandomGeoSampler(small, 16, length=50, generator=generator(), **kw),
        lambda **kw: GridGeoSampler(small, 16, **kw),
    ):
        with pytest.raises(ConfigError, match=r"16 x 16.*10 x 40.*pad=True"):
            make()
        rows = {row for row, *_ in windows(make(pad=True))}
        assert rows <= set(range(-6, 1)), "every chip holds all rows"
    with pytest.raises(ConfigError, match="pad=True"):
        RandomBatchGeoSampler(small, 16, 2)


def test_small_regions_among_others_are_left_out_loudly():
    mixed = MemoryDataset([scene(20, 20), scene(10, 10, corner=(1000.0, 0.0))])
    with pytest.warns(UserWarning, match="1 of 2 regions"):
        sampler = GridGeoSampler(mixed, 16)
    assert {x.start >= 1000 for x, _, _ in sampler} == {False}
    assert {x.start >= 1000 for x, _, _ in GridGeoSampler(mixed, 16, pad=True)} == {False, True}


def test_sizes_in_crs_units_are_whole_pixels():
    res = (2.0, 3.0)
    place = one(60, 60, res=res)
    sampler = RandomGeoSampler(place, (30.0, 20.0), length=5, units=Units.CRS, generator=generator())
    assert {c[2:] for c in windows(sampler, res=res)} == {(10, 10)}
    rounded = RandomGeoSampler(place, 20.9, length=5, units=Units.CRS, generator=generator())
    assert {c[2:] for c in windows(rounded, res=res)} == {(7, 10)}
    assert [c[2:] for c in windows(GridGeoSampler(place, (12, 30)), res=res)] == [(12, 30)] * 10


@pytest.mark.parametrize("size", [0, -1, 2.5, "big", (1, 2, 3), math.nan, math.inf, None, True, (8, False), [], 1j])
def test_bad_sizes_are_refused(size):
    with pytest.raises(ConfigError, match="size"):
        RandomGeoSampler(one(60, 60), size)


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({"length": 0}, "length"),
        ({"length": -3}, "length"),
        ({"length": 2.5}, "length"),
        ({"length": 4.0}, "length"),
        ({"length": "4"}, "length"),
        ({"length": True}, "length"),
        ({"roi": shapely.Polygon([(0, 0), (9, -9), (9, 0), (0, -9)])}, "not valid.*make_valid"),
        ({"toi": pd.Interval(0, 5)}, "Timestamp"),
        ({"roi": (0, 0, 1, 1)}, "shapely"),
        ({"roi": shapely.Point(3, -3)}, "area"),
        ({"roi": shapely.box(5000, 5000, 6000, 6000)}, "no scene"),
        ({"toi": "2020"}, "Interval"),
        ({"toi": pd.Interval(pd.Timestamp(1999, 1, 1), pd.Timestamp(1999, 2, 1))}, "no scene"),
        ({"units": "pixels"}, "units"),
    ],
)
def test_bad_arguments_are_refused(kwargs, word):
    with pytest.raises(ConfigError, match=word):
        RandomGeoSampler(one(60, 60), 8, **kwargs)


@pytest.mark.parametrize("bad", [0, -1, 1.5, 4.0, "4", True, None, math.nan, [4]])
def test_counts_are_whole_numbers(bad):
    for cls in (RandomBatchGeoSampler, TileBatchGeoSampler):
        with pytest.raises(ConfigError, match="batch_size"):
            cls(one(60, 60), 8, bad)
    with pytest.raises(ConfigError, match="scenes_per_batch"):
        RandomBatchGeoSampler(one(60, 60), 8, 4, scenes_per_batch=bad)
    if bad is not None:
        for knob in ("tiles_per_batch", "buffer", "block"):
            with pytest.raises(ConfigError, match=knob):
                TileBatchGeoSampler(one(60, 60), 8, 4, **{knob: bad})
    with pytest.raises(ConfigError, match="lanes"):
        TileBatchGeoSampler(one(60, 60), 8, 4, lanes=-1)


def test_numpys_numbers_are_numbers():
    sampler = RandomBatchGeoSampler(one(60, 60), np.int64(8), np.int32(4), np.int64(8), generator=generator())
    assert [len(batch) for batch in sampler] == [4, 4]
    assert {chip[2:] for batch in sampler for chip in windows(batch)} == {(8, 8)}
    assert GridGeoSampler(one(60, 60), np.float64(8), (np.int64(8), 4)).total == 8 * 14


def test_bad_batches_are_refused():
    for kwargs in ({"batch_size": 4, "length": 3}, {"batch_size": 2, "scenes_per_batch": 3}):
        with pytest.raises(ConfigError):
            RandomBatchGeoSampler(one(60, 60), 8, **kwargs)
    with pytest.raises(ConfigError, match="edge"):
        GridGeoSampler(one(60, 60), 8, edge="wrap")
    with pytest.raises(ConfigError, match="stride"):
        GridGeoSampler(one(60, 60), 8, stride=0)


def test_a_dataset_without_places_is_refused():
    with pytest.raises(ConfigError, match="GeoDataset"):
        RandomGeoSampler([1, 2, 3], 8)


def test_a_box_of_interest_keeps_the_scenes_pixels():
    roi = shapely.box(10.4, -30.6, 40.2, -4.5)
    expected = (5, 11)  # the first whole row and column inside
    random = windows(RandomGeoSampler(one(60, 60), 8, length=500, roi=roi, generator=generator()))
    assert (min(r for r, *_ in random), min(c for _, c, *_ in random)) == expected
    assert (max(r for r, *_ in random) + 8, max(c for _, c, *_ in random) + 8) == (30, 40)
    grid = windows(GridGeoSampler(one(60, 60), 8, roi=roi))
    assert grid[0][:2] == expected
    assert (grid[-1][0] + 8, grid[-1][1] + 8) == (30, 40)
    whole = windows(PreChippedGeoSampler(one(60, 60), roi=roi))
    assert whole == [(*expected, 25, 29)]


def test_chips_hold_some_of_a_polygon_of_interest():
    roi = shapely.Polygon([(0, 0), (60, -60), (58, -60), (0, -2)])  # a thin diagonal
    for sampler in (
        RandomGeoSampler(one(60, 60), 8, length=300, roi=roi, generator=generator()),
        GridGeoSampler(one(60, 60), 8, roi=roi),
    ):
        overlaps = [roi.intersection(shapely.box(x.start, y.start, x.stop, y.stop)).area for x, y, _ in sampler]
        assert min(overlaps) > 0
    boxes = [shapely.box(x.start, y.start, x.stop, y.stop) for x, y, _ in GridGeoSampler(one(60, 60), 8, roi=roi)]
    assert len(boxes) < 64
    assert shapely.union_all(boxes).area == pytest.approx(shapely.union_all([*boxes, roi]).area)


def test_an_outline_that_chips_always_miss_is_met_through_the_grid():
    roi = shapely.Polygon([(0, 0), (300, 0), (300, -300), (299.99, -299), (299, -0.01), (0, -0.001)])
    place = one(300, 300)
    for x, y, _ in RandomGeoSampler(place, 2, length=20, roi=roi, generator=generator()):
        assert roi.intersects(shapely.box(x.start, y.start, x.stop, y.stop))


def test_times_are_clipped_and_instants_kept():
    days = [pd.Timestamp(2020, 1, day) for day in (1, 5, 9)]
    three = MemoryDataset(
        [
            scene(20, 20, interval=(days[0], days[1])),
            scene(20, 20, interval=(days[1], days[1])),
            scene(20, 20, interval=(days[2], days[2])),
        ]
    )
    toi = pd.Interval(pd.Timestamp(2020, 1, 3, tz="UTC"), pd.Timestamp(2020, 1, 5, tz="UTC"))
    times = [(t.start, t.stop) for _, _, t in GridGeoSampler(three, 20, toi=toi)]
    assert times == [(pd.Timestamp(2020, 1, 3), days[1]), (days[1], days[1])]


class Pair:
    """What `&` makes: footprints cut by both datasets', whose corners are corners of no pixel."""

    def __init__(self, *datasets):
        self.datasets = list(datasets)
        self.res, self.crs = datasets[0].res, datasets[0].crs
        frames = [dataset.index.reset_index(drop=True) for dataset in datasets]
        cut = gpd.overlay(frames[0], frames[1], how="intersection")
        times = pd.IntervalIndex(list(datasets[0].index.index[:1]) * len(cut), closed="both", name="datetime")
        self.index = cut.set_index(times)


@pytest.mark.parametrize("image_first", [True, False])
def test_chips_of_a_combined_dataset_lie_on_the_images_pixels(image_first):
    images = MemoryDataset([scene(50, 50, corner=(500.0, 900.0), res=(10.0, 10.0))])
    masks = MemoryDataset([scene(100, 100, corner=(503.0, 897.0), res=(10.0, 10.0))])
    masks.is_image = False
    pair = Pair(images, masks) if image_first else Pair(masks, images)
    for sampler in (RandomGeoSampler(pair, 8, length=20, generator=generator()), GridGeoSampler(pair, 8)):
        chips = windows(sampler, corner=(500.0, 900.0), res=(10.0, 10.0))
        assert min(min(row, col) for row, col, *_ in chips) >= 1
        assert max(max(row, col) for row, col, *_ in chips) <= 42


def test_slivers_between_footprints_are_no_regions():
    ground = one(50, 50)
    neighbours = MemoryDataset([scene(50, 50, corner=(0.0, 0.0)), scene(50, 50, corner=(49.9999, 0.0))])
    pair = Pair(ground, neighbours)
    assert len(pair.index) == 2
    assert len(GridGeoSampler(pair, 25)) == 4


def test_torchgeos_units_are_understood():
    from enum import Enum

    class Foreign(Enum):
        CRS = 2

    assert RandomGeoSampler(one(60, 60, res=(2.0, 2.0)), 16, units=Foreign.CRS).pixels == (8, 8)


def test_whole_scenes_come_as_they_are():
    odd = MemoryDataset([scene(7, 9, corner=(0.25, 0.5), res=(0.5, 0.25)), scene(5, 5, corner=(100.0, 0.0))])
    first, second = PreChippedGeoSampler(odd)
    assert first[:2] == (slice(0.25, 4.75, 0.5), slice(-1.25, 0.5, 0.25))
    assert second[0].start == 100.0
    orders = {tuple(x.start for x, _, _ in PreChippedGeoSampler(odd, None, None, True, generator(s))) for s in range(9)}
    assert len(orders) == 2
