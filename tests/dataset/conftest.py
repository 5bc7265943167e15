"""A small archive: overlapping scenes with holes, their labels, and a scene in the next zone."""

from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from affine import Affine

import geostream as gs
from geostream.testing.rasters import write_cog

RES = 10.0
WEST, NORTH = 600_000.0, 5_300_000.0
SIDE = 320


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"
    filename_regex = r"^img_(?P<name>\w)_(?P<date>\d{8})"
    all_bands = ("R", "G", "B")


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    filename_regex = r"^lab_(?P<name>\w)_(?P<date>\d{8})"
    is_image = False


def at(col, row, size=64, res=RES):
    """A query of ``size`` pixels whose upper left corner is pixel (row, column) of scene a."""
    x, y = WEST + col * RES, NORTH - row * RES
    return slice(x, x + size * res), slice(y - size * res, y)


def pixels(path):
    with rasterio.open(path) as dataset:
        return dataset.read()


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Scene b lies 160 columns east of a. Both have nodata 0 and holes; labels cover both and have no nodata."""
    root = tmp_path_factory.mktemp("archive")
    rng = np.random.default_rng(7)
    for i, name in enumerate("ab"):
        transform = Affine(RES, 0, WEST + 160 * i * RES, 0, -RES, NORTH)
        image = rng.integers(1, 255, (3, SIDE, SIDE), dtype=np.uint8)
        image[:, 20:50, 170 - 160 * i : 220 - 160 * i] = 0 if name == "a" else image[:, 20:50, 10:60]
        image[:, 100:120, 20:60] = 0
        write_cog(root / f"img_{name}_2023010{i + 1}.tif", image, transform=transform, nodata=0, blocksize=128)
        label = rng.integers(0, 5, (1, SIDE, SIDE), dtype=np.uint8)
        write_cog(root / f"lab_{name}_2023010{i + 1}.tif", label, transform=transform, blocksize=128)
    paths = SimpleNamespace(**{p.name.split("_2023")[0]: p for p in sorted(root.glob("*.tif"))})
    return SimpleNamespace(root=root, **vars(paths), pixels={k: pixels(p) for k, p in vars(paths).items()})


@pytest.fixture
def images(archive):
    return Images(archive.root)


@pytest.fixture
def labels(archive):
    return Labels(archive.root)
