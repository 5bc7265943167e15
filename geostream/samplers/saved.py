"""Chips as a table: worked out once, looked at, filtered, kept in a file, and sampled again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geostream.errors import ConfigError, NotFoundError
from geostream.grid import parse_crs, same_crs
from geostream.samplers.base import EpochSampler, RankOptions
from geostream.samplers.checks import check_count, check_flag
from geostream.samplers.regions import Place, index_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["SavedBatchGeoSampler", "SavedGeoSampler", "windows"]

_NUMBERS = ("xmin", "xmax", "xres", "ymin", "ymax", "yres")
_TIMES = ("tmin", "tmax")
_BATCH = "batch"
_MOST_PIXELS = 2**30
"""Pixels of a chip, one band of which takes gigabytes."""

Windows: TypeAlias = "gpd.GeoDataFrame | str | os.PathLike[str]"
"""A table as `windows` makes it, or the path of the GeoParquet file that it was written to."""


def windows(sampler: EpochSampler[Any], epoch: int = 0) -> gpd.GeoDataFrame:
    """All chips of an epoch, over all ranks, in order. The sampler stays where it stands; its seed is drawn if need be.

    ``to_parquet(path)`` of the table keeps it, any GIS shows it, and rows may be dropped, put in another order or given
    columns of their own before it is sampled again.

    Args:
        sampler: one of this module's.
        epoch: number of the epoch.

    Returns:
        One row a chip: ``xmin``, ``xmax``, ``xres``, ``ymin``, ``ymax``, ``yres`` float64 in CRS units, ``tmin`` and
        ``tmax``, the box as ``geometry``, and of batch samplers the number of the ``batch``.

    Raises:
        ConfigError: ``sampler`` is none of this module's.
    """
    if not isinstance(sampler, EpochSampler):
        raise ConfigError(f"a {type(sampler).__name__} is no sampler: pass one of geostream.samplers")
    items: Sequence[Any] = sampler.items(check_count("epoch", epoch, 0))
    batched = hasattr(sampler, "batch_size")
    places: list[Place] = [place for batch in items for place in batch] if batched else list(items)
    numbers = np.array([(x.start, x.stop, x.step, y.start, y.stop, y.step) for x, y, _ in places], dtype=np.float64)
    table: dict[str, Any] = dict(zip(_NUMBERS, numbers.T, strict=True))
    table |= {"tmin": pd.DatetimeIndex([t.start for *_, t in places])}
    table |= {"tmax": pd.DatetimeIndex([t.stop for *_, t in places])}
    if batched:
        table[_BATCH] = np.repeat(np.arange(len(items)), [len(batch) for batch in items])
    boxes = shapely.box(*numbers[:, [0, 3, 1, 4]].T)
    return gpd.GeoDataFrame(table, geometry=boxes, crs=getattr(getattr(sampler, "index", None), "crs", None))


class _Saved:
    """The rows of a table as places."""

    def __init__(self, dataset: Any, given: Windows) -> None:
        table = given if isinstance(given, pd.DataFrame) else _read(given)
        missing = [name for name in (*_NUMBERS, *_TIMES) if name not in table]
        if missing or not len(table):
            raise ConfigError(f"no windows to sample: the table lacks {missing or 'rows'}; make it by samplers.windows")
        crs, own = parse_crs(getattr(table, "crs", None)), parse_crs(index_of(dataset).crs)
        if not same_crs(crs, own):
            raise ConfigError(
                f"the windows are in {_name(crs)}, the dataset in {_name(own)}: set dataset.crs, or make them anew"
            )
        self.numbers = np.column_stack([_numbers(table, name) for name in _NUMBERS])
        self.times = [_times(table, name) for name in _TIMES]
        self.batch = table[_BATCH].to_numpy() if _BATCH in table else None
        if self.batch is not None:
            _refuse_rows(pd.isna(self.batch), "has no number of its batch", table)
        _refuse_rows(self.times[0] > self.times[1], "ends (tmax) before it begins (tmin)", table)
        self._check_boxes(table)

    def _check_boxes(self, table: pd.DataFrame) -> None:
        """Boxes from min to max, of a size that can be read as one chip."""
        pixels = np.ones(len(self))
        for axis, (low, high, res) in (("x", self.numbers[:, :3].T), ("y", self.numbers[:, 3:].T)):
            _refuse_rows(~(res > 0), f"has {axis}res that is not positive", table)
            _refuse_rows(~(low < high), f"has {axis}min that is not less than {axis}max", table)
            pixels *= (high - low) / res
        _refuse_rows(pixels > _MOST_PIXELS, f"is no chip: its box holds more than {_MOST_PIXELS} pixels", table)

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, row: int) -> Place:
        """The query for one row."""
        xmin, xmax, xres, ymin, ymax, yres = self.numbers[row].tolist()
        return slice(xmin, xmax, xres), slice(ymin, ymax, yres), slice(*(time[row] for time in self.times))


class SavedGeoSampler(EpochSampler[Place]):
    """Chips that were worked out before, one after the other.

    Args:
        dataset: the GeoDataset that they are for.
        windows: a table as `windows` makes it, or the path of the GeoParquet file that it was written to.
        shuffle: another order every epoch, instead of the table's.
        generator: its ``initial_seed()`` is the seed of the shuffle; by default one is drawn from torch's global
            generator at the first iteration.
        options: see `RankOptions`.

    Raises:
        ConfigError: a table without windows, with a column or row that is none, or in another CRS than the dataset's.
        NotFoundError: there is no such file.
    """

    def __init__(
        self,
        dataset: Any,
        windows: Windows,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(generator=generator, **options)
        self.index = index_of(dataset)
        self.shuffle = check_flag("shuffle", shuffle)
        self._saved = _Saved(dataset, windows)
        self.length = len(self._saved)

    @property
    def total(self) -> int:
        """Chips in a whole epoch, over all ranks."""
        return self.length

    @property
    def random(self) -> bool:
        """Whether epochs differ."""
        return self.shuffle

    def _order(self, rng: np.random.Generator) -> Sequence[Place]:
        rows = rng.permutation(self.length) if self.shuffle else np.arange(self.length)
        return [self._saved.place(int(row)) for row in rows]


class SavedBatchGeoSampler(EpochSampler[list[Place]]):
    """Batches that were worked out before, or batches of chips that were.

    Args:
        dataset: the GeoDataset that they are for.
        windows: a table as `windows` makes it, or the path of the GeoParquet file that it was written to.
        batch_size: chips in a batch, the last of which may have fewer; by default the table's own batches.
        shuffle: another order every epoch, instead of the table's: of chips, or of the table's own batches.
        generator: its ``initial_seed()`` is the seed of the shuffle; by default one is drawn from torch's global
            generator at the first iteration.
        options: see `RankOptions`.

    Raises:
        ConfigError: a table without windows, without batches where ``batch_size`` is left out, or in another CRS than
            the dataset's.
        NotFoundError: there is no such file.
    """

    def __init__(
        self,
        dataset: Any,
        windows: Windows,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(generator=generator, **options)
        self.index = index_of(dataset)
        self.shuffle = check_flag("shuffle", shuffle)
        self._saved = _Saved(dataset, windows)
        self._batches: list[np.ndarray[Any, Any]] | None = None
        if batch_size is None:
            if self._saved.batch is None:
                raise ConfigError("the windows are those of single chips: pass batch_size")
            self._batches = _runs(self._saved.batch)
            self.batch_size = max(map(len, self._batches))
        else:
            self.batch_size = check_count("batch_size", batch_size)

    @property
    def sampler(self) -> SavedBatchGeoSampler:
        """The sampler itself: Lightning calls `set_epoch` on a batch sampler's ``sampler``, and nowhere else."""
        return self

    @property
    def total(self) -> int:
        """Batches in a whole epoch, over all ranks."""
        return -(-len(self._saved) // self.batch_size) if self._batches is None else len(self._batches)

    @property
    def random(self) -> bool:
        """Whether epochs differ."""
        return self.shuffle

    def _order(self, rng: np.random.Generator) -> Sequence[list[Place]]:
        number = len(self._saved) if self._batches is None else len(self._batches)
        order = rng.permutation(number) if self.shuffle else np.arange(number)
        if self._batches is None:
            batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        else:
            batches = [self._batches[int(place)] for place in order]
        return [[self._saved.place(int(row)) for row in batch] for batch in batches]


def _numbers(table: pd.DataFrame, name: str) -> np.ndarray[Any, Any]:
    try:
        numbers = table[name].to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"column {name} of the windows does not hold numbers: {error}") from error
    _refuse_rows(~np.isfinite(numbers), f"has no finite {name}", table)
    return numbers


