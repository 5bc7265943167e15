"""Writers of GeoTIFFs in every layout, and the plain rasterio reading that results are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import rasterio
import rasterio.shutil
from affine import Affine
from rasterio.enums import ColorInterp, MaskFlags, Resampling
from rasterio.io import MemoryFile
from rasterio.windows import Window as RasterioWindow

from geostream.grid import Window
from geostream.testing.scenery import CLASS_COLORS, CLASSES, scene, scene_labels

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

__all__ = [
    "CLASSES",
    "CLASS_COLORS",
    "DEFAULT_TRANSFORM",
    "random_window",
    "reference_read",
    "scene",
    "scene_labels",
    "write_cog",
]

DEFAULT_TRANSFORM = Affine(10.0, 0.0, 600_000.0, 0.0, -10.0, 5_300_000.0)
"""North-up, 10 m, inside UTM zone 32N."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What the finished file holds; `write_cog` says what each means."""

    data: NDArray[Any]
    place: Mapping[str, Any]
    mask: NDArray[np.bool_] | None
    alpha: bool
    tags: Mapping[str, str] | None
    descriptions: Sequence[str] | None
    colormap: Mapping[int, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the finished file is laid out; `write_cog` says what each means."""

    driver: str
    blocksize: tuple[int, int] | None
    compress: str
    predictor: int
    interleave: str
    overviews: tuple[int, ...]
    resampling: str
    bigtiff: bool
    big_endian: bool
    sparse: bool
    photometric: str | None
    ifds_at_end: bool
    extra: Mapping[str, Any]

    def options(self) -> dict[str, Any]:
        """GDAL's creation options."""
        options: dict[str, Any] = {"COMPRESS": self.compress, "BIGTIFF": "YES" if self.bigtiff else "IF_SAFER"}
        if self.sparse:
            options["SPARSE_OK"] = "TRUE"
        options |= self._cog() if self.driver == "COG" else self._gtiff()
        return options | {str(name).upper(): value for name, value in self.extra.items()}

    def _cog(self) -> dict[str, Any]:
        if self.interleave != "pixel" or self.big_endian or self.ifds_at_end or self.photometric is not None:
            raise ValueError(
                "GDAL's COG driver writes pixel-interleaved little-endian files with IFDs first and a photometric "
                'interpretation of its own; pass driver="GTiff" for others'
            )
        if self.blocksize is None or self.blocksize[0] != self.blocksize[1]:
            raise ValueError('GDAL\'s COG driver writes square tiles; pass driver="GTiff" for others')
        return {
            "BLOCKSIZE": self.blocksize[0],
            "PREDICTOR": {1: "NO", 2: "STANDARD", 3: "FLOATING_POINT"}[self.predictor],
            "OVERVIEWS": "FORCE_USE_EXISTING" if self.overviews else "NONE",
        }

    def _gtiff(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "INTERLEAVE": self.interleave.upper(),
            "ENDIANNESS": "BIG" if self.big_endian else "LITTLE",
            "TILED": "NO" if self.blocksize is None else "YES",
        }
        if self.blocksize is not None:
            options |= {"BLOCKYSIZE": self.blocksize[0], "BLOCKXSIZE": self.blocksize[1]}
        if self.predictor != 1:
            options["PREDICTOR"] = self.predictor
        if self.photometric is not None:
            options["PHOTOMETRIC"] = self.photometric.upper()
        if self.overviews and not self.ifds_at_end:
            options["COPY_SRC_OVERVIEWS"] = "YES"
        return options


def write_cog(
    path: str | os.PathLike[str],
    data: NDArray[Any] | None = None,
    *,
    shape: tuple[int, int] = (512, 512),
    count: int = 3,
    dtype: DTypeLike = "uint8",
    seed: int = 0,
    crs: Any = "EPSG:32632",
    transform: Affine | None = DEFAULT_TRANSFORM,
    compress: str = "DEFLATE",
    predictor: int = 1,
    blocksize: int | tuple[int, int] | None = 256,
    interleave: Literal["pixel", "band"] = "pixel",
    nodata: float | None = None,
    mask: NDArray[np.bool_] | None = None,
    alpha: bool = False,
    overviews: bool | Sequence[int] = True,
    overview_resampling: str = "average",
    bigtiff: bool = False,
    big_endian: bool = False,
    sparse: bool = False,
    photometric: str | None = None,
    driver: Literal["COG", "GTiff"] | None = None,
    ifds_at_end: bool = False,
    tags: Mapping[str, str] | None = None,
    descriptions: Sequence[str] | None = None,
    colormap: Mapping[int, tuple[int, ...]] | None = None,
    **options: Any,
) -> Path:
    """Write a GeoTIFF and return its path; with all defaults a cloud-optimised one of a made-up landscape.

    Args:
        path: where to write; folders above it are made.
        data: (bands, rows, columns) or (rows, columns); None for `scene` of ``shape``, ``count``, ``dtype``, ``seed``.
        shape: rows and columns without ``data``.
        count: number of bands without ``data``.
        dtype: type of the pixels without ``data``.
        seed: which landscape without ``data``.
        crs: coordinate reference system; None for none.
        transform: from (column, row) to (x, y); None for no georeferencing.
        compress: NONE, DEFLATE, LZW, ZSTD, LERC, LERC_DEFLATE, LERC_ZSTD, PACKBITS, LZMA, JPEG or WEBP.
        predictor: 1 for none, 2 for differences, 3 for floating point.
        blocksize: edge of the square tiles, (rows, columns) of oblong ones (multiples of 16), or None for strips.
        interleave: bands together in each tile, or each band in tiles of its own.
        nodata: value that stands for no data.
        mask: internal mask, (rows, columns), True where valid.
        alpha: whether the last band says how opaque pixels are.
        overviews: reduction factors; True for powers of two down to one tile, False for none.
        overview_resampling: how they are made, by rasterio's names.
        bigtiff: 64-bit offsets.
        big_endian: bytes in network order.
        sparse: leave out tiles all of whose pixels are nodata (0 where none is declared); without ``data``, the upper
            left quarter of the landscape is emptied.
        photometric: GDAL's name, such as YCBCR for JPEG, or MINISBLACK.
        driver: GDAL's COG or GTiff; None for COG where it can write what is asked for. GTiff puts IFDs first as well.
        ifds_at_end: put all IFDs behind the pixels, as writers do that are unaware of clouds.
        tags: metadata.
        descriptions: names of the bands.
        colormap: RGB or RGBA colours by value, for one uint8 band.
        options: further creation options of GDAL. For lossless WebP: ``quality=100`` to COG, ``webp_lossless=True`` to
            GTiff.

    Raises:
        ValueError: if ``driver="COG"`` cannot write the layout.
    """
    if data is None:
        data = scene(*shape, count, seed=seed, dtype=dtype)
        if sparse:
            data[:, : shape[0] // 2, : shape[1] // 2] = 0 if nodata is None else nodata
    elif data.ndim == 2:  # noqa: PLR2004 - rows and columns
        data = data[None]
    block = (blocksize, blocksize) if isinstance(blocksize, int) else blocksize
    if driver is None:
        plain = interleave == "pixel" and photometric is None and not (big_endian or ifds_at_end)
        driver = "COG" if plain and block is not None and block[0] == block[1] else "GTiff"
    layout = _Layout(
        driver=driver,
        blocksize=block,
        compress=compress.upper(),
        predictor=predictor,
        interleave=interleave,
        overviews=_factors(overviews, data.shape[1:], block),
        resampling=overview_resampling,
        bigtiff=bigtiff,
        big_endian=big_endian,
        sparse=sparse,
        photometric=photometric,
        ifds_at_end=ifds_at_end,
        extra=options,
    )
    place = {"crs": crs, "transform": transform, "nodata": nodata}
    content = _Content(data, place, mask, alpha, tags, descriptions, colormap)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
        _draft(memory, content, layout)
        with memory.open() as draft:
            rasterio.shutil.copy(draft, path, driver=layout.driver, **layout.options())
        if ifds_at_end:
            _move_ifds(path, layout)
    return path


def _factors(overviews: bool | Sequence[int], shape: Sequence[int], block: tuple[int, int] | None) -> tuple[int, ...]:
    if not isinstance(overviews, bool):
        return tuple(overviews)
    if not overviews:
        return ()
    tiles = max(size / edge for size, edge in zip(shape, block or (256, 256), strict=True))
    return tuple(2**level for level in range(1, math.ceil(math.log2(max(1.0, tiles))) + 1))


def _draft(memory: MemoryFile, content: _Content, layout: _Layout) -> None:
    """Everything the file is to hold, in whatever layout: GDAL lays files out well only when it copies them whole."""
    count, height, width = content.data.shape
    size = {"count": count, "height": height, "width": width, "dtype": content.data.dtype}
    photometric = "MINISBLACK" if content.colormap is None else "PALETTE"
    with memory.open(driver="GTiff", tiled=True, **size, photometric=photometric, **content.place) as draft:
        if content.alpha:
            colors = [ColorInterp.gray] if count < 4 else [ColorInterp.red, ColorInterp.green, ColorInterp.blue]  # noqa: PLR2004 - RGBA
            others = [ColorInterp.undefined] * (count - 1 - len(colors))
            draft.colorinterp = [*colors, *others, ColorInterp.alpha]
        draft.write(content.data)
        draft.update_tags(**(content.tags or {}))
        for band, description in enumerate(content.descriptions or (), start=1):
            draft.set_band_description(band, description)
        if content.colormap is not None:
            draft.write_colormap(1, content.colormap)
        if content.mask is not None:
            draft.write_mask(content.mask)
    if layout.overviews and not layout.ifds_at_end:
        with rasterio.open(memory.name, "r+") as draft:
            draft.build_overviews(list(layout.overviews), Resampling[layout.resampling])


def _move_ifds(path: Path, layout: _Layout) -> None:
    """Have GDAL append overviews, and then a first IFD that no longer fits where it was."""
    with rasterio.open(path, "r+") as dataset:
        if layout.overviews:
            dataset.build_overviews(list(layout.overviews), Resampling[layout.resampling])
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(GEOSTREAM_IFD="at end")


def random_window(
    rng: np.random.Generator, shape: tuple[int, int], max_size: int | tuple[int, int], *, outside: float = 0.0
) -> Window:
    """Draw a window that shares at least one pixel with a raster.

    Args:
        rng: where randomness comes from.
        shape: rows and columns of the raster.
        max_size: largest height and width.
        outside: chance that the window may leave the raster; the others lie inside.
    """
    most = (max_size, max_size) if isinstance(max_size, int) else max_size
    leaves = rng.random() < outside
    starts, sizes = [], []
    for extent, limit in zip(shape, most, strict=True):
        size = int(rng.integers(1, (limit if leaves else min(limit, extent)) + 1))
        low, high = (1 - size, extent - 1) if leaves else (0, extent - size)
        sizes.append(size)
        starts.append(int(rng.integers(low, high + 1)))
    return Window(starts[1], starts[0], sizes[1], sizes[0])


def reference_read(
    path: str | os.PathLike[str], window: Window | None = None, bands: Sequence[int] | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Read a window with rasterio, as truth: pixels as they are in the file, padded where the window leaves it.

    Args:
        path: local file, or anything rasterio opens.
        window: pixels wanted, which may leave the raster partly or wholly; None for all.
        bands: 1-based; None for all.

    Returns:
        Pixels (bands, rows, columns) in the file's type, outside the raster nodata (0 where none is declared or it does
        not fit the type), and bool (rows, columns): ``dataset_mask() > 0``, or that of the bands read where bands are
        chosen and each has its own mask from nodata; False outside.
    """
    with rasterio.open(path) as dataset:
        window = window or Window(0, 0, dataset.width, dataset.height)
        indexes = list(dataset.indexes if bands is None else bands)
        data = _padding(dataset, indexes, window)
        valid = np.zeros((window.height, window.width), dtype=bool)
        inside = window.intersection(Window(0, 0, dataset.width, dataset.height))
        if inside is None:
            return data, valid
        part = RasterioWindow(inside.col_off, inside.row_off, inside.width, inside.height)
        rows = slice(inside.row_off - window.row_off, inside.row_stop - window.row_off)
        cols = slice(inside.col_off - window.col_off, inside.col_stop - window.col_off)
        data[:, rows, cols] = dataset.read(indexes, window=part)
        by_nodata = any(MaskFlags.nodata in dataset.mask_flag_enums[i - 1] for i in indexes)
        if bands is not None and by_nodata:
            valid[rows, cols] = (dataset.read_masks(indexes, window=part) > 0).any(axis=0)
        else:
            valid[rows, cols] = dataset.dataset_mask(window=part) > 0
        return data, valid


def _padding(dataset: Any, indexes: Sequence[int], window: Window) -> NDArray[Any]:
    dtype = np.dtype(dataset.dtypes[indexes[0] - 1])
    data = np.zeros((len(indexes), window.height, window.width), dtype=dtype)
    for band, index in enumerate(indexes):
        nodata = dataset.nodatavals[index - 1]
        if nodata is not None and (dtype.kind in "fc" or np.array(nodata).astype(dtype) == nodata):
            data[band] = nodata
    return data
