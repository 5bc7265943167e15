"""Every raster class of the installed TorchGeo: streamed, it gives what it gives on local files, or it is refused."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from streams import raster_classes, table_row

import geostream as gs
from geostream.testing import RangeServer
from geostream.torchgeo import streaming

PAGE = Path(__file__).parents[2] / "docs" / "torchgeo-classes.md"
REFUSED = {
    "AgriFieldNet": r"AgriFieldNet.__getitem__ calls os.walk",
    "LandCoverAIGeo": r"LandCoverAIGeo.__init__ calls RasterDataset.__init__ by name",
    "MMFloodComponent": r"MMFloodComponent.__init__ calls glob.glob",
    "MetaCHM": r"MetaCHM.__init__ does not call super\(\).__init__",
}


def test_all_classes(theirs, tmp_path):
    """On the raster's own grid: index, bounds and samples, labels that classes remap included."""
    with RangeServer(tmp_path) as server:
        rows = [table_row(cls, server, tmp_path) for cls in raster_classes(theirs)]
    assert not [row for row in rows if "differs" in row or "no layout" in row]
    assert len([row for row in rows if "same samples" in row]) > 35
    _, found, section = PAGE.read_text().partition(f"## TorchGeo {version('torchgeo')}\n")
    if found:  # tests/torchgeo/write_class_table.py writes it
        assert [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")] == rows


def test_classes_that_are_refused(theirs):
    known = {cls.__name__: cls for cls in raster_classes(theirs)}
    for name in REFUSED.keys() & known.keys():
        with pytest.raises(gs.errors.ConfigError, match=REFUSED[name]):
            streaming(known[name])


def test_abstract_classes_stay_so(theirs, tmp_path):
    with pytest.raises(TypeError, match="abstract"):
        streaming(theirs.Chesapeake)(tmp_path)
