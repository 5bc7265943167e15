"""One arm of one round, in a process of its own: a job as JSON on stdin, events as JSON on stdout."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream.bench.cases import CHIP
from geostream.bench.jobs import Job, drive, reply_to_parent
from geostream.errors import GeostreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["main"]


def main() -> None:
    """Do the job on stdin."""
    tell = reply_to_parent()
    job = Job.from_json(sys.stdin.read())
    try:
        if job.arm == "copy":
            _copy(job, tell)
        else:
            _read(job, tell)
    except GeostreamError as error:
        tell("failed", why=str(error))


def _read(job: Job, tell: Callable[..., None]) -> None:
    if job.profile:
        from geostream.bench.profiling import profiled  # noqa: PLC0415 - it must not be there when nothing is profiled

        profiled(job, tell, lambda: _open(job))
        return
    began = time.perf_counter()
    batches, size = _open(job)
    tell("open", seconds=time.perf_counter() - began)
    drive(batches, job, tell, size)


def _open(job: Job) -> tuple[Iterable[Any], Callable[[Any], int]]:
    """The arm's batches, and how many chips one has. What an arm needs is imported for that arm only."""
    if job.arm == "gdal":
        from geostream.bench import gdal  # noqa: PLC0415

        return gdal.batches(job, CHIP), _size
    if job.arm.startswith("litdata"):
        from geostream.bench import copies  # noqa: PLC0415

        return copies.batches(job), _size
    if job.arm in {"decode", "fetch"}:
        from geostream.bench import limits  # noqa: PLC0415

        return (limits.decoded if job.arm == "decode" else limits.fetched)(job), limits.size
    from geostream.bench import streamed  # noqa: PLC0415

    return streamed.batches(job), _size


def _size(batch: dict[str, Any]) -> int:
    return len(batch["image"] if "image" in batch else batch["mask"])


def _copy(job: Job, tell: Callable[..., None]) -> None:
    from geostream.bench import copies  # noqa: PLC0415 - optional

    compression = "zstd" if job.copy.endswith("zstd") else None
    tell("copied", **copies.write_copy(job.scenes, Path(job.copy), compression=compression, workers=job.workers))


if __name__ == "__main__":
    main()
