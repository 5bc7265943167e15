"""The headers of many files, read at once on a temporary loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from geostream.errors import DecodeError, GeostreamError, HeaderError, NotFoundError, ReadError, redact
from geostream.index.scene import Scene
from geostream.plan import Source
from geostream.reader import read_headers
from geostream.scan.listing import Listing, Paths, describe_paths, each_path, list_paths
from geostream.transport import scan_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from geostream.transport import Access

__all__ = ["failure_of", "nothing_matches", "read_scenes", "scan"]

_NAMED = 20
_AT_ONCE = 1024
"""Headers being read at the same time; the transport has a limit of its own on requests in flight."""


def scan(
    paths: Paths,
    glob: str,
    access: Access,
    choose: Callable[[Sequence[str]], Sequence[str]],
    *,
    probe_sidecars: bool = False,
) -> tuple[Listing, dict[str, Scene]]:
    """List ``paths``, and read the headers of those files that ``choose`` picks from the list, many at once.

    Args:
        paths: directories (listed at any depth), globs, files and URLs. A URL that ends in a raster's suffix is taken
            for a file and not listed.
        glob: what file names must match.
        access: how they are reached.
        choose: from the listed URLs, sorted, those to open; others may be added.
        probe_sidecars: whether to ask for the sidecars of remote files that no listing covers.

    Returns:
        The listing, and the scene of each URL chosen.

    Raises:
        NotFoundError: nothing matches.
        HeaderError, ReadError: some files cannot be read; one error names them all.
    """
    with scan_session() as session:
        listing = session.run(list_paths(paths, glob, access, probe=probe_sidecars))
        if not listing.urls:
            raise nothing_matches(paths, glob)
        chosen = list(dict.fromkeys(choose(listing.urls)))
        found: list[Scene | GeostreamError] = []
        for begin in range(0, len(chosen), _AT_ONCE):
            part = [(url, listing.sidecars.get(url, ())) for url in chosen[begin : begin + _AT_ONCE]]
            found += session.run(read_scenes(part, access, _ignore))
    failures = {url: scene for url, scene in zip(chosen, found, strict=True) if isinstance(scene, GeostreamError)}
    listed = set(listing.urls) if failures else set()
    absent = [url for url, error in failures.items() if isinstance(error, NotFoundError) and url not in listed]
    if absent and len(absent) == len(failures):
        raise _bands_missing(absent)
    if failures:
        raise failure_of(failures, len(chosen), f"files that match {glob!r}")
    return listing, {scene.url: scene for scene in found if isinstance(scene, Scene)}


async def read_scenes(
    files: Sequence[tuple[str, tuple[str, ...]]], access: Access, advance: Callable[[], None]
) -> list[Scene | GeostreamError]:
    """Read headers, all at once, on the running loop.

    Args:
        files: URLs, each with the sidecars that lie beside it.
        access: how they are reached.
        advance: called after each.

    Returns:
        For each file its scene, or the error that stands in its place.
    """

    async def read(url: str, sidecars: tuple[str, ...]) -> Scene | GeostreamError:
        (header,) = await read_headers([Source(url, access, sidecars)])
        advance()
        return header if isinstance(header, GeostreamError) else Scene.from_header(url, sidecars, header)

    return await asyncio.gather(*(read(*file) for file in files))


def nothing_matches(paths: Paths, glob: str) -> NotFoundError:
    """The error where no file is found."""
    given = each_path(paths)
    if not given:
        return NotFoundError("no paths were given: pass at least one directory, glob, file or URL")
    web = any(path.lower().startswith(("http://", "https://")) for path in given)
    links = ". A web server's folder is known by the page of links that it shows (its URL ends in a slash); where it "
    links += "shows none, pass the files' URLs or an index"
    return NotFoundError(
        f"no file at {describe_paths(paths)} matches {glob!r}: check the path, and filename_glob, which is compared "
        f"with file names{links if web else ''}"
    )


def _bands_missing(absent: Sequence[str]) -> NotFoundError:
    """The error where bands' files are not there, whose names follow from those of listed files."""
    lines = "".join(f"\n  {redact(url)}" for url in absent[:_NAMED])
    more = f"\n  and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    return NotFoundError(
        f"scenes lack files of bands that are to be read, {len(absent)} in all. Name in bands= those that all scenes "
        f"have, or complete or remove these scenes; missing are:{lines}{more}",
        url=absent[0],
    )


def failure_of(failures: Mapping[str, GeostreamError], total: int, what: str) -> GeostreamError:
    """One error for all files that cannot be read, of the class that covers them.

    Args:
        failures: by URL.
        total: number of files that were to be read.
        what: what the files are, in words.
    """
    errors = list(failures.values())
    if total == 1:
        return errors[0]
    kinds: list[type[GeostreamError]] = [type(errors[0]), NotFoundError, ReadError, DecodeError]
    kind = next((kind for kind in kinds if all(isinstance(error, kind) for error in errors)), HeaderError)
    lines = [f"\n  {redact(url)}: {_without(redact(url), error)}" for url, error in failures.items()]
    return kind(
        f"{len(errors)} of {total} {what} cannot be read. None is skipped silently: narrow filename_glob (such as "
        f"'*.tif') so that it matches rasters only, or repair them:{''.join(lines)}"
    )


def _without(name: str, error: GeostreamError) -> str:
    """An error's kind and words, which need not begin with the file's name again."""
    return f"{type(error).__name__}: {str(error).removeprefix(f'{name}: ')}"


def _ignore() -> None:
    """Nobody looks at the progress."""
