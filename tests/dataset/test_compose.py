"""Datasets joined by & and |."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import shapely
import torch
from affine import Affine
from geopandas import GeoDataFrame
from pyproj import CRS

import geostream as gs
from geostream.testing.rasters import write_cog

from .conftest import NORTH, RES, SIDE, WEST, Images, Labels, at


class Foreign:
    """A dataset of TorchGeo's shape: its setters change its index in place, and it raises IndexError."""

    def __init__(self, box, crs="EPSG:4326", res=1e-4, key="mask"):
        index = pd.IntervalIndex.from_tuples(
            [(pd.Timestamp("2023-01-01"), pd.Timestamp("2023-06-01"))], closed="both", name="datetime"
        )
        self.index = GeoDataFrame({"filepath": ["labels.gpkg"]}, index=index, geometry=[shapely.box(*box)], crs=crs)
        self.res = (res, res)
        self.key = key

    @property
    def crs(self):
        return self.index.crs

    @crs.setter
    def crs(self, crs):
        self.index.to_crs(crs, inplace=True)

    @property
    def bounds(self):
        xmin, ymin, xmax, ymax = self.index.total_bounds
        t = self.index.index
        return slice(xmin, xmax, self.res[0]), slice(ymin, ymax, self.res[1]), slice(t.left.min(), t.right.max(), 1)

    def __getitem__(self, query):
        x, y, t = query
        hit = self.index.iloc[self.index.index.overlaps(pd.Interval(t.start, t.stop))].cx[
            x.start : x.stop, y.start : y.stop
        ]
        if hit.empty:
            raise IndexError("not found")
        shape = round((y.stop - y.start) / y.step), round((x.stop - x.start) / x.step)
        return {self.key: torch.full(shape, 3), "bounds": torch.zeros(9), "transform": torch.zeros(9)}


@pytest.fixture
def foreign(images):
    corners = gs.UnionDataset(images, images).index.to_crs("EPSG:4326").total_bounds
    return Foreign(corners)


def test_an_intersection_has_both_datasets_keys_and_one_place(images, labels):
    pairs = images & labels
    assert isinstance(pairs, gs.IntersectionDataset)
    sample = pairs[at(160, 10)]
    assert sample.keys() == {"bounds", "transform", "image", "mask"}
    assert sample["bounds"].shape == sample["transform"].shape == (9,)
    assert torch.equal(sample["image"], images[at(160, 10)]["image"])
    assert torch.equal(sample["mask"], labels[at(160, 10)]["mask"])
    assert pairs.crs == images.crs
    assert pairs.res == images.res


def test_an_intersection_s_index_is_what_both_share(images, labels):
    """The scenes' days differ: a of images meets a of labels, b meets b; a meets b on the ground alone."""
    assert len(images & labels) == 2
    assert len(gs.IntersectionDataset(images, labels, spatial_only=True)) == 4
    labels.index = labels.index.iloc[1:]
    pairs = images & labels
    assert len(pairs) == 1
    assert list(pairs.index["filepath"]) == images.files[1:]
    assert pairs.bounds[0] == slice(WEST + 160 * RES, WEST + 480 * RES, RES)
    assert pairs.bounds[2].start == pd.Timestamp("2023-01-02")
    with pytest.raises(gs.QueryError):
        pairs[at(0, 0)]


def test_scenes_that_touch_share_nothing(tmp_path):
    for i in range(2):
        write_cog(tmp_path / f"{i}.tif", count=1, shape=(64, 64), transform=Affine(10, 0, 640 * i, 0, -10, 640))
    left, right = (gs.RasterDataset(tmp_path / f"{i}.tif") for i in range(2))
    with pytest.raises(gs.QueryError, match="no area in common"):
        left & right
    assert len(left | right) == 2


def test_times_that_share_nothing_are_refused_unless_ignored(archive):
    first, second = Images(archive.img_a), Labels(archive.lab_b)
    with pytest.raises(gs.QueryError, match="spatial_only"):
        first & second
    sample = gs.IntersectionDataset(first, second, spatial_only=True)[at(160, 10)]
    assert np.array_equal(sample["mask"], archive.pixels["lab_b"][0, 10:74, :64])


def test_images_are_joined_on_their_channels(images, archive):
    stacked = images & Images(archive.root, bands=("B",), valid=True)
    sample = stacked[at(160, 10)]
    assert sample["image"].shape == (4, 64, 64)
    assert torch.equal(sample["image"][3], sample["image"][2])
    assert sample["mask_valid"].shape == (1, 64, 64)


def test_operands_are_not_changed(archive):
    images, labels = Images(archive.root), Labels(archive.root, crs="EPSG:3857", res=15)
    before = labels.index.copy(), labels.res, labels.crs
    for combined in (images & labels, images | labels):
        assert combined.datasets[0] is images
        assert combined.datasets[1] is not labels
        assert combined.datasets[1].res == images.res
    assert labels.index.equals(before[0])
    assert (labels.res, labels.crs) == before[1:]


def test_setters_of_a_composition_leave_its_parts_alone(images, labels):
    pairs = images & labels
    where = images.index.copy()
    pairs.crs = "EPSG:3857"
    assert pairs.crs.to_epsg() == 3857
    assert pairs.res == pairs.datasets[1].res != images.res
    pairs.res = 30
    assert pairs.res == pairs.datasets[0].res == pairs.datasets[1].res == (30.0, 30.0)
    x, y, _ = pairs.bounds
    middle = slice((x.start + x.stop) / 2, (x.start + x.stop) / 2 + 600), slice((y.start + y.stop) / 2 - 600, None)
    assert pairs[middle]["image"].shape[-1] == 20
    assert images.index.equals(where)
    assert images.crs.to_epsg() == labels.crs.to_epsg() == 32632


