"""`gs.read` and `gs.info`: which grid the arguments mean, and how pixels get onto it."""

import math

import numpy as np
import pyproj
import pytest
import rasterio.enums
import rasterio.windows
from affine import Affine

import geostream as gs
from geostream.grid import Grid, Window, parse_crs
from geostream.testing import RangeServer
from geostream.testing.rasters import DEFAULT_TRANSFORM, reference_read, scene, write_cog

LEFT, TOP = 600_000.0, 5_300_000.0
SHAPE = (400, 500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    write_cog(folder / "scene.tif", shape=SHAPE, blocksize=128, seed=4, dtype="uint16", predictor=2)
    write_cog(folder / "pixels.tif", shape=SHAPE, blocksize=128, crs=None, transform=None, driver="GTiff")
    south_up = Affine(10.0, 0.0, LEFT, 0.0, 10.0, TOP)
    write_cog(folder / "south-up.tif", shape=SHAPE, blocksize=128, transform=south_up)
    write_cog(folder / "rotated.tif", shape=SHAPE, blocksize=128, transform=DEFAULT_TRANSFORM @ Affine.rotation(30))
    holes = np.random.default_rng(2).random(SHAPE) < 0.2
    data = scene(*SHAPE, 3, seed=4, dtype="float32") * 100 + 1000
    data[:, holes] = -9999
    write_cog(folder / "holes.tif", data, blocksize=128, nodata=-9999, overviews=False)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with RangeServer(folder) as server:
        yield server


def test_everything_is_read_where_nothing_is_said(folder):
    patch = gs.read(folder / "scene.tif")
    data, valid = reference_read(folder / "scene.tif")
    np.testing.assert_array_equal(patch.data, data)
    np.testing.assert_array_equal(patch.valid, valid)
    assert patch.transform == DEFAULT_TRANSFORM
    assert patch.crs == pyproj.CRS("EPSG:32632")


@pytest.mark.parametrize("name", ["scene.tif", "pixels.tif", "south-up.tif", "rotated.tif"])
def test_a_window_is_a_window_of_the_file_whatever_its_transform(folder, name):
    window = Window(-10, 350, 100, 90)
    patch = gs.read(folder / name, window=(-10, 350, 100, 90))
    data, valid = reference_read(folder / name, window)
    np.testing.assert_array_equal(patch.data, data)
    np.testing.assert_array_equal(patch.valid, valid)
    whole = gs.read(folder / name)
    np.testing.assert_allclose(patch.transform @ (30, 20), whole.transform @ (20, 370), rtol=1e-14)


def test_bounds_on_the_pixel_grid_are_pasted(folder):
    bounds = (LEFT + 200, TOP - 1500, LEFT + 700, TOP - 300)
    patch = gs.read(folder / "scene.tif", bounds=bounds)
    np.testing.assert_array_equal(patch.data, reference_read(folder / "scene.tif", Window(20, 30, 50, 120))[0])
    assert patch.transform == Affine(10, 0, LEFT + 200, 0, -10, TOP - 300)


def test_bounds_outside_the_raster_are_refused(folder):
    for bounds in ((0, 0, 1000, 2000), (LEFT - 5000, TOP - 100, LEFT - 4000, TOP + 1900)):
        with pytest.raises(gs.QueryError, match=r"scene\.tif: nothing lies in the bounds .* spans"):
            gs.read(folder / "scene.tif", bounds=bounds)


def test_a_window_outside_the_raster_is_all_invalid(folder):
    patch = gs.read(folder / "holes.tif", window=(-100, -100, 20, 30), bands=[1, 2])
    assert patch.data.shape == (2, 30, 20)
    assert (patch.data == -9999).all()  # what stands for nothing in this file
    assert not patch.valid.any()


def test_bounds_in_another_crs_cover_the_box(folder):
    to_utm = pyproj.Transformer.from_crs(4326, 32632, always_xy=True)
    west, south, east, north = 10.35, 47.83, 10.37, 47.84
    patch = gs.read(folder / "scene.tif", bounds=(west, south, east, north), bounds_crs="EPSG:4326")
    assert patch.crs == pyproj.CRS(32632)
    assert (patch.transform.a, patch.transform.e) == (10.0, -10.0)
    height, width = patch.valid.shape
    left, bottom = patch.transform @ (0, height)
    right, top = patch.transform @ (width, 0)
    for x, y in ((west, south), (west, north), (east, south), (east, north)):
        px, py = to_utm.transform(x, y)
        assert left - 5 <= px <= right + 5
        assert bottom - 5 <= py <= top + 5


def test_shape_and_res_set_the_grid(folder):
    bounds = (LEFT, TOP - 2000, LEFT + 1000, TOP)
    by_res = gs.read(folder / "scene.tif", bounds=bounds, res=(20, 40))
    assert by_res.data.shape == (3, 50, 50)
    assert by_res.transform == Affine(20, 0, LEFT, 0, -40, TOP)
    by_shape = gs.read(folder / "scene.tif", bounds=bounds, shape=(50, 50))
    assert by_shape.transform == by_res.transform
    np.testing.assert_array_equal(by_shape.data, by_res.data)
    window = gs.read(folder / "rotated.tif", window=(0, 0, 100, 60), shape=(30, 50))
    assert window.data.shape == (3, 30, 50)
    np.testing.assert_allclose(window.transform @ (50, 30), gs.read(folder / "rotated.tif").transform @ (100, 60))


def test_the_grid_of_an_overview_gives_its_very_pixels(folder, server):
    import rasterio

    for level, factor in enumerate((2, 4)):
        with rasterio.open(folder / "scene.tif", overview_level=level) as overview:
            expected = overview.read()
        for url in (folder / "scene.tif", server.url_for("scene.tif")):
            with gs.stats.measure() as measured:
                patch = gs.read(url, res=10.0 * factor)
            np.testing.assert_array_equal(patch.data, expected)
            assert measured.warp_seconds == 0


def test_bands_in_any_order_and_number(folder):
    whole = gs.read(folder / "scene.tif").data
    for bands in ([1], [3, 1], [2, 2, 2, 1], (3, 2, 1)):
        np.testing.assert_array_equal(gs.read(folder / "scene.tif", bands=bands).data, whole[[b - 1 for b in bands]])
    np.testing.assert_array_equal(gs.read(folder / "scene.tif", bands=2).data, whole[1:2])


CRSS = ["EPSG:3857", "EPSG:4326", "EPSG:3035", "EPSG:32633"]


def exact_coordinates(patch, source):
    """Source pixel coordinates of each output pixel's centre, each through PROJ by itself."""
    height, width = patch.valid.shape
    cols, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y = patch.transform @ (cols, rows)
    back = pyproj.Transformer.from_crs(patch.crs, source.crs, always_xy=True)
    x, y = back.transform(x, y)
    return ~source.transform @ (x, y)


@pytest.mark.parametrize("crs", CRSS)
def test_a_warped_window_is_nearest_to_exact_coordinates(folder, server, crs):
    whole, valid = reference_read(folder / "holes.tif")
    source = Grid(SHAPE[1], SHAPE[0], DEFAULT_TRANSFORM, parse_crs("EPSG:32632"))
    patch = gs.read(server.url_for("holes.tif"), window=(50, 60, 300, 250), crs=crs)
    assert patch.crs == pyproj.CRS(crs)
    cols, rows = exact_coordinates(patch, source)
    inside = (cols >= 0) & (cols < SHAPE[1]) & (rows >= 0) & (rows < SHAPE[0])
    i, j = (np.clip(np.floor(rows), 0, SHAPE[0] - 1).astype(int), np.clip(np.floor(cols), 0, SHAPE[1] - 1).astype(int))
    expected = np.where(inside, whole[:, i, j], -9999)
    wrong = (patch.data != expected).any(axis=0) | (patch.valid != (inside & valid[i, j]))
    assert inside.mean() > 0.9
    assert wrong.mean() < 1e-4


@pytest.mark.parametrize("crs", CRSS)
def test_a_warped_window_is_bilinear_between_exact_coordinates(folder, server, crs):
    whole, valid = reference_read(folder / "holes.tif")
    source = Grid(SHAPE[1], SHAPE[0], DEFAULT_TRANSFORM, parse_crs("EPSG:32632"))
    res = 8.9e-5 if crs == "EPSG:4326" else 10.0  # no coarser than the source, which would widen the kernel
    patch = gs.read(server.url_for("holes.tif"), window=(50, 60, 300, 250), crs=crs, res=res, resampling="bilinear")
    cols, rows = exact_coordinates(patch, source)
    i, j = np.floor(rows - 0.5).astype(int), np.floor(cols - 0.5).astype(int)
    safe = (i >= 0) & (j >= 0) & (i < SHAPE[0] - 1) & (j < SHAPE[1] - 1) & patch.valid
    i, j, v, u = i[safe], j[safe], (rows - 0.5)[safe] % 1, (cols - 0.5)[safe] % 1
    total = weight = 0.0
    for di, dj, share in ((0, 0, (1 - v) * (1 - u)), (0, 1, (1 - v) * u), (1, 0, v * (1 - u)), (1, 1, v * u)):
        share = share * valid[i + di, j + dj]  # noqa: PLW2901 - an invalid pixel has no weight
        total = total + whole[:, i + di, j + dj].astype(float) * share
        weight = weight + share
    got = patch.data[:, safe]
    assert got.min() > 900  # -9999 has bled into nothing
    assert np.abs(got - total / weight).max() < 0.05  # of values that differ by some ten from pixel to pixel
    assert safe.mean() > 0.6


def test_a_fractional_offset_is_one_resampling_step(folder):
    whole = reference_read(folder / "scene.tif")[0].astype(float)
    bounds = (LEFT + 1003, TOP - 2006, LEFT + 2003, TOP - 1006)  # 0.3 and 0.6 pixels off
    patch = gs.read(folder / "scene.tif", bounds=bounds, resampling="bilinear")
    block = whole[:, 100:202, 100:202]
    rows = block[:, :-1] * 0.4 + block[:, 1:] * 0.6
    exact = (rows[:, :, :-1] * 0.7 + rows[:, :, 1:] * 0.3)[:, :100, :100]
    assert np.abs(patch.data - exact).max() <= 0.5 + 1e-2  # rounded once
    nearest = gs.read(folder / "scene.tif", bounds=bounds)
    np.testing.assert_array_equal(nearest.data, whole[:, 101:201, 100:200])


def test_georeferencing_keeps_float64(folder):
    bounds = (LEFT + 0.1, TOP - 100.123456789, LEFT + 100.1, TOP - 0.123456789)
    patch = gs.read(folder / "scene.tif", bounds=bounds, res=1 / 3)
    assert (patch.transform.c, patch.transform.f) == (bounds[0], bounds[3])
    assert patch.transform.a == 1 / 3


def test_a_file_south_up_is_read_as_it_lies(folder):
    patch = gs.read(folder / "south-up.tif", bounds=(LEFT + 100, TOP + 200, LEFT + 600, TOP + 900))
    assert patch.transform.e > 0
    np.testing.assert_array_equal(patch.data, reference_read(folder / "south-up.tif", Window(10, 20, 50, 70))[0])


def test_info_of_a_file(folder, server):
    local, remote = gs.info(folder / "scene.tif"), gs.info(server.url_for("scene.tif"))
    changes = {"url", "etag", "requests", "bytes"}
    assert {k: v for k, v in local.items() if k not in changes} == {k: v for k, v in remote.items() if k not in changes}
    assert remote["reader"] == "geostream"
    assert remote["size"] == (500, 400)
    assert remote["bands"] == 3
    assert remote["dtype"] == "uint16"
    assert remote["bounds"] == (LEFT, TOP - 4000, LEFT + 5000, TOP)
    assert remote["res"] == (10.0, 10.0)
    assert remote["block_size"] == (128, 128)
    assert (remote["compression"], remote["predictor"], remote["interleave"]) == ("DEFLATE", 2, "pixel")
    assert remote["overviews"] == [2, 4]
    assert remote["masks"] == "all valid"
    assert remote["sidecars"] == []
    assert remote["file_bytes"] == (folder / "scene.tif").stat().st_size


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"window": (0, 0, 1, 1), "bounds": (0, 0, 1, 1)}, "contradict"),
        ({"res": 1, "shape": (1, 1)}, "contradict"),
        ({"window": (0, 0, 0, 5)}, "window"),
        ({"window": (0, 0, 5, -5)}, "window"),
        ({"window": (0, 0, 5)}, "window"),
        ({"window": (0.5, 0, 5, 5)}, "window"),
        ({"window": "abcd"}, "window"),
        ({"window": (0, 0, math.nan, 5)}, "window"),
        ({"bounds": (5, 0, 5, 10)}, "bounds"),
        ({"bounds": (0, 10, 5, 0)}, "bounds"),
        ({"bounds": (0, 0, math.inf, 10)}, "bounds"),
        ({"bounds": (0, 0, math.nan, 10)}, "bounds"),
        ({"bounds": (0, 0, 10)}, "bounds"),
        ({"res": 0}, "res"),
        ({"res": -10}, "res"),
        ({"res": (10, math.nan)}, "res"),
        ({"res": (10, 10, 10)}, "res"),
        ({"res": "fine"}, "res"),
        ({"shape": (0, 10)}, "shape"),
        ({"shape": (10,)}, "shape"),
        ({"shape": (10.5, 10)}, "shape"),
        ({"shape": 10}, "shape"),
        ({"crs": "EPSG:0"}, "CRS"),
        ({"crs": "nonsense"}, "CRS"),
        ({"bounds": (0, 0, 1, 1), "bounds_crs": "nonsense"}, "CRS"),
        ({"resampling": "lanczos"}, "lanczos"),
        ({"bands": [4]}, r"bands \[4\]"),
        ({"bands": [0]}, r"bands \[0\]"),
        ({"bands": [-1]}, r"bands \[-1\]"),
        ({"bands": []}, "bands"),
        ({"bands": 7}, r"bands \[7\]"),
        ({"bands": "B02"}, "bands"),
        ({"bands": [1.5]}, "bands"),
        ({"bounds_crs": "EPSG:4326"}, "bounds_crs"),
        ({"bounds": (0, 95, 10, 99), "bounds_crs": "EPSG:4326"}, "bounds"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_words(folder, server, arguments, words):
    for url in (folder / "scene.tif", server.url_for("scene.tif")):
        with pytest.raises(gs.ConfigError, match=words):
            gs.read(url, **arguments)


def test_arguments_are_judged_before_anything_is_asked_for(server):
    server.reset()
    for arguments in ({"window": (0, 0, 0, 0)}, {"bounds": (1, 1, 0, 0)}, {"res": -1}, {"shape": 3}, {"crs": "x"}):
        with pytest.raises(gs.ConfigError):
            gs.read(server.url_for("scene.tif"), **arguments)
    assert server.log == []


@pytest.mark.parametrize(
    "arguments", [{"crs": "EPSG:4326"}, {"bounds": (0, 0, 1, 1), "bounds_crs": "EPSG:4326"}], ids=["crs", "bounds_crs"]
)
def test_a_file_without_a_crs_is_not_read_in_one(folder, server, arguments):
    for url in (folder / "pixels.tif", server.url_for("pixels.tif")):
        with pytest.raises(gs.ConfigError, match=r"pixels.tif has no CRS"):
            gs.read(url, **arguments)


def test_access_is_given_by_options_or_a_filesystem(folder):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/reading/a.tif", (folder / "scene.tif").read_bytes())
    expected = gs.read(folder / "scene.tif", window=(3, 4, 50, 60)).data
    for url, options in (
        ("memory://reading/a.tif", {}),
        ("/reading/a.tif", {"fs": memory}),
        (str(folder / "scene.tif"), {"fs": fsspec.filesystem("file")}),
        (f"file://{folder}/scene.tif", {}),
    ):
        np.testing.assert_array_equal(gs.read(url, window=(3, 4, 50, 60), **options).data, expected)
    with pytest.raises(gs.ConfigError, match="contradict"):
        gs.read("memory://reading/a.tif", fs=memory, storage_options={"a": 1})


def test_rasterio_s_own_words_are_understood(folder):
    window = rasterio.windows.Window(20, 30, 50, 120)
    expected = reference_read(folder / "scene.tif", Window(20, 30, 50, 120))[0]
    np.testing.assert_array_equal(gs.read(folder / "scene.tif", window=window).data, expected)
    half = {"shape": (60, 25), "window": window}
    np.testing.assert_array_equal(
        gs.read(folder / "scene.tif", resampling=rasterio.enums.Resampling.average, **half).data,
        gs.read(folder / "scene.tif", resampling="average", **half).data,
    )


def test_outputs_beyond_all_memory_are_refused_before_anything_is_fetched(folder):
    for words in ({"res": 0.001}, {"shape": (10**6, 10**6)}, {"window": (0, 0, 10**7, 10**7)}):
        with gs.stats.measure() as used, pytest.raises(gs.ConfigError, match=r"GiB\. Pass a coarser res="):
            gs.read(folder / "scene.tif", **words)
        assert used.tiles == 0


@pytest.mark.parametrize("shape", [(200, 1), (1, 200), (200, 3), (3, 200), (101, 99), (99, 49)])
def test_the_factors_of_overviews_are_those_gdal_states(tmp_path, shape):
    path = write_cog(tmp_path / "a.tif", shape=shape, count=1, driver="GTiff", overviews=[2, 4])
    with rasterio.open(path) as dataset:
        assert gs.info(path)["overviews"] == dataset.overviews(1)


def test_a_scene_across_the_antimeridian_reads_in_degrees(tmp_path):
    across = Affine(100, 0, 725000, 0, -100, 5000000)  # 180 degrees lie at 735 km there
    path = write_cog(tmp_path / "a.tif", shape=(200, 300), count=1, crs="EPSG:32660", transform=across)
    patch = gs.read(path, crs="EPSG:4326")
    assert patch.transform.c < 180 < patch.transform.c + patch.transform.a * patch.data.shape[2]
    assert patch.valid.mean() > 0.8


def test_arguments_that_make_no_sense_are_named(tmp_path):
    path = write_cog(tmp_path / "a.tif", scene(64, 64))
    inside = {"bounds": gs.info(path)["bounds"]}
    for options, words in [
        ({"window": (float("inf"), 0, 1, 1)}, "whole pixels"),
        ({**inside, "res": 1e12}, "larger than the bounds"),
        ({"sidecars": "no"}, "neither True nor False"),
        ({"storage_options": {"anon": True}}, "takes no storage_options"),
    ]:
        with pytest.raises(gs.ConfigError, match=words):
            gs.read(path, **options)
    with pytest.raises(gs.ConfigError, match="null character"):
        gs.read("/a\0b.tif")
    with pytest.raises(gs.QueryError, match=r"of EPSG:3857; the raster spans .* of EPSG:32632"):
        gs.read(path, bounds=(0, 0, 10, 10), bounds_crs="EPSG:3857")


def test_a_crs_of_no_known_place_is_named_with_the_file(tmp_path):
    local = 'LOCAL_CS["Arbitrary",UNIT["metre",1],AXIS["Easting",EAST],AXIS["Northing",NORTH]]'
    path = write_cog(tmp_path / "a.tif", scene(64, 64), crs=local)
    with pytest.raises(gs.ConfigError, match=r"a\.tif: PROJ knows no way from 'Arbitrary' to 'WGS 84"):
        gs.read(path, crs="EPSG:3857")


def test_an_output_that_no_memory_holds_is_refused_by_datasets_too(tmp_path):
    dataset = gs.RasterDataset(write_cog(tmp_path / "a.tif", scene(64, 64)))
    x = dataset.bounds[0]
    with pytest.raises(gs.ConfigError, match="GiB"):
        dataset[x.start : x.stop : 1e-9, :]
