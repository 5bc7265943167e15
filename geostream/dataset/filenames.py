"""What a file's name says about its scene: when it was taken, and which band it holds."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import pandas as pd

from geostream.dataset.query import instant
from geostream.errors import ConfigError, redact
from geostream.scan import basename, name_span

if TYPE_CHECKING:
    from datetime import datetime

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
        why = str(error).partition("\n")[0]  # pandas goes on about options of its own
        raise ConfigError(f"{text!r} does not follow date_format={date_format!r}: {why}") from error
    codes = set(re.findall(r"%-?([A-Za-z])", date_format.replace("%%", "")))
    if not codes & set("YyGcxDFs"):
        return pd.Timestamp.min, pd.Timestamp.max
    length = next(length for letters, length in _UNITS if codes & set(letters))
    return start, start + length - _TICK


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

    def with_band(self, url: str, band: str) -> str:
        """The file of the same scene that holds ``band``: the name with its ``band`` group replaced."""
        match = self._regex.match(basename(url))
        if match is None or match.groupdict().get("band") is None:
            return url
        at = name_span(url)[0]
        start, stop = match.span("band")
        return f"{url[: at + start]}{band}{url[at + stop :]}"
