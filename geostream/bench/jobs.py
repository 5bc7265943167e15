"""What an arm is told, and how it says how far it is: shared by the process that measures and those that read."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import geostream as gs
from geostream.bench.cases import BATCH, CASES, CHIP, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Chips", "Job", "draw_queries", "drive", "reply_to_parent"]

Chips = list[tuple[list[str], tuple[float, float, float, float]]]
"""A batch for who reads files: for each chip the http URLs of its files, and (xmin, ymin, xmax, ymax)."""


@dataclass(frozen=True)
class Job:
    """One arm's share of one round."""

    case: str
    """Key of the case."""
    arm: str
    """Name of the arm."""
    seed: int
    """Of the windows: the same for all arms of a round."""
    urls: dict[str, list[str]] = field(default_factory=dict)
    """Files, by folder, for geostream."""
    storage_options: dict[str, Any] | None = None
    """How geostream reaches them."""
    skip: int = 0
    """Batches before the clock starts."""
    batches: int = 0
    """Batches timed; 0 for the whole epoch."""
    ahead: int = 64
    """Batches that follow those timed, so that none of the arms runs dry while it is timed."""
    workers: int = 0
    """Worker processes of arms that have some."""
    windows: list[Chips] = field(default_factory=list)
    """Where to read, for arms that read files without geostream."""
    scenes: list[list[list[str]]] = field(default_factory=list)
    """Paths to copy from: of each scene, those of each of its parts."""
    copy: str = ""
    """Folder of LitData's copy to write, or ``endpoint#url`` of the one to read."""
    scratch: str = ""
    """Folder for what an arm keeps while it runs."""
    profile: bool = False
    """Whether to say which functions take the time."""

    @property
    def length(self) -> int:
        """Chips that a random sampler is to yield."""
        return (self.skip + self.batches + self.ahead) * BATCH

    @property
    def known_case(self) -> Case:
        """The case."""
        return CASES[self.case]

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


def draw_queries(dataset: gs.GeoDataset, job: Job) -> gs.samplers.RandomBatchGeoSampler:
    """The batches of random windows of a round: the same for the same seed, wherever the files are."""
    import torch  # noqa: PLC0415 - heavy, and the process that measures needs little of it

    case = job.known_case
    return gs.samplers.RandomBatchGeoSampler(
        dataset,
        CHIP,
        BATCH,
        length=job.length,
        generator=torch.Generator().manual_seed(job.seed),
        scenes_per_batch=case.scenes_per_batch,
    )


def drive(batches: Iterable[Any], job: Job, tell: Callable[..., None], size: Callable[[Any], int]) -> None:
    """Take batches as a training loop would, and say when the clock starts and stops.

    Args:
        batches: those of the arm.
        job: how many to skip and to time.
        tell: takes the name of an event and what belongs to it.
        size: number of chips in a batch.
    """
    chips = timed = 0
    last = job.skip + job.batches if job.batches else sys.maxsize
    asked = began = time.perf_counter()
    counted = gs.stats()
    tell("begin" if not job.skip else "start")
    first = 0.0
    for number, batch in enumerate(batches, 1):
        if number == 1:
            first = time.perf_counter() - asked
        if number > job.skip:
            chips += size(batch)
            timed += 1
        if number >= last:
            break
        if number == job.skip:
            began, counted = time.perf_counter(), gs.stats()
            tell("begin")
    seconds = time.perf_counter() - began
    used = (gs.stats() - counted).as_dict()
    tell("end", seconds=seconds, first=first, chips=chips, batches=timed, stats=used)


def reply_to_parent() -> Callable[..., None]:
    """A function that writes events to what was stdout; whatever else is printed goes to stderr."""
    replies: TextIO = os.fdopen(os.dup(1), "w")
    os.set_inheritable(replies.fileno(), False)
    os.dup2(2, 1)

    def tell(event: str, **facts: Any) -> None:
        replies.write(json.dumps({"event": event, **facts}) + "\n")
        replies.flush()

    return tell
