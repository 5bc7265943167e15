"""`build_index` and `load_index`: a collection scanned once, and opened without a request from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from geostream.errors import ConfigError
from geostream.index.entry import bare_url
from geostream.scan.documents import read_document
from geostream.transport import Access, Transport, normalize_url, scan_session

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

    from geostream.scan.index import Index

__all__ = ["BuildOptions", "Options", "build_index", "load_index"]

Sign = Callable[[str], str]


class BuildOptions(TypedDict, total=False):
    """The options of `build_index`, by keyword."""

    storage_options: Mapping[str, Any] | None
    fs: AbstractFileSystem | None
    filename_glob: str
    assets: str | Sequence[str] | None
    headers: Literal["read", "lazy"]
    sidecars: bool
    transport: Transport
    sign: Sign | None
    progress: bool
    on_error: Literal["raise", "skip"]
    client: Any
    parts: str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a collection is scanned; `build_index` says what each means."""

    storage_options: Mapping[str, Any] | None = None
    fs: AbstractFileSystem | None = None
    filename_glob: str = "*"
    assets: str | Sequence[str] | None = None
    headers: Literal["read", "lazy"] = "read"
    sidecars: bool = False
    transport: Transport = "auto"
    sign: Sign | None = None
    progress: bool = False
    on_error: Literal["raise", "skip"] = "raise"
    client: Any = None
    parts: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.headers not in {"read", "lazy"}:
            raise ConfigError(f"headers={self.headers!r}: pass 'read', or 'lazy' for those that STAC describes")
        if self.on_error not in {"raise", "skip"}:
            raise ConfigError(f"on_error={self.on_error!r}: pass 'raise' or 'skip'")
        if self.parts is not None and self.client is None:
            raise ConfigError("parts= is the folder of a cluster's partitions: pass client= as well")

    @property
    def access(self) -> Access:
        """How files are reached."""
        return Access(self.storage_options, self.fs, transport=self.transport, sign=self.sign)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names or roles of assets."""
        return (self.assets,) if isinstance(self.assets, str) else tuple(self.assets or ())

    @contextmanager
    def bar(self, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that is told how many more files are done, and shows it if that is wanted.

        Raises:
            ConfigError: tqdm is not installed.
        """
        if not self.progress:
            yield lambda _more: None
            return
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - optional
        except ModuleNotFoundError as error:
            raise ConfigError("progress=True needs tqdm: pip install 'geostream[index]'") from error
        with tqdm(total=total, desc="headers", unit="file") as shown:
            yield lambda more: _nothing(shown.update(more))


def build_index(
    urls: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    filename_glob: str = "*",
    assets: str | Sequence[str] | None = None,
    headers: Literal["read", "lazy"] = "read",
    sidecars: bool = False,
    transport: Transport = "auto",
    sign: Sign | None = None,
    progress: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    client: Any = None,
    parts: str | os.PathLike[str] | None = None,
) -> Index:
    """Scan once what many datasets will open: ``index.save("naip.parquet")``, then ``NAIP(index=load_index(…))``.

    Headers are read many at once, with one request for nearly every file.

    Args:
        urls: what to scan: one or more directories, globs, files and URLs, as for a dataset; a GeoDataFrame (or
            DataFrame) with a column ``filepath``, ``url``, ``location`` or ``href``, and times in ``datetime_start``
            and ``datetime_end``, ``datetime``, or an `IntervalIndex`; a STAC item, ItemCollection or item search, or
            several, as dictionaries or pystac's objects; or files that hold these: ``.json``, ``.geojson``,
            ``.parquet``.
        storage_options: options of the fsspec filesystem.
        fs: an fsspec filesystem of the user's own, instead of options.
        filename_glob: what the names of listed files must match.
        assets: which assets of STAC items: names, or else roles; default every GeoTIFF or JPEG 2000 that is neither
            thumbnail, overview nor metadata.
        headers: ``"lazy"`` leaves files closed of which STAC's ``proj`` and ``raster`` fields tell size, place, CRS,
            type and bands: their headers are read when they are first used.
        sidecars: whether to ask for the sidecars of lone remote files.
        transport: as for a dataset.
        sign: as for a dataset.
        progress: whether to show a bar (tqdm).
        on_error: ``"raise"`` one error that names all files that cannot be read; ``"skip"`` leaves them out, warns, and
            lists them in `Index.failures`; so it does with STAC items, by id, that lack the assets asked for.
        client: a `dask.distributed.Client`, on whose cluster to scan: each task makes one partition.
        parts: a folder, of a disk that the workers and this process share, for the partitions to stay in; default they
            are sent here. ``load_index(parts)`` opens them all.

    Raises:
        NotFoundError: nothing matches.
        HeaderError, ReadError: some files cannot be read; one error names them all.
        ConfigError: options contradict each other, STAC items lack the assets asked for, or a package is missing.
    """
    _require_pyarrow()
    from geostream.scan.update import built  # noqa: PLC0415 - needs pyarrow

    options = Options(
        storage_options=storage_options,
        fs=fs,
        filename_glob=filename_glob,
        assets=assets,
        headers=headers,
        sidecars=sidecars,
        transport=transport,
        sign=sign,
        progress=progress,
        on_error=on_error,
        client=client,
        parts=parts,
    )
    return built(urls, options)


def load_index(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    transport: Transport = "auto",
    sign: Sign | None = None,
) -> Index:
    """Open an index that `Index.save` wrote. A local file is mapped: what is not used is not read.

    Args:
        path: a file, a folder of partitions, or a URL, which is fetched whole.
        storage_options: options of the fsspec filesystem, for a URL.
        fs: an fsspec filesystem of the user's own, instead of options.
        transport: as for a dataset.
        sign: as for a dataset.

    Raises:
        NotFoundError: there is no such file.
        ReadError: it cannot be fetched.
        ConfigError: it is no index, or one of a newer version, or pyarrow is not installed.
    """
    _require_pyarrow()
    from geostream.index.table import SceneTable  # noqa: PLC0415 - needs pyarrow
    from geostream.scan.index import Index, joined  # noqa: PLC0415 - needs pyarrow

    access = Access(storage_options, fs, transport=transport, sign=sign)
    url = normalize_url(path, access)
    if "://" in url or fs is not None:
        with scan_session() as session:
            return Index(SceneTable.of_bytes(read_document(session, url, access), bare_url(url)))
    if not Path(url).is_dir():
        return Index(SceneTable.open(url))
    files = sorted(Path(url).glob("*.parquet"))
    if not files:
        raise ConfigError(f"{path}: a folder without .parquet files is no index")
    return joined([Index(SceneTable.open(file)) for file in files], {})


def _nothing(_: object) -> None:
    """Drop what a function returns."""


def _require_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise ConfigError("an index needs pyarrow: pip install 'geostream[index]'")
