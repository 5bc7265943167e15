"""Scenes in the columns of a Parquet file that stays where it is: mapped, or in memory. Needs pyarrow."""

from __future__ import annotations

import mmap
import os
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from affine import Affine

from geostream.errors import ConfigError, NotFoundError
from geostream.grid import Grid, parse_crs, same_crs
from geostream.index.packing import PackedHeader
from geostream.index.scene import Scene
from geostream.index.schema import DICTIONARIES, SCHEMA, check_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyproj import CRS

__all__ = ["SceneTable"]

_GROUPS_KEPT = 16
"""Row groups whose headers are kept at hand, of a few MB each."""


class SceneTable:
    """The rows of an index. Never changes; a copy is itself, and a fork shares it.

    Columns are decoded as a whole when first used, and kept; headers by groups of rows, of which a few are kept.

    Args:
        data: bytes of the Parquet file.
        path: where the file lies, so that a pickle needs to hold its path only; None if its bytes are nowhere else.
        name: of the file, for messages.

    Raises:
        ConfigError: it is no index, or one of a newer version.
    """

    def __init__(self, data: pa.Buffer, path: str | None = None, name: str = "index") -> None:
        self._data = data
        self._path = path
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{name}: not an index that Index.save wrote: {error}") from error
        names = self._metadata.schema.to_arrow_schema().names
        self.about: dict[str, Any] = check_metadata(self._metadata.metadata, names, name)
        """What the file says of itself."""
        self._columns: dict[str, pa.Array] = {}
        groups = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)
        self._headers_of = lru_cache(_GROUPS_KEPT)(self._read_headers)
        self._crs_of = lru_cache(None)(parse_crs)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SceneTable:
        """Map a file.

        Raises:
            NotFoundError: there is no such file.
            ConfigError: it is no index, or one of a newer version.
        """
        place = os.path.abspath(path)  # noqa: PTH100 - a spelling, not a look at the disk
        try:
            with open(place, "rb") as file:  # noqa: PTH123 - mapped, not read
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{path}: there is no such index: make one with build_index(…).save({os.fspath(path)!r})"
            ) from error
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ConfigError(f"{path}: not an index that Index.save wrote: {error}") from error
        return cls(pa.py_buffer(mapped), place, os.fspath(path))

    @classmethod
    def of_bytes(cls, data: bytes, name: str = "index") -> SceneTable:
        """A file that is in memory already.

        Raises:
            ConfigError: it is no index, or one of a newer version.
        """
        return cls(pa.py_buffer(data), name=name)

    def __len__(self) -> int:
        return int(self._metadata.num_rows)

    def __copy__(self) -> SceneTable:
        return self

    def __deepcopy__(self, _: object) -> SceneTable:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is None:
            return SceneTable.of_bytes, (self._data.to_pybytes(),)
        return _from_path, (self._path, self.about.get("id"))

    @property
    def data(self) -> pa.Buffer:
        """Bytes of the Parquet file."""
        return self._data

    def column(self, name: str) -> pa.Array:
        """A whole column; those of few values as dictionaries."""
        if name not in self._columns:
            table = self._file().read(columns=[name], use_threads=False)
            self._columns[name] = _whole(table.column(name))
        return self._columns[name]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Number of each file's row, by its path or URL."""
        # Not by `column`, which would keep them a second time.
        urls = self.read(columns=["url"]).column("url").to_numpy().tolist()
        return dict(zip(urls, range(len(urls)), strict=True))

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of numbers or times (microseconds since 1970); nulls are NaN, or NaT as -2**63."""
        column = self.column(name)
        if pa.types.is_timestamp(column.type):
            filled = column.cast(pa.int64()).fill_null(np.iinfo(np.int64).min)
            times: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
            return times
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values

    def boxes(self) -> NDArray[np.float64]:
        """(n, 4) float64: xmin, ymin, xmax, ymax of the footprints, longitude first; NaN where there is none."""
        struct = self.column("bbox")
        sides = [struct.field(i) for i in range(4)]
        stacked = np.column_stack([side.to_numpy(zero_copy_only=False) for side in sides])
        stacked[~np.asarray(struct.is_valid())] = np.nan
        return stacked.astype(np.float64)

    def transforms(self) -> NDArray[np.float64]:
        """(n, 6) float64: a, b, c, d, e, f of the scenes' affine transforms."""
        flat: NDArray[np.float64] = self.column("transform").flatten().to_numpy()
        return flat.reshape(-1, 6)

    def read(self, groups: list[int] | None = None, columns: list[str] | None = None) -> pa.Table:
        """Rows as an Arrow table, header included, plain strings where `column` gives dictionaries."""
        file = pq.ParquetFile(pa.BufferReader(self._data), metadata=self._metadata)
        names = SCHEMA.names if columns is None else columns
        if groups is None:
            return file.read(columns=names, use_threads=False)
        return file.read_row_groups(groups, columns=names, use_threads=False)

    def groups(self) -> Iterator[tuple[slice, pa.Table]]:
        """The rows a group at a time: their place among all, and an Arrow table of them."""
        for group in range(self._metadata.num_row_groups):
            yield slice(int(self._starts[group]), int(self._starts[group + 1])), self.read([group])

    def header(self, row: int) -> bytes | None:
        """The packed header of one row; None where it was not read yet."""
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        value = self._headers_of(group)[row - int(self._starts[group])].as_py()
        return None if value is None else bytes(value)

    def crs(self, row: int) -> CRS | None:
        """CRS of one row."""
        text = self.column("crs_wkt")[row].as_py()
        return None if text is None else self._crs_of(text)

    def lies_in(self, crs: CRS | None) -> NDArray[np.bool_]:
        """(n,) bool: which rows' coordinates are coordinates in ``crs``."""
        column = self.column("crs_wkt")
        texts = [*column.dictionary.to_pylist(), None]  # the last one stands for nulls
        same = np.array([same_crs(None if t is None else self._crs_of(t), crs) for t in texts], dtype=bool)
        found: NDArray[np.bool_] = same[column.indices.fill_null(len(texts) - 1).to_numpy()]
        return found

    def scene(self, row: int, url: str) -> Scene:
        """The row of a file as a scene, whose header is unpacked when it is first looked at.

        Raises:
            ConfigError: the row is damaged.
        """
        facts = {name: self.column(name)[row].as_py() for name in _SCENE_COLUMNS}
        crs = self.crs(row)
        stored = None
        if facts["header_size"] is not None:
            # A raster that control points place has no CRS of its own.
            stored = PackedHeader(_HeaderAt(self, row), None if facts["curved"] else crs, url)
        grid = Grid(facts["width"], facts["height"], Affine(*facts["transform"]), crs)
        if facts["curved"] and stored is not None:
            grid = stored.header.ground or grid
        return Scene(
            url=url,
            sidecars=tuple(facts["sidecars"] or ()),
            grid=grid,
            count=facts["bands"],
            dtype=np.dtype(facts["dtype"]),
            nodata=tuple(facts["nodata"]),
            stored=stored,
            block_shape=(facts["block_height"] or 0, facts["block_width"] or 0),
            all_valid=bool(facts["all_valid"]),
        )

    def _read_headers(self, group: int) -> pa.Array:
        table = self._file().read_row_group(group, columns=["header"], use_threads=False)
        return _whole(table.column("header"))

    def _file(self) -> pq.ParquetFile:
        # Made anew each time: it holds nothing but memory, so that forks need not share it.
        source = pa.BufferReader(self._data)
        return pq.ParquetFile(source, metadata=self._metadata, read_dictionary=DICTIONARIES)


_SCENE_COLUMNS = (
    "sidecars",
    "curved",
    "width",
    "height",
    "transform",
    "bands",
    "dtype",
    "nodata",
    "block_height",
    "block_width",
    "all_valid",
    "header_size",
)


class _HeaderAt:
    """Fetches the packed header of one row."""

    def __init__(self, table: SceneTable, row: int) -> None:
        self._table = table
        self._row = row

    def __call__(self) -> bytes:
        return self._table.header(self._row) or b""


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def _from_path(path: str, identity: str | None) -> SceneTable:
    table = SceneTable.open(path)
    if table.about.get("id") != identity:
        raise ConfigError(f"{path}: this index was replaced by another since it was loaded: load it again")
    return table
