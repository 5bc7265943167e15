"""Everything in docs/performance.md: all cases, and the first one again with a link of 1 Gb/s in all."""

import argparse
import subprocess
import sys
from pathlib import Path

ALL = "a,b,c,d,e,f"
LINK = "125"  # MB/s: 1 Gb/s


def bench(*options: str) -> None:
    command = [sys.executable, "-c", "from geostream.cli import main; main()", "bench", *options]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="geostream-bench", help="folder of the scenes and copies, kept")
    parser.add_argument("--out", default="bench-results", help="folder for the results")
    parser.add_argument("--rounds", default="5")
    given = parser.parse_args()
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    common = ("--data", given.data, "--rounds", given.rounds)
    for case in ALL.split(","):
        bench(*common, "--case", case, "--out", str(out / f"{case}.json"))
    link = ("--link", LINK, "--arms", "random,tile,litdata,litdata-zstd")
    bench(*common, "--case", "a", *link, "--out", str(out / "a-1gbit.json"))


if __name__ == "__main__":
    main()
