"""A batch read as one plan equals its queries read one by one, whatever the datasets are made of."""

import numpy as np
import pytest
import torch
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st

import geostream as gs
from geostream.grid import pixel_count
from geostream.testing.rasters import write_cog

RES, WEST, NORTH, SIDE = 10.0, 600_000.0, 5_300_000.0, 256


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"
    filename_regex = r"img_\w_(?P<date>\d{8})"


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


class Remapped(Labels):
    """Labels whose values are changed by an overridden method, as TorchGeo's classes do."""

    def __getitem__(self, query):
        sample = super().__getitem__(query)
        sample["mask"] = torch.tensor([4, 3, 2, 1, 0])[sample["mask"]]
        return sample


class Widened(Images):
    """Asks for more than `requests` says, so that some of it is read by the way."""

    def __getitem__(self, query):
        x, y, t = self._disambiguate_slice(query)
        return super().__getitem__((slice(x.start - 20, x.stop + 20, x.step), y, t))


def double(sample):
    return {**sample, "image": sample["image"] * 2}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("batches")
    rng = np.random.default_rng(0)
    for i, name in enumerate("ab"):
        options = {"transform": Affine(RES, 0, WEST + 150 * i * RES, 0, -RES, NORTH), "blocksize": 64}
        image = rng.integers(0, 4000, (2, SIDE, SIDE), dtype=np.uint16)
        image[:, 30:80, 160 - 100 * i : 240 - 100 * i] = 0
        write_cog(root / f"img_{name}_2023010{i + 1}.tif", image, nodata=0, **options)
        write_cog(root / f"lab_{name}.tif", rng.integers(0, 5, (1, SIDE, SIDE), dtype=np.uint8), **options)
    a, b = (sorted(root.glob(f"img_{name}_*.tif")) for name in "ab")
    images, labels = Images(root), Labels(root)
    return {
        "images": images,
        "transforms": Images(root, transforms=double, valid=True, mosaic="max"),
        "native": Images(root, dtype="native", mosaic="mean"),
        "series": Images(root, time_series=True),
        "warped": Images(root, crs="EPSG:32633", resampling="cubic"),
        "intersection": gs.IntersectionDataset(images, Remapped(root), transforms=double),
        "union": Images(a) | Images(b),
        "nested": (Images(a, transforms=double) | Images(b)) & labels & Remapped(root),
        "overridden": Remapped(root),
        "widened": Widened(root),
        "skipping": Images(root, on_error="skip"),
    }


columns, rows = st.floats(-30, 410), st.floats(-30, 260)
side = st.floats(0.2, 40)
boxes = st.lists(st.tuples(columns, rows, side, side, st.sampled_from([RES, 7.0, 25.0])), min_size=1, max_size=5)
NAMES = [
    "images", "transforms", "native", "series", "warped", "intersection", "union", "nested", "overridden", "widened",
    "skipping",
]  # fmt: skip


def query(dataset, box):
    """A box in pixels from the upper left corner of the dataset, with a resolution of its own."""
    col, row, width, height, res = box
    x, y, _ = dataset.bounds
    left, top = x.start + col * RES, y.stop - row * RES
    return slice(left, left + width * RES, res), slice(top - height * RES, top, res)


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype
        assert np.array_equal(value.numpy(), other[key].numpy(), equal_nan=value.is_floating_point())


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(NAMES), boxes=boxes)
def test_a_batch_equals_its_queries(datasets, name, boxes):
    dataset = datasets[name]
    expected = {}
    for place in [query(dataset, box) for box in boxes]:
        try:
            expected[str(place)] = place, dataset[place]
        except gs.QueryError:
            with pytest.raises(gs.QueryError):
                dataset.__getitems__([place])
    queries = [place for place, _ in expected.values()]
    for (_, one), other in zip(expected.values(), dataset.__getitems__(queries), strict=True):
        same(one, other)


@settings(max_examples=60, deadline=None)
@given(boxes=boxes)
def test_the_shape_is_exact_for_every_query(datasets, boxes):
    dataset = datasets["images"]
    for box in boxes:
        x, y = query(dataset, box)
        try:
            sample = dataset[x, y]
        except gs.QueryError:
            continue
        shape = pixel_count(y.stop - y.start, y.step), pixel_count(x.stop - x.start, x.step)
        assert tuple(sample["image"].shape) == (2, *shape)
        assert sample["transform"].tolist()[:6] == [x.step, 0, x.start, 0, -y.step, y.stop]


def test_each_tile_is_decoded_once_per_batch(tmp_path):
    """Sixteen chips within one tile of each of image and labels, each chip also asked for twice."""
    for kind in ("img_a_20230101", "lab_a"):
        write_cog(tmp_path / f"{kind}.tif", count=1, shape=(SIDE, SIDE), blocksize=64, overviews=False)
    pairs = Images(tmp_path) & Labels(tmp_path)
    chips = [query(pairs, (2 * i, 2, 16, 16, RES)) for i in range(16)]
    with gs.stats.measure() as counts:
        pairs.__getitems__([*chips, *chips])
    assert counts.tiles == 2
    assert counts.requests == 2
