"""Which bytes of a TIFF must be at hand before its header can be parsed."""

import io
import struct

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

import geostream as gs
from geostream import ifd
from geostream.errors import TruncatedError
from geostream.ifd import MAX_IFDS, SparseBytes, SparseFile, is_tiff, missing_ranges
from geostream.testing.rasters import write_cog
from geostream.testing.strategies import byte_ranges

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8))


@given(byte_ranges(1000, max_length=300), st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=20))
def test_sparse_bytes_hold_what_was_added(added, asked):
    buffer, here = SparseBytes(1000), np.zeros(1000, bool)
    for start, stop in added:
        buffer.add(start, CONTENT[start:stop])
        here[start:stop] = True
    assert len(buffer) == here.sum()
    for start, stop in asked:
        expected = CONTENT[start:stop] if here[start:stop].all() else None
        assert buffer.get(start, stop) == expected
        assert buffer.has(start, stop) == (expected is not None)
    gap = 1000 if here.all() else int(np.argmin(here))
    assert buffer.prefix == CONTENT[:gap]
    assert buffer.contiguous == (not here[gap:].any())


def test_nothing_added_is_nothing_there():
    buffer = SparseBytes(10)
    buffer.add(5, b"")
    assert len(buffer) == 0
    assert buffer.contiguous
    assert buffer.get(3, 3) == b""
    assert buffer.get(0, 1) is None


def test_a_sparse_file_reads_zeros_where_nothing_arrived():
    buffer = SparseBytes(1000)
    buffer.add(100, CONTENT[100:200])
    file = SparseFile(buffer)
    assert file.seek(-900, io.SEEK_END) == 100
    assert file.read(100) == CONTENT[100:200]
    assert file.tell() == 200
    assert file.read(10) == bytes(10)
    assert file.seek(10, io.SEEK_CUR) == 220
    file.seek(995)
    assert file.read(50) == bytes(5)
    assert file.read(1) == b""


LAYOUTS = {
    "cog": {"mask": np.ones((300, 300), bool), "blocksize": 64, "driver": "GTiff"},
    "planes": {"interleave": "band", "blocksize": 64, "driver": "GTiff"},
    "bigtiff": {"bigtiff": True, "blocksize": 64, "driver": "GTiff"},
    "big endian": {"big_endian": True, "blocksize": 64},
    "at the end": {"ifds_at_end": True, "blocksize": 64},
    "tags": {"tags": {f"KEY{i}": "x" * 50 for i in range(200)}, "blocksize": 64, "driver": "GTiff"},
}


@pytest.mark.parametrize("first", [16, 100, 1000, 2**15])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_was_asked_for_is_all_that_parsing_needs(tmp_path, layout, first):
    content = write_cog(tmp_path / "a.tif", shape=(300, 300), **layout).read_bytes()
    buffer = SparseBytes(len(content))
    buffer.add(0, content[:first])
    for _ in range(20):
        ranges = missing_ranges(buffer)
        if not ranges:
            break
        before = len(buffer)
        for start, stop in ranges:
            assert 0 <= start < stop <= len(content)
            buffer.add(start, content[start:stop])
        assert len(buffer) > before
    else:
        pytest.fail("20 rounds were not enough")
    with tifffile.TiffFile(SparseFile(buffer)) as found, tifffile.TiffFile(io.BytesIO(content)) as complete:
        assert len(found.pages) == len(complete.pages)
        for page, expected in zip(found.pages, complete.pages, strict=True):
            assert {t.code: t.value for t in page.tags} == {t.code: t.value for t in expected.tags}


def classic(entries, following=0):
    return struct.pack("<2sHLH", b"II", 42, 8, len(entries)) + b"".join(entries) + struct.pack("<L", following)


def entry(tag, kind, count, value):
    return struct.pack("<HHLL", tag, kind, count, value)


def whole(content, total=None):
    buffer = SparseBytes(total or len(content))
    buffer.add(0, content)
    return buffer


def test_is_tiff():
    assert all(map(is_tiff, (b"II*\0more", b"MM\0*more", b"II+\0", b"MM\0+")))
    assert not any(map(is_tiff, (b"", b"II", b"II*", b"MM*\0", b"\x89PNG", b"<html>")))


def test_values_elsewhere_are_asked_for():
    content = classic([entry(256, 3, 1, 5), entry(324, 4, 100, 500_000), entry(325, 16, 100, 200_000)])
    assert missing_ranges(whole(content, 900_000)) == [(200_000, 200_800), (500_000, 500_400)]


def test_values_close_together_are_asked_for_together():
    content = classic([entry(324, 4, 100, 500_000), entry(325, 4, 100, 510_000)])
    assert missing_ranges(whole(content, 900_000)) == [(500_000, 510_400)]


def test_a_loop_of_directories_is_refused():
    with pytest.raises(gs.HeaderError, match="loop"):
        missing_ranges(whole(classic([entry(256, 3, 1, 5)], following=8)))


def test_an_endless_chain_is_refused():
    directory = struct.pack("<H", 1) + entry(256, 3, 1, 5)
    chain = [directory + struct.pack("<L", 8 + 18 * (i + 1)) for i in range(MAX_IFDS + 5)]
    with pytest.raises(gs.HeaderError, match="more than"):
        missing_ranges(whole(struct.pack("<2sHL", b"II", 42, 8) + b"".join(chain)))


@pytest.mark.parametrize("tags", [0, ifd.MAX_TAGS + 1, 65535])
def test_an_absurd_number_of_tags_is_refused(tags):
    with pytest.raises(gs.HeaderError, match=f"{tags} tags"):
        missing_ranges(whole(struct.pack("<2sHLH", b"II", 42, 8, tags) + bytes(100)))


def test_more_metadata_than_sense_is_refused():
    for values in ([2**28], [2**24, 2**24 + 1]):
        content = classic([entry(324, 16, count, 5000) for count in values])
        with pytest.raises(gs.HeaderError, match="bytes of metadata"):
            missing_ranges(whole(content, 2**40))


@pytest.mark.parametrize(
    "content",
    [
        b"II*\0",
        b"II+\0\x08\0\0\0\0\0\0\0",
        struct.pack("<2sHL", b"II", 42, 5000),
        struct.pack("<2sHLH", b"II", 42, 8, 3) + bytes(20),
        classic([entry(324, 4, 100, 5000)]),
        classic([entry(256, 3, 1, 5)], following=9999),
    ],
)
def test_what_lies_past_the_end_is_a_truncated_file(content):
    with pytest.raises(TruncatedError) as caught:
        missing_ranges(whole(content))
    assert isinstance(caught.value, gs.HeaderError)
    assert isinstance(caught.value, gs.ReadError)


def test_text_is_refused():
    with pytest.raises(gs.HeaderError, match="does not begin as a TIFF"):
        missing_ranges(whole(b"hello, this is text"))
