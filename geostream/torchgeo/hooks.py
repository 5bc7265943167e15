"""What stands between TorchGeo's `RasterDataset` and its subclasses: the same hooks, answered by geostream."""

from __future__ import annotations

import copy
import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from geopandas import GeoDataFrame
from rasterio.crs import CRS as RasterioCRS  # noqa: N811 - a class, and not the only one of its name
from torchgeo.datasets import DatasetNotFoundError, RasterDataset

from geostream.dataset.batches import PlannedBatches
from geostream.dataset.filenames import FilenamePattern
from geostream.dataset.options import resampling_name
from geostream.dataset.prefetch import Prefetched, fetch, prefetched
from geostream.dataset.query import instant
from geostream.errors import ConfigError, GeostreamError, NotFoundError, QueryError, redact
from geostream.grid import Grid, parse_crs, same_crs
from geostream.index import SceneLookup, converted_res, footprint
from geostream.plan import Request, Source
from geostream.scan import Listing, basename, each_path
from geostream.torchgeo.finding import find, find_in_index, read_scenes
from geostream.torchgeo.handles import held, open_warped, reading_with_gdal
from geostream.torchgeo.merging import as_tensor, merged
from geostream.torchgeo.recording import Unforeseeable, is_recording, note, recording
from geostream.transport import Access, normalize_url, run, scan_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyproj import CRS
    from torch import Tensor

    from geostream.dataset.collate import Sample
    from geostream.dataset.query import GeoSlice
    from geostream.index import Scene
    from geostream.reader import Patch
    from geostream.scan.index import Index

__all__ = ["StreamedRasters", "UnknownBandsError"]

_DEFAULT_PATHS = "data"
_SIGNATURE = inspect.signature(RasterDataset.__init__)


class UnknownBandsError(ConfigError, AssertionError):
    """Bands that the class does not have; TorchGeo's own classes raise `AssertionError` then."""


