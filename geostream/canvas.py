"""Decoded tiles to a patch: paste each as it comes, resample once where the grids differ, and tell what is valid."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.accounting import stats
from geostream.everywhere import everywhere, is_everywhere
from geostream.header import MaskKind
from geostream.plan import tiles_under
from geostream.validity import differs_from_nodata
from geostream.warp import resample

if TYPE_CHECKING:
    from affine import Affine
    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.header import TileTable
    from geostream.plan import Job

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]

__all__ = ["Canvas", "Patch"]


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Pixels on a grid."""

    data: Array
    """(C, H, W) pixels in the file's dtype; where nothing is known, the band's nodata value, or 0."""
    band_valid: Bools
    """(C, H, W), or (1, H, W) where one mask holds for all bands: True where a pixel holds data."""
    transform: Affine
    """Maps (column, row) to (x, y), float64."""
    crs: CRS | None
    """CRS of (x, y); None where the raster has none."""

    @property
    def valid(self) -> Bools:
        """(H, W): True where any band holds data, as rasterio's ``dataset_mask() > 0``; False outside the raster."""
        if len(self.band_valid) == 1:
            return self.band_valid[0, :, :]
        valid: Bools = np.logical_or.reduce(self.band_valid, axis=0)
        return valid


class Canvas:
    """Where one job's pixels come together. Tiles may be pasted from several threads: they never overlap.

    Args:
        job: what is drawn, into the request's ``out`` if it has one, else into a new array in the file's dtype.
        stored: number of tiles that will be pasted; where some under the window are missing they are sparse.
    """

    def __init__(self, job: Job, stored: int = 0) -> None:
        self.job = job
        out = job.request.out
        header, grid = job.header, job.request.grid
        shape = (len(job.bands), grid.height, grid.width)
        self._fill = np.array([_cast(header.fill(band), header.dtype) for band in job.bands])
        self._by_nodata = header.mask is MaskKind.NODATA and not job.reads_alpha
        planes = len(job.bands) if self._by_nodata else 1
        sparse = stored < tiles_under(job)
        self._data = np.empty(shape, header.dtype) if out is None else out
        if job.offset is None:
            window = job.window
            size = (0, 0) if window is None else (window.height, window.width)
            self._window_data = np.empty((shape[0], *size), header.dtype)
            self._valid = self._window_valid = np.empty((planes, *size), bool)
            if window is None:
                self._put_fill(self._data)
                self._valid = np.zeros((planes, *shape[1:]), bool)
        else:
            assert job.window is not None
            column, row = job.offset
            part = np.s_[:, row : row + job.window.height, column : column + job.window.width]
            self._window_data = self._data[part]
            whole = self._window_data.shape == shape
            if whole and out is not None and header.mask is MaskKind.ALL_VALID and not sparse:
                self._valid = self._window_valid = everywhere((planes, *shape[1:]))
                return
            self._valid = np.empty((planes, *shape[1:]), bool)
            self._window_valid = self._valid[part]
            if not whole:
                self._put_fill(self._data)
                self._valid[...] = False
        if sparse:
            self._draw_sparse()
        elif header.mask is MaskKind.ALL_VALID:
            self._window_valid[...] = True

    def _put_fill(self, target: Array) -> None:
        with np.errstate(invalid="ignore"):  # a NaN has no integer; where it stands for no data it is invalid
            target[...] = self._fill[:, None, None]

    def _draw_sparse(self) -> None:
        """Draw what sparse tiles look like; stored ones are pasted over it."""
        self._put_fill(self._window_data)
        header = self.job.header
        if self._by_nodata:
            for plane, value, band in zip(self._window_valid, self._fill, self.job.bands, strict=True):
                plane[...] = differs_from_nodata(value[None], header.nodata[band - 1])[0]
        elif self.job.reads_alpha and header.alpha is not None:
            self._window_valid[...] = self._opaque(np.array(_cast(header.fill(header.alpha), header.dtype)))
        else:
            self._window_valid[...] = header.mask is MaskKind.ALL_VALID

    @property
    def resamples(self) -> bool:
        """Whether finishing takes a thread's time."""
        return self.job.coordinates is not None and self.job.window is not None

    def draw(self, data: Array, valid: Bools) -> None:
        """Take the whole window's pixels (C, h, w) and their validity (C or 1, h, w)."""
        with np.errstate(invalid="ignore"):  # as in `_put_fill`
            self._window_data[...] = data
        self._window_valid[...] = valid

    def paste(self, ifd: int, index: int, tile: Array) -> None:
        """Paste what the window covers of a decoded tile (rows, columns, samples) of image ``ifd``."""
        with np.errstate(invalid="ignore"):  # as in `_put_fill`
            self._paste(ifd, index, tile)

    def _paste(self, ifd: int, index: int, tile: Array) -> None:
        level = self.job.header.levels[self.job.level]
        if level.mask is not None and ifd == level.mask.ifd:
            _, part, cut = self._place(level.mask, index)
            np.not_equal(tile[cut][:, :, 0], 0, out=self._window_valid[(0, *part)])
            return
        plane, part, cut = self._place(level.image, index)
        pixels = np.moveaxis(tile[cut], 2, 0)
        first = plane + 1  # the tile's first band
        bands, alpha = self.job.bands, self.job.header.alpha
        if bands == tuple(range(first, first + len(pixels))):
            self._window_data[(slice(None), *part)] = pixels
        else:
            for place, band in enumerate(bands):
                if first <= band < first + len(pixels):
                    self._window_data[(place, *part)] = pixels[band - first]
        if self._by_nodata:
            for place, band in enumerate(bands):
                if first <= band < first + len(pixels):
                    valid = differs_from_nodata(pixels[band - first], self.job.header.nodata[band - 1])
                    self._window_valid[(place, *part)] = valid
        elif self.job.reads_alpha and alpha is not None and first <= alpha < first + len(pixels):
            self._window_valid[(0, *part)] = self._opaque(pixels[alpha - first])

    def _opaque(self, alpha: Array) -> Bools:
        """Where the band that decides on validity says so: by its nodata value, if there is one, as in rasterio."""
        header = self.job.header
        if header.mask is MaskKind.NODATA and header.alpha is not None:
            return differs_from_nodata(alpha, header.nodata[header.alpha - 1])
        opaque: Bools = alpha != 0
        return opaque

    def _place(self, table: TileTable, index: int) -> tuple[int, tuple[slice, slice], tuple[slice, slice]]:
        """Plane of a tile, the part of the window it covers, and what of it lies there."""
        window = self.job.window
        assert window is not None
        rows, columns, _ = table.codec.shape
        plane, place = divmod(index, table.across * table.down)
        row, column = divmod(place, table.across)
        top, left = row * rows - window.row_off, column * columns - window.col_off
        first_row, first_column = max(0, top), max(0, left)
        last_row, last_column = min(window.height, top + rows), min(window.width, left + columns)
        part = np.s_[first_row:last_row, first_column:last_column]
        return plane, part, np.s_[first_row - top : last_row - top, first_column - left : last_column - left]

    def finish(self) -> Patch:
        """The patch, once every tile is pasted."""
        grid = self.job.request.grid
        if self.resamples:
            self._valid = self._resample()
        return Patch(self._data, self._valid, grid.transform, grid.crs)

    def _resample(self) -> Bools:
        job = self.job
        assert job.coordinates is not None
        assert job.window is not None
        began = time.perf_counter()
        column, row = job.repeated
        for pixels in (self._window_data, self._window_valid):
            pixels[:, :, :column] = pixels[:, :, column, None]
            pixels[:, :row] = pixels[:, row, None]
        how = job.coordinates, job.window, job.request.resampling
        data, valid = resample(self._window_data, self._window_valid, *how)
        if job.reads_alpha and job.header.alpha in job.bands and not self._window_valid.all():
            # What is transparent has no colour, but it has an opacity.
            place = job.bands.index(job.header.alpha)
            data[place] = resample(self._window_data[[place]], np.ones_like(self._window_valid), *how)[0][0]
        if not self._by_nodata:
            valid = valid[:1]  # one mask holds for all bands
        if job.request.out is None and not valid.flags.writeable:
            valid = valid.copy()  # it is the reader's own
        if not is_everywhere(valid):
            inside = valid
            if job.request.resampling == "nearest" and not self._by_nodata:
                # the file's values under a mask stay, as where pixels are pasted
                data, inside = resample(self._window_data, np.ones_like(self._window_valid), *how)
            np.copyto(data, self._fill[:, None, None], where=~inside)
        with np.errstate(invalid="ignore"):  # as in `_put_fill`
            self._data[...] = data
        stats.add(warp_seconds=time.perf_counter() - began)
        return valid


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    """A nodata value in the band's type; one that does not fit stands for nothing and becomes 0."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = np.isfinite(value) and limits.min <= int(value) <= limits.max
        return dtype.type(int(value) if fits else 0)
    return dtype.type(value)
