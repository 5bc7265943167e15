"""Random pairs of grids, rasters and masks: resampling equals float64 sums written from the formulas."""

import math

import numpy as np
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Transformer

from geostream.grid import Grid, Window
from geostream.mosaic import POLICIES, Mosaic
from geostream.warp import RESAMPLINGS, resample, source_coordinates, source_window

UTM, MERCATOR = CRS.from_epsg(32632), CRS.from_epsg(3857)
ORIGIN = Affine(10, 0, 600000, 0, -10, 5800020)


def cubic(x):
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def weight(resampling, at, pixel, scale, aligned):
    """Weight of one source pixel along one axis for a position, from the definition."""
    if resampling == "average":
        return max(0.0, min(at + scale / 2, pixel + 1) - max(at - scale / 2, pixel))
    whole = round(scale)
    width = max(1.0, whole if abs(scale - whole) < 0.05 and not aligned else scale)
    distance = abs(pixel + 0.5 - at) / width
    return max(0.0, 1 - distance) if resampling == "bilinear" else cubic(distance)


def matrix(resampling, positions, size, scale, aligned=False):
    return np.array([[weight(resampling, at, pixel, scale, aligned) for pixel in range(size)] for at in positions])


def longest(present):
    """Most True in a row along the last axis."""
    return np.array([max(len(run) for run in "".join("x" if p else " " for p in line).split(" ")) for line in present])


def pieced(present, at, radius, scale):
    """Whether half of the taps of each position, along the last axis of (positions, pixels), are in one piece."""
    reach = radius * max(1.0, scale)
    first = np.maximum(np.floor(at - reach + 0.5 + 1e-7), 0).astype(int)
    stop = np.minimum(np.floor(at + reach + 0.5 + 1e-7), present.shape[1]).astype(int)
    taps = np.arange(present.shape[1])
    within = (taps >= first[:, None]) & (taps < stop[:, None])
    return longest(present & within) >= (stop - first) // 2


def aligned_means(resampling, data, valid, cols, rows, scale):
    """Means along columns of what is valid, then along rows of what has a mean, at (cols, rows), 1-D; NaN if none.

    And whether rounding cannot have decided which lines count.
    """
    wx = matrix(resampling, cols, data.shape[1], scale[0], aligned=True)
    wy = matrix(resampling, rows, data.shape[0], scale[1], aligned=True)
    weights = np.einsum("pw,hw->ph", wx, valid.astype("float64"))
    full = np.abs(weights) > 1e-6 * wx.sum(axis=1, keepdims=True)
    if resampling == "cubic":
        full &= weights > 0
        full &= np.stack(
            [pieced(np.broadcast_to(line, (len(cols), line.size)), cols, 2, scale[0]) for line in valid], 1
        )
    with np.errstate(all="ignore"):
        lines = np.where(full, np.einsum("pw,hw->ph", wx, np.where(valid, data, 0).astype("float64")) / weights, 0)
        total = (wy * full).sum(axis=1)
        found = total > 1e-6
        if resampling == "cubic":
            found &= pieced(full, rows, 2, scale[1])
        means = np.where(found, (wy * lines).sum(axis=1) / total, np.nan)
    sure = (np.abs(total) > 1e-2) & ~((weights != 0) & (np.abs(weights) < 1e-2)).any(axis=1)
    for at, s in ((cols, scale[0]), (rows, scale[1])):
        for edge in (-2, -1, 1, 2):
            end = at + edge * max(1.0, s) + 0.5
            sure &= np.abs(end - np.round(end)) > 1e-5
    return means, sure


def check_mode(data, mask, coords, got, got_valid):
    for i, (col, row) in enumerate(zip(coords.cols.ravel(), coords.rows.ravel(), strict=True)):
        spans = []
        for at, scale in ((row, coords.scale[1]), (col, coords.scale[0])):
            ends = at - scale / 2, at + scale / 2
            if any(abs(end - round(end)) < 1e-5 for end in ends):
                break  # rounding decides
            spans.append(slice(max(0, math.floor(ends[0])), max(0, math.ceil(ends[1]))))
        if len(spans) < 2:
            continue
        counts, best = {}, None
        for value in data[tuple(spans)][mask[tuple(spans)]].tolist():
            counts[value] = counts.get(value, 0) + 1
            if best is None or counts[value] > counts[best]:
                best = value
        assert got_valid[i] == (best is not None)
        assert got[i] == (best or 0)


