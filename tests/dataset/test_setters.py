"""Setting crs and res: what follows from them, and the way back."""

import copy
import pickle

import numpy as np
import pytest
import shapely
import torch

import geostream as gs

from .conftest import NORTH, RES, SIDE, WEST, Images, at


def test_the_resolution_follows_the_crs(images, archive):
    images.crs = "EPSG:3857"
    made = Images(archive.root, crs="EPSG:3857")
    assert images.res == pytest.approx(made.res, rel=1e-9)
    assert images.bounds[0].step == images.res[0]
    assert images.index.total_bounds == pytest.approx(made.index.total_bounds, abs=1e-6)
    x, y, _ = made.bounds
    place = slice(x.start, x.start + 64 * x.step), slice(y.stop - 64 * y.step, y.stop)
    assert images[place]["image"].shape == made[place]["image"].shape


def test_the_way_back_ends_where_it_began(images):
    index, res, expected = images.index.copy(), images.res, images[at(160, 10)]["image"]
    for crs in ("EPSG:3857", "EPSG:4326", "EPSG:32633", "EPSG:32632"):
        images.crs = crs
    assert images.res == res
    assert images.index.equals(index)
    assert torch.equal(images[at(160, 10)]["image"], expected)


def test_stops_on_the_way_leave_no_trace(images, archive):
    images.crs = "EPSG:3857"
    images.crs = "EPSG:4326"
    direct = Images(archive.root)
    direct.crs = "EPSG:4326"
    assert images.res == direct.res
    assert images.index.equals(direct.index)


def test_a_resolution_that_was_set_is_converted_in_its_turn(images):
    images.res = 20
    images.crs = "EPSG:3857"
    coarse = images.res
    fine = Images(images.paths)
    fine.crs = "EPSG:3857"
    assert coarse == pytest.approx([2 * side for side in fine.res], rel=1e-2)
    images.crs = "EPSG:32632"
    assert images.res == (20.0, 20.0)
    images.crs = "EPSG:4326"
    images.res = 2e-4
    images.crs = "EPSG:3857"
    images.crs = "EPSG:4326"
    assert images.res == pytest.approx((2e-4, 2e-4), rel=1e-12)


def test_an_index_that_was_cut_or_replaced_is_what_moves(images):
    images.crs = "EPSG:3857"
    images.index = images.index.iloc[1:]
    images.crs = "EPSG:32632"
    assert len(images) == 1
    box = WEST + 160 * RES, NORTH - SIDE * RES, WEST + 480 * RES, NORTH
    assert shapely.total_bounds(images.index.geometry.values).tolist() == pytest.approx(box, abs=0.5)


@pytest.mark.parametrize("combine", ["__and__", "__or__"])
def test_a_composition_finds_its_way_back_too(images, labels, combine):
    pairs = getattr(images, combine)(labels)
    index, expected = pairs.index.copy(), pairs[at(160, 10)]
    for crs in ("EPSG:3857", "EPSG:4326", "EPSG:32632"):
        pairs.crs = crs
        assert pairs.datasets[0].crs == pairs.datasets[1].crs == pairs.crs
        assert pairs.datasets[0].res == pairs.datasets[1].res == pairs.res
    assert pairs.res == images.res
    assert pairs.index.equals(index)
    assert all(torch.equal(pairs[at(160, 10)][key], value) for key, value in expected.items())


def test_copies_go_their_own_ways(images):
    images.crs = "EPSG:3857"
    twin, pickled = copy.copy(images), pickle.loads(pickle.dumps(images))
    twin.crs = "EPSG:4326"
    assert images.crs.to_epsg() == pickled.crs.to_epsg() == 3857
    pickled.crs = images.crs = "EPSG:32632"
    assert images.res == pickled.res == (RES, RES)
    assert pickled.index.equals(images.index)


def test_the_same_crs_in_other_words_changes_nothing(images):
    index = images.index
    images.crs = images.crs.to_wkt()
    assert images.index is index


@pytest.mark.parametrize("value", ["EPSG:0", None])
def test_a_crs_that_makes_no_sense_leaves_all_as_it_was(images, value):
    before = images.index, images.res
    with pytest.raises(gs.ConfigError):
        images.crs = value
    assert images.index is before[0]
    assert images.res == before[1]


@pytest.mark.parametrize("res", [20, np.float32(20), np.int64(20), (20, 20.0), [20, 20], np.array([20, 20])])
def test_a_resolution_may_be_any_number_or_two_of_them(archive, res):
    assert Images(archive.root, res=res).res == (20.0, 20.0)
    images = Images(archive.root)
    images.res = res
    assert (images.bounds[0].step, images.bounds[1].step) == images.res == (20.0, 20.0)


@pytest.mark.parametrize("res", ["20", None, (1, 2, 3), 0, -1, float("nan"), (10, float("inf")), object()])
def test_what_is_no_resolution_is_refused(images, res):
    with pytest.raises(gs.ConfigError, match="pixel size"):
        images.res = res
    assert images.res == (RES, RES)
