"""Finding scenes: list what lies at paths and URLs, and read the headers of many files at once.

All of it runs on a temporary loop that is closed afterwards, so that a dataset can be made in a process that forks.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geostream.errors import (
    ConfigError,
    DecodeError,
    GeostreamError,
    HeaderError,
    NotFoundError,
    ReadError,
    redact,
)
from geostream.index import Scene, SceneIndex
from geostream.plan import Source
from geostream.reader import read_headers
from geostream.transport import Access, get_range, list_files, normalize_url, scan_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsspec import AbstractFileSystem

    from geostream.header import RasterHeader
    from geostream.transport import LoopThread

__all__ = [
    "Listing",
    "Paths",
    "basename",
    "build_index",
    "describe_paths",
    "each_path",
    "is_sidecar",
    "list_scenes",
    "name_matches",
    "name_span",
    "scan",
]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One or more directories, globs, files or URLs."""

_PIXEL_SIDECARS = (".msk", ".ovr", ".aux.xml", ".msk.ovr", ".ovr.msk")
"""Suffixes that GDAL puts behind a raster's full name for masks, overviews and metadata."""
_SIDECAR = re.compile(
    r"\.(msk|ovr|aux\.xml|aux|rrd|tfw|tifw|tiffw|wld|jgw|jpgw|pgw|pngw|j2w|gfw|prj|rpb|imd)$", re.IGNORECASE
)
_RASTER = re.compile(
    r"\.(tiff?|gtiff?|cog|jp2|j2k|png|jpe?g|webp|vrt|img|nc4?|hdf5?|h5|asc|dem|bil|grib2?|grb2?)$", re.IGNORECASE
)
_WORDS_IN_MESSAGE = 20
_AT_ONCE = 1024
"""Headers being read at the same time; the transport has a limit of its own on requests in flight."""


@dataclass(frozen=True)
class Listing:
    """What lies at a dataset's paths."""

    urls: tuple[str, ...]
    """Files whose names match, sorted, without sidecars."""
    sidecars: Mapping[str, tuple[str, ...]]
    """Mask, overview and metadata files that lie beside those that have some."""


def name_span(url: str) -> tuple[int, int]:
    """Where a file's name stands in its URL: at the end of a path, or of the first link that is a URL in a chain."""
    begin, stop = 0, len(url)
    if "://" in url:
        begin = url.rfind("::", 0, url.index("://")) + 1
        end = re.search(r"::|[?#]", url[begin + 1 :])
        stop = stop if end is None else begin + 1 + end.start()
    stop = len(url[:stop].rstrip("/"))
    return max(begin, url.rfind("/", 0, stop) + 1), stop


def basename(url: str) -> str:
    """A file's name without directories and query string: what ``filename_glob`` and ``filename_regex`` see."""
    start, stop = name_span(url)
    return url[start:stop]


def is_sidecar(url: str) -> bool:
    """Whether the name is that of a file that accompanies a raster: a mask, overviews, metadata, a world file."""
    return _SIDECAR.search(basename(url)) is not None


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
        return session.run(_list(paths, glob, access, probe=False))


def scan(
    paths: Paths,
    glob: str,
    access: Access,
    choose: Callable[[Sequence[str]], Sequence[str]],
    *,
    probe_sidecars: bool = False,
    progress: bool = False,
) -> tuple[Listing, dict[str, Scene]]:
    """List ``paths``, and read the headers of those files that ``choose`` picks from the list, many at once.

    Args:
        paths: directories (listed at any depth), globs, files and URLs. A URL that ends in a raster's suffix is taken
            for a file and not listed.
        glob: what file names must match.
        access: how they are reached.
        choose: from the listed URLs, sorted, those to open; others may be added.
        probe_sidecars: whether to ask for the sidecars of remote files that no listing covers.
        progress: whether to show a bar on the terminal.

    Returns:
        The listing, and the scene of each URL chosen.

    Raises:
        NotFoundError: nothing matches.
        HeaderError, ReadError: some files cannot be read; one error names them all.
    """
    with scan_session() as session, _progress(show=progress) as advance:
        listing = session.run(_list(paths, glob, access, probe=probe_sidecars))
        if not listing.urls:
            raise NotFoundError(
                f"no file at {describe_paths(paths)} matches {glob!r}: check the path, and filename_glob, which is "
                "compared with file names"
            )
        chosen = list(dict.fromkeys(choose(listing.urls)))
        advance(0, len(chosen))
        return listing, _read(session, chosen, listing, access, glob, advance)


def _read(
    session: LoopThread,
    urls: list[str],
    listing: Listing,
    access: Access,
    glob: str,
    advance: Callable[[int, int], None],
) -> dict[str, Scene]:
    sidecars = [listing.sidecars.get(url, ()) for url in urls]
    sources = [Source(url, access, beside) for url, beside in zip(urls, sidecars, strict=True)]
    headers: list[RasterHeader | GeostreamError] = []
    for begin in range(0, len(sources), _AT_ONCE):
        part = sources[begin : begin + _AT_ONCE]
        headers += session.run(read_headers(part))
        advance(len(part), len(sources))
    failures = {url: header for url, header in zip(urls, headers, strict=True) if isinstance(header, GeostreamError)}
    if failures:
        raise _failure(failures, len(urls), glob)
    return {
        url: Scene.from_header(url, beside, header)
        for url, beside, header in zip(urls, sidecars, headers, strict=True)
        if not isinstance(header, GeostreamError)
    }


