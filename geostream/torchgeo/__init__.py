"""TorchGeo's own dataset classes, with their files found, opened and read by geostream."""

from geostream.torchgeo.streaming import streaming

__all__ = ["streaming"]
