"""The columns of an index file: GeoParquet 1.1, readable by anything that reads that. Needs pyarrow."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyproj import CRS

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DICTIONARIES", "SCHEMA", "VERSION", "WGS84", "check_metadata", "file_metadata"]

VERSION = 1
"""Of the columns' names, types and meanings, packed header included. A reader refuses a higher one than its own."""
WGS84 = CRS.from_epsg(4326)
"""CRS of the column ``geometry``, longitude first."""

_KEY = b"geostream"
_DAMAGED = "build the index again with geostream.build_index"

_BBOX = pa.struct([(name, pa.float64()) for name in ("xmin", "ymin", "xmax", "ymax")])
_TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        ("item", pa.string()),
        ("asset", pa.string()),
        ("geometry", pa.binary()),
        ("bbox", _BBOX),
        ("datetime_start", _TIME),
        ("datetime_end", _TIME),
        ("crs", pa.string()),
        ("crs_wkt", pa.string()),
        ("transform", pa.list_(pa.float64(), 6)),
        ("curved", pa.bool_()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("bands", pa.int32()),
        ("band_names", pa.list_(pa.string())),
        ("dtype", pa.string()),
        ("nodata", pa.list_(pa.float64())),
        ("block_height", pa.int32()),
        ("block_width", pa.int32()),
        ("all_valid", pa.bool_()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("listed_etag", pa.string()),
        ("modified", _TIME),
        ("sidecars", pa.list_(pa.string())),
        ("header_size", pa.int32()),
        ("header", pa.binary()),
    ]
)
"""Names and types of the columns; docs/index-files.md says what they mean."""

DICTIONARIES = ["asset", "crs", "crs_wkt", "dtype"]
"""Columns of few values, kept as numbers that stand for them."""


def file_metadata(about: Mapping[str, Any]) -> dict[bytes, bytes]:
    """What an index file says of itself: GeoParquet's ``geo``, and ``geostream``.

    Args:
        about: further facts, in JSON's types.
    """
    column: dict[str, Any] = {
        "encoding": "WKB",
        "geometry_types": ["Polygon", "MultiPolygon"],
        "crs": WGS84.to_json_dict(),
        "covering": {"bbox": {name: ["bbox", name] for name in ("xmin", "ymin", "xmax", "ymax")}},
    }
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    own = {"version": VERSION, "id": uuid.uuid4().hex, **about}
    return {b"geo": json.dumps(geo).encode(), _KEY: json.dumps(own).encode()}


def check_metadata(metadata: Mapping[bytes, bytes] | None, names: list[str], path: str) -> dict[str, Any]:
    """What an index file says of itself under ``geostream``, once it is clear that this version can read it.

    Args:
        metadata: of the file.
        names: of its columns.
        path: of the file, for messages.

    Raises:
        ConfigError: it is no index, or one of a newer version, or lacks columns.
    """
    try:
        own = json.loads((metadata or {})[_KEY])
        version = int(own["version"])
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path}: not an index that Index.save wrote: {_DAMAGED}; of a list of files, or a stac-geoparquet file, "
            "build_index makes one"
        ) from error
    if version > VERSION:
        raise ConfigError(
            f"{path}: this index has version {version}, and this geostream reads up to version {VERSION}: upgrade "
            "geostream, or build the index again with the version that is to read it"
        )
    missing = [name for name in SCHEMA.names if name not in names]
    if missing:
        raise ConfigError(f"{path}: this index lacks the columns {missing}: {_DAMAGED}")
    return dict(own)
