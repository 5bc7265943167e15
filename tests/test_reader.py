"""What reading costs, counted: requests and bytes are the plan's and the server's, and nothing is done twice."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from affine import Affine

import geostream as gs
from geostream import transport
from geostream.grid import Grid, Window
from geostream.opening import FIRST_READ
from geostream.plan import Request, Source, plan_reads
from geostream.reader import COSTS, read_headers, read_many, submit_many
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import random_window, reference_read, write_cog
from geostream.transport import Access

SHAPE = (1024, 1024)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """An image, and an image with an internal mask."""
    folder = tmp_path_factory.mktemp("reader")
    mask = np.random.default_rng(1).random(SHAPE) < 0.7
    return [
        write_cog(folder / "image.tif", shape=SHAPE, blocksize=128, count=4),
        write_cog(folder / "masked.tif", shape=SHAPE, blocksize=128, seed=2, mask=mask),
    ]


@pytest.fixture
def scenes(paths):
    """A server, and two sources on it with their headers and paths."""
    with RangeServer(paths[0].parent) as server:
        sources = [Source(server.url_for(path.name), Access()) for path in paths]
        headers = transport.run(read_headers(sources))
        server.reset()
        yield server, dict(zip(sources, headers, strict=True)), dict(zip(sources, paths, strict=True))


def batch(headers, count=16, size=256):
    rng = np.random.default_rng(5)
    sources = list(headers)
    return [
        Request(sources[i % 2], headers[sources[i % 2]].grid.part(random_window(rng, SHAPE, size, outside=0.3)))
        for i in range(count)
    ]


def assert_served(server, plan):
    """The server's log holds the plan's ranges, each once, and nothing else."""
    asked = sorted((plan.sources[f.source].url, f.start, f.stop) for f in plan.fetches)
    assert sorted((server.url_for(s.path), s.start, s.stop) for s in server.log) == asked
    assert {served.method for served in server.log} <= {"GET"}
    assert server.counters.bytes_sent == plan.bytes


def test_a_batch_of_sixteen_costs_what_its_plan_says(scenes):
    server, headers, paths = scenes
    requests = batch(headers)
    plan = plan_reads(requests, headers, costs=COSTS)
    with gs.stats.measure() as measured:
        patches = read_many(requests)
    assert_served(server, plan)
    unique = {key for needs in plan.needs for key in needs}
    assert 0 < len(unique) < sum(map(len, plan.needs))  # windows overlap
    assert measured.tiles == len(unique) == len(plan.tiles)
    assert measured.requests == len(plan.fetches)
    assert measured.bytes == plan.bytes
    assert measured.useful_bytes == plan.useful_bytes
    assert (measured.retries, measured.hedges, measured.cache_hits) == (0, 0, 0)
    for request, patch in zip(requests, patches, strict=True):
        place = headers[request.source].grid.paste_window(request.grid)
        data, valid = reference_read(paths[request.source], place)
        np.testing.assert_array_equal(patch.data, data)
        np.testing.assert_array_equal(patch.valid, valid)


def test_duplicates_cost_nothing(scenes):
    server, headers, _ = scenes
    requests = batch(headers, 4)
    plan = plan_reads(requests, headers, costs=COSTS)
    with gs.stats.measure() as measured:
        patches = read_many([*requests, *requests, requests[0]])
    assert_served(server, plan)
    assert measured.tiles == len(plan.tiles)
    assert measured.useful_bytes == plan.useful_bytes
    for patch, again in zip(patches, patches[4:8], strict=False):
        np.testing.assert_array_equal(patch.data, again.data)


def test_batches_in_flight_together_share_their_tiles(scenes):
    server, headers, _ = scenes
    first, second = batch(headers, 8), batch(headers, 16)
    both = plan_reads([*first, *second], headers, costs=COSTS)
    with gs.stats.measure() as measured:
        futures = [submit_many(first), submit_many(second)]
        outcomes = [future.result() for future in futures]
    assert [len(patches) for patches in outcomes] == [8, 16]
    assert measured.tiles == len(both.tiles)
    asked = [(s.path, s.start, s.stop) for s in server.log]
    assert len(asked) == len(set(asked)) == measured.requests
    assert measured.useful_bytes == both.useful_bytes


def test_resampled_requests_cost_what_the_plan_says(scenes):
    server, headers, _ = scenes
    requests = [
        replace(r, grid=moved(r.grid), resampling=how)
        for r, how in zip(batch(headers, 8), ["nearest", "bilinear", "cubic", "average"] * 2, strict=True)
    ]
    plan = plan_reads(requests, headers, costs=COSTS)
    with gs.stats.measure() as measured:
        assert all(not isinstance(outcome, Exception) for outcome in read_many(requests))
    assert_served(server, plan)
    assert measured.tiles == len(plan.tiles)


def moved(grid):
    return Grid(grid.width, grid.height, grid.transform @ Affine.translation(0.4, 0.7), grid.crs)


def test_nothing_is_asked_for_where_nothing_is(scenes):
    server, headers, _ = scenes
    source = next(iter(headers))
    (patch,) = read_many([Request(source, headers[source].grid.part(Window(5000, 5000, 20, 10)))])
    assert patch.data.shape == (4, 10, 20)
    assert not patch.data.any()
    assert not patch.valid.any()
    assert server.log == []
    assert read_many([]) == []


def test_a_failing_file_fails_alone(scenes):
    server, headers, _ = scenes
    requests = batch(headers, 6)
    server.faults.add(Fault("status", status=403, path="masked.tif"))
    outcomes = read_many(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        if request.source.url.endswith("masked.tif"):
            assert isinstance(outcome, gs.ReadError)
            assert outcome.status == 403
        else:
            assert outcome.valid.shape == outcome.data.shape[1:]
    server.faults.clear()
    assert all(not isinstance(outcome, Exception) for outcome in read_many(requests))  # failures are not remembered


def test_a_request_for_more_pixels_than_memory_fails_alone(scenes):
    _, headers, _ = scenes
    source = next(iter(headers))
    good = Request(source, headers[source].grid.part(Window(0, 0, 10, 10)))
    huge = Request(source, headers[source].grid.part(Window(0, 0, 2**40, 2**40)))
    outcomes = read_many([good, huge, good])
    assert isinstance(outcomes[1], MemoryError | ValueError)
    np.testing.assert_array_equal(outcomes[0].data, outcomes[2].data)


@pytest.mark.parametrize("faults", [[], [Fault("no_etag")]], ids=["with ETags", "without"])
def test_tiles_of_an_earlier_version_are_not_taken(tmp_path, faults):
    layout = {"blocksize": 64, "driver": "GTiff", "compress": "NONE", "overviews": False}
    files = [
        write_cog(tmp_path / f"{n}.tif", np.full((1, 200, 200), n, np.uint8), **layout).read_bytes() for n in (1, 2)
    ]
    store = {}
    with RangeServer(store, faults=faults) as server:
        for n, content in enumerate(files, 1):
            store["a.tif"] = content
            assert (gs.read(server.url_for("a.tif")).data == n).all()
        with gs.stats.measure() as measured:
            gs.read(server.url_for("a.tif"))
        assert measured.cache_hits == (0 if faults else 16)


def test_headers_are_read_once_however_many_ask(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(300, 300), blocksize=128)
    with RangeServer(tmp_path) as server:
        source = Source(server.url_for(path.name), Access())
        first = transport.run(read_headers([source] * 5))
        again = transport.run(read_headers([source]))
        assert len(server.log) == 1
        assert all(header is first[0] for header in [*first, *again])


def opened(server, name):
    server.reset()
    with gs.stats.measure() as measured:
        info = gs.info(server.url_for(name))
    assert server.counters.head == server.counters.list == 0
    assert info["requests"] == measured.requests == server.counters.get
    assert info["bytes"] == measured.bytes == server.counters.bytes_sent
    return info["requests"], info["bytes"]


SMALL = {
    "cog": {},
    "with a mask": {"mask": np.ones((700, 700), bool)},
    "without overviews": {"overviews": False},
    "bigtiff": {"bigtiff": True},
    "big endian": {"big_endian": True},
    "planes": {"interleave": "band", "driver": "GTiff"},
}


@pytest.mark.parametrize("layout", SMALL.values(), ids=SMALL)
def test_opening_takes_one_request_where_the_metadata_fits_it(tmp_path, layout):
    path = write_cog(tmp_path / "a.tif", shape=(700, 700), blocksize=128, compress="NONE", **layout)
    assert path.stat().st_size > FIRST_READ
    with RangeServer(tmp_path) as server:
        assert opened(server, "a.tif") == (1, FIRST_READ)


@pytest.mark.parametrize("tables", ["behind all directories", "behind each directory"])
@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_opening_takes_two_requests_where_tile_tables_are_large(masked, bigtiff, tables):
    content = large_cog(60_000, masked=masked, bigtiff=bigtiff, tables_last=tables == "behind all directories")
    with RangeServer({"a.tif": content}) as server:
        requests, size = opened(server, "a.tif")
        assert requests == 2
        assert size <= len(content) + FIRST_READ  # hardly a byte twice
        info = gs.info(server.url_for("a.tif"))
        assert info["reader"] == "geostream", info["reason"]
        assert info["size"] == (60_000, 60_000)
        assert info["overviews"] == [2, 4, 8, 16, 32, 64, 128]
        assert info["masks"] == ("internal mask" if masked else "all valid")
        server.reset()
        patch = gs.read(server.url_for("a.tif"), window=(59_904, 59_904, 192, 192))
        np.testing.assert_array_equal(patch.data[0, :96, :96], 7)
        np.testing.assert_array_equal(patch.valid, np.pad(np.full((96, 96), True), ((0, 96), (0, 96))))
        assert server.counters.get == requests + 1  # the tile and its mask's lie side by side


def test_opening_takes_three_requests_where_directories_lie_at_the_end(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 255, (1, 3000, 3000), dtype=np.uint8)
    write_cog(tmp_path / "a.tif", data, blocksize=128, ifds_at_end=True, compress="NONE")
    with RangeServer(tmp_path) as server:
        requests, size = opened(server, "a.tif")
        assert requests <= 3
        assert size < 2**17


def large_cog(side, *, masked, bigtiff, tables_last):
    """A COG as large as scenes come, of which only the last tile of each image is stored."""
    sizes = [side]
    while sizes[-1] > 512:
        sizes.append(-(-sizes[-1] // 2))
    stored = {1: zlib.compress(bytes([7]) * 512**2), 4: zlib.compress(bytes([255]) * (512**2 // 8))}
    images = [(size, kind) for size in sizes for kind in ((1, 4) if masked else (1,))]
    pixels = 700_000
    order = [stored[kind] for _, kind in images]
    places = [pixels + sum(map(len, order[:i])) for i in range(len(order))]
    word, count, pair = ("Q", 8, 20) if bigtiff else ("L", 2, 12)
    room = 8 if bigtiff else 4
    head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if bigtiff else struct.pack("<2sHL", b"II", 42, 8)
    entries = [_entries(size, kind, place, len(stored[kind]), first=i == 0, bigtiff=bigtiff)
               for i, ((size, kind), place) in enumerate(zip(images, places, strict=True))]  # fmt: skip
    at, values, end = _laid_out(entries, len(head), count, pair, room, tables_last=tables_last)
    assert end < pixels
    content = bytearray(pixels) + b"".join(order)
    content[: len(head)] = head
    for i, tags in enumerate(entries):
        directory = struct.pack("<Q" if bigtiff else "<H", len(tags))
        for tag, kind, number, value in tags:
            field = struct.pack("<" + word, values[i, tag]) if (i, tag) in values else value.ljust(room, b"\0")
            directory += struct.pack("<HH" + word, tag, kind, number) + field
            if (i, tag) in values:
                content[values[i, tag] : values[i, tag] + len(value)] = value
        directory += struct.pack("<" + word, at[i + 1] if i + 1 < len(at) else 0)
        content[at[i] : at[i] + len(directory)] = directory
    return bytes(content)


def _laid_out(entries, start, count, pair, room, *, tables_last):
    """Where directories lie, where the values that they point to, and where all that ends."""
    at, values, end = [], {}, start
    later = []
    for i, tags in enumerate(entries):
        at.append(end)
        end += count + pair * len(tags) + room
        for tag, _, _, value in tags:
            if tables_last and tag in {324, 325}:
                later.append((i, tag, value))
            elif len(value) > room:
                values[i, tag], end = end, end + len(value)
    for i, tag, value in later:
        if len(value) > room:
            values[i, tag], end = end, end + len(value)
    return at, values, end


def _entries(size, photometric, place, length, *, first, bigtiff):
    """TIFF tags (tag, type, count, value) of one image."""
    tiles = (-(-size // 512)) ** 2
    offsets, lengths = np.zeros(tiles, "<u8" if bigtiff else "<u4"), np.zeros(tiles, "<u4")
    offsets[-1], lengths[-1] = place, length
    numbers = [
        (254, 4 * (photometric == 4) + (not first and size < 60_000)),
        (256, size), (257, size), (258, 1 if photometric == 4 else 8), (259, 8), (262, photometric), (277, 1),
        (322, 512), (323, 512),
    ]  # fmt: skip
    tags = [(tag, 4, 1, struct.pack("<L", value)) for tag, value in numbers]
    tags += [(324, 16 if bigtiff else 4, tiles, offsets.tobytes()), (325, 4, tiles, lengths.tobytes())]
    if first:
        tags.append((33550, 12, 3, struct.pack("<3d", 1, 1, 0)))
        tags.append((33922, 12, 6, struct.pack("<6d", 0, 0, 0, 600_000, 5_300_000, 0)))
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32632)
        tags.append((34735, 3, len(keys), struct.pack(f"<{len(keys)}H", *keys)))
    return tags
