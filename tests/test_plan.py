"""From requests to levels, tiles and ranges, without a byte read."""

import math
from dataclasses import replace

import numpy as np
import pytest
import rasterio
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from rasterio.enums import Resampling

import geostream as gs
from geostream import transport
from geostream.grid import Grid, Window
from geostream.plan import MergeCosts, Request, Source, _merge, plan_job, plan_reads
from geostream.reader import plan_many, read_headers
from geostream.testing.rasters import write_cog
from geostream.transport import Access


def costs_of(max_gap, max_size, max_waste=math.inf):
    """Costs of a link on which a gap of so many bytes takes as long as a request's share of the latency."""
    return MergeCosts(latency=max_gap / 2**20, bandwidth=2**20, in_flight=1, max_size=max_size, max_waste=max_waste)


COSTS = costs_of(2**13, 2**21)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return located(write_cog(tmp_path_factory.mktemp("plan") / "a.tif", shape=(1000, 1200), blocksize=128))


@pytest.fixture(scope="module")
def planes(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "planes.tif"
    return located(write_cog(path, shape=(300, 400), count=4, blocksize=64, driver="GTiff", interleave="band"))


def located(path):
    source = Source(str(path), Access())
    (header,) = transport.run(read_headers([source]))
    return source, header


def asking(scene, window, **changes):
    source, header = scene
    return Request(source, header.grid.part(window), **changes)


def planned(scene, *requests, **costs):
    return plan_reads(requests, {scene[0]: scene[1]}, costs=costs_of(**costs) if costs else COSTS)


def test_an_aligned_request_is_pasted_from_its_own_pixels(scene):
    job = plan_job(asking(scene, Window(-20, 900, 100, 150)), scene[1])
    assert (job.level, job.window, job.offset, job.coordinates) == (0, Window(0, 900, 80, 100), (20, 0), None)
    assert job.bands == (1, 2, 3)


@pytest.mark.parametrize(("shift", "pasted"), [(0.0009, True), (-0.0009, True), (0.0011, False), (0.5, False)])
def test_offsets_within_a_thousandth_of_a_pixel_are_pasted(scene, shift, pasted):
    grid = scene[1].grid
    moved = Grid(64, 64, grid.transform @ Affine.translation(100 + shift, 200), grid.crs)
    job = plan_job(Request(scene[0], moved), scene[1])
    assert (job.offset is not None) == pasted
    assert (job.coordinates is None) == pasted


def test_a_request_beside_the_raster_reads_nothing(scene):
    for window in (Window(1200, 0, 10, 10), Window(-10, 0, 10, 10), Window(0, -500, 10, 10)):
        plan = planned(scene, asking(scene, window))
        assert plan.jobs[0].window is None
        assert plan.fetches == ()
        assert plan.bytes == plan.useful_bytes == 0


def test_the_grid_of_an_overview_is_pasted_from_it(scene):
    header = scene[1]
    assert len(header.overviews) >= 3
    for level, (width, height) in enumerate(header.overviews, 1):
        grid = header.grid.scaled(width, height)
        for resampling in ("nearest", "average"):
            job = plan_job(Request(scene[0], grid, resampling=resampling), header)
            assert job.level == level
            assert job.window == Window(0, 0, width, height)
            assert job.offset == (0, 0)


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "cubic", "average"])
@pytest.mark.parametrize("factor", [0.4, 1.0, 1.55, 1.62, 1.88, 1.93, 2.0, 3.2, 3.3, 3.85, 3.95, 4.0, 7.0, 9.0, 30.0])
def test_the_level_is_the_one_gdal_takes(tmp_path, resampling, factor):
    path = marked(tmp_path / "a.tif", 960, 960, [2, 4, 8])
    side = round(960 / factor)
    header = located(path)[1]
    grid = header.grid.scaled(side, side)
    level = plan_job(Request(Source(str(path), Access()), grid, resampling=resampling), header).level
    assert level == taken_by_gdal(path, side, side, resampling)


