"""Lightning: predictions of chips blended into one raster for each scene, every rank doing its part."""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import rasterio
import rasterio.shutil
import torch
from affine import Affine
from rasterio.windows import Window as RasterioWindow
from tqdm import tqdm

from geostream.blending import Chip, ChipFile, blended, covers, one_of_each, strips
from geostream.errors import ConfigError
from geostream.grid import PASTE_TOLERANCE, parse_crs
from geostream.samplers.checks import check_count
from geostream.samplers.regions import regions_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from geostream.samplers.regions import Region

__all__ = ["PredictionWriter"]

_SECOND = 1e-3
"""Seconds by which times may differ: a batch holds them as float64."""
_LEAST_TILE = {"GTiff": 16, "COG": 128}
"""Sides in pixels below which GDAL's drivers write no tiles."""
_OPTIONS = {
    "GTiff": """
    alpha bigtiff color_table_multiplier compress discard_lsb endianness geotiff_keys_flavor geotiff_version
    interleave jpeg_quality jpegtablesmode jxl_alpha_distance jxl_distance jxl_effort jxl_lossless lzma_preset
    max_z_error nbits num_threads photometric pixeltype predictor profile rpb rpctxt source_icc_profile
    source_primaries_blue source_primaries_green source_primaries_red source_whitepoint sparse_ok
    streamable_output tfw tiff_transferfunction_blue tiff_transferfunction_green tiff_transferfunction_red
    tiff_transferrange_black tiff_transferrange_white webp_level webp_lossless zlevel zstd_level
    """,
    "COG": """
    add_alpha aligned_levels bigtiff compress extent geotiff_version interleave jxl_alpha_distance jxl_distance
    jxl_effort jxl_lossless level max_z_error max_z_error_overview nbits num_threads overview_compress
    overview_count overview_predictor overview_quality overview_resampling overviews predictor quality res
    resampling sparse_ok statistics target_srs tiling_scheme warp_resampling zoom_level
    zoom_level_strategy
    """,
}
"""What GDAL's drivers can be told about a file (gdal.org/drivers/raster), without what the writer itself says."""
_RES = 1e-6
"""Share of a pixel size by which another may differ and be the same."""


