"""Blocks, the chips inside them, and the order in which they are opened, over all sizes."""

from collections import Counter

import numpy as np
import pandas as pd
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from geostream.grid import Window
from geostream.samplers.blocks import draw_within, lay_blocks, place_chips, ring
from geostream.samplers.lanes import deal, interleave
from geostream.samplers.regions import Region
from geostream.samplers.shuffling import decoded, quality
from geostream.samplers.tilegrid import TileGrid, _block_side

DAY = pd.Timestamp(2024, 6, 1)


@st.composite
def regions(draw, size):
    """A region at least as large as a chip, anywhere on a scene's tiles, and these."""
    height, width = (draw(st.integers(side, 6 * side + 40)) for side in size)
    row, col = draw(st.integers(0, 150)), draw(st.integers(0, 150))
    window = Window(col, row, width, height)
    bounds = (col, -row - height, col + width, -row)
    region = Region((0.0, 0.0), (1.0, 1.0), window, (DAY, DAY), None, height * width, bounds)
    tile = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    anchor = draw(st.integers(-50, 50)), draw(st.integers(-50, 50))
    block = tuple(_block_side(t, side, 1, None) for t, side in zip(tile, size, strict=True))
    return region, TileGrid(0, tile, anchor, block, aligned=True, depth=1)


@st.composite
def places(draw):
    size = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    made = draw(st.lists(regions(size), min_size=1, max_size=3))
    parts = [region for region, _ in made]
    grids = [TileGrid(i, g.tile, g.anchor, g.block, g.aligned, g.depth) for i, (_, g) in enumerate(made)]
    return size, parts, grids


@settings(max_examples=200, deadline=None)
@given(places())
def test_blocks_part_their_regions_along_tile_edges_and_hold_chips(place):
    size, parts, grids = place
    blocks = lay_blocks(parts, grids, size)
    seen = [np.zeros((r.window.row_stop, r.window.col_stop), int) for r in parts]
    for i in range(len(blocks)):
        region, grid = parts[blocks.region[i]], grids[blocks.region[i]]
        top, left = int(blocks.row[i]), int(blocks.col[i])
        height, width = int(blocks.height[i]), int(blocks.width[i])
        assert height >= size[0]
        assert width >= size[1]
        for start, first, tile, anchor in (
            (top, region.window.row_off, grid.tile[0], grid.anchor[0]),
            (left, region.window.col_off, grid.tile[1], grid.anchor[1]),
        ):
            assert start == first or (start - anchor) % tile == 0, "cuts run along tile edges"
        seen[blocks.region[i]][top : top + height, left : left + width] += 1
    for region, count in zip(parts, seen, strict=True):
        window = region.window
        assert (count[window.row_off :, window.col_off :] == 1).all()
        assert count.sum() == window.width * window.height
    assert len(set(blocks.group.tolist())) == len(blocks)


@settings(max_examples=200, deadline=None)
@given(places(), st.integers(0, 2**32))
def test_chips_stay_in_their_blocks_and_none_comes_twice(place, seed):
    size, parts, grids = place
    blocks = lay_blocks(parts, grids, size)
    rng = np.random.default_rng(seed)
    chips = place_chips(blocks, parts, size, rng)
    assert np.bincount(chips.block, minlength=len(blocks)).tolist() == blocks.chips.tolist()
    further = draw_within(np.arange(len(blocks)), blocks, parts, size, rng)
    for found in (chips, further):
        below, right = found.row - blocks.row[found.block], found.col - blocks.col[found.block]
        assert ((below >= 0) & (below + size[0] <= blocks.height[found.block])).all()
        assert ((right >= 0) & (right + size[1] <= blocks.width[found.block])).all()
    assert len(set(zip(chips.block, chips.row, chips.col, strict=True))) == len(chips)


