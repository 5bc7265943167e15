"""The samples of TorchGeo from 0.9 on: the same keys, shapes and pixels, and where they differ, both values.

Skipped under 0.8.1, whose samples are of another shape. docs/torchgeo.md says with which version this last ran.
"""

from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import torch

import geostream as gs
from geostream.testing.rasters import DEFAULT_TRANSFORM, write_cog

SHAPE = 300, 260
NAMED = {"filename_glob": "*.tif", "filename_regex": r"\w_(?P<date>\d{8})"}


@pytest.fixture(autouse=True)
def since_0_9(theirs):
    if version("torchgeo").startswith("0.8."):
        pytest.skip(f"{version('torchgeo')} gives samples of another shape")


def made(library, paths, attributes=NAMED, **options):
    return type("Same", (library.RasterDataset,), attributes)(paths, **options)


def both(theirs, paths, attributes=NAMED, **options):
    return tuple(made(library, paths, attributes, **options) for library in (theirs, gs))


@pytest.fixture
def days(tmp_path):
    """A scene of three bands and labels of one, on each of two days."""
    for day in (1, 2):
        (tmp_path / "labels").mkdir(exist_ok=True)
        write_cog(tmp_path / f"a_2023010{day}.tif", shape=SHAPE, count=3, seed=day, nodata=0, blocksize=128)
        write_cog(tmp_path / "labels" / f"b_2023010{day}.tif", shape=SHAPE, count=1, seed=day, blocksize=128)
    return tmp_path


IMAGES = {**NAMED, "filename_glob": "a_*.tif"}
LABELS = {**NAMED, "filename_glob": "b_*.tif", "is_image": False}


@pytest.mark.parametrize("time_series", [False, True])
@pytest.mark.parametrize("attributes", [IMAGES, LABELS, {**IMAGES, "is_image": False}, {**IMAGES, "nodata": 9}])
@pytest.mark.parametrize("place", [(10, 10, 64, 48), (-20, -20, 64, 48), (240, 280, 64, 64)])
def test_keys_shapes_and_pixels(theirs, window, days, attributes, time_series, place):
    pair = both(theirs, days, attributes, time_series=time_series)
    query = (*window(*place), slice("2023-01-01", "2023-01-01") if not time_series else slice(None))
    expected, ours = (dataset[_timestamps(query)] for dataset in pair)
    key = "image" if attributes.get("is_image", True) else "mask"
    assert set(ours) - {"dates"} == set(expected) == {"bounds", "transform", key}
    assert ours[key].dtype == expected[key].dtype
    assert np.array_equal(ours[key], expected[key])
    assert ours["transform"].shape == expected["transform"].shape == (9,)
    assert ours["bounds"].shape == expected["bounds"].shape == (9,)
    assert torch.equal(ours["transform"].float(), expected["transform"].float())
    assert torch.equal(ours["bounds"].float(), expected["bounds"].float())
    assert pair[0].bounds == pair[1].bounds
    assert pair[0].index.index.equals(pair[1].index.index)


def _timestamps(query):
    times = query[2]
    if times.start is None:
        return query
    return *query[:2], slice(pd.Timestamp(times.start), pd.Timestamp(times.stop) + pd.Timedelta(hours=1))


def test_batches(theirs, window, days):
    batches = []
    for library in (theirs, gs):
        pairs = made(library, days, IMAGES) & made(library, days, LABELS)
        samples = [pairs[window(col, 10, 64, 48)] for col in (10, 90)]
        batch = library.stack_samples(samples)
        assert [set(sample) for sample in library.unbind_samples(batch)] == [set(batch)] * 2
        batches.append(batch)
    expected, ours = batches
    assert set(ours) == set(expected)
    for key in ("image", "mask"):
        assert torch.equal(ours[key], expected[key])
        assert ours[key].dtype == expected[key].dtype


def test_an_intersection_s_place_is_told_once(theirs, window, days):
    shapes = []
    for library in (theirs, gs):
        sample = (made(library, days, IMAGES) & made(library, days, LABELS))[window(10, 10, 64, 48)]
        shapes.append((tuple(sample["bounds"].shape), tuple(sample["transform"].shape)))
    assert shapes == [((18,), (18,)), ((9,), (9,))]


