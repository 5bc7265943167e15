"""Where a TIFF keeps its metadata: which byte ranges must be at hand before its header can be parsed."""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import TYPE_CHECKING

from geostream.errors import HeaderError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["ByteRange", "SparseBytes", "SparseFile", "is_tiff", "missing_ranges"]

ByteRange = tuple[int, int]
"""``(start, stop)``, half open."""

MAX_IFDS = 512
"""More image directories than any raster of ours needs; a longer chain is taken for a hostile file."""
MAX_TAGS = 4096
"""More tags than a directory ever holds; libtiff draws its line at the same number."""
MAX_METADATA = 256 * 2**20
"""Bytes of metadata beyond which a header is refused rather than fetched."""

_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TAIL_READ = 2**20


class SparseBytes:
    """The pieces of a remote file that have arrived, addressed by their place in the file."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Size of the whole file in bytes."""
        self._starts: list[int] = []
        self._chunks: list[bytes] = []

    def add(self, start: int, data: bytes) -> None:
        """Keep ``data``, which begins at byte ``start`` of the file; touching pieces become one."""
        if not data:
            return
        pieces = sorted([*zip(self._starts, self._chunks, strict=True), (start, data)], key=lambda piece: piece[0])
        starts, chunks = [pieces[0][0]], [pieces[0][1]]
        for begin, piece in pieces[1:]:
            end = starts[-1] + len(chunks[-1])
            if begin > end:
                starts.append(begin)
                chunks.append(piece)
            elif begin + len(piece) > end:
                chunks[-1] += piece[end - begin :]
        self._starts, self._chunks = starts, chunks

    def has(self, start: int, stop: int) -> bool:
        """Whether every byte of the range is here."""
        return self.get(start, stop) is not None

    def get(self, start: int, stop: int) -> bytes | None:
        """The range's bytes, or None unless all are here."""
        if stop <= start:
            return b""
        i = bisect_right(self._starts, start) - 1
        if i < 0 or self._starts[i] + len(self._chunks[i]) < stop:
            return None
        return self._chunks[i][start - self._starts[i] : stop - self._starts[i]]

    @property
    def prefix(self) -> bytes:
        """What is here from the file's first byte on, without a gap."""
        return self._chunks[0] if self._starts[:1] == [0] else b""

    @property
    def contiguous(self) -> bool:
        """Whether everything that is here is the file's beginning."""
        return self._starts in ([], [0])

    def __len__(self) -> int:
        return sum(map(len, self._chunks))


class SparseFile(RawIOBase):
    """A `SparseBytes` as a file. What has not arrived reads as zeros: parse only what `missing_ranges` has cleared."""

    def __init__(self, buffer: SparseBytes) -> None:
        super().__init__()
        self._buffer = buffer
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Move to ``offset`` from the start, the position or the end."""
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._buffer.total}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, target: Buffer) -> int:
        """Fill ``target`` from the position on, up to the file's end."""
        view = memoryview(target).cast("B")
        start, stop = self._position, min(self._position + len(view), self._buffer.total)
        size = max(0, stop - start)
        found = self._buffer.get(start, start + size)
        view[:size] = bytes(size) if found is None else found
        self._position += size
        return size


def is_tiff(head: bytes) -> bool:
    """Whether these first bytes are those of a classic or BigTIFF file, either byte order."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one TIFF flavour lays out its directories."""

    order: str
    """``<`` or ``>``."""
    big: bool
    """BigTIFF."""

    @property
    def count_size(self) -> int:
        return 8 if self.big else 2

    @property
    def entry_size(self) -> int:
        return 20 if self.big else 12

    @property
    def offset_size(self) -> int:
        return 8 if self.big else 4

    def offset(self, data: bytes, at: int = 0) -> int:
        return int(struct.unpack_from(f"{self.order}{'Q' if self.big else 'L'}", data, at)[0])

    def count(self, data: bytes) -> int:
        return int(struct.unpack_from(f"{self.order}{'Q' if self.big else 'H'}", data)[0])

    def value_ranges(self, entries: bytes) -> Iterator[ByteRange]:
        """Byte ranges of the tag values that do not fit into their directory entry."""
        head, fmt = (4, "Q") if self.big else (4, "L")
        for at in range(0, len(entries), self.entry_size):
            _, kind = struct.unpack_from(f"{self.order}HH", entries, at)
            (count,) = struct.unpack_from(f"{self.order}{fmt}", entries, at + head)
            size = count * _TYPE_SIZES.get(kind, 0)
            if size > self.offset_size:
                start = self.offset(entries, at + self.entry_size - self.offset_size)
                yield start, start + size


