"""A scan to keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import geopandas as gpd
import numpy as np
from affine import Affine

from geostream.errors import ConfigError, NotFoundError
from geostream.grid import Grid, parse_crs
from geostream.index.footprint import footprint
from geostream.index.scene import Scene

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["SceneIndex", "load_index"]

_WGS84 = "EPSG:4326"


@dataclass(frozen=True)
class SceneIndex:
    """A scan to keep: what files there are and what their headers say, so that datasets open without a request.

    Tile tables are not part of it: a saved index's files cost one request for their header when first read.
    """

    scenes: Mapping[str, Scene]
    """Facts about each file, by path or URL."""

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def gdf(self) -> gpd.GeoDataFrame:
        """One row a file: ``filepath``, the facts of `Scene`, and the footprint in EPSG:4326 (None without a CRS)."""
        rows = [_row(scene) for scene in self.scenes.values()]
        shapes = [None if s.grid.crs is None else footprint(s.grid, parse_crs(_WGS84)) for s in self.scenes.values()]
        return gpd.GeoDataFrame(rows, geometry=shapes, crs=_WGS84)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a GeoParquet file, for `load_index`.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            self.gdf.to_parquet(path)
        except ImportError as error:
            raise ConfigError("saving an index needs pyarrow: pip install 'geostream[index]'") from error


def load_index(path: str | os.PathLike[str]) -> SceneIndex:
    """Read an index that `SceneIndex.save` wrote.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: it is no index, or pyarrow is not installed.
    """
    try:
        frame = gpd.read_parquet(path)
        return SceneIndex({row["filepath"]: _scene(row) for row in frame.to_dict("records")})
    except ImportError as error:
        raise ConfigError("loading an index needs pyarrow: pip install 'geostream[index]'") from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: there is no such index: make one with build_index(…).save({str(path)!r})"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not an index that SceneIndex.save wrote: {error}") from error


def _row(scene: Scene) -> dict[str, Any]:
    grid = scene.grid
    return {
        "filepath": scene.url,
        "sidecars": json.dumps(scene.sidecars),
        "width": grid.width,
        "height": grid.height,
        "transform": json.dumps(grid.transform[:6]),
        "crs_wkt": None if grid.crs is None else grid.crs.to_wkt(),
        "count": scene.count,
        "dtype": scene.dtype.name,
        "nodata": json.dumps(scene.nodata),
        "colormap": None if scene.colormap is None else json.dumps(list(scene.colormap.items())),
        "block_shape": json.dumps(scene.block_shape),
        "all_valid": scene.all_valid,
    }


def _scene(row: Mapping[str, Any]) -> Scene:
    crs = parse_crs(row["crs_wkt"]) if isinstance(row["crs_wkt"], str) else None
    grid = Grid(int(row["width"]), int(row["height"]), Affine(*json.loads(row["transform"])), crs)
    colors = {k: tuple(rgba) for k, rgba in json.loads(row["colormap"])} if isinstance(row["colormap"], str) else None
    nodata, sidecars = tuple(json.loads(row["nodata"])), tuple(json.loads(row["sidecars"]))
    dtype, (rows, columns) = np.dtype(row["dtype"]), json.loads(row["block_shape"])
    block = int(rows), int(columns)
    return Scene(
        row["filepath"], sidecars, grid, int(row["count"]), dtype, nodata, colors, None, block, bool(row["all_valid"])
    )
