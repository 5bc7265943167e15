"""The arm that training code has today: rasterio over GDAL's ``/vsicurl`` in the workers of torch's DataLoader.

Workers are forked from a process that has opened nothing, which is what GDAL's connections need.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
import torch
from affine import Affine
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from geostream.bench.jobs import Job

__all__ = ["GDAL_OPTIONS", "batches", "pick_workers"]

GDAL_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": ".tif",
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_MULTIRANGE": "YES",
    "GDAL_HTTP_MAX_RETRY": "3",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
    "GDAL_CACHEMAX": "128",
    "VSI_CACHE": "FALSE",
}
"""How GDAL is tuned: no probing for sidecars, the header in one read, neighbouring ranges merged, several in flight,
and in **each** worker as large a cache of decoded tiles as geostream has in all. A cache of compressed bytes would hold
the benchmark's few scenes, which an archive's would not fit."""

_PREFETCH = 2
"""Batches in flight for each worker: torch's default."""

WORKERS = (0, 2, 4, 8, 16)
"""Numbers of workers that are tried."""

_OPEN_FILES = 256
_IS_LABEL = "l_"


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Chips as a hand-written torch dataset reads them, each file opened once in each worker."""

    def __init__(self, job: Job, crs: str | None, size: int) -> None:
        self.windows = [chip for batch in job.windows for chip in batch]
        self.crs = crs
        self.size = size

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Image, float32 (C, H, W), and mask, int64 (H, W), where the case has them."""
        urls, bounds = self.windows[number]
        is_label = [url.rpartition("/")[2].startswith(_IS_LABEL) for url in urls]
        images = [self._read(url, bounds) for url, label in zip(urls, is_label, strict=True) if not label]
        masks = [self._read(url, bounds) for url, label in zip(urls, is_label, strict=True) if label]
        sample = {}
        if images:
            pixels = images[0] if len(images) == 1 else np.concatenate(images)
            sample["image"] = torch.from_numpy(pixels).float()
        if masks:
            sample["mask"] = torch.from_numpy(masks[0][0]).long()
        return sample

    def _read(self, url: str, bounds: tuple[float, float, float, float]) -> np.ndarray[Any, Any]:
        source, size = _open(url), self.size
        xmin, ymin, xmax, ymax = bounds
        if self.crs is None:
            left, top, res = source.transform.c, source.transform.f, source.transform.a
            window = Window(round((xmin - left) / res), round((top - ymax) / res), size, size)
            pixels: np.ndarray[Any, Any] = source.read(window=window)
            return pixels
        transform = Affine((xmax - xmin) / size, 0, xmin, 0, (ymin - ymax) / size, ymax)
        grid = {"crs": self.crs, "transform": transform, "width": size, "height": size}
        with WarpedVRT(source, resampling=Resampling.bilinear, **grid) as warped:
            on_grid: np.ndarray[Any, Any] = warped.read()
        return on_grid


@lru_cache(_OPEN_FILES)
def _open(url: str) -> Any:
    return rasterio.open(f"/vsicurl/{url}")


class _Opener:
    """Opens the files before a worker's first batch, as long as they are few: what is timed is the steady state."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls if len(urls) <= _OPEN_FILES else []

    def __call__(self, worker: int) -> None:  # noqa: ARG002 - torch's signature
        for url in self.urls:
            _open(url)


def batches(job: Job, size: int) -> DataLoader[Any]:
    """The arm's batches: of the job's windows, in order."""
    os.environ.update(GDAL_OPTIONS)
    numbers = iter(range(sum(len(batch) for batch in job.windows)))
    order = [[next(numbers) for _ in batch] for batch in job.windows]
    opener = _Opener(sorted({url for batch in job.windows for urls, _ in batch for url in urls}))
    if not job.workers:
        opener(0)
        return DataLoader(Windows(job, job.known_case.crs, size), batch_sampler=order)
    return DataLoader(
        Windows(job, job.known_case.crs, size),
        batch_sampler=order,
        num_workers=job.workers,
        prefetch_factor=_PREFETCH,
        worker_init_fn=opener,
        multiprocessing_context="fork",
    )


def pick_workers(speeds: dict[int, float]) -> int:
    """The number of workers that read most chips a second."""
    return max(speeds, key=lambda workers: speeds[workers])
