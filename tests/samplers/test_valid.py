"""Chips with enough valid ground: by footprints, and by masks that were looked at once."""

import pickle

import numpy as np
import pytest
import shapely
import torch
from affine import Affine

import geostream as gs
from geostream.errors import ConfigError
from geostream.samplers import (
    GridGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
    read_valid,
)
from geostream.samplers.valid import ValidShares
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog

WEST, NORTH, RES, SIDE = 600_000.0, 5_300_000.0, 10.0, 512


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def write(root, number, valid, **options):
    data = np.where(valid, 9, 0).astype(np.uint8)[None]
    corner = Affine(RES, 0, WEST + 6000 * number, 0, -RES, NORTH)
    write_cog(root / f"img_{number}.tif", data, transform=corner, blocksize=128, compress="DEFLATE", **options)


@pytest.fixture
def half(tmp_path):
    """A scene that is valid above its diagonal, and one that has no nodata."""
    rows, cols = np.mgrid[:SIDE, :SIDE]
    write(tmp_path, 0, rows + cols < SIDE, nodata=0)
    write(tmp_path, 1, np.ones((SIDE, SIDE), bool))
    return tmp_path


def chips_of(dataset, size, **options):
    yield from RandomGeoSampler(dataset, size, length=120, generator=seeded(), **options)
    yield from GridGeoSampler(dataset, size, **options)
    for sampler in (
        RandomBatchGeoSampler(dataset, size, 4, length=80, generator=seeded(), **options),
        TileBatchGeoSampler(dataset, size, 4, generator=seeded(), **options),
    ):
        for batch in sampler:
            yield from batch


def test_chips_hold_as_much_data_as_asked_for(half):
    images = Images(half, valid=True)
    known = read_valid(images)
    chips = list(chips_of(images, 64, min_valid=0.75, valid=known))
    shares = [float(sample["mask_valid"].float().mean()) for sample in images.__getitems__(chips)]
    assert min(shares) > 0.75 - 0.06, "cells are 8 pixels wide"
    assert sum(share < 1 for share in shares) > 10
    before = [float(images[chip]["mask_valid"].float().mean()) for chip in GridGeoSampler(images, 64)]
    expected = sum(share >= 0.75 for share in before)
    assert abs(sum(1 for _ in GridGeoSampler(images, 64, min_valid=0.75, valid=known)) - expected) <= 2
    assert pickle.loads(pickle.dumps(known)).shares.keys() == known.shares.keys()


def test_scenes_weigh_by_their_valid_ground(half):
    images = Images(half)
    sampler = RandomGeoSampler(images, 16, length=3000, min_valid=0.01, valid=read_valid(images), generator=seeded())
    share = sum(x.start < WEST + 6000 for x, *_ in sampler) / 3000
    assert share == pytest.approx(1 / 3, abs=0.04), "half of one scene, all of the other"


def test_a_thumbnail_is_read_of_scenes_that_may_have_holes(range_server, half):
    images = Images(range_server.s3_url(), storage_options=range_server.storage_options)
    before = len(range_server.log)
    with gs.stats.measure() as used:
        known = read_valid(images, cells=32)
    assert used.tiles == 1, "of the smallest overview of the scene with nodata"
    assert {asked.path for asked in range_server.log[before:]} == {"img_0.tif"}
    before = len(range_server.log)
    sampler = RandomGeoSampler(images, 64, length=10, min_valid=0.5, valid=known, generator=seeded())
    list(sampler)
    assert len(range_server.log) == before, "samplers read nothing"


def test_a_scene_with_a_hole_only(half):
    write(half, 2, np.zeros((SIDE, SIDE), bool), nodata=0)
    images = Images(half)
    known = read_valid(images)
    with pytest.warns(UserWarning, match="1 of 3 regions are left out"):
        chips = list(RandomGeoSampler(images, 64, length=50, min_valid=0.5, valid=known, generator=seeded()))
    assert max(x.stop for x, *_ in chips) <= WEST + 6000 + SIDE * RES


