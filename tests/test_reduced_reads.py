"""Reads at reduced resolution of every real file are rasterio's of the same level, kernel by kernel."""

import zlib

import numpy as np
import pytest
import rasterio
from rasterio.enums import MaskFlags, Resampling
from rasterio.windows import Window as RasterioWindow

import geostream as gs
from geostream.grid import Window
from geostream.testing import RangeServer

from .conftest import DATA

FOLDER = DATA / "geotiff"
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*") if p.suffix in {".tif", ".tiff"})
pytestmark = [
    pytest.mark.skipif(not FILES, reason=f"no real files at {FOLDER}"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]

KERNELS = ("nearest", "mode", "bilinear", "cubic", "average")
WINDOWS = 20
PALETTE_KERNELS = ("nearest", "mode")
"""Of palettes GDAL blends the colours and looks up the nearest index; geostream blends indexes, as it is told to."""


@pytest.fixture(scope="module")
def server():
    with RangeServer(FOLDER) as server:
        yield server


def random_reduction(rng, shape, most=400):
    """A window, and the size it is reduced to by a factor between 1.1 and 40 of both axes."""
    factor = float(np.exp(rng.uniform(np.log(1.1), np.log(40))))
    height, width = (int(rng.integers(1, min(size, most) + 1)) for size in shape)
    top, left = (int(rng.integers(0, size - n + 1)) for size, n in zip(shape, (height, width), strict=True))
    size = max(1, round(height / factor)), max(1, round(width / factor))
    return Window(left, top, width, height), size


def reference(dataset, window, size, kernel):
    """rasterio's pixels of an open dataset, and where its mask, at each output pixel's centre, is not 0."""
    box = RasterioWindow(window.col_off, window.row_off, window.width, window.height)
    data = dataset.read(window=box, out_shape=(dataset.count, *size), resampling=Resampling[kernel])
    return data, dataset.dataset_mask(window=box, out_shape=size) > 0


def interior(pixels, *, trimmed):
    """Without the outermost pixels, where GDAL reads no more of an overview than whole pixels under the window."""
    inner = np.zeros(pixels.shape, bool)
    inner[..., 1:-1, 1:-1] = True
    return pixels & inner if trimmed else pixels


def assert_close(ours, theirs, compared, kernel, stray):
    """Exact, or within what each kind of pixel allows, on all pixels but a share of ``stray``."""
    if ours.dtype.kind == "f":
        compared = compared & np.isfinite(ours) & np.isfinite(theirs)
    a, b = ours[compared].astype("float64"), theirs[compared].astype("float64")
    if kernel in {"nearest", "mode"}:
        far = a != b
    elif ours.dtype.kind in "iu":
        far = np.abs(a - b) > 1
    else:
        far = np.abs(a - b) > 1e-5 * np.maximum(np.abs(b), np.abs(b).max(initial=0) * 1e-3)
    assert far.sum() <= stray * far.size, (kernel, int(far.sum()), far.size)


def has_holes(dataset, window, margin):
    """Whether anything within reach of a window's kernels is not wholly valid and opaque."""
    most = (dataset.width, dataset.height)
    offsets = [max(0, int(at - margin)) for at in (window.col_off, window.row_off)]
    stops = [min(n, int(at + margin) + 1) for n, at in zip(most, (window.col_stop, window.row_stop), strict=True)]
    sizes = [stop - start for start, stop in zip(offsets, stops, strict=True)]
    return bool((dataset.dataset_mask(window=RasterioWindow(*offsets, *sizes)) != 255).any())


def check(path, url, rng, kernels, windows, options):
    with rasterio.open(path) as dataset:
        by_mask = not {flag.name for flag in dataset.mask_flag_enums[0]} <= {"all_valid", "nodata"}
        nodata = np.array([0 if value is None else value for value in dataset.nodatavals]).astype(dataset.dtypes[0])
        overviews = bool(dataset.overviews(1))
        for n in range(windows):
            kernel = kernels[n % len(kernels)]
            window, size = random_reduction(rng, dataset.shape)
            place = (window.col_off, window.row_off, window.width, window.height)
            patch = gs.read(url, window=place, shape=size, resampling=kernel, **options)
            theirs, mask = reference(dataset, window, size, kernel)
            assert patch.data.shape == theirs.shape
            assert patch.data.dtype == theirs.dtype
            if kernel == "nearest" or (kernel in {"bilinear", "cubic"} and not overviews):
                np.testing.assert_array_equal(patch.valid, mask)  # nearest is read from coarser levels than others
            holes = has_holes(dataset, window, 3 * max(window.width / size[1], window.height / size[0]))
            alpha = MaskFlags.alpha in dataset.mask_flag_enums[0]
            if (holes and alpha) or (kernel == "mode" and by_mask and (holes or alpha)):
                continue  # GDAL weighs means by opacity, and its mode ignores masks
            if kernel == "average" and (window.width == 2 * size[1]) != (window.height == 2 * size[0]):
                continue  # GDAL then takes parts of pixels for whole ones
            compared = np.broadcast_to(patch.band_valid, theirs.shape)
            if holes and kernel == "cubic":
                compared = compared & (theirs != nodata[:, None, None])  # GDAL leaves out what geostream fills in
            compared = interior(compared, trimmed=overviews and kernel != "nearest")
            # Whether GDAL counts a line of taps that are almost weightless depends on the last digit of its weights.
            assert_close(patch.data, theirs, compared, kernel, 0.01 if holes and kernel in {"bilinear", "cubic"} else 0)


@pytest.mark.parametrize("name", FILES)
def test_reduced_reads_are_rasterios(name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    palette = gs.info(FOLDER / name)["colorinterp"][0] == "palette"
    check(FOLDER / name, FOLDER / name, rng, PALETTE_KERNELS if palette else KERNELS, WINDOWS, {})


@pytest.mark.parametrize("name", FILES[::4])
def test_reduced_reads_over_http_are_rasterios(name, server):
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    palette = gs.info(FOLDER / name)["colorinterp"][0] == "palette"
    kernels = PALETTE_KERNELS if palette else KERNELS
    check(FOLDER / name, server.url_for(name), rng, kernels, len(kernels), {"sidecars": True})
