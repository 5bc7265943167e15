"""Bytes to a `RasterHeader`: tifffile for the tile tables, GDAL on the same bytes for what the pixels mean."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tifffile
from affine import Affine
from rasterio.enums import MaskFlags

from geostream.control import fit
from geostream.decode import SUPPORTED_COMPRESSIONS, unsupported_reason
from geostream.errors import HeaderError
from geostream.grid import PASTE_TOLERANCE, Grid, parse_crs
from geostream.header import Level, MaskKind, RasterHeader, TileCodec, TileTable
from geostream.ifd import SparseFile
from geostream.opener import GDAL_ERRORS, SparseSource, gdal_words, open_with_gdal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from geostream.ifd import SparseBytes
    from geostream.opener import ByteSource

__all__ = ["describe", "parse_tiff", "with_mask_beside", "with_overview_sizes", "with_world_file"]

# tifffile reports oddities of a file through its own logger; what matters to the reader is raised or becomes `reason`.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)

MAX_TILE_BYTES = 2**30
"""Bytes of a decoded tile beyond which its size is taken for a mistake, or malice."""
MAX_STRIP_BYTES = 2**24
"""Bytes of a decoded strip beyond which a window is better read by GDAL, line by line where the compression allows."""
_REDUCED, _MASK = 1, 4
_MOST_NAMES = 12
"""Names of subdatasets in a message."""
_READ_AS = {"complex_int16": "complex64"}
"""GDAL's pixel types that NumPy does not have, and what rasterio reads them as."""
_UNSIGNED = (3, 4, 13, 16, 18)
"""TIFF types of 16, 32 and 64 bits in which libtiff takes offsets."""


def parse_tiff(buffer: SparseBytes, name: str, sidecars: Mapping[str, ByteSource]) -> RasterHeader:
    """Parse the header of a TIFF whose metadata is all in ``buffer``.

    Args:
        buffer: the metadata's bytes, `geostream.ifd.missing_ranges` being empty.
        name: file name without folders, for GDAL's eyes.
        sidecars: files beside it by name, of which GDAL shall know.

    Raises:
        HeaderError: the structure is not that of a raster.
    """
    files: dict[str, ByteSource] = {name: SparseSource(buffer), **sidecars}
    with open_with_gdal(name, files, driver="GTiff") as dataset:
        header = replace(describe(dataset), total=buffer.total)
    own_mask = False
    try:
        tables = _Tables.read(buffer)
        own_mask = bool(tables.masks)
        levels, reason = _levels(tables, header)
    except Exception as error:  # noqa: BLE001 - GDAL opened it: whatever tifffile cannot make sense of, GDAL reads
        levels, reason = (), f"its tile tables do not parse: {error}"
    if any(side.lower().endswith((".msk", ".ovr")) for side in sidecars):
        reason = "masks or overviews lie in files beside it"
    if not reason:
        sizes = tuple((level.image.width, level.image.height) for level in levels[1:])
        return replace(header, levels=levels, reader="geostream", reason="", overviews=sizes)
    sized = with_overview_sizes(header, lambda level: open_with_gdal(name, files, driver="GTiff", overview_level=level))
    return replace(sized if own_mask else with_mask_beside(sized, sidecars), reason=reason)


def with_mask_beside(header: RasterHeader, names: Iterable[str]) -> RasterHeader:
    """The header with its mask called external, if GDAL sees one and these names of files beside it have one."""
    beside = any(name.lower().endswith(".msk") for name in names)
    return replace(header, mask=MaskKind.EXTERNAL) if beside and header.mask is MaskKind.INTERNAL else header


def with_overview_sizes(header: RasterHeader, opened: Callable[[int], AbstractContextManager[Any]]) -> RasterHeader:
    """The header with the overviews that tell validity as the raster does, and their sizes as they are.

    GDAL otherwise names their factors only, which are rounded; and a mask need not have overviews.

    Args:
        header: as `describe` gives it.
        opened: opens an overview by its number, counted from 0, as a rasterio dataset.
    """
    sizes = []
    for level in range(len(header.overviews)):
        with opened(level) as dataset:
            if _mask_kind(dataset)[0] is not header.mask:
                break
            sizes.append((dataset.width, dataset.height))
    return replace(header, overviews=tuple(sizes))


