"""What the strategies draw is what they promise."""

import warnings

import numpy as np
import pandas as pd
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geostream.grid import Window
from geostream.testing.rasters import reference_read
from geostream.testing.strategies import bounds, byte_ranges, grids, profiles, queries, windows

JANUARY = (pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-31"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profile=profiles())
def test_profiles_can_be_written_and_read_back(tmp_path, profile):
    path = profile.write(tmp_path / "x.tif")
    with rasterio.open(path) as dataset:
        assert dataset.shape == (profile.height, profile.width)
        assert profile.blocksize is None or dataset.block_shapes[0] == profile.blocksize
        assert dataset.dtypes[0] == profile.dtype
        assert dataset.interleaving.name == profile.interleave or profile.count == 1
    data, valid = reference_read(path)
    np.testing.assert_array_equal(data, profile.pixels())
    if profile.nodata is None:
        assert valid.all()


@given(data=st.data(), height=st.integers(1, 50), width=st.integers(1, 50), margin=st.sampled_from([None, 0, 3]))
def test_windows_overlap(data, height, width, margin):
    window = data.draw(windows((height, width), max_size=70, margin=margin))
    assert window.intersection(Window(0, 0, width, height)) is not None
    assert 1 <= window.width <= 70
    assert 1 <= window.height <= 70
    if margin is not None:
        assert window.col_off >= -margin
        assert window.row_off >= -margin
        assert window.col_stop <= width + margin
        assert window.row_stop <= height + margin


@given(grids())
def test_grids_are_north_up_and_inside_their_crs(grid):
    assert grid.transform.a > 0 > grid.transform.e
    assert grid.transform.b == grid.transform.d == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert grid.crs.area_of_use is not None
    assert all(np.isfinite(grid.bounds))


@given(st.data(), st.integers(1, 1000))
def test_byte_ranges_lie_inside(data, size):
    spans = data.draw(byte_ranges(size, max_length=100))
    assert spans
    assert all(0 <= start < stop <= size and stop - start <= 100 for start, stop in spans)


@given(bounds((5.0, 40.0, 6.0, 42.0)))
def test_bounds_lie_inside(box):
    xmin, ymin, xmax, ymax = box
    assert 5 <= xmin < xmax <= 6
    assert 40 <= ymin < ymax <= 42


@given(queries((0.0, 0.0, 1000.0, 500.0), (10.0, 10.0), times=JANUARY, leave=0.5))
def test_queries_overlap(query):
    x, y, t = query
    assert x.start < min(x.stop, 1000)
    assert x.stop > 0
    assert y.start < min(y.stop, 500)
    assert y.stop > 0
    assert JANUARY[0] <= t.start <= t.stop <= JANUARY[1]
    assert x.step is None or 10 <= x.step == y.step <= 20
