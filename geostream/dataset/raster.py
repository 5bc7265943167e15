"""Datasets of raster files."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from rasterio.enums import Resampling
from torch import Tensor

from geostream.accounting import stats
from geostream.dataset.asked import Asked, AskedBefore
from geostream.dataset.bands import BandFiles
from geostream.dataset.base import GeoDataset, bounds_tensor, parse_res
from geostream.dataset.filenames import FilenamePattern
from geostream.dataset.footprints import class_footprints
from geostream.dataset.options import PixelOptions, resampling_name
from geostream.dataset.pixels import Layer, channel_validity, fits, mosaicked, numpy_dtype, to_tensor, torch_dtype
from geostream.dataset.prefetch import fetch, is_validity_wanted, mark_nothing_left, take_drawn
from geostream.dataset.query import instant
from geostream.dataset.selection import by_date, covers, in_order, unhidden
from geostream.errors import ConfigError, GeostreamError, NotFoundError, QueryError, redact
from geostream.grid import parse_crs
from geostream.index import converted_res, pixel_types, scene_frame, scene_times
from geostream.plan import Layout, Request, Source
from geostream.scan import Paths, describe_paths, each_path, list_scenes, names_matching, scan
from geostream.transport import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from fsspec import AbstractFileSystem
    from pyproj import CRS
    from shapely import Geometry

    from geostream.dataset.collate import Sample
    from geostream.dataset.footprints import Datasource
    from geostream.dataset.options import DType
    from geostream.dataset.query import GeoSlice, Query
    from geostream.grid import Grid
    from geostream.index import Scene
    from geostream.reader import Outcome, Patch
    from geostream.scan.index import Index
    from geostream.transport import Transport

__all__ = ["RasterDataset"]

_DEFAULT_PATHS = "data"


class RasterDataset(GeoDataset):
    """Raster files, read by place and time, wherever they are.

    A subclass describes files of one kind by its attributes, as in TorchGeo. The constructor lists ``paths``, reads the
    header of every file that matches, many at once, and leaves no connection behind; pixels are read when asked for.

    Args:
        paths: one or more directories (searched at any depth), globs, files or URLs (any fsspec URL, ``/vsis3/…`` …).
        crs: CRS of queries and samples; default that of the first file. Other files are warped to it when read.
        res: pixel size in CRS units, one number or (x, y); default that of the first file.
        bands: names out of ``all_bands``, in the order wanted (1-based numbers where the class names none).
        transforms: applied to every sample.
        cache: accepted for TorchGeo's sake, and without effect: there are no open files to keep. Whatever it says, a
            dataset keeps its files' headers, and a process the tiles it decoded last, up to a bound that all its
            datasets share.
        time_series: stack dates, each a mosaic of its scenes, into (T, C, H, W) instead of one mosaic (C, H, W). Scenes
            are of one date if their names tell the same time: to stack days where names tell seconds, let the group
            ``date`` match the day alone.
        storage_options: options of the fsspec filesystem, as in pandas.
        fs: an fsspec filesystem of the user's own, instead of options.
        index: a saved index (`geostream.load_index`) instead of listing and reading headers.
        valid: add ``mask_valid``, bool (1, H, W), to samples: True where there is data.
        dtype: cast pixels to this torch dtype; ``"native"`` keeps the files'. Default the `dtype` property.
        resampling: ``"nearest"``, ``"bilinear"``, ``"cubic"``, … or rasterio's `Resampling`. Default the `resampling`
            property. Applies once, from source pixels to the sample's; pixels that lie on the source's grid are pasted.
        fill: value of pixels without data; default the file's nodata value, or 0.
        mosaic: where scenes overlap, the ``"first"`` or ``"last"`` by path, the ``"newest"`` or ``"oldest"`` by time,
            or the ``"min"``, ``"max"`` or ``"mean"``; always of valid pixels only. Scenes of which nothing can show,
            because another without holes covers the chip, are not read.
        on_error: ``"raise"``; ``"skip"`` leaves a failing scene out, and lets another chip of the batch stand in for
            one that has nothing left (``sample["skipped"]``); ``"fill"`` leaves ``fill`` and ``mask_valid`` False.
        sidecars: whether to ask for the ``.msk``, ``.ovr`` and ``.aux.xml`` of lone remote files, which no listing
            shows.
        transport: who fetches from s3, gs, az and http(s): ``"obstore"``, ``"fsspec"``, or ``"auto"`` for obstore
            where ``storage_options`` mean the same to it.
        sign: called with a file's URL right before a request, returns the URL to ask for, such as one with a token. It
            is called again when half a minute has passed, or a request is refused. What it returns is stored nowhere.

    Raises:
        NotFoundError: no file matches.
        HeaderError, ReadError: files that match cannot be read; one error names them all.
        ConfigError: unknown bands, files of differing band counts, options that contradict each other.
    """

    filename_regex: str = ".*"
    """What file names must begin with, verbose syntax. Groups ``date``, or ``start`` and ``stop``, give the time, and
    ``band`` the band where each has its own file."""
    date_format: str = "%Y%m%d"
    """`strptime` format of those times. A date stands for all of the day, a year for all of the year."""
    mint: datetime = pd.Timestamp.min
    """First instant of files of which neither name nor index gives a time."""
    maxt: datetime = pd.Timestamp.max
    """Last instant of files of which neither name nor index gives a time."""
    is_image: bool = True
    """Whether samples hold ``image``; else ``mask``."""
    separate_files: bool = False
    """Whether each band of a scene has its own file. Files may differ in pixel size, extent and CRS: each is resampled
    once, onto the sample's pixels. The scene lies where the first file does that is listed and wanted."""
    nodata: float | None = None
    """Value that stands for "no data" in all bands, whatever the files declare; None for what they declare."""
    all_bands: tuple[str, ...] = ()
    """Names of the bands, in the file's order."""
    rgb_bands: tuple[str, ...] = ()
    """Names of the bands to show as red, green and blue."""

    _files: list[str] | None = None
    _scenes: Mapping[str, Scene]
    _access: Access = Access()
    _options: PixelOptions = PixelOptions()
    _counts_rows: bool = False
    """Whether y counts rows, from the top down: so it does in files without georeferencing."""
    _common_dtype: torch.dtype | None = None
    """Holds all files' types; None where they have but one. A batch's samples must be of one type."""
    _cmap: Any = None

    def __init__(
        self,
        paths: Paths = _DEFAULT_PATHS,
        crs: Any = None,
        res: float | tuple[float, float] | None = None,
        bands: Sequence[str] | Sequence[int] | None = None,
        transforms: Callable[[Sample], Sample] | None = None,
        cache: bool = True,
        time_series: bool = False,
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        index: Index | None = None,
        valid: bool = False,
        dtype: DType | None = None,
        resampling: Any = None,
        fill: float | None = None,
        mosaic: str = "first",
        on_error: str = "raise",
        sidecars: bool = False,
        transport: Transport = "auto",
        sign: Callable[[str], str] | None = None,
    ) -> None:
        if not isinstance(self.nodata, int | float | np.number | None):
            raise ConfigError(f"{type(self).__name__}.nodata is {self.nodata!r}: it must be one number, or None")
        if not isinstance(self.filename_glob, str):
            raise ConfigError(f"{type(self).__name__}.filename_glob is {self.filename_glob!r}: it must be a str")
        self.paths = paths if isinstance(paths, str | os.PathLike) else each_path(paths)
        self.bands: Sequence[str] | Sequence[int] = bands or self.all_bands
        self.transforms = transforms
        self.cache = cache
        self.time_series = time_series
        kernel = None if resampling is None else resampling_name(resampling)
        self._options = PixelOptions(valid, dtype, kernel, fill, mosaic, on_error)
        self._access = Access(storage_options, fs, transport=transport, sign=sign)
        pattern = FilenamePattern(self.filename_regex, self.date_format)
        siblings = index.scenes.siblings() if index is not None and self.separate_files else {}
        self._band_files = BandFiles.of_class(
            type(self).__name__, pattern, bands, self.all_bands, siblings, separate=self.separate_files
        )
        urls = self._find_scenes(index, probe_sidecars=sidecars)
        self._band_files.check(urls, self._scenes, explicit=bool(bands))
        if len(types := pixel_types(self._scenes)) > 1:
            self._common_dtype = torch_dtype(np.result_type(*types))
        self._check_fill(self._scenes[urls[0]])
        self._place(urls, parse_crs(crs), None if res is None else parse_res(res))

    def _find_scenes(self, index: Index | None, *, probe_sidecars: bool) -> list[str]:
        """Fill ``_files`` and ``_scenes`` from the index, or by scanning; return one file for each scene."""
        if index is None:
            listing, scenes = scan(
                self.paths, self.filename_glob, self._access, self._files_to_open, probe_sidecars=probe_sidecars
            )
            nodata = self.nodata
            self._scenes = scenes if nodata is None else {u: scene.declaring(nodata) for u, scene in scenes.items()}
            self._files = list(listing.urls)
            self._tell_of_others(listing.urls)
            return self._band_files.scenes(listing.urls)
        if self.paths != _DEFAULT_PATHS:
            raise ConfigError("paths= and index= contradict each other: an index holds the files' places")
        self._files = names_matching(sorted(index.scenes), self.filename_glob)
        urls = self._wanted(self._files)
        opened = self._band_files.files(urls)
        missing = [redact(url) for url in index.scenes.lacking(opened)]
        if missing:
            raise ConfigError(
                f"the index lacks bands' files that the dataset needs: {missing}: build it from all of them"
            )
        self._scenes = index.scenes.only(opened, self.nodata)
        return urls

    def _files_to_open(self, listed: Sequence[str]) -> list[str]:
        return self._band_files.files(self._wanted(listed))

    def _wanted(self, listed: Sequence[str]) -> list[str]:
        """One file for each scene."""
        scenes = self._band_files.scenes(listed)
        if not scenes:
            raise NotFoundError(
                f"{len(listed)} files at {describe_paths(self.paths)} match {self.filename_glob!r}, but the name of "
                f"none begins as filename_regex {self.filename_regex!r} says"
            )
        return scenes

    def _tell_of_others(self, listed: Sequence[str]) -> None:
        """Warn of files that the pattern of names leaves out: it is a filter, but perhaps not meant to be one."""
        others = [redact(url) for url in listed if not self._band_files.pattern.matches(url)]
        if others:
            warnings.warn(
                f"{len(others)} of {len(listed)} files that match filename_glob {self.filename_glob!r} are left out, "
                f"since their names do not begin as filename_regex {self.filename_regex!r} says, such as {others[0]}",
                UserWarning,
                stacklevel=4,
            )

    def _check_fill(self, scene: Scene) -> None:
        option, fill = self._output_dtype(), self._options.fill
        dtype = scene.dtype if option is None else numpy_dtype(option)
        if fill is not None and not fits(fill, dtype):
            raise ConfigError(f"fill={fill!r} does not fit {dtype.name}: choose a value that the samples' dtype holds")

    def _place(self, urls: Sequence[str], crs: CRS | None, res: tuple[float, float] | None) -> None:
        """Choose CRS and resolution, and make the index."""
        first = self._scenes[urls[0]].grid
        crs = first.crs if crs is None else crs
        says = type(self).footprint_from_datasource is not RasterDataset.footprint_from_datasource
        shapes = class_footprints(self._scenes, urls, crs, self.footprint_from_datasource if says else None)
        times = scene_times(self._scenes, urls, (instant(self.mint), instant(self.maxt)))
        times = self._band_files.pattern.times_of(urls, times)
        if res is None:
            res = converted_res(first, crs)
        self._res = res
        self._counts_rows = crs is None and first.transform.e > 0 and first.transform.b == 0
        self.index = scene_frame(urls, shapes, times, crs)

    def __getitem__(self, query: GeoSlice) -> Sample:
        """The sample at one place and time.

        Returns:
            ``image`` (C, H, W), or ``mask`` (H, W) of one band, (C, H, W) of several; with ``time_series``, T dates in
            front and ``dates`` (T,) float64, the POSIX seconds at which they begin. ``bounds`` (9,) float64: xmin,
            xmax, xres, ymin, ymax, yres, tmin, tmax, step. ``transform`` (9,) float64: the affine transform, row by
            row. As asked for, ``mask_valid`` bool (1, H, W) and ``skipped``, a bool.

        Raises:
            ConfigError: the query is malformed.
            QueryError: nothing lies there.
            ReadError, DecodeError, HeaderError: a file cannot be read.
        """
        asked = self._answers.take(query, self.res, id(self.border)) or self._asked(query)
        grid, dates = asked.grid, asked.dates
        layers = self._layers(asked)
        t = grid.transform
        sample: Sample = {
            "bounds": bounds_tensor(asked.query),
            "transform": torch.tensor((t.a, t.b, t.c, t.d, t.e, t.f, t.g, t.h, t.i), dtype=torch.float64),
        }
        pixels = [
            to_tensor(layer, self._fills(rows), self._output_dtype()) for layer, rows in zip(layers, dates, strict=True)
        ]
        sample.update(self._named(torch.stack(pixels) if self.time_series else pixels[0]))
        if self._options.valid or self._options.on_error == "fill" or is_validity_wanted():
            masks = [torch.from_numpy(layer.anywhere) for layer in layers]
            sample["mask_valid"] = torch.stack(masks) if self.time_series else masks[0]
        if self.time_series:
            starts = [self._scene_lookup.times[rows[0]].left.timestamp() for rows in dates]
            sample["dates"] = torch.tensor(starts, dtype=torch.float64)
        if self._options.on_error == "skip":
            sample["skipped"] = torch.tensor(data=False)
        return sample if self.transforms is None else self.transforms(sample)

    def footprint_from_datasource(self, datasource: Datasource) -> Geometry | None:  # noqa: ARG002 - for subclasses
        """Where the scene of one file lies, for a subclass to say: TorchGeo's name for it.

        Args:
            datasource: the file's name and facts, as rasterio calls them.

        Returns:
            A polygon in ``datasource.crs``, such as from a metadata file; None for all of the raster. Of scenes whose
            polygon does not reach a query nothing is read.
        """
        return None

    def requests(self, query: GeoSlice) -> list[Request]:
        """What ``self[query]`` will ask of the reader.

        Raises:
            ConfigError: the query is malformed.
            QueryError: nothing lies there.
        """
        asked = self._asked(query)
        self._answers.keep(asked, query, self.res, id(self.border))
        return [request for requests in asked.requests.values() for request in requests]

    @property
    def _answers(self) -> AskedBefore:
        if self._kept_answers is None or self._kept_answers.lookup is not self._scene_lookup:
            self._kept_answers = AskedBefore(self._scene_lookup)
        return self._kept_answers

    def _asked(self, query: GeoSlice) -> Asked:
        parsed = self._query(query)
        grid = self._grid(parsed)
        dates = self._dates(parsed, grid)
        return Asked(parsed, grid, dates, self._requests_of_rows(dates, grid))

    def _grid(self, query: Query) -> Grid:
        """The sample's pixels: north up, or where files have no georeferencing, as they lie."""
        return query.rows_downwards() if self._counts_rows else query.grid(self.crs)

    def _dates(self, query: Query, grid: Grid) -> list[list[int]]:
        """Rows of the index to read, in the mosaic's order; with ``time_series`` those of each date."""
        lookup = self._scene_lookup
        find = lookup.find_dates if self.time_series else lookup.find
        rows: list[int] = find(grid, query.t).tolist()
        if not rows:
            raise QueryError(f"{query} is not in the dataset, which spans {self.bounds}")
        rows = in_order(rows, lookup.times, self._options.mosaic)
        dates = by_date(rows, lookup.times) if self.time_series else [rows]
        if self._options.on_error != "raise":
            return dates  # a scene that fails hides nothing
        return [unhidden(rows, self._options.policy, lambda row: self._covers(row, grid)) for rows in dates]

    def _covers(self, row: int, grid: Grid) -> bool:
        """Whether a scene is valid all over ``grid``, as far as headers tell."""
        scenes = [self._scenes.get(url) for url, _ in self._band_files.parts(self._scene_lookup.urls[row])]
        return all(scene is not None and covers(scene, grid) for scene in scenes)

    def _requests_of_rows(self, dates: Sequence[Sequence[int]], grid: Grid) -> dict[int, list[Request]]:
        """Requests of each scene; where there is but one, its pixels can be drawn straight into a batch."""
        rows = [row for rows in dates for row in rows]
        requests = {row: self._row_requests(row, grid) for row in rows}
        if len(rows) == 1:
            requests[rows[0]] = self._laid_out(requests[rows[0]])
        return requests

    def _row_requests(self, row: int, grid: Grid) -> list[Request]:
        kernel = self._options.resampling or resampling_name(self.resampling)
        parts = self._band_files.parts(self._scene_lookup.urls[row])
        return [Request(self._source(url), grid, self._selected(url, bands), kernel) for url, bands in parts]

    def _laid_out(self, requests: list[Request]) -> list[Request]:
        """The requests with their places among a sample's channels, if all of the files' headers are known."""
        scenes = [self._scenes.get(request.source.url) for request in requests]
        if any(scene is None for scene in scenes):
            return requests
        known = [scene for scene in scenes if scene is not None]
        counts = [len(r.bands or range(scene.count)) for r, scene in zip(requests, known, strict=True)]
        option = self._output_dtype()
        dtype = np.result_type(*(scene.dtype for scene in known)) if option is None else numpy_dtype(option)
        firsts = [sum(counts[:i]) for i in range(len(counts))]
        return [
            replace(request, layout=Layout(dtype, sum(counts), first, count))
            for request, first, count in zip(requests, firsts, counts, strict=True)
        ]

    def _source(self, url: str) -> Source:
        scene = self._scenes.get(url)
        if scene is None:
            return Source(url, self._access, nodata=self.nodata)
        return Source(url, self._access, scene.sidecars, self.nodata, header=scene.header)

    def _selected(self, url: str, bands: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """``bands``, or None if these are all the file has, in order."""
        scene = self._scenes.get(url)
        return None if scene is not None and bands == tuple(range(1, scene.count + 1)) else bands

    def _layers(self, asked: Asked) -> list[Layer]:
        """Each date's pixels, from what was read ahead or else read now."""
        per_row = asked.requests
        flat = iter(fetch([request for requests in per_row.values() for request in requests]))
        read = {row: [next(flat) for _ in requests] for row, requests in per_row.items()}
        failures = [error for outcomes in read.values() if (error := _first_error(outcomes)) is not None]
        if failures:
            self._handle(failures, nothing_left=len(failures) == len(read))
        if len(per_row) == 1 and not failures:
            (requests,), (outcomes,) = per_row.values(), read.values()
            drawn = take_drawn(requests)
            if drawn is not None:
                return [Layer(drawn.numpy(), channel_validity(_patches(outcomes)), drawn)]
        return [self._layer([read[row] for row in rows], rows[0], asked.grid) for rows in asked.dates]

    def _handle(self, failures: Sequence[Exception], *, nothing_left: bool) -> None:
        """Do what ``on_error`` says about scenes that failed."""
        fatal = [error for error in failures if not isinstance(error, GeostreamError)]
        if fatal or self._options.on_error == "raise":
            raise (fatal or failures)[0]
        if self._options.on_error == "fill":
            stats.add(filled=len(failures))
            return
        stats.add(skipped=len(failures))
        if nothing_left:
            error = copy.copy(failures[0])  # another dataset may be given the same one
            mark_nothing_left(error)
            raise error

    def _layer(self, scenes: Sequence[Sequence[Outcome]], row: int, grid: Grid) -> Layer:
        """One date's mosaic of all channels; scenes that failed are left out."""
        whole = [_patches(outcomes) for outcomes in scenes if _first_error(outcomes) is None]
        if not whole:
            channels = self._channels(row)
            dtype = np.result_type(*(scene.dtype for scene, _ in channels))
            return Layer.empty((len(channels), grid.height, grid.width), dtype)
        how = self._options.policy, self._output_dtype()
        return Layer.joined([mosaicked(how[0], files, how[1]) for files in zip(*whole, strict=True)])

    def _channels(self, row: int) -> list[tuple[Scene, int]]:
        """The file and 1-based band behind each channel of a scene."""
        parts = self._band_files.parts(self._scene_lookup.urls[row])
        known = [(self._scenes[url], bands) for url, bands in parts if url in self._scenes]
        return [(scene, band) for scene, bands in known for band in bands or range(1, scene.count + 1)]

    def _fills(self, rows: Sequence[int]) -> list[float]:
        """Value of each channel's pixels without data."""
        channels = self._channels(rows[0])
        if self._options.fill is not None:
            return [self._options.fill] * len(channels)
        declared = ((scene.nodata[band - 1], scene.dtype) for scene, band in channels)
        return [value if value is not None and fits(value, dtype) else 0 for value, dtype in declared]

    def _output_dtype(self) -> torch.dtype | None:
        option = self._options.dtype
        if option is None:
            return self.dtype
        return option if isinstance(option, torch.dtype) else self._common_dtype

    def _named(self, pixels: Tensor) -> Sample:
        if self.is_image:
            return {"image": pixels}
        return {"mask": pixels.squeeze(-3)}

    def _owns_validity(self) -> bool:
        return self._options.valid or self._options.on_error == "fill"

    @property
    def dtype(self) -> torch.dtype:
        """Pixel type of samples: float32 for images, int64 for masks, unless the constructor's keyword says another."""
        option = self._options.dtype
        if isinstance(option, torch.dtype):
            return option
        if option == "native":
            return self._common_dtype or torch_dtype(next(iter(self._scenes.values())).dtype)
        return torch.float32 if self.is_image else torch.long

    @property
    def resampling(self) -> Resampling:
        """Kernel: bilinear where samples are floating point, nearest where they are integers, unless told otherwise."""
        if self._options.resampling is not None:
            return Resampling[self._options.resampling]
        smooth = self.is_image if self._options.dtype == "native" else self.dtype.is_floating_point
        return Resampling.bilinear if smooth else Resampling.nearest

    @property
    def files(self) -> list[str]:
        """Files that match ``filename_glob``, sorted. Lists ``paths`` if the constructor has not done so yet."""
        if self._files is None:
            return list(list_scenes(self.paths, self.filename_glob, self._access).urls)
        return list(self._files)

    @property
    def cmap(self) -> Any:
        """Colour map of a palette raster's values as matplotlib's `ListedColormap`; None where the files have none."""
        if self._cmap is None:
            colors = next((scene.colormap for scene in getattr(self, "_scenes", {}).values() if scene.colormap), None)
            if colors:
                from matplotlib.colors import ListedColormap  # noqa: PLC0415 - heavy, and optional

                self._cmap = ListedColormap(np.array(list(colors.values())) / 255)
        return self._cmap

    @cmap.setter
    def cmap(self, value: Any) -> None:
        self._cmap = value


def _first_error(outcomes: Sequence[Outcome]) -> Exception | None:
    return next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)


def _patches(outcomes: Sequence[Outcome]) -> list[Patch]:
    return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