def means(resampling, data, valid, cols, rows, scale):
    """Weighted means over valid pixels of one band at (cols, rows), 1-D; and the share of the weight that is valid."""
    wx = matrix(resampling, cols, data.shape[1], scale[0])
    wy = matrix(resampling, rows, data.shape[0], scale[1])
    sums = np.einsum("ph,pw,hw->p", wy, wx, np.where(valid, data, 0).astype("float64"))
    weights = np.einsum("ph,pw,hw->p", wy, wx, valid.astype("float64"))
    # what all pixels would weigh, had the source no edges: it depends on where the position lies in its pixel
    wider = [matrix(resampling, at % 1 + 100, 200, s).sum(axis=1) for at, s in zip((cols, rows), scale, strict=True)]
    with np.errstate(all="ignore"):
        return sums / weights, weights / (wider[0] * wider[1])


def missing_taps(valid, cols, rows):
    """Whether any of the sixteen pixels around each position is invalid or outside."""
    padded = np.pad(valid, 4)
    out = []
    for col, row in zip(cols, rows, strict=True):
        c, r = math.floor(col - 0.5) - 1, math.floor(row - 0.5) - 1
        out.append(not padded[max(0, r + 4) : r + 8, max(0, c + 4) : c + 8].all())
    return np.array(out)


@st.composite
def grids(draw):
    """A small source, and an output that overlaps it in part: aligned, turned, or in another CRS."""
    src = Grid(draw(st.integers(1, 18)), draw(st.integers(1, 18)), ORIGIN, UTM)
    width, height = draw(st.integers(1, 10)), draw(st.integers(1, 10))
    fractions = st.floats(-0.6, 1.0)
    x = 600000 + 10 * src.width * draw(fractions)
    y = 5800020 - 10 * src.height * draw(fractions)
    steps = st.sampled_from([1.0, 3.7, 10.0, 10.3, 17.0, 20.0, 31.0]) | st.floats(2, 40)
    linear = Affine.scale(draw(steps), -draw(steps))
    kind = draw(st.sampled_from(["aligned", "turned", "projected"]))
    if kind == "turned":
        linear = Affine.rotation(draw(st.floats(0, 360))) @ linear
    if kind == "projected":
        x, y = Transformer.from_crs(UTM, MERCATOR, always_xy=True).transform(x, y)
        linear = Affine.scale(1.6) @ linear
    return src, Grid(width, height, Affine.translation(x, y) @ linear, MERCATOR if kind == "projected" else UTM)


def raster(seed, src, share):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (2, src.height, src.width)).astype("uint8")
    return data, rng.random((draw_bands(seed), src.height, src.width)) < share


def draw_bands(seed):
    """One mask for both bands, or one each."""
    return 1 + seed % 2


def run(src, dst, data, valid, resampling):
    coords = source_coordinates(src, dst)
    window = source_window(src, coords, resampling)
    if window is None:
        shape = len(data), dst.height, dst.width
        return coords, np.zeros(shape, data.dtype), np.zeros(shape, bool)
    part = np.s_[:, window.row_off : window.row_stop, window.col_off : window.col_stop]
    return coords, *resample(data[part], valid[part], coords, window, resampling)


@settings(max_examples=150, deadline=None)
@given(grids(), st.integers(0, 2**32), st.sampled_from([1.0, 0.97, 0.6, 0.1]), st.sampled_from(RESAMPLINGS))
def test_equals_the_formulas(pair, seed, share, resampling):
    src, dst = pair
    data, valid = raster(seed, src, share)
    coords, out, out_valid = run(src, dst, data, valid, resampling)
    assert out.shape == out_valid.shape == (2, dst.height, dst.width)
    assert out.dtype == data.dtype
    assert not out[~out_valid].any()
    cols, rows = coords.cols.ravel(), coords.rows.ravel()
    inside = (cols >= 0) & (cols < src.width) & (rows >= 0) & (rows < src.height)
    # a centre within rounding of a pixel's edge may belong to either side
    clear = (np.abs(cols - np.round(cols)) > 1e-5) & (np.abs(rows - np.round(rows)) > 1e-5)
    c = np.clip(np.floor(cols), 0, src.width - 1).astype(int)
    r = np.clip(np.floor(rows), 0, src.height - 1).astype(int)
    for band, mask in enumerate(np.broadcast_to(valid, data.shape)):
        containing = inside & mask[r, c]
        got, got_valid = out[band].ravel(), out_valid[band].ravel()
        if resampling == "nearest":
            assert (got_valid == containing)[clear].all()
            assert (got == np.where(containing, data[band, r, c], 0))[clear].all()
            continue
        check_means(resampling, data[band], mask, coords, containing, clear, got, got_valid)