def with_world_file(header: RasterHeader, content: bytes) -> RasterHeader:
    """The header with the transform of a world file; as it was, as with GDAL, where that is none.

    GDAL cannot read it through rasterio's openers, which do not tell it where a file ends.

    Raises:
        HeaderError: its transform does not tell pixels apart.
    """
    try:
        a, d, b, e, c, f = (float(line.replace(b",", b".")) for line in content.split()[:6])
    except ValueError:
        return header
    grid = header.grid
    if not (any((a, b)) and any((d, e))):
        return header
    # the corner's centre is given
    transform = Affine(a, b, c - (a + b) / 2, d, e, f - (d + e) / 2)
    return replace(header, grid=_resolving(Grid(grid.width, grid.height, transform, grid.crs)))


def describe(dataset: Any) -> RasterHeader:
    """What GDAL knows of an open dataset, as a header that rasterio reads.

    Raises:
        HeaderError: GDAL opened it, but cannot make sense of what it says.
    """
    try:
        return _describe(dataset)
    except (*GDAL_ERRORS, ArithmeticError, UnicodeError) as error:
        raise HeaderError(f"GDAL does not understand its header: {gdal_words(error)}") from None


def _no_bands(dataset: Any) -> HeaderError:
    """That there is nothing to read, and what could be read instead."""
    names = [name.rpartition(":")[2] for name in dataset.subdatasets]
    if not names:
        return HeaderError("it holds no bands")
    listed = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return HeaderError(
        f"it holds no bands but {len(names)} subdatasets ({listed}), which geostream does not read: open one with "
        f"rasterio.open('{dataset.driver}:\"FILE\":{names[0]}'), or write it to a COG"
    )


def _describe(dataset: Any) -> RasterHeader:
    if not dataset.count:
        raise _no_bands(dataset)
    mask, alpha = _mask_kind(dataset)
    colorinterp = tuple(c.name for c in dataset.colorinterp)
    return RasterHeader(
        driver=dataset.driver,
        reader="rasterio",
        reason=f"{dataset.driver} files are read through GDAL",
        grid=_grid(dataset),
        count=dataset.count,
        dtype=_common_dtype(dataset.dtypes),
        nodata=tuple(dataset.nodatavals),
        mask=mask,
        alpha=alpha,
        overviews=_overview_sizes(dataset),
        block_shape=tuple(dataset.block_shapes[0]) if dataset.block_shapes else (0, 0),
        compression=getattr(dataset.compression, "value", dataset.compression),
        predictor=int(dataset.tags(ns="IMAGE_STRUCTURE").get("PREDICTOR", 1)),
        interleave=dataset.interleaving.value.lower() if dataset.interleaving else "band",
        descriptions=tuple(dataset.descriptions),
        colorinterp=colorinterp,
        colormap=dataset.colormap(1) if colorinterp[:1] == ("palette",) else None,
        scales=tuple(dataset.scales),
        offsets=tuple(dataset.offsets),
        units=tuple(dataset.units),
        tags=dict(dataset.tags()),
        gcps=len(dataset.gcps[0]),
        ground=_ground(dataset),
    )


def _grid(dataset: Any) -> Grid:
    """The raster's grid."""
    return _resolving(Grid(dataset.width, dataset.height, Affine(*dataset.transform[:6]), parse_crs(dataset.crs)))


def _resolving(grid: Grid) -> Grid:
    """The grid, if float64 coordinates tell its pixels apart."""
    transform = grid.transform
    if not all(map(math.isfinite, transform[:6])) or not transform.determinant:
        raise HeaderError(f"its transform {tuple(transform[:6])} places no pixels: write a proper one into it")
    error = np.finfo(np.float64).eps * max(map(abs, grid.bounds))
    if not error / min(grid.res) < PASTE_TOLERANCE:
        raise HeaderError(f"its transform {tuple(transform[:6])} does not resolve pixels: write a proper one into it")
    return grid


