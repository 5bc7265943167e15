"""Rounds to medians, medians to a table."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from geostream.bench.cases import ARMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from geostream.bench.measure import Figures

__all__ = ["profile_tables", "summarize", "tables"]

_REFERENCE = "gdal"
_TOP = 30


def summarize(rounds: Sequence[Figures]) -> dict[str, Any]:
    """Medians of an arm's rounds, their spread, and the rounds themselves.

    Returns:
        ``chips_per_second`` with ``slowest`` and ``fastest``, ``requests_per_chip``, ``bytes_per_chip``,
        ``cpu_seconds_per_chip``, ``memory_bytes``, ``first_batch_seconds``, ``open_seconds``, ``rounds``.
    """
    speeds = [one.chips / one.seconds for one in rounds]
    cpu = [one.cpu / one.chips for one in rounds if one.cpu is not None]
    memory = [one.memory for one in rounds if one.memory is not None]
    return {
        "chips_per_second": median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "requests_per_chip": median(one.requests / one.chips for one in rounds),
        "bytes_per_chip": median(one.bytes / one.chips for one in rounds),
        "cpu_seconds_per_chip": median(cpu) if cpu else None,
        "memory_bytes": median(memory) if memory else None,
        "first_batch_seconds": median(one.first for one in rounds),
        "open_seconds": median(one.opened for one in rounds),
        "rounds": [one.as_dict() for one in rounds],
    }


def tables(results: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each case and latency."""
    for run in results["runs"]:
        if "profiles" in run:
            for name, profile in run["profiles"].items():
                yield from profile_tables(f"({run['case']}) {name}", profile)
        else:
            yield _table(run)


def _table(run: Mapping[str, Any]) -> Table:
    arms: Mapping[str, Mapping[str, Any]] = run["arms"]
    reference = _REFERENCE if _REFERENCE in arms else next(iter(arms), "")
    title = (
        f"({run['case']}) {run['title']}; {run['latency'] * 1000:.0f} ms; {run['stored_bytes'] / 1e6:,.0f} MB stored"
    )
    table = Table(title=title, caption="\n".join(_notes(run)), title_justify="left", caption_justify="left")
    table.add_column("")
    headings = ("chips/s", "min-max", f"x {reference}", "first s", "open s", "req/chip", "kB/chip", "CPU ms", "MB")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, arm in arms.items():
        table.add_row(name, *_cells(arm, arms[reference]["chips_per_second"]))
    return table


def _cells(arm: Mapping[str, Any], reference: float) -> list[str]:
    speed, cpu, memory = arm["chips_per_second"], arm["cpu_seconds_per_chip"], arm["memory_bytes"]
    return [
        f"{speed:,.0f}",
        f"{arm['slowest']:,.0f}-{arm['fastest']:,.0f}",
        f"{speed / reference:.2f}",
        f"{arm['first_batch_seconds']:.2f}",
        f"{arm['open_seconds']:.2f}",
        f"{arm['requests_per_chip']:.2f}",
        f"{arm['bytes_per_chip'] / 1e3:,.0f}",
        "" if cpu is None else f"{cpu * 1e3:.2f}",
        "" if memory is None else f"{memory / 1e6:,.0f}",
    ]


def _notes(run: Mapping[str, Any]) -> Iterator[str]:
    for name in run["arms"]:
        yield f"{name}: {ARMS[name].title}" + (f", {run['workers']} workers" if name == "gdal" else "")
    tried = run.get("chips_per_second_by_workers")
    if tried:
        yield "rasterio, chips/s by workers: " + ", ".join(f"{workers}: {speed}" for workers, speed in tried.items())
    for arm, copied in run["copies"].items():
        yield f"{arm}: copying took {copied['seconds']:.0f} s and {copied['bytes'] / 1e6:,.0f} MB, from local files"


def profile_tables(title: str, profile: Mapping[str, Any]) -> Iterator[Table]:
    """CPU milliseconds a chip, by thread, by module and by function."""
    chips = profile["chips"]
    speed = f"{chips / profile['seconds']:.0f} chips/s, {profile['cpu'] / profile['seconds']:.2f} cores busy"
    for what, limit in (("threads", _TOP), ("modules", _TOP), ("functions", _TOP)):
        table = Table(title=f"{title}, {what}: {speed}", title_justify="left")
        table.add_column("")
        table.add_column("CPU ms/chip", justify="right")
        table.add_column("%", justify="right")
        ranked = sorted(profile[what].items(), key=lambda item: -item[1])[:limit]
        for name, seconds in ranked:
            table.add_row(name, f"{seconds / chips * 1e3:.3f}", f"{seconds / profile['cpu'] * 100:.1f}")
        yield table
