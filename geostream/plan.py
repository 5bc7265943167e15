"""Requests and headers to a read plan: which level, which tiles, which byte ranges. Pure; nothing is fetched here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.errors import ConfigError, ReadError, redact
from geostream.header import MaskKind
from geostream.levels import as_gdal_begins, choose_level
from geostream.warp import source_coordinates, source_window

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from numpy.typing import NDArray

    from geostream.coordinates import Coordinates
    from geostream.grid import Grid, Window
    from geostream.header import RasterHeader, TileTable
    from geostream.transport import Access

__all__ = ["Fetch", "Job", "Layout", "MergeCosts", "ReadPlan", "Request", "Source", "TileKey", "plan_job", "plan_reads"]

TileKey = tuple[int, int, int]
"""(number of the source in the plan, directory, tile index)."""

PlacedTile = tuple[TileKey, int, int]
"""(key, first byte, one past the last byte)."""

MAX_OUTPUT = 2**34
"""Bytes of the largest output of one request."""


@dataclass(frozen=True, slots=True)
class Source:
    """One raster file and the way to it."""

    url: str
    """Normalised URL or absolute path."""
    access: Access
    """How it is reached."""
    sidecars: tuple[str, ...] = ()
    """URLs of the files beside it that GDAL shall know of (``.msk``, ``.ovr``, ``.aux.xml``)."""
    nodata: float | None = None
    """Value that stands for "nothing" instead of what the file declares; None for what it declares."""
    header: RasterHeader | None = field(default=None, compare=False, repr=False)
    """Its header, where that was read before: spares the request."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The channels of a sample that one request fills."""

    dtype: np.dtype[Any]
    """Pixel type of the sample."""
    channels: int
    """Channels of the sample."""
    first: int
    """The request's first channel."""
    count: int
    """Number of channels it fills."""


@dataclass(frozen=True, slots=True)
class Request:
    """What of which file is wanted on which grid."""

    source: Source
    """The file."""
    grid: Grid
    """Output grid."""
    bands: tuple[int, ...] | None = None
    """1-based bands in the order wanted; None for all."""
    resampling: str = "nearest"
    """Name of the kernel, one of `geostream.warp.RESAMPLINGS`; unused where pixels are pasted."""
    layout: Layout | None = None
    """Where its pixels belong in a sample, so that they may be drawn straight into a batch; None if that is undecided,
    as where several scenes are mosaicked."""
    out: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    """Array (C, H, W) to draw into, such as part of a batch; its dtype may differ from the file's."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request with its decisions made: what to read of the source, and how it gets onto the output grid."""

    request: Request
    """What was asked for."""
    header: RasterHeader
    """Header of its source."""
    bands: tuple[int, ...]
    """1-based bands to return."""
    level: int
    """0 for full resolution, n for the n-th overview."""
    window: Window | None
    """Pixels of that level to read, within its bounds; None where the output does not meet the raster."""
    offset: tuple[int, int] | None
    """(column, row) of the window in the output, where pixels are pasted."""
    coordinates: Coordinates | None
    """Where the output's pixels lie in the level, where they are resampled."""
    repeated: tuple[int, int] = (0, 0)
    """First (columns, rows) of the window that the next one stands for, before they are resampled."""

    @property
    def reads_alpha(self) -> bool:
        """Whether the alpha band decides on validity, so that it must be read along."""
        header = self.header
        if header.mask is MaskKind.NODATA:
            # rasterio's dataset_mask takes the fourth of four bands for alpha; a subset goes by nodata alone.
            return header.alpha is not None and sorted(self.bands) == list(range(1, header.count + 1))
        return header.mask is MaskKind.ALPHA


