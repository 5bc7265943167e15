"""Lets GDAL open bytes that geostream holds or fetches: a rasterio opener over named ranges."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

import rasterio
from rasterio._err import CPLE_BaseError
from rasterio._vsiopener import MultiByteRangeResource
from rasterio.abc import MultiByteRangeResourceContainer
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from geostream.errors import HeaderError
from geostream.ifd import SparseBytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from geostream.ifd import ByteRange

__all__ = [
    "GDAL_ERRORS",
    "ByteSource",
    "RangeContainer",
    "SparseSource",
    "gdal_words",
    "held",
    "open_in",
    "open_with_gdal",
]

_POINTING_DRIVERS = frozenset(
    {
        "DAAS",
        "DERIVED",
        "EEDAI",
        "GTI",
        "HTTP",
        "KMLSUPEROVERLAY",
        "MRF",
        "NGW",
        "OGCAPI",
        "PLMOSAIC",
        "STACIT",
        "STACTA",
    }
    | {"VRT", "WCS", "WMS", "WMTS"}
)
"""GDAL drivers whose files say where else to read from."""


GDAL_ERRORS = (RasterioError, CPLE_BaseError)
"""What rasterio raises when GDAL fails: its own classes, and in places GDAL's bare ones."""


def gdal_words(error: BaseException) -> str:
    """What GDAL said, from the first error on: rasterio's own may say no more than to look there."""
    said: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        words = str(cause).replace("See previous exception for details.", "").strip()
        if words and words not in said:
            said.append(words)
        cause = cause.__cause__
    return " ".join(said)


class ByteSource(Protocol):
    """Something with a size whose byte ranges can be had."""

    @property
    def total(self) -> int:
        """Size in bytes."""

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Bytes of each range, all fetched together; every range lies within `total`."""


class SparseSource:
    """The part of a file that has arrived, as a `ByteSource`; the rest reads as zeros."""

    def __init__(self, buffer: SparseBytes) -> None:
        self._buffer = buffer
        self.total = buffer.total

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Bytes of each range."""
        found = [self._buffer.get(start, stop) for start, stop in ranges]
        return [
            bytes(stop - start) if data is None else data for (start, stop), data in zip(ranges, found, strict=True)
        ]


class _Held(SparseSource):
    """A VRT that geostream has rewritten: it names none but the files given with it."""


def held(content: bytes) -> ByteSource:
    """A VRT's bytes, checked to name nothing but files given with it; the only one that `open_with_gdal` opens."""
    buffer = SparseBytes(len(content))
    buffer.add(0, content)
    return _Held(buffer)


class _RangeFile(MultiByteRangeResource):  # type: ignore[misc]  # rasterio has no type information
    """One file of a `RangeContainer`, opened."""

    def __init__(self, source: ByteSource, failures: list[Exception]) -> None:
        self._source = source
        self._failures = failures
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def close(self) -> None:
        """Nothing to close."""

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.total}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Bytes from the position on. GDAL reads headers a few bytes at a time, hundreds of times: keep it short."""
        start, total = self._position, self._source.total
        stop = total if size < 0 else min(start + size, total)
        if stop <= start:
            return b""
        found = self._read([(start, stop)])
        if found is None:
            return b""
        self._position = start + len(found[0])
        return found[0]

    def get_byte_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Bytes of several ranges at once: what GDAL asks for before it decodes a window."""
        found = self._read([(o, o + n) for o, n in zip(offsets, sizes, strict=True)])
        return [bytes(n) for n in sizes] if found is None else found

    def _read(self, ranges: list[ByteRange]) -> list[bytes] | None:
        """Bytes of each range; None from the first failure on.

        GDAL forgets what kind of error it was, goes on without the bytes, and runs other Python code while an exception
        passes through it. So none does: `open_with_gdal` raises the first one in the end.
        """
        if not self._failures:
            try:
                return self._source.read_ranges(ranges)
            except Exception as error:  # noqa: BLE001 - raised again
                self._failures.append(error)
        return None


class RangeContainer(MultiByteRangeResourceContainer):  # type: ignore[misc]  # rasterio has no type information
    """A folder of `ByteSource` files for ``rasterio.open(name, opener=…)``.

    GDAL finds exactly the named files: a sidecar that is not among them does not exist for it.
    """

    def __init__(self, files: Mapping[str, ByteSource]) -> None:
        self._files = dict(files)
        self.failures: list[Exception] = []
        """Errors of the sources, in the order in which GDAL ran into them."""

    def _find(self, path: str) -> ByteSource:
        try:
            return self._files[path.rsplit("/", 1)[-1]]
        except KeyError:
            raise FileNotFoundError(path) from None

    def open(self, path: str, mode: str = "rb", **_: Any) -> _RangeFile:
        """Open one of the files for reading; GDAL passes the mode, and only ever reads."""
        del mode
        return _RangeFile(self._find(path), self.failures)

    def isfile(self, path: str) -> bool:
        """Whether the container has the file."""
        return path.rsplit("/", 1)[-1] in self._files

    def isdir(self, path: str) -> bool:
        """False: there are no folders inside."""
        del path
        return False

    def ls(self, path: str) -> list[str]:
        """Names of all files."""
        del path
        return list(self._files)

    def mtime(self, path: str) -> int:
        """0: what is opened here does not change while it is open."""
        del path
        return 0

    def size(self, path: str) -> int:
        """Size of a file in bytes."""
        return self._find(path).total

    def rm(self, path: str) -> None:
        """Refused: the files are read only."""
        raise PermissionError(path)


@contextmanager
def open_with_gdal(name: str, files: Mapping[str, ByteSource], **options: Any) -> Iterator[Any]:
    """Yield ``name`` among ``files`` as a rasterio dataset, for use in this thread.

    Formats whose headers name other places to read from (VRT, WMS, …) are not opened: what a remote file says must not
    decide which of this machine's files, or which hosts, are read.

    Raises:
        HeaderError: GDAL does not recognise it.
        GDAL_ERRORS: GDAL failed at what was done with the dataset.
        Exception: a file's bytes could not be had: whatever its `ByteSource` raised, even where GDAL went on without.
    """
    container = RangeContainer(files)
    dataset = open_in(container, name, files, **options)
    try:
        with dataset:
            yield dataset
    except GDAL_ERRORS:
        if container.failures:
            raise container.failures[0] from None
        raise
    if container.failures:
        raise container.failures[0]


def open_in(container: RangeContainer, name: str, files: Mapping[str, ByteSource], **options: Any) -> Any:
    """``name`` among the ``files`` of a container as a rasterio dataset; see `open_with_gdal`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            dataset = rasterio.open(name, opener=container, **options)
    except GDAL_ERRORS as error:
        if container.failures:
            raise container.failures[0] from None
        raise HeaderError(f"GDAL does not open it as a raster: {_plain(error, name)}") from None
    if dataset.driver in _POINTING_DRIVERS and not isinstance(files[name], _Held):
        driver = dataset.driver
        dataset.close()
        raise HeaderError(f"{driver} files name other places to read from: open those themselves")
    return dataset


def _plain(error: Exception, name: str) -> str:
    """GDAL's words without the path of the virtual folder that `RangeContainer` stands for."""
    return " ".join(name if "/vsi" in word else word for word in gdal_words(error).split())
