"""A part of a scan: some files' headers read and put into rows. What a Dask task does, and a single machine too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geostream.errors import GeostreamError
from geostream.index.rows import rows_of
from geostream.index.schema import SCHEMA
from geostream.scan.headers import read_scenes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from geostream.index.entry import Entry
    from geostream.index.scene import Scene
    from geostream.transport import Access, LoopThread

__all__ = ["Part", "read_part"]


@dataclass(frozen=True)
class Part:
    """What came of some of the files."""

    rows: pa.Table
    """Those that could be read, in the columns of an index."""
    failures: dict[str, GeostreamError] = field(default_factory=dict)
    """What went wrong with the others, by URL."""


def read_part(
    session: LoopThread, entries: Sequence[Entry], access: Access, advance: Callable[[], None], *, lazy: bool
) -> Part:
    """Read the headers of files, all at once.

    Args:
        session: where requests are made.
        entries: the files.
        access: how they are reached.
        advance: called after each header.
        lazy: whether what a catalogue describes well enough is not opened.
    """
    waiting = [entry for entry in entries if not (lazy and entry.described is not None)]
    found = session.run(read_scenes([(entry.url, entry.sidecars) for entry in waiting], access, advance))
    read = dict(zip((entry.key for entry in waiting), found, strict=True))
    good: list[tuple[Entry, Scene]] = []
    failures: dict[str, GeostreamError] = {}
    for entry in entries:
        scene = read.get(entry.key, entry.described)
        if isinstance(scene, GeostreamError):
            failures[entry.key] = scene
        elif scene is not None:
            good.append((entry, scene))
    rows = rows_of([e for e, _ in good], [s for _, s in good]) if good else SCHEMA.empty_table()
    return Part(rows, failures)
