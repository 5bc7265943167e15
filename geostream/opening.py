"""Opening a file: the few requests that fetch its header, and GDAL's view of what geostream does not decode itself."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from geostream import transport
from geostream.errors import GeostreamError, HeaderError, ReadError, TruncatedError, redact
from geostream.fallback import GdalFile, needs_copy
from geostream.ifd import SparseBytes, is_tiff, missing_ranges
from geostream.opener import held
from geostream.parse import parse_tiff, with_world_file
from geostream.remote import RemoteFile
from geostream.vrt import MAX_VRT_BYTES, is_vrt, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from geostream.header import RasterHeader
    from geostream.ifd import ByteRange
    from geostream.opener import ByteSource
    from geostream.plan import Source
    from geostream.transport import Body

__all__ = ["FIRST_READ", "gdal_file", "open_source"]

T = TypeVar("T")

FIRST_READ = 2**15
"""Bytes of the first request: they hold all metadata of nine COGs in ten."""
_MAX_GROWTH = 64
_MAX_THREADS = 16
_UNKNOWN_TOTAL = 2**62


class _Meter:
    """Requests and bytes that opening one file takes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.requests = 0
        self.bytes = 0
        self.etag: str | None = None

    async def get(self, start: int, stop: int) -> Body:
        """A range of the file, of the version that the first answer named."""
        body = await self.get_of(self._source.url, start, stop, self.etag)
        self.etag = self.etag or body.etag
        return body

    async def get_of(self, url: str, start: int, stop: int, etag: str | None = None) -> Body:
        """A range of the file or of one beside it."""
        body = await transport.get_range(url, self._source.access, start, stop, etag=etag)
        self.requests += 1
        self.bytes += len(body.bytes)
        return body


async def open_source(source: Source) -> RasterHeader:
    """Read a file's header: one request where its metadata fits the first read.

    Raises:
        HeaderError: it is not a raster.
        ReadError: its bytes could not be had.
    """
    meter = _Meter(source)
    first = await meter.get(0, FIRST_READ)
    try:
        header, copy = await _header(source, first, meter)
    except HeaderError as error:
        raise _named(error, source) from error.__cause__
    header = replace(header, etag=meter.etag, requests=meter.requests, bytes=meter.bytes)
    if source.nodata is not None:
        header = header.declaring(source.nodata)
    if copy is not None:
        _copies[header] = copy
    return header


async def _header(source: Source, first: Body, meter: _Meter) -> tuple[RasterHeader, GdalFile | None]:
    """The header, and the temporary copy that it was read from, if it was."""
    if not first.bytes:
        raise HeaderError("the file is empty")
    if is_tiff(first.bytes):
        return await _tiff_header(source, first, meter), None
    file = await _gdal_file(source, first, _total(first), first.etag, meter)
    header = replace(await _in_own_thread(file.header), total=first.total)
    return header, file if file.copied else None


def _named(error: GeostreamError, source: Source) -> GeostreamError:
    """The error with the file's name in front."""
    name = redact(source.url)
    if str(error).startswith(name):
        return error
    why = str(error).rstrip(".")
    return type(error)(
        f"{name}: not readable as a raster: {why}. If it is none, keep it out by a narrower path or filename_glob.",
        url=source.url,
    )


async def _tiff_header(source: Source, first: Body, meter: _Meter) -> RasterHeader:
    total = _total(first)
    buffer = SparseBytes(total)
    buffer.add(0, first.bytes)
    for _ in range(_MAX_GROWTH):
        missing = missing_ranges(buffer)
        if not missing:
            break
        before = len(buffer)
        for (start, _), body in zip(missing, await asyncio.gather(*(meter.get(*m) for m in missing)), strict=True):
            buffer.add(start, body.bytes)
        if len(buffer) == before:
            raise TruncatedError(f"its metadata at byte {missing[0][0]} lies past the end of the file")
    else:
        raise HeaderError(f"its metadata is scattered over more than {_MAX_GROWTH} places")
    name, worlds = _name(source.url), tuple(side for side in source.sidecars if _is_world_file(side))
    sidecars = await _sidecar_files(
        replace(source, sidecars=tuple(s for s in source.sidecars if s not in worlds)), meter
    )
    run = _in_own_thread if sidecars else _in_thread
    header = await run(lambda: parse_tiff(buffer, name, sidecars))
    if worlds and header.grid.transform.is_identity and not header.gcps:
        world = await meter.get_of(worlds[0], 0, FIRST_READ)
        header = with_world_file(header, world.bytes)
    return replace(header, total=None if total == _UNKNOWN_TOTAL else total)


def _total(first: Body) -> int:
    if first.total is not None:
        return first.total
    return len(first.bytes) if len(first.bytes) < FIRST_READ else _UNKNOWN_TOTAL


