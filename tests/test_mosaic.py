"""Combining sources on one grid."""

import numpy as np
import pytest

from geostream.errors import ConfigError
from geostream.mosaic import POLICIES, Mosaic

U16 = np.dtype("uint16")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("first", [7, 5, 3, 99]), ("last", [4, 5, 8, 99]), ("min", [4, 5, 3, 99]), ("max", [7, 5, 8, 99]),
     ("mean", [6, 5, 6, 99])],
)  # fmt: skip
def test_policies_on_overlapping_sources(policy, expected):
    mosaic = Mosaic(policy, (1, 1, 4), U16, fill=99)
    mosaic.feed(np.array([[[7, 1000, 3, 1000]]], U16), np.array([[[True, False, True, False]]]))
    mosaic.feed(np.array([[[4, 5, 8, 0]]], U16), np.array([[[True, True, True, False]]]))
    data, valid = mosaic.done()
    assert data.dtype == U16
    assert data.tolist() == [[expected]]  # the mean of 7 and 4, and of 3 and 8, is rounded half away from zero
    assert valid.tolist() == [[[True, True, True, False]]]


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_fed_is_all_fill(policy):
    data, valid = Mosaic(policy, (2, 3, 4), np.dtype("int16"), fill=-5).done()
    assert (data == -5).all()
    assert not valid.any()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_one_source_comes_back_as_it_is(policy, dtype):
    rng = np.random.default_rng(0)
    source = rng.integers(0, 100, (3, 5, 7)).astype(dtype)
    ok = rng.random((1, 5, 7)) > 0.3
    mosaic = Mosaic(policy, (3, 5, 7), np.dtype(dtype))
    mosaic.feed(source, ok)
    data, valid = mosaic.done()
    assert data.dtype == dtype
    np.testing.assert_array_equal(data, np.where(ok, source, 0))
    np.testing.assert_array_equal(valid, np.broadcast_to(ok, source.shape))


@pytest.mark.parametrize("policy", POLICIES)
def test_invalid_values_never_show(policy):
    mosaic = Mosaic(policy, (1, 1, 2), np.dtype("float32"), fill=0)
    ok = np.array([[[True, False]]])
    mosaic.feed(np.array([[[1.0, np.nan]]], "float32"), ok)
    mosaic.feed(np.array([[[np.nan, 2.0]]], "float32"), ~ok)
    data, valid = mosaic.done()
    assert data.tolist() == [[[1.0, 2.0]]]
    assert valid.all()


def test_bands_may_differ_in_validity():
    mosaic = Mosaic("first", (2, 1, 1), U16)
    mosaic.feed(np.array([[[1]], [[2]]], U16), np.array([[[True]], [[False]]]))
    mosaic.feed(np.array([[[3]], [[4]]], U16), np.array([[[True]]]))
    assert mosaic.done()[0].ravel().tolist() == [1, 4]


def test_complete_once_every_band_of_every_pixel_is_valid():
    mosaic = Mosaic("first", (2, 1, 2), U16)
    assert not mosaic.complete
    mosaic.feed(np.ones((2, 1, 2), U16), np.array([[[True, True]], [[True, False]]]))
    assert not mosaic.complete
    mosaic.feed(np.ones((2, 1, 2), U16), np.array([[[False, True]]]))
    assert mosaic.complete


def test_mean_does_not_overflow_and_is_summed_in_float64():
    mosaic = Mosaic("mean", (1, 1, 1), np.dtype("uint8"))
    for value in [255] * 300 + [254] * 300:
        mosaic.feed(np.array([[[value]]], "uint8"), np.array([[[True]]]))
    assert mosaic.done()[0].item() == 255  # 254.5


def test_sources_are_not_written_to():
    sources = [np.array([[[v]]], U16) for v in (5, 3, 9)]
    for policy in POLICIES:
        mosaic = Mosaic(policy, (1, 1, 1), U16)
        for source in sources:
            mosaic.feed(source, np.array([[[True]]]))
        mosaic.done()
    assert [s.item() for s in sources] == [5, 3, 9]


@pytest.mark.parametrize(
    ("dtype", "fill"), [("uint8", -1), ("uint8", 256), ("uint8", 0.5), ("int16", np.nan), ("float16", 1e30)]
)
def test_a_fill_that_does_not_fit_is_refused(dtype, fill):
    with pytest.raises(ConfigError, match="fill="):
        Mosaic("first", (1, 1, 1), np.dtype(dtype), fill=fill)


def test_nan_fills_floats():
    data, _ = Mosaic("mean", (1, 1, 1), np.dtype("float32"), fill=np.nan).done()
    assert np.isnan(data).all()


def test_unknown_policy_names_the_known_ones():
    with pytest.raises(ConfigError, match="first, last, min, max, mean"):
        Mosaic("median", (1, 1, 1), U16)
