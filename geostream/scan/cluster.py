"""A scan spread over a Dask cluster: each task reads some files' headers, and makes one partition of the index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream.errors import ConfigError, GeostreamError, NotFoundError
from geostream.index.rows import write_rows
from geostream.index.table import SceneTable
from geostream.scan.parts import read_part
from geostream.transport import scan_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from geostream.index.entry import Entry
    from geostream.transport import Access

__all__ = ["partitions"]

_TASKS_A_THREAD = 4
"""Tasks for each of the cluster's threads, so that all end at about the same time."""
_MOST_FILES = 1000
"""Files of one task, at most."""

Partition = tuple[bytes | str, dict[str, GeostreamError], int]
"""A Parquet file, or the path where it was written; failures by URL; files tried."""


def partitions(
    client: Any,
    entries: Sequence[Entry],
    access: Access,
    folder: str | os.PathLike[str] | None,
    advance: Callable[[int], None],
    *,
    lazy: bool,
) -> Iterator[tuple[SceneTable, dict[str, GeostreamError]]]:
    """The partitions of an index, in the files' order, with the failures of each.

    Args:
        client: a `dask.distributed.Client`.
        entries: the files.
        access: how they are reached; travels to the workers.
        folder: a folder, of a disk that client and workers share, for the partitions; None to send them to the client.
        advance: called with the number of files of each task that ends.
        lazy: as of `read_part`.

    Raises:
        ConfigError: dask.distributed is not installed, or this is not its client.
    """
    try:
        import distributed  # noqa: PLC0415 - optional, and heavy
    except ModuleNotFoundError as error:
        raise ConfigError("client= needs Dask: pip install 'geostream[dask]'") from error
    if not isinstance(client, distributed.Client):
        raise ConfigError(f"client= is a {type(client).__name__}: pass a dask.distributed.Client")
    cluster: Any = client  # distributed's own functions have no type information
    threads = max(1, sum(cluster.nthreads().values()))
    size = min(_MOST_FILES, max(1, -(-len(entries) // (threads * _TASKS_A_THREAD))))
    starts = range(0, len(entries), size)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    places = [None if folder is None else _place(folder, number) for number in range(len(starts))]
    futures = cluster.map(
        _partition,
        [entries[start : start + size] for start in starts],
        places,
        access=access,
        lazy=lazy,
        pure=False,
        key="geostream-scan",
    )
    try:
        results: dict[Any, Partition] = {}
        done: Any = distributed.as_completed
        for future, result in done(futures, with_results=True):
            results[future.key] = result
            advance(result[2])
    except BaseException:
        cluster.cancel(futures)
        raise
    for future in futures:
        made, failures, _ = results.pop(future.key)
        yield _opened(made), failures


def _place(folder: str | os.PathLike[str], number: int) -> str:
    return os.path.abspath(Path(folder) / f"part-{number:05d}.parquet")  # noqa: PTH100 - the workers' folder is another


def _opened(made: bytes | str) -> SceneTable:
    if isinstance(made, bytes):
        return SceneTable.of_bytes(made)
    try:
        return SceneTable.open(made)
    except NotFoundError as error:
        raise ConfigError(
            f"{made}: a worker wrote this partition, and it is not here: parts= must name a folder of a disk that the "
            "workers and this process share; without it, partitions are sent"
        ) from error


def _partition(entries: Sequence[Entry], place: str | None, *, access: Access, lazy: bool) -> Partition:
    """Read a part, in a worker."""
    with scan_session() as session:
        part = read_part(session, entries, access, _ignore, lazy=lazy)
    data = write_rows([part.rows], {})
    if place is None:
        return data.to_pybytes(), part.failures, len(entries)
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).write_bytes(data)
    return place, part.failures, len(entries)


def _ignore() -> None:
    """The client counts whole tasks."""