class StreamedRasters(PlannedBatches, RasterDataset):  # type: ignore[misc]  # TorchGeo is optional, and untyped here
    """TorchGeo's `RasterDataset`, its files found, opened and read by geostream.

    `geostream.torchgeo.streaming` puts it before `RasterDataset` in the order of a class's bases. Two generations of
    hooks are answered: ``_merge_files`` of TorchGeo 0.8, ``_merge_or_stack`` of 0.9 and later.
    """

    _access: Access = Access()
    _saved: Index | None = None
    _scenes: dict[str, Scene]
    _found: tuple[Any, Listing] | None = None
    _lookup: SceneLookup | None = None
    _begun: bool = False
    cmap: Any

    def _begin(self, access: Access, index: Index | None) -> None:
        """Keep what the class's own constructor does not know of."""
        self._access = access
        self._saved = index
        self._scenes = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `RasterDataset`'s, except that headers are read many at once, or come from an index."""
        bound = _SIGNATURE.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        self.paths = arguments["paths"]
        self.bands = arguments["bands"] or self.all_bands
        for name in arguments.keys() - {"self", "paths", "bands", "crs", "res"}:
            setattr(self, name, arguments[name])
        self.band_indexes = self._band_indexes()
        urls = self._open_files()
        self._place(urls, parse_crs(arguments["crs"]), arguments["res"])
        self._begun = True

    def _check_begun(self) -> None:
        if not self._begun:
            raise ConfigError(
                f"{type(self).__name__} cannot be streamed: its __init__ does not call super().__init__, so that "
                "geostream does not know its files"
            )

    def _band_indexes(self) -> list[int] | None:
        unknown = [band for band in self.bands if band not in self.all_bands] if self.all_bands else []
        if unknown:
            raise UnknownBandsError(f"unknown bands {unknown}: the bands of {type(self).__name__} are {self.all_bands}")
        if self.separate_files or not self.bands:
            return None
        if not self.all_bands:
            raise UnknownBandsError(f"{type(self).__name__} names no bands in all_bands, so that bands= has no meaning")
        return [self.all_bands.index(band) + 1 for band in self.bands]

    @property
    def files(self) -> list[str]:
        """Files that match ``filename_glob``: URLs and absolute paths, sorted."""
        return list(self._listing().urls)

    def _listing(self) -> Listing:
        """What lies at ``paths``, listed once for each glob; nothing is remembered of nothing found."""
        paths = each_path(self.paths)
        key = (tuple(paths), self.filename_glob)
        if self._found is not None and self._found[0] == key:
            return self._found[1]
        if self._saved is not None:
            within = [] if paths == [_DEFAULT_PATHS] else paths
            listing = find_in_index(self._saved, within, self.filename_glob, self._access)
        else:
            listing = find(paths, self.filename_glob, self._access)
        if listing.urls:
            self._found = (key, listing)
        return listing

    def _open_files(self) -> list[str]:
        """Read the headers of all files, those of their other bands included; return the scenes' files."""
        listed = [self._url(path) for path in self.files]
        matching = [url for url in listed if re.match(self.filename_regex, basename(url), re.VERBOSE)]
        if not matching:
            raise self._not_found(listed)
        others = self._band_files(matching) if self.separate_files else []
        self._scan([*matching, *others], needed=matching)
        urls = [url for url in matching if url in self._scenes]
        if not urls:
            raise self._not_found(listed)
        return urls

    def _not_found(self, listed: Sequence[str]) -> Exception:
        if not listed and self._saved is None:
            error: Exception = DatasetNotFoundError(self)
            return error
        place = "in the index" if self._saved is not None else f"listed, such as {redact(listed[0])}"
        return NotFoundError(
            f"of {len(listed)} files {place} that match {self.filename_glob!r}, none is a raster whose name begins as "
            f"{type(self).__name__}.filename_regex says: {self.filename_regex!r}"
        )

    def _band_files(self, urls: Sequence[str]) -> list[str]:
        found = (self._url(self._update_filepath(band, url)) for url in urls for band in self.bands)
        return [url for url in dict.fromkeys(found) if url not in set(urls)]

    def _scan(self, urls: Sequence[str], needed: Sequence[str]) -> None:
        """Know the scenes at ``urls``, from the index or their headers; tell of those needed that are no rasters."""
        saved = {} if self._saved is None else self._saved.scenes
        self._learn({url: saved[url] for url in urls if url in saved})
        missing = [url for url in urls if url not in self._scenes]
        if missing:
            sidecars = {} if self._found is None else self._found[1].sidecars
            with scan_session() as session:
                headers = read_scenes(missing, self._access, sidecars, session.run)
            headers.keep_failures_of(needed)
            headers.raise_unreachable()
            headers.warn_of_others()
            self._learn(headers.scenes)

    def _learn(self, scenes: Mapping[str, Scene]) -> None:
        nodata = getattr(self, "nodata", None)
        self._scenes |= scenes if nodata is None else {url: scene.declaring(nodata) for url, scene in scenes.items()}

    def _place(self, urls: Sequence[str], crs: CRS | None, res: Any) -> None:
        """Choose CRS and resolution, and make the index, as TorchGeo's constructor does."""
        first = self._scenes[urls[0]].grid
        crs = first.crs if crs is None else crs
        if res is None:
            res = converted_res(first, crs)
        self._res = (float(res), float(res)) if isinstance(res, int | float) else tuple(res)
        self._show_colors(urls)
        shapes = [self._outline(url, crs) for url in urls]
        times = [self._times(url) for url in urls]
        index = pd.IntervalIndex.from_tuples(times, closed="both", name="datetime")
        self.index = GeoDataFrame({"filepath": list(urls)}, index=index, geometry=shapes, crs=crs)

    def _outline(self, url: str, crs: CRS | None) -> Any:
        tell = getattr(self, "footprint_from_datasource", None)
        shape = None if tell is None else tell(_Datasource(self, url, crs))
        return footprint(self._scenes[url].grid, crs) if shape is None else shape

    def _times(self, url: str) -> tuple[Any, Any]:
        tell = getattr(self, "_filepath_to_timestamp", None)
        if tell is not None:
            times: tuple[Any, Any] = tell(url)
            return times
        return FilenamePattern(self.filename_regex, self.date_format).times(url, (self.mint, self.maxt))

    def _show_colors(self, urls: Sequence[str]) -> None:
        """Take the colour map of the files where the class has none: a dictionary in 0.8, matplotlib's from 0.9 on."""
        colors = next((scene.colormap for url in urls if (scene := self._scenes[url]).colormap), None)
        if colors is None:
            return
        if self.cmap is None:
            from matplotlib.colors import ListedColormap  # noqa: PLC0415 - heavy

            self.cmap = ListedColormap(np.array(list(colors.values())) / 255)
        elif isinstance(self.cmap, dict) and not self.cmap:
            self.cmap = dict(colors)

    def __getitem__(self, query: GeoSlice) -> Sample:
        """As `RasterDataset`'s; all files of the sample are read at once."""
        sample: Sample
        if is_recording():
            return super().__getitem__(query)
        if self._reads_with_gdal():
            return super().__getitem__(query)
        requests = self._requests(query)
        with prefetched(Prefetched(dict(zip(requests, fetch(requests), strict=True)))):
            sample = super().__getitem__(query)
        return sample

    def requests(self, query: GeoSlice) -> list[Request]:
        """What ``self[query]`` will ask of the reader, as far as that can be told before reading."""
        if self._reads_with_gdal():
            return []
        if type(self).__getitem__ is StreamedRasters.__getitem__:
            return self._requests(query)
        twin = copy.copy(self)
        twin.transforms = None
        with recording() as found:
            try:
                twin[query]
            except Exception:  # noqa: BLE001 - raised again when the sample is made
                return found
        return found

    def _requests(self, query: GeoSlice) -> list[Request]:
        """What `RasterDataset.__getitem__` will ask for; nothing where it will raise."""
        x, y, t = self._disambiguate_slice(query)
        try:
            grid = self._grid(x, y, self.crs)
            rows = self._lookup_of_index().find(grid, slice(instant(t.start), instant(t.stop), t.step))
        except GeostreamError:
            return []
        urls = [self._lookup_of_index().urls[row] for row in rows]
        bands = None if self.band_indexes is None else tuple(self.band_indexes)
        if self.separate_files:
            urls = [self._update_filepath(band, url) for band in self.bands for url in urls]
        scenes = self._known([self._url(url) for url in urls])
        return [self._request(scene, grid, bands) for scene in scenes if _meets(scene, grid)]

    def _merge_files(self, filepaths: Sequence[str], query: GeoSlice, band_indexes: Sequence[int] | None = None) -> Any:
        """TorchGeo 0.8's hook: files merged into one (C, H, W)."""
        if self._reads_with_gdal():
            with reading_with_gdal():
                return RasterDataset._merge_files(self._opening(), filepaths, query, band_indexes)  # noqa: SLF001
        return self._combined(filepaths, query, band_indexes, None)

    def _merge_or_stack(
        self,
        filepaths: Sequence[str],
        index: GeoSlice,
        band_indexes: Sequence[int] | None = None,
        out_crs: Any = None,
    ) -> Any:
        """The hook of TorchGeo 0.9 and later: files merged into one (C, H, W), or stacked (T, C, H, W)."""
        if self._reads_with_gdal():
            with reading_with_gdal():
                return RasterDataset._merge_or_stack(self._opening(), filepaths, index, band_indexes, out_crs)  # noqa: SLF001
        return self._combined(filepaths, index, band_indexes, out_crs)

    def _combined(
        self, filepaths: Sequence[str], query: GeoSlice, band_indexes: Sequence[int] | None, out_crs: Any
    ) -> Tensor:
        x, y, _ = self._disambiguate_slice(query)
        grid = self._grid(x, y, self.crs if out_crs is None else out_crs)
        scenes = self._known([self._url(path) for path in filepaths])
        if not scenes:
            raise QueryError(f"{type(self).__name__}: no file to read for {query}")
        bands = None if band_indexes is None else tuple(band_indexes)
        shape = (scenes[0].count if bands is None else len(bands), grid.height, grid.width)
        stacked = bool(getattr(self, "time_series", False))
        requests = {scene.url: self._request(scene, grid, bands) for scene in scenes if _meets(scene, grid)}
        if note(list(requests.values())):
            return torch.zeros(1).expand((len(scenes), *shape) if stacked else shape)
        patches = dict(zip(requests, map(_patch, fetch(list(requests.values()))), strict=True))
        groups = [[scene] for scene in scenes] if stacked else [scenes]
        layers = [
            merged([patches.get(scene.url) for scene in group], group[0].dtype, shape, _nodata(group[0]))
            for group in groups
        ]
        return as_tensor(np.stack(layers) if stacked else layers[0])

    def _cached_load_warp_file(self, filepath: Any, *crs: Any) -> Any:
        """No handle is kept: neither threads nor forks may share one."""
        return held(self._load_warp_file(filepath, *crs))

    def _opening(self) -> StreamedRasters:
        """This dataset, asking for handles through `_cached_load_warp_file`."""
        twin = copy.copy(self)
        twin.cache = True
        return twin

    def _load_warp_file(self, filepath: Any, crs: Any = None) -> Any:
        """The file as a rasterio dataset, in the dataset's CRS or in ``crs``, read through geostream's transport.

        For classes whose own hook calls this one; geostream itself needs no handles.
        """
        if is_recording():
            raise Unforeseeable
        (scene,) = self._known([self._url(filepath)])
        index = getattr(self, "index", None)
        target = index.crs if crs is None and index is not None else crs
        header = scene.header
        if header is None:  # an index without headers
            (read,) = read_scenes([scene.url], self._access, {}, run).scenes.values()
            header = read.header
        assert header is not None
        return open_warped(self._source(scene), header, target, getattr(self, "nodata", None))

    def _reads_with_gdal(self) -> bool:
        """Whether the class opens files by a hook of its own, so that its handles must be read."""
        hooks = ("_load_warp_file", "_cached_load_warp_file")
        return any(getattr(type(self), name) is not getattr(StreamedRasters, name) for name in hooks)

    def _url(self, path: Any) -> str:
        return path if path in self._scenes else normalize_url(path, self._access)

    def _known(self, urls: Sequence[str]) -> list[Scene]:
        """The scenes at ``urls``; headers not read yet are read now.

        Raises:
            ReadError, HeaderError: one cannot be read.
        """
        missing = [url for url in urls if url not in self._scenes]
        if missing:
            headers = read_scenes(missing, self._access, {}, run)
            for error in headers.failures.values():
                raise error
            self._learn(headers.scenes)
        return [self._scenes[url] for url in urls]

    def _grid(self, x: slice, y: slice, crs: Any) -> Grid:
        return Grid.from_bounds((x.start, y.start, x.stop, y.stop), (x.step, y.step), parse_crs(crs))

    def _request(self, scene: Scene, grid: Grid, bands: tuple[int, ...] | None) -> Request:
        everything = tuple(range(1, scene.count + 1))
        return Request(
            self._source(scene), grid, None if bands == everything else bands, resampling_name(self.resampling)
        )

    def _source(self, scene: Scene) -> Source:
        return Source(scene.url, self._access, scene.sidecars, getattr(self, "nodata", None), header=scene.header)

    def _lookup_of_index(self) -> SceneLookup:
        lookup = self._lookup
        # TorchGeo's crs setter changes the index in place.
        if lookup is None or not lookup.describes(self.index) or not same_crs(parse_crs(self.crs), lookup.crs):
            lookup = self._lookup = SceneLookup(self.index)
        return lookup

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lookup"}


