"""However a raster is placed on its planet, it warps as GDAL warps it; and what has no place says so."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from pyproj import CRS
from rasterio.control import GroundControlPoint
from rasterio.transform import GCPTransformer
from rasterio.vrt import WarpedVRT
from rasterio.warp import reproject

import geostream as gs
from geostream.control import fit
from geostream.grid import Grid
from geostream.testing.rasters import scene, write_cog

from .conftest import DATA

FOLDER = DATA / "geotiff"
EARTH, POLAR = "EPSG:4326", "EPSG:3031"
MARS = "+proj=longlat +R=3396190 +no_defs"
EUROPA = "+proj=longlat +a=1562600 +b=1559500 +no_defs"

real = pytest.mark.skipif(not FOLDER.exists(), reason=f"no real files at {FOLDER}")


def gdals(path, grid, band=1):
    """Nearest pixels by GDAL with exact coordinates, read of full resolution, and where there are any."""
    where = {"crs": grid.crs.to_wkt(), "transform": grid.transform, "width": grid.width, "height": grid.height}
    with (
        rasterio.open(path, OVERVIEW_LEVEL="NONE") as file,
        WarpedVRT(file, **where, tolerance=1e-9, add_alpha=file.nodata is None) as vrt,
    ):
        return vrt.read(band), vrt.dataset_mask() > 0


@real
@pytest.mark.parametrize(
    ("name", "crs", "bounds"),
    [
        ("rio-tiler/cog_fullearth.tif", "EPSG:3857", None),
        ("rio-tiler/cog_fullearth.tif", POLAR, (-3e6, -3e6, 3e6, 3e6)),
        ("rio-tiler/cog_fullearth.tif", "EPSG:3413", (-2e6, -2e6, 2e6, 2e6)),
        ("geotiff-test-data/bremen_sea_ice_conc_2022_9_9.tif", EARTH, (-60, -80, 60, -60)),
        ("geotiff-test-data/vestfold.tif", EARTH, None),
        ("geotiff-test-data/nt_20201024_f18_nrt_s.tif", EARTH, (-170, -75, 170, -60)),
        ("rio-tiler/cog_dateline.tif", "EPSG:32601", None),
        ("rio-tiler/cog_dateline.tif", "EPSG:3571", None),
        ("rio-tiler/cog_hirise_mars.tif", MARS, None),
        ("rio-tiler/cog_nonearth.tif", EUROPA, None),
        ("geotiff-test-data/umbra_mount_yasur.tiff", EARTH, None),
        ("geotiff-test-data/umbra_mount_yasur.tiff", "EPSG:32759", (337200, 7839300, 338000, 7839900)),
    ],
)
def test_real_rasters_of_every_place_warp_as_gdal_warps_them(name, crs, bounds):
    path = FOLDER / name
    native = gs.info(path)
    scale = {"shape": (211, 223)} if bounds else {}
    patch = gs.read(path, bounds=bounds, crs=crs, **scale)
    grid = Grid(patch.data.shape[2], patch.data.shape[1], patch.transform, patch.crs)
    theirs, mask = gdals(path, grid)
    both = patch.valid & mask
    assert both.sum() > 200
    # pixels whose centre lies at the very edge, or on a seam, may fall to either side
    assert (patch.valid != mask).mean() < 0.01
    if native["overviews"] and bounds:
        return  # read from an overview: its pixels are others
    ours = patch.data[0]
    different = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs)) if ours.dtype.kind == "f" else ours != theirs
    assert different[both].mean() < 1e-3


@real
def test_the_dateline_is_crossed_in_degrees():
    patch = gs.read(
        FOLDER / "rio-tiler/cog_dateline.tif", bounds=(179, 51, 181, 52), bounds_crs=EARTH, crs="EPSG:32660"
    )
    assert patch.valid.any()


@pytest.mark.parametrize("angle", [0, 17, 90, 133, 270])
@pytest.mark.parametrize(("shear", "up"), [(0, -10), (20, -10), (0, 10)], ids=["square", "sheared", "south up"])
def test_turned_and_sheared_rasters(tmp_path, angle, shear, up):
    """GDAL writes their transform as ModelTransformation, without pixel scale and tie point."""
    transform = Affine.translation(600_000, 5_300_000) @ Affine.rotation(angle) @ Affine.shear(shear, 0)
    path = write_cog(
        tmp_path / "a.tif", scene(200, 240, 1), transform=transform @ Affine.scale(10, up), overviews=False
    )
    with rasterio.open(path) as file:
        assert gs.info(path)["transform"].almost_equals(file.transform)
    for crs in ("EPSG:32632", "EPSG:4326"):
        patch = gs.read(path, bounds=gs.info(path)["bounds"], bounds_crs="EPSG:32632", crs=crs, shape=(190, 210))
        theirs, mask = gdals(path, Grid(210, 190, patch.transform, patch.crs))
        assert (patch.valid != mask).mean() < 1e-3
        assert (patch.data[0] != theirs)[patch.valid & mask].mean() < 1e-3


# ---------------------------------------------------------------------------------------------- ground control points


def points(count, seed=0):
    """Control points of a raster of 200 x 300 pixels that is turned and a little curved."""
    rng = np.random.default_rng(seed)
    corners = [(0, 0), (300, 0), (0, 200), (300, 200), (150, 90)]
    places = corners[:count] + [(rng.uniform(0, 300), rng.uniform(0, 200)) for _ in range(count - len(corners))]
    return [
        GroundControlPoint(row=r, col=c, x=11 + 1e-3 * c + 2e-4 * r + 1e-7 * c * r, y=47 - 1e-3 * r + 1e-4 * c)
        for c, r in places
    ]


@pytest.mark.parametrize("count", [4, 5, 6, 12])
def test_control_points_are_fitted_as_gdal_fits_them(count):
    gcps = points(count)
    grid = fit([(p.col, p.row, p.x, p.y) for p in gcps], 300, 200, CRS.from_epsg(4326))
    x, y = np.random.default_rng(1).uniform((11, 46.8), (11.3, 47), (50, 2)).T
    with GCPTransformer(gcps) as transformer:
        rows, cols = transformer.rowcol(x, y, op=lambda value: value)
    ours = grid.pixels_of(x, y)
    np.testing.assert_allclose(ours[0], cols, atol=1e-6)
    np.testing.assert_allclose(ours[1], rows, atol=1e-6)
    half = grid.scaled(150, 100).pixels_of(x, y)
    np.testing.assert_allclose(half[0], ours[0] / 2, atol=1e-9)
    np.testing.assert_allclose(half[1], ours[1] / 2, atol=1e-9)


def test_too_few_points_or_points_on_a_line_place_nothing():
    crs = CRS.from_epsg(4326)
    assert fit([(0, 0, 1, 1), (9, 0, 2, 1), (0, 9, 1, 2)], 10, 10, crs) is None
    assert fit([(i, i, i, i) for i in range(8)], 10, 10, crs) is None
    assert fit([(0, 0, 1, 1), (9, 0, 2, 1), (0, 9, 1, 2), (9, 9, 2, 2)], 10, 10, None) is None


def with_control_points(path, gcps):
    data = scene(200, 300, 2)
    profile = {"driver": "GTiff", "width": 300, "height": 200, "count": 2, "dtype": data.dtype, "tiled": True}
    with rasterio.open(path, "w", **profile, blockxsize=64, blockysize=64) as file:
        file.write(data)
        file.gcps = gcps, "EPSG:4326"
    return path, data


def test_a_raster_with_control_points_only(tmp_path):
    path, data = with_control_points(tmp_path / "a.tif", points(12))
    info = gs.info(path)
    assert (info["crs"], info["transform"], info["gcps"]) == (None, Affine.identity(), 12)
    np.testing.assert_array_equal(gs.read(path, window=(10, 20, 50, 60)).data, data[:, 20:80, 10:60])
    for crs in ("EPSG:4326", "EPSG:32632"):
        patch = gs.read(path, crs=crs)
        theirs = np.full(patch.data.shape[1:], -1, np.int16)
        reproject(data[0].astype(np.int16), theirs, gcps=points(12), src_crs="EPSG:4326", dst_crs=crs,
                  dst_transform=patch.transform, dst_nodata=-1)  # fmt: skip
        assert patch.valid.mean() > 0.5
        assert (patch.valid != (theirs >= 0)).mean() < 0.01
        # GDAL interpolates coordinates, to within an eighth of a pixel
        assert (patch.data[0] != theirs)[patch.valid & (theirs >= 0)].mean() < 0.1
    box = gs.read(path, bounds=(11.1, 46.9, 11.2, 46.95), bounds_crs="EPSG:4326", crs="EPSG:4326", res=0.001)
    assert box.data.shape == (2, 50, 100)
    assert box.valid.all()


def test_three_control_points_are_refused_in_words(tmp_path):
    path, _ = with_control_points(tmp_path / "a.tif", points(3))
    with pytest.raises(gs.ConfigError, match="four ground control points"):
        gs.read(path, crs="EPSG:4326")


def test_no_georeferencing_is_pixels(tmp_path):
    data = scene(100, 120, 1)
    path = write_cog(tmp_path / "a.tif", data, crs=None, transform=None, driver="GTiff", overviews=False)
    np.testing.assert_array_equal(gs.read(path, bounds=(5, 10, 25, 40)).data, data[:, 10:40, 5:25])
    for options in ({"crs": "EPSG:3857"}, {"bounds": (0, 0, 9, 9), "bounds_crs": "EPSG:3857"}):
        with pytest.raises(gs.ConfigError, match="has no CRS"):
            gs.read(path, **options)


@pytest.mark.parametrize("ending", ["tfw", "tifw", "wld", "TFW"])
def test_world_files_place_what_does_not_say_where_it_lies(tmp_path, ending):
    path = tmp_path / "scan.v1.tif"
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(
            path, "w", driver="GTiff", width=40, height=30, count=1, dtype="uint8", crs="EPSG:32632"
        ) as file,  # fmt: skip
    ):
        file.write(np.arange(1200, dtype=np.uint8).reshape(1, 30, 40))
    (tmp_path / f"scan.v1.{ending}").write_text("10\n0\n0\n-10\n500005\n4999995\n")
    with rasterio.open(path) as file:
        expected = file.transform
    assert expected == Affine(10, 0, 500000, 0, -10, 5000000)
    assert gs.read(path).transform == gs.info(path)["transform"] == expected
    assert gs.info(path)["sidecars"] == [str(tmp_path / f"scan.v1.{ending}")]
    part = gs.read(path, bounds=(500100, 4999800, 500200, 4999900))
    with rasterio.open(path) as file:
        assert np.array_equal(part.data, file.read(window=((10, 20), (10, 20))))
    x, y, _ = gs.RasterDataset(tmp_path).bounds
    assert (x.start, x.stop, y.start, y.stop) == (500000, 500400, 4999700, 5000000)


def test_a_world_file_is_not_asked_for_where_the_raster_says_where_it_lies(tmp_path):
    write_cog(tmp_path / "scene.tif", scene(64, 64))
    (tmp_path / "scene.tfw").write_text("1\n0\n0\n-1\n5\n5\n")
    with rasterio.open(tmp_path / "scene.tif") as file:
        assert gs.info(tmp_path / "scene.tif")["transform"] == file.transform
    assert gs.info(tmp_path / "scene.tif")["requests"] == 1
