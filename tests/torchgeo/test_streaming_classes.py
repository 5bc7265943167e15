"""Every raster class of the installed TorchGeo: streamed, it gives what it gives on local files, or it is refused."""

from __future__ import annotations

import pytest
from streams import differences, pair, raster_classes

import geostream as gs
from geostream.testing import RangeServer
from geostream.torchgeo import streaming

REFUSED = {
    "AgriFieldNet": "AgriFieldNet.__getitem__ calls os.walk",
    "LandCoverAIGeo": "LandCoverAIGeo.__init__ calls RasterDataset.__init__ by name",
    "MMFloodComponent": "MMFloodComponent.__init__ calls glob.glob",
    "MetaCHM": r"MetaCHM.__init__ does not call super\(\).__init__",
}
ABSTRACT = {"Chesapeake", "Landsat"}


ON_S3 = {"CDL", "Sentinel2", "SouthAfricaCropType"}
"""Classes whose files are found by listing a bucket. The others get a list of URLs."""


def test_all_classes(theirs, tmp_path):
    """On the raster's own grid: index, bounds and samples, labels that classes remap included."""
    failures, compared = {}, set()
    with RangeServer(tmp_path) as server:
        for cls in raster_classes(theirs):
            name = cls.__name__
            if name in REFUSED or name in ABSTRACT:
                continue
            found = differences(*pair(cls, tmp_path / name, server, "s3" if name in ON_S3 else "http"))
            compared.add(name)
            if found:
                failures[name] = found[:3]
    assert not failures
    assert len(compared) > 35


def test_classes_that_are_refused(theirs):
    known = {cls.__name__: cls for cls in raster_classes(theirs)}
    for name in REFUSED.keys() & known.keys():
        with pytest.raises(gs.errors.ConfigError, match=REFUSED[name]):
            streaming(known[name])


def test_abstract_classes_stay_so(theirs, tmp_path):
    with pytest.raises(TypeError, match="abstract"):
        streaming(theirs.Chesapeake)(tmp_path)
