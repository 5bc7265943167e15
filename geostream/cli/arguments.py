"""What stands on the command line, taken apart."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Json", "StorageOptions", "Url", "floats", "ints", "join_numbers", "parse_options", "resolution"]

NUMBERS = {"--bounds": 4, "--window": 4, "--shape": 2, "--res": 2, "--bands": sys.maxsize}
"""Options of several numbers, and how many at most: ``--bounds 1 2 3 4`` and ``--bounds 1,2,3,4`` mean the same."""

Url = Annotated[str, typer.Argument(metavar="URL", help="A local path or any fsspec URL: s3://, gs://, https://, …")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout.")]
StorageOptions = Annotated[
    str | None, typer.Option(metavar="JSON", help="""Options for fsspec, such as '{"anon": true}'.""")
]


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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def floats(option: str, text: str | None, count: int | None = None) -> Any:
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


def ints(option: str, text: str | None, count: int | None = None) -> Any:
    """The whole numbers in ``text`` as a tuple; None for None."""
    values = floats(option, text, count)
    if values is None:
        return None
    if any(value != int(value) for value in values):
        raise typer.BadParameter(f"{text!r}: whole numbers wanted", param_hint=option)
    return tuple(int(value) for value in values)


def resolution(text: str | None) -> Any:
    """A pixel size: one number, or a pair of them."""
    values = floats("--res", text)
    if values is not None and len(values) > NUMBERS["--res"]:
        raise typer.BadParameter(f"{text!r}: one number or two wanted", param_hint="--res")
    return values[0] if values is not None and len(values) == 1 else values


def parse_options(text: str | None) -> dict[str, Any] | None:
    """Storage options out of JSON."""
    if text is None:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--storage-options") from error
    if not isinstance(options, dict):
        raise typer.BadParameter("a JSON object wanted", param_hint="--storage-options")
    return options
