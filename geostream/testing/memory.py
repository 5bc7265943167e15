"""A dataset that lives in memory, for tests of what samples and loads: samplers, loaders, data modules."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
import torch
from torch.utils.data import Dataset

from geostream.errors import QueryError
from geostream.grid import pixel_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MemoryDataset", "MemoryScene"]

_ALWAYS = pd.Timestamp(2020, 1, 1), pd.Timestamp(2020, 12, 31)


@dataclass(frozen=True)
class MemoryScene:
    """A north-up raster."""

    data: NDArray[Any]
    """(C, H, W) pixels of any dtype that torch has."""
    corner: tuple[float, float] = (0.0, 0.0)
    """(x, y) of the upper left corner."""
    res: tuple[float, float] = (1.0, 1.0)
    """Pixel size (x, y)."""
    interval: tuple[pd.Timestamp, pd.Timestamp] = _ALWAYS
    """First and last instant."""

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """``(xmin, ymin, xmax, ymax)``."""
        (x, y), (xres, yres) = self.corner, self.res
        return x, y - self.data.shape[1] * yres, x + self.data.shape[2] * xres, y


class MemoryDataset(Dataset[dict[str, Any]]):
    """Scenes in memory behind the surface of a GeoDataset, batches and read-ahead included.

    A sample has ``image`` (C, H, W) and, where the scene's last band is asked for as labels, ``mask`` int64 (H, W);
    ``bounds`` (9,) and ``transform`` (9,) float64. Chips are pasted from the first scene that the query meets.

    Args:
        scenes: the rasters, in the order of the index.
        labels: take each scene's last band as ``mask``.
        crs: CRS of the index.
    """

    is_image = True

    def __init__(self, scenes: Sequence[MemoryScene], *, labels: bool = False, crs: Any = "EPSG:32632") -> None:
        self.scenes = list(scenes)
        self.labels = labels
        self.res = self.scenes[0].res
        times = pd.IntervalIndex.from_tuples([s.interval for s in self.scenes], closed="both", name="datetime")
        self.index = gpd.GeoDataFrame(
            {"filepath": [f"memory://{i}.tif" for i in range(len(self.scenes))]},
            geometry=[shapely.box(*scene.bounds) for scene in self.scenes],
            index=times,
            crs=crs,
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def crs(self) -> Any:
        """CRS of the index."""
        return self.index.crs

    @property
    def bounds(self) -> tuple[slice, slice, slice]:
        """The box around the index."""
        xmin, ymin, xmax, ymax = map(float, self.index.total_bounds)
        times = self.index.index
        xs, ys = slice(xmin, xmax, self.res[0]), slice(ymin, ymax, self.res[1])
        return xs, ys, slice(times.left.min(), times.right.max(), 1)

    def __getitem__(self, query: tuple[slice, slice, slice]) -> dict[str, Any]:
        """The sample at one place and time.

        Raises:
            QueryError: no scene lies there.
        """
        x, y, t = query
        for scene in self.scenes:
            xmin, ymin, xmax, ymax = scene.bounds
            meets = x.start < xmax and xmin < x.stop and y.start < ymax and ymin < y.stop
            if meets and scene.interval[0] <= t.stop and t.start <= scene.interval[1]:
                return self._sample(scene, x, y, t)
        raise QueryError(f"no scene lies at [{x.start}:{x.stop}, {y.start}:{y.stop}] from {t.start} to {t.stop}")

    def _sample(self, scene: MemoryScene, x: slice, y: slice, t: slice) -> dict[str, Any]:
        height, width = pixel_count(y.stop - y.start, y.step), pixel_count(x.stop - x.start, x.step)
        col = round((x.start - scene.corner[0]) / scene.res[0])
        row = round((scene.corner[1] - y.stop) / scene.res[1])
        bands, rows, cols = scene.data.shape
        pixels = np.zeros((bands, height, width), dtype=scene.data.dtype)
        top, left = max(0, row), max(0, col)
        part = scene.data[:, top : max(0, min(rows, row + height)), left : max(0, min(cols, col + width))]
        pixels[:, top - row : top - row + part.shape[1], left - col : left - col + part.shape[2]] = part
        place = [x.start, x.stop, x.step, y.start, y.stop, y.step, t.start.timestamp(), t.stop.timestamp(), 1]
        transform = [x.step, 0.0, x.start, 0.0, -y.step, y.stop, 0.0, 0.0, 1.0]
        sample = {
            "image": torch.from_numpy(pixels[:-1] if self.labels else pixels),
            "bounds": torch.tensor(place, dtype=torch.float64),
            "transform": torch.tensor(transform, dtype=torch.float64),
        }
        return {**sample, "mask": torch.from_numpy(pixels[-1].astype(np.int64))} if self.labels else sample

    def prefetch(self, queries: Sequence[tuple[slice, slice, slice]]) -> Future[list[dict[str, Any] | Exception]]:
        """Samples or errors of all queries, at once."""
        future: Future[list[dict[str, Any] | Exception]] = Future()
        future.set_result([self._outcome(query) for query in queries])
        return future

    def _outcome(self, query: tuple[slice, slice, slice]) -> dict[str, Any] | Exception:
        try:
            return self[query]
        except QueryError as error:
            return error

    def assemble(
        self, queries: Sequence[tuple[slice, slice, slice]], read: Sequence[dict[str, Any] | Exception]
    ) -> list[dict[str, Any]]:
        """What `prefetch` read for ``queries``.

        Raises:
            QueryError: no scene lies at one of them.
        """
        samples = []
        for _, outcome in zip(queries, read, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            samples.append(outcome)
        return samples

    def __getitems__(self, queries: Sequence[tuple[slice, slice, slice]]) -> list[dict[str, Any]]:
        """A batch of samples."""
        return self.assemble(queries, self.prefetch(queries).result())
