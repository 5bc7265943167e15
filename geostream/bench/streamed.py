"""geostream's own arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

import geostream as gs
from geostream.bench.cases import BATCH, CHIP, open_dataset
from geostream.bench.jobs import draw_queries
from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from geostream.bench.jobs import Job

__all__ = ["batches", "has_tile_sampler"]


def has_tile_sampler() -> bool:
    """Whether this geostream has a sampler of whole tiles."""
    return hasattr(gs.samplers, "TileBatchGeoSampler")


def batches(job: Job) -> Iterable[Any]:
    """The arm's loader, its dataset opened: files listed, headers read.

    Raises:
        ConfigError: an arm that this geostream does not have.
    """
    dtype = "native" if job.arm.endswith("-native") else None
    dataset = open_dataset(job.known_case, job.urls, job.storage_options, dtype)
    if job.arm.startswith("tile"):
        if not has_tile_sampler():
            raise ConfigError("this geostream has no TileBatchGeoSampler")
        generator = torch.Generator().manual_seed(job.seed)
        tiles: Any = gs.samplers.TileBatchGeoSampler(dataset, CHIP, BATCH, generator=generator)
        return gs.DataLoader(dataset, batch_sampler=tiles)
    sampler: Any = draw_queries(dataset, job)
    if job.arm == "torch":
        return TorchDataLoader(dataset, batch_sampler=sampler, num_workers=job.workers, collate_fn=gs.stack_samples)
    return gs.DataLoader(dataset, batch_sampler=sampler)
