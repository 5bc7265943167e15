"""What geostream is tested with, for your tests too: a range server with faults, writers of rasters, strategies.

`geostream.testing.rasters` writes files of every layout, `geostream.testing.strategies` needs hypothesis.
"""

from __future__ import annotations

from geostream.testing.records import Counters, Fault, Served
from geostream.testing.server import RangeServer

__all__ = ["Counters", "Fault", "RangeServer", "Served"]
