"""Leaving out what cannot show changes no pixel: wherever scenes lie, whatever their grids, CRSs and holes."""

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
