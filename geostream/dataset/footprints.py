"""Where a dataset's class says that its scenes lie, which may be less than their rasters' boxes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import shapely
from rasterio.coords import BoundingBox

from geostream.errors import ConfigError, redact
from geostream.grid import same_crs
from geostream.index import footprint, projected, scene_footprints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from affine import Affine
    from numpy.typing import NDArray
    from pyproj import CRS
    from shapely import Geometry

    from geostream.index import Scene

__all__ = ["Datasource", "class_footprints", "scene_footprint"]


@dataclass(frozen=True, slots=True)
class Datasource:
    """What a header says of a raster, under rasterio's names. Nothing is open."""

    name: str
    """Path or URL."""
    crs: CRS | None
    """The file's CRS, in which a footprint is told."""
    transform: Affine
    """Maps (column, row) to (x, y)."""
    width: int
    """Number of columns."""
    height: int
    """Number of rows."""
    count: int
    """Number of bands."""
    nodata: float | None
    """Nodata value of the first band."""
    bounds: BoundingBox
    """``left, bottom, right, top`` in the file's CRS."""
    _scene: Scene = field(repr=False)

    @classmethod
    def of(cls, scene: Scene) -> Datasource:
        """The raster of a scene."""
        grid, nodata = scene.grid, scene.nodata[0] if scene.nodata else None
        box = BoundingBox(*grid.bounds)
        return cls(scene.url, grid.crs, grid.transform, grid.width, grid.height, scene.count, nodata, box, scene)

    def tags(self) -> dict[str, str]:
        """The file's metadata; empty where an index without headers told of it."""
        header = self._scene.header
        return {} if header is None else dict(header.tags)


def class_footprints(
    scenes: Mapping[str, Scene], urls: Sequence[str], crs: CRS | None, say: Callable[[Datasource], Any] | None
) -> Sequence[Geometry] | NDArray[np.object_]:
    """Where scenes lie, in ``crs``.

    Args:
        scenes: facts about every file.
        urls: one file for each scene.
        crs: CRS of the footprints.
        say: the class's word on each, as of `scene_footprint`; None where it has none, so that all can be done at once.

    Raises:
        ConfigError: what the class says is no area, or a scene has no place in ``crs``.
    """
    if say is None:
        with suppress(ConfigError):  # one by one, to name it
            return scene_footprints(scenes, urls, crs)
    shapes = []
    for url in urls:
        try:
            shapes.append(scene_footprint(scenes[url], crs, say or _nothing))
        except ConfigError as error:
            if crs is None and scenes[url].grid.crs is not None:
                raise ConfigError(
                    f"{redact(urls[0])} has no CRS, while {redact(url)} has one: georeference that file, or keep it "
                    "out by filename_glob",
                    url=urls[0],
                ) from error
            raise ConfigError(f"{redact(url)}: {error}", url=url) from error
    return shapes


def _nothing(_: Datasource) -> None:
    """What a class says that has no word on footprints."""


def scene_footprint(scene: Scene, crs: CRS | None, say: Callable[[Datasource], Any]) -> Geometry:
    """Where a scene lies, in ``crs``: what the dataset's class says, or the ground that its raster covers.

    Args:
        scene: the scene.
        crs: CRS of the footprint.
        say: the class's word on it: a polygon in the file's own CRS, or None.

    Raises:
        ConfigError: what the class says is no area, or has no place in ``crs``.
    """
    shape = say(Datasource.of(scene))
    if shape is None:
        return footprint(scene.grid, crs)
    if not isinstance(shape, shapely.Polygon | shapely.MultiPolygon) or not shape.area > 0:
        raise ConfigError(f"footprint_from_datasource gave {shape!r}: it must be a polygon that is more than a line")
    return shape if same_crs(scene.grid.crs, crs) else projected([shape], scene.grid.crs, crs)[0]
