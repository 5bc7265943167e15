"""rasterio datasets over geostream's transport, for classes that open files by hooks of their own."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rasterio.crs import CRS as RasterioCRS  # noqa: N811 - a class, and not the only one of its name
from rasterio.transform import array_bounds, from_gcps
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform

from geostream.errors import ConfigError, HeaderError, redact
from geostream.opener import GDAL_ERRORS
from geostream.opening import gdal_file
from geostream.transport import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geostream.header import RasterHeader
    from geostream.plan import Source

__all__ = ["held", "open_warped", "reading_with_gdal"]


@dataclass
class _Block:
    """What was opened within a block of `reading_with_gdal`."""

    handles: list[Any] = field(default_factory=list)
    """Datasets, those that classes made of others included."""
    failures: list[list[Exception]] = field(default_factory=list)
    """What went wrong below each."""

    def first_failure(self) -> Exception | None:
        return next((error for failures in self.failures for error in failures), None)

    def close(self) -> None:
        for handle in reversed(self.handles):
            handle.close()


_block: ContextVar[_Block | None] = ContextVar("geostream_gdal_block", default=None)


@contextmanager
def reading_with_gdal() -> Iterator[None]:
    """Close what is opened within the block, and raise what went wrong below it.

    GDAL forgets why bytes could not be had, or goes on without them. And rasterio does not stand it that the garbage
    collector closes a dataset in another thread than opened it.
    """
    block = _Block()
    token = _block.set(block)
    try:
        yield
    except GDAL_ERRORS:
        error = block.first_failure()
        if error is not None:
            raise error from None
        raise
    finally:
        _block.reset(token)
        block.close()
    error = block.first_failure()
    if error is not None:
        raise error


def held(handle: Any) -> Any:
    """The dataset, which the block around this call will close.

    Raises:
        ConfigError: it is closed already.
    """
    if handle.closed:
        raise ConfigError("_load_warp_file returned a closed dataset: it must not keep one from sample to sample")
    block = _block.get()
    if block is not None:
        block.handles.append(handle)
    return handle


def open_warped(source: Source, header: RasterHeader, crs: Any, nodata: float | None) -> Any:
    """Open a file as TorchGeo does: in ``crs``, its rows from north to south, warped by nearest neighbour if need be.

    Args:
        source: the file.
        header: its header.
        crs: CRS to open it in; None for its own.
        nodata: value to take for no data instead of what the file declares.

    Returns:
        A rasterio dataset, or a `WarpedVRT` of one, read through geostream's transport, for use in this thread. The
        block of `reading_with_gdal` around this call closes it; without one, that is the caller's.

    Raises:
        HeaderError: the file has no CRS.
    """
    dataset, failures = run(gdal_file(source, header)).open()
    block = _block.get()
    if block is not None:
        block.handles.append(dataset)
        block.failures.append(failures)
    own, transform = dataset.crs, dataset.transform
    if transform.is_identity and dataset.gcps[0]:
        transform, own = from_gcps(dataset.gcps[0]), dataset.gcps[1]
    if own is None:
        raise HeaderError(f"{redact(source.url)} has no CRS: georeference it", url=source.url)
    target = own if crs is None else RasterioCRS.from_user_input(crs)
    west, south, east, north = array_bounds(dataset.height, dataset.width, transform)
    box = min(west, east), min(south, north), max(west, east), max(south, north)
    wanted, width, height = calculate_default_transform(own, target, dataset.width, dataset.height, *box)
    same = own == target and transform.almost_equals(wanted) and (width, height) == (dataset.width, dataset.height)
    if same and nodata is None:
        return dataset
    override = {} if nodata is None else {"src_nodata": nodata}
    return WarpedVRT(
        dataset,
        crs=target,
        transform=wanted,
        width=width,
        height=height,
        src_crs=own,
        src_transform=transform,
        **override,
    )
