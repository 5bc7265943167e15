"""Where geostream differs on purpose: the rows of the table in docs/torchgeo.md, with both values."""

import numpy as np
import pandas as pd
import pytest

import geostream as gs
from geostream.testing.rasters import DEFAULT_TRANSFORM, write_cog


def both(theirs, paths, *arguments, **attributes):
    bases = (theirs.RasterDataset, gs.RasterDataset)
    return tuple(type("Both", (base,), {"filename_glob": "*.tif", **attributes})(paths, *arguments) for base in bases)


def flat(path, value, shape=(100, 100), **options):
    write_cog(path, np.full((1, *shape), value, np.uint8), blocksize=128, overviews=False, **options)


def middle(pair, query):
    return [float(dataset[query]["image"].mean()) for dataset in pair]


def test_zeros_are_data(theirs, window, tmp_path):
    flat(tmp_path / "a.tif", 0)
    flat(tmp_path / "b.tif", 8)
    assert middle(both(theirs, tmp_path), window(10, 10, 32, 32)) == [8, 0]


def test_a_pixel_comes_from_one_scene(theirs, window, tmp_path):
    """Of the first scene's pixels (0, 5) only band 2 is no nodata: the pixel is valid, and stays whole."""
    for name, values in (("a", (0, 5)), ("b", (9, 9))):
        data = np.stack([np.full((100, 100), value, np.uint8) for value in values])
        write_cog(tmp_path / f"{name}.tif", data, nodata=0, blocksize=128, overviews=False)
    pair = both(theirs, tmp_path)
    theirs_, ours = (dataset[window(10, 10, 32, 32)]["image"][:, 0, 0].tolist() for dataset in pair)
    assert theirs_ == [9, 5]
    assert ours == [0, 5]


@pytest.mark.parametrize(("size", "expected"), [(32.5, (32, 33)), (33.5, (34, 34)), (32.4, (32, 32))])
def test_half_a_pixel_more_is_rounded_up(theirs, window, tmp_path, size, expected):
    flat(tmp_path / "a.tif", 1)
    pair = both(theirs, tmp_path)
    assert tuple(dataset[window(10, 10, size, 32)]["image"].shape[-1] for dataset in pair) == expected


def test_one_resampling_step_to_another_crs(theirs, tmp_path):
    """A ramp of 10 a pixel in UTM 32, read in UTM 33: the error against the ramp itself at each pixel's place."""
    from pyproj import Transformer

    ramp = np.add.outer(np.zeros(200), 10 * np.arange(200.0))[None].astype(np.float32)
    write_cog(tmp_path / "a.tif", ramp, blocksize=128, overviews=False)
    pair = both(theirs, tmp_path, "EPSG:32633")
    bounds = pair[1].bounds
    res = bounds[0].step
    x0, y0 = ((part.start + part.stop) / 2 for part in bounds[:2])
    query = slice(x0, x0 + 50 * res, res), slice(y0 - 50 * res, y0, res)
    xs, ys = np.meshgrid(x0 + res * (np.arange(50) + 0.5), y0 - res * (np.arange(50) + 0.5))
    back = Transformer.from_crs(32633, 32632, always_xy=True).transform(xs, ys)[0]
    truth = 10 * ((back - DEFAULT_TRANSFORM.c) / 10 - 0.5)
    theirs_, ours = (np.abs(dataset[query]["image"][0].numpy() - truth).max() for dataset in pair)
    print(f"largest error: {theirs_:.3f} and {ours:.4f}")  # noqa: T201 - for the table
    assert theirs_ > 3
    assert ours < 0.01


def test_the_crs_setter_converts_the_resolution(theirs, tmp_path):
    flat(tmp_path / "a.tif", 1)
    for dataset, expected in zip(both(theirs, tmp_path), (10.0, 1.1e-4), strict=True):
        dataset.crs = "EPSG:4326"
        assert dataset.res[0] == pytest.approx(expected, rel=0.1)


def test_combining_leaves_the_operands_alone(theirs, tmp_path):
    flat(tmp_path / "a.tif", 1)
    for base, changed in ((theirs.RasterDataset, True), (gs.RasterDataset, False)):
        first, second = (type("D", (base,), {"filename_glob": "*.tif"})(tmp_path, res=res) for res in (10, 20))
        first & second
        assert (second.res == (10.0, 10.0)) is changed


def test_a_union_merges_by_validity(theirs, window, tmp_path):
    for name, value in (("a", 3), ("b", 8)):
        (tmp_path / name).mkdir()
        flat(tmp_path / name / "s.tif", value, nodata=255)
    values = []
    for base in (theirs.RasterDataset, gs.RasterDataset):
        first, second = (type("D", (base,), {"filename_glob": "*.tif"})(tmp_path / name) for name in "ab")
        values.append(float((first | second)[window(10, 10, 32, 32)]["image"].mean()))
    assert values == [8, 3]


def test_time_zones(theirs, window, tmp_path):
    flat(tmp_path / "a_20230101.tif", 1)
    there = window(10, 10, 32, 32)
    noon = pd.Timestamp("2023-01-01T12:00", tz="UTC")
    old, new = both(theirs, tmp_path, filename_regex=r"a_(?P<date>\d{8})")
    assert new[*there, noon : noon + pd.Timedelta(hours=1)]["image"].shape == (1, 32, 32)
    with pytest.raises(TypeError):
        old[*there, noon : noon + pd.Timedelta(hours=1)]


def test_instants(theirs, window, tmp_path):
    flat(tmp_path / "a_20230101.tif", 1)
    there, moment = window(10, 10, 32, 32), pd.Timestamp("2023-01-01T12:00")
    for attributes, query in (
        ({"filename_regex": r"a_(?P<date>\d{8})"}, (*there, slice(moment, moment))),
        ({"mint": moment, "maxt": moment}, there),
    ):
        old, new = both(theirs, tmp_path, **attributes)
        assert new[query]["image"].shape == (1, 32, 32)
        with pytest.raises(IndexError):
            old[query]


def test_files_that_cannot_be_read(theirs, tmp_path):
    flat(tmp_path / "a.tif", 1)
    (tmp_path / "b.tif").write_text("no raster")
    assert len(type("D", (theirs.RasterDataset,), {"filename_glob": "*.tif"})(tmp_path)) == 1
    with pytest.raises(gs.HeaderError, match=r"b\.tif"):
        gs.RasterDataset(tmp_path)