@pytest.mark.parametrize(("height", "width"), [(200, 3), (3, 200), (200, 2), (100, 5), (200, 1), (1, 200)])
def test_the_level_is_gdals_for_slim_rasters_too(tmp_path, height, width):
    path = marked(tmp_path / "a.tif", height, width, [2, 4])
    source, header = located(path)
    for rows in {height, -(-height // 2), -(-height // 4), max(1, height * 2 // 3)}:
        for columns in {width, -(-width // 2), -(-width // 4), max(1, width * 2 // 3)}:
            level = plan_job(Request(source, header.grid.scaled(columns, rows)), header).level
            assert level == taken_by_gdal(path, rows, columns, "nearest"), (rows, columns)


@pytest.mark.parametrize("resampling", ["nearest", "average"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 400), (1, 120), (1, 30), (30, 1), (400, 1), (1, 1), (480, 960)])
def test_the_level_of_a_single_row_or_column_is_gdals(tmp_path, rows, columns, resampling):
    path = marked(tmp_path / "a.tif", 960, 960, [2, 4, 8])
    source, header = located(path)
    level = plan_job(Request(source, header.grid.scaled(columns, rows), resampling=resampling), header).level
    assert level == taken_by_gdal(path, rows, columns, resampling)


def test_a_column_of_pixels_is_read_whole(tmp_path):
    source, header = located(marked(tmp_path / "a.tif", 200, 1, [2, 4]))
    assert plan_job(Request(source, header.grid), header).level == 0


def marked(path, height, width, factors):
    """A raster whose pixels name the level they are of."""
    with rasterio.open(
        path, "w", driver="GTiff", width=width, height=height, count=1, dtype="uint8", tiled=True, blockxsize=64,
        blockysize=64, crs="EPSG:32632", transform=Affine(10, 0, 600_000, 0, -10, 5_300_000),
    ) as dataset:  # fmt: skip
        dataset.write(np.full((1, height, width), 100, np.uint8))
    with rasterio.open(path, "r+") as dataset:
        dataset.build_overviews(factors, Resampling.nearest)
    for level in range(len(factors)):
        with rasterio.open(path, "r+", overview_level=level) as dataset:
            dataset.write(np.full((1, *dataset.shape), 101 + level, np.uint8))
    return path


def taken_by_gdal(path, rows, columns, resampling):
    with rasterio.open(path) as dataset:
        seen = dataset.read(1, out_shape=(rows, columns), resampling=Resampling[resampling])
    assert seen.min() == seen.max()
    return int(seen[0, 0]) - 100


def test_each_tile_is_named_once_and_lies_in_one_range(scene):
    windows = [Window(100 * i, 60 * i, 256, 256) for i in range(5)]
    plan = planned(scene, *[asking(scene, w) for w in windows], asking(scene, windows[0]), asking(scene, windows[2]))
    keys = [key for fetch in plan.fetches for key, _, _ in fetch.tiles]
    assert len(keys) == len(set(keys)) == len(plan.tiles)
    assert set(keys) == {key for needs in plan.needs for key in needs}
    assert plan.needs[5] == plan.needs[0]
    across = math.ceil(1200 / 128)
    expected = {
        row * across + column
        for w in windows
        for row in range(w.row_off // 128, -(-w.row_stop // 128))
        for column in range(w.col_off // 128, -(-w.col_stop // 128))
    }
    assert {key[2] for key in keys} == expected
    for fetch in plan.fetches:
        assert fetch.start == min(start for _, start, _ in fetch.tiles)
        assert fetch.stop == max(stop for _, _, stop in fetch.tiles)


def test_ranges_merge_over_small_gaps_up_to_a_size(scene):
    request = asking(scene, Window(0, 0, 1200, 1000))
    table = scene[1].levels[0].image
    apart = planned(scene, request, max_gap=0, max_size=1)
    assert len(apart.fetches) == len(table.offsets) == 80
    assert apart.bytes == apart.useful_bytes == int(table.counts.sum())
    together = planned(scene, request, max_gap=2**20, max_size=2**40)
    assert len(together.fetches) == 1
    assert together.useful_bytes == apart.useful_bytes
    limited = planned(scene, request, max_gap=2**20, max_size=100_000)
    assert 1 < len(limited.fetches) < 80
    assert all(fetch.stop - fetch.start <= max(100_000, int(table.counts.max())) for fetch in limited.fetches)


def test_planes_of_other_bands_are_left_alone(planes):
    needed = {key[2] for key in planned(planes, asking(planes, Window(0, 0, 10, 10), bands=(3, 1, 3))).needs[0]}
    plane = 7 * 5
    assert needed == {0, 2 * plane}


def test_an_error_is_the_outcome_of_its_own_request_only(scene):
    good = asking(scene, Window(0, 0, 10, 10))
    plan = planned(scene, good, replace(good, bands=(4,)), good, replace(good, bands=()))
    assert [type(job).__name__ for job in plan.jobs] == ["Job", "ConfigError", "Job", "ConfigError"]
    assert "bands [4]" in str(plan.jobs[1])
    assert "bands 1 to 3" in str(plan.jobs[1])
    assert plan.needs[1] == ()
    failed = plan_reads([good], {scene[0]: gs.HeaderError("no raster")}, costs=COSTS)
    assert isinstance(failed.jobs[0], gs.HeaderError)
    assert failed.fetches == ()


def test_a_tile_past_the_end_of_the_file_fails_before_it_is_asked_for(scene):
    header = replace(scene[1], total=int(scene[1].levels[0].image.offsets.max()) + 1)
    requests = [asking(scene, Window(0, 0, 1200, 1000)), asking(scene, Window(0, 0, 10, 10))]
    plan = plan_reads(requests, {scene[0]: header}, costs=COSTS)
    assert isinstance(plan.jobs[0], gs.ReadError)
    assert "past the end of the file" in str(plan.jobs[0])
    assert not isinstance(plan.jobs[1], Exception)


def test_a_gap_costs_what_a_request_would():
    costs = MergeCosts(latency=0.04, bandwidth=90e6, in_flight=256, max_size=2**21, max_waste=0.05)
    assert costs.max_gap == int(0.04 / 256 * 90e6)
    assert replace(costs, latency=0.15).max_gap == int(0.15 / 256 * 90e6)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 400)), min_size=1, max_size=40),
    waste=st.floats(0, 0.5),
)
def test_gaps_stay_within_their_share(sizes, waste):
    tiles, at = [], 0
    for i, (size, gap) in enumerate(sizes):
        tiles.append(((0, 0, i), at, at + size))
        at += size + gap
    fetches = _merge(tiles, costs_of(300, 10**9, waste))
    assert [tile for fetch in fetches for tile in fetch.tiles] == tiles
    for fetch in fetches:
        useful = sum(stop - start for _, start, stop in fetch.tiles)
        assert fetch.stop - fetch.start <= useful * (1 + waste)


def test_a_plan_explains_itself(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(600, 600), count=1, blocksize=128)
    grid = gs.info(path)
    source = Source(str(path), Access())
    whole = Grid(600, 600, grid["transform"], grid["crs"])
    inside, shifted = whole.part(Window(10, 10, 50, 50)), whole.scaled(599, 599)
    outside = whole.part(Window(900, 900, 5, 5))
    resampled = Request(source, shifted, resampling="bilinear")
    plan = plan_many([Request(source, inside), resampled, Request(source, outside)])
    text = plan.explain()
    assert "with 40 ms to an answer, 256 requests at once and 90 MB/s on a connection, tiles share a request" in text
    assert "gap between them is at most 14062 bytes, the request at most 2097152 bytes, and its gaps at most 5%" in text
    assert f"{len(plan.tiles)} tiles of 1 files: {len(plan.fetches)} requests, {plan.bytes} bytes" in text
    assert "read 0: 50 x 50 pixels at column 10, row 10 of full resolution, pasted" in text
    assert "resampled (bilinear) to 599 x 599" in text
    assert "read 2: nothing" in text
    for fetch in plan.fetches:
        assert f"bytes {fetch.start}-{fetch.stop - 1} ({fetch.stop - fetch.start}): " in text
