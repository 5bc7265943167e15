"""Finding a streaming dataset's files, and reading their headers many at once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream.errors import GeostreamError, HeaderError, NotFoundError, TruncatedError, redact
from geostream.index import Scene
from geostream.plan import Source
from geostream.reader import read_headers
from geostream.scan import Listing, basename, describe_paths, list_scenes, name_matches, names_matching
from geostream.scan.names import is_raster_name
from geostream.transport import Access, normalize_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from geostream.header import RasterHeader
    from geostream.scan.index import Index

__all__ = ["Headers", "find", "find_in_index", "read_scenes"]

_AT_ONCE = 1024
_WORDS_IN_MESSAGE = 5


def find(paths: Sequence[str], glob: str, access: Access) -> Listing:
    """Files at ``paths`` whose names match.

    Single files on the list may be of other bands, or another class's. Folders without any match are left out with a
    warning, where others have some.

    Raises:
        NotFoundError: there is none, and ``paths`` are not of this machine, where a class may yet put some.
        ReadError: a path cannot be listed.
    """
    wanted = [path for path in paths if not _is_file(path, access) or name_matches(normalize_url(path, access), glob)]
    try:
        listing = list_scenes(wanted, glob, access) if wanted else Listing((), {}, {})
    except NotFoundError:
        listing = _those_there(wanted, glob, access)
    if not listing.urls and any(_is_remote(path, access) for path in paths):
        raise NotFoundError(
            f"no file at {describe_paths(paths)} matches {glob!r}: check the path (a folder on a web server ends in "
            "a slash). What lies there in archives is not unpacked"
        )
    return listing


def _is_file(path: str, access: Access) -> bool:
    url = normalize_url(path, access)
    if _is_remote(path, access):
        return is_raster_name(url) and "*" not in basename(url)
    return Path(url).is_file()


def _those_there(paths: Sequence[str], glob: str, access: Access) -> Listing:
    found = [list_scenes([path], glob, access) for path in paths]
    for path, listing in zip(paths, found, strict=True):
        if not listing.urls:
            warnings.warn(f"{redact(path)}: no file matches {glob!r}: the path is ignored", UserWarning, stacklevel=2)
    urls = sorted({url for listing in found for url in listing.urls})
    return Listing(
        tuple(urls),
        {url: names for listing in found for url, names in listing.sidecars.items()},
        {url: fact for listing in found for url, fact in listing.facts.items()},
    )


def _is_remote(path: str, access: Access) -> bool:
    return access.fs is not None or "://" in normalize_url(path, access)


def find_in_index(index: Index, paths: Sequence[str], glob: str, access: Access) -> Listing:
    """Files of an index whose names match; where ``paths`` are given, those that lie beneath one of them."""
    roots = [normalize_url(path, access).rstrip("/") for path in paths]
    urls = names_matching(sorted(index.urls), glob)
    beneath = (url for url in urls if not roots or any(url == r or url.startswith(f"{r}/") for r in roots))
    return Listing(tuple(beneath), {}, {})


@dataclass
class Headers:
    """What `read_scenes` found."""

    scenes: dict[str, Scene] = field(default_factory=dict)
    """By URL, those that are rasters."""
    failures: dict[str, GeostreamError] = field(default_factory=dict)
    """By URL, why others are not, or could not be had."""

    def keep_failures_of(self, urls: Iterable[str]) -> None:
        """Forget the failures of others: whoever needs those will meet them again."""
        self.failures = {url: self.failures[url] for url in urls if url in self.failures}

    def raise_unreachable(self) -> None:
        """Raise if a file could not be fetched: it would be missed.

        Raises:
            ReadError: one error that names all such files.
        """
        missing = {url: error for url, error in self.failures.items() if not is_no_raster(error)}
        if len(missing) == 1:
            raise next(iter(missing.values()))
        if missing:
            first = next(iter(missing.values()))
            raise type(first)(f"{len(missing)} files cannot be read: {_listed(missing)}", status=first.status)

    def warn_of_others(self) -> None:
        """Warn of files that are no rasters."""
        if self.failures:
            warnings.warn(
                f"{len(self.failures)} files that match are no rasters, and are left out: {_listed(self.failures)}",
                UserWarning,
                stacklevel=2,
            )


def is_no_raster(error: GeostreamError) -> bool:
    """Whether a file was had, and is none that can be read; False where it could not be fetched."""
    return isinstance(error, HeaderError | TruncatedError)


def _listed(failures: Mapping[str, GeostreamError]) -> str:
    more = len(failures) - _WORDS_IN_MESSAGE
    lines = [f"\n  {error}" for error in list(failures.values())[:_WORDS_IN_MESSAGE]]
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def read_scenes(
    urls: Sequence[str],
    access: Access,
    sidecars: Mapping[str, tuple[str, ...]],
    run: Callable[[Coroutine[Any, Any, list[RasterHeader | GeostreamError]]], list[RasterHeader | GeostreamError]],
) -> Headers:
    """Read headers, many at once.

    Args:
        urls: the files.
        access: how they are reached.
        sidecars: mask, overview and metadata files beside some of them.
        run: runs a coroutine, on the loop of reads or on a temporary one.
    """
    found = Headers()
    for begin in range(0, len(urls), _AT_ONCE):
        part = urls[begin : begin + _AT_ONCE]
        sources = [Source(url, access, sidecars.get(url, ())) for url in part]
        for source, header in zip(sources, run(read_headers(sources)), strict=True):
            if isinstance(header, GeostreamError):
                found.failures[source.url] = header
            else:
                found.scenes[source.url] = Scene.from_header(source.url, source.sidecars, header)
    return found