class _Datasource:
    """An open raster as far as its header tells; whatever else is asked of it opens the file."""

    def __init__(self, dataset: StreamedRasters, url: str, crs: CRS | None) -> None:
        scene = dataset._scenes[url]  # noqa: SLF001 - this class is the other's own
        self.name = url
        self.crs = None if crs is None else RasterioCRS.from_user_input(crs)
        self.bounds = footprint(scene.grid, crs).bounds
        if same_crs(scene.grid.crs, crs):
            self.transform, self.res = scene.grid.transform, scene.grid.res
            self.width, self.height, self.shape = (
                scene.grid.width,
                scene.grid.height,
                (scene.grid.height, scene.grid.width),
            )
        self._dataset, self._crs, self._handle = dataset, crs, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "src_dataset":
            raise AttributeError(name)
        if self._handle is None:
            self._handle = self._dataset._load_warp_file(self.name, self._crs)  # noqa: SLF001 - as above
        return getattr(self._handle, name)


def _meets(scene: Scene, grid: Grid) -> bool:
    """Whether a scene on the same pixel grid reaches into ``grid``; True where they are of different grids."""
    place = scene.grid.paste_window(grid)
    return place is None or place.intersection(scene.grid.window) is not None


def _patch(outcome: Any) -> Patch:
    if isinstance(outcome, Exception):
        raise outcome
    patch: Patch = outcome
    return patch


def _nodata(scene: Scene) -> float | None:
    return scene.nodata[0] if scene.nodata else None
