"""Footprints and lookups."""

import numpy as np
import pandas as pd
import pytest
import shapely
from affine import Affine
from pyproj import CRS, Transformer

from geostream import RasterDataset
from geostream.errors import ConfigError
from geostream.grid import Grid
from geostream.index import SceneLookup, converted_res, footprint, projected, scene_frame
from geostream.testing.rasters import write_cog

UTM32 = CRS.from_epsg(32632)
WGS84 = CRS.from_epsg(4326)
DAY = pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")


def frame(shapes, times=None):
    first, last = (pd.DatetimeIndex(ends) for ends in zip(*(times or [DAY] * len(shapes)), strict=True))
    return scene_frame([f"{i}.tif" for i in range(len(shapes))], shapes, (first, last), UTM32)


def found(lookup, box, start="2019", stop="2021", step=1, res=1.0):
    grid = Grid.from_bounds(box, (res, res), UTM32)
    return lookup.find(grid, slice(pd.Timestamp(start), pd.Timestamp(stop), step)).tolist()


def test_lookup_by_place():
    lookup = SceneLookup(frame([shapely.box(i * 10, 0, i * 10 + 10, 10) for i in range(5)]))
    assert found(lookup, (12, 2, 18, 8)) == [1]
    assert found(lookup, (5, -5, 25, 5)) == [0, 1, 2]
    assert found(lookup, (10, 0, 20, 10)) == [1]
    assert found(lookup, (10, 10, 20, 20)) == []
    assert found(lookup, (9.9995, 0, 19.9995, 10)) == [1]
    assert found(lookup, (9.99, 0, 19.99, 10)) == [0, 1]
    assert found(lookup, (-100, -100, -50, -50)) == []


def test_lookup_by_time_counts_both_ends():
    instants = [(pd.Timestamp(f"2020-01-0{i}"),) * 2 for i in range(1, 6)]
    lookup = SceneLookup(frame([shapely.box(0, 0, 10, 10)] * 5, instants))
    box = (0, 0, 10, 10)
    assert found(lookup, box, "2020-01-02", "2020-01-04") == [1, 2, 3]
    assert found(lookup, box, "2020-01-03", "2020-01-03") == [2]
    assert found(lookup, box, "2020-01-02T01", "2020-01-02T23") == []
    assert found(lookup, box, "2020", "2021", 2) == [0, 2, 4]
    assert found(lookup, box, pd.Timestamp.min, pd.Timestamp.max) == [0, 1, 2, 3, 4]


def test_lookup_agrees_with_comparing_everything():
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 90, (200, 2))
    shapes = [
        shapely.box(x, y, x + w, y + h) for (x, y), (w, h) in zip(corners, rng.integers(1, 12, (200, 2)), strict=True)
    ]
    lookup = SceneLookup(frame(shapes))
    for x, y in rng.integers(0, 95, (50, 2)):
        query = shapely.box(x, y, x + 5, y + 5)
        assert found(lookup, (x, y, x + 5, y + 5)) == [
            i for i, s in enumerate(shapes) if s.intersection(query).area > 0
        ]


def test_a_lookup_notices_that_its_index_was_replaced():
    index = frame([shapely.box(0, 0, 1, 1)] * 3)
    lookup = SceneLookup(index)
    assert lookup.describes(index)
    assert not lookup.describes(index.copy())
    assert not lookup.describes(index.iloc[:1])


def test_footprints_of_north_up_and_rotated_grids():
    assert footprint(Grid(4, 2, Affine(10, 0, 100, 0, -10, 50), UTM32), UTM32).equals(shapely.box(100, 30, 140, 50))
    turned = footprint(Grid(10, 10, Affine.rotation(45), UTM32), UTM32)
    assert turned.area == pytest.approx(100)
    assert turned.bounds == pytest.approx((-(50**0.5), 0, 50**0.5, 200**0.5))


def test_a_footprint_s_edges_bend_as_the_projection_bends_them():
    grid = Grid(10_000, 10_000, Affine(10, 0, 300_000, 0, -10, 7_000_000), UTM32)
    there = footprint(grid, WGS84)
    (back,) = projected([there], WGS84, UTM32)
    assert shapely.hausdorff_distance(back, shapely.box(*grid.bounds)) < 20
    four = projected([shapely.box(*grid.bounds)], UTM32, WGS84)[0]
    assert shapely.get_num_coordinates(four) > 100


