"""Warping against exact PROJ coordinates, against formulas in float64, and against GDAL."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rasterio
from affine import Affine
from pyproj import CRS, Transformer
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window as RioWindow

from geostream import coordinates
from geostream.errors import ConfigError
from geostream.grid import Grid, Window
from geostream.warp import RESAMPLINGS, Coordinates, grid_scale, resample, source_coordinates, source_window

SIZE = 500
UTM = Affine(10, 0, 600000, 0, -10, 5800020)
SRC = Grid(SIZE, SIZE, UTM, CRS.from_epsg(32632))
TARGETS = {  # EPSG code: pixel size, no coarser than the source's 10 m
    3857: 12.0,
    4326: 8e-5,
    3035: 9.9,
    32633: 10.0,
}


def target(epsg, res, width=256, height=256, at=(1200, 1300)):
    """A grid whose upper left corner lies ``at`` metres (east, south) of the source's."""
    x, y = Transformer.from_crs(32632, epsg, always_xy=True).transform(UTM.c + at[0], UTM.f - at[1])
    return Grid(width, height, Affine(res, 0, x, 0, -res, y), CRS.from_epsg(epsg))


def exact(src, dst):
    """Source pixel coordinates of every output pixel's centre, each by PROJ."""
    cols, rows = np.meshgrid(np.arange(dst.width) + 0.5, np.arange(dst.height) + 0.5)
    x, y = dst.transform @ (cols, rows)
    x, y = Transformer.from_crs(dst.crs, src.crs, always_xy=True).transform(x, y)
    return ~src.transform @ (x, y)


def warp(data, valid, dst, resampling, src=SRC):
    coords = source_coordinates(src, dst)
    window = source_window(src, coords, resampling)
    part = np.s_[:, window.row_off : window.row_stop, window.col_off : window.col_stop]
    return resample(data[part], valid[part], coords, window, resampling)


def texture(dtype, bands=2, seed=0):
    """Waves and noise."""
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    noise = np.random.default_rng(seed).integers(0, 40, (bands, SIZE, SIZE))
    return (110 + 60 * np.sin(x / 3) + 50 * np.cos(y / 4) + noise - 40).astype(dtype)


ALL = np.ones((1, SIZE, SIZE), bool)


def holes(seed=1):
    valid = np.random.default_rng(seed).random((1, SIZE, SIZE)) > 0.03
    valid[0, 180:200, 180:200] = False
    return valid


# -------------------------------------------------------------------------------------------------------- coordinates


@pytest.mark.parametrize("epsg", TARGETS)
def test_coordinates_are_those_of_proj(epsg):
    dst = target(epsg, TARGETS[epsg])
    coords = source_coordinates(SRC, dst)
    cols, rows = exact(SRC, dst)
    assert coords.cols.shape == coords.rows.shape == (256, 256)
    assert np.abs(coords.cols - cols).max() < 1e-6
    assert np.abs(coords.rows - rows).max() < 1e-6


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2, 3), (7, 600), (1100, 40)])
def test_coordinates_of_any_shape(shape):
    height, width = shape
    dst = target(3035, 10.0, width, height)
    coords = source_coordinates(SRC, dst)
    cols, rows = exact(SRC, dst)
    assert coords.cols.shape == shape
    assert np.abs(coords.cols - cols).max() < 1e-6
    assert np.abs(coords.rows - rows).max() < 1e-6


def test_a_whole_earth_is_refined_where_it_must_be():
    src = Grid(3600, 1800, Affine(0.1, 0, -180, 0, -0.1, 90), CRS.from_epsg(4326))
    dst = Grid(700, 600, Affine(20000, 0, -7e6, 0, -20000, 6e6), CRS.from_epsg(3031))  # the pole and the antimeridian
    coords = source_coordinates(src, dst)
    cols, rows = exact(src, dst)
    apart = np.abs(coords.cols - cols)
    assert np.minimum(apart, 3600 - apart).max() < 1e-4
    assert np.abs(coords.rows - rows).max() < 1e-4


