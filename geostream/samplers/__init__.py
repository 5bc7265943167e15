"""Where chips are read: random, batched by scene or by tile, side by side, whole scenes, or where a table says.

Signatures are TorchGeo's. Every sampler's order is a function of its seed and the epoch's number, is the same for every
number of ranks, and can be gone on with from a state.
"""

from geostream.samplers.base import ChipOptions, ChipSampler, EpochSampler, RankOptions
from geostream.samplers.batch import BatchGeoSampler, RandomBatchGeoSampler
from geostream.samplers.grid import GridGeoSampler
from geostream.samplers.prechipped import PreChippedGeoSampler
from geostream.samplers.random import RandomGeoSampler
from geostream.samplers.saved import SavedBatchGeoSampler, SavedGeoSampler, windows
from geostream.samplers.shuffling import TileReport
from geostream.samplers.tile import TileBatchGeoSampler
from geostream.samplers.units import Units
from geostream.samplers.valid import ValidMap, read_valid

__all__ = [
    "BatchGeoSampler",
    "ChipOptions",
    "ChipSampler",
    "EpochSampler",
    "GridGeoSampler",
    "PreChippedGeoSampler",
    "RandomBatchGeoSampler",
    "RandomGeoSampler",
    "RankOptions",
    "SavedBatchGeoSampler",
    "SavedGeoSampler",
    "TileBatchGeoSampler",
    "TileReport",
    "Units",
    "ValidMap",
    "read_valid",
    "windows",
]
