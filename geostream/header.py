"""Header bytes to records: levels, tile tables, pixel type, validity, georeferencing. Nothing here reads a file."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from geostream.grid import Grid

__all__ = ["Level", "MaskKind", "RasterHeader", "TileCodec", "TileTable"]


class MaskKind(enum.Enum):
    """What decides which pixels of a raster are valid, as GDAL's mask flags tell it."""

    ALL_VALID = "all valid"
    """Every pixel inside the raster is valid; zeros are data."""
    NODATA = "nodata"
    """A pixel is valid where any band differs from its nodata value."""
    INTERNAL = "internal mask"
    """A mask stored as an image of its own inside the file: valid where it is not 0."""
    ALPHA = "alpha"
    """A band of the raster: valid where it is not 0."""
    EXTERNAL = "external mask"
    """In a ``.msk`` file beside the raster, or flags of several kinds: read through rasterio."""


@dataclass(frozen=True, slots=True)
class TileCodec:
    """How the bytes of one image's tiles turn into pixels; everything a decoder needs, nothing of the file."""

    compression: int
    """TIFF compression tag."""
    predictor: int
    """1 none, 2 horizontal differences, 3 floating point."""
    dtype: np.dtype[Any]
    """Pixel type in the file's byte order; bool stands for one bit a pixel, most significant first."""
    shape: tuple[int, int, int]
    """(rows, columns, samples) of a whole tile or strip; samples is 1 where bands are stored one after the other."""
    photometric: int
    """TIFF photometric interpretation tag."""
    reverse_bits: bool = False
    """FillOrder 2: bits of every byte come least significant first."""
    jpeg_tables: bytes | None = None
    """Quantisation and Huffman tables shared by the image's JPEG tiles."""
    subsampling: tuple[int, int] = (1, 1)
    """Chroma subsampling (horizontal, vertical) of YCbCr tiles."""
    lerc_compression: int = 0
    """0 none, 1 DEFLATE, 2 ZSTD on top of LERC."""

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded tile."""
        rows, columns, samples = self.shape
        return rows * columns * samples * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class TileTable:
    """One image of the file: its size, the place of each of its tiles, and how they decode."""

    ifd: int
    """Position of the image among the file's directories; names it within the file."""
    width: int
    """Columns of the image."""
    height: int
    """Rows of the image."""
    planes: int
    """Images of one sample that follow each other (band interleaving), or 1."""
    offsets: np.ndarray[Any, np.dtype[np.uint64]]
    """uint64 (planes * tile rows * tile columns,): first byte of each tile; meaningless where its count is 0."""
    counts: np.ndarray[Any, np.dtype[np.uint64]]
    """uint64, same shape: compressed bytes of each tile; 0 for a sparse tile."""
    codec: TileCodec
    """How the tiles decode."""
    strips: bool = False
    """Whether they are strips: as wide as the image, and the last one of each plane only as high as what is left."""

    @property
    def across(self) -> int:
        """Tiles in a row."""
        return -(-self.width // self.codec.shape[1])

    @property
    def down(self) -> int:
        """Tiles in a column."""
        return -(-self.height // self.codec.shape[0])

    def codec_of(self, index: int) -> TileCodec:
        """How one tile decodes."""
        rows, columns, samples = self.codec.shape
        left = self.height - (self.down - 1) * rows
        if not self.strips or left == rows or index // self.across % self.down < self.down - 1:
            return self.codec
        return replace(self.codec, shape=(left, columns, samples))


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One resolution of a raster: the full one, or an overview."""

    image: TileTable
    """Pixels."""
    mask: TileTable | None
    """Internal mask of the same size, where the raster has one."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RasterHeader:
    """Everything known about a raster once its header was read."""

    driver: str
    """GDAL's name of the format."""
    reader: str
    """``"geostream"`` where tiles are fetched and decoded here, ``"rasterio"`` where GDAL reads over the transport."""
    reason: str
    """Why rasterio reads it; empty otherwise."""
    grid: Grid
    """Size, transform and CRS at full resolution; without georeferencing the transform is the identity."""
    count: int
    """Number of bands."""
    dtype: np.dtype[Any]
    """Pixel type, in native byte order."""
    nodata: tuple[float | int | None, ...]
    """Declared nodata value of each band."""
    mask: MaskKind
    """What decides validity."""
    alpha: int | None
    """1-based alpha band, where `mask` is ALPHA."""
    overviews: tuple[tuple[int, int], ...]
    """(width, height) of each overview, finest first."""
    levels: tuple[Level, ...] = ()
    """Full resolution first, then overviews from fine to coarse; empty where rasterio reads."""
    block_shape: tuple[int, int] = (0, 0)
    """(rows, columns) of a tile or strip."""
    compression: str | None = None
    """GDAL's name of the compression."""
    predictor: int = 1
    """TIFF predictor."""
    interleave: str = "pixel"
    """``pixel`` or ``band``."""
    descriptions: tuple[str | None, ...] = ()
    """Name of each band, where the file gives one."""
    colorinterp: tuple[str, ...] = ()
    """Colour interpretation of each band."""
    colormap: Mapping[int, tuple[int, int, int, int]] | None = None
    """RGBA of each index of the first band, where it is a palette."""
    scales: tuple[float, ...] = ()
    """Scale of each band; exposed, never applied."""
    offsets: tuple[float, ...] = ()
    """Offset of each band; exposed, never applied."""
    units: tuple[str | None, ...] = ()
    """Unit of each band."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The dataset's metadata."""
    gcps: int = 0
    """Number of ground control points."""
    ground: Grid | None = None
    """Its place on the earth by ground control points, where it has no transform; `grid` then counts pixels."""
    total: int | None = None
    """Size of the file in bytes."""
    etag: str | None = None
    """Version of the object, sent with every later request."""
    requests: int = 0
    """Requests it took to read this header."""
    bytes: int = 0
    """Bytes it took to read this header."""

    def fill(self, band: int) -> float | int:
        """Value that stands for "nothing" in the 1-based ``band``: its nodata value, or 0 where none is declared."""
        value = self.nodata[band - 1]
        return 0 if value is None else value

    def declaring(self, nodata: float) -> RasterHeader:
        """This header as if the file declared ``nodata`` for all bands, whatever it says of valid pixels itself."""
        return replace(self, nodata=(nodata,) * self.count, mask=MaskKind.NODATA, alpha=None)
