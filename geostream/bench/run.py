"""Rounds: every arm once, one after the other, then all again."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from geostream.bench.cases import ARMS, CASES, Arm, Case, arms_of, open_dataset
from geostream.bench.copies import OPTIONS as LITDATA_OPTIONS
from geostream.bench.copies import copy_name
from geostream.bench.gdal import GDAL_OPTIONS, WORKERS, pick_workers
from geostream.bench.jobs import Chips, Job, draw_queries
from geostream.bench.measure import ask, measure
from geostream.bench.report import summarize
from geostream.bench.scenes import Sizes, files_of, local_files, write_case
from geostream.bench.streamed import has_tile_sampler
from geostream.errors import ConfigError
from geostream.testing import RangeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from geostream.bench.measure import Figures
    from geostream.testing.process import ServerProcess

__all__ = ["Settings", "run"]

JITTER = 0.25
"""Standard deviation of the latency's logarithm."""
_TORCH_WORKERS = 2


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    cases: tuple[str, ...] = tuple(CASES)
    """Keys of the cases."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Names of the arms; those that do not apply to a case or lack what they need are left out of it."""
    rounds: int = 5
    """How often each arm runs."""
    batches: int | None = None
    """Batches timed in the arms that do not run a whole epoch; None for each case's own number."""
    skip: int = 32
    """Batches before that."""
    latency: float | None = None
    """Seconds before each of the server's answers; None for each case's own."""
    bandwidth: float = 90e6
    """Bytes a second on each connection."""
    link: float | None = None
    """Bytes a second on all connections together; None for no limit."""
    workers: int | None = None
    """Workers of the rasterio arm; None tries several numbers and goes on with the best."""
    protocol: Literal["http", "s3"] = "http"
    """How geostream reaches the server."""
    sizes: Sizes = field(default_factory=Sizes)
    """How much is written where nothing is there yet."""
    profile: bool = False
    """Whether to profile geostream's arms, once each, instead of comparing."""


