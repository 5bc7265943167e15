"""What the range server says to a request: HTTP ranges and preconditions, S3 errors. Nothing here touches a socket."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from http import HTTPStatus
from mimetypes import guess_type
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from geostream.testing.listing import list_buckets, list_objects

if TYPE_CHECKING:
    from geostream.testing.objects import Store, StoredObject
    from geostream.testing.records import Fault

__all__ = ["Answer", "Request", "answer", "parse_range", "parse_request"]

_RANGE = re.compile(r"bytes=\s*(\d*)\s*-\s*(\d*)\s*")
_CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its head parsed."""

    method: str
    """GET, HEAD, LIST for a GET that lists, or what else was sent."""
    key: str
    """Name of the object, decoded, without bucket and leading slash; the prefix for LIST."""
    bucket: bool
    """Whether the path began with the bucket's name."""
    query: Mapping[str, str]
    """The query string, decoded."""
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    keep_alive: bool
    """Whether the client means to send more on this connection."""

    @property
    def length(self) -> int:
        """Bytes of body that follow the head."""
        value = self.headers.get("content-length", "0")
        return int(value) if value.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, its body still to be read."""

    status: int
    """HTTP status."""
    headers: Mapping[str, str]
    """Headers but for Content-Length."""
    length: int = 0
    """Content-Length."""
    read: Callable[[int, int], bytes] = b"".__getitem__  # type: ignore[assignment]
    """Returns the bytes from ``start`` to ``stop`` of the object, or of the error's text."""
    start: int = 0
    """Where the body begins in what `read` reads; it ends `length` bytes further on."""
    asked: tuple[int, int] | None = None
    """The range that was asked for, resolved, half open; None without a usable one."""

    def head(self, *, keep_alive: bool) -> bytes:
        """Status line and headers as they go over the wire."""
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {self.length}", f"Connection: {'keep-alive' if keep_alive else 'close'}", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace")


def parse_request(head: bytes, bucket: str) -> Request:
    """Parse a request's head, without its final empty line.

    Raises:
        ValueError: if it is not HTTP/1.
    """
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"unknown version {version!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    if not target.startswith("/"):
        parts = urlsplit(target)
        target = f"{parts.path or '/'}?{parts.query}"
    path, _, text = target.partition("?")
    path = unquote(path)[1:]
    query = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
    in_bucket = path == bucket or path.startswith(bucket + "/")
    key = path[len(bucket) + 1 :] if in_bucket else path
    if method == "GET" and not key and (in_bucket or not query):
        method, key = "LIST", query.get("prefix", "")
    connection = headers.get("connection", "").lower()
    keep_alive = connection == "keep-alive" if version == "HTTP/1.0" else connection != "close"
    return Request(method, key, in_bucket, query, headers, keep_alive)


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Resolve a Range header against an object of ``size`` bytes to ``(start, stop)``, half open.

    None where the header is to be ignored: absent, malformed, or of several ranges, which S3 ignores as well. A range
    with ``start >= stop`` cannot be satisfied; that is any range of an empty object.
    """
    match = _RANGE.fullmatch(header) if header else None
    if match is None:
        return None
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if last else None
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


def answer(request: Request, store: Store, bucket: str, fault: Fault | None = None) -> Answer:
    """The answer to ``request``, spoiled by ``fault`` as far as that concerns what is said, not how it is sent."""
    if fault is not None and fault.kind == "status":
        retry = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
        return error(fault.status, request.key, retry)
    if request.method == "LIST":
        if request.bucket:
            return _xml(200, list_objects(store, bucket, request.query))
        return _xml(200, list_buckets(bucket))
    if request.method not in {"GET", "HEAD"}:
        return error(405, request.key)
    if request.method == "HEAD" and request.bucket and not request.key:
        return Answer(200, {"x-amz-bucket-region": "us-east-1"})
    found = store.get(request.key)
    if found is None:
        return error(404, request.key)
    return _spoiled(request, found, fault)


def error(status: int, key: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An error in S3's form."""
    code = _CODES.get(status, _phrase(status).replace(" ", ""))
    text = (
        f"<Error><Code>{code}</Code><Message>{_phrase(status)}</Message>"
        f"<Key>{escape(key)}</Key><RequestId>0</RequestId></Error>"
    )
    return _xml(status, text, headers)


def _xml(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n' + text.encode()
    return Answer(
        status,
        {"Content-Type": "application/xml", **(headers or {})},
        len(body),
        lambda start, stop: body[start:stop],
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _spoiled(request: Request, found: StoredObject, fault: Fault | None) -> Answer:
    kind = None if fault is None else fault.kind
    if kind in {"changed", "swapped"}:
        found = found.replaced()
    ignored = {"ignore_range": {"range"}, "swapped": {"if-match"}}.get(kind or "", set())
    if ignored:
        request = replace(request, headers={n: v for n, v in request.headers.items() if n not in ignored})
    if kind == "short_range" and (span := parse_range(request.headers.get("range"), found.size)):
        start, stop = span
        half = f"bytes={start}-{start + max(1, (stop - start) // 2) - 1}"
        proper = _object_answer(replace(request, headers={**request.headers, "range": half}), found)
        return replace(proper, asked=span)
    proper = _object_answer(request, found)
    if proper.status not in {200, 206}:
        return proper
    if kind == "no_etag":
        return replace(proper, headers={n: v for n, v in proper.headers.items() if n != "ETag"})
    if kind == "garbage":
        return replace(proper, read=_noise)
    if kind == "wrong_length":
        return replace(proper, length=max(0, proper.length - 1))
    if proper.asked is not None and kind in {"wrong_range", "wrong_total"}:
        start, stop = proper.asked
        lie = (
            f"bytes {start + 1}-{stop}/{found.size}"
            if kind == "wrong_range"
            else f"bytes {start}-{stop - 1}/{found.size * 2}"
        )
        return replace(proper, headers={**proper.headers, "Content-Range": lie})
    return proper


def _noise(start: int, stop: int) -> bytes:
    return random.Random(start).randbytes(stop - start)  # noqa: S311 - reproducible, not secret


def _object_answer(request: Request, found: StoredObject) -> Answer:
    headers = {
        "ETag": found.etag,
        "Last-Modified": formatdate(found.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": guess_type(found.key)[0] or "application/octet-stream",
    }
    asked = request.headers
    if "if-match" in asked and not _matches(asked["if-match"], found.etag):
        return error(412, found.key)
    if "if-none-match" in asked and _matches(asked["if-none-match"], found.etag):
        return Answer(304, headers)
    fresh = "if-range" not in asked or asked["if-range"] == found.etag
    span = parse_range(asked.get("range"), found.size) if fresh else None
    if span is None:
        return Answer(200, headers, found.size, found.read)
    start, stop = span
    if start >= stop:
        return replace(error(416, found.key, {"Content-Range": f"bytes */{found.size}"}), asked=span)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    return Answer(206, headers, stop - start, found.read, start, span)


def _matches(header: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or etag in tags or etag.strip('"') in tags
