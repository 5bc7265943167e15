"""Two datasets as one: where both have data, or where either has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geostream.dataset.base import GeoDataset, is_geo_dataset, parse_res, regridded
from geostream.dataset.batches import PlannedBatches
from geostream.dataset.collate import Sample, concat_samples, merge_samples
from geostream.dataset.prefetch import is_nothing_left, reading_validity
from geostream.errors import GeostreamError, QueryError
from geostream.grid import parse_crs, same_crs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyproj import CRS

    from geostream.dataset.query import GeoSlice
    from geostream.plan import Request

__all__ = ["IntersectionDataset", "UnionDataset"]

_Slices = tuple[slice, slice, slice]


class _Composition(GeoDataset):
    """Two datasets on one grid, the first one's."""

    datasets: list[Any]
    """The first dataset, and the second on the first one's grid: itself, or a copy that was brought there."""
    collate_fn: Callable[[Sequence[Sample]], Sample]
    """Makes one sample of the datasets' samples."""
    transforms: Callable[[Sample], Sample] | None
    """Applied to that sample."""

    def _combine(
        self,
        first: Any,
        second: Any,
        collate_fn: Callable[[Sequence[Sample]], Sample],
        transforms: Callable[[Sample], Sample] | None,
    ) -> None:
        for dataset in (first, second):
            if not is_geo_dataset(dataset):
                name = type(self).__name__
                raise TypeError(f"{name} combines datasets with .index, .bounds, .crs and .res, not {dataset!r}")
        res = parse_res(first.res)
        self.datasets = [first, regridded(second, parse_crs(first.crs), res)]
        self.collate_fn = collate_fn
        self.transforms = transforms

    @property
    def crs(self) -> CRS | None:
        """Coordinate reference system of both datasets. Setting it replaces both by copies."""
        return parse_crs(self.datasets[0].crs)

    @crs.setter
    def crs(self, value: Any) -> None:
        crs = parse_crs(value)
        if same_crs(crs, self.crs):
            return
        first = regridded(self.datasets[0], crs)
        second = regridded(self.datasets[1], crs, parse_res(first.res))
        self._move(crs)
        self.datasets = [first, second]

    @property
    def res(self) -> tuple[float, float]:
        """Pixel size (x, y) of both datasets in CRS units. Setting it replaces both by copies."""
        return parse_res(self.datasets[0].res)

    @res.setter
    def res(self, value: float | tuple[float, float]) -> None:
        res = parse_res(value)
        self.datasets = [regridded(dataset, self.crs, res) for dataset in self.datasets]

    def _owns_validity(self) -> bool:
        return any(
            not isinstance(dataset, GeoDataset) or dataset._owns_validity()  # noqa: SLF001 - one family
            for dataset in self.datasets
        )

    def _finish(self, sample: Sample) -> Sample:
        return sample if self.transforms is None else self.transforms(sample)


class IntersectionDataset(_Composition):
    """The data of two datasets where and when both have some: images with their masks, or images of two sensors.

    Args:
        dataset1: sets the CRS and the resolution.
        dataset2: a geostream or TorchGeo dataset. Brought to the first one's grid as a copy; itself unchanged.
        spatial_only: whether times are ignored. The second dataset then answers with all its times.
        collate_fn: makes one sample of the two.
        transforms: applied to that sample.

    Raises:
        QueryError: the datasets share no ground, or no time.
        TypeError: one of them is no geospatial dataset.
    """

    def __init__(
        self,
        dataset1: Any,
        dataset2: Any,
        spatial_only: bool = False,
        collate_fn: Callable[[Sequence[Sample]], Sample] = concat_samples,
        transforms: Callable[[Sample], Sample] | None = None,
    ) -> None:
        self._combine(dataset1, dataset2, collate_fn, transforms)
        self.spatial_only = spatial_only
        self.index = _overlay(self.datasets[0].index, self.datasets[1].index, spatial_only=spatial_only)

    def __getitem__(self, query: GeoSlice) -> Sample:
        """The sample at one place and time, of both datasets.

        Raises:
            ConfigError: the query is malformed.
            QueryError: one of the datasets has nothing there.
        """
        samples = [dataset[part] for dataset, part in self._parts(query)]
        return self._finish(self.collate_fn(samples))

    def requests(self, query: GeoSlice) -> list[Request]:
        """What both datasets will ask of the reader."""
        return [request for dataset, part in self._parts(query) for request in _requests(dataset, part)]

    def _parts(self, query: GeoSlice) -> list[tuple[Any, GeoSlice]]:
        x, y, t = self._query(query).slices
        second: GeoSlice = (x, y) if self.spatial_only else (x, y, t)
        return [(self.datasets[0], (x, y, t)), (self.datasets[1], second)]


