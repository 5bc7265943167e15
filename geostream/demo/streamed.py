"""One arm of the comparison: geostream's datasets and DataLoader, in one process.

Runs apart (``python -m geostream.demo.streamed``, a job as JSON on stdin, its figures as JSON on stdout), so that it
starts as cold as the other arm, and leaves nothing in the cache that the demo then trains with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import geostream as gs
from geostream.demo.scenes import open_archive

__all__ = ["Job", "read_apart", "run_module"]


@dataclass(frozen=True)
class Job:
    """What to read."""

    url: str
    """Where the archive is."""
    storage_options: dict[str, Any]
    """How it is reached."""
    batches: list[list[tuple[float, float, float, float]]]
    """Bounds (xmin, ymin, xmax, ymax) of each batch's chips, in the CRS of the first scene."""


def read_apart(job: Job) -> float:
    """Read all of ``job`` in a process of its own; returns the seconds from opening the archive to the last batch."""
    return run_module("geostream.demo.streamed", asdict(job))


def run_module(module: str, job: dict[str, Any]) -> float:
    """Run a module that takes a job on stdin and answers how many seconds it took.

    Raises:
        RuntimeError: if it fails; the last line of its stderr is the message.
    """
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
    if done.returncode:
        raise RuntimeError(f"{module} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return float(json.loads(done.stdout)["seconds"])


def main() -> None:
    """Do the job on stdin."""
    job = Job(**json.load(sys.stdin))
    started = time.perf_counter()
    images, labels = open_archive(job.url, job.storage_options)
    windows = [[(slice(xmin, xmax), slice(ymin, ymax)) for xmin, ymin, xmax, ymax in batch] for batch in job.batches]
    for _ in gs.DataLoader(images & labels, batch_sampler=windows):
        pass
    sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
