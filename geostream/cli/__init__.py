"""The command line: ``geostream index``, ``info``, ``read``, ``demo`` and ``bench``.

Figures go to stdout, everything else to stderr; a failure is one line there and exit code 1, a usage error exit code 2.
What is heavy is imported inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from geostream.cli.arguments import (
    Json,
    StorageOptions,
    Url,
    floats,
    ints,
    join_numbers,
    parse_options,
    resolution,
)
from geostream.cli.collection import describe_index, index, is_index
from geostream.cli.show import WIDE, one_line_errors, plain, report
from geostream.errors import ConfigError, redact

__all__ = ["app", "join_numbers", "main"]

app = typer.Typer(
    name="geostream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``geostream`` command."""
    app(args=join_numbers(sys.argv[1:]))


def _print_version(asked: bool) -> None:
    if asked:
        import geostream as gs

        typer.echo(f"geostream {gs.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read and train on cloud-hosted rasters without making a copy."""


app.command()(index)


@app.command()
def info(
    url: Annotated[str, typer.Argument(metavar="URL_OR_INDEX", help="A raster, or an index (.parquet).")],
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Say what a raster is, how it would be read, or what an index holds; and what finding out cost.

    Examples:
      geostream info https://host/scene.tif

      geostream info naip.parquet --json
    """
    import geostream as gs

    options = parse_options(storage_options)
    with one_line_errors():
        facts = describe_index(url, options) if is_index(url) else plain(gs.info(url, storage_options=options))
    report(facts, redact(url), as_json=as_json)


@app.command()
def read(
    url: Url,
    bounds: Annotated[str | None, typer.Option(help="xmin ymin xmax ymax, in --bounds-crs.")] = None,
    bounds_crs: Annotated[str | None, typer.Option(help="CRS of --bounds; default: --crs.")] = None,
    window: Annotated[str | None, typer.Option(help="col_off row_off width height, instead of --bounds.")] = None,
    crs: Annotated[str | None, typer.Option(help="CRS of the output; default: the file's.")] = None,
    res: Annotated[str | None, typer.Option(help="Pixel size of the output, in its CRS: one number or x y.")] = None,
    shape: Annotated[str | None, typer.Option(help="height width of the output, instead of --res.")] = None,
    bands: Annotated[str | None, typer.Option(help="Bands, the first is 1; default: all.")] = None,
    resampling: Annotated[str, typer.Option(help="nearest, bilinear, cubic or average.")] = "nearest",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .tif (all bands, with mask) or .png.")] = None,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Read a window, by bounds or by pixels, with range requests; optionally onto another grid and into a file.

    Examples:
      geostream read https://host/scene.tif --window 0 0 512 512 -o corner.tif

      geostream read s3://bucket/scene.tif --bounds 11.1 46.9 11.2 47.0 --bounds-crs EPSG:4326 --bands 3 2 1 -o view.png
    """
    how = {
        "bounds": floats("--bounds", bounds, 4),
        "bounds_crs": bounds_crs,
        "window": ints("--window", window, 4),
        "crs": crs,
        "res": resolution(res),
        "shape": ints("--shape", shape, 2),
        "bands": ints("--bands", bands),
        "resampling": resampling,
        "storage_options": parse_options(storage_options),
    }
    import geostream as gs
    from geostream.export import writer

    started = time.perf_counter()
    with one_line_errors(), gs.stats.measure() as used:
        write = None if out is None else writer(out)
        patch = gs.read(url, **how)
        if write is not None:
            write(patch)
    facts: dict[str, Any] = {
        "url": redact(url),
        "out": None if out is None else str(out),
        "shape": list(patch.data.shape),
        "dtype": str(patch.data.dtype),
        "crs": plain(patch.crs),
        "transform": plain(patch.transform),
        "valid": float(patch.valid.mean()),
        "requests": used.requests,
        "bytes": used.bytes,
        "seconds": round(time.perf_counter() - started, 3),
    }
    report(facts, redact(url), as_json=as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for batch.png and footprints.png.")] = Path("geostream-demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 32,
    size: Annotated[int, typer.Option(min=512, help="Height and width of the demo's scenes, in pixels.")] = 3072,
    latency: Annotated[
        float, typer.Option(min=0.0, help="Latency of the demo's object store, in milliseconds.")
    ] = 40.0,
    as_json: Json = False,
) -> None:
    """Train a small model on chips read from COGs behind a slow object store, and compare with GDAL's /vsicurl."""
    with one_line_errors():
        try:
            from geostream.demo.show import run
        except ModuleNotFoundError as error:
            raise ConfigError(f"the demo needs {error.name}: pip install 'geostream[demo]'") from error
        figures = run(out, steps=steps, size=size, latency=latency / 1000)
    if as_json:
        typer.echo(json.dumps(figures))


@app.command()
def bench(
    case: Annotated[str, typer.Option(help="Cases, separated by commas.")] = "a,b,c,d,e,f",
    arms: Annotated[str | None, typer.Option(help="Arms, separated by commas; default: all that can run.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each arm runs, the others in between.")] = 5,
    batches: Annotated[int | None, typer.Option(min=1, help="Batches timed; default: each case's own.")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Batches before those, in arms timed once all runs.")] = 32,
    latency: Annotated[float | None, typer.Option(min=0.0, help="Milliseconds; default: each case's own.")] = None,
    bandwidth: Annotated[float, typer.Option(min=0.001, help="MB a second on each connection.")] = 90.0,
    link: Annotated[float | None, typer.Option(min=0.001, help="MB a second on all connections together.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Of rasterio; default: the best of several.")] = None,
    protocol: Annotated[str, typer.Option(help="How geostream reads: http or s3.")] = "http",
    data: Annotated[Path, typer.Option(help="Folder of the scenes and copies, kept.")] = Path("geostream-bench"),
    scenes: Annotated[int, typer.Option(min=1, help="Number of scenes.")] = 8,
    size: Annotated[int, typer.Option(min=1024, help="Height and width of a scene in pixels.")] = 4096,
    small: Annotated[int, typer.Option(min=16, help="Number of small files.")] = 1000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for the results as JSON.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Profile geostream's arms instead.")] = False,
    as_json: Json = False,
) -> None:
    """Compare reading chips with geostream, with rasterio, and from a copy made beforehand, on one slow server."""
    options = {
        "cases": tuple(case.split(",")),
        "rounds": rounds,
        "batches": batches,
        "skip": skip,
        "latency": None if latency is None else latency / 1e3,
        "bandwidth": bandwidth * 1e6,
        "link": None if link is None else link * 1e6,
        "workers": workers,
        "protocol": protocol,
        "profile": profile,
    }
    if arms is not None:
        options["arms"] = tuple(arms.split(","))
    if protocol not in {"http", "s3"}:
        raise typer.BadParameter(f"{protocol!r}: http or s3 wanted", param_hint="--protocol")
    with one_line_errors():
        from geostream.bench.report import tables
        from geostream.bench.run import Settings, run
        from geostream.bench.scenes import Sizes

        settings = Settings(**options, sizes=Sizes(scenes, size, small))  # type: ignore[arg-type]  # gathered above
        results = run(settings, data, lambda line: typer.echo(line, err=True))
        if out is not None:
            out.write_text(json.dumps(results, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(results))
        return
    from rich.console import Console

    console = Console()
    wide = console if console.is_terminal else Console(width=WIDE)
    for table in tables(results):
        wide.print(table)
