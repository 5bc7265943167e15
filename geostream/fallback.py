"""rasterio behind the reader's surface, for what geostream does not decode itself."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rasterio
from rasterio.errors import NotGeoreferencedWarning

from geostream.errors import DecodeError, HeaderError, NotFoundError, redact
from geostream.header import MaskKind
from geostream.opener import GDAL_ERRORS, RangeContainer, gdal_words, open_in, open_with_gdal
from geostream.parse import describe, with_mask_beside, with_overview_sizes
from geostream.validity import validity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from geostream.header import RasterHeader
    from geostream.opener import ByteSource
    from geostream.plan import Job

__all__ = ["GdalFile", "needs_copy"]

_NETCDF = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = (0, 512, 1024, 2048, 4096, 8192)
"""Bytes of a user's own that may come before the signature of HDF5."""
COPY_LIMIT = 2**30
"""Largest NetCDF or HDF5 file of which a temporary copy is made, in bytes."""
_COPY_STEP = 2**23
_NO_FILE = "No such file or directory"
"""What GDAL says of a source that a VRT names and that is not there."""


def needs_copy(head: bytes) -> bool:
    """Whether these first bytes are of a format (NetCDF, HDF5) that GDAL reads from a real file only."""
    return head.startswith(_NETCDF) or any(head.startswith(_HDF5, start) for start in _USER_BLOCKS)


class GdalFile:
    """A raster that GDAL opens: over the transport, from a temporary copy, or where it lies on this machine.

    Every use opens and closes a dataset in the calling thread: GDAL's datasets belong to one thread, and nothing of
    them must be there when the process forks.
    """

    def __init__(self, name: str, files: Mapping[str, ByteSource], local_path: str | None, *, copied: bool) -> None:
        self._name = name
        self._files = files
        self._local_path = local_path
        self.copied = copied
        """Whether it is read from a temporary copy, made on first use."""
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    def header(self) -> RasterHeader:
        """Header as GDAL tells it.

        Raises:
            HeaderError: GDAL does not open it.
        """
        with self._open() as dataset:
            header = describe(dataset)
            beside = [*self._files, *dataset.files]
        if self.copied:
            reason = (
                f"{header.driver} files are read through GDAL from a temporary copy of at most {COPY_LIMIT >> 20} MiB"
            )
            header = replace(header, reason=reason)
        sized = with_overview_sizes(header, lambda level: self._open(overview_level=level))
        return with_mask_beside(sized, beside)

    def prepare(self) -> None:
        """Make the copy if there must be one, so that threads do not each make theirs."""
        if self.copied:
            self._copy_path()

    def read(self, job: Job) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        """Data (C, h, w) and validity (C or 1, h, w) of the job's window; None where it reads nothing.

        Raises:
            DecodeError: GDAL could not decode it.
        """
        window = job.window
        if window is None:
            return None
        span = ((window.row_off, window.row_stop), (window.col_off, window.col_stop))
        level = {} if job.level == 0 else {"overview_level": job.level - 1}
        try:
            with self._open(**level) as dataset:
                data = dataset.read(list(job.bands), window=span, out_dtype=job.header.dtype)
                by_nodata = job.header.mask is MaskKind.NODATA and not job.reads_alpha
                mask = None
                if job.header.mask is not MaskKind.ALL_VALID and not by_nodata:
                    mask = dataset.dataset_mask(window=span)
        except GDAL_ERRORS as error:
            url = job.request.source.url
            kind = NotFoundError if _NO_FILE in gdal_words(error) else DecodeError
            raise kind(
                f"{redact(url)}: GDAL could not read columns {window.col_off}-{window.col_stop}, "
                f"rows {window.row_off}-{window.row_stop} of level {job.level}: {redact(gdal_words(error))}",
                url=url,
            ) from None
        return data, validity(data, job.bands, job.header, mask)

    def open(self) -> tuple[Any, list[Exception]]:
        """A dataset of rasterio's for the calling thread, which closes it.

        Returns:
            The dataset, and the list of what went wrong below it: look there after each use, since GDAL goes on without
            the bytes, or says nothing of why they are missing.

        Raises:
            HeaderError: GDAL does not open it.
        """
        path = self._path()
        if path is not None:
            return _open_path(path), []
        container = RangeContainer(self._files)
        return open_in(container, self._name, self._files), container.failures

    @contextlib.contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        path = self._path()
        if path is None:
            with open_with_gdal(self._name, self._files, **options) as dataset:
                yield dataset
            return
        with _open_path(path, **options) as dataset:
            yield dataset

    def _path(self) -> str | None:
        """Where the file lies on this machine, if it does; a copy is made if there must be one."""
        return self._copy_path() if self.copied else self._local_path

    def _copy_path(self) -> str:
        if self._copy is None:
            source = self._files[self._name]
            if source.total > COPY_LIMIT:
                raise HeaderError(
                    f"this format can only be read from a local copy, and its {source.total} bytes exceed the limit of "
                    f"{COPY_LIMIT}: download it, or convert it to a COG"
                )
            folder = tempfile.TemporaryDirectory(prefix="geostream-")
            with (Path(folder.name) / self._name).open("wb") as file:
                for start in range(0, source.total, _COPY_STEP):
                    file.writelines(source.read_ranges([(start, min(start + _COPY_STEP, source.total))]))
            self._copy = folder
        return str(Path(self._copy.name) / self._name)


def _open_path(path: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            return rasterio.open(path, **options)
        except GDAL_ERRORS as error:
            raise HeaderError(f"GDAL does not open it as a raster: {gdal_words(error)}") from None
