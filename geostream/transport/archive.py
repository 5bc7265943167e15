"""Members of zip archives, wherever the archive lies.

A stored member is a range of the archive, so that reading it costs the ranges that are asked for, checked and retried
like any other. A deflated one has no ranges: it is unpacked once, into an unnamed temporary file, while those unpacked
before stay within a limit.
"""

from __future__ import annotations

import asyncio
import io
import os
import struct
import tempfile
import zipfile
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from geostream.errors import NotFoundError, ReadError, redact
from geostream.transport.adapters import pread
from geostream.transport.answer import Body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from geostream.transport.access import Access

__all__ = ["UNPACKED_LIMIT", "Archives", "is_member"]

UNPACKED_LIMIT = 2 * 1024**3
"""Bytes of deflated members that stay unpacked, on each loop."""
_TAIL = 65536 + 22 + 20 + 56
_PIECE = 8 * 1024 * 1024
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1
_PARTIAL = 206

T = TypeVar("T")


class GetRange(Protocol):
    """`geostream.transport.get_range`, which this module cannot import because it is called from there."""

    def __call__(
        self, url: str, access: Access, start: int, stop: int, *, etag: str | None = None
    ) -> Coroutine[Any, Any, Body]:
        """Read a range."""


def is_member(url: str) -> bool:
    """Tell whether a URL is that of a zip member, or of a whole archive to be listed."""
    return url.startswith("zip://") and "::" in url


def split_member(url: str) -> tuple[str, str]:
    """Return the member's name and the archive's URL."""
    first, _, archive = url.partition("::")
    return first.removeprefix("zip://").lstrip("/"), archive


@dataclass(frozen=True, slots=True)
class Directory:
    """An archive's table of contents."""

    members: dict[str, zipfile.ZipInfo]
    """Members by name, folders left out."""
    etag: str | None
    """The archive's ETag when the table was read."""


class Archives:
    """The archives read on one loop: their tables of contents, where members begin, and what was unpacked."""

    def __init__(self, get_range: GetRange) -> None:
        self._get_range = get_range
        self._shared = _Shared()
        self._unpacked: OrderedDict[Hashable, _Unpacked] = OrderedDict()

    async def directory(self, archive: str, access: Access) -> Directory:
        """Return an archive's table of contents, read once."""
        return await self._shared.get(("directory", archive, access), lambda: self._read_directory(archive, access))

    async def get_range(self, url: str, access: Access, start: int, stop: int, etag: str | None) -> Body:
        """Read a range of a member. Its ETag is the archive's."""
        name, archive = split_member(url)
        directory = await self.directory(archive, access)
        info = directory.members.get(name)
        if info is None:
            raise NotFoundError(
                f"{redact(url)}: the archive has no such member. Check the spelling of its name.", url=url
            )
        if start >= info.file_size:
            return _beyond(url, info.file_size, start, directory.etag)
        stop = min(stop, info.file_size)
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & _ENCRYPTED:
            offset = await self._data_offset(archive, access, info, directory.etag)
            found = await self._get_range(archive, access, offset + start, offset + stop, etag=etag or directory.etag)
            return Body(found.bytes, info.file_size, found.etag, found.status)
        unpacked = await self._unpack(url, archive, access, info, directory.etag)
        if etag is not None and etag != directory.etag:
            raise ReadError(f"{redact(url)}: the archive changed while it was being read (its ETag differs).", url=url)
        data = await asyncio.to_thread(pread, unpacked.handle, start, stop - start)
        return Body(data, info.file_size, directory.etag, _PARTIAL)

    async def _read_directory(self, archive: str, access: Access) -> Directory:
        first = await self._get_range(archive, access, 0, 4)
        if first.total is None:
            raise ReadError(
                f"{redact(archive)}: the filesystem does not tell the archive's size. Copy it to one that does.",
                url=archive,
            )
        begin = max(0, first.total - _TAIL)
        tail = _Tail(first.total)
        while True:
            stop = first.total - len(tail.data)
            if stop > begin:
                more = await self._get_range(archive, access, begin, stop, etag=first.etag)
                tail.data = more.bytes + tail.data
            try:
                with zipfile.ZipFile(tail) as opened:
                    return Directory({i.filename: i for i in opened.infolist() if not i.is_dir()}, first.etag)
            except _BeforeTailError as need:
                begin = need.offset
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                words = str(error)
                break
        raise ReadError(f"{redact(archive)}: not a readable zip archive: {words}.", url=archive)

    async def _data_offset(self, archive: str, access: Access, info: zipfile.ZipInfo, etag: str | None) -> int:
        """Return where a member's bytes begin: only the header before them tells, which differs from the table's."""
        key = ("offset", archive, access, info.header_offset)
        return await self._shared.get(key, lambda: self._read_offset(archive, access, info, etag))

    async def _read_offset(self, archive: str, access: Access, info: zipfile.ZipInfo, etag: str | None) -> int:
        begin = info.header_offset
        body = await self._get_range(archive, access, begin, begin + _LOCAL_HEADER.size, etag=etag)
        magic, name, extra = _LOCAL_HEADER.unpack(body.bytes.ljust(_LOCAL_HEADER.size, b"\0"))
        if magic != b"PK\x03\x04":
            raise ReadError(f"{redact(archive)}: the zip archive is damaged at byte {begin}.", url=archive)
        return begin + _LOCAL_HEADER.size + int(name) + int(extra)

    async def _unpack(
        self, url: str, archive: str, access: Access, info: zipfile.ZipInfo, etag: str | None
    ) -> _Unpacked:
        if info.compress_type != zipfile.ZIP_DEFLATED or info.flag_bits & _ENCRYPTED:
            sort = "encrypted" if info.flag_bits & _ENCRYPTED else f"compressed by method {info.compress_type}"
            raise ReadError(f"{redact(url)}: the member is {sort}. Store or deflate it instead.", url=url)
        key = (archive, access, info.header_offset)
        held = self._unpacked.get(key)
        if held is None:
            held = await self._shared.get(
                ("unpacked", *key), lambda: self._read_packed(url, archive, access, info, etag), keep=False
            )
            self._unpacked[key] = held
        self._unpacked.move_to_end(key)
        while len(self._unpacked) > 1 and sum(one.size for one in self._unpacked.values()) > UNPACKED_LIMIT:
            self._unpacked.popitem(last=False)
        return held

    async def _read_packed(
        self, url: str, archive: str, access: Access, info: zipfile.ZipInfo, etag: str | None
    ) -> _Unpacked:
        begin = await self._data_offset(archive, access, info, etag)
        end = begin + info.compress_size
        pieces = await asyncio.gather(
            *(
                self._get_range(archive, access, at, min(at + _PIECE, end), etag=etag)
                for at in range(begin, end, _PIECE)
            )
        )
        unpacked = await asyncio.to_thread(_inflate, [piece.bytes for piece in pieces], info)
        if unpacked is None:
            raise ReadError(
                f"{redact(url)}: the member does not unpack to what the archive says. The archive is damaged.", url=url
            )
        return unpacked