def test_a_union_answers_where_either_does(archive):
    west, east = Images(archive.img_a), Images(archive.img_b)
    both = west | east
    assert len(both) == 2
    assert torch.equal(both[at(0, 30)]["image"], west[at(0, 30)]["image"])
    assert torch.equal(both[at(400, 30)]["image"], east[at(400, 30)]["image"])
    with pytest.raises(gs.QueryError):
        both[at(0, 1000)]


def test_a_union_merges_by_validity(images, archive):
    both = Images(archive.img_a) | Images(archive.img_b)
    sample = both[at(160, 10)]
    assert torch.equal(sample["image"], images[at(160, 10)]["image"])
    assert "mask_valid" not in sample
    reversed_ = Images(archive.img_b) | Images(archive.img_a)
    assert torch.equal(reversed_[at(160, 10)]["image"], Images(archive.root, mosaic="last")[at(160, 10)]["image"])
    valid = Images(archive.img_a, valid=True) | Images(archive.img_b)
    assert torch.equal(valid[at(160, 10)]["mask_valid"], Images(archive.root, valid=True)[at(160, 10)]["mask_valid"])


def test_zeros_are_data_to_a_union_where_no_nodata_is_declared(archive):
    one, other = Labels(archive.lab_a), Labels(archive.lab_b)
    assert (one[at(160, 10)]["mask"] == 0).any()
    assert torch.equal((one | other)[at(160, 10)]["mask"], one[at(160, 10)]["mask"])


def test_compositions_nest(images, labels, archive):
    pairs = (Images(archive.img_a) | Images(archive.img_b)) & labels
    sample = pairs[at(160, 10)]
    assert torch.equal(sample["image"], images[at(160, 10)]["image"])
    assert "mask_valid" not in sample
    union_of_pairs = (Images(archive.img_a) & Labels(archive.lab_a)) | (Images(archive.img_b) & Labels(archive.lab_b))
    assert union_of_pairs[at(160, 10)].keys() == sample.keys()
    triple = images & labels & images
    assert triple[at(0, 30)]["image"].shape[0] == 6


def test_collate_fn_and_transforms_are_the_user_s(images, labels):
    pairs = gs.IntersectionDataset(
        images, labels, collate_fn=lambda samples: {"n": len(samples)}, transforms=lambda s: {**s, "t": True}
    )
    assert pairs[at(0, 30)] == {"n": 2, "t": True}
    union = gs.UnionDataset(images, labels, collate_fn=lambda samples: {"n": len(samples)})
    assert union[at(0, 30)] == {"n": 2}


def test_a_torchgeo_dataset_on_the_right(images, foreign):
    before = foreign.index.copy(), foreign.res
    pairs = images & foreign
    sample = pairs[at(160, 10)]
    assert (sample["mask"] == 3).all()
    assert sample["mask"].shape == (64, 64)
    assert sample["transform"][0] == RES
    assert foreign.index.equals(before[0])
    assert foreign.res == before[1]
    assert foreign.crs == CRS.from_epsg(4326)
    assert len(pairs.requests(at(160, 10))) == 2
    (batch,) = pairs.__getitems__([at(160, 10)])
    assert torch.equal(batch["image"], sample["image"])


def test_a_union_with_a_torchgeo_dataset(labels, foreign):
    union = labels | foreign
    assert torch.equal(union[at(160, 10)]["mask"], labels[at(160, 10)]["mask"])
    outside = at(160, 10), slice("2023-05-01", "2023-05-02")
    assert (union[*outside[0], outside[1]]["mask"] == 3).all()


def test_partial_queries_are_completed_by_the_composition(images, labels, archive):
    labels.index = labels.index.iloc[1:]
    pairs = images & labels
    sample = pairs[:, NORTH - 100 : NORTH]
    assert sample["image"].shape == (3, 10, SIDE)
    assert np.array_equal(sample["mask"], archive.pixels["lab_b"][0, :10])


@pytest.mark.parametrize("other", [3, "images", None, [1]])
def test_only_datasets_combine(images, other):
    with pytest.raises(TypeError):
        images & other
    with pytest.raises(TypeError):
        images | other
    with pytest.raises(TypeError):
        images + images
    with pytest.raises(TypeError, match="IntersectionDataset combines datasets"):
        gs.IntersectionDataset(images, other)


def test_compositions_pickle_and_copy(images, labels):
    for combined in (images & labels, images | labels):
        expected = combined[at(160, 10)]
        for twin in (pickle.loads(pickle.dumps(combined)), copy.deepcopy(combined)):
            assert torch.equal(twin[at(160, 10)]["mask"], expected["mask"])


def test_a_union_of_series_has_the_dates_of_both(archive):
    first, second = Images(archive.img_a, time_series=True), Images(archive.root, time_series=True)
    sample = (first | second)[at(160, 10)]
    assert torch.equal(sample["dates"], second[at(160, 10)]["dates"])
    assert torch.equal(sample["image"], second[at(160, 10)]["image"])
    backwards = (second | first)[at(160, 10)]
    assert torch.equal(backwards["image"], sample["image"])


def test_an_empty_dataset_says_so(images, labels, archive):
    images.index = images.index.iloc[:0]
    assert len(images) == 0
    assert "bbox: None" in str(images)
    for answer in (lambda: images.bounds, lambda: images[at(0, 0)], lambda: images & labels, lambda: labels & images):
        with pytest.raises(gs.QueryError):
            answer()
    with pytest.raises(gs.QueryError, match="empty"):
        images.crs = "EPSG:3857"
    full = Images(archive.root)
    assert torch.equal((images | full)[at(0, 30)]["image"], full[at(0, 30)]["image"])
    assert torch.equal((full | images)[at(0, 30)]["image"], full[at(0, 30)]["image"])
