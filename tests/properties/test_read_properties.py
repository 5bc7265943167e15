"""What holds of reading whatever the raster and the window: rasterio's pixels, exact shapes, errors of our classes."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import geostream as gs
from geostream import transport
from geostream.grid import Grid, Window, pixel_count
from geostream.plan import Request, Source
from geostream.reader import read_headers, read_many
from geostream.testing import RangeServer
from geostream.testing.rasters import DEFAULT_TRANSFORM, reference_read, scene, write_cog
from geostream.testing.strategies import bounds, profiles, windows
from geostream.transport import Access

SHAPE = (200, 230)
LAYOUTS = {
    "cog with mask": {"mask": np.random.default_rng(0).random(SHAPE) < 0.5},
    "bigtiff zstd": {"bigtiff": True, "dtype": "uint16", "predictor": 2, "compress": "ZSTD"},
    "ifds at the end": {"ifds_at_end": True, "compress": "LZW"},
    "big endian planes": {"big_endian": True, "dtype": "float32", "interleave": "band", "predictor": 3},
    "jpeg": {"compress": "JPEG"},
    "lerc": {"compress": "LERC", "dtype": "float32"},
    "webp": {"compress": "WEBP"},
    "uncompressed": {"compress": "NONE"},
    "strips": {"blocksize": None, "driver": "GTiff"},
}
WINDOW = (10, 20, 100, 90)


def many(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


def pixels(window):
    return window.col_off, window.row_off, window.width, window.height


@many(80)
@given(st.data())
def test_any_window_of_any_raster_is_rasterios(data):
    profile = data.draw(profiles())
    with tempfile.TemporaryDirectory() as folder:
        path = profile.write(Path(folder) / "raster.tif")
        assert gs.info(path)["reader"] == "geostream"
        for _ in range(2):
            window = data.draw(windows((profile.height, profile.width)))
            some = st.lists(st.integers(1, profile.count), min_size=1, max_size=6)
            bands = data.draw(st.none() | some)
            expected, valid = reference_read(path, window, bands)
            patch = gs.read(path, window=pixels(window), bands=bands)
            assert patch.data.dtype == expected.dtype
            assert patch.data.tobytes() == expected.tobytes()
            np.testing.assert_array_equal(patch.valid, valid)
            assert patch.transform.almost_equals(
                DEFAULT_TRANSFORM @ type(patch.transform).translation(window.col_off, window.row_off)
            )


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Layout -> (bytes of the file, its pixels and validity in `WINDOW`)."""
    folder = tmp_path_factory.mktemp("originals")
    found = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        path = write_cog(folder / f"{number}.tif", **{"shape": SHAPE, "blocksize": 64} | layout)
        found[name] = path.read_bytes(), reference_read(path, Window(*WINDOW))
    return found


@pytest.fixture(scope="module")
def served():
    """A mapping that a server serves, and the server."""
    store = {}
    with RangeServer(store) as server:
        yield store, server


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@many(60)
@given(name=st.sampled_from(list(LAYOUTS)), part=st.floats(0, 1, exclude_max=True), data=st.data())
def test_a_file_cut_short_gives_right_pixels_or_an_error(originals, served, tmp_path, remote, name, part, data):
    whole, (expected, valid) = originals[name]
    size = data.draw(st.just(int(part * len(whole))) | st.integers(0, min(len(whole) - 1, 3000)))
    url = publish(whole[:size], served, tmp_path, remote=remote)
    try:
        patch = gs.read(url, window=WINDOW)
    except (gs.HeaderError, gs.ReadError, gs.DecodeError) as error:
        assert str(url) in str(error)  # noqa: PT017 - either is right
    else:
        np.testing.assert_array_equal(patch.data, expected)
        np.testing.assert_array_equal(patch.valid, valid)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # rasterio's log of odd file names
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@many(120)
@given(name=st.sampled_from(list(LAYOUTS)), data=st.data())
def test_a_damaged_header_gives_pixels_or_an_error_of_ours(originals, served, tmp_path, remote, name, data):
    damaged = bytearray(originals[name][0])
    low, high = (0, 2500) if name != "ifds at the end" else (len(damaged) - 2500, len(damaged))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(low, min(high, len(damaged)) - 1))
        value = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
        damaged[at : at + data.draw(st.sampled_from([1, 1, 4]))] = bytes([value])
    try:
        patch = gs.read(publish(bytes(damaged), served, tmp_path, remote=remote), window=WINDOW)
    except gs.GeostreamError as error:
        assert not isinstance(error, gs.ConfigError)  # noqa: PT017 - either is right
    else:
        assert patch.data.shape[1:] == patch.valid.shape == (90, 100)


