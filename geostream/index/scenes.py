"""The scenes of an index by URL, made when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geostream.index.scene import Scene
    from geostream.index.table import SceneTable

__all__ = ["IndexedScenes"]

_KEPT = 4096
"""Scenes kept with their headers unpacked."""


class IndexedScenes(Mapping[str, "Scene"]):
    """Facts about each file, by path or URL: a mapping over the rows of a table, whatever their number."""

    def __init__(self, table: SceneTable) -> None:
        self._table = table
        self._scene = lru_cache(_KEPT)(table.scene)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._table,)

    def __deepcopy__(self, _: object) -> IndexedScenes:
        return self

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {url: row for row, url in enumerate(self._table.column("url").to_pylist())}

    def __getitem__(self, url: str) -> Scene:
        return self._scene(self._rows[url])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, url: object) -> bool:
        return url in self._rows

    def row(self, url: str) -> int:
        """Number of a scene's row in the table."""
        return self._rows[url]
