"""The exception tree: one root, and for every failure the built-in class its callers already catch."""

from __future__ import annotations

import re

__all__ = [
    "ConfigError",
    "DecodeError",
    "GeostreamError",
    "HeaderError",
    "NotFoundError",
    "QueryError",
    "ReadError",
    "TruncatedError",
    "redact",
]

# A secret may hold slashes; what follows a colon and is a number is a port, and an @ behind it part of the path.
_USERINFO = re.compile(r"(?<=://)(?:[^/@\s:]+:(?!\d+/)[^@\s]*|[^/@\s]+)@")
_QUERY = re.compile(r"[?#].*$")


def redact(url: object) -> str:
    """Return ``url`` without credentials, query string and fragment, fit for a message or a log.

    Chained fsspec URLs (``zip://a.tif::https://user:secret@host/b.zip?token=…``) are redacted link by link.
    """
    return "::".join(_QUERY.sub("", _USERINFO.sub("", link)) for link in str(url).split("::"))


class GeostreamError(Exception):
    """Root of every error that geostream raises on purpose.

    The message says which URL, which tile or byte range, what was tried and what to do. All other facts are
    keyword-only with defaults: torch rebuilds a worker's exception from its message alone, and must be able to.
    """

    url: str | None
    """URL concerned, without credentials and query string."""
    attempts: int
    """How many times the failing request was sent; 0 where no request was involved."""
    status: int | None
    """HTTP status of the last answer, where there was one."""

    def __init__(
        self, message: str = "", *, url: str | None = None, attempts: int = 0, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.url = None if url is None else redact(url)
        self.attempts = attempts
        self.status = status


class HeaderError(GeostreamError, ValueError):
    """Not a raster geostream can read: text, an empty file, an unsupported or hostile header."""


class ReadError(GeostreamError, OSError):
    """Bytes could not be had: network, status, denied access, truncated body, or an object that changed."""


class NotFoundError(ReadError, FileNotFoundError):
    """No such object, or no file matches."""


class TruncatedError(HeaderError, ReadError):
    """A header that points past the end of the file: the file is cut short, or was never a raster."""


class DecodeError(GeostreamError, ValueError):
    """A tile's bytes arrived but do not decode."""


class QueryError(GeostreamError, IndexError):
    """Nothing lies at the place and time asked for."""


class ConfigError(GeostreamError, ValueError):
    """Unknown bands, differing band counts, a malformed slice, or options that contradict each other."""
