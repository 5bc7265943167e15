"""What a query comes down to, kept from when a batch is asked for until its samples are made."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from geostream.dataset.query import GeoSlice, Query
    from geostream.grid import Grid
    from geostream.index import SceneLookup
    from geostream.plan import Request

__all__ = ["Asked", "AskedBefore"]

_KEPT = 4096
"""Queries of the batches in flight."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A query, worked out."""

    query: Query
    """Complete."""
    grid: Grid
    """Its pixels."""
    dates: Sequence[Sequence[int]]
    """Rows of the index to read, of each date where dates are told apart, in the mosaic's order."""
    requests: Mapping[int, Sequence[Request]]
    """What is asked of the reader for each row."""


class AskedBefore:
    """Answers that a later call will want again, once: working out a query takes as long as making its sample."""

    def __init__(self, lookup: SceneLookup) -> None:
        self.lookup = lookup
        """The dataset's index for which they hold."""
        self._kept: OrderedDict[Hashable, Asked] = OrderedDict()

    def keep(self, asked: Asked, query: GeoSlice, *state: Hashable) -> None:
        """Keep an answer that holds for ``query`` while the dataset's ``state`` is this one."""
        key = _key(query)
        if key is not None:
            self._kept[key, state] = asked
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def take(self, query: GeoSlice, *state: Hashable) -> Asked | None:
        """The answer kept for an equal query in the same state, if there is one."""
        return self._kept.pop((_key(query), state), None) if self._kept else None


def _key(query: Any) -> Hashable | None:
    """What equal queries have in common; None for what is none, or holds numbers without a hash (arrays)."""
    parts = query if isinstance(query, tuple | list) else (query,)
    try:
        key = tuple((part.start, part.stop, part.step) for part in parts)  # slices have no hash before Python 3.12
        hash(key)
    except (AttributeError, TypeError):
        return None
    return key
