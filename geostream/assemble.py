"""Decoded tiles to a patch: paste, or resample once, and tell what is valid. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.accounting import stats
from geostream.header import MaskKind
from geostream.plan import tile_span
from geostream.validity import validity
from geostream.warp import resample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from affine import Affine
    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.grid import Window
    from geostream.header import TileTable
    from geostream.plan import Job

    Array = NDArray[Any]

__all__ = ["Patch", "assemble", "read_tiles"]


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Pixels on a grid."""

    data: Array
    """(C, H, W) pixels in the file's dtype; where nothing is known, the band's nodata value, or 0."""
    band_valid: NDArray[np.bool_]
    """(C, H, W), or (1, H, W) where one mask holds for all bands: True where a pixel holds data."""
    transform: Affine
    """Maps (column, row) to (x, y), float64."""
    crs: CRS | None
    """CRS of (x, y); None where the raster has none."""

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(H, W): True where any band holds data, as rasterio's ``dataset_mask() > 0``; False outside the raster."""
        return np.logical_or.reduce(self.band_valid, axis=0)  # type: ignore[no-any-return]


def assemble(job: Job, pixels: tuple[Array, NDArray[np.bool_]] | None) -> Patch:
    """Bring what was read of a job's window onto its output grid.

    Args:
        job: the job.
        pixels: data (C, h, w) and validity (C or 1, h, w) of ``job.window``; None where that is None.
    """
    grid = job.request.grid
    shape = (len(job.bands), grid.height, grid.width)
    fill = np.array([job.header.fill(band) for band in job.bands])
    if pixels is None or job.window is None:
        data = _filled(shape, job.header.dtype, fill)
        return Patch(data, np.zeros((1, *shape[1:]), bool), grid.transform, grid.crs)
    window_data, window_valid = pixels
    if job.offset is not None:
        if window_data.shape == shape:
            return Patch(window_data, window_valid, grid.transform, grid.crs)
        data, valid = _filled(shape, job.header.dtype, fill), np.zeros((len(window_valid), *shape[1:]), bool)
        column, row = job.offset
        part = np.s_[:, row : row + job.window.height, column : column + job.window.width]
        data[part], valid[part] = window_data, window_valid
        return Patch(data, valid, grid.transform, grid.crs)
    return _resampled(job, window_data, window_valid, fill)


def _resampled(job: Job, data: Array, valid: NDArray[np.bool_], fill: Array) -> Patch:
    assert job.coordinates is not None
    assert job.window is not None
    began = time.perf_counter()
    data, out_valid = resample(data, valid, job.coordinates, job.window, job.request.resampling)
    for plane, plane_valid, value in zip(data, np.broadcast_to(out_valid, data.shape), fill, strict=True):
        plane[~plane_valid] = _cast(value, data.dtype)
    stats.add(warp_seconds=time.perf_counter() - began)
    if len(valid) == 1 and len(out_valid) > 1:
        out_valid = out_valid[:1]
    return Patch(data, out_valid, job.request.grid.transform, job.request.grid.crs)


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    """A nodata value in the band's type; one that does not fit stands for nothing and becomes 0."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = np.isfinite(value) and limits.min <= int(value) <= limits.max
        return dtype.type(int(value) if fits else 0)
    return dtype.type(value)


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any], fill: Array) -> Array:
    data = np.zeros(shape, dtype)
    for plane, value in zip(data, fill, strict=True):
        if value != 0:
            plane[...] = _cast(value, dtype)
    return data


def read_tiles(job: Job, tiles: Mapping[tuple[int, int], Array]) -> tuple[Array, NDArray[np.bool_]] | None:
    """Cut a job's window out of its decoded tiles.

    Args:
        job: a job that geostream decodes itself.
        tiles: decoded tiles (rows, columns, samples) by (directory, tile index); a missing one is sparse.

    Returns:
        Data (C, h, w) and validity (C or 1, h, w); None where the job reads nothing.
    """
    window = job.window
    if window is None:
        return None
    level = job.header.levels[job.level]
    size = (window.height, window.width)
    fill = np.array([job.header.fill(band) for band in job.bands])
    data = _filled((len(job.bands), *size), job.header.dtype, fill)
    _paste(level.image, window, tiles, data, job.bands)
    mask: Array | None = None
    if job.reads_alpha and job.header.alpha is not None:
        if job.header.alpha in job.bands:
            mask = data[job.bands.index(job.header.alpha)]
        else:
            mask = _filled((1, *size), job.header.dtype, np.array([job.header.fill(job.header.alpha)]))
            _paste(level.image, window, tiles, mask, (job.header.alpha,))
            mask = mask[0]
    elif job.header.mask is MaskKind.INTERNAL and level.mask is not None:
        mask = np.zeros((1, *size), np.uint8)
        _paste(level.mask, window, tiles, mask, (1,))
        mask = mask[0]
    return data, validity(data, job.bands, job.header, mask)


def _paste(
    table: TileTable, window: Window, tiles: Mapping[tuple[int, int], Array], out: Array, bands: tuple[int, ...]
) -> None:
    """Copy the parts of ``tiles`` under ``window`` into ``out`` (C, h, w), whose planes are the 1-based ``bands``."""
    rows, columns, samples = table.codec.shape
    tile_rows, tile_columns = tile_span(table, window)
    for row in range(tile_rows.start, tile_rows.stop):
        for column in range(tile_columns.start, tile_columns.stop):
            top, left = row * rows - window.row_off, column * columns - window.col_off
            bottom, right = min(window.height, top + rows), min(window.width, left + columns)
            target = np.s_[max(0, top) : bottom, max(0, left) : right]
            cut = np.s_[max(0, top) - top : bottom - top, max(0, left) - left : right - left]
            for plane, sample, places in _planes(table.planes, samples, bands):
                tile = tiles.get((table.ifd, (plane * table.down + row) * table.across + column))
                if tile is not None:
                    out[(places, *target)] = np.moveaxis(tile[cut][:, :, sample], 2, 0)


def _planes(planes: int, samples: int, bands: tuple[int, ...]) -> list[tuple[int, Any, Any]]:
    """(plane, samples of its tile, places in the output) for every plane that holds some of ``bands``."""
    if planes > 1:
        return [(band - 1, slice(0, 1), slice(i, i + 1)) for i, band in enumerate(bands)]
    if bands == tuple(range(1, samples + 1)):
        return [(0, slice(None), slice(None))]
    return [(0, [band - 1 for band in bands], slice(None))]
