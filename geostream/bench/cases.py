"""What is read: the cases of the benchmark, as geostream's users would write them."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import geostream as gs
from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ARMS", "BATCH", "CASES", "CHIP", "Arm", "Case", "arms_of", "open_dataset"]

CHIP, BATCH = 256, 16
"""Side of a chip in pixels, chips in a batch."""

LATENCY = 0.04
"""Seconds before an answer, unless a case says otherwise."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of reading."""

    name: str
    """What ``--arms`` calls it."""
    title: str
    """What it is called in the table."""
    epoch: bool = False
    """Whether a whole epoch is timed, the first batch included; else a stretch of it once everything runs."""


ARMS = {
    arm.name: arm
    for arm in (
        Arm("random", "geostream, random batches of one scene"),
        Arm("random-native", "geostream, random batches, the file's dtype"),
        Arm("tile", "geostream, tile batches, whole epoch", epoch=True),
        Arm("tile-native", "geostream, tile batches, the file's dtype", epoch=True),
        Arm("torch", "geostream, torch's DataLoader, 2 workers"),
        Arm("gdal", "rasterio /vsicurl, tuned"),
        Arm("litdata", "LitData, raw copy, whole epoch", epoch=True),
        Arm("litdata-zstd", "LitData, zstd copy, whole epoch", epoch=True),
        Arm("decode", "limit: decode those tiles from memory"),
        Arm("fetch", "limit: fetch those ranges, no decoding"),
    )
}
"""By name, in the order in which they run in each round."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of archive, and how it is asked for."""

    key: str
    """What ``--case`` calls it."""
    title: str
    """What it is, for people."""
    folders: tuple[str, ...]
    """Folders of files below the data directory; several are combined with ``&``."""
    crs: str | None = None
    """CRS of the chips; None for the files' own."""
    latencies: tuple[float, ...] = (LATENCY,)
    """Seconds before an answer, each a benchmark of its own."""
    scenes_per_batch: int = 1
    """Scenes that a random batch's chips come from."""
    batches: int = 64
    """Batches timed in the arms that do not run a whole epoch."""
    without: tuple[str, ...] = ()
    """Arms that do not apply."""


CASES = {
    case.key: case
    for case in (
        Case("a", "uint8 RGBN, 512 tiles, DEFLATE with predictor 2", ("naip",)),
        Case("b", "four uint16 files of one band a scene, 1024 tiles", ("s2",), batches=48),
        Case("c", "(a) and its labels, image & mask", ("naip", "mask")),
        Case(
            "d",
            "(a) warped to EPSG:3857, bilinear",
            ("naip",),
            crs="EPSG:3857",
            without=("litdata", "litdata-zstd"),
        ),
        Case("e", "small tiles: one uint8 band, 512 tiles", ("labels",), latencies=(0.04, 0.15), batches=256),
        Case("f", "1,000 files of one tile of 256 x 256, uint8 RGBN", ("small",), scenes_per_batch=16, batches=128),
    )
}
"""By key."""


class Images(gs.RasterDataset):
    """Red, green, blue and near infrared in one file."""

    filename_glob = "m_*.tif"
    all_bands = ("R", "G", "B", "NIR")
    rgb_bands = ("R", "G", "B")


class BandFiles(gs.RasterDataset):
    """Four bands, a file each."""

    filename_glob = "s_*.tif"
    filename_regex = r"^s_(?P<scene>\d+)_(?P<band>B\d)"
    all_bands = ("B1", "B2", "B3", "B4")
    separate_files = True


class Labels(gs.RasterDataset):
    """Land cover."""

    filename_glob = "l_*.tif"
    is_image = False


_DATASETS: dict[str, type[gs.RasterDataset]] = {
    "naip": Images,
    "small": Images,
    "s2": BandFiles,
    "mask": Labels,
    "labels": Labels,
}


def open_dataset(
    case: Case, urls: Mapping[str, Sequence[str]], storage_options: Mapping[str, Any] | None, dtype: Any = None
) -> gs.GeoDataset:
    """The case as one dataset.

    Args:
        case: which one.
        urls: files, by folder.
        storage_options: how they are reached.
        dtype: as `geostream.RasterDataset` takes it.
    """
    parts: list[gs.GeoDataset] = [
        _DATASETS[folder](urls[folder], crs=case.crs, storage_options=storage_options, dtype=dtype)
        for folder in case.folders
    ]
    return functools.reduce(operator.and_, parts)


def arms_of(case: Case, asked: Sequence[str]) -> list[Arm]:
    """The arms that apply to a case, in the order in which they run.

    Raises:
        ConfigError: there is no such arm.
    """
    unknown = [name for name in asked if name not in ARMS]
    if unknown:
        raise ConfigError(f"--arms {','.join(unknown)}: there are {', '.join(ARMS)}")
    return [arm for arm in ARMS.values() if arm.name in asked and arm.name not in case.without]