class PredictionWriter(pl.Callback):
    """Write what ``trainer.predict`` predicts: one tiled GeoTIFF for each scene of the dataset.

    Chips wait on disk, in a folder of their own inside ``folder``, which ranks on several nodes must share. When all
    are there, every rank blends and writes its part of the scenes, some rows at a time. Where chips overlap,
    predictions in floating point are averaged, those in the middle of their chip counting most; of labels, the most
    central one is taken. The result does not depend on the number of ranks.

    A scene's file has the scene's name, its pixels, and its place in the dataset's CRS. Pixels that no chip covers, or
    that ``mask_valid`` calls invalid, are masked, or hold ``nodata``, which for floating point is NaN.

    The model's ``predict_step`` returns (B, C, H, W) or (B, H, W), in the height and width of its images, or a dict
    with that as ``prediction``. Pass ``return_predictions=False`` to ``trainer.predict``, which otherwise keeps all of
    it in memory.

    Args:
        folder: where the files go; it is made if it is not there. Files of the same names are replaced.
        finish: what becomes of the blended predictions (C, H, W) of some rows: (C, H, W) or (H, W), such as
            ``lambda scores: scores.argmax(0).astype("uint8")``.
        nodata: value of pixels without a prediction.
        driver: ``"COG"``, or ``"GTiff"`` for a plain tiled GeoTIFF.
        blocksize: side of the tiles in pixels.
        progress: show a bar while files are written, one for each rank, where there is a terminal.
        options: GDAL's other creation options, such as ``compress="zstd"``; by default DEFLATE.

    Raises:
        ConfigError: a driver that is neither, a tile size that is no multiple of 16, a ``finish`` that cannot be
            called, a ``nodata`` that is no number, or an option that the driver does not have.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        finish: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
        nodata: float | None = None,
        driver: str = "COG",
        blocksize: int = 512,
        progress: bool = True,
        **options: Any,
    ) -> None:
        if driver not in _LEAST_TILE:
            raise ConfigError(f"driver={driver!r}: pass 'COG' or 'GTiff'")
        if check_count("blocksize", blocksize) < _LEAST_TILE[driver] or blocksize % 16:
            raise ConfigError(
                f"blocksize={blocksize}: pass a multiple of 16, for a {driver} {_LEAST_TILE[driver]} or more"
            )
        if finish is not None and not callable(finish):
            raise ConfigError(f"finish={finish!r}: pass a function of the blended predictions (C, H, W)")
        _check_number("nodata", nodata)
        _check_options(driver, options)
        self.folder = Path(folder)
        self.finish = finish
        self.nodata = nodata
        self.driver = driver
        self.blocksize = blocksize
        self.progress = progress
        self.options = {"compress": "deflate", **options}
        self.written: list[Path] = []
        """Files that this rank wrote in the last run."""
        self._waiting: Path | None = None
        self._chips: ChipFile | None = None
        self._targets: list[_Targets] = []

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Make the folder in which chips wait, one for all ranks."""
        waiting = None
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            waiting = tempfile.mkdtemp(prefix=".predicting-", dir=self.folder)
        waiting = trainer.strategy.broadcast(waiting)
        self._waiting = Path(str(waiting))
        self._waiting.mkdir(parents=True, exist_ok=True)  # another node's disk: noticed, in words, at the end
        self._chips = ChipFile(self._waiting, f"{trainer.global_rank:05d}")
        self._targets, self.written = [], []
        names: set[str] = set()
        for loader in _as_list(trainer.predict_dataloaders):
            first = sum(len(targets) for targets in self._targets)
            self._targets.append(_Targets.of(loader.dataset, first, names))

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,  # noqa: ARG002 - Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002
        dataloader_idx: int = 0,
    ) -> None:
        """Keep a batch of predictions.

        Raises:
            ConfigError: predictions of another size than their chips, or a batch that does not say where it lies.
        """
        assert self._chips is not None
        bounds = batch.get("bounds") if isinstance(batch, dict) else None
        if not isinstance(bounds, torch.Tensor) or bounds.dtype != torch.float64:
            raise ConfigError(
                "a batch without `bounds` in float64 does not say where its predictions go: keep them in predict_aug, "
                "and under half precision let a GeoDataModule make the loader"
            )
        values, valid = _predicted(outputs), _validity(batch)
        for i, place in enumerate(bounds.cpu().double().numpy()):
            chip = values[i]
            expected = round((place[4] - place[3]) / place[5]), round((place[1] - place[0]) / place[2])
            if chip.shape[1:] != expected:
                raise ConfigError(
                    f"predict_step returned {chip.shape[1]} x {chip.shape[2]} pixels for a chip of {expected[0]} x "
                    f"{expected[1]}: scale predictions to the size of the image"
                )
            found = self._targets[dataloader_idx].places(place)
            if not found:
                raise ConfigError(
                    f"the chip at {place[:6].tolist()} lies on no scene's pixels: predict over a GridGeoSampler of the "
                    "dataset, without geometric predict_aug"
                )
            self._chips.add(chip, None if valid is None else valid[i], found)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Blend and write this rank's part of the scenes.

        Raises:
            ConfigError: ranks do not see each other's files, ``finish`` returns something odd, or ``nodata`` does not
                fit what is predicted.
        """
        assert self._chips is not None
        assert self._waiting is not None
        self._chips.close()
        trainer.strategy.barrier("chips are there")
        lists = ChipFile.read_all(self._waiting)
        if len(lists) != trainer.world_size:
            raise ConfigError(
                f"{self.folder} holds the predictions of {len(lists)} ranks out of {trainer.world_size}: pass a folder "
                "that all nodes share"
            )
        by_scene: dict[int, list[Chip]] = {}
        for chip in (chip for chips in lists for chip in chips):
            by_scene.setdefault(chip.scene, []).append(chip)
        targets = [target for of_loader in self._targets for target in of_loader.targets]
        mine = sorted(by_scene)[trainer.global_rank :: trainer.world_size]
        with tqdm(
            total=sum(len(list(strips(targets[scene].height, self.blocksize))) for scene in mine),
            desc="Writing predictions",
            position=trainer.global_rank,
            disable=None if self.progress else True,
        ) as bar:
            for scene in mine:
                self.written.append(self._write(targets[scene], one_of_each(by_scene[scene]), self._waiting, bar))
        trainer.strategy.barrier("files are written")
        self._forget(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave no chips behind."""
        self._forget(trainer)

    def _forget(self, trainer: pl.Trainer) -> None:
        if self._waiting is not None and trainer.is_global_zero:
            shutil.rmtree(self._waiting, ignore_errors=True)
        self._waiting = self._chips = None

    def _write(self, target: _Target, chips: Sequence[Chip], waiting: Path, bar: Any) -> Path:
        draft, path = waiting / f"{target.name}.draft.tif", self.folder / f"{target.name}.tif"
        whole = covers(chips, target.height, target.width)
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
            self._draft(draft, target, self._strips(target, chips, bar), masked=not whole)
            if self.driver == "COG":
                copy = waiting / f"{target.name}.tif"
                rasterio.shutil.copy(draft, copy, driver="COG", blocksize=self.blocksize, **self.options)
                draft.unlink()
                draft = copy
        draft.replace(path)
        return path

    def _strips(
        self, target: _Target, chips: Sequence[Chip], bar: Any
    ) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
        for top, height in strips(target.height, self.blocksize):
            values, found = blended(chips, top, height, target.width)
            if self.finish is not None:
                values = np.asarray(self.finish(values))
                values = values if values.ndim > 2 else values[None]  # noqa: PLR2004 - one band
            if values.ndim != 3 or values.shape[1:] != found.shape:  # noqa: PLR2004 - bands, rows, columns
                raise ConfigError(f"finish returned the shape {values.shape} for (C, {height}, {target.width})")
            yield top, values.astype(np.uint8 if values.dtype == bool else values.dtype), found
            bar.update()

    def _draft(
        self,
        path: Path,
        target: _Target,
        parts: Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]],
        *,
        masked: bool,
    ) -> None:
        dataset: Any = None
        nodata = self.nodata
        try:
            for top, values, found in parts:
                if dataset is None:
                    if nodata is None and values.dtype.kind == "f":
                        nodata = float("nan")
                    _check_nodata(nodata, values.dtype, target.name)
                    dataset = self._open(path, target, values, nodata)
                window = RasterioWindow(0, top, target.width, values.shape[1])
                if nodata is not None:
                    values[:, ~found] = nodata
                dataset.write(values, window=window)
                if masked and nodata is None:
                    dataset.write_mask(found, window=window)
        finally:
            if dataset is not None:
                dataset.close()

    def _open(self, path: Path, target: _Target, values: NDArray[Any], nodata: float | None) -> Any:
        return rasterio.open(
            path,
            "w",
            driver="GTiff",
            crs=target.crs,
            transform=target.transform,
            count=len(values),
            height=target.height,
            width=target.width,
            dtype=values.dtype,
            nodata=nodata,
            tiled=True,
            blockxsize=self.blocksize,
            blockysize=self.blocksize,
            bigtiff="if_safer",
            **(self.options if self.driver == "GTiff" else {}),
        )


