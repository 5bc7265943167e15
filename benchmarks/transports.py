"""Requests a second and processor time a request of each transport, for ranges of one object behind latency.

The server runs in a process of its own and shares the machine's cores. Arms alternate within each round, so that
whatever else the machine does meets all of them; a first round, which makes connections, is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from geostream.accounting import stats
from geostream.testing import RangeServer
from geostream.transport import Access, get_range, run

if TYPE_CHECKING:
    from geostream.testing.server import Endpoint

KEY = "object.bin"


@dataclass
class Arm:
    name: str
    url: str
    access: Access


@dataclass
class Result:
    name: str
    requests_per_second: float
    slowest: float
    fastest: float
    cpu_ms_per_request: float


def arms_of(server: Endpoint) -> list[Arm]:
    signed = {**server.storage_options, "anon": False, "key": "key", "secret": "secret"}
    http, s3 = server.url_for(KEY), server.s3_url(KEY)
    return [
        Arm("http, aiohttp", http, Access(transport="fsspec")),
        Arm("http, obstore", http, Access(transport="obstore")),
        Arm("s3 signed, aiohttp", s3, Access(signed, transport="fsspec")),
        Arm("s3 signed, obstore", s3, Access(signed, transport="obstore")),
    ]


async def fetch_all(arm: Arm, requests: int, size: int, object_size: int) -> None:
    places = object_size // size

    async def one(i: int) -> int:
        start = i % places * size
        return len((await get_range(arm.url, arm.access, start, start + size)).bytes)

    received = sum(await asyncio.gather(*(one(i) for i in range(requests))))
    if received != requests * size:
        raise SystemExit(f"{arm.name}: {received} bytes came")


def measure(options: argparse.Namespace) -> list[Result]:
    content = os.urandom(max(64 << 20, 4 * options.size))
    with RangeServer.spawn({KEY: content}, latency=options.latency) as server:
        arms = arms_of(server)
        rates: dict[str, list[tuple[float, float]]] = {arm.name: [] for arm in arms}
        for arm in arms:
            run(get_range(arm.url, arm.access, 0, options.size))  # obstore begins after a first answer
        for number in range(options.rounds + 1):
            for arm in arms:
                cpu, wall, before = time.process_time(), time.perf_counter(), stats()
                run(fetch_all(arm, options.requests, options.size, len(content)))
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                if (sent := (stats() - before).requests) != options.requests:
                    raise SystemExit(f"{arm.name}: {sent} requests were sent for {options.requests}")
                if number:
                    rates[arm.name].append((options.requests / wall, cpu / options.requests * 1000))
    return [summary(name, values) for name, values in rates.items()]


def summary(name: str, values: list[tuple[float, float]]) -> Result:
    rates, cpu = zip(*values, strict=True)
    return Result(name, statistics.median(rates), min(rates), max(rates), statistics.median(cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="requests of an arm in a round")
    parser.add_argument("--size", type=int, default=64 * 1024, help="bytes of a range")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--rounds", type=int, default=7, help="rounds counted")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    results = measure(options)
    if options.json:
        print(json.dumps({"options": vars(options), "cores": os.cpu_count(), "arms": [asdict(r) for r in results]}))
        return
    where = f"{os.cpu_count()} cores shared with the server"
    print(f"{options.size // 1024} KiB ranges, {options.latency * 1000:g} ms, {where}")
    print(f"{'arm':<20} {'req/s':>7} {'(min-max)':>13} {'CPU ms/req':>11}")
    for r in results:
        spread = f"({r.slowest:.0f}-{r.fastest:.0f})"
        print(f"{r.name:<20} {r.requests_per_second:>7.0f} {spread:>13} {r.cpu_ms_per_request:>11.3f}")


if __name__ == "__main__":
    main()