class UnionDataset(_Composition):
    """The data of two datasets where and when either has some: two sensors, or two regions.

    Where both have some they are merged by validity: pixels of the second fill the holes of the first.

    Args:
        dataset1: sets the CRS and the resolution, and is preferred.
        dataset2: a geostream or TorchGeo dataset. Brought to the first one's grid as a copy; itself unchanged.
        collate_fn: makes one sample of those that have data.
        transforms: applied to that sample.

    Raises:
        TypeError: one of them is no geospatial dataset.
    """

    def __init__(
        self,
        dataset1: Any,
        dataset2: Any,
        collate_fn: Callable[[Sequence[Sample]], Sample] = merge_samples,
        transforms: Callable[[Sample], Sample] | None = None,
    ) -> None:
        self._combine(dataset1, dataset2, collate_fn, transforms)
        self.index = _joined(*(dataset.index for dataset in self.datasets))

    def __getitem__(self, query: GeoSlice) -> Sample:
        """The sample at one place and time, of one dataset or merged from both.

        Raises:
            ConfigError: the query is malformed.
            QueryError: neither dataset has anything there.
        """
        parsed = self._query(query)
        with reading_validity() as wanted:
            samples = self._samples(parsed.slices)
        if not samples:
            raise QueryError(f"{parsed} is not in the dataset, which spans {self.bounds}")
        sample = self.collate_fn(samples)
        if not wanted and not self._owns_validity():
            sample = {key: value for key, value in sample.items() if key != "mask_valid"}
        return self._finish(sample)

    def requests(self, query: GeoSlice) -> list[Request]:
        """What the datasets that have data there will ask of the reader."""
        slices = self._query(query).slices
        found: list[Request] = []
        for dataset in self.datasets:
            try:
                found += _requests(dataset, slices)
            except QueryError:
                continue
        return found

    def _samples(self, slices: _Slices) -> list[Sample]:
        samples: list[Sample] = []
        failure: GeostreamError | None = None
        for dataset in self.datasets:
            try:
                samples.append(dataset[slices])
            except QueryError:
                continue
            except IndexError:
                if isinstance(dataset, GeoDataset):
                    raise  # a mistake: datasets of this library say QueryError
                continue  # TorchGeo's way to say so
            except GeostreamError as error:
                if not is_nothing_left(error):
                    raise
                failure = error
        if failure is not None and not samples:
            raise failure
        return samples


def _requests(dataset: Any, query: GeoSlice) -> list[Request]:
    return dataset.requests(query) if isinstance(dataset, PlannedBatches) else []


def _joined(first: gpd.GeoDataFrame, second: gpd.GeoDataFrame) -> gpd.GeoDataFrame:
    """Rows of both indexes, whose CRSs are the same if perhaps written differently."""
    first, second = _in_naive_utc(first), _in_naive_utc(second)
    if first.crs is not None:
        second = second.set_crs(first.crs, allow_override=True)
    return pd.concat([first, second])


def _in_naive_utc(frame: gpd.GeoDataFrame) -> gpd.GeoDataFrame:
    """The index itself, or, where its times have a zone, a copy in UTC, so that times of any two indexes compare."""
    times = frame.index
    if times.left.tz is None:
        return frame
    left, right = (end.tz_convert("UTC").tz_localize(None) for end in (times.left, times.right))
    return frame.set_axis(pd.IntervalIndex.from_arrays(left, right, closed="both", name=times.name))


def _overlay(first: gpd.GeoDataFrame, second: gpd.GeoDataFrame, *, spatial_only: bool) -> gpd.GeoDataFrame:
    """Index of what two indexes share: an area that is more than a line, and an interval that may be an instant."""
    first, second = _in_naive_utc(first), _in_naive_utc(second)
    shapes1, shapes2 = (np.asarray(frame.geometry.values) for frame in (first, second))
    rows2, rows1 = shapely.STRtree(shapes1).query(shapes2, predicate="intersects")
    order = np.lexsort((rows2, rows1))
    rows1, rows2 = rows1[order], rows2[order]
    shared = shapely.intersection(shapes1[rows1], shapes2[rows2])
    solid = shapely.area(shared) > 0
    if not solid.any():
        raise QueryError(
            f"the datasets have no area in common: they span {first.total_bounds} and "
            f"{second.total_bounds} in the first one's CRS"
        )
    rows1, rows2, shared = rows1[solid], rows2[solid], shared[solid]
    times = first.index[rows1]
    if not spatial_only:
        times2 = second.index[rows2]
        left = times.left.where(times.left >= times2.left, times2.left)
        right = times.right.where(times.right <= times2.right, times2.right)
        both = np.asarray(left <= right)
        if not both.any():
            raise QueryError(
                "the datasets have no time in common where they share ground: pass "
                "IntersectionDataset(…, spatial_only=True) to ignore times"
            )
        rows1, shared = rows1[both], shared[both]
        times = pd.IntervalIndex.from_arrays(left[both], right[both], closed="both", name="datetime")
    columns = {"filepath": np.asarray(first["filepath"])[rows1]} if "filepath" in first else {}
    return gpd.GeoDataFrame(columns, index=times, geometry=list(shared), crs=first.crs)
