"""Chips of any size at any stride, blended, are the scene they were cut from: to the last bit, and without a hole."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from geostream.blending import ChipFile, blended, covers, one_of_each, strips
from geostream.samplers.chips import offsets

DTYPES = ("uint8", "int16", "int64", "float16", "float32")


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    chip=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    step=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    edge=st.sampled_from(["shift", "overhang"]),
    dtype=st.sampled_from(DTYPES),
    ranks=st.integers(1, 3),
    rows=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_an_identity_is_exact(shape, chip, step, edge, dtype, ranks, rows, seed):
    rng = np.random.default_rng(seed)
    scene = (rng.normal(size=shape) * 1000).astype(dtype)
    _, height, width = shape
    stride = min(step[0], chip[0]), min(step[1], chip[1])
    around = np.zeros((shape[0], height + 2 * chip[0], width + 2 * chip[1]), dtype)
    around[:, :height, :width] = scene
    places = [
        (r, c) for r in offsets(height, chip[0], stride[0], edge) for c in offsets(width, chip[1], stride[1], edge)
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = [ChipFile(Path(folder), str(rank)) for rank in range(ranks)]
        for number in range(len(places) + ranks - 1):  # the last ranks are dealt the first chips again
            row, col = (int(v) for v in places[number % len(places)])
            files[number % ranks].add(around[:, row : row + chip[0], col : col + chip[1]], None, [(0, row, col)])
        for file in files:
            file.close()
        lists = ChipFile.read_all(Path(folder))
        assert len(lists) == ranks
        chips = one_of_each(found for part in lists for found in part)
        assert len(chips) == len(places)
        assert covers(chips, height, width)
        parts = [blended(chips, top, count, width) for top, count in strips(height, rows)]
        assert np.array_equal(np.concatenate([values for values, _ in parts], axis=1), scene)
        assert all(found.all() for _, found in parts)
        assert {values.dtype for values, _ in parts} == {np.dtype(dtype)}


@settings(max_examples=40, deadline=None)
@given(
    side=st.integers(2, 30),
    chip=st.integers(2, 12),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["uint8", "float32"]),
)
def test_what_is_invalid_in_all_chips_is_missing_and_nothing_else(side, chip, seed, kind):
    rng = np.random.default_rng(seed)
    scene, valid = rng.integers(1, 99, (1, side, side)).astype(kind), rng.random((side, side)) > 0.3
    starts = [int(v) for v in offsets(side, chip, max(1, chip // 2), "shift")]
    with tempfile.TemporaryDirectory() as folder:
        file = ChipFile(Path(folder), "0")
        for row in starts:
            for col in starts:
                there = np.s_[row : row + chip, col : col + chip]
                file.add(scene[:, *there], valid[there], [(0, row, col)])
        file.close()
        chips = one_of_each(ChipFile.read_all(Path(folder))[0])
        values, found = blended(chips, 0, side, side)
        assert np.array_equal(found, valid)
        assert np.array_equal(values[0][valid], scene[0][valid])
        assert (values[0][~valid] == 0).all()
        assert covers(chips, side, side) == valid.all()
