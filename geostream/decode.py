"""Tile bytes to arrays, bit for bit what GDAL makes of them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import imagecodecs
import numpy as np

from geostream.buffers import BufferPool
from geostream.errors import DecodeError
from geostream.ifd import SparseBytes
from geostream.opener import SparseSource, open_with_gdal

if TYPE_CHECKING:
    from collections.abc import Callable

    from geostream.header import TileCodec

    Array = np.ndarray[Any, np.dtype[Any]]
    Data = Any  # any contiguous buffer: imagecodecs takes more types than its stubs name

__all__ = ["SUPPORTED_COMPRESSIONS", "decode_tile", "unsupported_reason"]

_NONE, _LZW, _JPEG, _DEFLATE, _PACKBITS, _OLD_DEFLATE = 1, 5, 7, 8, 32773, 32946
_LERC, _ZSTD, _WEBP = 34887, 50000, 50001
_YCBCR, _SEPARATED, _CIELAB = 6, 5, 8
_HORIZONTAL, _FLOATING = 2, 3


_KEPT_BYTES = 2**25

_tile_memory = BufferPool(_KEPT_BYTES)
"""Memory of tiles that no cache and no batch holds any more, for the next ones."""


def _inflate(data: Data, out: Data) -> Data:
    """Inflate by libdeflate, twice as fast as zlib; zlib takes the streams that hold more than their tile."""
    try:
        return imagecodecs.deflate_decode(data, out=out)
    except imagecodecs.DeflateError:
        return imagecodecs.zlib_decode(data, out=out)


_BYTE_DECODERS: dict[int, Callable[[Data, Data], Data]] = {
    _LZW: lambda data, out: imagecodecs.lzw_decode(data, out=out),
    _DEFLATE: _inflate,
    _OLD_DEFLATE: _inflate,
    _PACKBITS: lambda data, out: imagecodecs.packbits_decode(data, out=out),
    _ZSTD: lambda data, out: imagecodecs.zstd_decode(data, out=out),
}
"""Compressions that give back the bytes that went in, by TIFF tag: (compressed, a tile's memory) -> what was filled."""

_LERC_WRAPPERS: dict[int, Callable[[Data], Any]] = {
    0: lambda data: data,
    1: imagecodecs.deflate_decode,
    2: imagecodecs.zstd_decode,
}

SUPPORTED_COMPRESSIONS = frozenset({_NONE, *_BYTE_DECODERS, _JPEG, _LERC, _WEBP})
"""TIFF compression tags whose tiles geostream decodes itself."""


def unsupported_reason(codec: TileCodec) -> str:
    """Why tiles of this kind are left to GDAL as a whole file, or nothing."""
    image_codec = codec.compression in (_JPEG, _WEBP)
    rules = [
        (codec.photometric >= _CIELAB or codec.photometric == _SEPARATED, f"photometric {codec.photometric}"),
        (codec.photometric == _YCBCR and not image_codec, "YCbCr without JPEG"),
        (image_codec and codec.dtype != np.uint8, f"JPEG or WebP of {codec.dtype}"),
        (
            codec.reverse_bits and codec.compression in (_JPEG, _LERC, _WEBP),
            "an image codec with bits in reverse order",
        ),
        (codec.lerc_compression not in _LERC_WRAPPERS, f"LERC with additional compression {codec.lerc_compression}"),
        (codec.predictor not in (1, _HORIZONTAL, _FLOATING), f"predictor {codec.predictor}"),
        (codec.predictor != 1 and codec.dtype.kind in "cb", f"predictor {codec.predictor} on {codec.dtype}"),
    ]
    return next((f"{what} is left to GDAL" for applies, what in rules if applies), "")


def decode_tile(data: Data, codec: TileCodec) -> Array:
    """Decode one tile.

    Args:
        data: the tile's compressed bytes, whole.
        codec: how they are to be understood.

    Returns:
        Array (rows, columns, samples) in native byte order, of the whole tile even at the raster's edge; uint8 where
        the samples are single bits, float32 where they are floats of 16.

    Raises:
        DecodeError: the bytes are not those of such a tile.
    """
    try:
        if codec.compression == _JPEG:
            tile = _jpeg(data, codec)
        elif codec.compression == _WEBP:
            tile = imagecodecs.webp_decode(data, hasalpha=codec.shape[2] == 4)  # noqa: PLR2004 - RGBA
        elif codec.compression == _LERC:
            tile = _lerc(data, codec)
        else:
            tile = _plain(data, codec)
    except DecodeError:
        raise
    except Exception as error:  # each codec library raises a class of its own
        raise DecodeError(f"its {len(data)} bytes do not decode ({type(error).__name__}: {error})") from error
    if tile.shape != codec.shape:
        raise DecodeError(f"it decodes to an array of shape {tile.shape} where {codec.shape} was expected")
    return tile.astype(np.float32) if tile.dtype == np.float16 else tile


def _plain(data: Data, codec: TileCodec) -> Array:
    """Undo a byte compression, then the byte order, then the predictor."""
    rows, columns, samples = codec.shape
    if codec.reverse_bits:
        data = bytes(imagecodecs.bitorder_decode(data))
    bits = codec.dtype == bool
    size = rows * (-(-columns * samples // 8)) if bits else codec.nbytes
    compressed = codec.compression != _NONE
    raw = _BYTE_DECODERS[codec.compression](data, _tile_memory.take(size)) if compressed else data
    if len(raw) < size:
        raise DecodeError(f"it holds {len(raw)} bytes where a tile has {size}")
    if bits:
        packed = np.frombuffer(raw, np.uint8, size).reshape(rows, -1)
        return np.unpackbits(packed, axis=1)[:, : columns * samples].reshape(codec.shape)
    if codec.predictor == _FLOATING:
        # This predictor stores the bytes of its floats by significance, so that the file's byte order does not matter.
        tile = np.frombuffer(raw, codec.dtype.newbyteorder("="), size // codec.dtype.itemsize).reshape(codec.shape)
        return imagecodecs.floatpred_decode(tile.copy(), axis=-2)
    tile = np.frombuffer(raw, codec.dtype, size // codec.dtype.itemsize).reshape(codec.shape)
    native = tile.astype(codec.dtype.newbyteorder("="), copy=False)
    if codec.predictor == _HORIZONTAL:
        if not native.flags.writeable:  # the file's own bytes
            native = native.copy()
        # The differences are of the samples as integers, whatever they stand for.
        as_integers = native.view(np.dtype(f"u{native.itemsize}"))
        imagecodecs.delta_decode(as_integers, axis=-2, out=as_integers)
    return native


def _lerc(data: Data, codec: TileCodec) -> Array:
    """Undo LERC: what its masks leave out is NaN in float images, and may be all there is of an 8-bit alpha band."""
    blob = _LERC_WRAPPERS[codec.lerc_compression](data)
    tile, mask = (*imagecodecs.lerc_decode(blob, masks=True), None)[:2]
    rows, columns, samples = codec.shape
    if tile.dtype != codec.dtype.newbyteorder("="):
        raise DecodeError(f"it holds {tile.dtype} pixels where {codec.dtype.newbyteorder('=')} were expected")
    if (mask is not None and mask.ndim == 3) or tile.shape[:2] != (rows, columns):  # noqa: PLR2004 - bands first
        tile = np.moveaxis(tile, 0, 2)
        mask = None if mask is None else np.moveaxis(mask, 0, 2)
    tile = tile.reshape(rows, columns, -1)
    if tile.shape[2] == samples - 1 and tile.dtype == np.uint8:
        opaque = np.full((rows, columns), True) if mask is None else mask
        return np.dstack([tile, np.where(opaque, np.uint8(255), np.uint8(0))])
    if mask is not None and tile.dtype.kind == "f":
        tile = np.where(mask.reshape(rows, columns, -1), tile, tile.dtype.type(np.nan))
    # Big-endian files hold pixels whose bytes were swapped before they were taken for numbers and compressed.
    return np.ascontiguousarray(tile).view(codec.dtype).astype(codec.dtype.newbyteorder("="), copy=False)


def _jpeg(data: Data, codec: TileCodec) -> Array:
    if codec.photometric == _YCBCR and codec.shape[2] == 3:  # noqa: PLR2004 - Y, Cb, Cr
        # imagecodecs upsamples chroma as its own libjpeg was built to; only GDAL's libjpeg gives GDAL's pixels.
        return _jpeg_through_gdal(data, codec)
    tile = imagecodecs.jpeg8_decode(data, tables=codec.jpeg_tables, colorspace=None, outcolorspace=None)
    tile = tile[:, :, None] if tile.ndim == 2 else tile  # noqa: PLR2004 - a single band
    # What GDAL makes of an image of another size than its tile, GDAL knows best.
    return tile if tile.shape == codec.shape else _jpeg_through_gdal(data, codec)


def _jpeg_through_gdal(data: Data, codec: TileCodec) -> Array:
    """Decode a tile by handing GDAL a TIFF that holds nothing else."""
    tiff = one_tile_tiff(data, codec)
    buffer = SparseBytes(len(tiff))
    buffer.add(0, tiff)
    with open_with_gdal("tile.tif", {"tile.tif": SparseSource(buffer)}, driver="GTiff") as dataset:
        pixels = dataset.read()
    return np.ascontiguousarray(np.moveaxis(pixels, 0, 2))


def one_tile_tiff(data: Data, codec: TileCodec) -> bytes:
    """Wrap a JPEG tile into a little-endian TIFF of exactly that tile."""
    rows, columns, samples = codec.shape
    tables = codec.jpeg_tables or b""
    entries = [
        (256, 4, 1, columns),
        (257, 4, 1, rows),
        (258, 3, samples, 0),
        (259, 3, 1, codec.compression),
        (262, 3, 1, codec.photometric),
        (277, 3, 1, samples),
        (284, 3, 1, 1),
        (322, 4, 1, columns),
        (323, 4, 1, rows),
        (324, 4, 1, 0),
        (325, 4, 1, len(data)),
        *([(347, 7, len(tables), 0)] if tables else []),
        (530, 3, 2, codec.subsampling[0] | codec.subsampling[1] << 16),
    ]
    bits_at = 8 + 2 + 12 * len(entries) + 4
    tables_at = bits_at + 2 * samples
    data_at = tables_at + len(tables)
    places = {258: bits_at, 324: data_at, 347: tables_at}
    directory = b"".join(struct.pack("<HHLL", t, k, n, places.get(t, value)) for t, k, n, value in entries)
    head = struct.pack("<2sHLH", b"II", 42, 8, len(entries)) + directory + bytes(4)
    return head + struct.pack(f"<{samples}H", *[8] * samples) + tables + bytes(data)