def test_no_proj_where_the_crs_is_the_same(monkeypatch):
    monkeypatch.setattr(coordinates, "Transformer", None)
    dst = Grid(40, 30, Affine(7, 0, 600013, 0, -9, 5799000), CRS.from_wkt(SRC.crs.to_wkt()))
    coords = source_coordinates(SRC, dst)
    assert coords.separable
    assert coords.scale == (0.7, 0.9)
    np.testing.assert_allclose(coords.cols[3], (13 + 7 * (np.arange(40) + 0.5)) / 10, rtol=0, atol=1e-12)
    np.testing.assert_allclose(coords.rows[:, 5], (1020 + 9 * (np.arange(30) + 0.5)) / 10, rtol=0, atol=1e-12)


def test_affine_coordinates_keep_their_digits_far_from_the_origin():
    src = Grid(10**6, 10**6, Affine(0.1, 0, 7e6, 0, -0.1, 9e6), SRC.crs)
    dst = src.part(Window(777777, 888888, 3, 3))
    coords = source_coordinates(src, dst)
    assert np.abs(coords.cols[0] - (777777 + np.arange(3) + 0.5)).max() < 1e-6


def test_rotated_grids_of_one_crs():
    dst = Grid(50, 50, Affine.translation(601000, 5798000) @ Affine.rotation(30) @ Affine.scale(10, -10), SRC.crs)
    coords = source_coordinates(SRC, dst)
    cols, rows = exact(SRC, dst)
    assert not coords.separable
    assert coords.scale == pytest.approx((1, 1))
    np.testing.assert_allclose(coords.cols, cols, rtol=0, atol=1e-8)
    np.testing.assert_allclose(coords.rows, rows, rtol=0, atol=1e-8)


def test_scale_counts_source_pixels_per_output_pixel():
    assert grid_scale(SRC, Grid(10, 10, Affine(25, 0, 600000, 0, -40, 5800020), SRC.crs)) == (2.5, 4.0)
    dst = target(32633, 30.0)
    assert grid_scale(SRC, dst) == pytest.approx((3, 3), rel=0.01)
    assert source_coordinates(SRC, dst).scale == grid_scale(SRC, dst)


def test_no_georeferencing_on_both_sides_is_pixels():
    plain = Grid(10, 10, Affine.identity(), None)
    assert source_coordinates(plain, plain.part(Window(2, 3, 4, 4))).cols[0].tolist() == [2.5, 3.5, 4.5, 5.5]


@pytest.mark.parametrize(("src", "dst"), [(None, 32632), (32632, None)])
def test_one_crs_missing_is_refused(src, dst):
    grids = [Grid(10, 10, UTM, None if code is None else CRS.from_epsg(code)) for code in (src, dst)]
    for function in (source_coordinates, grid_scale):
        with pytest.raises(ConfigError, match="has no CRS"):
            function(*grids)


def test_another_planet_is_refused():
    mars = Grid(10, 10, Affine(0.1, 0, 0, 0, -0.1, 0), CRS.from_user_input("IAU_2015:49900"))
    with pytest.raises(ConfigError, match="PROJ knows no way"):
        source_coordinates(mars, SRC)


@pytest.mark.parametrize("west", [170.0, -190.0])
def test_a_raster_across_the_antimeridian(west):
    """Longitudes beyond 180 are reached, on both sides of the line."""
    src = Grid(200, 100, Affine(0.1, 0, west, 0, -0.1, 5), CRS.from_epsg(4326))
    x, _ = Transformer.from_crs(4326, 3832, always_xy=True).transform(180.0, 0.0)  # a Mercator of the Pacific
    dst = Grid(100, 10, Affine(5000, 0, x - 250000, 0, -5000, 25000), CRS.from_epsg(3832))
    coords = source_coordinates(src, dst)
    assert coords.cols[0, 49:51] == pytest.approx((100, 100), abs=0.5)
    assert (np.diff(coords.cols, axis=1) > 0).all()
    assert source_window(src, coords, "nearest").width == pytest.approx(45, abs=1)