def plan_job(
    request: Request,
    header: RasterHeader,
    locate: Callable[[Grid, Grid], Coordinates] = source_coordinates,
) -> Job:
    """Decide level, source window and way of one request.

    Args:
        request: what is wanted.
        header: header of its source.
        locate: finds the output's pixels in the source; may remember what it found for equal grids.

    Raises:
        ConfigError: bands the file does not have, or grids that no transformation relates.
    """
    bands = _bands(request, header)
    _check_size(request, len(bands), header)
    full = source_grid(header, request.grid)
    level = choose_level(full, header, request, locate)
    source = full if level == 0 else full.scaled(*header.overviews[level - 1])
    place = source.paste_window(request.grid)
    if place is not None:
        window = place.intersection(source.window)
        offset = None if window is None else (window.col_off - place.col_off, window.row_off - place.row_off)
        return Job(request, header, bands, level, window, offset, None)
    coordinates = locate(source, request.grid)
    window = source_window(source, coordinates, request.resampling)
    weighs_complex = header.dtype.kind == "c" and request.resampling != "mode"  # which GDAL leaves to its warper
    if level and window is not None and coordinates.separable and not weighs_complex:
        window, repeated = as_gdal_begins(window, coordinates, request.resampling)
        return Job(request, header, bands, level, window, None, coordinates, repeated)
    return Job(request, header, bands, level, window, None, coordinates)


def _bands(request: Request, header: RasterHeader) -> tuple[int, ...]:
    if request.bands is None:
        return tuple(range(1, header.count + 1))
    unknown = [band for band in request.bands if not 1 <= band <= header.count]
    if unknown or not request.bands:
        raise ConfigError(
            f"{redact(request.source.url)}: bands {list(request.bands)} were asked for, but it has bands 1 to "
            f"{header.count}",
            url=request.source.url,
        )
    return request.bands


def source_grid(header: RasterHeader, wanted: Grid) -> Grid:
    """The raster's grid, or what its control points make of it if ``wanted`` is a grid on the earth."""
    if wanted.crs is None or header.ground is None:
        return header.grid
    return header.ground


def _check_size(request: Request, bands: int, header: RasterHeader) -> None:
    """Refuse outputs that would fill the memory of any machine, before anything is fetched for them."""
    width, height = request.grid.width, request.grid.height
    size = width * height * bands * header.dtype.itemsize
    if size > MAX_OUTPUT:
        raise ConfigError(
            f"{redact(request.source.url)}: the output would be {bands} bands of {width} x {height} {header.dtype} "
            f"pixels, {size / 2**30:.0f} GiB. Pass a coarser res=, a shape=, or a smaller window or bounds.",
            url=request.source.url,
        )


