"""The other arm of the comparison: rasterio over GDAL's ``/vsicurl`` in the workers of torch's DataLoader.

Runs in a process of its own (``python -m geostream.demo.vsicurl``, a job as JSON on stdin, its figures as JSON on
stdout), so that it forks its workers from a process that has not opened anything: what GDAL's connections need.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import rasterio
import torch
from affine import Affine
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window
from torch.utils.data import DataLoader, Dataset

from geostream.demo.streamed import run_module
from geostream.grid import parse_crs, same_crs

if TYPE_CHECKING:
    import numpy as np

__all__ = ["GDAL_OPTIONS", "Job", "read_apart"]

GDAL_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_MAX_RETRY": "3",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": ".tif",
    "CPL_VSIL_CURL_CACHE_SIZE": "200000000",
    "VSI_CACHE": "TRUE",
}
"""How GDAL is tuned: no probing for sidecars, the header in one read, neighbouring ranges merged, a large cache."""


@dataclass(frozen=True)
class Job:
    """What to read: the same windows, in the same batches, as geostream's arm."""

    batches: list[list[tuple[str, str, tuple[float, float, float, float]]]]
    """For each chip the http URLs of its image and its labels, and its (xmin, ymin, xmax, ymax) in ``crs``."""
    crs: str
    """CRS of the chips, as WKT."""
    size: int
    """Height and width of a chip in pixels."""
    workers: int
    """Worker processes of the DataLoader."""


class Chips(Dataset[dict[str, torch.Tensor]]):
    """Chips as a hand-written torch dataset reads them, each file opened once in each worker."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.windows = [window for batch in job.batches for window in batch]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Image, float32 (C, H, W), and mask, int64 (H, W)."""
        image, labels, bounds = self.windows[number]
        with rasterio.Env(**GDAL_OPTIONS):
            pixels, classes = (self._read(url, bounds) for url in (image, labels))
        return {"image": torch.from_numpy(pixels).float(), "mask": torch.from_numpy(classes[0]).long()}

    def _read(self, url: str, bounds: tuple[float, float, float, float]) -> np.ndarray[Any, Any]:
        source, size = _open(url), self.job.size
        xmin, ymin, xmax, ymax = bounds
        if same_crs(parse_crs(source.crs), parse_crs(self.job.crs)):
            column, row = ~source.transform @ (xmin, ymax)
            pixels: np.ndarray[Any, Any] = source.read(window=Window(round(column), round(row), size, size))
            return pixels
        transform = Affine((xmax - xmin) / size, 0, xmin, 0, (ymin - ymax) / size, ymax)
        with WarpedVRT(source, crs=self.job.crs, transform=transform, width=size, height=size) as warped:
            on_grid: np.ndarray[Any, Any] = warped.read()
        return on_grid


@lru_cache
def _open(url: str) -> Any:
    return rasterio.open(f"/vsicurl/{url}")


def read_apart(job: Job) -> float:
    """Read all of ``job`` in a process of its own; returns the seconds from the loader's start to its last batch."""
    return run_module("geostream.demo.vsicurl", asdict(job))


def main() -> None:
    """Do the job on stdin."""
    job = Job(**json.load(sys.stdin))
    order = iter(range(sum(len(batch) for batch in job.batches)))
    batches = [[next(order) for _ in batch] for batch in job.batches]
    loader = DataLoader(Chips(job), batch_sampler=batches, num_workers=job.workers, prefetch_factor=4)
    started = time.perf_counter()
    for _ in loader:
        pass
    sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
