"""Comparing a TorchGeo class on local files with its streaming class on the same files behind a server."""

from __future__ import annotations

import inspect
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from layouts import SHAPE, layout_of

from geostream.errors import ConfigError
from geostream.testing.rasters import random_window
from geostream.torchgeo import streaming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from geostream.testing import RangeServer


_ON_S3 = {"CDL", "Sentinel2", "SouthAfricaCropType"}
_LEFT_OUT = {"Landsat": "names no files, which its subclasses do"}


def raster_classes(theirs: Any) -> list[type]:
    """`RasterDataset` and all subclasses that TorchGeo has, by name."""
    found = {theirs.RasterDataset}
    waiting = [theirs.RasterDataset]
    while waiting:
        below = [cls for cls in waiting.pop().__subclasses__() if cls.__module__.startswith("torchgeo.datasets")]
        waiting += below
        found |= set(below)
    return sorted(found, key=lambda cls: cls.__name__)


def table_row(cls: type, server: RangeServer, root: Path) -> str:
    """Run a class, and say what came of it: a row of the table in docs/torchgeo-classes.md.

    Its files are found by listing a bucket where the class joins names to its path itself; else as a list of URLs.
    """
    layout, name = layout_of(cls), cls.__name__
    try:
        streaming(cls)
    except ConfigError as error:
        return f"| `{name}` | | refused: {str(error).partition(': ')[2]} |"
    if inspect.isabstract(cls):
        return f"| `{name}` | | left out: abstract |"
    if layout is None:
        return f"| `{name}` | | left out: {_LEFT_OUT.get(name, 'no layout of its files is known')} |"
    way = "s3" if name in _ON_S3 else "http"
    found = differences(*pair(cls, root / name, server, way))
    result = f"differs: {found[0]}" if found else "same samples"
    return f"| `{name}` | {layout}, {way} | {result} |"


def pair(cls: type, folder: Path, server: RangeServer, way: str) -> tuple[Any, Any]:
    """The class on its local files, and its streaming class on those behind the server; ``way`` is s3 or http."""
    layout = layout_of(cls)
    assert layout is not None
    names = layout.write(folder)
    if layout.attributes:
        cls = type(cls.__name__, (cls,), layout.attributes)
    if way == "s3":
        where: Any = f"s3://{server.bucket}/{folder.name}/"
        access = {"storage_options": server.storage_options}
    else:
        where, access = [server.url_for(f"{folder.name}/{name}") for name in names], {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours = streaming(cls)(where, **layout.options, **access)
    return cls(str(folder), **layout.options), ours


def windows(dataset: Any, count: int = 6) -> Iterator[tuple[slice, slice]]:
    """Random windows on the first scene's pixels, some of which leave it."""
    rng = np.random.default_rng(3)
    (left, top), (xres, yres) = (dataset.index.geometry.iloc[0].bounds[i] for i in (0, 3)), dataset.res
    for _ in range(count):
        at = random_window(rng, SHAPE, 64, outside=0.3)
        x, y = left + at.col_off * xres, top - at.row_off * yres
        yield slice(x, x + at.width * xres), slice(y - at.height * yres, y)


def differences(theirs: Any, ours: Any) -> list[str]:
    """What tells two datasets apart: their index and their samples."""
    found = [
        f"{name}: {expected} and {value}"
        for name, expected, value in (
            ("res", tuple(theirs.res), tuple(ours.res)),
            ("bounds", theirs.bounds, ours.bounds),
            ("crs", theirs.crs, ours.crs),
            ("times", list(theirs.index.index), list(ours.index.index)),
            ("names", [p.rsplit("/", 1)[-1] for p in theirs.index.filepath], _names(ours)),
        )
        if expected != value
    ]
    for query in windows(theirs):
        try:
            expected = theirs[query]
        except IndexError:
            expected = None
        try:
            sample = ours[query]
        except IndexError:
            sample = None
        if (expected is None) != (sample is None):
            found.append(f"{query}: {'nothing' if expected is None else 'something'} expected")
        elif expected is not None:
            found += [f"{query}: {name}" for name in unlike(expected, sample)]
    return found


def _names(dataset: Any) -> list[str]:
    return [url.rsplit("/", 1)[-1] for url in dataset.index.filepath]


def unlike(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names of what differs in two samples."""
    if first.keys() != second.keys():
        return [f"keys {sorted(first)} and {sorted(second)}"]
    return [name for name, value in first.items() if not _alike(value, second[name])]


def _alike(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and first.shape == second.shape
            and np.array_equal(first.numpy(), second.numpy(), equal_nan=first.is_floating_point())
        )
    return bool(first == second)


class Prepared(torch.utils.data.Dataset[Any]):
    """A dataset that crosses into spawned workers where TorchGeo cannot be imported without this folder's help."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, query: Any) -> Any:
        return self.dataset[query]

    def __getstate__(self) -> bytes:
        return pickle.dumps(self.dataset)

    def __setstate__(self, state: bytes) -> None:
        from conftest import _import_torchgeo

        _import_torchgeo()
        self.dataset = pickle.loads(state)
