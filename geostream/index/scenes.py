"""The scenes of an index by URL, made when they are asked for; and what is asked of very many at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import shapely

from geostream.index.footprint import footprints
from geostream.index.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

    from geostream.index.table import SceneTable

__all__ = ["IndexedScenes", "band_counts", "pixel_types", "scene_footprints", "scene_times"]

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
        self._chosen = None if urls is None else dict.fromkeys(urls)
        self._nodata = nodata
        self._scene = lru_cache(_KEPT)(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, None if self._chosen is None else list(self._chosen), self._nodata)

    def __deepcopy__(self, _: object) -> IndexedScenes:
        return self

    def only(self, urls: Sequence[str], nodata: float | None = None) -> IndexedScenes:
        """The same scenes, fewer of them, perhaps as if the files declared ``nodata``."""
        return IndexedScenes(self.table, urls, nodata)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {url: row for row, url in enumerate(self.table.column("url").to_pylist())}

    def _made(self, row: int) -> Scene:
        scene = self.table.scene(row)
        return scene if self._nodata is None else scene.declaring(self._nodata)

    def __getitem__(self, url: str) -> Scene:
        if self._chosen is not None and url not in self._chosen:
            raise KeyError(url)
        return self._scene(self._rows[url])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows if self._chosen is None else self._chosen)

    def __len__(self) -> int:
        return len(self.table) if self._chosen is None else len(self._chosen)

    def __contains__(self, url: object) -> bool:
        return url in (self._rows if self._chosen is None else self._chosen)

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
        known = self._rows
        return np.fromiter((known[url] for url in urls), np.intp, len(urls))


def scene_times(
    scenes: Mapping[str, Scene], urls: Sequence[str], default: tuple[pd.Timestamp, pd.Timestamp]
) -> list[tuple[pd.Timestamp, pd.Timestamp]]:
    """First and last instant of each file, naive UTC: what an index says, as far as it does, or else ``default``."""
    if not isinstance(scenes, IndexedScenes):
        return [default] * len(urls)
    rows = scenes.rows(urls)
    ends = [scenes.table.numbers(name)[rows] for name in ("datetime_start", "datetime_end")]
    unknown = np.isnat(ends[0].view("datetime64[us]"))
    if unknown.all():
        return [default] * len(urls)
    first, last = (pd.DatetimeIndex(end.view("datetime64[us]")) for end in ends)
    pairs = zip(first, last, unknown.tolist(), strict=True)
    return [default if missing else (start, stop) for start, stop, missing in pairs]


def band_counts(scenes: Mapping[str, Scene], urls: Sequence[str]) -> list[int]:
    """Number of bands of each file."""
    if isinstance(scenes, IndexedScenes):
        counts: list[int] = scenes.table.numbers("bands")[scenes.rows(urls)].tolist()
        return counts
    return [scenes[url].count for url in urls]


def pixel_types(scenes: Mapping[str, Scene]) -> set[np.dtype[Any]]:
    """Pixel types that occur."""
    if isinstance(scenes, IndexedScenes):
        names = scenes.table.column("dtype").take(scenes.rows(list(scenes))).unique()
        return {np.dtype(name) for name in names.to_pylist()}
    return {scene.dtype for scene in scenes.values()}


def scene_footprints(scenes: Mapping[str, Scene], urls: Sequence[str], crs: CRS | None) -> list[Geometry]:
    """Where scenes lie, in ``crs``.

    Raises:
        ConfigError: one has no CRS while one is asked for, or lies where ``crs`` is not defined.
    """
    if not isinstance(scenes, IndexedScenes):
        return footprints([scenes[url].grid for url in urls], crs)
    rows = scenes.rows(urls)
    plain = _axis_aligned(scenes.table, rows, crs)
    found = np.full(len(urls), None, dtype=object)
    found[plain] = _boxes(scenes.table, rows[plain])
    others = np.flatnonzero(~plain).tolist()
    # As objects, since NumPy would look into the parts of some.
    for number, shape in zip(others, footprints([scenes[urls[i]].grid for i in others], crs), strict=True):
        found[number] = shape
    return list(found)


def _axis_aligned(table: SceneTable, rows: NDArray[np.intp], crs: CRS | None) -> NDArray[np.bool_]:
    """Which rows' rasters are boxes in ``crs``."""
    transforms = table.transforms()[rows]
    straight = (transforms[:, 1] == 0) & (transforms[:, 3] == 0)
    curved: NDArray[np.bool_] = table.numbers("curved")[rows].astype(bool)
    found: NDArray[np.bool_] = straight & ~curved & table.lies_in(crs)[rows]
    return found


def _boxes(table: SceneTable, rows: NDArray[np.intp]) -> NDArray[Any]:
    a, _, c, _, e, f = table.transforms()[rows].T
    x, y = c + a * table.numbers("width")[rows], f + e * table.numbers("height")[rows]
    shapes: NDArray[Any] = shapely.box(np.minimum(c, x), np.minimum(f, y), np.maximum(c, x), np.maximum(f, y))
    return shapely.orient_polygons(shapes) if len(shapes) else shapes
