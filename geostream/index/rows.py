"""From scenes to the rows of an index, and from rows to a Parquet file. Needs pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from geostream.errors import ConfigError
from geostream.header import RasterHeader
from geostream.index.footprint import footprints
from geostream.index.packing import pack_header
from geostream.index.schema import DICTIONARIES, SCHEMA, WGS84, file_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyproj import CRS
    from shapely import Geometry

    from geostream.grid import Grid
    from geostream.index.entry import Entry
    from geostream.index.scene import Scene

__all__ = ["rows_of", "write_rows"]

_GROUP_BYTES = 2**21
"""Bytes of packed headers in a group of rows: what is read and kept when one of them is wanted."""
_GROUP_ROWS = 2**16
_TOLERANCE = 0.25
"""Pixels by which a stored footprint's edge may leave the curve that the projection makes of it."""


def rows_of(entries: Sequence[Entry], scenes: Sequence[Scene]) -> pa.Table:
    """One row a scene, in the columns of `SCHEMA`.

    Args:
        entries: what was known of each file before it was opened.
        scenes: what its header, or a catalogue, says.
    """
    shapes = _footprints([scene.grid for scene in scenes])
    read = [scene.stored if isinstance(scene.stored, RasterHeader) else None for scene in scenes]
    headers = [None if header is None else pack_header(header) for header in read]
    described = _Codes()
    columns: dict[str, Any] = {
        "url": [entry.key for entry in entries],
        "item": [entry.item for entry in entries],
        "asset": [entry.asset for entry in entries],
        "geometry": [None if shape is None else shapely.to_wkb(shape) for shape in shapes],
        "bbox": [None if s is None else dict(zip(_SIDES, s.bounds, strict=True)) for s in shapes],
        "datetime_start": [None if entry.times is None else entry.times[0] for entry in entries],
        "datetime_end": [None if entry.times is None else entry.times[1] for entry in entries],
        "crs": [described.code(scene.grid.crs) for scene in scenes],
        "crs_wkt": [described.wkt(scene.grid.crs) for scene in scenes],
        "transform": [list(scene.grid.transform[:6]) for scene in scenes],
        "curved": [scene.grid.curved for scene in scenes],
        "width": [scene.grid.width for scene in scenes],
        "height": [scene.grid.height for scene in scenes],
        "bands": [scene.count for scene in scenes],
        "band_names": [_band_names(scene) for scene in scenes],
        "dtype": [np.dtype(scene.dtype).name for scene in scenes],
        "nodata": [[None if v is None else float(v) for v in scene.nodata] for scene in scenes],
        "block_height": [scene.block_shape[0] or None for scene in scenes],
        "block_width": [scene.block_shape[1] or None for scene in scenes],
        "all_valid": [scene.all_valid for scene in scenes],
        "size": [_size(entry, scene) for entry, scene in zip(entries, scenes, strict=True)],
        "etag": [None if header is None else header.etag for header in read],
        "listed_etag": [entry.etag for entry in entries],
        "modified": [entry.modified for entry in entries],
        "sidecars": [list(entry.sidecars) for entry in entries],
        "header_size": [None if header is None else len(header) for header in headers],
        "header": headers,
    }
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=False) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_rows(tables: Iterable[pa.Table], about: Mapping[str, Any]) -> pa.Buffer:
    """A Parquet file of the tables' rows, in memory.

    Args:
        tables: rows in the columns of `SCHEMA`.
        about: facts for the file's metadata, in JSON's types.
    """
    schema = SCHEMA.with_metadata(file_metadata(about))
    sink = pa.BufferOutputStream()
    plain = {field.name: "ZSTD" for field in SCHEMA} | {"header": "NONE"}  # headers are deflated one by one
    leaves = {name: compression for name, compression in plain.items() if name not in _NESTED}
    leaves |= {path: "ZSTD" for paths in _NESTED.values() for path in paths}
    with pq.ParquetWriter(sink, schema, compression=leaves, use_dictionary=DICTIONARIES) as writer:
        for portion in _portions(tables):
            writer.write_table(portion.cast(schema), row_group_size=_GROUP_ROWS)
    return sink.getvalue()


_SIDES = ("xmin", "ymin", "xmax", "ymax")
_NESTED = {
    "bbox": [f"bbox.{side}" for side in _SIDES],
    **{name: [f"{name}.list.element"] for name in ("transform", "band_names", "nodata", "sidecars")},
}


def _portions(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The tables' rows in portions whose headers take about `_GROUP_BYTES`."""
    pending: list[pa.Table] = []
    size = rows = 0
    for table in tables:
        ends = np.cumsum(table.column("header_size").fill_null(0).to_numpy(), dtype=np.int64)
        begin = 0
        while begin < len(table):
            before = int(ends[begin - 1]) if begin else 0
            full = int(np.searchsorted(ends, before + _GROUP_BYTES - size)) + 1
            stop = min(full, begin + _GROUP_ROWS - rows, len(table))
            pending.append(table.slice(begin, stop - begin))
            size, rows = size + int(ends[stop - 1]) - before, rows + stop - begin
            if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
                yield pa.concat_tables(pending)
                pending, size, rows = [], 0, 0
            begin = stop
    if pending:
        yield pa.concat_tables(pending)


def _footprints(grids: Sequence[Grid]) -> list[Geometry | None]:
    """Footprints in longitude and latitude; None for what has no place on the earth."""
    numbers = [number for number, grid in enumerate(grids) if grid.crs is not None]
    found: list[Geometry | None] = [None] * len(grids)
    for number, shape in zip(numbers, _carried([grids[number] for number in numbers]), strict=True):
        found[number] = None if shape is None else _simplified(shape, grids[number])
    return found


def _carried(grids: list[Grid]) -> list[Geometry | None]:
    try:
        return [*footprints(grids, WGS84)]
    except ConfigError:
        # Another body's CRS, or one of them lies where there is no longitude.
        return [None] if len(grids) == 1 else [part for grid in grids for part in _carried([grid])]


def _simplified(shape: Geometry, grid: Grid) -> Geometry:
    xmin, ymin, xmax, ymax = shape.bounds
    pixel = min((xmax - xmin) / grid.width, (ymax - ymin) / grid.height)
    return shapely.simplify(shape, _TOLERANCE * pixel)


def _band_names(scene: Scene) -> list[str | None] | None:
    if isinstance(scene.stored, RasterHeader) and any(scene.stored.descriptions):
        return list(scene.stored.descriptions)
    return None


def _size(entry: Entry, scene: Scene) -> int | None:
    total = scene.stored.total if isinstance(scene.stored, RasterHeader) else None
    return entry.size if total is None else total


class _Codes:
    """Names of CRSs, each worked out once: scenes share few, and PROJ takes its time."""

    def __init__(self) -> None:
        self._codes: dict[str, str | None] = {}
        self._texts: dict[str, str] = {}

    def code(self, crs: CRS | None) -> str | None:
        """``EPSG:32632``, where an authority lists the CRS."""
        if crs is None:
            return None
        if crs.srs not in self._codes:
            authority = crs.to_authority()
            self._codes[crs.srs] = None if authority is None else ":".join(authority)
        return self._codes[crs.srs]

    def wkt(self, crs: CRS | None) -> str | None:
        """The CRS in full."""
        if crs is None:
            return None
        if crs.srs not in self._texts:
            self._texts[crs.srs] = crs.to_wkt()
        return self._texts[crs.srs]
