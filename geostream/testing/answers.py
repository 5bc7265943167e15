"""What the range server says to a request: HTTP ranges and preconditions, S3 errors. Nothing here touches a socket."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from email.utils import formatdate
from http import HTTPStatus
from mimetypes import guess_type
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from geostream.testing.listing import list_buckets, list_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        return _xml(200, list_objects(store, bucket, request.query) if request.bucket else list_buckets(bucket))
    if request.method not in {"GET", "HEAD"}:
        return error(405, request.key)
    if request.method == "HEAD" and request.bucket and not request.key:
        return Answer(200, {"x-amz-bucket-region": "us-east-1"})
    found = store.get(request.key)
    return error(404, request.key) if found is None else _spoiled(request, found, fault)


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
    kind = "" if fault is None else fault.kind
    if kind in {"changed", "swapped"}:
        found = found.replaced()
    span = parse_range(request.headers.get("range"), found.size)
    headers = dict(request.headers)
    headers.pop({"ignore_range": "range", "swapped": "if-match"}.get(kind, ""), None)
    if kind == "short_range" and span is not None:
        start, stop = span
        headers["range"] = f"bytes={start}-{start + max(1, (stop - start) // 2) - 1}"
    proper = replace(_object_answer(found, headers), asked=span)
    return _lie(kind, proper, found.size) if proper.status in {200, 206} else proper


def _lie(kind: str, proper: Answer, total: int) -> Answer:
    """``proper``, with what the head says at odds with the body or the object."""
    headers = dict(proper.headers)
    if kind == "garbage":
        return replace(proper, read=_noise)
    if kind == "wrong_length":
        return replace(proper, length=max(0, proper.length - 1))
    if kind == "no_etag":
        del headers["ETag"]
    if "Content-Range" in headers:
        start, stop = proper.start, proper.start + proper.length
        if kind == "wrong_range":
            headers["Content-Range"] = f"bytes {start + 1}-{stop}/{total}"
        if kind == "wrong_total":
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total * 2}"
    return replace(proper, headers=headers)


def _noise(start: int, stop: int) -> bytes:
    return random.Random(start).randbytes(stop - start)  # noqa: S311 - reproducible, not secret


def _object_answer(found: StoredObject, asked: Mapping[str, str]) -> Answer:
    headers = {
        "ETag": found.etag,
        "Last-Modified": formatdate(found.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": guess_type(found.key)[0] or "application/octet-stream",
    }
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
        return error(416, found.key, {"Content-Range": f"bytes */{found.size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    return Answer(206, headers, stop - start, found.read, start)


def _matches(header: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or etag in tags or etag.strip('"') in tags
