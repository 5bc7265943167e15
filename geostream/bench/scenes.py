"""The files that are read, written once into a folder that is kept."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rasterio
from affine import Affine

from geostream.errors import ConfigError
from geostream.testing.rasters import scene, scene_labels, write_cog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from geostream.bench.cases import Case

    Array = NDArray[np.generic]

__all__ = ["Sizes", "files_of", "local_files", "write_case"]

LEFT, TOP, RES = 500_000.0, 5_000_000.0, 1.0
"""Where the first scene lies in UTM zone 32N, and its pixels, in metres."""
_GAP = 904
_REPEATS = 4
"""How often each landscape's labels appear in ``labels``: so small a file would else fit into a cache with the rest."""
_SMALL = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is written."""

    scenes: int = 8
    """Number of scenes."""
    size: int = 4096
    """Height and width of a scene in pixels."""
    small: int = 1000
    """Number of small files."""

    @property
    def pitch(self) -> float:
        """Metres from one scene's left edge to the next one's."""
        return (self.size + _GAP) * RES

    def place(self, number: int) -> dict[str, Any]:
        """CRS and transform of a scene."""
        return {"crs": "EPSG:32632", "transform": Affine(RES, 0, LEFT + number * self.pitch, 0, -RES, TOP)}


def files_of(folder: str, sizes: Sizes) -> dict[int, list[str]]:
    """Names of the files in ``folder``, by scene, as they are served."""
    if folder == "small":
        return {i: [f"small/m_{i}.tif"] for i in range(sizes.small)}
    if folder == "s2":
        return {i: [f"s2/s_{i}_B{band}.tif" for band in range(1, 5)] for i in range(sizes.scenes)}
    if folder == "labels":
        return {i: [f"labels/l_{i}.tif"] for i in range(_REPEATS * sizes.scenes)}
    letter = {"naip": "m", "mask": "l"}[folder]
    return {i: [f"{folder}/{letter}_{i}.tif"] for i in range(sizes.scenes)}


def local_files(case: Case, root: Path, sizes: Sizes) -> dict[str, list[str]]:
    """Paths of a case's files, by folder."""
    return {
        folder: [str(root / name) for names in files_of(folder, sizes).values() for name in names]
        for folder in case.folders
    }


def write_case(case: Case, root: Path, sizes: Sizes) -> int:
    """Write what of a case's files is not there yet; returns the bytes of all of them.

    Raises:
        ConfigError: there are files of other sizes.
    """
    total = 0
    for folder in case.folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        by_scene = files_of(folder, sizes)
        missing = [i for i, names in by_scene.items() if not all((root / name).is_file() for name in names)]
        write = {"naip": _images, "mask": _labels, "s2": _bands, "labels": _many_labels, "small": _small}[folder]
        write(root, sizes, missing)
        edge = _SMALL if folder == "small" else sizes.size
        for name in by_scene[0]:
            with rasterio.open(root / name) as dataset:
                if dataset.width != edge:
                    raise ConfigError(
                        f"{root / name} is {dataset.width} pixels wide where {edge} were asked for: choose another "
                        "--data"
                    )
        total += sum((root / name).stat().st_size for names in by_scene.values() for name in names)
    return total


def _images(root: Path, sizes: Sizes, missing: list[int]) -> None:
    def write(i: int) -> None:
        _write(root / f"naip/m_{i}.tif", scene(sizes.size, sizes.size, 4, seed=i), sizes.place(i), 512)

    _each(missing, write)


def _labels(root: Path, sizes: Sizes, missing: list[int]) -> None:
    def write(i: int) -> None:
        _write(root / f"mask/l_{i}.tif", scene_labels(sizes.size, sizes.size, seed=i)[None], sizes.place(i), 512, 1)

    _each(missing, write)


def _many_labels(root: Path, sizes: Sizes, missing: list[int]) -> None:
    def write(seed: int) -> None:
        data = scene_labels(sizes.size, sizes.size, seed=seed)[None]
        for i in missing:
            if i % sizes.scenes == seed:
                _write(root / f"labels/l_{i}.tif", data, sizes.place(i), 512, 1)

    _each(sorted({i % sizes.scenes for i in missing}), write)


def _bands(root: Path, sizes: Sizes, missing: list[int]) -> None:
    def write(i: int) -> None:
        data = scene(sizes.size, sizes.size, 4, seed=i, dtype="uint16")
        for band in range(4):
            _write(root / f"s2/s_{i}_B{band + 1}.tif", data[band : band + 1], sizes.place(i), 1024)

    _each(missing, write)


def _small(root: Path, _: Sizes, missing: list[int]) -> None:
    """Cut landscapes of 16 x 16 tiles apart; each tile is a file with a place of its own."""
    across = 16
    per_scene = across * across

    def write(seed: int) -> None:
        data = scene(across * _SMALL, across * _SMALL, 4, seed=seed)
        for i in missing:
            if i // per_scene == seed:
                row, column = (side * _SMALL for side in divmod(i % per_scene, across))
                tile = data[:, row : row + _SMALL, column : column + _SMALL]
                x, y = (side * (_SMALL + 64) * RES for side in (i % 40, i // 40))
                place = {"crs": "EPSG:32632", "transform": Affine(RES, 0, LEFT + x, 0, -RES, TOP - y)}
                _write(root / f"small/m_{i}.tif", tile, place, _SMALL)

    _each(sorted({i // per_scene for i in missing}), write)


def _write(path: Path, data: Array, place: Mapping[str, Any], tile: int, predictor: int = 2) -> None:
    """Write a file under another name first, so that none is ever there in part."""
    draft = path.with_name(f".{path.name}")
    write_cog(draft, data, predictor=predictor, blocksize=tile, overviews=False, **place)
    draft.rename(path)


def _each(numbers: list[int], write: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, numbers))
