"""What was asked and what came back: every answer is judged here, without I/O, before its body is believed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geostream.errors import redact
from geostream.transport.retry import is_transient_status, parse_retry_after

if TYPE_CHECKING:
    import builtins

__all__ = [
    "WHOLE_OBJECT_LIMIT",
    "Again",
    "Ask",
    "AttemptFailed",
    "Body",
    "ContentRange",
    "Final",
    "Head",
    "Missing",
    "Promise",
    "empty_body",
    "endless_redirects",
    "fulfil",
    "judge",
    "parse_content_range",
    "redact_text",
    "refuse_status",
]

WHOLE_OBJECT_LIMIT = 8 * 1024 * 1024
"""Bytes: a server that ignores Range and sends the whole object is put up with to this size."""

_CONTENT_RANGE = re.compile(r"\s*bytes\s+(?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)\s*", re.ASCII | re.IGNORECASE)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>)\]]+")
_USER = re.compile(r"[^\s'\"<>()@]+:[^\s'\"<>()@]*@(?=[\w.-])")  # credentials that lost their protocol
_OK, _PARTIAL, _CHANGED, _UNSATISFIABLE = 200, 206, 412, 416
_MISSING = frozenset({404, 410})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# S3 stores what was uploaded as "aws-chunked" without the chunks, though the name may stay behind.
_PLAIN = frozenset({"", "identity", "aws-chunked"})

_LATER = "The server is busy or failing: try again later"
_CREDENTIALS = (
    "Check the credentials in storage_options= (or fs=) and that they may read this object; "
    "object stores also answer 403 for one that does not exist"
)
_MOVED = "The object has moved, or lies in another region: use its new URL"
_ADVICE = {401: _CREDENTIALS, 403: _CREDENTIALS, 407: _CREDENTIALS, **dict.fromkeys(_REDIRECTS, _MOVED)}


class AttemptFailed(Exception):  # noqa: N818 - never leaves the package; a ReadError does
    """One attempt came to nothing. Subclasses say whether another may."""

    def __init__(
        self, why: str, *, advice: str = "", status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(why)
        self.why = why
        self.advice = advice
        self.status = status
        self.retry_after = retry_after


class Again(AttemptFailed):
    """Likely to pass: a busy server, a dropped connection, a short body."""


class Final(AttemptFailed):
    """Asking again would give the same answer."""


class Missing(Final):
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One range of one object."""

    path: str
    """Where it is, in the words of the filesystem that reads it."""
    start: int
    """First byte."""
    stop: int
    """One past the last byte."""
    etag: str | None = None
    """ETag the object must still have."""

    @property
    def range_header(self) -> str:
        """Value of the HTTP Range header."""
        return f"bytes={self.start}-{self.stop - 1}"

    @property
    def if_match(self) -> str | None:
        """Value of the If-Match header: RFC 9110 compares strongly there, so that a weak ETag would never match."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of one range and what the answer said about the object."""

    bytes: builtins.bytes = field(repr=False)
    """The bytes from start to stop; fewer only where the object ends."""
    total: int | None
    """Size of the whole object in bytes; None where the filesystem does not say."""
    etag: str | None
    """The object's ETag, or what stands for it (a local file's time and size); None where there is none."""
    status: int
    """HTTP status of the answer; 206 where there is no HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer, as far as they matter to a range."""

    status: int
    """HTTP status."""
    content_range: str | None = None
    """Content-Range header."""
    content_length: int | None = None
    """Content-Length header."""
    etag: str | None = None
    """ETag header."""
    encoding: str | None = None
    """Content-Encoding header."""


@dataclass(frozen=True, slots=True)
class ContentRange:
    """A Content-Range header. ``start`` and ``stop`` are None for ``bytes */total``."""

    start: int | None
    """First byte."""
    stop: int | None
    """One past the last byte."""
    total: int | None
    """Size of the whole object; None for ``*``."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the body of a good answer holds, decided from its head."""

    length: int | None
    """Bytes to expect; None where the server does not say."""
    limit: int
    """Most bytes to read."""
    skip: int
    """Bytes before the range asked for: 0 but for whole-object answers."""
    total: int | None
    """Size of the whole object."""
    head: Head
    """The answer's head."""


def parse_content_range(value: str | None) -> ContentRange | None:
    """Return the parsed Content-Range header, or None where it is absent, malformed or contradicts itself."""
    match = _CONTENT_RANGE.fullmatch(value) if value else None
    if match is None:
        return None
    first, last, size = match.groups()
    total = None if size == "*" else int(size)
    if first is None:
        return ContentRange(None, None, total)
    start, stop = int(first), int(last) + 1
    if stop <= start or (total is not None and stop > total):
        return None
    return ContentRange(start, stop, total)


def judge(ask: Ask, head: Head) -> Promise:
    """Decide from an answer's head what its body must hold.

    Raises:
        Again: The status is one that passes.
        Final: The answer is not the range asked for, nor will be.
    """
    if head.status == _PARTIAL:
        promise = _judge_partial(ask, head)
    elif head.status == _OK:
        promise = _judge_whole(ask, head)
    else:
        raise refuse_status(head.status)
    if head.encoding and head.encoding.strip().lower() not in _PLAIN:
        raise Final(
            f"the server compressed the answer ({head.encoding}), so that its bytes are not the object's",
            advice="Serve the file without Content-Encoding",
            status=head.status,
        )
    if ask.etag is not None and head.etag is not None and head.etag != ask.etag:
        raise object_changed(head.status)
    return promise


