"""What a file's name says about its scene: when it was taken, and which band it holds."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from geostream.dataset.query import instant
from geostream.errors import ConfigError, redact
from geostream.index import completed
from geostream.scan import basename, basenames, name_span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from geostream.index import Times

__all__ = ["FilenamePattern", "period"]

_UNITS = (
    ("f", pd.Timedelta(microseconds=1)),
    ("ScXT", pd.Timedelta(seconds=1)),
    ("MR", pd.Timedelta(minutes=1)),
    ("HI", pd.Timedelta(hours=1)),
    ("dajxDFAuw", pd.Timedelta(days=1)),
    ("bBm", pd.DateOffset(months=1)),
    ("UVW", pd.Timedelta(weeks=1)),
    ("YyG", pd.DateOffset(years=1)),
)
"""`strptime` codes and the length of time a name with these, and none above them, leaves open; finest first."""
_TICK = pd.Timedelta(microseconds=1)


@lru_cache(maxsize=2**16)
def period(text: str, date_format: str) -> tuple[pd.Timestamp, pd.Timestamp]:
    """First and last microsecond of the time that ``text`` names: ``2023`` is a year, ``20230401`` a day.

    Raises:
        ConfigError: the text does not follow the format.
    """
    try:
        start = instant(pd.to_datetime(text, format=date_format))
    except (ValueError, TypeError) as error:
        why = re.split(r"\n|\.? You might want to try", str(error))[0]  # pandas goes on about options of its own
        raise ConfigError(f"{text!r} does not follow date_format={date_format!r}: {why}") from error
    length = _length(date_format)
    return (pd.Timestamp.min, pd.Timestamp.max) if length is None else (start, start + length - _TICK)


def _length(date_format: str) -> pd.Timedelta | pd.DateOffset | None:
    """The length of time that a name of this format leaves open; None where it names no year, and so any time."""
    codes = set(re.findall(r"%-?([A-Za-z])", date_format.replace("%%", "")))
    if not codes & set("YyGcxDFs"):
        return None
    return next(length for letters, length in _UNITS if codes & set(letters))


def _periods(texts: Sequence[str | None], date_format: str) -> Times:
    """`period` of many texts, which may recur; NaT where there is none.

    Raises:
        ValueError, TypeError: a text does not follow the format, or all have to be looked at one by one.
    """
    length = _length(date_format)
    if length is None:
        raise ValueError("no year")
    numbers, different = pd.factorize(np.array(texts, dtype=object))
    starts = pd.DatetimeIndex(pd.to_datetime(different, format=date_format, utc=True)).tz_localize(None)
    ends = starts + length - _TICK
    none = pd.DatetimeIndex([pd.NaT])  # number -1 of those without a text takes the last one
    return pd.DatetimeIndex(starts.append(none)[numbers]), pd.DatetimeIndex(ends.append(none)[numbers])


class FilenamePattern:
    """A dataset's ``filename_regex`` with its ``date_format``, applied to the names of files."""

    def __init__(self, regex: str, date_format: str) -> None:
        try:
            self._regex = re.compile(regex, re.VERBOSE)
        except re.error as error:
            raise ConfigError(f"filename_regex {regex!r} is not a regular expression: {error}") from error
        self._format = date_format

    @property
    def names_time(self) -> bool:
        """Whether the expression has a group ``date`` or ``start``."""
        return bool({"date", "start"} & set(self._regex.groupindex))

    @property
    def names_band(self) -> bool:
        """Whether the expression has a group ``band``."""
        return "band" in self._regex.groupindex

    def matches(self, url: str) -> bool:
        """Whether the name begins as the expression says."""
        return self._regex.match(basename(url)) is not None

    def matching(self, urls: Sequence[str]) -> list[str]:
        """Those of many files whose names begin as the expression says."""
        if self._regex.pattern == ".*":
            return list(urls)
        return [url for url, match in zip(urls, map(self._regex.match, basenames(urls)), strict=True) if match]

    def times(self, url: str, default: tuple[datetime, datetime]) -> tuple[pd.Timestamp, pd.Timestamp]:
        """When the scene was taken: from ``date``, or ``start`` and ``stop``, else ``default``; naive UTC.

        Raises:
            ConfigError: the name's date does not follow ``date_format``, or it stops before it starts.
        """
        match = self._regex.match(basename(url))
        groups = {} if match is None else match.groupdict()
        first, last = groups.get("date") or groups.get("start"), groups.get("date") or groups.get("stop")
        if first is None or last is None:
            return instant(default[0]), instant(default[1])
        try:
            begin, end = period(first, self._format)[0], period(last, self._format)[1]
        except ConfigError as error:
            raise ConfigError(f"{redact(url)}: {error}", url=url) from error
        if begin > end:
            raise ConfigError(
                f"{redact(url)}: its name says that the scene starts at {begin} and stops at {end}, before that: check "
                "the groups start and stop of filename_regex, and date_format",
                url=url,
            )
        return begin, end

    def times_of(self, urls: Sequence[str], defaults: Times) -> Times:
        """`times` of many files, each with its own default.

        Raises:
            ConfigError: as `times`.
        """
        if not self.names_time:
            return defaults
        names = basenames(urls)
        first = self._first_groups(names, ("date", "start"))
        last = self._first_groups(names, ("date", "stop"))
        try:
            begins, ends = _periods(first, self._format)[0], _periods(last, self._format)[1]
        except (ValueError, TypeError):
            return self._times_one_by_one(urls, defaults)
        if np.any(begins > ends):
            return self._times_one_by_one(urls, defaults)
        unknown = np.asarray(begins.isna()) | np.asarray(ends.isna())
        return completed(begins, unknown, defaults[0]), completed(ends, unknown, defaults[1])

    def _times_one_by_one(self, urls: Sequence[str], defaults: Times) -> Times:
        """The same, slowly: for formats without a year, and to name the file whose date is none."""
        pairs = [self.times(url, (first, last)) for url, first, last in zip(urls, *defaults, strict=True)]
        return pd.DatetimeIndex([begin for begin, _ in pairs]), pd.DatetimeIndex([end for _, end in pairs])

    def _first_groups(self, names: Sequence[str], groups: tuple[str, ...]) -> list[str | None]:
        """What the first of some groups that is there holds, in each of many names; None where none is."""
        known = [self._regex.groupindex[group] for group in groups if group in self._regex.groupindex]
        matches = map(self._regex.match, names)
        return [next(filter(None, map(match.group, known)), None) if match else None for match in matches]

    def with_band(self, url: str, band: str) -> str:
        """The file of the same scene that holds ``band``: the name with its ``band`` group replaced."""
        match = self._regex.match(basename(url))
        if match is None or match.groupdict().get("band") is None:
            return url
        at = name_span(url)[0]
        start, stop = match.span("band")
        return f"{url[: at + start]}{band}{url[at + stop :]}"
