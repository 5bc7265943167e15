"""Hypothesis strategies for rasters, windows, grids, byte ranges and queries. Needs hypothesis; nothing imports it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from affine import Affine
from hypothesis import strategies as st

from geostream.grid import Bounds, Grid, Window, parse_crs
from geostream.testing.rasters import write_cog

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from hypothesis.strategies import DrawFn, SearchStrategy
    from numpy.typing import NDArray

__all__ = ["DTYPES", "RasterProfile", "bounds", "byte_ranges", "grids", "profiles", "queries", "windows"]

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
"""Types of pixels that every compression here takes."""

_COMPRESSIONS = ("NONE", "DEFLATE", "LZW", "ZSTD", "LERC", "LERC_DEFLATE", "LERC_ZSTD", "PACKBITS")
_PREDICTED = {"DEFLATE", "LZW", "ZSTD"}
_PLACES = {  # CRS: (x, y) inside its area of use, pixel size
    "EPSG:32632": (600_000.0, 5_300_000.0, 10.0),
    "EPSG:32733": (500_000.0, 8_000_000.0, 30.0),
    "EPSG:3857": (1_200_000.0, 6_000_000.0, 12.0),
    "EPSG:4326": (11.0, 48.0, 1 / 8192),
    "EPSG:3035": (4_400_000.0, 2_800_000.0, 20.0),
}


@dataclass(frozen=True, slots=True)
class RasterProfile:
    """A GeoTIFF yet to be written: a shape and a layout, all lossless."""

    height: int
    """Rows."""
    width: int
    """Columns."""
    count: int
    """Bands."""
    dtype: str
    """Type of the pixels."""
    blocksize: tuple[int, int] | None
    """Rows and columns of a tile, multiples of 16."""
    compress: str
    """Compression."""
    predictor: int
    """Predictor, one that the compression and the type allow."""
    interleave: str
    """``pixel`` or ``band``."""
    nodata: float | None
    """Value that stands for no data, of the pixels' type, or None."""
    bigtiff: bool
    """64-bit offsets."""
    big_endian: bool
    """Bytes in network order."""
    sparse: bool
    """Leave out tiles without data; the upper left quarter has none."""
    overviews: bool
    """Whether there are any."""
    ifds_at_end: bool
    """Whether IFDs lie behind the pixels."""
    seed: int
    """Of the pixels' values."""

    def pixels(self) -> NDArray[Any]:
        """The values written: (count, height, width), about a tenth of them nodata where that is declared."""
        rng = np.random.default_rng(self.seed)
        dtype = np.dtype(self.dtype)
        shape = (self.count, self.height, self.width)
        steps = rng.integers(-3, 4, shape).cumsum(axis=2) + 50
        data = (steps + rng.random(shape) if dtype.kind == "f" else np.clip(steps, 0, 127)).astype(dtype)
        empty = 0 if self.nodata is None else self.nodata
        if self.nodata is not None:
            data[:, rng.random(shape[1:]) < 0.1] = empty  # noqa: PLR2004 - about a tenth
        if self.sparse:
            data[:, : self.height // 2, : self.width // 2] = empty
        return data

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it, through `geostream.testing.rasters.write_cog`."""
        taken = {"height", "width", "count", "dtype", "seed"}
        layout = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in taken}
        return write_cog(path, self.pixels(), driver="GTiff", overview_resampling="nearest", **layout)


@st.composite
def profiles(
    draw: DrawFn,
    *,
    dtypes: Sequence[str] = DTYPES,
    compressions: Sequence[str] = _COMPRESSIONS,
    max_size: int = 150,
    max_count: int = 4,
) -> RasterProfile:
    """Rasters of any type, size and layout.

    Args:
        draw: given by hypothesis.
        dtypes: types to choose from.
        compressions: GDAL's names, lossless ones, to choose from.
        max_size: most rows and columns.
        max_count: most bands.
    """
    dtype = draw(st.sampled_from(list(dtypes)))
    compress = draw(st.sampled_from(list(compressions)))
    kind = np.dtype(dtype).kind
    predictors = [1] if compress not in _PREDICTED else [1, 3] if kind == "f" else [1, 2]
    # libtiff spoils LERC where bands are interleaved and values are NaN, or look so with their bytes swapped
    lerc = compress.startswith("LERC")
    edge = st.sampled_from([16, 32, 48, 64, 128])
    square = draw(edge)
    sizes = st.integers(1, max_size)
    return RasterProfile(
        height=draw(sizes),
        width=draw(sizes),
        count=draw(st.integers(1, max_count)),
        dtype=dtype,
        blocksize=draw(st.one_of(st.just((square, square)), st.tuples(edge, edge), st.none())),
        compress=compress,
        predictor=draw(st.sampled_from(predictors)),
        interleave=draw(st.sampled_from(["pixel", "band"])),
        nodata=draw(_nodata(dtype, lerc=lerc)),
        bigtiff=draw(st.booleans()),
        big_endian=not lerc and draw(st.booleans()),
        sparse=draw(st.booleans()),
        overviews=draw(st.booleans()),
        ifds_at_end=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


def _nodata(dtype: str, *, lerc: bool) -> SearchStrategy[float | None]:
    values: list[float | None] = [None, 0]
    if np.dtype(dtype).kind == "f":
        values += [-9999.0] if lerc else [-9999.0, float("nan")]
    else:
        limits = np.iinfo(dtype)
        values += [int(limits.min), int(limits.max)]
    return st.sampled_from(values)


@st.composite
def windows(draw: DrawFn, shape: tuple[int, int], *, max_size: int = 300, margin: int | None = None) -> Window:
    """Windows that share at least one pixel with a raster and may leave it on any side.

    Args:
        draw: given by hypothesis.
        shape: rows and columns of the raster.
        max_size: most rows and columns of the window.
        margin: how far a window may leave the raster, in pixels; 0 for windows inside, None for as far as it reaches.
    """
    starts, sizes = [], []
    for extent in shape:
        reach = max_size if margin is None else margin
        size = draw(st.integers(1, min(max_size, extent + 2 * reach)))
        low, high = max(1 - size, -reach), min(extent - 1, extent + reach - size)
        starts.append(draw(st.integers(low, high)))
        sizes.append(size)
    return Window(starts[1], starts[0], sizes[1], sizes[0])


@st.composite
def grids(draw: DrawFn, *, crs: Sequence[str] = tuple(_PLACES), max_size: int = 200, fractional: bool = True) -> Grid:
    """North-up grids within the area of use of their CRS.

    Args:
        draw: given by hypothesis.
        crs: systems to choose from: EPSG 32632, 32733, 3857, 4326 and 3035 are known here.
        max_size: most rows and columns.
        fractional: whether origins may lie between pixels of whole multiples of the pixel size.
    """
    name = draw(st.sampled_from(list(crs)))
    x, y, res = _PLACES[name]
    parts = st.floats(0, 1, exclude_max=True) if fractional else st.just(0.0)
    shifts = [draw(st.integers(-500, 500)) + draw(parts) for _ in range(2)]
    transform = Affine(res, 0.0, x + shifts[0] * res, 0.0, -res, y + shifts[1] * res)
    sizes = st.integers(1, max_size)
    return Grid(draw(sizes), draw(sizes), transform, parse_crs(name))


@st.composite
def byte_ranges(
    draw: DrawFn, size: int, *, max_count: int = 20, max_length: int | None = None
) -> list[tuple[int, int]]:
    """Ranges ``(start, stop)`` of an object of ``size`` bytes: unordered, overlapping, repeated, none of them empty."""
    longest = size if max_length is None else min(size, max_length)
    starts = st.integers(0, size - 1)

    def span(start: int) -> SearchStrategy[tuple[int, int]]:
        return st.integers(1, min(longest, size - start)).map(lambda length: (start, start + length))

    found = draw(st.lists(starts.flatmap(span), min_size=1, max_size=max_count))
    repeated = draw(st.lists(st.sampled_from(found), max_size=3))
    return draw(st.permutations(found + repeated))


@st.composite
def bounds(draw: DrawFn, within: Bounds, *, leave: float = 0.0) -> Bounds:
    """Boxes of positive size that overlap ``within``.

    Args:
        draw: given by hypothesis.
        within: ``(xmin, ymin, xmax, ymax)``.
        leave: how far a box may reach beyond ``within``, in parts of its width and height.
    """
    xmin, ymin, xmax, ymax = within
    part = st.floats(0, 0.95)
    sides = []
    for low, high in ((xmin, xmax), (ymin, ymax)):
        extent = high - low
        start = low + draw(part) * extent
        stop = start + draw(st.floats(0.01, 1)) * (high - start)
        if leave:
            start -= draw(st.floats(0, 1)) * leave * extent
            stop += draw(st.floats(0, 1)) * leave * extent
        sides.append((start, stop))
    return sides[0][0], sides[1][0], sides[0][1], sides[1][1]


@st.composite
def queries(
    draw: DrawFn,
    within: Bounds,
    res: tuple[float, float],
    *,
    times: tuple[pd.Timestamp, pd.Timestamp] | None = None,
    leave: float = 0.0,
    steps: bool = True,
) -> tuple[slice, slice, slice]:
    """Queries of a dataset: slices of x, y and time, with and without a step, any of a fraction of a pixel.

    Args:
        draw: given by hypothesis.
        within: ``(xmin, ymin, xmax, ymax)`` of the dataset.
        res: its pixel size (x, y); steps are this or up to twice as coarse.
        times: first and last moment of the dataset; None for a time slice without bounds.
        leave: how far a query may reach beyond ``within``, in parts of its width and height.
        steps: whether slices may name a step.
    """
    box = draw(bounds(within, leave=leave))
    factor = draw(st.sampled_from([None, 1.0, 1.5, 2.0])) if steps else None
    step = (None, None) if factor is None else (res[0] * factor, res[1] * factor)
    time = slice(None)
    if times is not None:
        span = st.datetimes(times[0].to_pydatetime(), times[1].to_pydatetime())
        first, last = sorted((draw(span), draw(span)))
        time = slice(pd.Timestamp(first), pd.Timestamp(last))
    return slice(box[0], box[2], step[0]), slice(box[1], box[3], step[1]), time
