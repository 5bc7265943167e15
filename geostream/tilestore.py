"""Decoded tiles that batches share, and those on their way."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from geostream.header import RasterHeader, TileCodec
    from geostream.pipeline import Run
    from geostream.plan import Source, TileKey
    from geostream.transport import Access

    Tile = NDArray[np.generic]

__all__ = ["Lease", "PendingTile", "TileStore"]

_REMEMBERED_VERSIONS = 2**14


class Lease:
    """Decoded tiles that a batch holds until it is delivered, so that batches behind it find them. It ends with itself.

    Its end takes no lock: the garbage collector may bring it about anywhere.
    """

    __slots__ = ("_ended", "tiles")

    def __init__(self) -> None:
        self.tiles: dict[TileKey, Tile] = {}
        self._ended: deque[int] | None = None

    def __del__(self) -> None:
        if self._ended is not None:
            self._ended.append(sum(tile.nbytes for tile in self.tiles.values()))

    def hold(self, key: TileKey, tile: Tile, ended: deque[int]) -> None:
        """Keep a tile; the bytes of all go to ``ended`` in the end."""
        self.tiles[key] = tile
        self._ended = ended


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

    def __init__(self, limit: int, lent_limit: int) -> None:
        self.limit = limit
        """Bytes of decoded tiles to keep at most."""
        self.lent_limit = lent_limit
        """Bytes of decoded tiles that leases may hold together."""
        self.lock = threading.Lock()
        """Guards `pending` and what waits in it."""
        self.pending: dict[TileKey, PendingTile] = {}
        """Tiles being fetched or decoded."""
        self._tiles: OrderedDict[TileKey, Tile] = OrderedDict()
        self._bytes = 0
        self._lent: WeakValueDictionary[TileKey, Tile] = WeakValueDictionary()
        self._lent_bytes = 0
        self._ended: deque[int] = deque()
        self._next = itertools.count()
        self._by_etag: OrderedDict[tuple[str, Access, tuple[str, ...], str], int] = OrderedDict()
        self._by_header: WeakKeyDictionary[RasterHeader, int] = WeakKeyDictionary()

    def number(self, source: Source, header: RasterHeader) -> int:
        """A number that stands for one version of a file: its ETag, or else what was read by the very same header."""
        if header.etag is None:
            return self._by_header.setdefault(header, next(self._next))
        number = self._by_etag.setdefault((source.url, source.access, source.sidecars, header.etag), next(self._next))
        if len(self._by_etag) > _REMEMBERED_VERSIONS:
            self._by_etag.popitem(last=False)  # its tiles are not found again
        return number

    def get(self, key: TileKey) -> Tile | None:
        """A decoded tile, or None. Call it with the lock held."""
        tile = self._tiles.get(key)
        if tile is None:
            return self._lent.get(key)
        self._tiles.move_to_end(key)
        return tile

    def lend(self, lease: Lease, key: TileKey, tile: Tile) -> None:
        """Have a batch hold a tile, if there is room. Call it with the lock held."""
        while self._ended:
            self._lent_bytes -= self._ended.popleft()
        if key not in lease.tiles and self._lent_bytes + tile.nbytes <= self.lent_limit:
            self._lent_bytes += tile.nbytes
            self._lent[key] = tile
            lease.hold(key, tile, self._ended)

    def settle(self, pending: PendingTile, tile: Tile | Exception) -> list[tuple[Run, int]]:
        """Who waits for a tile that is decoded or has failed; once there is nobody, it is pending no longer."""
        with self.lock:
            wanted, pending.wanted = pending.wanted, []
            lease = next((run.lease for run, _ in reversed(wanted) if run.lease is not None), None)
            if lease is not None and not isinstance(tile, Exception):
                self.lend(lease, pending.key, tile)
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