@contextmanager
def _progress(*, show: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told how many more headers were read, and how many there are."""
    if not show:
        yield lambda _more, _total: None
        return
    from rich.progress import Progress  # noqa: PLC0415 - only where a bar is wanted

    with Progress() as bar:
        task = bar.add_task("headers", total=None)
        yield lambda more, total: bar.update(task, advance=more, total=total)


def build_index(
    paths: Paths,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    filename_glob: str = "*",
    sidecars: bool = False,
    progress: bool = False,
) -> SceneIndex:
    """Scan once what many datasets will open: ``index.save("naip.parquet")``, then ``NAIP(index=load_index(…))``.

    Args:
        paths: directories, globs, files and URLs, as for a dataset.
        storage_options: options of the fsspec filesystem.
        fs: an fsspec filesystem of the user's own, instead of options.
        filename_glob: what file names must match.
        sidecars: whether to ask for the sidecars of lone remote files.
        progress: whether to show a bar on the terminal.

    Raises:
        NotFoundError: nothing matches.
        HeaderError, ReadError: some files cannot be read; one error names them all.
    """
    _, scenes = scan(
        paths,
        filename_glob,
        Access(storage_options, fs),
        lambda urls: urls,
        probe_sidecars=sidecars,
        progress=progress,
    )
    return SceneIndex(scenes)


def _failure(failures: Mapping[str, GeostreamError], total: int, glob: str) -> GeostreamError:
    """One error for all files that cannot be read, of the class that covers them."""
    errors = list(failures.values())
    if total == 1:
        return errors[0]
    kinds: list[type[GeostreamError]] = [type(errors[0]), NotFoundError, ReadError, DecodeError]
    kind = next((kind for kind in kinds if all(isinstance(error, kind) for error in errors)), HeaderError)
    lines = [f"\n  {redact(url)}: {type(error).__name__}: {error}" for url, error in failures.items()]
    return kind(
        f"{len(errors)} of {total} files that match {glob!r} cannot be read. None is skipped silently: narrow "
        f"filename_glob (such as '*.tif') so that it matches rasters only, or repair them:{''.join(lines)}"
    )


def each_path(paths: Paths) -> list[str]:
    """Paths one by one, as strings.

    Raises:
        ConfigError: they are neither a path nor several.
    """
    if isinstance(paths, str | os.PathLike):
        return [os.fspath(paths)]
    if not isinstance(paths, Iterable):
        raise ConfigError(f"paths={paths!r}: pass a path or URL, or several")
    return [os.fspath(path) for path in paths]


async def _list(paths: Paths, glob: str, access: Access, *, probe: bool) -> Listing:
    roots = [normalize_url(path, access) for path in each_path(paths)]
    listed = await asyncio.gather(*(_list_one(root, access, probe=probe) for root in roots))
    found: set[str] = set()
    everything: set[str] = set()
    barren: list[str] = []
    for root, urls in zip(roots, listed, strict=True):
        matching = {
            url for url in urls if name_matches(url, glob) and (glob.startswith(".") or not _is_hidden(url, root))
        }
        if not matching:
            barren.append(redact(root))
        found |= matching
        everything |= set(urls)
    if found and barren:
        raise NotFoundError(
            f"of {len(roots)} paths, {len(barren)} do not exist or hold no file that matches {glob!r}: "
            f"{', '.join(barren)}. None is left out silently: correct them, or take them off the list"
        )
    beside = {url: tuple(name for name in _sidecar_names(url) if name in everything) for url in found}
    return Listing(tuple(sorted(found)), {url: names for url, names in beside.items() if names})


def name_matches(url: str, glob: str) -> bool:
    """Whether a file is one of the dataset's by its name, or by its path's end where ``glob`` has directories."""
    if is_sidecar(url):
        return False
    if "/" in glob:
        return fnmatch.fnmatchcase(url[: name_span(url)[1]], f"*/{glob}")
    return fnmatch.fnmatchcase(basename(url), glob)


def _is_hidden(url: str, root: str) -> bool:
    """Whether a file's name, or a directory's between it and the root, begins with a dot."""
    below = url[len(root) :] if url != root and url.startswith(root) else basename(url)
    return re.search(r"(^|/)\.", below) is not None


async def _list_one(root: str, access: Access, *, probe: bool) -> list[str]:
    is_url = "://" in root
    if is_url and _RASTER.search(basename(root)) and "*" not in basename(root):
        return [root, *(await _probe(root, access) if probe else [])]
    urls = [entry.url for entry in await list_files(root, access)]
    if urls == [root] and not is_url:
        urls += [name for name in _sidecar_names(root) if os.path.exists(name)]  # noqa: ASYNC240, PTH110 - a stat
    return urls


async def _probe(url: str, access: Access) -> list[str]:
    """Sidecars of a lone remote file, found by asking for a byte of each."""

    async def exists(name: str) -> bool:
        try:
            await get_range(name, access, 0, 1)
        except NotFoundError:
            return False
        return True

    names = _sidecar_names(url)[:3]
    answers = await asyncio.gather(*(exists(name) for name in names))
    return [name for name, answer in zip(names, answers, strict=True) if answer]


def _sidecar_names(url: str) -> list[str]:
    """What a raster's sidecars would be called."""
    stop = name_span(url)[1]
    return [f"{url[:stop]}{suffix}{url[stop:]}" for suffix in _PIXEL_SIDECARS]
