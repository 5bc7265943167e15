"""Train on cloud-hosted rasters without making a copy.

Importing geostream imports neither lightning, kornia nor matplotlib, and starts no thread, loop or connection:
what is heavy is imported when its name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from geostream.accounting import stats
from geostream.errors import (
    ConfigError,
    DecodeError,
    GeostreamError,
    HeaderError,
    NotFoundError,
    QueryError,
    ReadError,
)

if TYPE_CHECKING:
    from geostream import samplers, splits
    from geostream.datamodule import GeoDataModule
    from geostream.dataset import (
        GeoDataset,
        IntersectionDataset,
        RasterDataset,
        UnionDataset,
        concat_samples,
        merge_samples,
        stack_samples,
        unbind_samples,
    )
    from geostream.deferred import DeviceWarp
    from geostream.loader import DataLoader
    from geostream.prediction import PredictionWriter
    from geostream.reading import info, read
    from geostream.samplers import Units
    from geostream.scan import build_index, load_index
    from geostream.scan.index import Index
    from geostream.statistics import estimate_statistics

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataLoader",
    "DecodeError",
    "DeviceWarp",
    "GeoDataModule",
    "GeoDataset",
    "GeostreamError",
    "HeaderError",
    "Index",
    "IntersectionDataset",
    "NotFoundError",
    "PredictionWriter",
    "QueryError",
    "RasterDataset",
    "ReadError",
    "UnionDataset",
    "Units",
    "__version__",
    "build_index",
    "concat_samples",
    "estimate_statistics",
    "info",
    "load_index",
    "merge_samples",
    "read",
    "samplers",
    "splits",
    "stack_samples",
    "stats",
    "unbind_samples",
]

_HOMES = {
    "build_index": "geostream.scan",
    "load_index": "geostream.scan",
    "Index": "geostream.scan.index",
    "DataLoader": "geostream.loader",
    "DeviceWarp": "geostream.deferred",
    "GeoDataModule": "geostream.datamodule",
    "GeoDataset": "geostream.dataset",
    "IntersectionDataset": "geostream.dataset",
    "PredictionWriter": "geostream.prediction",
    "RasterDataset": "geostream.dataset",
    "UnionDataset": "geostream.dataset",
    "Units": "geostream.samplers",
    "concat_samples": "geostream.dataset",
    "estimate_statistics": "geostream.statistics",
    "info": "geostream.reading",
    "merge_samples": "geostream.dataset",
    "read": "geostream.reading",
    "stack_samples": "geostream.dataset",
    "unbind_samples": "geostream.dataset",
}
"""Where each name that is imported on first use lives."""


def __getattr__(name: str) -> object:
    if name in {"samplers", "splits"}:
        return import_module(f"geostream.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'geostream' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
