"""Scenes that lie where their class says, which is less than their rasters' boxes."""

import copy
import pickle
from types import MappingProxyType

import pytest
import shapely
import torch
from affine import Affine
from geopandas import GeoSeries

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

SIDE, WEST, NORTH = 200, 600_000.0, 5_300_000.0
EAST, SOUTH = WEST + 10 * SIDE, NORTH - 10 * SIDE
BOX = shapely.box(WEST, SOUTH, EAST, NORTH)
UPPER_LEFT = shapely.Polygon([(WEST, SOUTH), (WEST, NORTH), (EAST, NORTH)])
PLACE = {"transform": Affine(10, 0, WEST, 0, -10, NORTH), "blocksize": 128, "overviews": False}


def window(col, row, size=40):
    x, y = WEST + 10 * col, NORTH - 10 * row
    return slice(x, x + 10 * size), slice(y - 10 * size, y)


class Halves(gs.RasterDataset):
    """What lies beside a file, a text in longitude and latitude, says where its scene is, as with Sentinel-2."""

    filename_glob = "*.tif"
    places = MappingProxyType({"a.tif": UPPER_LEFT})

    def footprint_from_datasource(self, datasource):
        shape = self.places.get(datasource.name.rsplit("/", 1)[-1])
        if shape is None:
            return None
        degrees = GeoSeries([shape], crs="EPSG:32632").to_crs(4326)
        return degrees.to_crs(datasource.crs).iloc[0]


@pytest.fixture
def two(tmp_path):
    for value, name in enumerate("ab", 1):
        write_cog(tmp_path / f"{name}.tif", torch.full((1, SIDE, SIDE), value, dtype=torch.uint8).numpy(), **PLACE)
    return tmp_path


def names(dataset, query):
    return "".join(request.source.url[-5] for request in dataset.requests(query))


def test_the_class_decides_where_a_scene_is(two):
    dataset = Halves(two)
    first, second = dataset.index.geometry
    assert first.symmetric_difference(UPPER_LEFT).area < 1e-3
    assert second.equals(BOX)
    assert dataset[window(5, 5)]["image"].unique().tolist() == [1]
    assert dataset[window(150, 150)]["image"].unique().tolist() == [2]


def test_what_does_not_reach_a_query_is_not_fetched(two):
    with RangeServer(two) as server:
        dataset = Halves([server.url_for(f"{name}.tif") for name in "ab"], mosaic="max")
        for query, expected in ((window(5, 5), "ab"), (window(150, 150), "b"), (window(150, 20), "ab")):
            server.reset()
            dataset[query]
            assert {request.path[0] for request in server.log} == set(expected)


def test_where_nothing_is_left_a_query_fails(two):
    dataset = Halves(two / "a.tif")
    with pytest.raises(gs.QueryError):
        dataset[window(150, 150)]


def test_in_another_crs(two):
    dataset = Halves(two / "a.tif", crs="EPSG:4326")
    shape = dataset.index.geometry.iloc[0]
    assert shape.area == pytest.approx(GeoSeries([UPPER_LEFT], crs=32632).to_crs(4326).iloc[0].area, rel=1e-3)
    dataset.crs = 32632
    assert dataset.index.geometry.iloc[0].area == pytest.approx(UPPER_LEFT.area, rel=1e-3)


def test_compositions_and_copies_keep_it(two):
    half, whole = Halves(two / "a.tif"), gs.RasterDataset(two / "b.tif")
    assert (half & whole).index.geometry.iloc[0].area == pytest.approx(UPPER_LEFT.area, rel=1e-6)
    union = half | whole
    assert union[window(150, 150)]["image"].unique().tolist() == [2]
    for twin in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        assert twin.index.geometry.iloc[0].equals(half.index.geometry.iloc[0])


def test_a_saved_index_leaves_it_to_the_class(two):
    gs.build_index(two, filename_glob="*.tif").save(two / "index.parquet")
    dataset = Halves(index=gs.load_index(two / "index.parquet"))
    assert names(dataset, window(150, 150)) == "b"


def test_what_a_header_says_is_told_in_rasterio_s_words(two):
    told = []
    write_cog(two / "c.tif", shape=(50, 60), count=2, nodata=7, **{**PLACE, "transform": Affine(20, 0, 5, 0, -20, 9)})

    class Asking(gs.RasterDataset):
        def footprint_from_datasource(self, datasource):
            told.append(datasource)

    Asking(two / "c.tif")
    (datasource,) = told
    assert datasource.name == str(two / "c.tif")
    assert datasource.crs.to_epsg() == 32632
    assert (datasource.width, datasource.height, datasource.count, datasource.nodata) == (60, 50, 2, 7)
    assert datasource.bounds == (5, 9 - 1000, 5 + 1200, 9)
    assert datasource.bounds.left == 5
    assert datasource.transform == Affine(20, 0, 5, 0, -20, 9)
    assert datasource.tags()["AREA_OR_POINT"] == "Area"


@pytest.mark.parametrize("shape", [shapely.Point(0, 0), shapely.Polygon(), "POLYGON EMPTY", BOX.exterior])
def test_what_is_no_area_is_refused_with_the_file_s_name(two, shape):
    wrong = type("Wrong", (gs.RasterDataset,), {"footprint_from_datasource": lambda self, datasource: shape})
    with pytest.raises(gs.ConfigError, match=r"a\.tif.*footprint_from_datasource"):
        wrong(two)