def _ground(dataset: Any) -> Grid | None:
    """Where control points place a raster that has neither transform nor CRS."""
    points, crs = dataset.gcps
    if not points or dataset.crs is not None or not dataset.transform.is_identity:
        return None
    return fit([(p.col, p.row, p.x, p.y) for p in points], dataset.width, dataset.height, parse_crs(crs))


def _common_dtype(names: tuple[str, ...]) -> np.dtype[Any]:
    try:
        return np.result_type(*{np.dtype(_READ_AS.get(name, name)) for name in names})
    except TypeError:
        raise HeaderError(f"its pixel type {names[0]} is not supported") from None


def _mask_kind(dataset: Any) -> tuple[MaskKind, int | None]:
    """Mask kind and alpha band by the rules of rasterio's ``dataset_mask``.

    rasterio takes the fourth of four bands for the mask where the first is red and a nodata value is declared, whatever
    the fourth's own colour interpretation: then `alpha` is 4 while the kind is NODATA.
    """
    flags: list[MaskFlags] = dataset.mask_flag_enums[0] if dataset.count else []
    names = [c.name for c in dataset.colorinterp]
    if flags == [MaskFlags.all_valid]:
        return MaskKind.ALL_VALID, None
    if flags == [MaskFlags.nodata]:
        return MaskKind.NODATA, 4 if dataset.count == 4 and names[0] == "red" else None  # noqa: PLR2004 - RGBA
    if MaskFlags.alpha in flags and "alpha" in names:
        return MaskKind.ALPHA, names.index("alpha") + 1
    return (MaskKind.INTERNAL if flags == [MaskFlags.per_dataset] else MaskKind.EXTERNAL), None


