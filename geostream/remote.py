"""A remote file for GDAL's eyes: small reads from a cache of blocks, large ones fetched together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geostream.ifd import ByteRange

__all__ = ["FetchRanges", "RemoteFile"]

BLOCK = 2**15
"""Bytes fetched around a small read: GDAL reads metadata a few bytes at a time."""
_MAX_BLOCKS = 128
_MOST_AHEAD = 32
"""Blocks fetched together at most where GDAL reads on and on, as it does through a PNG."""


class FetchRanges(Protocol):
    """Reads byte ranges of one file, all in flight together; blocks the calling thread."""

    def __call__(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Bytes of each range."""


class RemoteFile:
    """A file whose bytes are fetched on demand; a `geostream.opener.ByteSource`. Threads may share it."""

    def __init__(self, fetch: FetchRanges, total: int, head: bytes = b"") -> None:
        self.total = total
        """Size in bytes."""
        self._fetch = fetch
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._next = 0
        self._followed = 0
        whole = len(head) if len(head) == total else len(head) - len(head) % BLOCK
        for start in range(0, whole, BLOCK):
            self._blocks[start] = head[start : min(start + BLOCK, whole)]

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Bytes of each range; ranges of at most a block come from cached blocks, what is missing in one call."""
        # What lies past the end is left to `fetch`, which says so.
        small = {i: span for i, span in enumerate(ranges) if span[1] - span[0] <= BLOCK and span[1] <= self.total}
        blocks = self._load({b for start, stop in small.values() for b in range(start - start % BLOCK, stop, BLOCK)})
        large = [span for i, span in enumerate(ranges) if i not in small]
        fetched = iter(self._fetch(large) if large else [])
        return [_cut(blocks, *small[i]) if i in small else next(fetched) for i in range(len(ranges))]

    def _load(self, starts: set[int]) -> dict[int, bytes]:
        with self._lock:
            found = {start: self._blocks[start] for start in starts if start in self._blocks}
            for start in found:
                self._blocks.move_to_end(start)
        missing = sorted(starts - found.keys())
        if missing:
            fetched = self._fetch_blocks(missing)
            found |= fetched
            with self._lock:
                self._blocks.update(fetched)
                while len(self._blocks) > _MAX_BLOCKS:
                    self._blocks.popitem(last=False)
        return found

    def _fetch_blocks(self, starts: list[int]) -> dict[int, bytes]:
        """Blocks by their starts; from the second time on that they follow the last ones, ever more after them."""
        with self._lock:
            self._followed = self._followed + 1 if starts[0] == self._next > 0 else 0
            ahead = min(2 ** max(0, self._followed - 1), _MOST_AHEAD)
            last = min(starts[-1] + ahead * BLOCK, self.total + -self.total % BLOCK)
            self._next = last
        spans = [(start, min(start + BLOCK, self.total)) for start in starts[:-1]]
        pieces = self._fetch([*spans, (starts[-1], min(last, self.total))])
        run = pieces[-1]
        blocks = dict(zip(starts[:-1], pieces[:-1], strict=True))
        return blocks | {starts[-1] + at: run[at : at + BLOCK] for at in range(0, len(run), BLOCK)}


def _cut(blocks: dict[int, bytes], start: int, stop: int) -> bytes:
    first = start - start % BLOCK
    joined = b"".join(blocks[b] for b in range(first, stop, BLOCK))
    return joined[start - first : stop - first]