@dataclass(frozen=True, slots=True)
class _Target:
    """A file to write."""

    name: str
    """Its name, without an ending."""
    height: int
    width: int
    transform: Affine
    crs: str | None
    """WKT."""


class _Targets:
    """The scenes of one dataset as files to write, and which of them a chip lies in."""

    def __init__(self, targets: Sequence[_Target], regions: Sequence[Region], first: int) -> None:
        self.targets = list(targets)
        self._first = first
        self._corner = np.array([target.transform @ (0, 0) for target in targets]).reshape(-1, 2)
        self._size = np.array([(target.width, target.height) for target in targets]).reshape(-1, 2)
        self._res = np.array([region.res for region in regions]).reshape(-1, 2)
        self._times = np.array([[t.timestamp() for t in region.interval] for region in regions]).reshape(-1, 2)

    @classmethod
    def of(cls, dataset: Any, first: int, names: set[str]) -> _Targets:
        """The scenes of ``dataset``, numbered from ``first``, named like none of ``names``, which grow."""
        regions = [r for r in regions_of(dataset, None, None) if r.window.width and r.window.height]
        crs = parse_crs(dataset.crs)
        wkt = None if crs is None else crs.to_wkt()
        targets = []
        for region in regions:
            (x, y), (xres, yres), window = region.origin, region.res, region.window
            place = Affine(xres, 0.0, x + window.col_off * xres, 0.0, -yres, y - window.row_off * yres)
            name = _free_name(dataset.index, region.row, names)
            targets.append(_Target(name, window.height, window.width, place, wkt))
        return cls(targets, regions, first)

    def __len__(self) -> int:
        return len(self.targets)

    def places(self, bounds: NDArray[np.float64]) -> list[tuple[int, int, int]]:
        """Number, row and column in every scene that a chip lies in, on whose pixels and within whose time.

        What a dataset says depends on place and time, not on the scene a chip was cut from: where scenes overlap, a
        chip belongs to all of them, except that of nested times the shortest counts.
        """
        xmin, xmax, xres, ymin, ymax, yres, start, stop, _ = bounds
        offset = (np.array([xmin, ymax]) - self._corner) / self._res * [1, -1]
        whole = np.round(offset)
        size = np.round([(xmax - xmin) / xres, (ymax - ymin) / yres])
        fits = (
            (np.abs(offset - whole) <= PASTE_TOLERANCE).all(axis=1)
            & (np.abs(self._res / [xres, yres] - 1) <= _RES).all(axis=1)
            & (whole < self._size).all(axis=1)
            & (whole + size > 0).all(axis=1)
            & (self._times[:, 0] <= start + _SECOND)
            & (stop <= self._times[:, 1] + _SECOND)
        )
        lengths = self._times[:, 1] - self._times[:, 0]
        found = np.flatnonzero(fits)
        if len(found):
            found = found[lengths[found] <= lengths[found].min() + _SECOND]
        return [(self._first + int(i), int(whole[i, 1]), int(whole[i, 0])) for i in found]