@settings(max_examples=100, deadline=None)
@given(places(), st.integers(0, 2**32), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_chips_meet_the_outline_of_their_region(place, seed, shares):
    size, parts, grids = place
    outlined = []
    for region in parts:
        x0, y0, x1, y1 = region.bounds
        corner = (x0 + shares[0] * (x1 - x0), y0 + shares[1] * (y1 - y0))
        outline = shapely.Polygon([(x0, y0), corner, (x1, y1), (x0, y1)]).buffer(shares[2])
        outline = shapely.intersection(outline, shapely.box(*region.bounds))
        fields = (region.origin, region.res, region.window, region.interval, outline, outline.area, region.bounds)
        outlined.append(Region(*fields))
    blocks = lay_blocks(outlined, grids, size)
    chips = place_chips(blocks, outlined, size, np.random.default_rng(seed))
    assert np.bincount(chips.block, minlength=len(blocks)).tolist() == blocks.chips.tolist()
    for number, region in enumerate(outlined):
        here = blocks.region[chips.block] == number
        assert region.admits(chips.row[here], chips.col[here], size).all()


def test_every_offset_is_drawn_and_pixels_are_covered_alike():
    rng = np.random.default_rng(1)
    rounds, length, chip = 20000, 40, 10
    axis, offset = ring(np.full(rounds, length), chip, np.full(rounds, 4), rng)
    assert axis.tolist() == np.repeat(np.arange(rounds), 4).tolist()
    assert set(offset.tolist()) == set(range(length - chip + 1))
    cover = np.zeros(length)
    for start, times in Counter(offset.tolist()).items():
        cover[start : start + chip] += times / rounds
    assert abs(cover[chip:-chip] - 1).max() < 0.02, "the same away from the ends"
    assert cover.min() > 0.45
    assert cover.max() < 1.55
    _, padded = ring(np.full(500, 7), 10, np.ones(500, int), rng)
    assert set(padded.tolist()) == {-3, -2, -1, 0}, "a chip longer than its axis holds all of it"


sizes = st.lists(st.integers(1, 30), min_size=1, max_size=60).map(np.array)


@settings(max_examples=250, deadline=None)
@given(sizes, st.integers(1, 20), st.integers(1, 6), st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**32))
def test_every_group_gives_all_its_chips_in_one_lane(sizes, batch, asked, slots, visit, seed):
    lanes = deal(sizes, batch, asked)
    assert asked % lanes.count == 0
    assert lanes.total * batch >= sizes.sum()
    shortest = -(-int(sizes.sum()) // batch)
    assert lanes.total <= shortest + max(lanes.count - 1, shortest // 8)
    order = interleave(lanes, batch, slots, visit, np.random.default_rng(seed))
    assert order.shape == (lanes.total, batch)
    times = np.bincount(order.ravel(), minlength=len(sizes))
    assert (times >= sizes).all()
    lane_of = {}
    for number, groups in enumerate(order.tolist()):
        for group in groups:
            assert lane_of.setdefault(group, number % lanes.count) == number % lanes.count
    again = interleave(lanes, batch, slots, visit, np.random.default_rng(seed))
    assert np.array_equal(order, again)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 80),
    st.integers(1, 20),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.data(),
)
def test_a_cache_of_twice_what_is_open_and_a_batch_of_each_lane_decodes_each_group_once(
    size, groups, batch, asked, slots, seed, data
):
    lanes = deal(np.full(groups, size), batch, asked)
    visit = data.draw(st.integers(-(-batch // min(slots, batch)), batch))
    order = interleave(lanes, batch, slots, visit, np.random.default_rng(seed))
    batches = [np.array(list(dict.fromkeys(row))) for row in order.tolist()]
    in_batch = -(-batch // size) + 1
    assert len(decoded(batches, (2 * slots + in_batch) * lanes.count)) == groups


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 12), st.integers(2, 40), st.integers(0, 2**32))
def test_quality_is_one_for_full_shuffles_and_falls_with_clusters(chips, groups, seed):
    ordered = np.repeat(np.arange(groups), chips)
    rng = np.random.default_rng(seed)
    mean = np.mean([1 / quality(rng.permutation(ordered), 8) for _ in range(400)])
    assert abs(mean - 1) < 0.1
    assert quality(ordered, chips) < 1
    assert quality(ordered.reshape(groups, chips).T.ravel(), min(8, groups)) >= 1
