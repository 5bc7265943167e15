"""Leaving out what cannot show changes no pixel, wherever scenes lie, whatever their grids, CRSs and holes.

And of scenes on one grid, what shows is what plain NumPy says.
"""

import numpy as np
import pytest
import torch
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Transformer

import geostream as gs
from geostream.testing.rasters import write_cog

WEST, NORTH = 600_000.0, 5_300_000.0
GRIDS = (  # CRS, pixel size, offset from the corner in metres, pixels on each side, angle
    ("EPSG:32632", 10.0, (0.0, 0.0), 60, 0.0),
    ("EPSG:32632", 10.0, (200.0, 100.0), 60, 0.0),
    ("EPSG:32632", 10.0, (3.0, -4.0), 64, 0.0),
    ("EPSG:32632", 20.0, (-100.0, -100.0), 50, 0.0),
    ("EPSG:32632", 10.0, (-150.0, -50.0), 90, 30.0),
    ("EPSG:32633", 10.0, (-50.0, -50.0), 80, 0.0),
    ("EPSG:32633", 30.0, (-100.0, -100.0), 20, 0.0),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    rng = np.random.default_rng(0)
    for i, (crs, res, (east, south), side, angle) in enumerate(GRIDS):
        x, y = Transformer.from_crs("EPSG:32632", crs, always_xy=True).transform(WEST + east, NORTH - south)
        place = Affine.translation(x, y) @ Affine.rotation(angle) @ Affine.scale(res, -res)
        for holes in (False, True):
            data = rng.integers(1, 250, (1, side, side), np.uint8)
            data[:, rng.random((side, side)) < 0.2] = 0
            options = {"nodata": 0} if holes else {}
            path = root / f"{'holes' if holes else 'whole'}_{i}.tif"
            write_cog(path, data, crs=crs, transform=place, blocksize=128, overviews=False, **options)
    return sorted(root.iterdir())


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_left_out_would_not_have_shown(files, data):
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=2, max_size=4, unique=True))
    policy = data.draw(st.sampled_from(["first", "last", "newest", "oldest", "min"]))
    kernel = data.draw(st.sampled_from(["nearest", "bilinear", "cubic", "average"]))
    res = data.draw(st.sampled_from([10.0, 10.0, 20.0, 7.0]))
    col, row = (data.draw(st.integers(-20, 60)) + data.draw(st.sampled_from([0.0, 0.0, 0.3])) for _ in "xy")
    width, height = (data.draw(st.integers(1, 30)) for _ in "xy")
    x, y = WEST + 10 * col, NORTH - 10 * row
    query = slice(x, x + width * res, res), slice(y - height * res, y, res)
    options = {"crs": "EPSG:32632", "res": 10.0, "mosaic": policy, "resampling": kernel, "valid": True}
    lean = gs.RasterDataset(chosen, **options)
    full = gs.RasterDataset(chosen, **options, on_error="skip")  # reads all, since the one in front may fail
    try:
        expected = full[query]
    except gs.QueryError:
        with pytest.raises(gs.QueryError):
            lean[query]
        return
    sample = lean[query]
    assert len(lean.requests(query)) <= len(full.requests(query))
    assert torch.equal(sample["image"], expected["image"])
    assert torch.equal(sample["mask_valid"], expected["mask_valid"])


PLACES = ((0, 0, 60, 60), (20, 10, 60, 40), (-15, 30, 50, 50), (40, -20, 30, 70))  # column, row, width, height
ALIGNED = tuple((name, day) for name, day in zip("abcd", (3, 1, 3, 2), strict=True))


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """Scenes of two bands on one grid; of those in `holes`, a quarter of each band's pixels is nodata."""
    root = tmp_path_factory.mktemp("aligned")
    rng = np.random.default_rng(1)
    pixels = {}
    for (name, day), (col, row, width, height) in zip(ALIGNED, PLACES, strict=True):
        place = Affine(10, 0, WEST + 10 * col, 0, -10, NORTH - 10 * row)
        for kind in ("holes", "whole"):
            data = rng.integers(0, 250, (2, height, width), np.uint8)
            data[rng.random(data.shape) < 0.25] = 0
            options = {"nodata": 0} if kind == "holes" else {}
            path = root / f"{name}_2023010{day}_{kind}.tif"
            write_cog(path, data, transform=place, blocksize=128, overviews=False, **options)
            pixels[path] = data
    return pixels


