"""Scenes: where they lie, when they were taken, what their headers say, and which of them a query meets. No network."""

from geostream.index.footprint import converted_res, footprint, projected
from geostream.index.lookup import SceneLookup, interval_index, scene_frame
from geostream.index.scene import Scene
from geostream.index.scenes import IndexedScenes, band_counts, pixel_types, scene_footprints, scene_times

__all__ = [
    "IndexedScenes",
    "Scene",
    "SceneLookup",
    "band_counts",
    "converted_res",
    "footprint",
    "interval_index",
    "pixel_types",
    "projected",
    "scene_footprints",
    "scene_frame",
    "scene_times",
]
