"""The command line: ``geostream info``, ``geostream read``, ``geostream demo`` and ``geostream bench``.

Figures go to stdout, everything else to stderr; a failure is one line there and exit code 1, a usage error exit code 2.
What is heavy is imported inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from affine import Affine

from geostream.errors import ConfigError, GeostreamError, redact

__all__ = ["app", "join_numbers", "main"]

app = typer.Typer(
    name="geostream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

NUMBERS = {"--bounds": 4, "--window": 4, "--shape": 2, "--res": 2, "--bands": sys.maxsize}
"""Options of several numbers, and how many at most: ``--bounds 1 2 3 4`` and ``--bounds 1,2,3,4`` mean the same."""

_MANY = 12
"""Entries of a mapping, such as a palette, beyond which a table only says how many there are."""

_WIDE = 120
"""Columns of what goes into a file."""

Url = Annotated[str, typer.Argument(metavar="URL", help="A local path or any fsspec URL: s3://, gs://, https://, …")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout.")]
StorageOptions = Annotated[
    str | None, typer.Option(metavar="JSON", help="""Options for fsspec, such as '{"anon": true}'.""")
]


def main() -> None:
    """Entry point of the ``geostream`` command."""
    app(args=join_numbers(sys.argv[1:]))


def join_numbers(arguments: Sequence[str]) -> list[str]:
    """Join the numbers that follow an option of `NUMBERS` into one comma-separated value."""
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        joined.append(option)
        values: list[str] = []
        while rest and len(values) < NUMBERS.get(option, 0) and _is_number(rest[0]):
            values.append(rest.pop(0))
        if values:
            joined.append(",".join(values))
    return joined


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


@app.command()
def info(url: Url, storage_options: StorageOptions = None, as_json: Json = False) -> None:
    """Say what a raster is, how it would be read, and what finding out cost."""
    import geostream as gs

    with _one_line_errors():
        facts = _plain(gs.info(url, storage_options=_parse_options(storage_options)))
    _report(facts, redact(url), as_json=as_json)


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
    """Read a window, by bounds or by pixels, with range requests; optionally onto another grid and into a file."""
    how = {
        "bounds": _floats("--bounds", bounds, 4),
        "bounds_crs": bounds_crs,
        "window": _ints("--window", window, 4),
        "crs": crs,
        "res": _resolution(res),
        "shape": _ints("--shape", shape, 2),
        "bands": _ints("--bands", bands),
        "resampling": resampling,
        "storage_options": _parse_options(storage_options),
    }
    import geostream as gs
    from geostream.export import writer

    started = time.perf_counter()
    with _one_line_errors(), gs.stats.measure() as used:
        write = None if out is None else writer(out)
        patch = gs.read(url, **how)
        if write is not None:
            write(patch)
    facts: dict[str, Any] = {
        "url": redact(url),
        "out": None if out is None else str(out),
        "shape": list(patch.data.shape),
        "dtype": str(patch.data.dtype),
        "crs": _plain(patch.crs),
        "transform": _plain(patch.transform),
        "valid": float(patch.valid.mean()),
        "requests": used.requests,
        "bytes": used.bytes,
        "seconds": round(time.perf_counter() - started, 3),
    }
    _report(facts, redact(url), as_json=as_json)


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
    with _one_line_errors():
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
    with _one_line_errors():
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
    wide = console if console.is_terminal else Console(width=_WIDE)
    for table in tables(results):
        wide.print(table)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn what a user can do something about into one line on stderr and exit code 1."""
    try:
        yield
    except (GeostreamError, OSError) as error:
        typer.echo(f"geostream: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _floats(option: str, text: str | None, count: int | None = None) -> Any:
    """The numbers in ``text`` as a tuple of floats; None for None. Any: `gs.read` checks what they mean."""
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        values = ()
    if not values or (count is not None and len(values) != count):
        wanted = f"{count} numbers" if count else "numbers"
        raise typer.BadParameter(f"{text!r}: {wanted} wanted, separated by spaces or commas", param_hint=option)
    return values


def _ints(option: str, text: str | None, count: int | None = None) -> Any:
    values = _floats(option, text, count)
    if values is None:
        return None
    if any(value != int(value) for value in values):
        raise typer.BadParameter(f"{text!r}: whole numbers wanted", param_hint=option)
    return tuple(int(value) for value in values)


def _resolution(text: str | None) -> Any:
    values = _floats("--res", text)
    if values is not None and len(values) > NUMBERS["--res"]:
        raise typer.BadParameter(f"{text!r}: one number or two wanted", param_hint="--res")
    return values[0] if values is not None and len(values) == 1 else values


def _parse_options(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--storage-options") from error
    if not isinstance(options, dict):
        raise typer.BadParameter("a JSON object wanted", param_hint="--storage-options")
    return options


def _plain(value: Any) -> Any:
    """``value`` in JSON's types: records as dictionaries, a CRS as its authority's code, dtypes as their names."""
    if isinstance(value, Affine):
        return list(value)[:6]
    if hasattr(value, "to_authority"):
        authority = value.to_authority()
        return ":".join(authority) if authority else value.to_wkt()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    is_json = value is None or (isinstance(value, str | int | float) and value == value)  # noqa: PLR0124 - not NaN
    return value if is_json else str(value)


def _report(facts: Mapping[str, Any], title: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", title=title, show_header=False, title_justify="left")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(_words(value)))  # Text: brackets are no markup here
    Console().print(table)


def _words(value: Any) -> str:
    """A value in JSON's types for people: lists as their items, long mappings as their length."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, dict):
        if len(value) > _MANY:
            return f"{len(value)} entries"
        return ", ".join(f"{key}: {_words(item)}" for key, item in value.items()) or "none"
    return str(value)