@dataclass(frozen=True, slots=True)
class MergeCosts:
    """What decides whether neighbouring tiles are fetched by one request, on a link that carries many at once.

    A request then costs its share of the latency, ``latency / in_flight`` seconds, and a gap between two tiles is worth
    fetching while that takes less time.
    """

    latency: float
    """Seconds from a request to the first byte of its answer."""
    bandwidth: float
    """Bytes a second of one connection."""
    in_flight: int
    """Requests in flight at once."""
    max_size: int
    """Bytes beyond which a request is not extended, so that its tiles need not wait for its last byte."""
    max_waste: float = math.inf
    """Unwanted bytes of a request, as a share of the wanted ones, up to which gaps are fetched."""

    @property
    def max_gap(self) -> int:
        """Unwanted bytes between two tiles up to which fetching them too is cheaper than another request."""
        return int(self.latency / self.in_flight * self.bandwidth)

    def __str__(self) -> str:
        return (
            f"with {self.latency * 1e3:g} ms to an answer, {self.in_flight} requests at once and "
            f"{self.bandwidth / 1e6:g} MB/s on a connection, tiles share a request where the gap between them is at "
            f"most {self.max_gap} bytes, the request at most {self.max_size} bytes, and its gaps at most "
            f"{self.max_waste:.0%} of its tiles' bytes"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """One range to request, and the tiles in it."""

    source: int
    """Number of the source in the plan."""
    start: int
    """First byte."""
    stop: int
    """One past the last byte."""
    tiles: tuple[PlacedTile, ...]
    """Tiles in the range."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadPlan:
    """Everything a batch of requests takes: each tile once, in as few ranges as pay."""

    sources: tuple[Source, ...]
    """Files read, each once."""
    jobs: tuple[Job | Exception, ...]
    """One per request; an error where the request cannot be served, with no effect on the others."""
    needs: tuple[tuple[TileKey, ...], ...]
    """Tiles each job needs, sparse ones left out."""
    tiles: tuple[PlacedTile, ...]
    """Every tile needed, once, in file order."""
    fetches: tuple[Fetch, ...]
    """Ranges to request, in file order."""
    costs: MergeCosts
    """What the ranges were chosen by."""

    @property
    def useful_bytes(self) -> int:
        """Compressed bytes of the unique tiles."""
        return sum(stop - start for _, start, stop in self.tiles)

    @property
    def bytes(self) -> int:
        """Bytes that will be requested."""
        return sum(fetch.stop - fetch.start for fetch in self.fetches)

    def explain(self) -> str:
        """What will be fetched and why, in words: a line for each file, request and job."""
        total = (
            f"{len(self.jobs)} reads need {len(self.tiles)} tiles of {len(self.sources)} files: {len(self.fetches)} "
            f"requests, {self.bytes} bytes, of which {self.useful_bytes} are tiles'"
        )
        lines = [total, str(self.costs)]
        for number, source in enumerate(self.sources):
            lines.append(f"file {number}: {redact(source.url)}")
            lines += [
                f"  bytes {fetch.start}-{fetch.stop - 1} ({fetch.stop - fetch.start}): "
                + ", ".join(f"tile {tile} of image {ifd}" for (_, ifd, tile), _, _ in fetch.tiles)
                for fetch in self.fetches
                if fetch.source == number
            ]
        return "\n".join([*lines, *(f"read {i}: {_why(job)}" for i, job in enumerate(self.jobs))])

    def fetches_of(self, keys: Container[TileKey]) -> tuple[Fetch, ...]:
        """Ranges that cover some of the tiles only."""
        return _merge([tile for tile in self.tiles if tile[0] in keys], self.costs)


def plan_reads(
    requests: Sequence[Request], headers: Mapping[Source, RasterHeader | Exception], *, costs: MergeCosts
) -> ReadPlan:
    """Plan a batch.

    Args:
        requests: what is wanted, duplicates allowed.
        headers: header of every source, or the error that reading it gave.
        costs: when neighbouring tiles share a request.
    """
    sources = tuple(dict.fromkeys(request.source for request in requests))
    number = {source: i for i, source in enumerate(sources)}
    jobs: list[Job | Exception] = []
    needs: list[tuple[TileKey, ...]] = []
    wanted: dict[tuple[int, int], tuple[TileTable, list[NDArray[np.intp]]]] = {}
    locate = cache(source_coordinates)  # bands in files of their own, and images with their masks, share grids
    for request in requests:
        source = number[request.source]
        try:
            job, parts = _job_and_tiles(request, headers[request.source], locate)
        except Exception as error:  # noqa: BLE001 - an error is the outcome of its own request only
            jobs.append(error)
            needs.append(())
            continue
        for table, indexes in parts:
            wanted.setdefault((source, table.ifd), (table, []))[1].append(indexes)
        jobs.append(job)
        needs.append(tuple((source, table.ifd, i) for table, indexes in parts for i in indexes.tolist()))
    tiles = [tile for (source, _), (table, parts) in wanted.items() for tile in _placed(source, table, parts)]
    tiles.sort(key=lambda tile: (tile[0][0], tile[1], tile[2]))
    return ReadPlan(sources, tuple(jobs), tuple(needs), tuple(tiles), _merge(tiles, costs), costs)


def _placed(source: int, table: TileTable, parts: list[NDArray[np.intp]]) -> list[PlacedTile]:
    """Each of the tiles once, with its place in the file."""
    # a plan has few tiles of each of many tables, for which NumPy's own way takes five times as long
    indexes = np.array(sorted({index for part in parts for index in part.tolist()}), np.intp)
    starts = table.offsets[indexes]
    stops = starts + table.counts[indexes]
    rows = zip(indexes.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [((source, table.ifd, index), start, stop) for index, start, stop in rows]


def _job_and_tiles(
    request: Request, header: RasterHeader | Exception, locate: Callable[[Grid, Grid], Coordinates]
) -> tuple[Job, list[tuple[TileTable, NDArray[np.intp]]]]:
    if isinstance(header, Exception):
        raise header
    job = plan_job(request, header, locate)
    parts = [(table, stored_tiles(table, job.window, planes)) for table, planes in tables_of(job)] if job.window else []
    for table, indexes in parts:
        _check_within_file(table, indexes, header, request.source)
    return job, parts


def tables_of(job: Job) -> list[tuple[TileTable, tuple[int, ...]]]:
    """Images that a job reads tiles of, and which of their planes."""
    if not job.header.levels:
        return []
    level = job.header.levels[job.level]
    bands = (*job.bands, job.header.alpha) if job.reads_alpha and job.header.alpha else job.bands
    planes = tuple(sorted({band - 1 for band in bands})) if level.image.planes > 1 else (0,)
    tables = [(level.image, planes)]
    if level.mask is not None and job.header.mask is MaskKind.INTERNAL:
        tables.append((level.mask, (0,)))
    return tables


def tile_span(table: TileTable, window: Window) -> tuple[slice, slice]:
    """Tile (rows, columns) that ``window`` touches."""
    rows, columns, _ = table.codec.shape
    return (
        slice(window.row_off // rows, -(-window.row_stop // rows)),
        slice(window.col_off // columns, -(-window.col_stop // columns)),
    )


def stored_tiles(table: TileTable, window: Window, planes: tuple[int, ...]) -> NDArray[np.intp]:
    """Indexes of the tiles under ``window`` in those planes that have bytes in the file."""
    rows, columns = tile_span(table, window)
    plane, row, column = np.meshgrid(
        np.asarray(planes), np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop), indexing="ij"
    )
    indexes: NDArray[np.intp] = ((plane * table.down + row) * table.across + column).ravel()
    stored: NDArray[np.intp] = indexes[table.counts[indexes] > 0]
    return stored


def tiles_under(job: Job) -> int:
    """Number of tiles under a job's window, sparse ones included."""
    if job.window is None:
        return 0
    spans = [(tile_span(table, job.window), planes) for table, planes in tables_of(job)]
    return sum((r.stop - r.start) * (c.stop - c.start) * len(planes) for (r, c), planes in spans)


def _check_within_file(table: TileTable, indexes: NDArray[np.intp], header: RasterHeader, source: Source) -> None:
    if header.total is None:
        return
    offsets, counts = table.offsets[indexes], table.counts[indexes]
    total = np.uint64(header.total)
    beyond = (offsets >= total) | (counts > total - np.minimum(offsets, total))
    if beyond.any():
        tile = int(indexes[beyond][0])
        start, size = int(table.offsets[tile]), int(table.counts[tile])
        raise ReadError(
            f"{redact(source.url)}: tile {tile} of image {table.ifd} lies at bytes {start}-{start + size - 1}, past "
            f"the end of the file ({header.total} bytes). The file is cut short: upload it again.",
            url=source.url,
        )


def _why(job: Job | Exception) -> str:
    """How a job gets its pixels."""
    if isinstance(job, Exception):
        return f"fails: {job}"
    if job.window is None:
        return "nothing: its grid does not meet the raster"
    window, grid = job.window, job.request.grid
    level = "full resolution" if job.level == 0 else f"overview {job.level}"
    place = f"{window.width} x {window.height} pixels at column {window.col_off}, row {window.row_off} of {level}"
    by = "" if job.header.levels else f", by GDAL ({job.header.reason})"
    if job.offset is not None:
        return f"{place}, pasted: its pixels are the file's{by}"
    return f"{place}, resampled ({job.request.resampling}) to {grid.width} x {grid.height}{by}"


def _merge(tiles: Sequence[PlacedTile], costs: MergeCosts) -> tuple[Fetch, ...]:
    """Ranges that cover tiles given in file order, each tile in exactly one of them."""
    fetches: list[Fetch] = []
    group: list[PlacedTile] = []
    begin = end = gaps = 0
    max_gap = costs.max_gap
    for tile in tiles:
        key, start, stop = tile
        gap, size = max(0, start - end), max(end, stop) - begin
        if group and (
            key[0] != group[0][0][0]
            or gap > max_gap
            or size > costs.max_size
            or gaps + gap > costs.max_waste * (size - gaps - gap)
        ):
            fetches.append(Fetch(group[0][0][0], begin, end, tuple(group)))
            group = []
        if not group:
            begin, end, gaps, gap = start, stop, 0, 0
        group.append(tile)
        gaps += gap
        end = max(end, stop)
    if group:
        fetches.append(Fetch(group[0][0][0], begin, end, tuple(group)))
    return tuple(fetches)
