"""Results of ``geostream bench --out`` as rows of the Markdown table in docs/performance.md."""

import json
import sys
from pathlib import Path

ARMS = ("random", "tile", "torch", "gdal", "litdata", "litdata-zstd", "decode", "fetch")


def main() -> None:
    print(f"| case | {' | '.join(ARMS)} |\n|{'---|' * (len(ARMS) + 1)}")
    for path in sys.argv[1:]:
        results = json.loads(Path(path).read_text())
        link = results["settings"]["link"]
        for run in results["runs"]:
            case = f"({run['case']}) {run['title']}, {run['latency'] * 1e3:.0f} ms"
            case += f", {link * 8e-9:.0f} Gb/s in all" if link else ""
            cells = [cell(run["arms"].get(arm)) for arm in ARMS]
            print(f"| {case} | {' | '.join(cells)} |")


def cell(arm: dict[str, float] | None) -> str:
    if arm is None:
        return "-"
    return f"{arm['chips_per_second']:,.0f} ({arm['slowest']:,.0f}-{arm['fastest']:,.0f})"


if __name__ == "__main__":
    main()
