"""The demo's archive: two scenes and their labels as COGs, in neighbouring UTM zones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from affine import Affine

import geostream as gs
from geostream.testing.rasters import write_cog
from geostream.testing.scenery import scene, scene_labels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["SCENES", "Images", "Labels", "Scene", "open_archive", "write_archive"]


@dataclass(frozen=True)
class Scene:
    """A place that was photographed."""

    crs: str
    """Its UTM zone."""
    left: float
    """Easting of the left edge."""
    top: float
    """Northing of the upper edge."""
    seed: int
    """Which landscape."""

    @property
    def name(self) -> str:
        """Part of its files' names."""
        return f"{self.crs.removeprefix('EPSG:')}_20240705"


SCENES = (Scene("EPSG:32632", 722_500.0, 5_110_000.0, 3), Scene("EPSG:32633", 265_500.0, 5_108_500.0, 7))
"""Either side of 12° east, with a gap between them. Pixels are 2 m."""

RESOLUTION = 2.0
"""Metres."""


class Images(gs.RasterDataset):
    """Red, green, blue and near infrared."""

    filename_glob = "image_*.tif"
    filename_regex = r"^image_.*_(?P<date>\d{8})"
    all_bands = ("R", "G", "B", "NIR")
    rgb_bands = ("R", "G", "B")


class Labels(gs.RasterDataset):
    """Land cover, an index into `geostream.testing.scenery.CLASSES`."""

    filename_glob = "labels_*.tif"
    filename_regex = r"^labels_.*_(?P<date>\d{8})"
    is_image = False


def open_archive(url: str, storage_options: Mapping[str, Any]) -> tuple[Images, Labels]:
    """The archive as datasets. Both zones come out in the first scene's; chips of the other are warped."""
    return Images(url, storage_options=storage_options), Labels(url, storage_options=storage_options, valid=True)


def write_archive(folder: Path, size: int) -> int:
    """Write the COGs of `SCENES`, ``size`` x ``size`` pixels each; returns their bytes on disk."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: _write(folder, one, size), SCENES))
    return sum(path.stat().st_size for path in folder.iterdir())


def _write(folder: Path, one: Scene, size: int) -> None:
    place: dict[str, Any] = {"crs": one.crs, "transform": Affine(RESOLUTION, 0, one.left, 0, -RESOLUTION, one.top)}
    layout: dict[str, Any] = {"blocksize": 512, "compress": "DEFLATE", "overviews": [2, 4, 8]} | place
    image, labels = scene(size, size, 4, seed=one.seed), scene_labels(size, size, seed=one.seed)[None]
    write_cog(folder / f"image_{one.name}.tif", image, **layout)
    write_cog(folder / f"labels_{one.name}.tif", labels, overview_resampling="nearest", **layout)
