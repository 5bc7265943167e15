"""The index of a collection: what a scan found, to keep, look up, bring up to date and join. Needs pyarrow."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import geopandas as gpd
import numpy as np

from geostream.errors import ConfigError, GeostreamError
from geostream.index.places import Places, area_of, span_of
from geostream.index.rows import write_rows
from geostream.index.scenes import IndexedScenes
from geostream.index.schema import SCHEMA, WGS84
from geostream.index.table import SceneTable

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from geostream.scan.build import BuildOptions

__all__ = ["Changes", "Index", "joined"]


@dataclass(frozen=True)
class Changes:
    """What an update found."""

    added: tuple[str, ...]
    """URLs of files that were not in the index."""
    changed: tuple[str, ...]
    """URLs of files that are others than those whose headers the index held."""
    gone: tuple[str, ...]
    """URLs that the index held and that are no longer there."""
    kept: int
    """Number of files that are as they were."""


class Index:
    """A scan to keep: which files there are, where and when, and what their headers say, tile tables included.

    Made by `build_index` and `load_index`. It never changes: `update` and `merge` return another. It holds no open
    resource, and nothing secret: URLs without query strings, user names and passwords. It pickles (one that was loaded,
    as its file's path), and a fork shares it.
    """

    def __init__(
        self,
        table: SceneTable,
        failures: Mapping[str, GeostreamError] | None = None,
        changes: Changes | None = None,
    ) -> None:
        self._table = table
        self.failures: Mapping[str, GeostreamError] = dict(failures or {})
        """What went wrong with files that ``on_error="skip"`` left out, by URL; with STAC items, by id."""
        self.changes = changes
        """What `update` found; None where this is not its result."""

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        left_out = f", {len(self.failures)} left out" if self.failures else ""
        return f"<Index of {len(self)} files{left_out}>"

    def __deepcopy__(self, _: object) -> Index:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_table": self._table, "failures": self.failures, "changes": self.changes}

    @property
    def urls(self) -> list[str]:
        """Paths or URLs of the files, row by row."""
        urls: list[str] = self._table.column("url").to_pylist()
        return urls

    @cached_property
    def scenes(self) -> IndexedScenes:
        """Facts about each file, by path or URL; made when they are looked up."""
        return IndexedScenes(self._table)

    @property
    def sources(self) -> list[str] | None:
        """Paths and globs that it was built from; None where it was built from something else, or from very many."""
        return self._table.about.get("sources")

    @property
    def gdf(self) -> gpd.GeoDataFrame:
        """One row a file: all columns of the file format but the packed header; footprints in EPSG:4326."""
        names = [name for name in SCHEMA.names if name not in {"header", "geometry"}]
        frame = self._table.read(columns=names).to_pandas()
        shapes = gpd.GeoSeries.from_wkb(self._table.column("geometry").to_pandas(), crs=WGS84)
        return gpd.GeoDataFrame(frame, geometry=shapes)

    def facts(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Columns of the file format as lists, row by row; docs/index-files.md says what they mean."""
        return {name: self._table.column(name).to_pylist() for name in names}

    def only(self, urls: Container[str]) -> Index:
        """The index of some of the files."""
        mask = np.array([url in urls for url in self.urls], dtype=bool)
        return Index(SceneTable(write_rows(_chosen([self._table], [mask]), {"sources": None})))

    def find(
        self, bounds: Sequence[float] | None = None, time: Any = None, *, crs: Any = "EPSG:4326"
    ) -> NDArray[np.intp]:
        """Rows, ascending, of the files that meet a box and an interval of time.

        The first look-up builds a tree of footprints; processes forked after it share that.

        Args:
            bounds: ``(xmin, ymin, xmax, ymax)``, longitude or easting first; None for everywhere.
            time: first and last instant, both included, as a pair, a slice or a pandas `Interval`; one instant; text
                for all of the year, month, day or second that it names; or None for all times. Files whose time is not
                known are at all times.
            crs: of ``bounds``.

        Raises:
            ConfigError: ``bounds``, ``time`` or ``crs`` is none.
        """
        return self._places.find(area_of(bounds, crs), span_of(time))

    @cached_property
    def _places(self) -> Places:
        return Places(self._table)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a GeoParquet file, for `load_index`. A file that is there is replaced in one step.

        Raises:
            ConfigError: it is a URL, or the file cannot be written.
        """
        if "://" in os.fspath(path):
            raise ConfigError(f"an index is saved to a local path: save it, then upload it to {os.fspath(path)!r}")
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            draft.write_bytes(self._table.data)
            draft.replace(target)
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            raise ConfigError(f"{path}: the index cannot be written there: {error}") from error

    def update(self, urls: Any = None, **options: Unpack[BuildOptions]) -> Index:
        """What `build_index` would return now, by reading the headers of new and changed files only.

        A file has changed if its listing names another ETag, or else another size or time of writing; of a file that is
        not listed, a first byte is fetched to learn its ETag. Files that are no longer there are left out.

        Args:
            urls: what `build_index` was given; None for the paths and globs that the index was built from.
            options: the options of `build_index`.

        Returns:
            The new index; its `changes` say what was added, changed and gone.

        Raises:
            ConfigError: ``urls`` is None, and the index does not know what it was built from.
            GeostreamError: as `build_index` does.
        """
        from geostream.scan.update import updated  # noqa: PLC0415 - it makes indexes

        given = self.sources if urls is None else urls
        if given is None:
            raise ConfigError("this index was not built from paths alone: pass update() what build_index was given")
        return updated(self, given, **options)

    def merge(self, *others: Index) -> Index:
        """One index of the files of several; where they share files, the last one that has them counts."""
        return joined([self, *others], {"sources": _all_sources([self, *others])})


def joined(
    indexes: Sequence[Index],
    about: Mapping[str, Any],
    *,
    failures: Mapping[str, GeostreamError] | None = None,
    changes: Changes | None = None,
) -> Index:
    """One index of the rows of several; of rows with the same URL the last counts.

    Args:
        indexes: whose rows to take, in this order.
        about: facts for the file's metadata.
        failures: of the result, besides those of the indexes.
        changes: of the result.
    """
    last = {url: number for number, index in enumerate(indexes) for url in index.urls}
    kept = [np.array([last[url] == number for url in index.urls], dtype=bool) for number, index in enumerate(indexes)]
    tables = [index._table for index in indexes]  # noqa: SLF001 - of the same class
    data = write_rows(_chosen(tables, kept), about)
    everything = {url: error for index in indexes for url, error in index.failures.items()} | dict(failures or {})
    return Index(SceneTable(data), everything, changes)


def _chosen(tables: Sequence[SceneTable], kept: Sequence[NDArray[np.bool_]]) -> Iterator[pa.Table]:
    for table, mask in zip(tables, kept, strict=True):
        for place, rows in table.groups():
            chosen = mask[place]
            if chosen.any():
                yield rows if chosen.all() else rows.filter(chosen)


def _all_sources(indexes: Iterable[Index]) -> list[str] | None:
    found: list[str] = []
    for index in indexes:
        if index.sources is None:
            return None
        found += index.sources
    return list(dict.fromkeys(found))