def _judge_partial(ask: Ask, head: Head) -> Promise:
    said = parse_content_range(head.content_range)
    words = f"the answer to {ask.range_header} says Content-Range {head.content_range!r}"
    if said is None or said.start is None or said.stop is None or said.start != ask.start or said.stop > ask.stop:
        raise Final(words, advice="The server, or a proxy before it, mishandles range requests", status=head.status)
    if said.stop < ask.stop and said.stop != said.total:
        raise Again(
            f"{words}, which stops before both the range and the object end",
            advice="The server, or a proxy before it, shortens ranges",
            status=head.status,
        )
    length = said.stop - said.start
    if head.content_length is not None and head.content_length != length:
        raise Again(
            f"{words}, but Content-Length {head.content_length}",
            advice="The server, or a proxy before it, mishandles range requests",
            status=head.status,
        )
    return Promise(length, length, 0, said.total, head)


def _judge_whole(ask: Ask, head: Head) -> Promise:
    size = head.content_length
    if size is not None and size > max(WHOLE_OBJECT_LIMIT, ask.stop if ask.start == 0 else 0):
        raise Final(
            f"the server ignores range requests and would send all {size:,} bytes",
            advice="Use a server that answers Range with 206, or read a local copy",
            status=head.status,
        )
    return Promise(size, max(WHOLE_OBJECT_LIMIT, ask.stop), ask.start, size, head)


def fulfil(ask: Ask, promise: Promise, data: bytes) -> Body:
    """Hold the body that came against what its head promised.

    Raises:
        Again: Bytes are missing.
        Final: There are too many, or the range begins past the end.
    """
    head = promise.head
    if promise.length is not None and len(data) < promise.length:
        raise Again(f"the body broke off after {len(data):,} of {promise.length:,} bytes", status=head.status)
    if len(data) > promise.limit:
        raise Final(f"the body is longer than the {promise.limit:,} bytes it should hold", status=head.status)
    if head.status == _PARTIAL:
        return Body(data, promise.total, head.etag, head.status)
    if not data and ask.start == 0:
        return Body(b"", 0, head.etag, head.status)
    if ask.start >= len(data):
        raise past_the_end(len(data), head.status)
    return Body(data[ask.start : ask.stop], len(data), head.etag, head.status)


def empty_body(ask: Ask, head: Head) -> Body:
    """Return the body that a 416 answer means: an empty one, if the range begins at 0.

    Raises:
        Final: The range begins past the end of an object that has bytes.
    """
    said = parse_content_range(head.content_range)
    total = None if said is None else said.total
    if ask.start == 0 and not total:
        return Body(b"", 0, head.etag, head.status)
    raise past_the_end(total, head.status)


def past_the_end(total: int | None, status: int | None = None) -> Final:
    """Build the failure of a range that begins where the object has ended."""
    size = "" if total is None else f", which has {total:,} bytes"
    return Final(
        f"data past the end of the file{size}",
        advice="The file is truncated, or its header names offsets it does not hold",
        status=status,
    )


def object_changed(status: int | None = None, sign: str = "its ETag differs") -> Final:
    """Build the failure of an object that is not the one whose header was read, and by what ``sign`` that is seen."""
    return Final(
        f"the object changed since its header was read ({sign})",
        advice="Update the index, or build the dataset again, so that its header is read anew",
        status=status,
    )


def endless_redirects(status: int | None, location: str | None) -> Final:
    """Build the failure of a server that answers one redirect with another."""
    where = f", at last to {redact(location)}" if location else ""
    return Final(f"it is redirected again and again{where}", status=status, advice=_MOVED)


def refuse_status(
    status: int, *, detail: str = "", retry_after: str | None = None, location: str | None = None
) -> AttemptFailed:
    """Build the failure that an HTTP status other than 200 and 206 means."""
    why = f"the server answered {status}" + (f" ({redact_text(detail)})" if detail else "")
    if location is not None and status in _REDIRECTS:
        why += f" and points to {redact(location)}"
    if is_transient_status(status):
        return Again(why, status=status, retry_after=parse_retry_after(retry_after), advice=_LATER)
    if status in _MISSING:
        return Missing(why, status=status, advice="Check the spelling of the URL and that the object exists")
    if status == _CHANGED:
        return object_changed(status)
    if status == _UNSATISFIABLE:
        return past_the_end(None, status)
    return Final(why, status=status, advice=_ADVICE.get(status, "Check the URL and the options it is reached with"))


def redact_text(text: str) -> str:
    """Return a foreign message with its URLs and credentials redacted, on one line and of bounded length."""
    line = " ".join(_USER.sub("", _URL.sub(lambda match: redact(match.group()), text)).split())
    return line if len(line) <= 300 else line[:297] + "..."  # noqa: PLR2004 - a message, not a page
