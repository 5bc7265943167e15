"""Headers as bytes and back, for a column of an index: every level, every mask, every tile's place, nothing executable.

A packed header is the deflated join of four parts: the mark ``GSH1``, the length of what follows as 4 bytes
(little-endian), so many bytes of JSON (UTF-8), and the tile tables. For each table, in the order of the JSON's
``tables``, come the tiles' byte counts, then the gap in front of each tile: what its offset exceeds the end of the one
before by, modulo 2**64. Both are unsigned little-endian integers, of 4 bytes where all fit, else 8. A file's tiles
mostly follow each other, so that gaps deflate to almost nothing.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine

from geostream.control import CurvedGrid
from geostream.errors import ConfigError
from geostream.grid import Grid, parse_crs
from geostream.header import Level, MaskKind, RasterHeader, TileCodec, TileTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from pyproj import CRS

__all__ = ["PackedHeader", "pack_header", "unpack_header"]

_MARK = b"GSH1"
_HEAD = struct.Struct("<4sI")
_LIMIT = 2**30
"""Bytes of an unpacked header beyond which it is taken for a mistake, or malice."""
_PLAIN = (
    "driver",
    "reader",
    "reason",
    "count",
    "alpha",
    "compression",
    "predictor",
    "interleave",
    "tags",
    "gcps",
    "total",
    "etag",
)
"""Fields that JSON holds as they are."""
_TUPLES = ("nodata", "block_shape", "descriptions", "colorinterp", "scales", "offsets", "units")
"""Fields that are tuples of such."""


class PackedHeader:
    """A header that is unpacked when it is first wanted.

    Args:
        fetch: gives its bytes; pickles with it.
        crs: of the raster.
        name: of the scene, for messages.
        nodata: what stands for "nothing" in all bands, whatever the file declares.
    """

    def __init__(self, fetch: Callable[[], bytes], crs: CRS | None, name: str, nodata: float | None = None) -> None:
        self._made_of = (fetch, crs, name, nodata)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    @cached_property
    def header(self) -> RasterHeader:
        """The header.

        Raises:
            ConfigError: the bytes are damaged.
        """
        fetch, crs, name, nodata = self._made_of
        header = unpack_header(fetch(), crs, name)
        return header if nodata is None else header.declaring(nodata)

    def declaring(self, nodata: float) -> PackedHeader:
        """The same header as if the file declared ``nodata`` for all bands."""
        return PackedHeader(*self._made_of[:3], nodata)


def pack_header(header: RasterHeader) -> bytes:
    """The bytes of a header, without its CRS, which many scenes share, and without what reading it took."""
    tables = [table for level in header.levels for table in (level.image, level.mask) if table is not None]
    facts: dict[str, Any] = {name: getattr(header, name) for name in (*_PLAIN, *_TUPLES)}
    facts |= {
        "grid": _grid_facts(header.grid),
        "ground": None if header.ground is None else {**_grid_facts(header.ground), "crs": _wkt(header.ground.crs)},
        "dtype": header.dtype.str,
        "mask": header.mask.name,
        "overviews": header.overviews,
        "colormap": None if header.colormap is None else list(header.colormap.items()),
        "levels": [level.mask is not None for level in header.levels],
    }
    parts = []
    described = []
    for table in tables:
        counts, gaps = _narrow(table.counts), _narrow(_gaps(table.offsets, table.counts))
        described.append({**_table_facts(table), "sizes": [len(counts), counts.itemsize, gaps.itemsize]})
        parts += [counts.tobytes(), gaps.tobytes()]
    text = json.dumps({**facts, "tables": described}, separators=(",", ":"), default=_plain_number).encode()
    return zlib.compress(b"".join([_HEAD.pack(_MARK, len(text)), text, *parts]))


def unpack_header(data: bytes, crs: CRS | None, name: str) -> RasterHeader:
    """The header that `pack_header` made into bytes.

    Args:
        data: the bytes.
        crs: of the raster.
        name: of the scene, for messages.

    Raises:
        ConfigError: the bytes are damaged.
    """
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(data, _LIMIT)
        mark, length = _HEAD.unpack_from(raw)
        facts = json.loads(raw[_HEAD.size : _HEAD.size + length])
        header = _header(facts, raw, _HEAD.size + length, crs)
    except (zlib.error, struct.error, ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise ConfigError(
            f"{name}: its header in the index is damaged ({error}): build the index again, or open the file itself"
        ) from error
    if mark != _MARK or not inflater.eof:
        raise ConfigError(f"{name}: its header in the index does not begin, or end, as one does: build the index again")
    return header


def _header(facts: Mapping[str, Any], raw: bytes, at: int, crs: CRS | None) -> RasterHeader:
    tables = []
    for described in facts["tables"]:
        count, wide, gap_wide = described["sizes"]
        counts = np.frombuffer(raw, f"<u{wide}", count, at).astype(np.uint64)
        gaps = np.frombuffer(raw, f"<u{gap_wide}", count, at + count * wide)
        at += count * (wide + gap_wide)
        tables.append(_table(described, _offsets(gaps.astype(np.uint64), counts), counts))
    following = iter(tables)
    levels = tuple(Level(next(following), next(following) if masked else None) for masked in facts["levels"])
    colormap, ground = facts["colormap"], facts["ground"]
    plain: dict[str, Any] = {name: facts[name] for name in _PLAIN} | {name: tuple(facts[name]) for name in _TUPLES}
    return RasterHeader(
        **plain,
        grid=_grid(facts["grid"], crs),
        ground=None if ground is None else _grid(ground, parse_crs(ground["crs"])),
        dtype=np.dtype(facts["dtype"]),
        mask=MaskKind[facts["mask"]],
        overviews=tuple((int(width), int(height)) for width, height in facts["overviews"]),
        colormap=None if colormap is None else {key: tuple(rgba) for key, rgba in colormap},
        levels=levels,
    )


def _grid_facts(grid: Grid) -> dict[str, Any]:
    facts: dict[str, Any] = {"width": grid.width, "height": grid.height, "transform": list(grid.transform[:6])}
    if isinstance(grid, CurvedGrid):
        facts["curve"] = [grid.cols, grid.rows, grid.centre, grid.spread]
    return facts


def _grid(facts: Mapping[str, Any], crs: CRS | None) -> Grid:
    transform = Affine(*facts["transform"])
    if "curve" not in facts:
        return Grid(facts["width"], facts["height"], transform, crs)
    cols, rows, (x, y), (dx, dy) = facts["curve"]
    return CurvedGrid(facts["width"], facts["height"], transform, crs, tuple(cols), tuple(rows), (x, y), (dx, dy))


_CODEC = tuple(field.name for field in fields(TileCodec) if field.name not in {"dtype", "jpeg_tables"})


def _table_facts(table: TileTable) -> dict[str, Any]:
    codec = table.codec
    tables = codec.jpeg_tables
    return {
        "ifd": table.ifd,
        "width": table.width,
        "height": table.height,
        "planes": table.planes,
        "strips": table.strips,
        "codec": {
            **{name: getattr(codec, name) for name in _CODEC},
            "dtype": codec.dtype.str,
            "jpeg_tables": None if tables is None else base64.b64encode(tables).decode(),
        },
    }


def _table(facts: Mapping[str, Any], offsets: NDArray[np.uint64], counts: NDArray[np.uint64]) -> TileTable:
    said = facts["codec"]
    jpeg = said["jpeg_tables"]
    names: dict[str, Any] = {name: tuple(said[name]) if isinstance(said[name], list) else said[name] for name in _CODEC}
    codec = TileCodec(
        **names, dtype=np.dtype(said["dtype"]), jpeg_tables=None if jpeg is None else base64.b64decode(jpeg)
    )
    table = TileTable(
        **{name: facts[name] for name in ("ifd", "width", "height", "planes", "strips")},
        offsets=offsets,
        counts=counts,
        codec=codec,
    )
    if len(counts) < table.planes * table.across * table.down:
        raise ValueError(f"{len(counts)} tiles are not all of image {table.ifd}")
    return table


def _gaps(offsets: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    ends = np.concatenate([np.zeros(1, np.uint64), (offsets + counts)[:-1]])[: len(offsets)]
    gaps: NDArray[np.uint64] = offsets - ends  # wraps around, and so does the way back
    return gaps


def _offsets(gaps: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    steps = gaps.copy()
    steps[1:] += counts[:-1]
    offsets: NDArray[np.uint64] = np.cumsum(steps, dtype=np.uint64)
    return offsets


def _narrow(values: NDArray[np.uint64]) -> NDArray[Any]:
    wide = len(values) > 0 and int(values.max()) >= 2**32
    return values.astype("<u8" if wide else "<u4")


def _wkt(crs: CRS | None) -> str | None:
    return None if crs is None else crs.to_wkt()


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON")
