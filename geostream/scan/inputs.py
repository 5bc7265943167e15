"""What `build_index` accepts: paths, tables of files, STAC, each as a list of things to index."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from geostream.errors import ConfigError, GeostreamError, NotFoundError, redact
from geostream.index.entry import Entry, bare_url
from geostream.scan.documents import read_document
from geostream.scan.headers import nothing_matches
from geostream.scan.listing import each_path, list_paths
from geostream.stac import Assets, is_stac, items_of
from geostream.transport import normalize_url

if TYPE_CHECKING:
    from datetime import datetime

    from geostream.transport import Access, LoopThread

__all__ = ["Inputs", "lacking_of", "sources_of"]

_URL_COLUMNS = ("filepath", "url", "location", "href")
_STARTS = ("datetime_start", "start_datetime", "datetime")
_ENDS = ("datetime_end", "end_datetime", "datetime")
_JSON = (".json", ".geojson")
_PARQUET = (".parquet", ".geoparquet")
_MOST_SOURCES = 1000
_NAMED = 10


class Inputs:
    """Finds things to index.

    Args:
        session: where requests are made.
        access: how files are reached.
        glob: what the names of listed files must match.
        assets: which assets of STAC items are wanted.
        probe_sidecars: whether to ask for the sidecars of remote files that no listing covers.
    """

    def __init__(
        self, session: LoopThread, access: Access, glob: str, assets: tuple[str, ...], *, probe_sidecars: bool
    ) -> None:
        self._session = session
        self._access = access
        self._glob = glob
        self._assets = Assets(assets)
        self._probe = probe_sidecars
        self.lacking: dict[str, GeostreamError] = {}
        """What is wrong with STAC items that lack the assets asked for, by their ids; known after `entries`."""

    def entries(self, given: Any) -> list[Entry]:
        """Things to index, each file once, by URL.

        Raises:
            NotFoundError: nothing is there, or matches.
            ReadError: a path cannot be listed.
            ConfigError: what is given is none of what is understood, or all STAC items lack assets.
        """
        found: dict[str, Entry] = {}
        for entry in self._found(given):
            other = found.setdefault(entry.key, entry)
            if other.url != entry.url:
                raise ConfigError(
                    f"{entry.key}: two files differ in their query strings alone, which an index does not keep, since "
                    "signatures and tokens stand there"
                )
        if not found and self.lacking:
            raise lacking_of(self.lacking)
        if not found:
            raise NotFoundError("there is nothing to index: what was given names no files")
        return [found[key] for key in sorted(found)]

    def _found(self, given: Any) -> Iterator[Entry]:
        if isinstance(given, pd.DataFrame):
            yield from self._of_table(given, None)
        elif is_stac(given):
            yield from self._of_items(items_of(given), None)
        else:
            values = list(given) if _is_several(given) else [given]
            if values and any(map(is_stac, values)):
                yield from self._of_items(items_of(values), None)
            else:
                yield from self._of_paths(values)

    def _of_paths(self, paths: list[Any]) -> Iterator[Entry]:
        if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
            raise ConfigError(
                f"a {type(wrong[0]).__name__} is nothing to index: pass paths and URLs, a GeoDataFrame, or STAC items"
            )
        texts = each_path(paths)
        documents = [text for text in texts if _ending(text) in (*_JSON, *_PARQUET)]
        listed = [text for text in texts if text not in documents]
        for text in documents:
            url = normalize_url(text, self._access)
            content = read_document(self._session, url, self._access)
            if _ending(text) in _JSON:
                yield from self._of_items(_items_in(content, url), url)
            else:
                yield from self._of_table(_table_in(content, url), url)
        if not listed:
            return
        listing = self._session.run(list_paths(listed, self._glob, self._access, probe=self._probe))
        if not listing.urls:
            raise nothing_matches(listed, self._glob)
        yield from listing.entries()

    def _of_items(self, items: Iterable[Mapping[str, Any]], base: str | None) -> Iterator[Entry]:
        entries, lacking = self._assets.entries(items, base)
        self.lacking |= {name: ConfigError(words) for name, words in lacking.items()}
        for entry in entries:
            yield _normalized(entry, self._access)

    def _of_table(self, frame: pd.DataFrame, base: str | None) -> Iterator[Entry]:
        if "assets" in frame:
            yield from self._of_items(map(_item_of_row, frame.to_dict("records")), base)
            return
        column = next((name for name in _URL_COLUMNS if name in frame), None)
        if column is None:
            raise ConfigError(
                f"the table has columns {list(frame.columns)}: name the one of the files' paths or URLs "
                f"{' or '.join(_URL_COLUMNS)}; a stac-geoparquet table has one called assets"
            )
        for url, times in zip(frame[column], _times(frame), strict=True):
            yield _normalized(Entry(str(url), times=times), self._access)


def lacking_of(lacking: Mapping[str, GeostreamError]) -> ConfigError:
    """One error for all STAC items that lack the assets asked for."""
    more = f"\n  and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    lines = "".join(f"\n  {error}" for error in list(lacking.values())[:_NAMED])
    return ConfigError(f"assets= asks for what these STAC items do not have:{lines}{more}")


def sources_of(given: Any, access: Access) -> list[str] | None:
    """What an index may keep of ``given`` to be updated from: paths and globs, unless there are very many; or None."""
    if isinstance(given, pd.DataFrame) or is_stac(given):
        return None
    texts = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(texts, list | tuple | set | frozenset) or len(texts) > _MOST_SOURCES:
        return None
    if not all(isinstance(text, str | os.PathLike) for text in texts):
        return None
    return [bare_url(normalize_url(text, access)) for text in texts]


def _is_several(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)


def _ending(path: str) -> str:
    name = redact(path) if "://" in path else path
    return f".{name.rpartition('.')[2].lower()}" if "*" not in name else ""


def _normalized(entry: Entry, access: Access) -> Entry:
    return replace(entry, url=normalize_url(entry.url, access))


def _items_in(content: bytes, url: str) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{redact(url)}: not JSON: {error}", url=url) from error
    try:
        return items_of(document)
    except ConfigError as error:
        raise ConfigError(f"{redact(url)}: {error}", url=url) from error


def _table_in(content: bytes, url: str) -> pd.DataFrame:
    try:
        table = pq.read_table(pa.BufferReader(content))
    except pa.ArrowException as error:
        raise ConfigError(f"{redact(url)}: not a Parquet file: {error}", url=url) from error
    if b"geostream" in (table.schema.metadata or {}):
        raise ConfigError(f"{redact(url)}: this is an index already: open it with load_index", url=url)
    return pd.DataFrame(table.to_pydict())


_OF_ITEM = frozenset(
    {"type", "stac_version", "stac_extensions", "id", "geometry", "bbox", "links", "assets", "collection"}
)


def _item_of_row(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """A row of a stac-geoparquet table, whose columns hold an item's properties, as an item."""
    item = {key: row[key] for key in row if key in _OF_ITEM}
    properties = {key: value for key, value in row.items() if key not in _OF_ITEM}
    return {**item, "properties": {**properties, **(row.get("properties") or {})}}


def _times(frame: pd.DataFrame) -> list[tuple[datetime, datetime] | None]:
    """First and last instant of each row: from a dataset's index, or from columns."""
    if isinstance(frame.index, pd.IntervalIndex):
        starts, ends = frame.index.left, frame.index.right
    else:
        start = next((name for name in _STARTS if name in frame), None)
        end = next((name for name in _ENDS if name in frame), start)
        if start is None:
            return [None] * len(frame)
        starts, ends = (pd.DatetimeIndex(pd.to_datetime(frame[name], utc=True)) for name in (start, end))
    pairs = zip(_utc(starts), _utc(ends), strict=True)
    return [None if pd.isna(first) or pd.isna(last) else (first, last) for first, last in pairs]


def _utc(times: Any) -> Any:
    return times.tz_localize("UTC") if times.tz is None else times.tz_convert("UTC")
