"""Reads at reduced resolution, whatever the pixel type, the overviews, the window and the factor: GDAL's pixels."""

import tempfile
from pathlib import Path

import numpy as np
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.enums import Resampling
from rasterio.windows import Window

import geostream as gs
from geostream.testing.rasters import write_cog

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64", "complex64")
KERNELS = ("nearest", "mode", "bilinear", "cubic", "average")


@st.composite
def rasters(draw):
    """(pixels, how they are written)."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.integers(1, 2)), draw(st.integers(9, 150)), draw(st.integers(9, 150))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(0, draw(st.sampled_from([3, 100])), shape)
    data = (values + 1j * rng.integers(0, 50, shape)).astype(dtype) if dtype.kind == "c" else values.astype(dtype)
    factors = draw(st.sampled_from([False, [2], [2, 4], [3, 5], [2, 4, 8, 16]] if min(shape[1:]) > 16 else [False]))
    nodata = draw(st.sampled_from([None, 120]))
    return data, {"overviews": factors, "driver": "GTiff", "blocksize": 32, "nodata": nodata}


@st.composite
def reductions(draw, shape):
    """(window, size it is reduced to)."""
    height, width = (draw(st.integers(1, n)) for n in shape)
    top, left = (draw(st.integers(0, n - m)) for n, m in zip(shape, (height, width), strict=True))
    factor = draw(st.floats(1.1, 40))
    return Window(left, top, width, height), (max(1, round(height / factor)), max(1, round(width / factor)))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_reduced_reads_are_gdals(data):
    pixels, layout = data.draw(rasters())
    with tempfile.TemporaryDirectory() as folder:
        path = write_cog(Path(folder) / "a.tif", pixels, **layout)
        for kernel in KERNELS:
            window, size = data.draw(reductions(pixels.shape[1:]))
            place = (window.col_off, window.row_off, window.width, window.height)
            with rasterio.open(path) as dataset:
                theirs = dataset.read(window=window, out_shape=(len(pixels), *size), resampling=Resampling[kernel])
                levels = [(dataset.width / n, dataset.height / m) for m, n in level_shapes(path, dataset)]
            if excused(pixels.dtype, kernel, window, size, levels):
                continue
            ours = gs.read(path, window=place, shape=size, resampling=kernel).data
            assert ours.dtype == theirs.dtype
            if kernel in {"nearest", "mode"}:
                np.testing.assert_array_equal(ours, theirs)
            elif pixels.dtype.kind in "iu":
                assert np.abs(ours.astype(float) - theirs.astype(float)).max() <= 1
            else:
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)


def level_shapes(path, dataset):
    """(height, width) of every level."""
    yield dataset.shape
    for level in range(len(dataset.overviews(1))):
        with rasterio.open(path, overview_level=level) as overview:
            yield overview.shape


def excused(dtype, kernel, window, size, levels):
    """Whether this is one of the differences that docs/reading.md names, for any level that may be read."""
    ratios = [(window.width / size[1] / x, window.height / size[0] / y) for x, y in levels]
    if dtype.kind == "c":
        return kernel not in {"nearest", "mode"}  # GDAL warps those
    thin = 1 in size
    pairs = size[1] == 1 or any(abs(x - 2) < 0.01 for x, _ in ratios) or size[1] <= 3
    return kernel in {"average", "mode"} and (thin or (kernel == "average" and pairs))