def _check_number(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise ConfigError(f"{name}={value!r}: pass a number")


def _check_options(driver: str, options: Iterable[str]) -> None:
    known = _OPTIONS[driver].split()
    for name in options:
        if name.lower() not in known:
            raise ConfigError(
                f"{name}= is no argument of PredictionWriter, nor a creation option of GDAL's {driver} driver: those "
                f"are {', '.join(known)}"
            )


def _check_nodata(nodata: float | None, dtype: np.dtype[Any], scene: str) -> None:
    """Refuse a value that pixels of ``dtype`` cannot hold, and that would wrap around or become infinite."""
    if nodata is None or dtype.kind not in "iuf":
        return
    if dtype.kind == "f":
        fits = not math.isfinite(nodata) or abs(nodata) <= float(np.finfo(dtype).max)
    else:
        limits = np.iinfo(dtype)
        fits = math.isfinite(nodata) and nodata == int(nodata) and limits.min <= nodata <= limits.max
    if not fits:
        raise ConfigError(
            f"nodata={nodata} cannot be held by {dtype.name}, in which {scene!r} is predicted: pass a nodata= that it "
            "can hold, or a finish= that returns another dtype"
        )


def _free_name(index: Any, row: int, names: set[str]) -> str:
    stem = Path(str(index["filepath"].iloc[row]).split("?")[0]).stem if "filepath" in index else f"scene-{row}"
    name, number = stem, 1
    while name in names:
        name, number = f"{stem}-{number}", number + 1
    names.add(name)
    return name


def _predicted(outputs: Any) -> NDArray[Any]:
    """(B, C, H, W) what ``predict_step`` returned."""
    values = outputs.get("prediction") if isinstance(outputs, dict) else outputs
    if not isinstance(values, torch.Tensor) or values.ndim not in {3, 4}:
        shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise ConfigError(f"predict_step returned {shape}: return (B, C, H, W) or (B, H, W), or it as 'prediction'")
    values = values.detach().cpu()
    values = values.float() if values.dtype == torch.bfloat16 else values
    values = values.to(torch.uint8) if values.dtype == torch.bool else values
    return (values if values.ndim > 3 else values[:, None]).numpy()  # noqa: PLR2004 - no channels


def _validity(batch: dict[str, Any]) -> NDArray[np.bool_] | None:
    """(B, H, W) where the batch holds data; of a series, where any date does."""
    valid = batch.get("mask_valid")
    if not isinstance(valid, torch.Tensor):
        return None
    return valid.bool().flatten(1, -3).any(dim=1).cpu().numpy()


def _as_list(loaders: Any) -> list[Any]:
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]
