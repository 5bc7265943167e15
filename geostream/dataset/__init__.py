"""Datasets: scenes read by place and time, on their own, joined and merged; and samples collated into batches."""

from geostream.dataset.base import GeoDataset
from geostream.dataset.collate import Sample, concat_samples, merge_samples, stack_samples, unbind_samples
from geostream.dataset.compose import IntersectionDataset, UnionDataset
from geostream.dataset.prefetch import Prefetched
from geostream.dataset.query import GeoSlice, Query
from geostream.dataset.raster import RasterDataset

__all__ = [
    "GeoDataset",
    "GeoSlice",
    "IntersectionDataset",
    "Prefetched",
    "Query",
    "RasterDataset",
    "Sample",
    "UnionDataset",
    "concat_samples",
    "merge_samples",
    "stack_samples",
    "unbind_samples",
]