class _Shared:
    """Results that several coroutines wait for and one works out. Failures are not kept."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], *, keep: bool = True) -> T:
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(make())

            def done(task: asyncio.Task[Any]) -> None:
                if task.cancelled() or task.exception() is not None or not keep:
                    self._tasks.pop(key, None)

            task.add_done_callback(done)
        # One waiter that gives up must not take the result from the others.
        result: T = await asyncio.shield(task)
        return result


class _BeforeTailError(Exception):
    """zipfile wants bytes before those that were fetched."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Tail(io.RawIOBase):
    """The end of a file, as if it were all of it."""

    def __init__(self, total: int) -> None:
        self.data = b""
        self._total = total
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._total}[whence]
        if base + offset < 0:
            raise OSError("before the file's beginning")  # zipfile expects this of short files
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._total if size < 0 else min(self._at + size, self._total)
        first = self._total - len(self.data)
        if self._at < first and stop > self._at:
            raise _BeforeTailError(self._at)
        data = self.data[self._at - first : stop - first]
        self._at += len(data)
        return data

    def close(self) -> None:
        """Stay open: the table may have to be tried again with more of the file."""


class _Unpacked:
    """An unpacked member: a temporary file without a name, gone with this object or this process."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size

    def __del__(self) -> None:
        os.close(self.handle)


def _inflate(pieces: list[bytes], info: zipfile.ZipInfo) -> _Unpacked | None:
    """Unpack a deflated member; None where it is not what the archive says."""
    inflater, checksum, size = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
    with tempfile.TemporaryFile(buffering=0) as file:
        try:
            for piece in pieces:
                rest = piece
                while rest:
                    data = inflater.decompress(rest, _PIECE)
                    rest = inflater.unconsumed_tail
                    size += len(data)
                    if size > info.file_size:
                        return None
                    checksum = zlib.crc32(data, checksum)
                    file.write(data)
        except zlib.error:
            return None
        if size != info.file_size or checksum != info.CRC:
            return None
        return _Unpacked(os.dup(file.fileno()), size)


def _beyond(url: str, size: int, start: int, etag: str | None) -> Body:
    if size == 0 and start == 0:
        return Body(b"", 0, etag, _PARTIAL)
    raise ReadError(
        f"{redact(url)}: bytes from {start} could not be read: data past the end of the file, which has {size:,} "
        "bytes. The file is truncated, or its header names offsets it does not hold.",
        url=url,
    )
