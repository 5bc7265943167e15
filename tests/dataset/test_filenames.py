import pandas as pd
import pytest

from geostream.dataset.filenames import FilenamePattern, period
from geostream.errors import ConfigError

ALWAYS = (pd.Timestamp.min, pd.Timestamp.max)


@pytest.mark.parametrize(
    ("text", "date_format", "first", "next_first"),
    [
        ("2023", "%Y", "2023-01-01", "2024-01-01"),
        ("202312", "%Y%m", "2023-12-01", "2024-01-01"),
        ("20240229", "%Y%m%d", "2024-02-29", "2024-03-01"),
        ("2023032", "%Y%j", "2023-02-01", "2023-02-02"),
        ("2023010112", "%Y%m%d%H", "2023-01-01T12", "2023-01-01T13"),
        ("20230101T1213", "%Y%m%dT%H%M", "2023-01-01T12:13", "2023-01-01T12:14"),
        ("20230101T121314", "%Y%m%dT%H%M%S", "2023-01-01T12:13:14", "2023-01-01T12:13:15"),
        ("2023-01-01T02:00+0200", "%Y-%m-%dT%H:%M%z", "2023-01-01T00:00", "2023-01-01T00:01"),
    ],
)
def test_a_name_stands_for_all_the_time_it_leaves_open(text, date_format, first, next_first):
    start, stop = period(text, date_format)
    assert start == pd.Timestamp(first)
    assert stop == pd.Timestamp(next_first) - pd.Timedelta(microseconds=1)


def test_a_format_without_a_year_means_always():
    assert period("1231", "%m%d") == ALWAYS


def test_times_come_from_date_or_start_and_stop_or_the_default():
    assert FilenamePattern(r"a_(?P<date>\d+)", "%Y").times("/x/a_2020.tif", ALWAYS)[0] == pd.Timestamp("2020")
    start, stop = FilenamePattern(r"(?P<start>\d+)-(?P<stop>\d+)", "%Y").times("s3://b/2019-2021.tif", ALWAYS)
    assert (start, stop.year) == (pd.Timestamp("2019"), 2021)
    assert FilenamePattern(r".*", "%Y").times("x.tif", ALWAYS) == ALWAYS
    assert FilenamePattern(r"a(?P<date>\d+)?", "%Y").times("a.tif", ALWAYS) == ALWAYS


def test_a_date_that_does_not_follow_the_format_names_the_file():
    with pytest.raises(ConfigError, match=r"b/a_99999999\.tif.*date_format"):
        FilenamePattern(r"a_(?P<date>\d+)", "%Y%m%d").times("s3://k:secret@b/a_99999999.tif?sig=x", ALWAYS)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/t_B02.tif", "/data/t_B08.tif"),
        ("s3://b/t_B02/t_B02.tif", "s3://b/t_B02/t_B08.tif"),
        ("https://h/t_B02.tif?name=t_B02.tif", "https://h/t_B08.tif?name=t_B02.tif"),
        ("zip://in/t_B02.tif::s3://b/t_B02.zip", "zip://in/t_B08.tif::s3://b/t_B02.zip"),
        ("simplecache::s3://b/t_B02.tif", "simplecache::s3://b/t_B08.tif"),
        ("/data/other.tif", "/data/other.tif"),
    ],
)
def test_the_band_is_replaced_in_the_name_alone(url, expected):
    assert FilenamePattern(r"t_(?P<band>B\d\d)", "%Y").with_band(url, "B08") == expected


def test_a_broken_expression_is_refused():
    with pytest.raises(ConfigError, match="filename_regex"):
        FilenamePattern("(", "%Y")


def test_a_name_that_stops_before_it_starts_is_named():
    pattern = FilenamePattern(r"a_(?P<start>\d{8})_(?P<stop>\d{8})", "%Y%m%d")
    with pytest.raises(ConfigError, match=r"a_20230201_20230131\.tif.*before that"):
        pattern.times("/data/a_20230201_20230131.tif", (pd.Timestamp.min, pd.Timestamp.max))
    with pytest.raises(ConfigError, match="does not follow") as caught:
        pattern.times("/data/a_20231301_20230131.tif", (pd.Timestamp.min, pd.Timestamp.max))
    assert "\n" not in str(caught.value)
