"""Tile batches: over files that are read, every tile is fetched once, and only by one rank."""

import itertools
import re
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
import torch
from affine import Affine

import geostream as gs
from geostream import reader
from geostream.errors import ConfigError
from geostream.grid import pixel_count
from geostream.samplers import TileBatchGeoSampler, TileReport
from geostream.samplers import tile as tile_module
from geostream.scan import build_index, load_index
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog

WEST, NORTH, RES = 600_000.0, 5_300_000.0, 10.0
APART = 1000
"""Pixels between the left edges of neighbouring scenes."""


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


def write(root, name, number, shape, tile, count=1, *, res=RES, **options):
    rng = np.random.default_rng(number)
    data = rng.integers(0, 250, (count, *shape), dtype=np.uint8)
    corner = Affine(res, 0, WEST + APART * RES * number, 0, -res, NORTH)
    options = {"compress": "NONE", "overviews": False, "driver": "GTiff", **options}
    return write_cog(root / f"{name}_{number}.tif", data, transform=corner, blocksize=tile, **options)


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def place(query):
    """(scene, row, col, height, width) of a chip in pixels."""
    x, y, _ = query
    col, row = round((x.start - WEST) / RES), round((NORTH - y.stop) / RES)
    return col // APART, row, col % APART, pixel_count(y.stop - y.start, y.step), pixel_count(x.stop - x.start, x.step)