def missing_ranges(buffer: SparseBytes) -> list[ByteRange]:
    """Byte ranges to fetch next before the header in ``buffer`` can be parsed; empty once all metadata is there.

    Follows the chain of image directories as far as it is known, and asks for everything it can already name, plus
    what probably lies behind it: a COG's directories stand one after the other before the pixels, so that thrice the
    extent of the first tile table covers the overviews' and the masks'; directories at the file's end are read to it.

    Raises:
        HeaderError: the chain loops, or is larger than any raster's.
        TruncatedError: a directory or a tag's value lies past the end of the file.
    """
    head = buffer.get(0, min(16, buffer.total)) or b""
    layout = _layout(head)
    wanted: list[ByteRange] = []
    extent, metadata, seen = 0, 0, set[int]()
    offset = layout.offset(head, 8 if layout.big else 4)
    while offset:
        if offset in seen or len(seen) >= MAX_IFDS:
            raise HeaderError(f"its image directories form a loop or number more than {MAX_IFDS}")
        seen.add(offset)
        directory = _directory(buffer, layout, offset)
        if isinstance(directory, tuple):
            wanted.append(_guess(buffer, directory, extent, metadata))
            break
        values = list(layout.value_ranges(directory[: -layout.offset_size]))
        _check(values, buffer.total)
        metadata += sum(stop - start for start, stop in values)
        if metadata > MAX_METADATA:
            raise HeaderError(f"more than {MAX_METADATA} bytes of metadata")
        wanted += [value for value in values if not buffer.has(*value)]
        extent = max([extent, *(stop for _, stop in values)])
        offset = layout.offset(directory, len(directory) - layout.offset_size)
    if wanted and extent > len(buffer.prefix) and wanted[0][0] <= 2 * len(buffer.prefix):
        # Tables follow the first directory: what comes after them is most likely more of the same.
        wanted.append((len(buffer.prefix), min(buffer.total, 3 * extent + 2**14)))
    return _merge(wanted)


def _layout(head: bytes) -> _Layout:
    if not is_tiff(head):
        raise HeaderError("it does not begin as a TIFF does")
    layout = _Layout("<" if head[:1] == b"I" else ">", head[2:4] in (b"+\0", b"\0+"))
    if len(head) < (16 if layout.big else 8):
        raise TruncatedError("the file ends within its first 16 bytes")
    return layout


def _directory(buffer: SparseBytes, layout: _Layout, offset: int) -> bytes | ByteRange:
    """Entries and next-directory pointer of the directory at ``offset``, or the range that is not here yet."""
    start = offset + layout.count_size
    _check([(offset, start)], buffer.total)
    count = buffer.get(offset, start)
    if count is None:
        return offset, start
    tags = layout.count(count)
    if not 0 < tags <= MAX_TAGS:
        raise HeaderError(f"a directory with {tags} tags")
    stop = start + tags * layout.entry_size + layout.offset_size
    _check([(start, stop)], buffer.total)
    return buffer.get(start, stop) or (offset, stop)


def _guess(buffer: SparseBytes, first: ByteRange, extent: int, metadata: int) -> ByteRange:
    """The range to fetch for a directory that begins at ``first`` and whose values most likely follow it.

    Args:
        buffer: what is here.
        first: the part of the directory that is known to be missing.
        extent: where the values known so far end.
        metadata: their number of bytes: further directories are of images as large at most.
    """
    start, stop = first
    if buffer.total - start <= _TAIL_READ and start > 2 * max(extent, len(buffer.prefix)):
        return start, buffer.total
    return start, min(buffer.total, max(stop, start + 2**15, start + metadata))


def _check(ranges: list[ByteRange], total: int) -> None:
    for start, stop in ranges:
        if stop > total:
            raise TruncatedError(f"its metadata at bytes {start}-{stop} lies past the end of the file ({total} bytes)")


def _merge(ranges: list[ByteRange], gap: int = 2**16) -> list[ByteRange]:
    merged: list[ByteRange] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
