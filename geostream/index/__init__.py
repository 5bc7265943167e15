"""Scenes: where they lie, when they were taken, what their headers say, and which of them a query meets. No network."""

from geostream.index.footprint import converted_res, footprint, projected
from geostream.index.lookup import SceneLookup, interval_index, scene_frame
from geostream.index.scene import Scene

__all__ = [
    "Scene",
    "SceneLookup",
    "converted_res",
    "footprint",
    "interval_index",
    "projected",
    "scene_frame",
]
