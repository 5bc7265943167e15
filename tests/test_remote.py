"""A remote file for GDAL: what it fetches for which reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geostream.remote import BLOCK, RemoteFile
from geostream.testing.strategies import byte_ranges

CONTENT = np.random.default_rng(0).bytes(5 * BLOCK + 1234)


class Origin:
    """Where the bytes come from; keeps an account of what was asked for."""

    def __init__(self):
        self.calls = []

    def __call__(self, ranges):
        self.calls.append(list(ranges))
        if any(stop > len(CONTENT) for _, stop in ranges):
            raise OSError("past the end")
        return [CONTENT[start:stop] for start, stop in ranges]


@given(st.lists(byte_ranges(len(CONTENT), max_count=6), max_size=6), st.sampled_from([0, 100, BLOCK, 3 * BLOCK + 7]))
def test_any_ranges_are_the_files_bytes(batches, head):
    origin = Origin()
    file = RemoteFile(origin, len(CONTENT), CONTENT[:head])
    for ranges in batches:
        before = len(origin.calls)
        assert file.read_ranges(ranges) == [CONTENT[start:stop] for start, stop in ranges]
        assert len(origin.calls) - before <= 2  # small ones and large ones, each together


def test_small_reads_near_each_other_cost_one_request():
    origin = Origin()
    file = RemoteFile(origin, len(CONTENT))
    for start in range(0, 3000, 100):
        file.read_ranges([(start, start + 50)])
    assert origin.calls == [[(0, BLOCK)]]
    file.read_ranges([(BLOCK - 5, BLOCK + 5), (2 * BLOCK, 2 * BLOCK + 1)])
    assert origin.calls[1:] == [[(BLOCK, 2 * BLOCK), (2 * BLOCK, 3 * BLOCK)]]
    file.read_ranges([(len(CONTENT) - 1, len(CONTENT))])
    assert origin.calls[2:] == [[(5 * BLOCK, len(CONTENT))]]


def test_large_reads_are_passed_on_as_they_are():
    origin = Origin()
    file = RemoteFile(origin, len(CONTENT))
    ranges = [(5, 5 + BLOCK + 1), (100, 100 + 2 * BLOCK)]
    file.read_ranges(ranges)
    assert origin.calls == [ranges]


def test_what_was_there_at_the_start_is_not_fetched():
    origin = Origin()
    RemoteFile(origin, len(CONTENT), CONTENT[:BLOCK]).read_ranges([(0, 10), (BLOCK - 10, BLOCK)])
    RemoteFile(origin, len(CONTENT), CONTENT).read_ranges([(len(CONTENT) - 5, len(CONTENT)), (0, 10)])
    assert origin.calls == []


def test_what_lies_past_the_end_is_asked_for_and_refused():
    file = RemoteFile(Origin(), len(CONTENT))
    for span in ((len(CONTENT) - 5, len(CONTENT) + 5), (10 * BLOCK, 10 * BLOCK + 5)):
        with pytest.raises(OSError, match="past the end"):
            file.read_ranges([span])


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("geostream.remote._MAX_BLOCKS", 2)
    origin = Origin()
    file = RemoteFile(origin, len(CONTENT))
    for block in (0, 2, 0, 4, 0, 2):  # 2 is given up for 4, 4 for 2; 0 is always the one used last
        file.read_ranges([(block * BLOCK, block * BLOCK + 1)])
    assert [calls[0][0] // BLOCK for calls in origin.calls] == [0, 2, 4, 2]


def test_reading_on_and_on_takes_ever_fewer_requests():
    origin = Origin()
    file = RemoteFile(origin, len(CONTENT))
    read = b"".join(file.read_ranges([(at, min(at + 5000, len(CONTENT)))])[0] for at in range(0, len(CONTENT), 5000))
    assert read == CONTENT
    assert [call[-1] for call in origin.calls] == [
        (0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 4 * BLOCK), (4 * BLOCK, len(CONTENT)),
    ]  # fmt: skip