def tiles_under(query, shapes):
    scene, row, col, height, width = place(query)
    down, across = shapes[scene]
    rows, cols = (
        range(row // down, (row + height - 1) // down + 1),
        range(col // across, (col + width - 1) // across + 1),
    )
    return {(scene, r, c) for r in rows for c in cols}


def tiles_of(root, glob="img_*.tif"):
    shapes, tiles = {}, set()
    for path in root.glob(glob):
        with rasterio.open(path) as file:
            number = int(path.stem[-1])
            shapes[number] = down, across = file.block_shapes[0]
            tiles |= {(number, r, c) for r in range(-(-file.height // down)) for c in range(-(-file.width // across))}
    return shapes, tiles


def read(dataset, sampler):
    """An epoch read with batches in flight: the batches, and what it took."""
    with gs.stats.measure() as used:
        batches = list(gs.DataLoader(dataset, batch_sampler=sampler))
    return batches, used


def test_an_epoch_fetches_and_decodes_every_tile_once(range_server, tmp_path):
    for number in range(3):
        write(tmp_path, "img", number, (512, 512), 128)
    images = Images(range_server.s3_url(), storage_options=range_server.storage_options)
    sampler = TileBatchGeoSampler(images, 64, 16, generator=seeded())
    assert sampler.blocks == 48
    assert len(sampler) == sampler.total == 48 * 4 // 16
    before = len(range_server.log)
    for epoch in range(2):
        batches, used = read(images, sampler)
        assert [len(batch["image"]) for batch in batches] == [16] * 12
        expected = sampler.report(epoch)
        assert expected.tiles_decoded == expected.tiles == 48
        assert (expected.tiles_per_chip, expected.area_per_chip) == (0.25, 1.0)
        if epoch == 0:
            assert used.tiles == 48
            assert used.useful_bytes == 3 * 512 * 512
            spans = sorted((asked.path, asked.start, asked.stop) for asked in range_server.log[before:])
            assert all(one[0] != two[0] or one[2] <= two[1] for one, two in itertools.pairwise(spans)), "no byte twice"
            assert sum(stop - start for _, start, stop in spans) == used.bytes < 1.05 * used.useful_bytes
        else:
            assert used.tiles == 0, "three scenes fit the cache"


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(("size", "tiles"), [((700, 500), (128, 256)), ((257, 511), (64, 128))])
def test_tiles_that_chips_do_not_divide_and_scenes_of_several_tile_sizes(tmp_path, lanes, size, tiles):
    for number, tile in enumerate(tiles):
        write(tmp_path, "img", number, size, tile)
    images = Images(tmp_path)
    sampler = TileBatchGeoSampler(images, (48, 70), 8, generator=seeded(), lanes=lanes)
    shapes, every = tiles_of(tmp_path)
    seen = np.zeros((2, *size), int)
    touched = set()
    for epoch in range(25):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for query in (query for batch in batches for query in batch):
            scene, row, col, height, width = place(query)
            assert (height, width) == (48, 70)
            assert 0 <= row <= size[0] - height
            assert 0 <= col <= size[1] - width
            seen[scene, row : row + height, col : col + width] += 1
            touched |= tiles_under(query, shapes)
    assert touched == every
    assert seen.min() > 0, "every pixel is drawn sooner or later"
    sampler.set_epoch(0)
    report = sampler.report(0)
    _, used = read(images, sampler)
    assert used.tiles == report.tiles_decoded == report.tiles <= len(every)


@pytest.mark.parametrize(("chip", "tile", "side"), [(64, 128, 128), (64, 64, 128), (100, 64, 192), (128, 64, 256)])
def test_blocks_are_as_large_as_chips_need(tmp_path, chip, tile, side):
    write(tmp_path, "img", 0, (768, 768), tile)
    sampler = TileBatchGeoSampler(Images(tmp_path), chip, 4, generator=seeded())
    assert sampler.blocks == (768 // side) ** 2
    for query in (query for batch in sampler for query in batch):
        _, row, col, _, _ = place(query)
        assert row // side == (row + chip - 1) // side, "no chip leaves its block"
        assert col // side == (col + chip - 1) // side
    assert 0.5 < sampler.report().area_per_chip <= 1.33


def test_images_with_masks_are_decoded_once_too(tmp_path):
    for number in range(2):
        write(tmp_path, "img", number, (512, 512), 128, count=3)
        write(tmp_path, "lab", number, (512, 512), 256)
    images, labels = Images(tmp_path), Labels(tmp_path)
    for pairs in (images & labels, labels & images):
        sampler = TileBatchGeoSampler(pairs, 64, 8, generator=seeded())
        assert sampler.blocks == 32, "the image's tiles decide"
        assert sampler._block_bytes == 128 * 128 * 3 + 256 * 256
        batches, used = read(pairs, sampler)
        assert used.tiles in {32 + 8, 0}
        assert batches[0]["image"].shape == (8, 3, 64, 64)
        assert batches[0]["mask"].shape == (8, 64, 64)


def test_an_intersection_is_restricted_to_what_both_have(tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    write_cog(
        tmp_path / "lab_0.tif",
        np.zeros((1, 300, 300), np.uint8),
        transform=Affine(RES, 0, WEST + 100 * RES, 0, -RES, NORTH - 100 * RES),
        blocksize=128,
    )
    sampler = TileBatchGeoSampler(Images(tmp_path) & Labels(tmp_path), 64, 4, generator=seeded())
    shapes = {0: (128, 128)}
    touched = set()
    for query in (query for batch in sampler for query in batch):
        _, row, col, _, _ = place(query)
        assert 100 <= row <= 400 - 64
        assert 100 <= col <= 400 - 64
        touched |= tiles_under(query, shapes)
    # The region is 28 + 128 + 128 + 16 pixels of tiles wide: the ends, too small for a chip, go with their neighbours.
    assert sampler.blocks == 4
    assert len(touched) <= 16


def test_scenes_of_another_zone_or_resolution_are_sampled_by_footprint(tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    write_cog(
        tmp_path / "img_1.tif",
        np.ones((1, 512, 512), np.uint8),
        crs="EPSG:32633",
        transform=Affine(RES, 0, 165_000.0, 0, -RES, 5_300_000.0),
        blocksize=128,
    )
    images = Images(tmp_path)
    sampler = TileBatchGeoSampler(images, 64, 8, generator=seeded())
    assert [grid.aligned for grid in sampler._grids] == [True, False]
    assert sampler._grids[1].block == (2, 2)
    batches, used = read(images, sampler)
    assert sum(len(batch["image"]) for batch in batches) == sampler.length
    assert used.tiles < sampler.length, "still less than a tile a chip"
    coarse = Images(tmp_path, res=2 * RES)
    grids = TileBatchGeoSampler(coarse, 64, 8, generator=seeded())._grids
    assert not any(grid.aligned for grid in grids)
    assert [grid.tile for grid in grids] == [(64, 64), (128, 128)], "the second has an overview to read from"


@pytest.mark.parametrize("world_size", [2, 4])
def test_no_two_ranks_read_the_same_tile(tmp_path, world_size):
    for number, tile in enumerate([64, 128]):
        write(tmp_path, "img", number, (640, 768), tile)
    images = Images(tmp_path)
    shapes, every = tiles_of(tmp_path)
    whole = list(TileBatchGeoSampler(images, 60, 8, generator=seeded()))
    ranks = [
        TileBatchGeoSampler(images, 60, 8, generator=seeded(), rank=r, world_size=world_size) for r in range(world_size)
    ]
    shares = [list(sampler) for sampler in ranks]
    assert [batch for step in zip(*shares, strict=True) for batch in step] == whole
    touched = [{t for batch in share for query in batch for t in tiles_under(query, shapes)} for share in shares]
    assert sum(map(len, touched)) == len(set.union(*touched))
    assert [sampler.report(0).tiles for sampler in ranks] == [len(tiles) for tiles in touched]
    assert sum(sampler.report(0).tiles_decoded for sampler in ranks) == len(set.union(*touched)) <= len(every)


def test_more_ranks_than_lanes_are_told_so(tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    with pytest.warns(UserWarning, match=r"3 ranks.*lanes=3"):
        next(iter(TileBatchGeoSampler(Images(tmp_path), 64, 4, generator=seeded(), rank=0, world_size=3)))
    next(iter(TileBatchGeoSampler(Images(tmp_path), 64, 4, generator=seeded(), rank=0, world_size=3, lanes=3)))


@pytest.mark.parametrize(
    ("shape", "chip", "batch_size", "remedy"),
    [
        ((128, 1280), 32, 4, r"Pass batch_size=16$"),
        ((128, 1280), 13, 4, "take 2 of them"),
        ((128, 128), 64, 4, "take 1 of them"),
    ],
)
def test_the_remedy_for_ranks_that_share_tiles_helps(tmp_path, shape, chip, batch_size, remedy):
    write(tmp_path, "img", 0, shape, 128)
    images = Images(tmp_path)

    def start(**options):
        options = {"batch_size": batch_size, "generator": seeded(), "rank": 0, "world_size": 4, "block": 1, **options}
        next(iter(TileBatchGeoSampler(images, chip, **options)))

    with pytest.warns(UserWarning, match="4 ranks") as told:
        start()
    message = str(told[0].message)
    assert "lanes=4" not in message, "that is the default"
    assert re.search(remedy, message)
    helps = re.search(r"batch_size=(\d+)", message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(**({"batch_size": int(helps[1])} if helps else {"world_size": int(remedy.split()[1])}))


def test_regions_of_one_scene_that_share_tiles_stay_together(tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    for number, (col, width) in enumerate([(0, 200), (200, 312)]):
        write_cog(
            tmp_path / f"lab_{number}.tif",
            np.zeros((1, 512, width), np.uint8),
            transform=Affine(RES, 0, WEST + col * RES, 0, -RES, NORTH),
            blocksize=128,
        )
    pairs = Images(tmp_path) & Labels(tmp_path)
    samplers = [TileBatchGeoSampler(pairs, 64, 4, generator=seeded(), rank=r, world_size=4) for r in range(4)]
    assert len(samplers[0].regions) == 2
    touched = [{t for b in sampler for query in b for t in tiles_under(query, {0: (128, 128)})} for sampler in samplers]
    assert sum(map(len, touched)) == len(set.union(*touched)) == 16


def one(height=512, width=512, count=1):
    scenes = [MemoryScene(np.zeros((1, height, width), np.uint8), (APART * RES * i, 0.0)) for i in range(count)]
    return MemoryDataset(scenes)


def test_lengths():
    def make(*length, lanes=1):
        return TileBatchGeoSampler(one(count=8), 128, 10, *length, generator=seeded(), block=1, lanes=lanes)

    whole = make()
    assert make(lanes=4).length == 160, "four lanes of 32 chips in four batches each"
    assert whole.length == 130, "8 blocks of 16 chips, and two more chips in tiles that are open"
    chips = [query for batch in whole for query in batch]
    assert len(chips) == 130
    assert len({(x.start, y.start) for x, y, _ in chips[:128]}) >= 120
    short = make(35)
    assert len(short) == len(list(short)) == 3
    whole.set_epoch(1)
    assert list(short) == list(whole)[:3]
    long = make(400)
    batches = list(long)
    assert len(batches) == len(long) == 40
    whole.set_epoch(0)
    assert batches[:13] == list(whole)
    assert batches[13:26] != batches[:13], "another permutation follows"
    per_scene = Counter(int(x.start // (APART * RES)) for batch in batches[13:26] for x, _, _ in batch)
    assert min(per_scene.values()) >= 16


def test_scenes_smaller_than_a_chip():
    with pytest.raises(ConfigError, match="pad=True"):
        TileBatchGeoSampler(one(40, 100), 64, 2)
    padded = TileBatchGeoSampler(one(40, 100), 64, 2, generator=seeded(), pad=True)
    for query in (query for batch in padded for query in batch):
        assert query[1].stop >= 0.0
        assert query[1].start <= -40.0


def test_a_region_of_interest_and_a_time():
    dataset = one()
    triangle = shapely.Polygon([(0, 0), (512, 0), (0, -512)])
    sampler = TileBatchGeoSampler(dataset, 32, 8, roi=triangle, generator=seeded(), block=1)
    chips = [query for batch in sampler for query in batch]
    assert len(chips) == sampler.length == 128, "half of 16 x 16"
    for x, y, _ in chips:
        assert shapely.box(x.start, y.start, x.stop, y.stop).intersects(triangle)
    with pytest.raises(ConfigError, match="no scene"):
        TileBatchGeoSampler(dataset, 32, 8, toi=pd.Interval(pd.Timestamp(1999, 1, 1), pd.Timestamp(1999, 1, 2)))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "length": 3}, "length"),
        ({"tiles_per_batch": 0}, "tiles_per_batch"),
        ({"tiles_per_batch": 9}, "tiles_per_batch"),
        ({"tiles_per_batch": 4, "buffer": 8}, "buffer=16"),
        ({"buffer": 0}, "buffer"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": None}, "lanes"),
        ({"block": 0}, "block"),
        ({"block": 1, "size": 600}, "block"),
    ],
)
def test_bad_knobs_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        TileBatchGeoSampler(one(2048, 2048), **{"size": 64, "batch_size": 8, **options})


def test_knobs_trade_memory_for_mixing(tmp_path):
    for number in range(4):
        write(tmp_path, "img", number, (768, 768), 128)
    images = Images(tmp_path)
    reports = [
        TileBatchGeoSampler(images, 64, 16, generator=seeded(), tiles_per_batch=tiles, buffer=4 * tiles).report()
        for tiles in (4, 8, 16)
    ]
    assert all(isinstance(report, TileReport) for report in reports)
    assert reports[0].blocks_per_batch == 4
    assert reports[0].shuffle_quality < reports[1].shuffle_quality < reports[2].shuffle_quality
    assert reports[0].shuffle_quality < 0.35
    assert reports[2].shuffle_quality > 0.75
    assert [report.tiles_decoded for report in reports] == [144] * 3


def test_the_default_buffer_fills_half_the_cache(tmp_path, monkeypatch):
    write(tmp_path, "img", 0, (1024, 1024), 128)
    images = Images(tmp_path)
    assert tile_module._OPEN_BYTES == reader.CACHE_BYTES // 2
    monkeypatch.setattr(tile_module, "_OPEN_BYTES", 20 * 128 * 128)
    monkeypatch.setattr(reader, "CACHE_BYTES", 40 * 128 * 128)
    sampler = TileBatchGeoSampler(images, 64, 16, generator=seeded())
    assert sampler.buffer == 20
    assert sampler.tiles_per_batch == 5
    assert sampler.report().tiles_decoded == 64, "so a cache of that size decodes every tile once"
    greedy = TileBatchGeoSampler(images, 64, 16, generator=seeded(), buffer=64)
    assert greedy.report().tiles_decoded > 64


def test_a_saved_index_knows_the_tiles(tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    images = Images(tmp_path)
    build_index(str(tmp_path / "img_0.tif")).save(tmp_path / "index.parquet")
    saved = Images(index=load_index(tmp_path / "index.parquet"))
    first, second = (TileBatchGeoSampler(dataset, 64, 8, generator=seeded()) for dataset in (images, saved))
    assert list(first) == list(second)
    assert first._block_bytes == second._block_bytes == 128 * 128


def test_bands_in_files_of_their_own(tmp_path):
    class Bands(gs.RasterDataset):
        filename_glob = "img_*_B02.tif"
        filename_regex = r"^img_\d_(?P<band>B\d\d)"
        separate_files = True
        all_bands = ("B02", "B03")

    for number in range(2):
        for band in ("B02", "B03"):
            write(tmp_path, "img", number, (512, 512), 128).rename(tmp_path / f"img_{number}_{band}.tif")
    bands = Bands(tmp_path)
    sampler = TileBatchGeoSampler(bands, 64, 8, generator=seeded())
    assert sampler._block_bytes == 2 * 128 * 128
    batches, used = read(bands, sampler)
    assert used.tiles == 2 * 32
    assert batches[0]["image"].shape == (8, 2, 64, 64)
    assert sampler.report(0).tiles_decoded == 32, "counted as those of one band"


def test_strips(tmp_path):
    write(tmp_path, "img", 0, (256, 300), None)
    images = Images(tmp_path)
    with rasterio.open(tmp_path / "img_0.tif") as file:
        rows = file.block_shapes[0][0]
    sampler = TileBatchGeoSampler(images, 64, 4, generator=seeded())
    assert sampler._grids[0].tile == (rows, 300)
    batches, _ = read(images, sampler)
    assert {tuple(batch["image"].shape) for batch in batches} == {(4, 1, 64, 64)}


def test_nothing_is_read_or_drawn_by_constructing_or_reporting(range_server, tmp_path):
    write(tmp_path, "img", 0, (512, 512), 128)
    images = Images(range_server.s3_url(), storage_options=range_server.storage_options)
    before = len(range_server.log)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    sampler = TileBatchGeoSampler(images, 64, 8)
    iterator = iter(sampler)
    assert len(sampler) == 8
    assert torch.equal(torch.get_rng_state(), state)
    report = sampler.report()
    assert len(range_server.log) == before
    first = list(iterator)
    assert report == sampler.report(0)
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_scenes_of_two_zones_warn_of_nothing(tmp_path):
    write(tmp_path, "img", 0, (256, 256), 128)
    write(tmp_path, "img", 1, (256, 256), 128, crs="EPSG:32633")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(TileBatchGeoSampler(Images(tmp_path), 64, 4, generator=seeded()))
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as told:
            TileBatchGeoSampler(Images(tmp_path), 64, 4)
    assert not told