def test_the_tiles_of_a_date_are_one_layer(theirs, window, tmp_path):
    for name, col in (("a", 0), ("b", 100)):
        write_cog(
            tmp_path / f"{name}_20230101.tif",
            np.full((1, 100, 100), 5, np.uint8),
            transform=DEFAULT_TRANSFORM @ DEFAULT_TRANSFORM.translation(col, 0),
            blocksize=128,
            overviews=False,
        )
    old, new = (dataset[window(70, 10, 60, 48)]["image"] for dataset in both(theirs, tmp_path, time_series=True))
    assert old.shape == (2, 1, 48, 60)
    assert new.shape == (1, 1, 48, 60)
    assert (new == 5).all()


def test_numbers_that_float32_does_not_hold(theirs, window, days):
    north = DEFAULT_TRANSFORM.f
    x = slice(DEFAULT_TRANSFORM.c, DEFAULT_TRANSFORM.c + 640)
    query = x, slice(north - 480.1, north - 0.1), slice(pd.Timestamp("2023-01-01T00:01"), pd.Timestamp("2023-01-02"))
    expected, ours = (dataset[query] for dataset in both(theirs, days, IMAGES))
    assert ours["transform"][5] == ours["bounds"][4] == north - 0.1
    assert expected["transform"][5] == expected["bounds"][4] == north
    assert ours["bounds"][6] == pd.Timestamp("2023-01-01T00:01").timestamp()
    assert expected["bounds"][6] == pd.Timestamp("2023-01-01").timestamp()


def test_every_nth_scene(theirs, window, days):
    query = *window(10, 10, 64, 48), slice(None, None, 2)
    expected, ours = (dataset[query]["image"] for dataset in both(theirs, days, IMAGES, time_series=True))
    assert torch.equal(expected, ours)
    assert len(ours) == 1


def test_a_union_of_series_is_merged_by_date(theirs, window, tmp_path):
    for folder, dates in (("one", (1, 3)), ("other", (1, 2))):
        (tmp_path / folder).mkdir()
        for day in dates:
            write_cog(tmp_path / folder / f"a_2023010{day}.tif", np.full((1, 100, 100), day, np.uint8), blocksize=128)
    lengths = []
    for library in (theirs, gs):
        one, other = (made(library, tmp_path / folder, time_series=True) for folder in ("one", "other"))
        sample = (one | other)[window(10, 10, 32, 32)]
        lengths.append(len(sample["image"]))
    assert lengths == [2, 3]
    assert sample["image"][:, 0, 0, 0].tolist() == [1, 2, 3]


def test_every_second_date_and_not_file(theirs, window, tmp_path):
    for name, day in (("a", 1), ("b", 1), ("c", 2), ("d", 3)):
        write_cog(tmp_path / f"{name}_2023010{day}.tif", np.full((1, 100, 100), day, np.uint8), blocksize=128)
    query = *window(10, 10, 32, 32), slice(None, None, 2)
    old, new = (dataset[query]["image"][:, 0, 0, 0].tolist() for dataset in both(theirs, tmp_path, time_series=True))
    assert old == [1, 2]
    assert new == [1, 3]


def test_a_footprint_of_the_class(theirs, window, days):
    """The same hook, the same answer."""
    from geopandas import GeoSeries
    from shapely import box

    x, y = window(0, 0, 130, 150)
    degrees = GeoSeries([box(x.start, y.start, x.stop, y.stop)], crs="EPSG:32632").to_crs(4326)
    hook = {"footprint_from_datasource": lambda self, datasource: degrees.to_crs(datasource.crs).iloc[0]}
    old, new = both(theirs, days, {**IMAGES, **hook})
    assert new.bounds[0].stop == pytest.approx(old.bounds[0].stop)
    assert new.index.geometry.iloc[0].symmetric_difference(old.index.geometry.iloc[0]).area < 1
    for dataset in (old, new):
        with pytest.raises(IndexError):
            dataset[window(200, 200, 20, 20)]
    place = window(100, 100, 60, 80)
    assert np.array_equal(old[place]["image"], new[place]["image"])