def run(settings: Settings, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure; returns settings, machine and results in JSON's types.

    Args:
        settings: what to measure.
        root: folder of the scenes and copies, kept for the next time.
        say: takes lines on how far it is.

    Raises:
        ConfigError: unknown cases or arms, or ``root`` holds scenes of other sizes.
        ArmFailedError: an arm failed.
    """
    unknown = [key for key in settings.cases if key not in CASES]
    if unknown:
        raise ConfigError(f"--case {','.join(unknown)}: there are {', '.join(CASES)}")
    root.mkdir(parents=True, exist_ok=True)
    runs = []
    for case in (CASES[key] for key in settings.cases):
        say(f"case {case.key}: {case.title}")
        arms = _available(arms_of(case, settings.arms), say)
        stored = write_case(case, root, settings.sizes)
        copies = {arm.name: _copy(case, arm.name, root, settings, say) for arm in arms if _reads_copy(arm)}
        for latency in case.latencies if settings.latency is None else (settings.latency,):
            bench = _Bench(case, latency, root, settings, say)
            measured = bench.profiles(arms) if settings.profile else bench.rounds(arms)
            place = {"case": case.key, "title": case.title, "latency": latency, "stored_bytes": stored}
            runs.append(place | {"copies": copies} | measured)
    return {"settings": asdict(settings), "machine": _machine(), "runs": runs}


def _reads_copy(arm: Arm) -> bool:
    return arm.name.startswith("litdata")


def _available(arms: Sequence[Arm], say: Callable[[str], None]) -> list[Arm]:
    """The arms that can run here."""
    lacks: dict[str, str] = {}
    if not has_tile_sampler():
        lacks |= dict.fromkeys(("tile", "tile-native"), "this geostream has no TileBatchGeoSampler")
    if _version("litdata") is None:
        lacks |= dict.fromkeys(("litdata", "litdata-zstd"), "pip install 'geostream[bench]'")
    for arm in arms:
        if arm.name in lacks:
            say(f"without {arm.name}: {lacks[arm.name]}")
    return [arm for arm in arms if arm.name not in lacks]


class _Bench:
    """One case at one latency, on one server."""

    def __init__(self, case: Case, latency: float, root: Path, settings: Settings, say: Callable[[str], None]) -> None:
        self._case = case
        self._latency = latency
        self._root = root
        self._settings = settings
        self._say = say
        self._local = open_dataset(case, local_files(case, root, settings.sizes), None)

    def rounds(self, arms: Sequence[Arm]) -> dict[str, Any]:
        """All rounds of all arms."""
        figures: dict[str, list[Figures]] = defaultdict(list)
        with self._serve() as server:
            workers, speeds = self._choose_workers(server) if any(arm.name == "gdal" for arm in arms) else (0, {})
            for number in range(self._settings.rounds):
                for arm in arms:
                    figures[arm.name].append(self._measure(arm, number, workers, server))
        summaries = {name: summarize(rounds) for name, rounds in figures.items()}
        return {"workers": workers, "chips_per_second_by_workers": speeds, "arms": summaries}

    def profiles(self, arms: Sequence[Arm]) -> dict[str, Any]:
        """Where the time of geostream's single-process arms goes."""
        profiles = {}
        with self._serve() as server:
            for arm in arms:
                if arm.name.partition("-")[0] in {"random", "tile"}:
                    self._say(f"  profiling {arm.name}")
                    profiles[arm.name] = ask(replace(self._job(arm, 0, 0, server), profile=True))
        return {"profiles": profiles}

    def _serve(self) -> ServerProcess:
        settings = self._settings
        pace = {"latency": self._latency, "jitter": JITTER, "bandwidth": settings.bandwidth, "link": settings.link}
        return RangeServer.spawn(str(self._root), **pace)

    def _measure(self, arm: Arm, number: int, workers: int, server: ServerProcess) -> Figures:
        with TemporaryDirectory(prefix=".scratch-", dir=self._root) as scratch:
            taken = measure(replace(self._job(arm, number, workers, server), scratch=scratch), server)
        self._say(f"  round {number + 1}, {arm.name}: {taken.chips / taken.seconds:.0f} chips/s")
        return taken

    def _choose_workers(self, server: ServerProcess) -> tuple[int, dict[int, float]]:
        """Try the rasterio arm once with each number of workers; returns the best, and the chips a second of each."""
        asked = self._settings.workers
        if asked is not None:
            return asked, {}
        speeds = {}
        for workers in WORKERS:
            job = self._job(ARMS["gdal"], -1, workers, server)
            taken = measure(job, server)
            speeds[workers] = round(taken.chips / taken.seconds, 1)
            self._say(f"  rasterio with {workers} workers: {speeds[workers]} chips/s")
        return pick_workers(speeds), speeds

    def _job(self, arm: Arm, number: int, workers: int, server: ServerProcess) -> Job:
        settings, case = self._settings, self._case
        job = Job(
            case.key,
            arm.name,
            seed=number + 1,
            skip=0 if arm.epoch else settings.skip,
            batches=0 if arm.epoch else settings.batches or case.batches,
            workers=workers if arm.name == "gdal" else _TORCH_WORKERS,
        )
        if arm.name == "gdal":
            return replace(job, windows=self._windows(job, server))
        if _reads_copy(arm):
            return replace(job, copy=f"{server.url}#{server.s3_url(copy_name(case.key, arm.name))}")
        if arm.name == "decode":
            return replace(job, urls=local_files(case, self._root, settings.sizes))
        s3 = settings.protocol == "s3"
        address = server.s3_url if s3 else server.url_for
        files = {folder: files_of(folder, settings.sizes).values() for folder in case.folders}
        urls = {folder: [address(name) for names in scenes for name in names] for folder, scenes in files.items()}
        return replace(job, urls=urls, storage_options=server.storage_options if s3 else None)

    def _windows(self, job: Job, server: ServerProcess) -> list[Chips]:
        """The round's windows as whoever reads files must know them: each with the files that hold it."""
        sizes, folders = self._settings.sizes, self._case.folders
        by_scene = [files_of(folder, sizes) for folder in folders]
        scene_of = {str(self._root / name): i for i, names in by_scene[0].items() for name in names}
        first = open_dataset(replace(self._case, folders=folders[:1]), local_files(self._case, self._root, sizes), None)
        boxes = first.index.geometry.bounds.to_numpy()
        numbers = [scene_of[path] for path in first.index["filepath"]]
        urls = {i: [server.url_for(name) for files in by_scene for name in files[i]] for i in by_scene[0]}

        def chip(x: slice, y: slice) -> tuple[list[str], tuple[float, float, float, float]]:
            middle = (x.start + x.stop) / 2, (y.start + y.stop) / 2
            inside = (boxes[:, :2] <= middle).all(axis=1) & (boxes[:, 2:] >= middle).all(axis=1)
            return urls[numbers[int(inside.argmax())]], (x.start, y.start, x.stop, y.stop)

        return [[chip(x, y) for x, y, *_ in batch] for batch in draw_queries(self._local, job)]


def _copy(case: Case, arm: str, root: Path, settings: Settings, say: Callable[[str], None]) -> dict[str, float]:
    """What making LitData's copy took; it is made if it is not there."""
    folder = root / copy_name(case.key, arm)
    note = folder.with_name(f"{folder.name}.json")
    if not note.is_file():
        say(f"  copying to {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        files = [files_of(name, settings.sizes) for name in case.folders]
        scenes = [[[str(root / name) for name in part[i]] for part in files] for i in files[0]]
        took = ask(Job(case.key, "copy", 0, scenes=scenes, copy=str(folder), workers=os.cpu_count() or 1))
        note.write_text(json.dumps({name: took[name] for name in ("seconds", "bytes")}))
    copied: dict[str, float] = json.loads(note.read_text())
    return copied


def _machine() -> dict[str, Any]:
    packages = ("geostream", "torch", "numpy", "rasterio", "imagecodecs", "fsspec", "obstore", "litdata")
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: found for name in packages if (found := _version(name))},
        "gdal_options": GDAL_OPTIONS,
        "litdata_options": LITDATA_OPTIONS,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