def check_means(resampling, data, mask, coords, containing, clear, got, got_valid):
    cols, rows = coords.cols.ravel(), coords.rows.ravel()
    if resampling == "mode":
        check_mode(data, mask, coords, got, got_valid)
        return
    expected, share = means(resampling, data, mask, cols, rows, coords.scale)
    if resampling == "average":
        should = share > 1e-6
        clear = np.abs(share - 1e-6) > 1e-5  # a sliver of the footprint, to within rounding
    else:
        should = containing
    assert (got_valid == should)[clear].all()
    if coords.separable and resampling != "average":
        expected, sure = aligned_means(resampling, data, mask, cols, rows, coords.scale)
        simple, simple_sure = aligned_means("bilinear", data, mask, cols, rows, coords.scale)
        clear, expected = clear & sure & simple_sure, np.where(np.isnan(expected), simple, expected)
    elif resampling == "cubic":
        simple, _ = means("bilinear", data, mask, cols, rows, coords.scale)
        if max(coords.scale) < 1.05:
            lean = missing_taps(mask, cols, rows)
            # on a pixel's centre the outermost taps have no weight, and either side will do
            clear &= (np.abs(cols % 1 - 0.5) > 1e-5) & (np.abs(rows % 1 - 0.5) > 1e-5)
        else:
            lean = share < 0.1
            clear &= np.abs(share - 0.1) > 1e-4
        expected = np.where(lean, simple, expected)
    check = clear & should & got_valid
    # float32 sums over few pixels; dividing by a small remaining weight enlarges their error
    tolerance = 0.5 + 1e-3 + 1e-4 / np.maximum(np.abs(share), 1e-3)
    assert (np.abs(got - np.clip(expected, 0, 255)) <= tolerance)[check].all()


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 2**32), st.sampled_from([1.0, 0.7]), st.sampled_from(RESAMPLINGS))
def test_the_window_is_enough(pair, seed, share, resampling):
    """Reading the whole source changes nothing."""
    src, dst = pair
    data, valid = raster(seed, src, share)
    coords, out, out_valid = run(src, dst, data, valid, resampling)
    whole, whole_valid = resample(data, valid, coords, src.window, resampling)
    np.testing.assert_array_equal(out_valid, whole_valid)
    np.testing.assert_array_equal(out, whole)


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 2**32), st.sampled_from(RESAMPLINGS))
def test_invalid_values_do_not_matter(pair, seed, resampling):
    src, dst = pair
    data, valid = raster(seed, src, 0.6)
    _, out, out_valid = run(src, dst, np.where(valid, data, 0), valid, resampling)
    _, other, other_valid = run(src, dst, np.where(valid, data, 255), valid, resampling)
    np.testing.assert_array_equal(out_valid, other_valid)
    np.testing.assert_array_equal(out, other)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 17), st.integers(0, 17), st.integers(1, 30), st.integers(1, 30), st.sampled_from(RESAMPLINGS))
def test_the_sources_own_grid_is_a_copy(col, row, width, height, resampling):
    src = Grid(18, 18, ORIGIN, UTM)
    data = np.random.default_rng(0).integers(0, 65536, (2, 18, 18)).astype("uint16")
    dst = src.part(Window(col, row, width, height))
    _, out, out_valid = run(src, dst, data, np.ones((1, 18, 18), bool), resampling)
    expected = np.pad(data, ((0, 0), (0, 40), (0, 40)))[:, row : row + height, col : col + width]
    np.testing.assert_array_equal(out, expected)
    assert out_valid[0].sum() == min(width, 18 - col) * min(height, 18 - row)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5), st.sampled_from(POLICIES))
def test_mosaics_equal_a_loop_over_pixels(seed, count, policy):
    rng = np.random.default_rng(seed)
    data = rng.integers(-50, 50, (count, 2, 3, 4)).astype("int16")
    valid = rng.random((count, 2, 3, 4)) < 0.5
    mosaic = Mosaic(policy, (2, 3, 4), np.dtype("int16"), fill=-99)
    for source, mask in zip(data, valid, strict=True):
        mosaic.feed(source, mask)
    out, out_valid = mosaic.done()
    choose = {"first": lambda v: v[0], "last": lambda v: v[-1], "min": min, "max": max, "mean": half_away_mean}[policy]
    for index in np.ndindex(2, 3, 4):
        values = [int(d[index]) for d, v in zip(data, valid, strict=True) if v[index]]
        assert out_valid[index] == bool(values)
        assert out[index] == (choose(values) if values else -99)
    assert mosaic.complete == out_valid.all()


def half_away_mean(values):
    mean = sum(values) / len(values)
    return int(math.copysign(math.floor(abs(mean) + 0.5), mean))
