"""Ranks of a real process group: one seed, one order, each item once."""

import itertools
import json
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from affine import Affine

import geostream as gs
from geostream.loader import DataLoader
from geostream.samplers import (
    GridGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
)
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog

RANKS = 2


def scenes():
    return [MemoryScene(np.zeros((1, 80, 80), np.uint8), (1000.0 * i, 0.0)) for i in range(3)]


def run(rank, folder, ranks):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # every rank has its own random numbers
    dataset = MemoryDataset(scenes())
    loaders = {
        "batch": DataLoader(dataset, batch_sampler=RandomBatchGeoSampler(dataset, 8, 4, length=40)),
        "tile": DataLoader(dataset, batch_sampler=TileBatchGeoSampler(dataset, 8, 4, length=40)),
        "random": DataLoader(dataset, sampler=RandomGeoSampler(dataset, 8, length=40), batch_size=4),
        "grid": DataLoader(dataset, sampler=GridGeoSampler(dataset, 16), batch_size=4),
    }
    told = {}
    for name, loader in loaders.items():
        epochs = [[batch["bounds"][:, [0, 4]].tolist() for batch in loader] for _ in range(3)]
        iterator = iter(loader)
        next(iterator)
        told[name] = {"epochs": epochs, "state": loader.state_dict(), "length": len(loader)}
    (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_process_group_shares_one_order(tmp_path, ranks):
    mp.start_processes(run, (tmp_path, ranks), nprocs=ranks, start_method="fork")
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for name, first in told[0].items():
        assert all(other[name]["state"] == first["state"] for other in told)
        assert (first["state"]["epoch"], first["state"]["batches"]) == (3, ranks)
        assert {len(epoch) for other in told for epoch in other[name]["epochs"]} == {first["length"]}
    seed = told[0]["batch"]["state"]["seed"]
    assert seed != told[0]["random"]["state"]["seed"]
    dataset = MemoryDataset(scenes())
    alone = {
        "batch": RandomBatchGeoSampler(dataset, 8, 4, length=40),
        "tile": TileBatchGeoSampler(dataset, 8, 4, length=40),
    }
    for name, sampler in alone.items():
        sampler.load_state_dict({**told[0][name]["state"], "epoch": 0, "position": 0})
        for shares in zip(*(other[name]["epochs"] for other in told), strict=True):
            dealt = [batch for batches in zip(*shares, strict=True) for batch in batches]
            order = [[[x.start, y.stop] for x, y, _ in batch] for batch in sampler]
            assert dealt == [*order, *order[: len(dealt) - len(order)]], "one order, dealt in turn"
            assert len(dealt) - len(order) < ranks
    for shares in zip(*(other["grid"]["epochs"] for other in told), strict=True):
        chips = [tuple(place) for share in shares for batch in share for place in batch]
        assert len(set(chips)) == 75
        assert len(chips) - 75 == -75 % ranks, "the last ones have no partners, so the first are dealt again"


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"


def read_over_the_network(rank, folder, url, options):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/tiles", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    images = Images(url, storage_options=options)
    sampler = TileBatchGeoSampler(images, 64, 8)
    with gs.stats.measure() as used:
        batches = sum(1 for _ in DataLoader(images, batch_sampler=sampler))
    told = {"batches": batches, "expected": sampler.report(0).tiles_decoded, "tiles": used.tiles}
    (folder / f"tiles{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def test_no_two_processes_fetch_the_same_tile(tmp_path, range_server):
    tile, scenes, tiles = 128, 2, 16
    for number in range(scenes):
        data = np.random.default_rng(number).integers(0, 250, (1, 512, 512), dtype=np.uint8)
        corner = Affine(10, 0, 600_000 + 6000 * number, 0, -10, 5_300_000)
        path = tmp_path / f"img_{number}.tif"
        write_cog(path, data, transform=corner, blocksize=tile, overviews=False, driver="GTiff", compress="NONE")
    url, options = range_server.s3_url(), range_server.storage_options
    mp.start_processes(read_over_the_network, (tmp_path, url, options), nprocs=RANKS, start_method="spawn")
    told = [json.loads((tmp_path / f"tiles{rank}.json").read_text()) for rank in range(RANKS)]
    assert [share["batches"] for share in told] == [scenes * tiles * 4 // 8 // RANKS] * RANKS
    assert [share["tiles"] for share in told] == [share["expected"] for share in told]
    assert sum(share["tiles"] for share in told) == scenes * tiles
    # Headers begin at byte 0 and are read by each process; all else are tiles, which lie one after the other.
    asked = sorted((a.path, a.start, a.stop) for a in range_server.log if a.path.endswith(".tif") and a.start)
    assert all(one[0] != two[0] or one[2] <= two[1] for one, two in itertools.pairwise(asked)), "no byte twice"
    assert sum(stop - start for _, start, stop in asked) == scenes * tiles * tile**2, "and every tile once"
