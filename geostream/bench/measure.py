"""What an arm takes, seen from outside: its processes' CPU and memory, the server's counters, the time it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream.errors import GeostreamError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from geostream.bench.jobs import Job
    from geostream.testing.process import ServerProcess

__all__ = ["ArmFailedError", "Figures", "Tree", "ask", "measure"]

_PROC = Path("/proc")
_MEMORY_EVERY = 0.5
"""Seconds between two looks at the processes' memory, which take time themselves."""


class ArmFailedError(GeostreamError):
    """An arm's process failed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one arm took in one round."""

    chips: int
    """Chips timed."""
    seconds: float
    """Seconds they took."""
    first: float
    """Seconds from asking for the first batch until having it."""
    opened: float
    """Seconds before that: listing, headers, indexes."""
    requests: int
    """Requests the server saw meanwhile."""
    bytes: int
    """Bytes of bodies that it sent."""
    cpu: float | None
    """CPU seconds of the arm's processes; None where the system does not tell."""
    memory: int | None
    """Largest sum of its processes' memory in bytes, shared pages counted once; None where the system does not tell."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """`geostream.stats` of the arm's first process."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"chips_per_second": self.chips / self.seconds}


class Tree:
    """A process and its descendants, as Linux's ``/proc`` tells of them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks = os.sysconf("SC_CLK_TCK")
        self.known = (_PROC / str(root) / "stat").exists()
        """Whether the system tells."""

    def cpu(self) -> float:
        """CPU seconds used so far, by descendants that have ended as well."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self._members()) / self._ticks

    def memory(self) -> int:
        """Bytes in memory; pages that processes share count once."""
        return sum(_proportional(pid) for pid, _ in self._members())

    def _members(self) -> Iterator[tuple[int, list[str]]]:
        """(pid, what follows the name in its ``stat``) of each process."""
        table = dict(_processes())
        wanted = {self._root}
        # children may have lower numbers than their parents once numbers have been used up
        while more := {pid for pid, fields in table.items() if int(fields[1]) in wanted and pid not in wanted}:
            wanted |= more
        return ((pid, table[pid]) for pid in wanted if pid in table)


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:  # ended meanwhile
                continue
            yield int(entry.name), text.rpartition(")")[2].split()


def _proportional(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:  # ended meanwhile
        return 0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024


class _MemoryWatch:
    """Looks at a tree's memory every now and then; the largest sum counts."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._stop = threading.Event()
        self._largest = 0
        self._thread = threading.Thread(target=self._watch, name="geostream-bench-memory", daemon=True)
        self._thread.start()

    def stop(self) -> int | None:
        """Bytes at most; None where the system does not tell."""
        self._stop.set()
        self._thread.join()
        return self._largest or None

    def _watch(self) -> None:
        while self._tree.known:
            self._largest = max(self._largest, self._tree.memory())
            if self._stop.wait(_MEMORY_EVERY):
                return


def measure(job: Job, server: ServerProcess) -> Figures:
    """Run one arm.

    Raises:
        ArmFailedError: it failed; the message says why.
    """
    marks: dict[str, tuple[int, int, float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    server.reset()
    child = _start(job)
    tree = Tree(child.pid)
    watch = _MemoryWatch(tree)
    try:
        for event in _events(child, job):
            facts[event["event"]] = event
            if event["event"] in {"begin", "end"}:
                counters = server.counters
                cpu = tree.cpu() if tree.known else 0.0
                marks[event["event"]] = (counters.requests, counters.bytes_sent, cpu)
            if event["event"] == "end":
                memory = watch.stop()
                break  # what is still in flight is of no interest
    finally:
        watch.stop()
        _end(child)
    requests, sent, cpu = (late - early for early, late in zip(marks["begin"], marks["end"], strict=True))
    end = facts["end"]
    return Figures(
        chips=end["chips"],
        seconds=end["seconds"],
        first=end["first"],
        opened=facts["open"]["seconds"],
        requests=int(requests),
        bytes=int(sent),
        cpu=cpu if tree.known else None,
        memory=memory,
        stats=end["stats"],
    )


def ask(job: Job) -> dict[str, Any]:
    """Run a job that answers with one event, and return it.

    Raises:
        ArmFailedError: it failed; the message says why.
    """
    child = _start(job)
    try:
        *_, last = _events(child, job)
    finally:
        _end(child)
    return last


def _start(job: Job) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    child = subprocess.Popen(
        [sys.executable, "-m", "geostream.bench.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(job.to_json())
    child.stdin.close()
    return child


def _events(child: subprocess.Popen[str], job: Job) -> Iterator[dict[str, Any]]:
    """What a child tells, until it ends well."""
    assert child.stdout is not None
    assert child.stderr is not None
    said: list[str] = []
    # Read beside, or a child with much to say would wait for us to read it.
    reader = threading.Thread(target=lambda: said.extend(child.stderr or ()), daemon=True)
    reader.start()
    ended = False
    for line in child.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "failed":
            raise ArmFailedError(f"{job.arm}: {event['why']}")
        ended = event["event"] in {"end", "copied", "profile"}
        yield event
    code = child.wait()
    reader.join(1)
    if not ended:
        raise ArmFailedError(f"{job.arm} failed with exit code {code}: {' '.join(''.join(said[-3:]).split())}")


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and all that it has started."""
    with suppress(ProcessLookupError):  # it has ended by itself, with all of its own
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
