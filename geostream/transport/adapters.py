"""One attempt at one range, per kind of filesystem. What each can promise is written on its class."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import aiohttp

from geostream.transport.answer import (
    Again,
    Ask,
    AttemptFailed,
    Body,
    Final,
    Head,
    Missing,
    Promise,
    empty_body,
    endless_redirects,
    fulfil,
    judge,
    object_changed,
    past_the_end,
    redact_text,
    refuse_status,
)
from geostream.transport.counting import Meter, count_session, drain, metered, set_meter

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fsspec import AbstractFileSystem

__all__ = [
    "Adapter",
    "CatFileAdapter",
    "ForeignLoopAdapter",
    "HttpAdapter",
    "LocalAdapter",
    "Meter",
    "local_etag",
    "metered",
    "pread",
    "set_meter",
]

_UNSATISFIABLE, _ERROR = 416, 400
_STORE_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")  # S3's and its kin's
_OK, _PARTIAL = 200, 206
CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class Adapter(Protocol):
    """Makes one attempt at one range."""

    async def prepare(self) -> None:
        """Make the client that attempts need, before any attempt's time begins to count."""

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Ask once.

        Raises:
            AttemptFailed: Nothing usable came.
        """

    async def aclose(self) -> None:
        """Close what the adapter opened, and nothing of the user's."""


def why(error: BaseException) -> str:
    """Return an exception as the cause in a message: its kind and its words, without URLs' secrets."""
    words = redact_text(str(error))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class LocalAdapter:
    """Files of this machine: size known, modification time stands for the ETag; one open and one pread a range."""

    async def prepare(self) -> None:
        """Nothing to make."""

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Read in a thread: a disk may be slow, and may be a network's."""
        meter.requests += 1
        body = await asyncio.to_thread(_read_local, ask)
        meter.bytes += len(body.bytes)
        return body

    async def aclose(self) -> None:
        """Nothing stays open."""


def local_etag(facts: os.stat_result) -> str:
    """What stands for a local file's ETag: its time and size."""
    return f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'


