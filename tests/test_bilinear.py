import threading

import numpy as np
import pytest
from affine import Affine
from pyproj import CRS, Transformer

from geostream.bilinear import counted, interpolate
from geostream.coordinates import Coordinates, Lattice, grid_scale, source_coordinates
from geostream.grid import Grid, Window
from geostream.warp import resample, source_window

UTM, MERCATOR = CRS.from_epsg(32632), CRS.from_epsg(3857)
SOURCE = Grid(900, 700, Affine(10, 0, 500000, 0, -10, 5_000_000), UTM)


def chip(column, row, size=96, res=10.0):
    x, y = Transformer.from_crs(UTM, MERCATOR, always_xy=True).transform(*(SOURCE.transform @ (column, row)))
    return Grid(size, size, Affine(res, 0, x, 0, -res, y), MERCATOR)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_between_four_pixels_their_weights_count(dtype):
    planes = np.arange(12, dtype=dtype).reshape(1, 3, 4)
    at = counted(np.array([[0.5, 1.0, 2.25, -3.0]]), np.array([[0.5, 1.0, 1.5, 1.5]]), Window(0, 0, 4, 3))
    values = interpolate(planes, at.astype(dtype))
    assert values.dtype == dtype
    np.testing.assert_allclose(values[0, 0], [0, 2.5, 4 + 1.75, 4], rtol=1e-5)


def test_no_thread_is_started():
    before = threading.active_count()
    interpolate(np.zeros((4, 300, 300)), np.zeros((256, 256, 2)))
    assert threading.active_count() == before


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_the_way_through_a_lattice_gives_what_full_coordinates_give(dtype):
    rng = np.random.default_rng(5)
    for _ in range(10):
        grid = chip(*rng.uniform(-40, 800, 2))  # some leave the source
        coords = source_coordinates(SOURCE, grid)
        assert isinstance(coords.places, Lattice)
        full = Coordinates((coords.cols, coords.rows), coords.scale)
        window = source_window(SOURCE, coords, "bilinear")
        assert window == source_window(SOURCE, full, "bilinear")
        if window is None:
            continue
        data = (rng.random((3, window.height, window.width)) * 200).astype(dtype)
        valid = np.ones((1, *data.shape[1:]), bool)
        got, got_valid = resample(data, valid, coords, window, "bilinear")
        wanted, wanted_valid = resample(data, valid, full, window, "bilinear")
        assert np.array_equal(got_valid, wanted_valid)
        # a value just at a half may be rounded either way
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1 if np.dtype(dtype).kind in "iu" else 1e-6)
        assert np.mean(got != wanted) < 0.001 or np.dtype(dtype).kind == "f"


def test_a_lattice_knows_its_extent_and_scale():
    for res in (3.0, 10.0, 47.0):
        grid = chip(100, 120, 131, res)
        coords = source_coordinates(SOURCE, grid)
        cols, rows = coords.cols, coords.rows
        assert coords.shape == cols.shape == (131, 131)
        np.testing.assert_allclose(coords.extent, (cols.min(), cols.max(), rows.min(), rows.max()), rtol=0, atol=1e-9)
        gradient = [np.median(np.hypot(*np.gradient(v))) for v in (cols, rows)]
        np.testing.assert_allclose(coords.scale, gradient, rtol=1e-4)
        assert grid_scale(SOURCE, grid) == coords.scale


def test_where_columns_turn_back_the_extent_is_found_inside():
    nodes = np.array([[0.0, 3, 5, 6, 5, 3, 0]] * 7)
    lattice = Lattice(nodes + nodes.T, nodes, 61, 61)
    low, high = lattice.extent(lattice.cols)
    filled = lattice.filled(lattice.cols)
    assert (low, high) == (filled.min(), filled.max())
    assert high > 11
