"""``geostream index``, and what ``geostream info`` says of an index."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geostream.cli.arguments import Json, StorageOptions, parse_options
from geostream.cli.show import one_line_errors, report
from geostream.errors import ConfigError, redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geostream.accounting import Stats
    from geostream.scan.index import Index

__all__ = ["describe_index", "index", "is_index"]

Urls = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="URL...",
        help="Folders, globs, files, or documents that name them (.json and .parquet of STAC, tables of URLs).",
    ),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The index, a .parquet file.", show_default=False)
]
_WRITTEN_AS = "%Y-%m-%dT%H:%M:%SZ"


def index(
    out: Out,
    urls: Urls = None,
    stac: Annotated[
        bool, typer.Option("--stac", help="URLs are STAC items or ItemCollections, whatever their names end in.")
    ] = False,
    asset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Asset of STAC items, by name or role; may be repeated.")
    ] = None,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Open no file that STAC describes fully; read its header at first use.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Bring FILE up to date: read the headers of new and changed files only.")
    ] = False,
    glob: Annotated[str, typer.Option(help="What the names of listed files must match.")] = "*",
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out files that cannot be read, and name them; exit code 3.")
    ] = False,
    sidecars: Annotated[bool, typer.Option("--sidecars", help="Ask for masks beside lone files.")] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Scan a collection once, so that datasets open it without a request.

    Headers are read many at once, one request each, and kept in a GeoParquet file that geopandas and DuckDB read too.

    Examples:
      geostream index 's3://bucket/naip/**/*.tif' -o naip.parquet --storage-options '{"anon": true}'

      geostream index items.json --asset visual -o s2.parquet

      geostream index -o naip.parquet --update

    Then, in Python: NAIP(index=geostream.load_index("naip.parquet"))
    """
    options: dict[str, Any] = {
        "storage_options": parse_options(storage_options),
        "filename_glob": glob,
        "assets": asset or None,
        "headers": "lazy" if lazy else "read",
        "sidecars": sidecars,
        "on_error": "skip" if skip_errors else "raise",
        "progress": sys.stderr.isatty() and not as_json,
    }
    if not urls and not update:
        raise typer.BadParameter("nothing to scan: name folders, globs, files or STAC documents", param_hint="URL...")
    import geostream as gs

    started = time.perf_counter()
    with one_line_errors(), gs.stats.measure() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what is left out is named below
        given = _documents(urls or [], options["storage_options"]) if stac else urls
        found = gs.load_index(out).update(given or None, **options) if update else gs.build_index(given, **options)
        found.save(out)
    report(_figures(found, out, used, time.perf_counter() - started), str(out), as_json=as_json)
    for url, error in found.failures.items():
        typer.echo(f"geostream: left out {redact(url)}: {' '.join(str(error).split())}", err=True)
    if found.failures:
        raise typer.Exit(3)


def _figures(found: Index, out: Path, used: Stats, seconds: float) -> dict[str, Any]:
    changes = found.changes
    update = (
        {}
        if changes is None
        else {
            "added": len(changes.added),
            "changed": len(changes.changed),
            "gone": len(changes.gone),
            "kept": changes.kept,
        }
    )
    return {
        "out": str(out),
        "files": len(found),
        **update,
        "left_out": len(found.failures),
        "index_bytes": out.stat().st_size,
        "requests": used.requests,
        "bytes": used.bytes,
        "seconds": round(seconds, 3),
    }


def _documents(urls: Sequence[str], storage_options: Any) -> list[Any]:
    """STAC documents, fetched and parsed."""
    from geostream.scan.documents import read_document
    from geostream.transport import Access, normalize_url, scan_session

    access = Access(storage_options)
    found = []
    with scan_session() as session:
        for url in urls:
            content = read_document(session, normalize_url(url, access), access)
            try:
                found.append(json.loads(content))
            except ValueError as error:
                raise ConfigError(f"{redact(url)} is no STAC document: not JSON: {error}", url=url) from None
    return found


def is_index(url: str) -> bool:
    """Whether ``url`` is that of an index rather than of a raster."""
    return redact(url).endswith((".parquet", ".geoparquet")) or Path(url).is_dir()


def describe_index(url: str, storage_options: Any) -> dict[str, Any]:
    """What an index holds, and what finding out cost.

    Raises:
        GeostreamError: it is none, or cannot be had.
    """
    import geostream as gs

    with gs.stats.measure() as used:
        found = gs.load_index(url, storage_options=storage_options)
        names = ["crs", "dtype", "bands", "size", "datetime_start", "datetime_end", "header_size"]
        facts = found.facts(names)
        boxes = [box for box in found.facts(["bbox"])["bbox"] if box is not None]
    starts, ends = ([t for t in facts[name] if t is not None] for name in ("datetime_start", "datetime_end"))
    sizes = [size for size in facts["size"] if size is not None]
    return {
        "url": redact(url),
        "files": len(found),
        "bounds": _around(boxes),
        "first": min(starts).strftime(_WRITTEN_AS) if starts else None,
        "last": max(ends).strftime(_WRITTEN_AS) if ends else None,
        "crs": _counted(facts["crs"]),
        "dtypes": _counted(facts["dtype"]),
        "bands": _counted(facts["bands"]),
        "headers": sum(size is not None for size in facts["header_size"]),
        "file_bytes": sum(sizes) if sizes else None,
        "sources": [redact(source) for source in found.sources or []],
        "requests": used.requests,
        "bytes": used.bytes,
    }


def _around(boxes: Sequence[dict[str, float]]) -> list[float] | None:
    """Box around boxes, in degrees: xmin, ymin, xmax, ymax."""
    if not boxes:
        return None
    least, most = ("xmin", "ymin"), ("xmax", "ymax")
    return [min(b[name] for b in boxes) for name in least] + [max(b[name] for b in boxes) for name in most]


def _counted(values: Sequence[Any]) -> dict[str, int]:
    """How often each value occurs, the most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        counts[str(value)] = counts.get(str(value), 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
