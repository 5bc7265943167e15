"""Samplers over all sizes, strides, resolutions and regions."""

import numpy as np
import pytest
import shapely
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geostream.errors import ConfigError
from geostream.grid import PASTE_TOLERANCE, pixel_count
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene

pytestmark = pytest.mark.filterwarnings("ignore:.*smaller than one chip:UserWarning")

sides = st.integers(1, 90)
resolutions = st.floats(1e-5, 1e3)
corners = st.floats(-1e6, 1e6)


@st.composite
def datasets(draw):
    res = draw(resolutions), draw(resolutions)
    scenes = draw(st.lists(st.tuples(sides, sides), min_size=1, max_size=3))
    x, y = draw(corners), draw(corners)
    return MemoryDataset(
        [MemoryScene(np.zeros((1, h, w), np.uint8), (x + 1000 * i * res[0], y), res) for i, (h, w) in enumerate(scenes)]
    )


def pixels(dataset, place):
    """The scene, first row and column, height and width, and how far the offsets are from whole pixels."""
    x, y, _ = place
    number = round((x.start - dataset.scenes[0].corner[0]) / dataset.res[0]) // 1000
    scene = dataset.scenes[number]
    row, col = (scene.corner[1] - y.stop) / scene.res[1], (x.start - scene.corner[0]) / scene.res[0]
    size = pixel_count(y.stop - y.start, y.step), pixel_count(x.stop - x.start, x.step)
    off = max(abs(row - round(row)), abs(col - round(col)))
    return number, round(row), round(col), *size, off


@settings(max_examples=150, deadline=None)
@given(datasets(), sides, sides, st.integers(0, 2**63 - 1))
def test_random_chips_are_inside_on_pixels_and_exact(dataset, height, width, seed):
    fits = [s for s in dataset.scenes if s.data.shape[1] >= height and s.data.shape[2] >= width]
    generator = torch.Generator().manual_seed(seed)
    try:
        sampler = RandomBatchGeoSampler(dataset, (height, width), 3, length=12, generator=generator)
    except ConfigError:
        assert not fits
        return
    assert fits
    for batch in sampler:
        found = [pixels(dataset, place) for place in batch]
        assert len({number for number, *_ in found}) == 1
        for number, row, col, h, w, off in found:
            _, rows, cols = dataset.scenes[number].data.shape
            assert off < PASTE_TOLERANCE
            assert (h, w) == (height, width)
            assert 0 <= row <= rows - h
            assert 0 <= col <= cols - w


@settings(max_examples=150, deadline=None)
@given(datasets(), sides, sides, st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_the_grid_covers_every_pixel_and_none_outside(dataset, height, width, down, across, pad):
    down, across = min(down, height), min(across, width)
    covered = [np.zeros(scene.data.shape[1:], bool) for scene in dataset.scenes]
    try:
        sampler = GridGeoSampler(dataset, (height, width), (down, across), pad=pad)
    except ConfigError:
        assert not pad
        return
    chips = list(sampler)
    assert len(chips) == len(sampler)
    assert len({(place[0].start, place[1].stop) for place in chips}) == len(chips), "no chip comes twice"
    for place in chips:
        number, row, col, h, w, off = pixels(dataset, place)
        rows, cols = covered[number].shape
        assert off < PASTE_TOLERANCE
        assert (h, w) == (height, width)
        assert 0 <= row <= max(0, rows - h)
        assert 0 <= col <= max(0, cols - w)
        covered[number][row : row + h, col : col + w] = True
    for done in covered:
        large_enough = pad or (done.shape[0] >= height and done.shape[1] >= width)
        assert done.all() if large_enough else not done.any()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-10, 110), min_size=4, max_size=4), st.integers(1, 40), st.integers(0, 1000))
def test_chips_stay_within_the_region_of_interest(ends, size, seed):
    x0, x1, y0, y1 = (*sorted(ends[:2]), *sorted(ends[2:]))
    dataset = MemoryDataset([MemoryScene(np.zeros((1, 100, 100), np.uint8), (0.0, 100.0))])
    roi = shapely.box(x0, y0, x1, y1)
    generator = torch.Generator().manual_seed(seed)
    try:
        samplers = (
            RandomGeoSampler(dataset, size, length=10, roi=roi, generator=generator),
            GridGeoSampler(dataset, size, roi=roi),
        )
    except ConfigError:
        return
    grown = shapely.box(x0, y0, x1, y1).buffer(2 * PASTE_TOLERANCE, join_style="mitre")
    for sampler in samplers:
        assert all(grown.covers(shapely.box(x.start, y.start, x.stop, y.stop)) for x, y, _ in sampler)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5), st.integers(0, 2**64 - 1))
def test_ranks_together_are_the_epoch(length, world_size, epoch, seed):
    dataset = MemoryDataset([MemoryScene(np.zeros((1, 50, 50), np.uint8))])
    state = {"seed": seed, "epoch": epoch, "position": 0}

    def order(**ranks):
        sampler = RandomGeoSampler(dataset, 8, length=length, **ranks)
        sampler.load_state_dict(state)
        return list(sampler)

    whole = order()
    assert len(whole) == length
    shares = [order(rank=rank, world_size=world_size) for rank in range(world_size)]
    dealt = [place for places in zip(*shares, strict=True) for place in places]
    assert dealt[:length] == whole
    assert len(dealt) - length < world_size
