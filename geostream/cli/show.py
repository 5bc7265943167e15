"""What the command line says: facts as a table or as JSON, failures as one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from affine import Affine

from geostream.errors import GeostreamError

__all__ = ["WIDE", "one_line_errors", "plain", "report", "words"]

_MANY = 12
"""Entries of a mapping, such as a palette, beyond which a table only says how many there are."""

WIDE = 120
"""Columns of what goes into a file."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what a user can do something about into one line on stderr and exit code 1."""
    try:
        yield
    except (GeostreamError, OSError) as error:
        typer.echo(f"geostream: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


def plain(value: Any) -> Any:
    """``value`` in JSON's types: records as dictionaries, a CRS as its authority's code, dtypes as their names."""
    if isinstance(value, Affine):
        return list(value)[:6]
    if hasattr(value, "to_authority"):
        authority = value.to_authority()
        return ":".join(authority) if authority else value.to_wkt()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    is_json = value is None or (isinstance(value, str | int | float) and value == value)  # noqa: PLR0124 - not NaN
    return value if is_json else str(value)


def report(facts: Mapping[str, Any], title: str, *, as_json: bool) -> None:
    """Print facts on stdout: as one line of JSON, or as a table."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", title=title, show_header=False, title_justify="left")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(words(value)))  # Text: brackets are no markup here
    Console().print(table)


def words(value: Any) -> str:
    """A value in JSON's types for people: lists as their items, long mappings as their length."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(words, value))
    if isinstance(value, dict):
        if len(value) > _MANY:
            return f"{len(value)} entries"
        return ", ".join(f"{key}: {words(item)}" for key, item in value.items()) or "none"
    return str(value)
