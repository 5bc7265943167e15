from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from geostream.dataset.query import parse_query
from geostream.errors import ConfigError, QueryError

BOUNDS = (
    slice(0.0, 100.0, 2.0),
    slice(-50.0, 50.0, 1.0),
    slice(pd.Timestamp("2020-01-01"), pd.Timestamp("2020-12-31"), 1),
)


def test_what_is_missing_comes_from_the_bounds():
    assert parse_query(slice(None), BOUNDS).slices == BOUNDS
    assert parse_query((slice(10, 20),), BOUNDS).slices == (slice(10.0, 20.0, 2.0), *BOUNDS[1:])
    assert parse_query((slice(None), slice(0, None)), BOUNDS).y == slice(0.0, 50.0, 1.0)
    assert parse_query((slice(10, 20, 5), slice(None, 0, 0.5)), BOUNDS).slices[:2] == (
        slice(10.0, 20.0, 5.0),
        slice(-50.0, 0.0, 0.5),
    )


@pytest.mark.parametrize(
    "instant",
    [
        "2020-03-01T11:00",
        datetime(2020, 3, 1, 11),  # noqa: DTZ001 - naive on purpose
        datetime(2020, 3, 1, 11, tzinfo=UTC),
        datetime(2020, 3, 1, 13, tzinfo=timezone(timedelta(hours=2))),
        np.datetime64("2020-03-01T11:00"),
        pd.Timestamp("2020-03-01T11:00", tz="UTC"),
        pd.Timestamp("2020-03-01T06:00", tz="America/New_York"),
    ],
)
def test_times_become_naive_utc(instant):
    t = parse_query((slice(None), slice(None), slice(instant, instant)), BOUNDS).t
    assert t.start == t.stop == pd.Timestamp("2020-03-01T11:00")
    assert t.start.tzinfo is None


@pytest.mark.parametrize(
    "query",
    [
        3,
        "abc",
        (),
        (1, 2),
        (slice(None),) * 4,
        (slice(None), 5),
        slice(20, 10),
        slice(10, 10),
        slice(10, 20, 0),
        slice(10, 20, -1),
        slice(float("nan"), 20),
        slice(0, float("inf")),
        slice("a", 20),
        (slice(None), slice(None), slice("2020-05-01", "2020-04-01")),
        (slice(None), slice(None), slice("yesterday-ish", None)),
        (slice(None), slice(None), slice(pd.NaT, None)),
        (slice(None), slice(None), slice(None, None, 0)),
        (slice(None), slice(None), slice(None, None, 1.5)),
    ],
)
def test_malformed_queries_are_refused_in_words(query):
    with pytest.raises(ConfigError):
        parse_query(query, BOUNDS)


@pytest.mark.parametrize("query", [slice(200, None), slice(None, -5), (slice(None), slice(None), slice("2022", None))])
def test_a_start_beyond_the_bounds_is_a_place_without_data(query):
    with pytest.raises(QueryError, match="outside the dataset"):
        parse_query(query, BOUNDS)


@pytest.mark.parametrize(("extent", "pixels"), [(20, 10), (20.9, 10), (21, 11), (21.1, 11), (0.1, 1), (2.999, 1)])
def test_the_shape_is_rounded_half_up_and_the_step_kept(extent, pixels):
    grid = parse_query((slice(3.3, 3.3 + extent), slice(0, 10)), BOUNDS).grid(None)
    assert (grid.width, grid.height) == (pixels, 10)
    assert grid.transform[:6] == (2.0, 0.0, 3.3, 0.0, -1.0, 10.0)
