"""TorchGeo itself, where it is installed: CONTRIBUTING.md says how to make an environment for it."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from geostream.testing.rasters import DEFAULT_TRANSFORM

sys.path.append(str(Path(__file__).parent))  # layouts and streams, which several tests share
_STUBS = []


def _import_torchgeo():
    """TorchGeo's datasets. A torchvision built for another torch lacks operators that importing it needs, not we."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STUBS.append(library)  # operators live as long as their library
    from torchgeo import datasets

    return datasets


@pytest.fixture(scope="session")
def theirs():
    if importlib.util.find_spec("torchgeo") is None:
        pytest.skip("torchgeo is not installed: see CONTRIBUTING.md")
    return _import_torchgeo()


@pytest.fixture(scope="session")
def window():
    """Slices of pixels of the raster that `write_cog` writes by default."""

    def slices(col, row, width, height):
        x, y = DEFAULT_TRANSFORM.c + 10 * col, DEFAULT_TRANSFORM.f - 10 * row
        return slice(x, x + 10 * width), slice(y - 10 * height, y)

    return slices