async def gdal_file(source: Source, header: RasterHeader) -> GdalFile:
    """GDAL's view of a file whose header is known, for reading pixels."""
    if header in _copies:
        return _copies[header]
    meter = _Meter(source)
    if header.driver == "GTiff":
        return await _gdal_file(source, None, header.total or _UNKNOWN_TOTAL, header.etag, meter)
    first = await meter.get_of(source.url, 0, FIRST_READ, header.etag)
    file = await _gdal_file(source, first, _total(first), first.etag, meter)
    await _in_own_thread(file.prepare)
    return file


async def _gdal_file(source: Source, first: Body | None, total: int, etag: str | None, meter: _Meter) -> GdalFile:
    head = b"" if first is None else first.bytes
    local = source.url if source.url.startswith("/") and source.access.fs is None and first is not None else None
    name = _name(source.url)
    files: dict[str, ByteSource] = {name: _remote(source.url, total, head, etag, meter)}
    if local is None:
        files |= await _sidecar_files(source, meter)
    if local is None and is_vrt(head):
        files |= await _vrt_files(source, name, total, meter)
    return GdalFile(name, files, local, copied=local is None and needs_copy(head))


async def _vrt_files(source: Source, name: str, total: int, meter: _Meter) -> dict[str, ByteSource]:
    """A remote VRT and the files it is made of, fetched as it was."""
    if total > MAX_VRT_BYTES:
        raise HeaderError(f"a VRT of {total} bytes is not read")
    content = await meter.get_of(source.url, 0, total)
    vrt, places = rewrite(content.bytes, source.url, lambda text: transport.normalize_url(text, source.access))
    heads = await asyncio.gather(*(meter.get_of(url, 0, FIRST_READ) for url in places.values()))
    files: dict[str, ByteSource] = {name: held(vrt)}
    for (source_name, url), body in zip(places.items(), heads, strict=True):
        if not is_tiff(body.bytes):
            raise HeaderError(f"its source {redact(url)} is no TIFF: a remote VRT is read of TIFFs only")
        files[source_name] = _remote(url, _total(body), body.bytes, body.etag, meter)
    return files


async def _sidecar_files(source: Source, meter: _Meter) -> dict[str, ByteSource]:
    """Files beside the source, by name, each opened by one request."""
    bodies = await asyncio.gather(*(meter.get_of(url, 0, FIRST_READ) for url in source.sidecars))
    return {
        _name(url): _remote(url, _total(body), body.bytes, body.etag, meter)
        for url, body in zip(source.sidecars, bodies, strict=True)
    }


def _is_world_file(url: str) -> bool:
    """Whether a sidecar says where the raster lies, and no more: GDAL reads it only where the raster does not."""
    return _name(url).lower().endswith(("w", ".wld"))


def _remote(url: str, total: int, head: bytes, etag: str | None, meter: _Meter) -> RemoteFile:
    loop = asyncio.get_running_loop()

    async def get_all(ranges: Sequence[ByteRange]) -> list[bytes]:
        for start, stop in ranges:
            if stop > total:
                raise ReadError(
                    f"{redact(url)}: bytes {start}-{stop - 1} lie past the end of the file ({total} bytes). "
                    "It is cut short: upload it again.",
                    url=url,
                )
        bodies = await asyncio.gather(*(meter.get_of(url, start, stop, etag) for start, stop in ranges))
        return [body.bytes for body in bodies]

    def fetch(ranges: Sequence[ByteRange]) -> list[bytes]:
        return asyncio.run_coroutine_threadsafe(get_all(ranges), loop).result()

    return RemoteFile(fetch, total, head)


def _name(url: str) -> str:
    """File name without folders, query string and chained links: what GDAL is shown."""
    return redact(url.split("::", maxsplit=1)[0]).rstrip("/").rsplit("/", 1)[-1] or "raster"


async def _in_thread(work: Callable[[], T]) -> T:
    # The loop's own threads end with it: scanning leaves none behind.
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _in_own_thread(work: Callable[[], T]) -> T:
    """Run what waits for further bytes: filesystems may need the loop's own threads to fetch them."""
    loop = asyncio.get_running_loop()
    async with _own_threads.setdefault(loop, asyncio.Semaphore(_MAX_THREADS)):
        thread = ThreadPoolExecutor(1, thread_name_prefix="geostream-header")
        try:
            return await loop.run_in_executor(thread, work)
        finally:
            thread.shutdown(wait=False)


_copies: WeakKeyDictionary[RasterHeader, GdalFile] = WeakKeyDictionary()
"""Temporary copies, kept as long as the headers that were read from them: pixels need no second one."""

_own_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
