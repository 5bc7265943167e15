"""Ranks of a real process group: one seed, one order, each item once."""

import json
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from geostream.loader import DataLoader
from geostream.samplers import (
    GridGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
)
from geostream.testing.memory import MemoryDataset, MemoryScene

RANKS = 2


def run(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)  # every rank has its own random numbers
    scenes = [MemoryScene(np.zeros((1, 80, 80), np.uint8), (1000.0 * i, 0.0)) for i in range(3)]
    dataset = MemoryDataset(scenes)
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


def test_a_process_group_shares_one_order(tmp_path):
    mp.start_processes(run, (tmp_path,), nprocs=RANKS, start_method="fork")
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS))
    for name in first:
        assert first[name]["state"] == second[name]["state"]
        assert (first[name]["state"]["epoch"], first[name]["state"]["batches"]) == (3, RANKS)
        for mine, other in zip(first[name]["epochs"], second[name]["epochs"], strict=True):
            assert len(mine) == len(other) == first[name]["length"]
    seed = first["batch"]["state"]["seed"]
    assert seed != first["random"]["state"]["seed"]
    scenes = [MemoryScene(np.zeros((1, 80, 80), np.uint8), (1000.0 * i, 0.0)) for i in range(3)]
    dataset = MemoryDataset(scenes)
    alone = RandomBatchGeoSampler(dataset, 8, 4, length=40, generator=torch.Generator().manual_seed(seed))
    for mine, other in zip(first["batch"]["epochs"], second["batch"]["epochs"], strict=True):
        dealt = [batch for pair in zip(mine, other, strict=True) for batch in pair]
        assert dealt == [[[x.start, y.stop] for x, y, _ in batch] for batch in alone]
    for mine, other in zip(first["grid"]["epochs"], second["grid"]["epochs"], strict=True):
        sets = [{tuple(place) for batch in part for place in batch} for part in (mine, other)]
        assert len(sets[0] | sets[1]) == 75
        assert len(sets[0] & sets[1]) == 1, "the last of 75 has no partner, so the first is dealt again"