def test_places_that_the_source_crs_lacks_are_outside():
    src = Grid(100, 100, Affine(1e5, 0, -5e6, 0, -1e5, 5e6), CRS.from_user_input("+proj=ortho +lat_0=0 +lon_0=0"))
    dst = Grid(360, 180, Affine(1, 0, -180, 0, -1, 90), CRS.from_epsg(4326))
    coords = source_coordinates(src, dst)
    assert np.isnan(coords.cols[90, [0, 359]]).all()  # the far side of the earth
    assert coords.cols[90, 180] == pytest.approx(50, abs=1)
    window = source_window(src, coords, "bilinear")
    data, valid = resample(np.full((1, 100, 100), 7, "uint8"), np.ones((1, 100, 100), bool), coords, window, "bilinear")
    assert not valid[0, 90, [0, 359]].any()
    assert data[0, 90, 180] == 7
    np.testing.assert_array_equal(data > 0, valid)


# ----------------------------------------------------------------------------------------------------- what must hold


@pytest.mark.parametrize("epsg", TARGETS)
def test_nearest_is_right_on_all_but_one_in_ten_thousand(epsg):
    """Every pixel is its own number, so that a wrong pixel cannot hide."""
    ids = np.arange(SIZE * SIZE, dtype="int32").reshape(1, SIZE, SIZE)
    wrong = total = 0
    for at in ((300, 400), (700, 1900), (1700, 1300), (2100, 600)):
        dst = target(epsg, TARGETS[epsg], at=at)
        data, valid = warp(ids, ALL, dst, "nearest")
        cols, rows = (np.floor(v).astype(int) for v in exact(SRC, dst))
        assert valid.all()
        wrong += int((data[0] != ids[0, rows, cols]).sum())
        total += data.size
    assert wrong < 1e-4 * total


def bilinear(data, cols, rows):
    """The formula, in float64, away from the source's edges."""
    x, y = cols - 0.5, rows - 0.5
    c, r = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = x - c, y - r
    data = data.astype("float64")
    upper = data[:, r, c] * (1 - fx) + data[:, r, c + 1] * fx
    lower = data[:, r + 1, c] * (1 - fx) + data[:, r + 1, c + 1] * fx
    return upper * (1 - fy) + lower * fy


