"""Datasets over files that only ground control points place."""

import numpy as np
import pytest
import rasterio
import shapely
import torch
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.transform import GCPTransformer

import geostream as gs
from geostream.testing.rasters import scene, write_cog


def place(col, row):
    """A raster of 200 x 300 pixels that is turned and bent."""
    return 11 + 1e-3 * col + 2e-4 * row + 1e-7 * col * row, 47 - 1e-3 * row + 1e-4 * col


POINTS = [
    GroundControlPoint(row=row, col=col, x=place(col, row)[0], y=place(col, row)[1])
    for row in (0, 100, 200)
    for col in (0, 100, 200, 300)
]


def write(path, data=None, gcps=POINTS):
    data = scene(200, 300, 2) if data is None else data
    profile = {"driver": "GTiff", "width": 300, "height": 200, "count": len(data), "dtype": data.dtype, "tiled": True}
    with rasterio.open(path, "w", **profile, blockxsize=64, blockysize=64) as file:
        file.write(data)
        file.gcps = gcps, "EPSG:4326"
    return data


@pytest.fixture
def bent(tmp_path):
    data = write(tmp_path / "a_20230101.tif")
    return gs.RasterDataset(tmp_path, valid=True), data


def test_the_dataset_is_on_the_earth(bent):
    dataset, _ = bent
    assert dataset.crs.to_epsg() == 4326
    assert dataset.res == pytest.approx((1e-3, 1e-3), rel=0.05)
    corners = [place(*corner) for corner in ((0, 0), (300, 0), (300, 200), (0, 200))]
    outline = dataset.index.geometry.iloc[0]
    assert outline.symmetric_difference(shapely.Polygon(corners)).area < 1e-3 * outline.area
    # the polynomial leads from the ground to pixels: what lies there is the raster's very edge
    with GCPTransformer(POINTS) as transformer:
        rows, cols = transformer.rowcol(*outline.exterior.coords.xy, op=lambda value: value)
    edge = np.minimum(np.abs(cols - np.array([[0], [300]])).min(0), np.abs(rows - np.array([[0], [200]])).min(0))
    assert edge.max() < 1e-6


def test_pixels_lie_where_the_points_say(bent):
    dataset, data = bent
    x, y, res = 11.05, 46.9, 5e-4
    sample = gs.RasterDataset(dataset.paths, resampling="nearest", valid=True)[x : x + 0.1 : res, y - 0.05 : y : res]
    assert sample["image"].shape == (2, 100, 200)
    assert sample["mask_valid"].all()
    xs, ys = np.meshgrid(x + res * (np.arange(200) + 0.5), y - res * (np.arange(100) + 0.5))
    with GCPTransformer(POINTS) as transformer:
        rows, cols = transformer.rowcol(xs.ravel(), ys.ravel(), op=lambda value: value)
    expected = data[:, np.floor(rows).astype(int), np.floor(cols).astype(int)].reshape(2, 100, 200)
    assert (sample["image"].numpy() == expected).mean() > 0.999


def test_it_is_no_hiding_place_and_has_none(bent, tmp_path):
    """Its box has corners where it is not: a query there finds nothing."""
    dataset, _ = bent
    x, y, _ = dataset.bounds
    with pytest.raises(gs.QueryError):
        dataset[x.start : x.start + 3e-3, y.start : y.start + 3e-3]
    whole = dataset[:]
    assert 0.6 < whole["mask_valid"].float().mean() < 0.95
    write(tmp_path / "b_20230101.tif", np.full((2, 200, 300), 9, np.uint8))
    assert len(gs.RasterDataset(tmp_path).requests((slice(11.1, 11.11), slice(46.9, 46.91)))) == 2


def test_beside_scenes_with_a_transform_in_another_crs(bent, tmp_path):
    dataset, _ = bent
    labels = np.arange(40_000, dtype=np.uint16).reshape(1, 200, 200) % 7
    (tmp_path / "labels").mkdir()
    there = Affine(50, 0, 655_000, 0, -50, 5_205_000)
    write_cog(tmp_path / "labels" / "l.tif", labels.astype(np.uint8), transform=there, crs="EPSG:32632")
    classes = type("Labels", (gs.RasterDataset,), {"is_image": False})(tmp_path / "labels")
    for pairs in (dataset & classes, classes & dataset):
        sample = pairs[:]
        assert sample["image"].shape[1:] == sample["mask"].shape
        assert sample["mask_valid"].any()
    mixed = gs.RasterDataset(tmp_path / "a_20230101.tif", crs="EPSG:32632", res=100)
    assert mixed.crs.to_epsg() == 32632
    (one,) = mixed.__getitems__([(slice(660_000, 664_000), slice(5_196_000, 5_200_000))])
    assert one["image"].shape == (2, 40, 40)
    assert one["image"].min() > 0
    dataset.crs = "EPSG:32632"
    assert dataset.res[0] == pytest.approx(90, rel=0.3)
    dataset.crs = "EPSG:4326"
    assert dataset.res == pytest.approx((1e-3, 1e-3), rel=0.05)


def test_a_saved_index_knows_the_place_too(bent, tmp_path):
    dataset, _ = bent
    gs.build_index(tmp_path).save(tmp_path / "index.parquet")
    again = gs.RasterDataset(index=gs.load_index(tmp_path / "index.parquet"), valid=True)
    where = slice(11.05, 11.1), slice(46.9, 46.95)
    assert torch.equal(again[where]["image"], dataset[where]["image"])
    assert torch.equal(again[where]["mask_valid"], dataset[where]["mask_valid"])


def test_three_points_place_nothing(tmp_path):
    """Such a file is read in pixels, as one without any is, and no CRS can be asked for."""
    data = write(tmp_path / "a.tif", gcps=POINTS[:3])
    dataset = gs.RasterDataset(tmp_path)
    assert dataset.crs is None
    assert np.array_equal(dataset[10:30, 20:60]["image"], data[:, 20:60, 10:30])
    with pytest.raises(gs.ConfigError, match="without a CRS"):
        gs.RasterDataset(tmp_path, crs="EPSG:4326")
