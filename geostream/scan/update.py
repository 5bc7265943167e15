"""Making an index, anew or from one there is: what is listed, what is new or has changed, what is read."""

from __future__ import annotations

import asyncio
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from geostream.errors import GeostreamError, redact
from geostream.index.rows import write_rows
from geostream.index.table import SceneTable
from geostream.scan.build import Options
from geostream.scan.cluster import partitions
from geostream.scan.headers import failure_of
from geostream.scan.index import Changes, Index, joined
from geostream.scan.inputs import Inputs, lacking_of, sources_of
from geostream.scan.parts import read_part
from geostream.transport import get_range, scan_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from geostream.index.entry import Entry
    from geostream.scan.build import BuildOptions
    from geostream.transport import Access, LoopThread

__all__ = ["built", "updated"]

_AT_ONCE = 1024
"""Headers read before they are put into rows."""


def built(given: Any, options: Options) -> Index:
    """The index of ``given``."""
    with scan_session() as session:
        entries, lacking = _entries(session, given, options)
        parts = _scanned(session, entries, options)
    return joined(parts, _about(given, options.access), failures=lacking)


def updated(index: Index, given: Any, **options: Unpack[BuildOptions]) -> Index:
    """The index of ``given``, with the headers that ``index`` has of files that are as they were."""
    how = Options(**options)
    with scan_session() as session:
        entries, lacking = _entries(session, given, how)
        known = _Known(index)
        same = known.same(session, entries, how.access)
        fresh = [entry for entry, kept in zip(entries, same, strict=True) if not kept]
        parts = _scanned(session, fresh, how)
    kept_urls = {entry.key for entry, kept in zip(entries, same, strict=True) if kept}
    now = {entry.key for entry in entries}
    changes = Changes(
        added=tuple(entry.key for entry in fresh if entry.key not in index.scenes),
        changed=tuple(entry.key for entry in fresh if entry.key in index.scenes),
        gone=tuple(url for url in index.urls if url not in now),
        kept=len(kept_urls),
    )
    return joined([index.only(kept_urls), *parts], _about(given, how.access), failures=lacking, changes=changes)


def _entries(session: LoopThread, given: Any, options: Options) -> tuple[list[Entry], Mapping[str, GeostreamError]]:
    """What to index, and what is wrong with STAC items that ``options`` say to leave out, by their ids.

    Raises:
        GeostreamError: as `Inputs.entries`; or STAC items lack assets, and ``options`` do not say to leave them out.
    """
    inputs = Inputs(session, options.access, options.filename_glob, options.wanted, probe_sidecars=options.sidecars)
    entries = inputs.entries(given)
    if inputs.lacking and options.on_error == "raise":
        raise lacking_of(inputs.lacking)
    if inputs.lacking:
        warnings.warn(
            f"{len(inputs.lacking)} STAC items lack the assets asked for and are left out of the index, such as "
            f"{next(iter(inputs.lacking))}: its failures say why",
            UserWarning,
            stacklevel=4,
        )
    return entries, inputs.lacking


def _about(given: Any, access: Access) -> dict[str, Any]:
    return {"created": datetime.now(UTC).isoformat(timespec="seconds"), "sources": sources_of(given, access)}


def _scanned(session: LoopThread, entries: Sequence[Entry], options: Options) -> list[Index]:
    """Indexes of parts of the files, which hold what could not be read as their failures.

    Raises:
        GeostreamError: files cannot be read, and ``options`` do not say to leave them out.
    """
    with options.bar(len(entries)) as advance:
        if options.client is None:
            parts = [
                _part(session, entries[begin : begin + _AT_ONCE], options, advance)
                for begin in range(0, len(entries), _AT_ONCE)
            ]
        else:
            lazy = options.headers == "lazy"
            made = partitions(options.client, entries, options.access, options.parts, advance, lazy=lazy)
            parts = [Index(table, failures) for table, failures in made]
    failures = {url: error for part in parts for url, error in part.failures.items()}
    if failures and (options.on_error == "raise" or len(failures) == len(entries)):
        raise failure_of(failures, len(entries), "files")
    if failures:
        warnings.warn(
            f"{len(failures)} of {len(entries)} files cannot be read and are left out of the index, such as "
            f"{redact(next(iter(failures)))}: its failures say why",
            UserWarning,
            stacklevel=4,
        )
    return parts


def _part(session: LoopThread, entries: Sequence[Entry], options: Options, advance: Any) -> Index:
    part = read_part(session, entries, options.access, lambda: advance(1), lazy=options.headers == "lazy")
    return Index(SceneTable(write_rows([part.rows], {})), part.failures)


class _Known:
    """What an index says of its files' versions."""

    def __init__(self, index: Index) -> None:
        self._row = index.scenes.row
        self._urls = index.scenes
        self._rows = index.facts(
            ["etag", "listed_etag", "size", "modified", "datetime_start", "datetime_end", "item", "asset", "sidecars"]
        )

    def same(self, session: LoopThread, entries: Sequence[Entry], access: Access) -> list[bool]:
        """For each entry whether it is in the index, and the file is still the one whose header was read."""
        verdicts = [self._verdict(entry) for entry in entries]
        unsure = [number for number, verdict in enumerate(verdicts) if verdict is None]
        answers = session.run(_asked([entries[number] for number in unsure], access))
        for number, (etag, size) in zip(unsure, answers, strict=True):
            facts = self._facts(entries[number])
            told = (facts["etag"], etag) if etag is not None else (facts["size"], size)
            verdicts[number] = told[0] is not None and _plain(told[0]) == _plain(told[1])
        return [bool(verdict) for verdict in verdicts]

    def _facts(self, entry: Entry) -> dict[str, Any]:
        row = self._row(entry.key)
        return {name: column[row] for name, column in self._rows.items()}

    def _verdict(self, entry: Entry) -> bool | None:
        """Whether a file is as it was; None where it has to be asked for."""
        if entry.key not in self._urls:
            return False
        facts = self._facts(entry)
        said = (*(entry.times or (None, None)), entry.item, entry.asset, list(entry.sidecars))
        if said != tuple(facts[n] for n in ("datetime_start", "datetime_end", "item", "asset", "sidecars")):
            return False
        if entry.etag is not None:
            return bool(_plain(entry.etag) == _plain(facts["listed_etag"] or facts["etag"]))
        if entry.modified is not None and facts["modified"] is not None:
            return bool(entry.modified == facts["modified"] and entry.size in {None, facts["size"]})
        if entry.size is not None and entry.size != facts["size"]:
            return False
        return None


def _plain(etag: Any) -> Any:
    return etag.removeprefix("W/").strip('"') if isinstance(etag, str) else etag


async def _asked(entries: Sequence[Entry], access: Access) -> list[tuple[str | None, int | None]]:
    """ETag and size of files, each from its first byte."""

    async def ask(entry: Entry) -> tuple[str | None, int | None]:
        try:
            body = await get_range(entry.url, access, 0, 1)
        except GeostreamError:
            return None, None  # reading its header will tell what is wrong
        return body.etag, body.total

    return await asyncio.gather(*map(ask, entries))
