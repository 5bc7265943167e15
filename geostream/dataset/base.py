"""What all geospatial datasets share: an index of footprints and times, bounds, queries, batches, `&` and `|`."""

from __future__ import annotations

import abc
import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from geostream.dataset.batches import PlannedBatches
from geostream.dataset.collate import Sample
from geostream.dataset.plot import draw, style_of
from geostream.dataset.query import Query, parse_query
from geostream.dataset.reproject import Origin
from geostream.errors import ConfigError, QueryError
from geostream.grid import parse_crs, same_crs
from geostream.index import SceneLookup

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from geopandas import GeoDataFrame
    from matplotlib.figure import Figure
    from pyproj import CRS

    from geostream.borders import Border
    from geostream.dataset.asked import AskedBefore
    from geostream.dataset.compose import IntersectionDataset, UnionDataset
    from geostream.dataset.query import GeoSlice

__all__ = ["GeoDataset", "is_geo_dataset", "parse_res", "regridded"]


def is_geo_dataset(value: Any) -> bool:
    """Whether ``value`` can be combined: a `GeoDataset`, or TorchGeo's, or anything of that shape."""
    names = ("index", "bounds", "crs", "res", "__getitem__")
    return isinstance(value, GeoDataset) or all(hasattr(value, name) for name in names)


def parse_res(res: float | tuple[float, float]) -> tuple[float, float]:
    """A pixel size as (x, y), positive.

    Raises:
        ConfigError: it is neither a positive number nor two of them.
    """
    try:
        x, y = (float(side) for side in ((res, res) if isinstance(res, int | float | np.number) else res))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"res={res!r}: pass a pixel size in CRS units, or one for x and one for y") from error
    if not (0 < x < float("inf") and 0 < y < float("inf")):
        raise ConfigError(f"res={res!r}: a pixel size is positive and finite")
    return x, y


def regridded(dataset: Any, crs: CRS | None, res: tuple[float, float] | None = None) -> Any:
    """``dataset`` itself if it is on this grid, else a copy of it that is; the dataset is never changed.

    A dataset of this library is copied shallowly, since its setters replace what they change. Another's is copied
    deeply, since TorchGeo's setters change the index in place. Without ``res``, the CRS's setter decides it.
    """
    moves, scales = not same_crs(parse_crs(dataset.crs), crs), res is not None and tuple(dataset.res) != res
    if not moves and not scales:
        return dataset
    twin = copy.copy(dataset) if isinstance(dataset, GeoDataset) else copy.deepcopy(dataset)
    if moves:
        twin.crs = crs
    if res is not None:
        twin.res = res
    return twin


