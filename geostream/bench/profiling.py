"""Where an arm's CPU time goes: looks at every thread's stack, each weighed by the CPU time since the look before.

Unlike a tracing profiler this costs the functions nothing, and unlike one that counts looks it leaves out who waits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from geostream.bench.jobs import drive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from geostream.bench.jobs import Job

__all__ = ["Sampler", "profiled"]

_EVERY = 0.002
"""Seconds between two looks."""
_NATIVE = "threads without Python"


class Sampler:
    """Looks at all threads of this process but its own, between `start` and `stop`."""

    def __init__(self) -> None:
        self.threads: defaultdict[str, float] = defaultdict(float)
        """CPU seconds by thread, those of a pool together."""
        self.modules: defaultdict[str, float] = defaultdict(float)
        """CPU seconds by the innermost of geostream's modules, or the innermost module of all where there is none."""
        self.functions: defaultdict[str, float] = defaultdict(float)
        """CPU seconds by function and the line it was at."""
        self.cpu = 0.0
        """CPU seconds of the process, without the looking."""
        self._clocks: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="geostream-bench-profile", daemon=True)
        self._began = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._began = time.process_time()
        self._thread.start()

    def stop(self) -> None:
        """End, and add up."""
        self._stop.set()
        self._thread.join()
        self.threads[_NATIVE] = max(0.0, self.cpu - sum(self.threads.values()))
        self.modules[_NATIVE] = self.threads[_NATIVE]

    def _watch(self) -> None:
        own = threading.get_ident()
        self._look(own, count=False)
        while not self._stop.wait(_EVERY):
            self._look(own, count=True)
        self.cpu = time.process_time() - self._began - time.thread_time()

    def _look(self, own: int, *, count: bool) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
            if ident == own:
                continue
            try:
                clock = time.clock_gettime(time.pthread_getcpuclockid(ident))
            except OSError:  # ended meanwhile
                continue
            used = clock - self._clocks.get(ident, clock if not count else 0.0)
            self._clocks[ident] = clock
            if count and used > 0:
                self._note(names.get(ident, "?"), frame, used)

    def _note(self, thread: str, frame: FrameType, seconds: float) -> None:
        self.threads[thread.rstrip("0123456789").rstrip("_-")] += seconds
        code = frame.f_code
        self.functions[f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"] += seconds
        self.modules[_module(frame)] += seconds


def _module(frame: FrameType) -> str:
    outer: FrameType | None = frame
    name = ""
    while outer is not None:
        name = str(outer.f_globals.get("__name__", "?"))
        if name.startswith("geostream.") and not name.startswith("geostream.bench"):
            return name
        outer = outer.f_back
    return str(frame.f_globals.get("__name__", "?"))


def _short(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


def profiled(
    job: Job, tell: Callable[..., None], open_arm: Callable[[], tuple[Iterable[Any], Callable[[Any], int]]]
) -> None:
    """Run an arm and tell where its CPU time went, from the batch at which the clock starts."""
    sampler = Sampler()
    end: dict[str, Any] = {}

    def note(event: str, **facts: Any) -> None:
        if event == "begin":
            sampler.start()
        elif event == "end":
            sampler.stop()
            end.update(facts)

    batches, size = open_arm()
    drive(batches, job, note, size)
    parts = {"threads": sampler.threads, "modules": sampler.modules, "functions": sampler.functions}
    tell("profile", **end, cpu=sampler.cpu, **{name: dict(counts) for name, counts in parts.items()})
