"""Decoded tiles that batches share, and those on their way."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import numpy as np
    from numpy.typing import NDArray

    from geostream.header import RasterHeader, TileCodec
    from geostream.pipeline import Run
    from geostream.plan import Source, TileKey
    from geostream.transport import Access

    Tile = NDArray[np.generic]

__all__ = ["PendingTile", "TileStore"]

K = TypeVar("K")


class PendingTile:
    """A tile on its way, and who waits for it."""

    __slots__ = ("codec", "key", "wanted")

    def __init__(self, key: TileKey, codec: TileCodec) -> None:
        self.key = key
        self.codec = codec
        self.wanted: list[tuple[Run, int]] = []
        """Runs and the number of the job that needs it; guarded by the store's lock."""


class TileStore:
    """Decoded tiles, the least recently used given up first, and those on their way. Threads share it by its lock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes of decoded tiles to keep at most."""
        self.lock = threading.Lock()
        """Guards `pending` and what waits in it."""
        self.pending: dict[TileKey, PendingTile] = {}
        """Tiles being fetched or decoded."""
        self._tiles: OrderedDict[TileKey, Tile] = OrderedDict()
        self._bytes = 0
        self._next = itertools.count()
        self._by_etag: dict[tuple[str, Access, tuple[str, ...], str], int] = {}
        self._by_header: WeakKeyDictionary[RasterHeader, int] = WeakKeyDictionary()

    def number(self, source: Source, header: RasterHeader) -> int:
        """A number that stands for one version of a file: its ETag, or else what was read by the very same header."""
        if header.etag is None:
            return self._numbered(self._by_header, header)
        return self._numbered(self._by_etag, (source.url, source.access, source.sidecars, header.etag))

    def _numbered(self, numbers: MutableMapping[K, int], key: K) -> int:
        if key not in numbers:
            numbers[key] = next(self._next)
        return numbers[key]

    def get(self, key: TileKey) -> Tile | None:
        """A decoded tile, or None. Call it with the lock held."""
        tile = self._tiles.get(key)
        if tile is not None:
            self._tiles.move_to_end(key)
        return tile

    def settle(self, pending: PendingTile, tile: Tile | Exception) -> list[tuple[Run, int]]:
        """Who waits for a tile that is decoded or has failed; once there is nobody, it is pending no longer."""
        with self.lock:
            wanted, pending.wanted = pending.wanted, []
            if not wanted:
                if self.pending.get(pending.key) is pending:
                    del self.pending[pending.key]
                if not isinstance(tile, Exception):
                    self._put(pending.key, tile)
            return wanted

    def _put(self, key: TileKey, tile: Tile) -> None:
        if tile.nbytes <= self.limit and key not in self._tiles:
            self._tiles[key] = tile
            self._bytes += tile.nbytes
        while self._bytes > self.limit:
            _, dropped = self._tiles.popitem(last=False)
            self._bytes -= dropped.nbytes