@pytest.mark.parametrize("epsg", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32"])
def test_bilinear_is_exact_but_for_rounding(epsg, dtype):
    info = np.iinfo(dtype)
    noise = np.random.default_rng(2).integers(info.min, info.max, (2, SIZE, SIZE), dtype=dtype, endpoint=True)
    dst = target(epsg, TARGETS[epsg])
    data, valid = warp(noise, ALL, dst, "bilinear")
    truth = bilinear(noise, *exact(SRC, dst))
    # coordinates come within 1e-6 px of PROJ's, and noise changes by the dtype's whole range from pixel to pixel
    assert np.abs(data - truth).max() <= 0.5 + 2e-6 * (float(info.max) - float(info.min)) / 2 + 0.01
    assert valid.all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_bilinear_on_floats(dtype):
    rng = np.random.default_rng(3)
    noise = rng.random((2, SIZE, SIZE))
    noise = (noise + 1j * rng.random((2, SIZE, SIZE))).astype(dtype) if dtype.startswith("c") else noise.astype(dtype)
    dst = target(3857, 12.0)
    data, _ = warp(noise, ALL, dst, "bilinear")
    truth = bilinear(noise.real, *exact(SRC, dst)) + 1j * bilinear(noise.imag, *exact(SRC, dst))
    assert data.dtype == dtype
    assert np.abs(data - truth).max() < {"float16": 1e-3}.get(dtype, 2e-6)


@pytest.mark.parametrize("dtype", ["uint64", "int64", "complex128", "uint32"])
def test_nearest_keeps_every_bit(dtype):
    noise = np.random.default_rng(4).integers(0, 2**62, (1, SIZE, SIZE)).astype(dtype)
    dst = target(3857, 12.0)
    cols, rows = (np.floor(v).astype(int) for v in exact(SRC, dst))
    np.testing.assert_array_equal(warp(noise, ALL, dst, "nearest")[0], noise[:, rows, cols])


@pytest.mark.parametrize("resampling", RESAMPLINGS)
@pytest.mark.parametrize(
    "dst", [target(3857, 12.0), target(3857, 40.0), Grid(90, 80, UTM @ Affine.scale(2.3), SRC.crs)]
)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_nodata_never_bleeds(resampling, dst, poison):
    valid = holes()
    clean = texture("float32")
    expected, expected_valid = warp(np.where(valid, clean, 0), valid, dst, resampling)
    with np.errstate(all="raise"):
        data, data_valid = warp(np.where(valid, clean, np.float32(poison)), valid, dst, resampling)
    np.testing.assert_array_equal(data_valid, expected_valid)
    np.testing.assert_array_equal(data, expected)
    assert not data_valid.all()
    assert np.isfinite(data).all()


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_a_constant_stays_constant_around_holes_and_edges(resampling):
    for dst in (target(3857, 12.0, at=(-500, -500)), target(3035, 33.0, at=(-500, -500)), target(32632, 24.0)):
        data, valid = warp(np.full((1, SIZE, SIZE), 201, "uint8"), holes(), dst, resampling)
        np.testing.assert_array_equal(data, np.where(valid, 201, 0))


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_bands_of_different_validity_are_kept_apart(resampling):
    data, dst = texture("uint16", bands=3), target(3857, 12.0)
    valid = np.concatenate([holes(1), ALL, holes(2)])
    together, together_valid = warp(data, valid, dst, resampling)
    for band in range(3):
        alone, alone_valid = warp(data[band : band + 1], valid[band : band + 1], dst, resampling)
        np.testing.assert_array_equal(together_valid[band], alone_valid[0])
        assert np.abs(together[band].astype(int) - alone[0]).max() <= 1


def test_the_window_is_no_larger_than_it_must_be():
    coords = source_coordinates(SRC, SRC.part(Window(100, 200, 50, 60)))
    assert source_window(SRC, coords, "nearest") == Window(100, 200, 50, 60)
    assert source_window(SRC, coords, "average") == Window(100, 200, 50, 60)
    shifted = Coordinates((coords.cols + 0.25, coords.rows + 0.25), coords.scale)
    assert source_window(SRC, shifted, "nearest") == Window(100, 200, 50, 60)
    assert source_window(SRC, shifted, "bilinear") == Window(100, 200, 51, 61)
    assert source_window(SRC, shifted, "cubic") == Window(99, 199, 53, 63)


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_no_overlap_is_no_window(resampling):
    for at in ((-9000, 0), (6000, 0), (0, -9000), (0, 6000)):
        for epsg, res in ((32632, 10.0), (3857, 12.0)):
            assert source_window(SRC, source_coordinates(SRC, target(epsg, res, at=at)), resampling) is None


def test_unknown_resampling_names_the_known_ones():
    coords = source_coordinates(SRC, SRC)
    with pytest.raises(ConfigError, match="nearest, bilinear, cubic, average"):
        source_window(SRC, coords, "lanczos")
    with pytest.raises(ConfigError, match="lanczos"):
        resample(texture("uint8"), ALL, coords, SRC.window, "lanczos")


# ---------------------------------------------------------------------------------------------------- threads, forks


def _sum_of_a_warp(_=None):
    return int(warp(texture("uint8"), ALL, target(3857, 12.0), "bilinear")[0].sum())


def test_threads_and_forked_children_agree():
    """PROJ's objects belong to a thread and a process; what worked before a fork works after it."""
    expected = _sum_of_a_warp()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(_sum_of_a_warp, range(12))) == {expected}
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert set(workers.map_async(_sum_of_a_warp, range(4)).get(timeout=60)) == {expected}
    assert _sum_of_a_warp() == expected


# --------------------------------------------------------------------------------------------------------------- GDAL


