"""What is known of a file before its header is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from geostream.index.scene import Scene

__all__ = ["Entry", "bare_url"]

_USER = re.compile(r"(?<=://)[^/@]+@")
_WEB_QUERY = re.compile(r"[?#].*$", re.DOTALL)
_NAMED_VALUES = re.compile(r"[?#](?=[\w.-]+=).*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file to index: its place, and what a listing, a catalogue or a table says of it."""

    url: str
    """Path or URL as it is opened, its query string included."""
    sidecars: tuple[str, ...] = ()
    """Mask, overview and metadata files that were listed beside it."""
    size: int | None = None
    """Bytes, as listed."""
    etag: str | None = None
    """ETag, as listed."""
    modified: datetime | None = None
    """When it was last written, as listed, or its description last changed; UTC."""
    times: tuple[datetime, datetime] | None = None
    """First and last instant of what it shows, UTC."""
    item: str | None = None
    """Id of the STAC item it belongs to."""
    asset: str | None = None
    """Name among that item's assets."""
    described: Scene | None = None
    """The scene, as far as a catalogue describes it without its header."""

    @property
    def key(self) -> str:
        """The URL as an index keeps it."""
        return bare_url(self.url)


def bare_url(url: str) -> str:
    """A URL as an index keeps it: without user name, password and query string, where signatures and tokens stand.

    A local path, and a key in an object store, may hold question marks: those are kept.
    """
    return "::".join(_bare_link(link) for link in url.split("::"))


def _bare_link(link: str) -> str:
    protocol, there, _ = link.partition("://")
    if not there:
        return link
    query = _WEB_QUERY if protocol.lower() in {"http", "https"} else _NAMED_VALUES
    return query.sub("", _USER.sub("", link))
