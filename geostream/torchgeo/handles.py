"""rasterio datasets over geostream's transport, for classes that open files by hooks of their own."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rasterio.crs import CRS as RasterioCRS  # noqa: N811 - a class, and not the only one of its name
from rasterio.transform import array_bounds, from_gcps
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform

from geostream.errors import HeaderError, redact
from geostream.opener import GDAL_ERRORS
from geostream.opening import gdal_file
from geostream.transport import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geostream.header import RasterHeader
    from geostream.plan import Source

__all__ = ["open_warped", "reading_with_gdal"]

_failures: ContextVar[list[list[Exception]] | None] = ContextVar("geostream_gdal_failures", default=None)


@contextmanager
def reading_with_gdal() -> Iterator[None]:
    """Within the block, what goes wrong beneath the datasets that `open_warped` opened is raised in the end.

    GDAL forgets why bytes could not be had, or goes on without them.
    """
    opened: list[list[Exception]] = []
    token = _failures.set(opened)
    try:
        yield
    except GDAL_ERRORS:
        _raise_first(opened)
        raise
    finally:
        _failures.reset(token)
    _raise_first(opened)


def _raise_first(opened: list[list[Exception]]) -> None:
    for failures in opened:
        if failures:
            raise failures[0] from None


def open_warped(source: Source, header: RasterHeader, crs: Any, nodata: float | None) -> Any:
    """Open a file as TorchGeo does: in ``crs``, its rows from north to south, warped by nearest neighbour if need be.

    Args:
        source: the file.
        header: its header.
        crs: CRS to open it in; None for its own.
        nodata: value to take for no data instead of what the file declares.

    Returns:
        A rasterio dataset, or a `WarpedVRT` of one, for use in this thread, read through geostream's transport.

    Raises:
        HeaderError: the file has no CRS.
    """
    dataset, failures = run(gdal_file(source, header)).open()
    opened = _failures.get()
    if opened is not None:
        opened.append(failures)
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