def _overview_sizes(dataset: Any) -> tuple[tuple[int, int], ...]:
    """Sizes as GDAL derives them from the factors."""
    factors = dataset.overviews(1) if dataset.count else []
    return tuple((-(-dataset.width // f), -(-dataset.height // f)) for f in factors)


@dataclass(frozen=True)
class _Tables:
    """The TIFF pages that make up a raster."""

    image: tifffile.TiffPage
    overviews: list[tifffile.TiffPage]
    masks: dict[tuple[int, int], tifffile.TiffPage]
    position: dict[int, int]
    """Directory number of each page, by its offset."""

    @classmethod
    def read(cls, buffer: SparseBytes) -> _Tables:
        with tifffile.TiffFile(SparseFile(buffer), name="raster") as tiff:  # type: ignore[arg-type]  # any file works
            pages = [page for page in tiff.pages if isinstance(page, tifffile.TiffPage)]
        image = pages[0]
        masks = {(p.imagewidth, p.imagelength): p for p in pages[1:] if p.subfiletype & _MASK}
        overviews = [p for p in pages[1:] if p.subfiletype & _REDUCED and not p.subfiletype & _MASK]
        overviews.sort(key=lambda p: -p.imagewidth)
        return cls(image, overviews, masks, {page.offset: i for i, page in enumerate(pages)})


def _levels(tables: _Tables, header: RasterHeader) -> tuple[tuple[Level, ...], str]:
    """Levels of the raster, and why geostream cannot read them itself, if so."""
    if header.mask is MaskKind.EXTERNAL:
        return (), "only GDAL can tell its mask"
    if len(tables.overviews) != len(header.overviews):
        return (), "GDAL sees other overviews than the directories name"
    levels = []
    for page in [tables.image, *tables.overviews]:
        size = (page.imagewidth, page.imagelength)
        mask_page = tables.masks.get(size) if header.mask is MaskKind.INTERNAL else None
        if header.mask is MaskKind.INTERNAL and mask_page is None:
            return (), f"its mask has no level of {size[0]} x {size[1]} pixels"
        reason = _page_reason(page, header) or (mask_page is not None and _mask_reason(mask_page))
        if reason:
            return (), reason
        mask = None if mask_page is None else _table(mask_page, tables.position[mask_page.offset])
        levels.append(Level(_table(page, tables.position[page.offset]), mask))
    return tuple(levels), ""


def _mask_reason(page: tifffile.TiffPage) -> str:
    return _structure_reason(page) or ("" if page.samplesperpixel == 1 else "its mask has several bands")


def _page_reason(page: tifffile.TiffPage, header: RasterHeader) -> str:
    if reason := _structure_reason(page):
        return reason
    if page.samplesperpixel != header.count:
        return f"GDAL sees {header.count} bands in {page.samplesperpixel} samples"
    stored = _native_dtype(page)
    if (np.dtype(np.float32) if stored == np.float16 else stored) != header.dtype:
        return f"GDAL reads its pixels as {header.dtype}"
    return ""


def _structure_reason(page: tifffile.TiffPage) -> str:
    """Why the page's tiles cannot be read one by one, or nothing."""
    if page.imagedepth != 1 or (page.is_tiled and page.tiledepth != 1):
        return "it is a volume"
    if int(page.compression) not in SUPPORTED_COMPRESSIONS:
        return f"compression {int(page.compression)} is left to GDAL"
    if _native_dtype(page) is None:
        return f"{page.bitspersample}-bit samples of format {page.sampleformat} are left to GDAL"
    codec = _codec(page)
    if codec.nbytes > MAX_TILE_BYTES:
        return f"tiles of {codec.nbytes} bytes are left to GDAL"
    if not page.is_tiled and codec.nbytes > MAX_STRIP_BYTES:
        return f"strips of {codec.nbytes} bytes are left to GDAL"
    return unsupported_reason(codec)


def _native_dtype(page: tifffile.TiffPage) -> np.dtype[Any] | None:
    """Pixel type of the page's samples as stored; single bits come out as uint8, as GDAL gives them."""
    if page.bitspersample == 1 and page.sampleformat == 1:
        return np.dtype(np.uint8)
    kind = {1: "u", 2: "i", 3: "f", 6: "c"}.get(page.sampleformat)
    sizes = {"u": (8, 16, 32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
    formats = page.tags.valueof(339)
    if kind is None or page.bitspersample not in sizes[kind] or len(set(np.atleast_1d(formats or 1))) > 1:
        return None
    return np.dtype(f"{kind}{page.bitspersample // 8}")


def _codec(page: tifffile.TiffPage) -> TileCodec:
    dtype = _native_dtype(page)
    if page.bitspersample == 1 or dtype is None:
        dtype = np.dtype(bool)
    rows = page.tilelength if page.is_tiled else min(page.rowsperstrip or page.imagelength, page.imagelength)
    columns = page.tilewidth if page.is_tiled else page.imagewidth
    lerc = page.tags.valueof(50674)
    subsampling = page.tags.valueof(530) or (2, 2)
    return TileCodec(
        compression=int(page.compression),
        predictor=int(page.predictor),
        dtype=dtype.newbyteorder(page.parent.byteorder),
        shape=(rows, columns, page.samplesperpixel if page.planarconfig == 1 else 1),
        photometric=int(page.photometric),
        reverse_bits=page.fillorder == 2,  # noqa: PLR2004 - the TIFF tag's value
        jpeg_tables=page.jpegtables,
        subsampling=(int(subsampling[0]), int(subsampling[1])),
        lerc_compression=int(lerc[1]) if lerc else 0,
    )


def _table(page: tifffile.TiffPage, ifd: int) -> TileTable:
    if any(page.tags[tag].dtype not in _UNSIGNED for tag in ((324, 325) if page.is_tiled else (273, 279))):
        raise ValueError("its tile offsets or byte counts are no unsigned integers")
    planes = 1 if page.planarconfig == 1 else page.samplesperpixel
    table = TileTable(
        ifd=ifd,
        width=page.imagewidth,
        height=page.imagelength,
        planes=planes,
        offsets=np.asarray(page.dataoffsets, dtype=np.uint64),
        counts=np.asarray(page.databytecounts, dtype=np.uint64),
        codec=_codec(page),
        strips=not page.is_tiled,
    )
    tiles = planes * table.across * table.down
    if len(table.offsets) < tiles or len(table.counts) < tiles:
        raise ValueError(f"{tiles} tiles, but {len(table.offsets)} offsets and {len(table.counts)} byte counts")
    return table
