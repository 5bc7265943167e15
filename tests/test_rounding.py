"""Rounding into a raster's dtype."""

import numpy as np
import pytest

from geostream.rounding import round_half_away, round_within


def test_halves_go_away_from_zero():
    values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4999])
    assert round_half_away(values, np.dtype("int16")).tolist() == [-3, -2, -1, 1, 2, 3, 2]


@pytest.mark.parametrize("work", ["float32", "float64"])
def test_just_below_a_half_is_not_rounded_up(work):
    below = np.nextafter(np.array([0.5], work), np.array([0], work))
    assert below + np.array(0.5, work) == 1  # why adding a half and truncating will not do
    assert round_half_away(below, np.dtype("uint8")).tolist() == [0]


def test_large_odd_values_are_kept():
    values = np.array([2.0**52 + 1, -(2.0**52) - 1])
    assert round_half_away(values, np.dtype("int64")).tolist() == [2**52 + 1, -(2**52) - 1]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
@pytest.mark.parametrize("work", ["float32", "float64"])
def test_clamped_to_what_the_dtype_holds(dtype, work):
    info = np.iinfo(dtype)
    low, high = round_half_away(np.array([-1e30, 1e30], work), np.dtype(dtype)).tolist()
    assert low == info.min
    # the largest value that both dtypes hold: 2**63 - 1 is no float
    assert info.max * (1 - 1e-6) < high <= info.max


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_floats_are_only_cast(dtype):
    assert round_half_away(np.array([0.5, 1.25]), np.dtype(dtype)).tolist() == [0.5, 1.25]


def test_the_argument_is_left_alone():
    values = np.array([0.5, 300.0])
    round_half_away(values, np.dtype("uint8"))
    assert values.tolist() == [0.5, 300.0]


@pytest.mark.parametrize("work", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_values_within_a_dtype_are_rounded_as_any(dtype, work):
    values = np.array([0, 0.49999997, 0.5, 1.5, 2.5, 99.5, 100.4999]).astype(work)
    values = values if dtype == "uint8" else np.concatenate([values, -values])
    expected = round_half_away(values, np.dtype(dtype))
    np.testing.assert_array_equal(round_within(values.copy(), np.dtype(dtype)), expected, strict=True)