def test_a_footprint_across_the_antimeridian_becomes_two_parts():
    grid = Grid(100, 100, Affine(1000, 0, 740_000, 0, -1000, -1_900_000 + 10_000_000), CRS.from_epsg(32760))
    shape = footprint(grid, WGS84)
    assert shape.geom_type == "MultiPolygon"
    west, east = sorted(shape.geoms, key=lambda part: part.bounds[0])
    assert west.bounds[0] == pytest.approx(-180)
    assert east.bounds[2] == pytest.approx(180)
    assert west.bounds[2] - west.bounds[0] + east.bounds[2] - east.bounds[0] < 2


@pytest.mark.parametrize(
    ("source", "transform", "size", "target"),
    [
        ("EPSG:3031", Affine(10_000, 0, -3e6, 0, -10_000, 3e6), (600, 600), "EPSG:4326"),  # around the south pole
        ("EPSG:3413", Affine(10_000, 0, -3e6, 0, -10_000, 3e6), (600, 400), "EPSG:4326"),  # the north pole off centre
        ("EPSG:4326", Affine(1, 0, -180, 0, -1, 90), (360, 180), "EPSG:3857"),
        ("EPSG:4326", Affine(1, 0, 0, 0, -1, 90), (360, 180), "EPSG:3857"),  # longitudes 0 to 360
        ("EPSG:4326", Affine(1, 0, -180, 0, -1, 90), (360, 180), "EPSG:32632"),  # parts have no place there
        ("EPSG:4326", Affine(1, 0, -180, 0, -1, 90), (360, 180), "EPSG:3031"),
        ("EPSG:32601", Affine(1000, 0, 150_000, 0, -1000, 7e6), (100, 100), "EPSG:4326"),
        ("EPSG:32660", Affine(1000, 0, 650_000, 0, -1000, 7e6), (300, 300), "EPSG:4326"),  # across the antimeridian
    ],
)
def test_a_footprint_holds_what_the_raster_shows(source, transform, size, target):
    grid = Grid(*size, transform, CRS.from_user_input(source))
    shape = footprint(grid, CRS.from_user_input(target))
    cols, rows = np.random.default_rng(0).uniform(0.01, 0.99, (2, 5000)) * np.array(size)[:, None]
    x, y = transform @ (cols, rows)
    points = np.column_stack(Transformer.from_crs(source, target, always_xy=True).transform(x, y))
    points = points[np.isfinite(points).all(axis=1)]
    assert len(points) > 4000
    assert shapely.intersects_xy(shape, points[:, 0], points[:, 1]).all()


def test_another_celestial_body_is_refused_in_words():
    mars = Grid(10, 10, Affine(0.1, 0, 0, 0, -0.1, 0), CRS.from_user_input("IAU_2015:49900"))
    with pytest.raises(ConfigError, match="same celestial body"):
        footprint(mars, WGS84)


def test_a_pole_is_found(tmp_path):
    write_cog(
        tmp_path / "a.tif", count=1, shape=(120, 120), crs="EPSG:3031", transform=Affine(5e4, 0, -3e6, 0, -5e4, 3e6)
    )
    dataset = RasterDataset(tmp_path, crs="EPSG:4326", res=0.25, valid=True)
    assert dataset[40:50, -89.9:-85]["mask_valid"].all()


def test_areas_without_a_place_are_refused():
    with pytest.raises(ConfigError, match="without a CRS"):
        footprint(Grid(1, 1, Affine.identity(), None), WGS84)
    gnomonic = CRS.from_proj4("+proj=gnom +lat_0=-48 +lon_0=-171")
    with pytest.raises(ConfigError, match="no place in"):
        footprint(Grid(10, 10, Affine(10, 0, 600_000, 0, -10, 5_300_000), UTM32), gnomonic)


def test_converted_res_keeps_detail():
    grid = Grid(1000, 1000, Affine(10, 0, 600_000, 0, -10, 5_300_000), UTM32)
    assert converted_res(grid, UTM32) == (10, 10)
    x, y = converted_res(grid, CRS.from_epsg(3857))
    assert x == y == pytest.approx(10 / np.cos(np.radians(47.8)), rel=0.02)