def gdal_warp(data, valid, dst, resampling):
    """WarpedVRT with exact coordinates on a file with a mask; its alpha band is the validity."""
    profile = {"driver": "GTiff", "width": SIZE, "height": SIZE, "count": len(data), "dtype": data.dtype}
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
        with memory.open(**profile, crs="EPSG:32632", transform=UTM) as file:
            file.write(data)
            file.write_mask(valid[0].astype("uint8") * 255)
        grid = {"crs": dst.crs.to_wkt(), "transform": dst.transform, "width": dst.width, "height": dst.height}
        with (
            memory.open() as file,
            WarpedVRT(file, **grid, resampling=Resampling[resampling], tolerance=1e-9, add_alpha=True) as vrt,
        ):
            bands = vrt.read()
    return bands[:-1], np.broadcast_to(bands[-1:] > 0, data.shape[:1] + bands.shape[1:])


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "cubic"])
@pytest.mark.parametrize("at", [(1200, 1300), (-300, -400)], ids=["inside", "across the corner"])
@pytest.mark.parametrize("epsg", TARGETS)
def test_equals_gdal_on_finer_grids(epsg, at, resampling):
    """Finer by a fifth: at equal resolution GDAL takes a turned grid for a coarser one, and blurs."""
    data, valid, dst = texture("uint8"), holes(), target(epsg, 0.8 * TARGETS[epsg], 120, 110, at)
    theirs, theirs_valid = gdal_warp(data, valid, dst, resampling)
    ours, ours_valid = warp(data, valid, dst, resampling)
    np.testing.assert_array_equal(ours_valid, theirs_valid)
    apart = np.abs(ours.astype(int) - theirs)[ours_valid]
    assert apart.max() <= (0 if resampling == "nearest" else 1)  # halves are ties to within a float
    assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "cubic", "average"])
@pytest.mark.parametrize("scale", [1.02, 1.5, 2.0, 2.5, 4.2])
def test_equals_gdals_reads_on_aligned_coarser_grids(scale, resampling):
    """GDAL has different rules for reading and for warping; on aligned grids the former's are followed."""
    data, valid = texture("uint8"), holes()
    dst = Grid(60, 60, SRC.transform @ Affine.translation(51.37, 62.81) @ Affine.scale(scale), SRC.crs)
    window = RioWindow(51.37, 62.81, 60 * scale, 60 * scale)
    profile = {"driver": "GTiff", "width": SIZE, "height": SIZE, "count": len(data), "dtype": data.dtype, "nodata": 0}
    data = np.where(valid, np.maximum(data, 1), 0)
    with MemoryFile() as memory:
        with memory.open(**profile, crs="EPSG:32632", transform=UTM) as file:
            file.write(data)
        with memory.open() as file:
            theirs = file.read(window=window, out_shape=(len(data), 60, 60), resampling=Resampling[resampling])
    ours, ours_valid = warp(data, valid, dst, resampling)
    compared = np.s_[:, 1:-1, 1:-1] if resampling == "average" else np.s_[:]  # GDAL's outermost boxes are too small
    both = (ours_valid & (theirs != 0))[compared]
    assert both.mean() > 0.5
    apart = np.abs(ours.astype(int) - theirs)[compared][both]
    assert apart.max() <= (0 if resampling == "nearest" else 1)


@pytest.mark.parametrize("size", [(40, 40), (33, 27), (10, 80)])
def test_average_equals_rasterios_reduced_read(size):
    data = texture("uint16")
    height, width = size
    window = Window(60, 70, 160, 160)
    with MemoryFile() as memory:
        profile = {"driver": "GTiff", "width": SIZE, "height": SIZE, "count": 2, "dtype": "uint16"}
        with memory.open(**profile, crs="EPSG:32632", transform=UTM) as file:
            file.write(data)
        with memory.open() as file:
            theirs = file.read(window=RioWindow(60, 70, 160, 160), out_shape=(2, *size), resampling=Resampling.average)
    ours, valid = warp(data, ALL, SRC.part(window).scaled(width, height), "average")
    assert valid.all()
    assert np.abs(ours.astype(int) - theirs).max() <= 1
