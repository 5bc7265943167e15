"""Decoded tiles that batches share, and those on their way."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

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

    Its end runs no Python: Ctrl-C may arrive in a ``__del__`` or a callback, and Python ignores what is raised there.
    """

    __slots__ = ("__weakref__", "tiles")

    def __init__(self) -> None:
        self.tiles: dict[TileKey, Tile] = {}


class _LentTile(ref["Tile"]):
    """A tile as long as somebody holds it, and under which key."""

    __slots__ = ("key",)
    key: TileKey


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
        self._lent: dict[TileKey, _LentTile] = {}
        self._gone: deque[_LentTile] = deque()
        self._lent_bytes = 0
        self._leases: dict[ref[Lease], int] = {}
        self._ended: deque[ref[Lease]] = deque()
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
            lent = self._lent.get(key)
            return None if lent is None else lent()
        self._tiles.move_to_end(key)
        return tile

    def lend(self, lease: Lease, key: TileKey, tile: Tile) -> None:
        """Have a batch hold a tile, if there is room. Call it with the lock held."""
        while self._ended:
            self._lent_bytes -= self._leases.pop(self._ended.popleft())
        while self._gone:
            gone = self._gone.popleft()
            if self._lent.get(gone.key) is gone:
                del self._lent[gone.key]
        if key not in lease.tiles and self._lent_bytes + tile.nbytes <= self.lent_limit:
            self._lent_bytes += tile.nbytes
            lent = self._lent[key] = _LentTile(tile, self._gone.append)
            lent.key = key
            lease.tiles[key] = tile
            known = ref(lease, self._ended.append)  # equal to others of the same lease, of which the first is kept
            self._leases[known] = self._leases.get(known, 0) + tile.nbytes

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