class Dated(gs.RasterDataset):
    filename_glob = "*.tif"
    filename_regex = r"\w_(?P<date>\d{8})"


def canvas(pixels, path, box):
    """(C, h, w) pixels of a scene and which of them are valid, in a box of columns and rows."""
    left, top, width, height = box
    data, valid = np.zeros((2, height, width)), np.zeros((2, height, width), bool)
    col, row, *_ = PLACES["abcd".index(path.name[0])]
    for y in range(max(top, row), min(top + height, row + pixels[path].shape[1])):
        xs = np.arange(max(left, col), min(left + width, col + pixels[path].shape[2]))
        values = pixels[path][:, y - row, xs - col]
        data[:, y - top, xs - left] = values
        valid[:, y - top, xs - left] = values != 0 if "holes" in path.name else True
    return data, valid


def by_numpy(layers, policy, fill):
    data, bands = (np.stack(part) for part in zip(*layers, strict=True))
    pixels = bands.any(axis=1)
    valid = pixels.any(axis=0)
    shown = np.take_along_axis(data, pixels.argmax(axis=0)[None, None], axis=0)[0]
    if policy in ("min", "max", "mean"):
        numbers = np.ma.array(data, mask=~bands)
        reduced = {"min": numbers.min, "max": numbers.max, "mean": numbers.mean}[policy](axis=0)
        shown = np.where(bands.any(axis=0), reduced.filled(0), shown)
    return np.where(valid, shown, fill), valid


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_shows_is_what_numpy_says(aligned, data):
    chosen = sorted(data.draw(st.lists(st.sampled_from(sorted(aligned)), min_size=1, max_size=4, unique=True)))
    policy = data.draw(st.sampled_from(["first", "last", "newest", "oldest", "min", "max", "mean"]))
    series, fill = data.draw(st.booleans()), data.draw(st.sampled_from([-1, 7.5]))
    left, top = (data.draw(st.integers(-20, 60)) for _ in "xy")
    width, height = (data.draw(st.integers(1, 40)) for _ in "xy")
    x, y = WEST + 10 * left, NORTH - 10 * top
    query = slice(x, x + 10 * width), slice(y - 10 * height, y)
    dataset = Dated(chosen, mosaic=policy, fill=fill, valid=True, time_series=series)
    near = [
        path
        for path in chosen
        for col, row, wide, high in [PLACES["abcd".index(path.name[0])]]
        if left < col + wide and col < left + width and top < row + high and row < top + height
    ]
    if not near:
        with pytest.raises(gs.QueryError):
            dataset[query]
        return
    days = {path: path.name.split("_")[1] for path in near}
    order = {
        "last": near[::-1],
        "newest": sorted(near, key=days.get, reverse=True),
        "oldest": sorted(near, key=days.get),
    }
    ordered = order.get(policy, near)
    groups = [[p for p in ordered if days[p] == day] for day in sorted(set(days.values()))] if series else [ordered]
    results = [
        by_numpy([canvas(aligned, p, (left, top, width, height)) for p in group], policy, fill) for group in groups
    ]
    for sample in (dataset[query], dataset.__getitems__([query])[0]):
        image, valid = sample["image"].numpy(), sample["mask_valid"].numpy()
        if not series:
            image, valid = image[None], valid[None]
        np.testing.assert_allclose(image, np.stack([shown for shown, _ in results]), rtol=1e-6)
        assert np.array_equal(valid[:, 0], np.stack([there for _, there in results]))
