"""What the names of files say: which are sidecars, which match, where a name stands in a URL."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "basename",
    "basenames",
    "is_hidden",
    "is_raster_name",
    "is_sidecar",
    "name_matches",
    "name_span",
    "names_matching",
    "sidecar_names",
]

_PIXEL_SIDECARS = (".msk", ".ovr", ".aux.xml", ".msk.ovr", ".ovr.msk")
"""Suffixes that GDAL puts behind a raster's full name for masks, overviews and metadata."""
_SIDECAR = re.compile(
    r"\.(msk|ovr|aux\.xml|aux|rrd|tfw|tifw|tiffw|wld|jgw|jpgw|pgw|pngw|j2w|gfw|prj|rpb|imd)$", re.IGNORECASE
)
_RASTER = re.compile(
    r"\.(tiff?|gtiff?|cog|jp2|j2k|png|jpe?g|webp|vrt|img|nc4?|hdf5?|h5|asc|dem|bil|grib2?|grb2?)$", re.IGNORECASE
)
_ODD = re.compile(r"[?#]|::|/$")
_ODD_SIGNS = ("?", "#", "::", "/\n")
"""The same, in URLs each of which ends a line."""


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
    if not _ODD.search(url):
        return url[url.rfind("/") + 1 :]
    start, stop = name_span(url)
    return url[start:stop]


def basenames(urls: Sequence[str]) -> list[str]:
    """The names of many files, as `basename` tells each."""
    everything = "\n".join(urls) + "\n"
    if any(sign in everything for sign in _ODD_SIGNS):
        return [basename(url) for url in urls]
    return [url[url.rfind("/") + 1 :] for url in urls]


def is_sidecar(url: str) -> bool:
    """Whether the name is that of a file that accompanies a raster: a mask, overviews, metadata, a world file."""
    return _SIDECAR.search(basename(url)) is not None


def is_raster_name(url: str) -> bool:
    """Whether the name ends as those of rasters do."""
    return _RASTER.search(basename(url)) is not None


def name_matches(url: str, glob: str) -> bool:
    """Whether a file is one of the dataset's by its name, or by its path's end where ``glob`` has directories."""
    if is_sidecar(url):
        return False
    if "/" in glob:
        return fnmatch.fnmatchcase(url[: name_span(url)[1]], f"*/{glob}")
    return fnmatch.fnmatchcase(basename(url), glob)


def names_matching(urls: Sequence[str], glob: str) -> list[str]:
    """Those of many files that are the dataset's by their names, as `name_matches` says of each."""
    names = basenames(urls)
    endings = {name[name.rfind(".") :] for name in names}
    if "/" in glob or any(ending.lower().startswith(".xml") or is_sidecar(ending) for ending in endings):
        return [url for url in urls if name_matches(url, glob)]
    if glob == "*":
        return list(urls)
    match = re.compile(fnmatch.translate(glob)).match
    return [url for url, name in zip(urls, names, strict=True) if match(name)]


def is_hidden(url: str, root: str) -> bool:
    """Whether a file's name, or a directory's between it and the root, begins with a dot."""
    below = url[len(root) :] if url != root and url.startswith(root) else basename(url)
    return re.search(r"(^|/)\.", below) is not None


def sidecar_names(url: str) -> list[str]:
    """What a raster's sidecars would be called, world files last."""
    start, stop = name_span(url)
    beside = [f"{url[:stop]}{suffix}{url[stop:]}" for suffix in _PIXEL_SIDECARS]
    stem, dot, ending = url[start:stop].rpartition(".")
    if not (stem and dot and ending):
        return beside
    worlds = dict.fromkeys([f"{ending[0]}{ending[-1]}w", f"{ending}w", "wld"])
    cased = dict.fromkeys([*map(str.lower, worlds), *map(str.upper, worlds)])
    return beside + [f"{url[:start]}{stem}.{world}{url[stop:]}" for world in cased]