def test_combinations_and_other_crs_look_at_the_images(half):
    class Labels(gs.RasterDataset):
        filename_glob = "lab_*.tif"
        is_image = False

    write_cog(half / "lab_0.tif", np.ones((1, SIDE, SIDE), np.uint8), transform=Affine(RES, 0, WEST, 0, -RES, NORTH))
    images = Images(half, valid=True)
    pairs = images & Labels(half)
    chips = list(chips_of(pairs, 64, min_valid=0.9, valid=read_valid(pairs)))
    assert min(float(images[chip]["mask_valid"].float().mean()) for chip in chips) > 0.8
    moved = Images(half, crs="EPSG:4326", valid=True)
    chips = list(RandomGeoSampler(moved, 64, length=30, min_valid=0.9, valid=read_valid(moved), generator=seeded()))
    assert min(float(moved[chip]["mask_valid"].float().mean()) for chip in chips) > 0.75
    with pytest.raises(ConfigError, match="another CRS"):
        RandomGeoSampler(moved, 64, min_valid=0.9, valid=read_valid(images))


def test_footprints_alone():
    place = MemoryDataset([MemoryScene(np.zeros((1, 200, 200), np.uint8))])
    roi = shapely.Polygon([(0, 0), (200, 0), (0, -200)])
    for least in (0.3, 0.9, 1.0):
        for x, y, _ in chips_of(place, 20, roi=roi, min_valid=least):
            chip = shapely.box(x.start, y.start, x.stop, y.stop)
            assert roi.intersection(chip).area / chip.area > least - 1e-5
    small = MemoryDataset([MemoryScene(np.zeros((1, 30, 200), np.uint8))])
    rows = {y.stop for _, y, _ in RandomGeoSampler(small, 40, length=90, pad=True, min_valid=0.7, generator=seeded())}
    assert rows <= set(range(11)), "padded chips hold all 30 rows of 40"
    with pytest.raises(ConfigError, match=r"min_valid=0\.8"):
        RandomGeoSampler(small, 40, pad=True, min_valid=0.8)


@pytest.mark.parametrize("least", [-0.1, 1.1, True, "half", float("nan"), None])
def test_what_is_no_share_is_refused(least):
    place = MemoryDataset([MemoryScene(np.zeros((1, 60, 60), np.uint8))])
    with pytest.raises(ConfigError, match="min_valid"):
        RandomGeoSampler(place, 8, min_valid=least)


def test_maps_of_other_datasets_are_refused(half, tmp_path):
    place = MemoryDataset([MemoryScene(np.zeros((1, 60, 60), np.uint8))])
    with pytest.raises(ConfigError, match="no scenes"):
        read_valid(place)
    with pytest.raises(ConfigError, match="cells"):
        read_valid(Images(half), cells=0)
    with pytest.raises(ConfigError, match="knows nothing"):
        RandomGeoSampler(place, 8, min_valid=0.5, valid=read_valid(Images(half)))


def test_shares_are_exact_for_cells():
    rng = np.random.default_rng(2)
    valid = rng.random((13, 7)) < 0.5
    shares = ValidShares.of_cells((100.0, 50.0, 114.0, 89.0), valid)  # cells of 2 x 3
    fine = np.kron(valid, np.ones((30, 20)))  # pixels of 0.1
    for _ in range(50):
        (left, right), (top, bottom) = (np.sort(rng.choice(n + 1, 2, replace=False)) for n in (140, 390))
        box = np.array([[100 + left / 10, 89 - bottom / 10, 100 + right / 10, 89 - top / 10]])
        assert shares.of(box)[0] == pytest.approx(fine[top:bottom, left:right].mean(), abs=1e-6)
    assert shares.of(np.array([[0.0, 0.0, 10.0, 10.0]]))[0] == 0, "nothing is valid beyond"
