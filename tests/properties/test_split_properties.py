"""Splits and shares over scenes of all sizes, places and resolutions."""

import itertools

import numpy as np
import pytest
import shapely
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from geostream import splits
from geostream.errors import ConfigError
from geostream.grid import PASTE_TOLERANCE
from geostream.samplers import GridGeoSampler, RandomGeoSampler, TileBatchGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene

pytestmark = pytest.mark.filterwarnings("ignore:.*regions are:UserWarning")


@st.composite
def overlapping(draw):
    """Scenes that lie anywhere on and beside one another, their pixels aligned or not."""
    res = draw(st.floats(1e-4, 100)), draw(st.floats(1e-4, 100))
    corner = draw(st.floats(-1e5, 1e5)), draw(st.floats(-1e5, 1e5))
    scenes = []
    for _ in range(draw(st.integers(2, 5))):
        height, width = draw(st.integers(8, 60)), draw(st.integers(8, 60))
        shift = draw(st.sampled_from([0.0, 0.25]))
        col, row = draw(st.integers(0, 90)) + shift, draw(st.integers(0, 90))
        place = corner[0] + col * res[0], corner[1] - row * res[1]
        scenes.append(MemoryScene(np.zeros((1, height, width), np.uint8), place, res))
    return MemoryDataset(scenes)


def split(kind, dataset, fractions, generator):
    if kind == "assignment":
        return splits.random_bbox_assignment(dataset, fractions, generator)
    if kind == "splitting":
        return splits.random_bbox_splitting(dataset, fractions, generator)
    if kind == "cells":
        return splits.random_grid_cell_assignment(dataset, fractions, 3, generator)
    xmin, ymin, xmax, ymax = dataset.index.total_bounds
    at = xmin + fractions[0] * (xmax - xmin)
    return splits.roi_split(dataset, [shapely.box(xmin, ymin, at, ymax), shapely.box(at, ymin, xmax, ymax)])


@settings(max_examples=120, deadline=None)
@given(
    overlapping(),
    st.sampled_from(["assignment", "splitting", "cells", "rois"]),
    st.floats(0.2, 0.8),
    st.integers(1, 12),
    st.integers(0, 2**31),
)
def test_chips_of_two_splits_never_share_ground(dataset, kind, share, size, seed):
    generator = torch.Generator().manual_seed(seed)
    try:
        parts = split(kind, dataset, [share, 1 - share], generator)
    except ConfigError:
        assume(False)
    pixel = dataset.res[0] * dataset.res[1]
    grounds = []
    for part in parts:
        own = shapely.union_all(part.index.geometry).buffer(2 * PASTE_TOLERANCE * max(dataset.res), join_style="mitre")
        try:
            chips = [*RandomGeoSampler(part, size, length=20, generator=generator), *GridGeoSampler(part, size)]
            chips += itertools.chain.from_iterable(TileBatchGeoSampler(part, size, 2, generator=generator))
        except ConfigError:
            assume(False)
        boxes = [shapely.box(x.start, y.start, x.stop, y.stop) for x, y, _ in chips]
        assert all(own.covers(box) for box in boxes)
        grounds.append(shapely.union_all(boxes))
    assert grounds[0].intersection(grounds[1]).area < 0.5 * pixel


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 40),
    st.integers(1, 60),
    st.sampled_from(["shift", "overhang", "drop"]),
)
def test_the_far_edge_is_as_named(height, width, size, stride, edge):
    assume(height >= size and width >= size)
    dataset = MemoryDataset([MemoryScene(np.zeros((1, height, width), np.uint8))])
    chips = [(round(-y.stop), round(x.start)) for x, y, _ in GridGeoSampler(dataset, size, stride, edge=edge)]
    assert len(set(chips)) == len(chips)
    seen = np.zeros((height + size, width + size), int)
    for row, col in chips:
        seen[row : row + size, col : col + size] += 1
    for axis, extent in enumerate((height, width)):
        firsts = sorted({chip[axis] for chip in chips})
        regular = [first for first in firsts if first % stride == 0]
        if edge == "shift":
            assert firsts[-1] == extent - size
            assert set(firsts) - set(regular) <= {extent - size}
        else:
            assert regular == firsts == list(range(0, firsts[-1] + 1, stride))
            inside = firsts[-1] + size <= extent
            assert inside if edge == "drop" else firsts[-1] < extent <= firsts[-1] + max(size, stride)
    if stride <= size and edge != "drop":
        assert seen[:height, :width].all()
    if edge != "overhang":
        assert not seen[height:].any()
        assert not seen[:, width:].any()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 80), min_size=6, max_size=6), st.integers(1, 25), st.floats(0.05, 1), st.integers(0, 99))
def test_chips_hold_the_share_of_the_region_that_was_asked_for(ends, size, least, seed):
    roi = shapely.Polygon([(ends[0], -ends[1]), (ends[2], -ends[3]), (ends[4], -ends[5])])
    assume(roi.area > 1)
    dataset = MemoryDataset([MemoryScene(np.zeros((1, 80, 80), np.uint8))])
    generator = torch.Generator().manual_seed(seed)
    try:
        samplers = [
            RandomGeoSampler(dataset, size, length=15, roi=roi, min_valid=least, generator=generator),
            GridGeoSampler(dataset, size, roi=roi, min_valid=least, stride=max(1, size // 4)),
        ]
    except ConfigError:
        return
    for x, y, _ in itertools.chain(*samplers):
        chip = shapely.box(x.start, y.start, x.stop, y.stop)
        assert roi.intersection(chip).area >= (least - 1e-5) * chip.area
