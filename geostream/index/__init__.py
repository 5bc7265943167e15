"""Scenes: where they lie, when they were taken, what their headers say, and which of them a query meets. No network."""

from geostream.index.footprint import converted_res, footprint, projected
from geostream.index.lookup import SceneLookup, Times, interval_index, scene_frame
from geostream.index.scene import Scene
from geostream.index.scenes import IndexedScenes, band_counts, completed, pixel_types, scene_footprints, scene_times

__all__ = [
    "IndexedScenes",
    "Scene",
    "SceneLookup",
    "Times",
    "band_counts",
    "completed",
    "converted_res",
    "footprint",
    "interval_index",
    "pixel_types",
    "projected",
    "scene_footprints",
    "scene_frame",
    "scene_times",
]
