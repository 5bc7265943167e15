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


@pytest.mark.parametrize(
    ("regex", "date_format"),
    [
        (r"a_(?P<date>\d{8})?", "%Y%m%d"),
        (r"a_(?P<date>\d{4})", "%Y"),
        (r"a_(?P<start>\d{8})_?(?P<stop>\d{8})?", "%Y%m%d"),
        (r"a_\d{4}(?P<date>\d{4})", "%m%d"),
        (r".*", "%Y"),
        (r"b", "%Y"),
    ],
)
def test_times_of_many_files_are_those_of_each(regex, date_format):
    names = ["a_20200101_20210101.tif", "a_20200101.tif", "a_20240228_20240301.tif", "a_20200101_20210101.tif", "b.tif"]
    urls = [
        *(f"s3://bucket/{name}" for name in names),
        "https://h/a_20200102.tif?sig=20300101",
        "/data/a_19991231.tif/",
    ]
    defaults = (pd.date_range("2001", periods=7, unit="us"), pd.date_range("2002", periods=7, unit="us"))
    pattern = FilenamePattern(regex, date_format)
    first, last = pattern.times_of(urls, defaults)
    each = [pattern.times(url, default) for url, *default in zip(urls, *defaults, strict=True)]
    assert list(zip(first, last, strict=True)) == each
    assert pattern.matching(urls) == [url for url in urls if pattern.matches(url)]


def test_a_wrong_date_among_many_names_its_file():
    urls = [f"/data/a_{day}.tif" for day in (20200101, 20201301, 20200102)]
    defaults = (pd.DatetimeIndex([ALWAYS[0]] * 3), pd.DatetimeIndex([ALWAYS[1]] * 3))
    with pytest.raises(ConfigError, match=r"a_20201301\.tif.*date_format"):
        FilenamePattern(r"a_(?P<date>\d+)", "%Y%m%d").times_of(urls, defaults)
    crossed = ["/data/a_20200101_20200102.tif", "/data/a_20200103_20200102.tif"]
    with pytest.raises(ConfigError, match=r"a_20200103_20200102\.tif.*before that"):
        FilenamePattern(r"a_(?P<start>\d+)_(?P<stop>\d+)", "%Y%m%d").times_of(crossed, defaults)