class GeoDataset(PlannedBatches, Dataset[Sample], abc.ABC):
    """A dataset that is asked for places and times.

    Datasets combine: ``images & masks`` answers where both have data, ``a | b`` where either has. Neither changes its
    operands: the second is brought to the first's CRS and resolution as a copy.

    A subclass sets `index` and ``_res`` and defines ``__getitem__``. It may define `requests`, so that the batches that
    read it are read as one plan.
    """

    index: GeoDataFrame
    """Footprints in the dataset's CRS, one a scene, labelled by intervals of time (`pandas.IntervalIndex` named
    ``datetime``, closed at both ends). Replace it to restrict the dataset; to reproject it, set `crs`."""
    border: Border | None = None
    """What a split of a dataset (`geostream.splits`) keeps out of."""
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    """Where the dataset's files are."""
    _res: tuple[float, float] = (0.0, 0.0)
    _lookup: SceneLookup | None = None
    _kept_answers: AskedBefore | None = None
    _origin: Origin | None = None

    filename_glob: str = "*"
    """Which file names, of those listed, belong to the dataset."""

    __add__ = None  # type: ignore[assignment]  # adding is ambiguous: & or |

    @abc.abstractmethod
    def __getitem__(self, query: GeoSlice) -> Sample:
        """The sample at one place and time.

        Raises:
            ConfigError: the query is malformed.
            QueryError: nothing lies there.
        """

    def __and__(self, other: Any) -> IntersectionDataset:
        """Both datasets' data where and when both have some."""
        from geostream.dataset.compose import IntersectionDataset  # noqa: PLC0415 - it derives from this class

        return IntersectionDataset(self, other) if is_geo_dataset(other) else NotImplemented

    def __or__(self, other: Any) -> UnionDataset:
        """Either dataset's data, the first one's where both have some."""
        from geostream.dataset.compose import UnionDataset  # noqa: PLC0415 - it derives from this class

        return UnionDataset(self, other) if is_geo_dataset(other) else NotImplemented

    def plot(self, sample: Sample, show_titles: bool = True, suptitle: str | None = None) -> Figure:
        """Show a sample: its ``image``, ``mask`` and ``prediction``, as far as it has them. Needs matplotlib.

        Images are shown in ``rgb_bands``, or in grey where the dataset does not read them (of files whose bands have no
        names, the first three are shown, or the only one), stretched between the 2nd and the 98th percentile. Masks
        have the colours of ``cmap``, which is the file's colour map unless the class says otherwise. The dates of a
        time series stand in a row. What is not valid, according to ``mask_valid``, is left blank.

        Args:
            sample: what the dataset returned, perhaps with ``prediction``, shaped like ``mask``, added.
            show_titles: whether each panel has a title.
            suptitle: a title for all.

        Returns:
            The figure, which is also pyplot's current one.

        Raises:
            ConfigError: there is nothing to show, or matplotlib is not installed.
        """
        return draw(sample, style_of(self), show_titles=show_titles, suptitle=suptitle)

    def __len__(self) -> int:
        """Number of scenes in the index."""
        return len(self.index)

    def __str__(self) -> str:
        bounds = self.bounds if len(self) else None
        lines = (f"{type(self).__name__} Dataset", "type: GeoDataset", f"bbox: {bounds}", f"size: {len(self)}")
        return "\n    ".join(lines)

    @property
    def bounds(self) -> tuple[slice, slice, slice]:
        """``(xmin:xmax:xres, ymin:ymax:yres, tmin:tmax:1)``: the box around the index, in CRS units and UTC."""
        lookup, res = self._scene_lookup, self.res
        if lookup.box is None:
            raise QueryError("the dataset's index is empty, so that it has no bounds")
        xmin, ymin, xmax, ymax = lookup.box
        return slice(xmin, xmax, res[0]), slice(ymin, ymax, res[1]), slice(*lookup.span, 1)

    @property
    def crs(self) -> CRS | None:
        """Coordinate reference system of queries, bounds and samples; None where the files have none."""
        return self._scene_lookup.crs

    @crs.setter
    def crs(self, value: Any) -> None:
        crs = parse_crs(value)
        if same_crs(crs, self.crs):
            return
        self._res = self._move(crs)

    def _move(self, crs: CRS | None) -> tuple[float, float]:
        """Carry the index to ``crs``, and return the pixel size that goes with it."""
        origin = self._origin
        if origin is None or not origin.leads_to(self.index):
            origin = Origin.of(self.index, self.res, self.crs)
        border = None if self.border is None else self.border.carried(crs)
        self.index, res = origin.carried(crs)
        self.border = border
        self._origin = origin.leading_to(self.index)
        return res

    @property
    def res(self) -> tuple[float, float]:
        """Pixel size (x, y) in CRS units. Setting one number sets both."""
        return self._res

    @res.setter
    def res(self, value: float | tuple[float, float]) -> None:
        self._res = parse_res(value)
        self._origin = None

    @property
    def _scene_lookup(self) -> SceneLookup:
        if self._lookup is None or not self._lookup.describes(self.index):
            self._lookup = SceneLookup(self.index)
        return self._lookup

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in {"_lookup", "_kept_answers"}}

    def _owns_validity(self) -> bool:
        """Whether a ``mask_valid`` in the samples is there for the user, not for a union around the dataset."""
        return True

    def _query(self, query: GeoSlice) -> Query:
        parsed = parse_query(query, self.bounds)
        if self.border is not None:
            self.border.check(parsed.grid(self.crs))
        return parsed

    def _disambiguate_slice(self, index: GeoSlice) -> tuple[slice, slice, slice]:
        """The completed query as three slices, under TorchGeo's name for it."""
        return self._query(index).slices

    def _slice_to_tensor(self, index: GeoSlice) -> Tensor:
        """The completed query as nine float64 numbers, under TorchGeo's name for it; times are POSIX seconds."""
        return bounds_tensor(self._query(index))


def bounds_tensor(query: Query) -> Tensor:
    """``(xmin, xmax, xres, ymin, ymax, yres, tmin, tmax, n)`` float64, times as POSIX seconds."""
    x, y, t = query.slices
    numbers = [x.start, x.stop, x.step, y.start, y.stop, y.step, t.start.timestamp(), t.stop.timestamp(), t.step]
    return torch.tensor(numbers, dtype=torch.float64)