def publish(content, served, folder, *, remote):
    """Put a file where gs.read finds it, under a name never used before."""
    store, server = served
    name = f"{len(store)}-{'remote' if remote else 'local'}.tif"
    store[name] = content if remote else b""
    if remote:
        return server.url_for(name)
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Paths of two rasters that overlap by half."""
    folder = tmp_path_factory.mktemp("scenes")
    east = type(DEFAULT_TRANSFORM)(10.0, 0.0, 601_000.0, 0.0, -10.0, 5_300_000.0)
    write_cog(folder / "west.tif", shape=SHAPE, blocksize=64, seed=1)
    write_cog(
        folder / "east.tif", shape=SHAPE, blocksize=64, seed=2, transform=east, mask=LAYOUTS["cog with mask"]["mask"]
    )
    return folder


@many(60)
@given(
    box=bounds((600_000.0, 5_298_000.0, 602_300.0, 5_300_000.0), leave=0.5),
    res=st.tuples(st.floats(7.0, 60.0), st.floats(7.0, 60.0)) | st.sampled_from([(10.0, 10.0), (20.0, 20.0)]),
    resampling=st.sampled_from(["nearest", "bilinear", "cubic", "average"]),
)
def test_the_output_has_the_shape_asked_for_to_the_pixel(scenes, box, res, resampling):
    patch = gs.read(scenes / "west.tif", bounds=box, res=res, resampling=resampling)
    height, width = pixel_count(box[3] - box[1], res[1]), pixel_count(box[2] - box[0], res[0])
    assert patch.data.shape == (3, height, width)
    assert patch.valid.shape == (height, width)
    assert tuple(patch.transform[:6]) == (res[0], 0.0, box[0], 0.0, -res[1], box[3])  # float64, to the last bit


@many(40)
@given(
    shape=st.tuples(st.integers(1, 120), st.integers(1, 120)),
    box=bounds((600_000.0, 5_298_000.0, 602_300.0, 5_300_000.0), leave=0.5),
    crs=st.sampled_from([None, "EPSG:4326", "EPSG:3035", "EPSG:32633"]),
)
def test_a_shape_asked_for_is_the_shape_given(scenes, shape, box, crs):
    patch = gs.read(scenes / "west.tif", bounds=box, bounds_crs="EPSG:32632", crs=crs, shape=shape)
    assert patch.data.shape == (3, *shape)
    if crs is None:
        corner = patch.transform @ shape[::-1]
        assert math.isclose(corner[0], box[2], rel_tol=1e-14)
        assert math.isclose(corner[1], box[1], rel_tol=1e-14)


@many(30)
@given(st.data())
def test_a_batch_gives_what_its_requests_give_alone(scenes, data):
    sources = [Source(str(scenes / name), Access()) for name in ("west.tif", "east.tif")]
    headers = transport.run(read_headers(sources))
    requests = []
    for _ in range(data.draw(st.integers(1, 8))):
        number = data.draw(st.integers(0, 1))
        grid = headers[number].grid.part(data.draw(windows(SHAPE, max_size=120)))
        kind = data.draw(st.sampled_from(["paste", "shift", "coarse"]))
        if kind != "paste":
            step = 1.0 if kind == "shift" else 2.3
            transform = grid.transform @ type(grid.transform).translation(0.3, 0.6) @ type(grid.transform).scale(step)
            grid = Grid(grid.width, grid.height, transform, grid.crs)
        bands = data.draw(st.sampled_from([None, (2,), (3, 1), (1, 1)]))
        requests.append(Request(sources[number], grid, bands, data.draw(st.sampled_from(["nearest", "bilinear"]))))
    requests += data.draw(st.lists(st.sampled_from(requests), max_size=3))
    together = read_many(requests)
    for request, patch in zip(requests, together, strict=True):
        (alone,) = read_many([request])
        np.testing.assert_array_equal(patch.data, alone.data)
        np.testing.assert_array_equal(patch.valid, alone.valid)
        assert patch.transform == request.grid.transform


@many(25)
@given(data=st.data(), layout=st.sampled_from([{}, {"compress": "LZW"}, {"interleave": "band"}]))
def test_a_nodata_value_marks_the_same_pixels_as_in_rasterio(tmp_path, data, layout):
    dtype = data.draw(st.sampled_from(["uint8", "int16", "float32", "float64", "int64", "uint64", "complex64"]))
    values = [0, 1, 7]
    if np.dtype(dtype).kind == "f":
        values += [math.nan, -9999.0, 1e-40, math.inf, -3.4028234663852886e38]
    elif dtype == "int64":
        values += [-(2**63), 2**53 + 1]
    elif dtype == "uint64":
        values += [2**64 - 1, 2**53 + 1]
    nodata = data.draw(st.sampled_from(values))
    image = scene(60, 70, 3, seed=data.draw(st.integers(0, 9))).astype(dtype)
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    image[:, rng.random((60, 70)) < 0.3] = nodata
    image[0, rng.random((60, 70)) < 0.3] = nodata
    path = write_cog(
        tmp_path / "nodata.tif", image, nodata=nodata, blocksize=32, overviews=False, **{"driver": "GTiff"} | layout
    )
    for bands in (None, [2], [3, 1]):
        expected, valid = reference_read(path, None, bands)
        patch = gs.read(path, bands=bands)
        np.testing.assert_array_equal(patch.data, expected)
        np.testing.assert_array_equal(patch.valid, valid)
