"""Remote VRTs: which files they are made of, and rewritten so that GDAL finds these where geostream has them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from geostream.errors import HeaderError, redact

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_VRT_BYTES", "is_vrt", "rewrite"]

MAX_VRT_BYTES = 2**24
"""A VRT of more bytes names more files than are opened together."""
_MOST_SOURCES = 256

_KNOWN = frozenset(
    [
        "VRTDataset",
        "SRS",
        "GeoTransform",
        "GCPList",
        "GCP",
        "Metadata",
        "MDI",
        "BlockXSize",
        "BlockYSize",
        "OverviewList",
        "VRTRasterBand",
        "MaskBand",
        "NoDataValue",
        "HideNoDataValue",
        "ColorInterp",
        "Description",
        "Offset",
        "Scale",
        "UnitType",
        "ColorTable",
        "Entry",
        "CategoryNames",
        "Category",
        "Histograms",
        "HistItem",
        "HistMin",
        "HistMax",
        "BucketCount",
        "IncludeOutOfRange",
        "Approximate",
        "HistCounts",
        "SimpleSource",
        "ComplexSource",
        "AveragedSource",
        "SourceFilename",
        "SourceBand",
        "SourceProperties",
        "SrcRect",
        "DstRect",
        "NODATA",
        "ScaleOffset",
        "ScaleRatio",
        "LUT",
        "UseMaskBand",
        "ColorTableComponent",
    ]
)
"""Elements that describe pixels and name no file but a source's. Others may run code, or read what is not meant."""


def is_vrt(head: bytes) -> bool:
    """Whether these first bytes are those of a VRT."""
    return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<VRTDataset")


def rewrite(content: bytes, url: str, normalize: Callable[[str], str]) -> tuple[bytes, dict[str, str]]:
    """Find the sources of a remote VRT.

    Args:
        content: the VRT.
        url: where it lies.
        normalize: turns ``/vsi…/`` paths into URLs.

    Returns:
        The VRT with each source under a plain name beside it, and the URL that each name stands for.

    Raises:
        HeaderError: it is not a VRT, or names local files, another host or bucket, or more than pixels.
    """
    try:
        root = ET.fromstring(content)  # noqa: S314 - expat bounds the expansion of entities
    except ET.ParseError as error:
        raise HeaderError(f"its XML does not parse: {error}") from None
    unknown = {e.tag for e in root.iter()} - _KNOWN
    kinds = {e.get("subClass", "") for e in root.iter()} - {"", "VRTSourcedRasterBand"}
    if unknown or kinds:
        raise HeaderError(
            f"a remote VRT with {', '.join(sorted(unknown | kinds))} is not read: copy it, and open the copy"
        )
    names: dict[str, str] = {}
    for element in root.iter("SourceFilename"):
        place = _place(element, url, normalize)
        element.text = names.setdefault(place, f"{len(names)}-{place.rsplit('/', 1)[-1]}")
        element.set("relativeToVRT", "1")
    if len(names) > _MOST_SOURCES:
        raise HeaderError(f"a remote VRT of {len(names)} files is not read: pass the files themselves")
    return ET.tostring(root), {name: place for place, name in names.items()}


def _place(element: ET.Element, url: str, normalize: Callable[[str], str]) -> str:
    """URL of a source, which lies where its VRT lies."""
    text = (element.text or "").strip()
    relative = element.get("relativeToVRT") == "1"
    base = urlsplit(url)
    folder = url.split("?", maxsplit=1)[0].rsplit("/", 1)[0]
    place = f"{folder}/{text}" if relative else normalize(text) if "://" in text or text.startswith("/vsi") else ""
    parts = urlsplit(place)
    if (
        not place
        or "::" in url
        or ".." in text.split("/")
        or "\\" in text
        or (relative and (":" in text or text[:1] == "/"))
    ):
        raise HeaderError(f"it names {redact(text)!r}: a remote VRT may name files below its folder, or by URL")
    if (parts.scheme, parts.netloc) != (base.scheme, base.netloc):
        raise HeaderError(
            f"it names {redact(text)!r}, on another host or in another bucket than it lies in: open that file itself, "
            "with the options that reach it"
        )
    return place
