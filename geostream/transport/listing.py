"""Which files lie at a URL: a directory's, a glob's, or the one file itself."""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fsspec.core import has_magic
from fsspec.utils import glob_translate

from geostream.accounting import stats
from geostream.errors import NotFoundError
from geostream.transport.access import LOCAL_PROTOCOLS, normalize_url, protocol_of
from geostream.transport.adapters import classify, local_etag, on_loop
from geostream.transport.answer import Again, AttemptFailed
from geostream.transport.archive import is_member, split_member
from geostream.transport.counting import Meter, set_meter
from geostream.transport.fetch import archives_of, failure_to_error, get_range, reach
from geostream.transport.loop import current_pool

if TYPE_CHECKING:
    from geostream.transport.access import Access
    from geostream.transport.clients import Route

__all__ = ["FileEntry", "list_files"]

_HTTP = frozenset({"http", "https"})
_MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a listing."""

    url: str
    """URL, protocol included, as `get_range` takes it; an absolute path for a local file."""
    size: int | None
    """Size in bytes; None where the listing does not say."""
    etag: str | None = None
    """ETag, or what stands for it (a local file's time and size); None where the listing does not say."""
    modified: datetime | None = None
    """When it was last written, UTC; None where the listing does not say."""


async def list_files(url_or_glob: str, access: Access) -> list[FileEntry]:
    """List the files at a URL, sorted: a directory's at any depth, a glob's matches, or the one file itself.

    Globs have ``*``, ``**``, ``?`` and ``[…]``.

    On S3 this takes one LIST request for each 1,000 objects, and none for each file. On http(s) a URL that ends in a
    slash is a directory, whose files are what its page links to, if it has one; ``?`` and ``[`` are no wildcards.

    Args:
        url_or_glob: Any fsspec URL or local path.
        access: How it is reached.

    Returns:
        The files; an empty list where nothing is there, or nothing matches.

    Raises:
        ReadError: It could not be listed: denied access, wrong keys, no network.
    """
    url = normalize_url(url_or_glob, access)
    what = "the files there"
    pool = current_pool()
    if is_member(url):
        return await _list_archive(url, access)
    if protocol_of(url) in _HTTP and not _is_glob(url) and not url.partition("?")[0].endswith("/"):
        return await _single(url, access)
    route = await reach(pool, url, access, what)
    policy = access.retry
    began = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        async with pool.in_flight:
            outcome = await _attempt(route, url, attempt)
        if not isinstance(outcome, AttemptFailed):
            return outcome
        delay = policy.delay(attempt, outcome.retry_after)
        late = time.monotonic() + delay - began > policy.deadline
        if not isinstance(outcome, Again) or attempt >= policy.attempts or late:
            raise failure_to_error(outcome, url, what, attempt, access)
        await asyncio.sleep(delay)


async def _single(url: str, access: Access) -> list[FileEntry]:
    """Look at one object with one small GET: fsspec would send HEADs, and take any error for absence."""
    try:
        body = await get_range(url, access, 0, 1)
    except NotFoundError:
        return []
    return [FileEntry(url, body.total, body.etag)]


async def _list_archive(url: str, access: Access) -> list[FileEntry]:
    """List the members of a zip archive from its table of contents."""
    wanted, archive = split_member(url)
    try:
        directory = await archives_of(current_pool()).directory(archive, access)
    except NotFoundError:
        return []
    if has_magic(wanted):
        matches = re.compile(glob_translate(wanted)).match
        names = [name for name in directory.members if matches(name)]
    else:
        folder = wanted.rstrip("/") + "/" if wanted else ""
        names = [name for name in directory.members if name == wanted or name.startswith(folder)]
    return [
        FileEntry(f"zip://{name}::{archive}", directory.members[name].file_size, directory.etag)
        for name in sorted(names)
    ]


async def _attempt(route: Route, url: str, attempt: int) -> list[FileEntry] | AttemptFailed:
    meter = Meter()
    began = time.perf_counter()
    try:
        coro = _listed(route, url, meter)
        found = await (coro if route.loop is None else on_loop(coro, route.loop))
        return [_entry(url, name, facts) for name, facts in sorted(found.items()) if facts.get("type") != "directory"]
    except FileNotFoundError:
        return []
    except AttemptFailed as failure:
        return failure
    except Exception as error:  # noqa: BLE001 - a foreign filesystem raises what it likes
        return classify_listing(error)
    finally:
        stats.add(
            requests=meter.requests,
            bytes=meter.bytes,
            retries=int(attempt > 1),
            network_seconds=time.perf_counter() - began,
        )


def classify_listing(error: BaseException) -> AttemptFailed:
    """Return what a failed listing means for a retry; s3fs hides the client's own exception behind its translation."""
    cause = error.__cause__
    if type(error).__module__.startswith(("botocore", "aiobotocore")) or type(cause).__module__.startswith("botocore"):
        from geostream.transport.s3 import s3_failure  # noqa: PLC0415 - botocore is slow to import

        return s3_failure(error if cause is None else cause)
    return classify(error)


async def _listed(route: Route, url: str, meter: Meter) -> dict[str, dict[str, Any]]:
    """Return name -> facts, in one call to the filesystem where it can."""
    set_meter(meter)
    fs, path = route.fs, route.path
    found: dict[str, dict[str, Any]]
    if _is_glob(url):
        found = await _matches(fs, path, protocol_of(url))
    else:
        found = await fs._find(path, detail=True)  # noqa: SLF001 - fsspec's async API
        if protocol_of(url) in _HTTP and path.endswith("/"):
            found.pop(path, None)  # a page without links, which fsspec takes for a file
    if not found and protocol_of(url) in _HTTP and "::" not in url:
        # fsspec takes a page that cannot be fetched for an empty one: ask once more, and hear why.
        page = path.partition("*")[0].rpartition("/")[0] + "/"
        await fs._ls(page, detail=False)  # noqa: SLF001 - fsspec's async API
    if set(found) == {path} and not found[path].get("size"):
        found = {path: await fs._info(path)}  # noqa: SLF001 - fsspec's async API
    return found


async def _matches(fs: Any, path: str, protocol: str) -> dict[str, dict[str, Any]]:
    """Return a glob's matches. Where one folder is all it can match in, that folder is listed once."""
    folder, _, pattern = path.rpartition("/")
    found: dict[str, dict[str, Any]]
    if protocol in _HTTP or has_magic(folder) or "**" in pattern or not folder:
        found = await fs._glob(path, detail=True)  # noqa: SLF001 - fsspec's async API
        return found
    words: dict[str, Any] = {"maxdepth": 1, "detail": True}
    stem = _MAGIC.split(pattern, maxsplit=1)[0]
    if stem and hasattr(fs, "_call_s3"):
        words["prefix"] = stem  # the store filters
    try:
        found = await fs._find(folder, **words)  # noqa: SLF001 - fsspec's async API
    except ValueError:  # s3fs before 2026 takes no prefix with a depth
        found = await fs._find(folder, maxdepth=1, detail=True)  # noqa: SLF001 - fsspec's async API
    matches = re.compile(glob_translate(path)).match
    return {name: facts for name, facts in found.items() if matches(name)}


def _is_glob(url: str) -> bool:
    first = url.partition("::")[0]
    if protocol_of(url) in _HTTP:
        return "*" in first.partition("?")[0]
    return bool(has_magic(first))


def _entry(url: str, name: str, facts: dict[str, Any]) -> FileEntry:
    full = _full_url(url, name)
    size = facts.get("size")
    etag = facts.get("ETag") or facts.get("etag")
    if etag is None and protocol_of(full) in LOCAL_PROTOCOLS and "::" not in full:
        with suppress(OSError):  # a link to nowhere, which is for whoever opens it to say
            etag = local_etag(os.stat(full))  # noqa: PTH116 - a str path, thousands of times
    return FileEntry(full, None if size is None else int(size), str(etag) if etag else None, _modified(facts))


def _modified(facts: dict[str, Any]) -> datetime | None:
    """When a file was last written, by whichever name its filesystem tells it."""
    known = (facts.get(name) for name in ("LastModified", "last_modified", "mtime", "modified", "updated"))
    value = next((value for value in known if value is not None), None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if not isinstance(moment, datetime):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _full_url(asked: str, name: str) -> str:
    """Return a listed name as a URL of the form of the one that was listed."""
    first, chained, rest = asked.partition("::")
    protocol = protocol_of(asked)
    own_words = "://" not in first and not chained  # the user's own filesystem, asked without a protocol
    if protocol in LOCAL_PROTOCOLS or "://" in name or own_words:
        full = name
    else:
        full = f"{protocol}://{name.lstrip('/') if chained else name}"
    return f"{full}::{rest}" if chained else full
