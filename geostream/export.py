"""Patches as files: GeoTIFFs that keep every value, PNGs to look at."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from geostream.reader import Patch

__all__ = ["as_bytes", "write_png", "write_tiff", "writer"]

_COLOURS = 3
"""Red, green and blue."""


def writer(path: Path) -> Callable[[Patch], None]:
    """Choose what writes a patch to ``path``, by its ending: so that a mistake shows before anything is fetched.

    Raises:
        ConfigError: if the ending is neither ``.tif``, ``.tiff`` nor ``.png``.
        FileNotFoundError: if its folder does not exist.
    """
    writers = {".tif": write_tiff, ".tiff": write_tiff, ".png": write_png}
    write = writers.get(path.suffix.lower())
    if write is None:
        raise ConfigError(f"{path}: cannot write {path.suffix or 'a file without ending'}; use .tif or .png")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.absolute().parent} to write {path.name} into")
    return partial(write, path)


def write_tiff(path: Path, patch: Patch) -> None:
    """Write all bands with their georeferencing, and ``valid`` as the file's own mask where it is not all true."""
    bands, height, width = patch.data.shape
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(
            path,
            "w",
            driver="GTiff",
            crs=None if patch.crs is None else patch.crs.to_wkt(),
            transform=patch.transform,
            count=bands,
            height=height,
            width=width,
            dtype=patch.data.dtype,
            compress="deflate",
        ) as target,
    ):
        target.write(patch.data)
        if not patch.valid.all():
            target.write_mask(patch.valid)


def write_png(path: Path, patch: Patch) -> None:
    """Write one band as grey, or the first three as colours (see `as_bytes`); what is not valid is transparent."""
    colours = patch.data[:_COLOURS] if len(patch.data) >= _COLOURS else patch.data[:1]
    alpha = patch.valid[None].astype(np.uint8) * 255
    picture = np.concatenate([as_bytes(colours, patch.valid), alpha])
    count, height, width = picture.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # a picture has no place
        with rasterio.open(path, "w", driver="PNG", count=count, height=height, width=width, dtype="uint8") as target:
            target.write(picture)


def as_bytes(data: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn ``data`` (C, H, W) into uint8: bytes as they are, the rest from its 2nd to its 98th percentile.

    ``valid`` (H, W) says which pixels the percentiles are taken of, over all bands together so that colours keep.
    """
    if data.dtype == np.uint8:
        return data
    seen = data[:, valid].astype(np.float64)
    seen = seen[np.isfinite(seen)]
    low, high = np.percentile(seen, [2, 98]) if seen.size else (0.0, 1.0)
    stretched = (np.nan_to_num(data.astype(np.float64)) - low) / max(high - low, 1e-12) * 255
    rounded: np.ndarray[Any, Any] = np.rint(stretched).clip(0, 255).astype(np.uint8)
    return rounded
