"""Opening an index and looking things up in it, at 10,000 rows and at a million. Prints a table, and a ratio.

    python benchmarks/index.py [--rows 10000,1000000] [--folder .]

Rows are synthetic: scenes of 10 km side by side, each with the packed header of a real COG. Each measurement runs in a
process of its own, so that its memory is its own. Look-ups are of a box a third of a scene wide and of a year.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import shapely

import geostream as gs
from geostream.index.rows import write_rows
from geostream.index.schema import SCHEMA
from geostream.testing.rasters import write_cog

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKUPS = 2000
SIDE = 2048
"""Pixels."""


def write(path: Path, rows: int) -> None:
    """Write an index of ``rows`` scenes that lie side by side, a row at a time as `build_index` would."""
    cog = write_cog(path.with_suffix(".tif"), shape=(SIDE, SIDE), count=4, dtype="uint16", crs="EPSG:4326")
    one = gs.build_index(str(cog))._table.read()  # noqa: SLF001 - to make many of it
    cog.unlink()
    across = int(np.ceil(np.sqrt(2 * rows)))
    column, row = np.arange(rows) % across, np.arange(rows) // across
    west, north = -180 + 360 * column / across, 85 - 170 * row / (rows / across + 1)
    boxes = np.stack([west, north - 170 / (rows / across + 1), west + 360 / across, north], axis=1)
    days = np.datetime64("2015-01-01", "us") + (np.arange(rows) % 3650) * np.timedelta64(86_400_000_000, "us")

    def tables() -> Iterator[pa.Table]:
        for start in range(0, rows, 50_000):
            part = slice(start, min(start + 50_000, rows))
            count = part.stop - part.start
            table = one.take(np.zeros(count, np.int64))
            xmin, ymin, xmax, ymax = boxes[part].T
            none = np.zeros(count)
            places = np.stack([(xmax - xmin) / SIDE, none, xmin, none, (ymin - ymax) / SIDE, ymax], axis=1)
            sides = [pa.array(side) for side in boxes[part].T]
            changed = {
                "url": pa.array([f"s3://bucket/{i % 997:03d}/scene_{i:09d}.tif" for i in range(start, part.stop)]),
                "geometry": pa.array(shapely.to_wkb(shapely.box(*boxes[part].T)), pa.binary()),
                "transform": pa.FixedSizeListArray.from_arrays(pa.array(places.ravel()), 6),
                "bbox": pa.StructArray.from_arrays(sides, ["xmin", "ymin", "xmax", "ymax"]),
                "datetime_start": pa.array(days[part], pa.timestamp("us", "UTC")),
                "datetime_end": pa.array(days[part] + np.timedelta64(86_399_999_999, "us"), pa.timestamp("us", "UTC")),
            }
            for name, values in changed.items():
                table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), values)
            yield table

    path.write_bytes(write_rows(tables(), {}))


def measure(path: Path) -> dict[str, float]:
    """Open an index and look things up, in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    load = gs.load_index  # imports what it needs
    began = time.perf_counter()
    index = load(path)
    opened = time.perf_counter()
    index.find((0, 0, 1e-6, 1e-6), "2020")
    ready = time.perf_counter()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    table = index._table.boxes()  # noqa: SLF001 - to ask for places that are there
    rng = np.random.default_rng(0)
    spans = []
    found = 0
    years = (np.datetime64("2019-01-01"), np.datetime64("2019-12-31"))
    for row in rng.integers(len(index), size=LOOKUPS):
        xmin, ymin, xmax, ymax = table[row]
        box = (xmin + (xmax - xmin) / 3, ymin + (ymax - ymin) / 3, xmax - (xmax - xmin) / 3, ymax - (ymax - ymin) / 3)
        start = time.perf_counter()
        hits = index.find(box)
        spans.append(time.perf_counter() - start)
        found += len(hits)
    timed = []
    for row in rng.integers(len(index), size=LOOKUPS):
        start = time.perf_counter()
        index.find(table[row], years)
        timed.append(time.perf_counter() - start)
    start = time.perf_counter()
    dataset = gs.RasterDataset(index=index)
    made = time.perf_counter() - start
    queries = []
    for row in rng.integers(len(index), size=LOOKUPS):
        xmin, ymin, xmax, ymax = table[row]
        query = dataset._query((slice(xmin, (xmin + xmax) / 2), slice(ymin, (ymin + ymax) / 2)))  # noqa: SLF001 - as it reads
        grid, lookup = query.grid(dataset.crs), dataset._scene_lookup  # noqa: SLF001 - the same
        start = time.perf_counter()
        lookup.find(grid, query.t)
        queries.append(time.perf_counter() - start)
    return {
        "rows": len(index),
        "open_s": opened - began,
        "tree_s": ready - opened,
        "memory_mb": memory,
        "lookup_us": 1e6 * float(np.median(spans)),
        "lookup_time_us": 1e6 * float(np.median(timed)),
        "hits": found / LOOKUPS,
        "dataset_s": made,
        "dataset_lookup_us": 1e6 * float(np.median(queries)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="10000,1000000")
    parser.add_argument("--folder", type=Path, default=Path("index-bench"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.measure)))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for rows in map(int, given.rows.split(",")):
        path = given.folder / f"{rows}.parquet"
        if not path.exists():
            write(path, rows)
        command = [sys.executable, __file__, "--measure", str(path)]
        results.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for result in results:
        print("  ".join(f"{name} {value:,.4g}" for name, value in result.items()))
    print(f"look-up, most rows over fewest: {results[-1]['lookup_us'] / results[0]['lookup_us']:.2f}")


if __name__ == "__main__":
    main()
