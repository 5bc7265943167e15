"""What lies at paths and URLs: rasters, and the sidecars beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geostream.errors import ConfigError, NotFoundError, redact
from geostream.index.entry import Entry
from geostream.scan.names import basename, is_hidden, is_raster_name, name_matches, sidecar_names
from geostream.transport import FileEntry, get_range, list_files, normalize_url, scan_session

if TYPE_CHECKING:
    from geostream.transport import Access

__all__ = ["Listing", "Paths", "describe_paths", "each_path", "list_paths", "list_scenes"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One or more directories, globs, files or URLs."""

_WORDS_IN_MESSAGE = 20


@dataclass(frozen=True)
class Listing:
    """What lies at a dataset's paths."""

    urls: tuple[str, ...]
    """Files whose names match, sorted, without sidecars."""
    sidecars: Mapping[str, tuple[str, ...]]
    """Mask, overview and metadata files that lie beside those that have some."""
    facts: Mapping[str, FileEntry] = field(default_factory=dict)
    """What the listing says of those files; nothing of URLs that were not listed."""

    def entries(self) -> list[Entry]:
        """The files, as things to index."""
        found = []
        for url in self.urls:
            fact = self.facts.get(url)
            known = (None, None, None) if fact is None else (fact.size, fact.etag, fact.modified)
            found.append(Entry(url, self.sidecars.get(url, ()), *known))
        return found


def describe_paths(paths: Paths) -> str:
    """Paths as a message names them."""
    given = [redact(path) for path in each_path(paths)]
    more = f" and {len(given) - _WORDS_IN_MESSAGE} more" if len(given) > _WORDS_IN_MESSAGE else ""
    return ", ".join(given[:_WORDS_IN_MESSAGE]) + more


def list_scenes(paths: Paths, glob: str, access: Access) -> Listing:
    """Files at ``paths`` whose names match ``glob``, on a temporary loop.

    Raises:
        ReadError: a path cannot be listed.
    """
    with scan_session() as session:
        return session.run(list_paths(paths, glob, access, probe=False))


def each_path(paths: Paths) -> list[str]:
    """Paths one by one, as strings.

    Raises:
        ConfigError: they are neither a path nor several.
    """
    if isinstance(paths, str | os.PathLike):
        return [os.fspath(paths)]
    if not isinstance(paths, Iterable):
        raise ConfigError(f"paths={paths!r}: pass a path or URL, or several")
    given = list(paths)
    if wrong := [path for path in given if not isinstance(path, str | os.PathLike)]:
        raise ConfigError(f"paths= holds {wrong[0]!r}, a {type(wrong[0]).__name__}: pass paths and URLs")
    return [os.fspath(path) for path in given]


async def list_paths(paths: Paths, glob: str, access: Access, *, probe: bool) -> Listing:
    """Files at ``paths`` whose names match ``glob``, on the running loop.

    Args:
        paths: directories (listed at any depth), globs, files and URLs. A URL that ends in a raster's suffix is taken
            for a file and not listed.
        glob: what file names must match.
        access: how they are reached.
        probe: whether to ask for the sidecars of remote files that no listing covers.

    Raises:
        NotFoundError: there is nothing at some of several paths.
        ReadError: a path cannot be listed.
    """
    roots = [normalize_url(path, access) for path in each_path(paths)]
    listed = await asyncio.gather(*(_list_one(root, access, probe=probe) for root in roots))
    found: dict[str, FileEntry | None] = {}
    everything: set[str] = set()
    barren: list[str] = []
    for root, facts in zip(roots, listed, strict=True):
        matching = {
            url: fact
            for url, fact in facts.items()
            if name_matches(url, glob) and (glob.startswith(".") or not is_hidden(url, root))
        }
        if not matching:
            barren.append(redact(root))
        found |= matching
        everything |= facts.keys()
    if found and barren:
        raise NotFoundError(
            f"of {len(roots)} paths, {len(barren)} do not exist or hold no file that matches {glob!r}: "
            f"{', '.join(barren)}. None is left out silently: correct them, or take them off the list"
        )
    others = everything - found.keys()
    beside = {url: tuple(name for name in sidecar_names(url) if name in others) for url in (found if others else ())}
    return Listing(
        tuple(sorted(found)),
        {url: names for url, names in beside.items() if names},
        {url: fact for url, fact in found.items() if fact is not None},
    )


async def _list_one(root: str, access: Access, *, probe: bool) -> dict[str, FileEntry | None]:
    """Files by URL, with what the listing says of them, if there was one."""
    is_url = "://" in root
    if is_url and is_raster_name(root) and "*" not in basename(root):
        return dict.fromkeys([root, *(await _probe(root, access) if probe else [])])
    facts: dict[str, FileEntry | None] = {entry.url: entry for entry in await list_files(root, access)}
    if list(facts) == [root] and not is_url:
        facts |= dict.fromkeys(name for name in sidecar_names(root) if os.path.exists(name))  # noqa: ASYNC240, PTH110 - a stat
    return facts


async def _probe(url: str, access: Access) -> list[str]:
    """Sidecars of a lone remote file, found by asking for a byte of each."""

    async def exists(name: str) -> bool:
        try:
            await get_range(name, access, 0, 1)
        except NotFoundError:
            return False
        return True

    names = sidecar_names(url)[:3]
    answers = await asyncio.gather(*(exists(name) for name in names))
    return [name for name, answer in zip(names, answers, strict=True) if answer]
