"""Reads at reduced resolution of every real file are rasterio's of the same level, kernel by kernel.

What is left out or excused here is a difference on purpose: docs/reading.md names each, with its size.
"""

import contextlib
import math
import zlib

import numpy as np
import pytest
import rasterio
from rasterio.enums import MaskFlags, Resampling
from rasterio.windows import Window as RasterioWindow

import geostream as gs
from geostream.grid import Window
from geostream.plan import Request, plan_job
from geostream.reading import _open as read_header
from geostream.testing import RangeServer
from geostream.transport import Access

from .conftest import DATA

FOLDER = DATA / "geotiff"
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*") if p.is_file())
pytestmark = [
    pytest.mark.skipif(not FILES, reason=f"no real files at {FOLDER}"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]

KERNELS = ("nearest", "mode", "bilinear", "cubic", "average")
WINDOWS = 20
PALETTE_KERNELS = ("nearest", "mode")
"""Of palettes GDAL blends the colours and looks up the nearest index; geostream blends indexes, as it is told to."""
NO_BYTE = "pix4d_alpha_nodata.tif"
"""Its nodata value, -10000, is none that its bytes could have."""
OF_FILES = {"GTIFF_IMPLICIT_JPEG_OVR": "NO"}
"""GDAL else takes `nearest` of JPEG from images that its decoder shrinks: from averages, which no file holds."""


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


class Reduction:
    """One read at reduced resolution, as GDAL makes it of the level that geostream reads from.

    Args:
        dataset: the open file.
        levels: its levels, open, full resolution first.
        window: in pixels of full resolution.
        size: (height, width) of the output.
        kernel: name of the resampling.
        level: of the levels.
    """

    def __init__(self, dataset, levels, window, size, kernel, level):
        self.dataset, self.window, self.size, self.kernel = dataset, window, size, kernel
        self.level = levels[level]
        spans = (window.col_off, window.width), (window.row_off, window.height)
        shapes = zip(dataset.shape[::-1], self.level.shape[::-1], strict=True)
        self.spans = [(at * low / full, n * low / full) for (at, n), (full, low) in zip(spans, shapes, strict=True)]
        """(offset, size) in the level's columns, and rows."""
        self.ratios = [n / count for (_, n), count in zip(self.spans, size[::-1], strict=True)]
        reach = [3 * max(1.0, ratio) + 2 for ratio in self.ratios]
        self.starts = [max(0, int(at - more)) for (at, _), more in zip(self.spans, reach, strict=True)]
        stops = [
            min(most, int(at + n + more) + 1)
            for (at, n), more, most in zip(self.spans, reach, self.level.shape[::-1], strict=True)
        ]
        sizes = [stop - start for start, stop in zip(self.starts, stops, strict=True)]
        self.mask = self.level.dataset_mask(window=RasterioWindow(*self.starts, *sizes))
        """Of the level, within reach of the kernel."""
        self.holes = bool((self.mask == 0).any())

    def pixels(self):
        """What rasterio reads."""
        box = RasterioWindow(self.window.col_off, self.window.row_off, self.window.width, self.window.height)
        return self.dataset.read(
            window=box, out_shape=(self.dataset.count, *self.size), resampling=Resampling[self.kernel]
        )

    def spanned(self, axis):
        """First and one past the last pixel, counted in `mask`, under each output column (axis 0) or row (1)."""
        (at, extent), count = self.spans[axis], self.size[1 - axis]
        edges = at + np.arange(count + 1) * extent / count
        if self.kernel in {"average", "mode"}:
            first = np.maximum(np.floor(edges[:-1] + 1e-7), math.floor(at + 0.5 + 1e-7))  # GDAL rounds the corner
            stop = np.maximum(np.ceil(edges[1:] - 1e-7), first + 1)
        else:
            first = np.floor((edges[:-1] + edges[1:]) / 2 + 1e-7)
            stop = first + 1
        most = self.mask.shape[1 - axis]
        return [(np.clip(ends - self.starts[axis], *limits)).astype(int)
                for ends, limits in ((first, (0, most - 1)), (stop, (1, most)))]  # fmt: skip

    def valid(self):
        """Where the pixel at the centre is valid, or anything in the footprint if the kernel covers areas."""
        (left, right), (top, bottom) = self.spanned(0), self.spanned(1)
        sums = np.pad((self.mask > 0).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        corners = [sums[np.ix_(y, x)] for y in (top, bottom) for x in (left, right)]
        return corners[3] - corners[2] - corners[1] + corners[0] > 0

    def excuse(self):
        """Why GDAL's pixels differ on purpose, or nothing."""
        flags = {flag for flags in self.dataset.mask_flag_enums for flag in flags}
        masked = flags & {MaskFlags.alpha, MaskFlags.per_dataset} and (
            self.holes or self.dataset.name.endswith(NO_BYTE)
        )
        first, stop = self.spanned(0)
        if self.kernel == "mode" and self.dataset.dtypes[0] == "uint8" and masked:
            return "of bytes, masked ones count; nodata that no byte holds is taken for 0"
        if self.kernel in {"bilinear", "cubic"} and ((self.mask > 0) & (self.mask < 255)).any():
            return "opacity is a weight"
        if self.kernel == "average" and (stop - first == 2).all() and (first[1:] == stop[:-1]).all():
            return "parts of pixels count as whole ones where the columns touch two each"
        if self.kernel in {"average", "mode"} and min(self.ratios) < 1:
            return "a line within a pixel of the overview is taken from the pixel after it"
        return ""


def assert_close(ours, theirs, compared, kernel, stray):
    """Exact, or within what each kind of pixel allows, on all pixels but a share of ``stray``."""
    kind = ours.dtype.kind
    wide = "complex128" if kind == "c" else "float64"
    a, b = ours[compared].astype(wide), theirs[compared].astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        if kernel in {"nearest", "mode"}:
            far = ~same
        elif kind in "iu":
            far = np.abs(a - b) > 1
        else:
            most = np.abs(b[np.isfinite(b)]).max(initial=0)
            far = ~(same | (np.abs(a - b) <= 1e-5 * np.maximum(np.abs(b), most * 1e-3)))
    assert far.sum() <= stray * far.size, (kernel, int(far.sum()), far.size, a[far][:3], b[far][:3])


def levels_of(path, stack):
    """The file, and its levels by themselves, full resolution first."""
    dataset = stack.enter_context(rasterio.open(path))
    options = [{"OVERVIEW_LEVEL": "NONE"}, *({"overview_level": n} for n in range(len(dataset.overviews(1))))]
    return dataset, [stack.enter_context(rasterio.open(path, **kind)) for kind in options]


def check(path, url, rng, windows, options):
    """Compare reads of random windows, the kernels by turns; the share that had an excuse."""
    source, header = read_header(url, Access(), **{"sidecars": False} | options)
    kernels = PALETTE_KERNELS if header.colormap else KERNELS
    excused = 0
    with contextlib.ExitStack() as stack:
        dataset, levels = levels_of(path, stack)
        nodata = np.array([0 if v is None else v for v in dataset.nodatavals]).astype(header.dtype)
        for n in range(windows):
            kernel = kernels[n % len(kernels)]
            window, size = random_reduction(rng, dataset.shape)
            place = (window.col_off, window.row_off, window.width, window.height)
            patch = gs.read(url, window=place, shape=size, resampling=kernel, **options)
            wanted = Request(source, header.grid.part(window).scaled(*size[::-1]), resampling=kernel)
            level = plan_job(wanted, header).level
            reduction = Reduction(dataset, levels, window, size, kernel, level)
            theirs = reduction.pixels()
            assert (patch.data.shape, patch.data.dtype) == (theirs.shape, theirs.dtype)
            if reduction.excuse():
                excused += 1
                continue
            np.testing.assert_array_equal(patch.valid, reduction.valid(), err_msg=kernel)
            compared = np.broadcast_to(patch.band_valid, theirs.shape)
            if kernel == "cubic" and reduction.holes:
                compared = compared & (theirs != nodata[:, None, None])  # GDAL leaves out what geostream fills in
            # Whether a line of taps that are almost weightless counts depends on the last digit of GDAL's weights.
            beside = kernel in {"bilinear", "cubic"} and (reduction.holes or not np.isfinite(theirs).all())
            assert_close(patch.data, theirs, compared, kernel, 0.01 if beside else 0)
    return excused / windows


@pytest.mark.parametrize("name", FILES)
def test_reduced_reads_are_rasterios(name):
    with rasterio.Env(**OF_FILES):
        check(FOLDER / name, FOLDER / name, np.random.default_rng(zlib.crc32(name.encode())), WINDOWS, {})


@pytest.mark.parametrize("name", FILES)
def test_reduced_reads_over_http_are_rasterios(name, server):
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    with rasterio.Env(**OF_FILES):
        check(FOLDER / name, server.url_for(name), rng, len(KERNELS), {"sidecars": True})