def _times(table: pd.DataFrame, name: str) -> pd.DatetimeIndex:
    try:
        times = pd.DatetimeIndex(table[name])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"column {name} of the windows does not hold times: {error}") from error
    if times.tz is not None:
        times = times.tz_convert("UTC").tz_localize(None)
    _refuse_rows(times.isna(), f"has no {name}", table)
    return times


def _refuse_rows(bad: Any, what: str, table: pd.DataFrame) -> None:
    """Refuse the windows by the first of the bad rows, if there is any."""
    rows = np.flatnonzero(bad)
    if len(rows):
        shown = table.iloc[rows[0]][[*_NUMBERS, *_TIMES]].to_dict()
        raise ConfigError(f"row {rows[0]} of the windows {what} (as do {len(rows) - 1} others): {shown}")


def _runs(batch: Any) -> list[np.ndarray[Any, Any]]:
    """Rows of each batch, which stand together."""
    return np.split(np.arange(len(batch)), np.flatnonzero(batch[1:] != batch[:-1]) + 1)


def _read(path: Any) -> gpd.GeoDataFrame:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"windows={path!r}: pass the table that samplers.windows makes, or the path of its file")
    try:
        return gpd.read_parquet(path)
    except ImportError as error:
        raise ConfigError("reading windows needs pyarrow: pip install 'geostream[index]'") from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: there are no such windows: make them by samplers.windows(…).to_parquet"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no windows that samplers.windows(…).to_parquet wrote: {error}") from error


def _name(crs: Any) -> str:
    return "no CRS" if crs is None else str(crs.name)
