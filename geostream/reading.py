"""``gs.read`` and ``gs.info``: one raster, without datasets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rasterio.warp
from affine import Affine
from rasterio._err import CPLE_BaseError

from geostream.errors import ConfigError, GeostreamError, NotFoundError, QueryError, redact
from geostream.grid import Grid, Window, parse_crs, same_crs
from geostream.index import converted_res
from geostream.opening import open_source
from geostream.plan import Request, Source, plan_job
from geostream.reader import Patch, read_many
from geostream.scan.names import sidecar_names
from geostream.transport import Access, get_range, normalize_url, run
from geostream.warp import RESAMPLINGS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from fsspec import AbstractFileSystem
    from pyproj import CRS

    from geostream.grid import Bounds
    from geostream.header import RasterHeader
    from geostream.transport import Transport

__all__ = ["info", "read"]

_PROBED = (".msk", ".ovr", ".msk.ovr", ".aux.xml")
"""What the sidecar files that a remote raster is probed for add to its name."""


def read(
    url: str | os.PathLike[str],
    *,
    window: Any = None,
    bounds: Sequence[float] | None = None,
    bounds_crs: Any = None,
    crs: Any = None,
    res: float | tuple[float, float] | None = None,
    shape: tuple[int, int] | None = None,
    bands: Sequence[int] | int | None = None,
    resampling: Any = "nearest",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    sidecars: bool = False,
    transport: Transport = "auto",
    sign: Callable[[str], str] | None = None,
) -> Patch:
    """Read a window of a raster, from wherever it lies, onto the grid asked for.

    Where the grid's pixels are the file's (or an overview's) they are pasted; otherwise they are resampled once.

    Args:
        url: local path, any fsspec URL, or a GDAL ``/vsi…/`` path.
        window: ``(col_off, row_off, width, height)`` in pixels of the file, or rasterio's `Window`; it may
            leave the raster.
        bounds: ``(xmin, ymin, xmax, ymax)``, instead of ``window``; x is longitude or easting.
        bounds_crs: CRS of ``bounds``; default ``crs``.
        crs: CRS of the output; default the file's.
        res: pixel size of the output in units of its CRS, one number or (x, y); default the file's.
        shape: ``(height, width)`` of the output, instead of ``res``.
        bands: 1-based bands, in the order wanted; default all.
        resampling: ``"nearest"``, ``"bilinear"``, ``"cubic"``, ``"average"`` or ``"mode"``.
        storage_options: options of the fsspec filesystem, as in pandas.
        fs: an fsspec filesystem to use instead.
        sidecars: whether to look for mask, overview and metadata files beside a remote file (one request each); those
            beside a local file are always found, world files (``.tfw``, ``.wld``) included.
        transport: who fetches from s3, gs, az and http(s): ``"obstore"``, ``"fsspec"``, or ``"auto"`` for obstore
            where ``storage_options`` mean the same to it.
        sign: called with the URL right before a request, returns the URL to ask for, such as one with a token.

    Returns:
        Pixels (C, H, W) in the file's dtype, their validity (H, W), transform and CRS.

    Raises:
        HeaderError: not a raster.
        ReadError: its bytes could not be had; `NotFoundError` where there is no such file.
        DecodeError: a tile is damaged.
        QueryError: ``bounds`` lie outside the raster.
        ConfigError: arguments that contradict each other, unknown bands or resampling.
    """
    resampling = getattr(resampling, "name", resampling)  # rasterio's Resampling, for one
    if resampling not in RESAMPLINGS:
        raise ConfigError(f"resampling={resampling!r} is unknown: choose one of {', '.join(RESAMPLINGS)}")
    if window is not None and bounds is not None:
        raise ConfigError("window= and bounds= contradict each other: pass one")
    if res is not None and shape is not None:
        raise ConfigError("res= and shape= contradict each other: pass one")
    if bounds_crs is not None and bounds is None:
        raise ConfigError("bounds_crs= says what bounds= are in: pass bounds, or crs= for the output's CRS")
    wanted = _bands(bands)
    place = _Place(
        None if window is None else _window(window),
        None if bounds is None else _box(bounds),
        parse_crs(bounds_crs),
        parse_crs(crs),
        _res(res),
        _shape(shape),
    )
    source, header = _open(url, Access(storage_options, fs, transport=transport, sign=sign), sidecars=sidecars)
    grid = place.grid(header.grid, source.url, header.ground)
    request = Request(replace(source, header=header), grid, wanted, resampling)
    (outcome,) = read_many([request])
    if isinstance(outcome, Exception):
        raise outcome
    if place.bounds is not None and not outcome.valid.any() and plan_job(request, header).window is None:
        raise place.nothing_found(source.url, header.grid)
    return outcome


def info(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    sidecars: bool = False,
    transport: Transport = "auto",
    sign: Callable[[str], str] | None = None,
) -> dict[str, Any]:
    """Say what a raster is, how it will be read, and what finding out cost.

    Args:
        url: as `read`.
        storage_options: as `read`.
        fs: as `read`.
        sidecars: as `read`.
        transport: as `read`.
        sign: as `read`.

    Returns:
        ``driver``, ``reader`` (``"geostream"`` or ``"rasterio"``) and ``reason`` (why the latter), ``size`` (width,
        height), ``bands``, ``dtype``, ``crs`` (pyproj), ``transform`` (affine), ``bounds``, ``res``, ``block_size``
        (width, height), ``compression``, ``predictor``, ``interleave``, ``overviews`` (factors), ``nodata`` (one per
        band), ``masks`` (what decides validity), ``descriptions``, ``colorinterp``, ``colormap``, ``scales``,
        ``offsets``, ``units``, ``tags``, ``gcps``, ``sidecars``, ``file_bytes``, ``etag``, and ``requests`` and
        ``bytes`` that it took.

    Raises:
        HeaderError: not a raster.
        ReadError: its bytes could not be had; `NotFoundError` where there is no such file.
    """
    source, header = _open(url, Access(storage_options, fs, transport=transport, sign=sign), sidecars=sidecars)
    rows, columns = header.block_shape
    return {
        "url": redact(source.url),
        "driver": header.driver,
        "reader": header.reader,
        "reason": header.reason,
        "size": (header.grid.width, header.grid.height),
        "bands": header.count,
        "dtype": header.dtype.name,
        "crs": header.grid.crs,
        "transform": header.grid.transform,
        "bounds": header.grid.bounds,
        "res": header.grid.res,
        "block_size": (columns, rows),
        "compression": header.compression,
        "predictor": header.predictor,
        "interleave": header.interleave,
        "overviews": [int(header.grid.width / width + 0.5) for width, _ in header.overviews],  # GDAL goes by columns
        "nodata": header.nodata,
        "masks": header.mask.value,
        "descriptions": header.descriptions,
        "colorinterp": header.colorinterp,
        "colormap": header.colormap,
        "scales": header.scales,
        "offsets": header.offsets,
        "units": header.units,
        "tags": dict(header.tags),
        "gcps": header.gcps,
        "sidecars": [redact(side) for side in source.sidecars],
        "file_bytes": header.total,
        "etag": header.etag,
        "requests": header.requests,
        "bytes": header.bytes,
    }


def _open(
    url: str | os.PathLike[str],
    access: Access,
    *,
    sidecars: bool,
) -> tuple[Source, RasterHeader]:
    if not isinstance(sidecars, bool):
        raise ConfigError(f"sidecars={sidecars!r} is neither True nor False")
    location = normalize_url(url, access)
    if access.fs is None and location.startswith("/"):
        if access.storage_options:
            raise ConfigError(f"{location}: a local path takes no storage_options=: leave them out", url=location)
        beside = tuple(name for name in sidecar_names(location) if Path(name).is_file())
        return run(_open_source(Source(location, access, beside)))
    if sidecars:
        return run(_probe_and_open(Source(location, access), [location + suffix for suffix in _PROBED]))
    return run(_open_source(Source(location, access)))


async def _open_source(source: Source) -> tuple[Source, RasterHeader]:
    return source, await open_source(source)


async def _probe_and_open(source: Source, beside: list[str]) -> tuple[Source, RasterHeader]:
    exists = await asyncio.gather(*(_exists(url, source.access) for url in beside))
    found = tuple(url for url, there in zip(beside, exists, strict=True) if there)
    source, header = await _open_source(replace(source, sidecars=found))
    return source, replace(header, requests=header.requests + len(beside), bytes=header.bytes + len(found))


async def _exists(url: str, access: Access) -> bool:
    try:
        await get_range(url, access, 0, 1)
    except NotFoundError:
        return False
    except GeostreamError as error:
        if error.status == 403:  # noqa: PLR2004 - S3 denies what is absent to those who may not list the bucket
            return False
        raise
    return True


def _res(value: float | tuple[float, float] | None) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        x, y = (value, value) if isinstance(value, int | float) else value
        pair = float(x), float(y)
    except (TypeError, ValueError):
        pair = 0.0, 0.0
    if not all(0 < size < float("inf") for size in pair):
        raise ConfigError(f"res={value!r} is not a pixel size: pass a positive number, or two")
    return pair


def _bands(value: Sequence[int] | int | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(index(band) for band in (value if isinstance(value, Iterable) else [value]))
    except TypeError:
        raise ConfigError(f"bands={value!r} are not numbers of bands, which count from 1") from None


def _shape(value: tuple[int, int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        height, width = map(index, value)
    except (TypeError, ValueError):
        height = width = 0
    if height <= 0 or width <= 0:
        raise ConfigError(f"shape={value!r} is not (height, width) in pixels")
    return height, width


@dataclass(frozen=True)
class _Place:
    """Which grid the arguments of `read` mean."""

    window: Window | None
    bounds: Bounds | None
    bounds_crs: CRS | None
    crs: CRS | None
    res: tuple[float, float] | None
    shape: tuple[int, int] | None

    def grid(self, source: Grid, url: str, ground: Grid | None = None) -> Grid:
        """The output grid, for a file whose grid is ``source``, or ``ground`` by its control points."""
        if (self.crs is not None or self.bounds_crs is not None) and source.crs is None:
            if ground is not None and self.window is None:
                return self.grid(ground, url)
            raise ConfigError(
                f"{redact(url)} has no CRS, so it cannot be read in one: leave crs and bounds_crs out, and pass pixel "
                "coordinates. It takes four ground control points or more, read whole or by bounds, to do without",
                url=url,
            )
        target = self.crs or source.crs
        if self.bounds is not None:
            return self._over(self.bounds, self.bounds_crs or target, target, source, url)
        part = source if self.window is None else source.part(self.window)
        if same_crs(target, source.crs) and not source.curved:
            return _resized(part, self.res, self.shape)
        return self._over(part.bounds, source.crs, target, source, url)

    def nothing_found(self, url: str, source: Grid) -> GeostreamError:
        """Why the bounds hold nothing of a file whose grid is ``source``."""
        assert self.bounds is not None
        box_crs, spans_crs = self.bounds_crs or self.crs or source.crs, source.crs
        xmin, ymin, xmax, ymax = self.bounds
        x, y = self.res if self.res is not None and same_crs(box_crs, self.crs or source.crs) else (0.0, 0.0)
        if x > 2 * (xmax - xmin) or y > 2 * (ymax - ymin):
            return ConfigError(
                f"{redact(url)}: res={self.res} is larger than the bounds {self.bounds}, and the centre of such a "
                "pixel lies outside the raster. Pass a smaller res.",
                url=url,
            )
        words = ("", "") if same_crs(box_crs, spans_crs) else (f" of {_name(box_crs)}", f" of {_name(spans_crs)}")
        return QueryError(
            f"{redact(url)}: nothing lies in the bounds {self.bounds}{words[0]}; the raster spans "
            f"{source.bounds}{words[1]}. Check the order (xmin, ymin, xmax, ymax) and bounds_crs.",
            url=url,
        )

    def _over(self, box: Bounds, box_crs: CRS | None, target: CRS | None, source: Grid, url: str) -> Grid:
        """The grid that covers ``box``."""
        xmin, ymin, xmax, ymax = box if same_crs(box_crs, target) else _transform_bounds(box, box_crs, target, url)
        if self.shape is not None:
            height, width = self.shape
            return Grid(width, height, Affine((xmax - xmin) / width, 0, xmin, 0, (ymin - ymax) / height, ymax), target)
        same = same_crs(target, source.crs)
        res = self.res or (source.res if same else converted_res(source, target))
        grid = Grid.from_bounds((xmin, ymin, xmax, ymax), res, target)
        if same and source.transform.e > 0 and source.transform.b == 0:
            # A raster stored south up is read as it lies.
            return Grid(grid.width, grid.height, Affine(res[0], 0, xmin, 0, res[1], ymin), target)
        return grid


def _window(window: Any) -> Window:
    if all(hasattr(window, name) for name in ("col_off", "row_off", "width", "height")):  # rasterio's
        window = (window.col_off, window.row_off, window.width, window.height)
    try:
        parts = [int(part) for part in window]
        valid = len(parts) == 4 and all(part == float(given) for part, given in zip(parts, window, strict=True))  # noqa: PLR2004
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid or parts[2] <= 0 or parts[3] <= 0:
        raise ConfigError(f"window={window!r} is not (col_off, row_off, width, height) in whole pixels")
    return Window(*parts)


def _box(bounds: Sequence[float]) -> Bounds:
    try:
        xmin, ymin, xmax, ymax = (float(part) for part in bounds)
    except (TypeError, ValueError):
        raise ConfigError(f"bounds={bounds!r} is not (xmin, ymin, xmax, ymax)") from None
    if not (xmin < xmax and ymin < ymax and xmax - xmin < float("inf") and ymax - ymin < float("inf")):
        raise ConfigError(f"bounds={bounds!r} enclose nothing: pass (xmin, ymin, xmax, ymax)")
    return xmin, ymin, xmax, ymax


def _resized(part: Grid, res: tuple[float, float] | None, shape: tuple[int, int] | None) -> Grid:
    """The extent of ``part``, rotation kept, in another number of pixels."""
    if shape is not None:
        return part.scaled(shape[1], shape[0])
    if res is None:
        return part
    sizes = part.res
    steps = (res[0] / sizes[0], res[1] / sizes[1])
    width, height = (max(1, int(n / step + 0.5)) for n, step in zip((part.width, part.height), steps, strict=True))
    return Grid(width, height, part.transform @ Affine.scale(*steps), part.crs)


def _name(crs: CRS | None) -> str:
    """A CRS by its code, or else by its name."""
    if crs is None:
        return "no CRS"
    return ":".join(crs.to_authority() or ()) or repr(crs.name)


def _transform_bounds(box: Bounds, source: CRS | None, target: CRS | None, url: str) -> Bounds:
    assert source is not None
    assert target is not None
    try:
        xmin, ymin, xmax, ymax = rasterio.warp.transform_bounds(source.to_wkt(), target.to_wkt(), *box, densify_pts=21)
    except CPLE_BaseError:
        raise ConfigError(
            f"{redact(url)}: PROJ knows no way from {source.name!r} to {target.name!r}. Ask for a crs on the same "
            "celestial body, or leave crs and bounds_crs out to read in the file's own.",
            url=url,
        ) from None
    except rasterio.errors.RasterioError as error:
        raise ConfigError(f"bounds {box} of {source.name!r} have no place in {target.name!r}: {error}") from None
    if xmax < xmin and target.is_geographic:
        xmax += math.tau / target.axis_info[0].unit_conversion_factor  # the box crosses the antimeridian
    if not (xmin < xmax and ymin < ymax and xmax - xmin < float("inf") and ymax - ymin < float("inf")):
        raise ConfigError(f"bounds {box} of {source.name!r} have no place in {target.name!r}")
    return xmin, ymin, xmax, ymax