def _read_local(ask: Ask) -> Body:
    try:
        handle = os.open(ask.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    except OSError as error:
        raise _local_failure(error) from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise Final("it is not a regular file", advice="Pass the path of a file")
        etag = local_etag(facts)
        if ask.etag is not None and ask.etag != etag:
            raise object_changed(sign="its size or time of modification differs")
        if ask.start >= facts.st_size and facts.st_size:
            raise past_the_end(facts.st_size)
        length = min(ask.stop, facts.st_size) - ask.start
        return Body(pread(handle, ask.start, length) if length > 0 else b"", facts.st_size, etag, _PARTIAL)
    except OSError as error:
        raise _local_failure(error) from None
    finally:
        os.close(handle)


def pread(handle: int, start: int, length: int) -> bytes:
    """Read exactly ``length`` bytes of an open file at ``start``.

    Raises:
        Again: The file ended before.
    """
    data = os.pread(handle, length, start)
    if len(data) == length:
        return data
    parts, got = [data], len(data)  # one pread moves at most 2 GiB
    while got < length:
        data = os.pread(handle, length - got, start + got)
        if not data:
            raise Again(f"the file ended after {got:,} of {length:,} bytes")
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _local_failure(error: OSError) -> AttemptFailed:
    words = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing("no such file", advice="Check the path")
    if isinstance(error, PermissionError):
        return Final(words, advice="Check the file's permissions")
    if isinstance(error, InterruptedError | BlockingIOError | TimeoutError):
        return Again(words)
    return Final(words, advice="Check the path and the disk")


class HttpAdapter:
    """http(s) through the session of fsspec's HTTP filesystem: status, Content-Range, ETag and If-Match all checked.

    Redirects are followed, each counted as a request. Of refused answers, up to a megabyte is read.

    On a session of the user's own, aiohttp itself sends a request again whose kept-alive connection turns out to be
    closed: counted, but not as a retry.
    """

    def __init__(self, fs: Any, *, owned: bool) -> None:
        self._fs = fs
        self._owned = owned
        self._session: aiohttp.ClientSession | None = None
        self._counted = False
        options = dict(fs.kwargs)
        self._headers = {**dict(options.pop("headers", None) or {}), "Accept-Encoding": "identity"}
        self._options = options

    async def prepare(self) -> None:
        """Make the session."""
        await self._open()

    async def _open(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await self._fs.set_session()
        if self._owned:
            disable_resend(session)
        self._counted = count_session(session)
        self._session = session
        return session

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Send one GET."""
        set_meter(meter)
        session = self._session
        if session is None or session.closed:
            session = await self._open()
        headers = {**self._headers, "Range": ask.range_header}
        if ask.if_match is not None:
            headers["If-Match"] = ask.if_match
        meter.requests += not self._counted
        try:
            async with session.get(self._fs.encode_url(ask.path), headers=headers, **self._options) as response:
                body = await receive(ask, response, meter)
                meter.plain = response.status == _PARTIAL and not response.history and not response.cookies
                return body
        except CONNECT_ERRORS as error:
            meter.requests -= not self._counted  # no connection, so nothing was sent
            raise Again(why(error), advice="Check the host's name and the network") from None
        except aiohttp.TooManyRedirects as error:
            raise endless_redirects(error.status, meter.location) from None
        except (aiohttp.InvalidURL, ValueError, TypeError) as error:
            raise Final(why(error), advice="Check the URL and the storage options") from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise Again(why(error)) from None

    async def aclose(self) -> None:
        """Close the session, if geostream made it."""
        if self._owned and self._fs._session is not None:  # noqa: SLF001 - the only handle on it
            await self._fs._session.close()  # noqa: SLF001


def disable_resend(session: Any) -> None:
    """Keep aiohttp from sending a request again by itself: geostream retries, and counts."""
    if hasattr(session, "_retry_connection"):
        session._retry_connection = False  # noqa: SLF001 - aiohttp offers no public switch


async def receive(ask: Ask, response: aiohttp.ClientResponse, meter: Meter) -> Body:
    """Judge an answer, read its body, and count that."""
    content = response.content
    before = meter.bytes
    try:
        head = _head(response)
        if head.status not in {_OK, _PARTIAL}:
            return await _receive_error(ask, response, head)
        try:
            promise = judge(ask, head)
        except AttemptFailed:
            await drain(response)
            raise
        return fulfil(ask, promise, await _read_body(response, promise))
    except AttemptFailed:
        response.close()  # whatever else is on its way is not worth having
        raise
    finally:
        meter.bytes = before + content.total_bytes


async def _read_body(response: aiohttp.ClientResponse, promise: Promise) -> bytes:
    if promise.length is not None:
        return await response.read()
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > promise.limit:
            break
    return b"".join(parts)


async def _receive_error(ask: Ask, response: aiohttp.ClientResponse, head: Head) -> Body:
    """Read an error's body, so that its bytes are counted and the connection can serve again."""
    code = _STORE_CODE.search(await drain(response))
    detail = code.group(1).decode() if code else response.reason or ""
    if head.status == _UNSATISFIABLE:
        return empty_body(ask, head)
    headers = response.headers
    raise refuse_status(
        head.status, detail=detail, retry_after=headers.get("Retry-After"), location=headers.get("Location")
    )


def _head(response: aiohttp.ClientResponse) -> Head:
    headers = response.headers
    length = headers.get("Content-Length")
    return Head(
        status=response.status,
        content_range=headers.get("Content-Range"),
        content_length=int(length) if length is not None and length.isdigit() else None,
        etag=headers.get("ETag"),
        encoding=headers.get("Content-Encoding"),
    )


class CatFileAdapter:
    """Any other filesystem, through ``_cat_file``: memory, tar and the like, and asynchronous ones of other stores.

    It returns bare bytes. So there is no ETag and no If-Match (an object replaced between two ranges goes unnoticed
    unless its size gives it away), no status, and a whole object sent instead of a range is read to its end. The size
    is asked for where it costs nothing, or where fewer bytes came than asked for. Retries that the filesystem makes
    inside are neither seen nor counted.
    """

    def __init__(self, fs: AbstractFileSystem, *, cheap_info: bool) -> None:
        self._fs = fs
        self._cheap_info = cheap_info

    async def prepare(self) -> None:
        """Leave it to the filesystem to make what it needs."""

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Call ``_cat_file`` once, and ``_info`` where the size is to be known."""
        meter.requests += 1
        try:
            if self._cheap_info:
                return await self._fetch_sized(ask, meter)
            data = await self._cat(ask, meter)
            total = None
            if len(data) < ask.stop - ask.start:
                meter.requests += 1
                total = await self._size(ask.path)
            return _fit(ask, data, total)
        except AttemptFailed:
            raise
        except Exception as error:  # noqa: BLE001 - a foreign filesystem raises what it likes
            raise classify(error) from None

    async def _fetch_sized(self, ask: Ask, meter: Meter) -> Body:
        total = await self._size(ask.path)
        if total is not None and ask.start >= total:
            if total == 0 and ask.start == 0:
                return Body(b"", 0, None, _PARTIAL)
            raise past_the_end(total)
        return _fit(ask, await self._cat(ask, meter), total)

    async def _cat(self, ask: Ask, meter: Meter) -> bytes:
        data = bytes(await self._fs._cat_file(ask.path, start=ask.start, end=ask.stop))  # noqa: SLF001 - fsspec's async API
        meter.bytes += len(data)
        return data

    async def _size(self, path: str) -> int | None:
        facts = await self._fs._info(path)  # noqa: SLF001 - fsspec's async API
        if facts.get("type") == "directory":
            raise Final("it is a directory", advice="Pass the URL of a file")
        size = facts.get("size")
        return None if size is None else int(size)

    async def aclose(self) -> None:
        """Nothing stays open that fsspec lets one close."""


def _fit(ask: Ask, data: bytes, total: int | None) -> Body:
    wanted = ask.stop - ask.start
    if len(data) > wanted:
        if total == len(data) or len(data) >= ask.stop:  # the whole object came
            return Body(data[ask.start : ask.stop], len(data), None, _PARTIAL)
        raise Final(f"{len(data):,} bytes came instead of {wanted:,}", advice="The filesystem mishandles ranges")
    if len(data) < wanted and total is not None and ask.start + len(data) != total:
        if ask.start >= total > 0:
            raise past_the_end(total)
        if total or ask.start:
            raise Again(f"only {len(data):,} of {min(ask.stop, total) - ask.start:,} bytes came")
    return Body(data, total, None, _PARTIAL)


def classify(error: BaseException) -> AttemptFailed:
    """Return what a foreign filesystem's exception means for a retry."""
    if isinstance(error, FileNotFoundError):
        return Missing("no such object", advice="Check the spelling of the URL and that the object exists")
    for name in ("status", "code", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and status >= _ERROR:
            return refuse_status(status, detail=type(error).__name__)
    if isinstance(error, PermissionError):
        return Final(why(error), advice="Check the credentials in storage_options= (or fs=)")
    if isinstance(error, TimeoutError | ConnectionError | aiohttp.ClientError):
        return Again(why(error))
    if isinstance(error, OSError) and not isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return Again(why(error))
    return Final(why(error), advice="Check the URL and the options it is reached with")


class ForeignLoopAdapter:
    """Makes the attempts on the loop of a filesystem that is the user's own, where alone it works."""

    def __init__(self, adapter: Adapter, loop: asyncio.AbstractEventLoop) -> None:
        self._adapter = adapter
        self._loop = loop

    async def prepare(self) -> None:
        """Make the client on the other loop."""
        await on_loop(self._adapter.prepare(), self._loop)

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Await the attempt on the other loop; cancelling it here cancels it there."""
        return await on_loop(self._adapter.fetch(ask, meter), self._loop)

    async def aclose(self) -> None:
        """Leave the user's filesystem open."""


async def on_loop(coro: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Await a coroutine on another thread's loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, loop))
