"""What geostream did: requests, bytes, tiles and waits of this process, and of workers that report back."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Stats", "StatsRegistry", "stats"]


@dataclass(slots=True)
class Stats:
    """Counters. Subtract two snapshots to see what happened in between."""

    requests: int = 0
    """Requests sent, each attempt counted, whatever came of it."""
    bytes: int = 0
    """Body bytes received, those of failed attempts and of error answers included."""
    useful_bytes: int = 0
    """Compressed bytes of the unique tiles needed."""
    retries: int = 0
    """Attempts after the first."""
    hedges: int = 0
    """Second requests sent because the first was slow."""
    tiles: int = 0
    """Tiles decoded."""
    cache_hits: int = 0
    """Tiles that were already decoded."""
    skipped: int = 0
    """Scenes left out by ``on_error="skip"``."""
    filled: int = 0
    """Scenes replaced by fill values by ``on_error="fill"``."""
    network_seconds: float = 0.0
    """Seconds spent waiting for answers, summed over concurrent requests."""
    decode_seconds: float = 0.0
    """Seconds spent decoding tiles, summed over threads."""
    warp_seconds: float = 0.0
    """Seconds spent resampling, summed over threads."""

    @property
    def tiles_decoded(self) -> int:
        """The same as `tiles`, spelt out."""
        return self.tiles

    def as_dict(self) -> dict[str, float]:
        """Plain dictionary, for JSON."""
        return asdict(self)

    def __sub__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})


class StatsRegistry:
    """The process's counters: call it for a snapshot, `measure` a stretch, `add` to them from any thread."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child starts from zero: its counts travel back with its batches, and must not repeat the parent's.
        self._lock = threading.Lock()
        self._total = Stats()

    def __call__(self) -> Stats:
        """Snapshot of the counters since the process began."""
        with self._lock:
            return Stats(**asdict(self._total))

    def add(self, **counts: float) -> None:
        """Add to counters by name."""
        with self._lock:
            for name, count in counts.items():
                setattr(self._total, name, getattr(self._total, name) + count)

    @contextmanager
    def measure(self) -> Iterator[Stats]:
        """Yield a record that holds, once the block is left, what the process did within it."""
        measured, before = Stats(), self()
        try:
            yield measured
        finally:
            for name, count in (self() - before).as_dict().items():
                setattr(measured, name, count)


stats = StatsRegistry()
"""The one registry of this process, public as ``gs.stats``."""
