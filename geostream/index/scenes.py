"""The scenes of an index by URL, made when they are asked for; and what is asked of very many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import shapely

from geostream.index.collector import uncollected
from geostream.index.footprint import footprints
from geostream.index.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

    from geostream.index.lookup import Times
    from geostream.index.table import SceneTable

__all__ = ["IndexedScenes", "band_counts", "completed", "pixel_types", "scene_footprints", "scene_times"]

_KEPT = 4096
"""Scenes kept with their headers unpacked."""


class IndexedScenes(Mapping[str, Scene]):
    """Facts about each file, by path or URL: a mapping over rows of a table, whatever their number.

    Args:
        table: the rows.
        urls: the files it is about, all of them in the table; None for all.
        nodata: what stands for "nothing" in all files' bands, whatever they declare.
    """

    def __init__(self, table: SceneTable, urls: Sequence[str] | None = None, nodata: float | None = None) -> None:
        self.table = table
        """The rows of all scenes, these and others."""
        known = table.row_of
        is_whole = urls is None or (len(urls) == len(known) and list(urls) == list(known))
        self._rows = known if is_whole or urls is None else dict(zip(urls, map(known.__getitem__, urls), strict=True))
        self._nodata = nodata
        self._scene = lru_cache(_KEPT)(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        urls = None if self._rows is self.table.row_of else list(self._rows)
        return type(self), (self.table, urls, self._nodata)

    def __deepcopy__(self, _: object) -> IndexedScenes:
        return self

    def only(self, urls: Sequence[str], nodata: float | None = None) -> IndexedScenes:
        """The same scenes, fewer of them, perhaps as if the files declared ``nodata``."""
        return IndexedScenes(self.table, urls, nodata)

    def lacking(self, urls: Sequence[str]) -> list[str]:
        """Those files that are not here."""
        return [url for url in urls if url not in self._rows]

    def _made(self, url: str) -> Scene:
        scene = self.table.scene(self._rows[url], url)
        return scene if self._nodata is None else scene.declaring(self._nodata)

    def __getitem__(self, url: str) -> Scene:
        return self._scene(url)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, url: object) -> bool:
        return url in self._rows

    def siblings(self) -> dict[str, dict[str, str]]:
        """For each file that is an asset of a STAC item, all of its files that are here, by the names of its assets."""
        names = ("url", "item", "asset")
        items: dict[str, dict[str, str]] = {}
        found: dict[str, dict[str, str]] = {}
        for url, item, asset in zip(*(self.table.column(name).to_pylist() for name in names), strict=True):
            if item is not None and url in self:
                found[url] = items.setdefault(item, {})
                found[url][asset] = url
        return found

    def row(self, url: str) -> int:
        """Number of a scene's row in the table."""
        return self._rows[url]

    def rows(self, urls: Sequence[str]) -> NDArray[np.intp]:
        """Numbers of scenes' rows in the table."""
        if len(urls) == len(self) and list(urls) == list(self._rows):
            return self._numbers
        return np.fromiter(map(self._rows.__getitem__, urls), np.intp, len(urls))

    @cached_property
    def _numbers(self) -> NDArray[np.intp]:
        return np.fromiter(self._rows.values(), np.intp, len(self._rows))


def scene_times(scenes: Mapping[str, Scene], urls: Sequence[str], default: tuple[pd.Timestamp, pd.Timestamp]) -> Times:
    """First and last instant of each file: what an index says, as far as it does, or else ``default``."""
    always = tuple(pd.DatetimeIndex([instant]).repeat(len(urls)) for instant in default)
    if not isinstance(scenes, IndexedScenes):
        return always[0], always[1]
    rows = scenes.rows(urls)
    ends = [scenes.table.numbers(name)[rows] for name in ("datetime_start", "datetime_end")]
    first, last = (pd.DatetimeIndex(end.view("datetime64[us]")) for end in ends)
    unknown = np.asarray(first.isna())
    return completed(first, unknown, always[0]), completed(last, unknown, always[1])


def completed(instants: pd.DatetimeIndex, unknown: NDArray[np.bool_], defaults: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Instants of scenes, ``defaults`` where they are not known."""
    if not unknown.any():
        return instants
    if unknown.all():
        return defaults
    if instants.unit != defaults.unit:
        instants = instants.as_unit(defaults.unit)
    return instants.where(~unknown, defaults)


def band_counts(scenes: Mapping[str, Scene], urls: Sequence[str]) -> NDArray[np.int64]:
    """(n,) number of bands of each file."""
    if isinstance(scenes, IndexedScenes):
        counts: NDArray[np.int64] = scenes.table.numbers("bands")[scenes.rows(urls)].astype(np.int64)
        return counts
    return np.array([scenes[url].count for url in urls], dtype=np.int64)


def pixel_types(scenes: Mapping[str, Scene]) -> set[np.dtype[Any]]:
    """Pixel types that occur."""
    if isinstance(scenes, IndexedScenes):
        names = scenes.table.column("dtype").take(scenes.rows(list(scenes))).unique()
        return {np.dtype(name) for name in names.to_pylist()}
    return {scene.dtype for scene in scenes.values()}


def scene_footprints(
    scenes: Mapping[str, Scene], urls: Sequence[str], crs: CRS | None
) -> Sequence[Geometry] | NDArray[np.object_]:
    """Where scenes lie, in ``crs``.

    Raises:
        ConfigError: one has no CRS while one is asked for, or lies where ``crs`` is not defined.
    """
    if not isinstance(scenes, IndexedScenes):
        return footprints([scenes[url].grid for url in urls], crs)
    rows = scenes.rows(urls)
    transforms = scenes.table.transforms()[rows]
    plain = _axis_aligned(scenes.table, rows, transforms, crs)
    if plain.all():
        return _boxes(scenes.table, rows, transforms)
    found = np.full(len(urls), None, dtype=object)
    found[plain] = _boxes(scenes.table, rows[plain], transforms[plain])
    others = np.flatnonzero(~plain).tolist()
    # As objects, since NumPy would look into the parts of some.
    for number, shape in zip(others, footprints([scenes[urls[i]].grid for i in others], crs), strict=True):
        found[number] = shape
    return found


def _axis_aligned(
    table: SceneTable, rows: NDArray[np.intp], transforms: NDArray[np.float64], crs: CRS | None
) -> NDArray[np.bool_]:
    """Which rows' rasters are boxes in ``crs``."""
    straight = (transforms[:, 1] == 0) & (transforms[:, 3] == 0)
    curved: NDArray[np.bool_] = table.numbers("curved")[rows].astype(bool)
    found: NDArray[np.bool_] = straight & ~curved & table.lies_in(crs)[rows]
    return found


def _boxes(table: SceneTable, rows: NDArray[np.intp], transforms: NDArray[np.float64]) -> NDArray[Any]:
    a, _, c, _, e, f = transforms.T
    x, y = c + a * table.numbers("width")[rows], f + e * table.numbers("height")[rows]
    with uncollected():
        shapes: NDArray[Any] = shapely.box(np.minimum(c, x), np.minimum(f, y), np.maximum(c, x), np.maximum(f, y))
    return shapes
