"""torchdata's StatefulDataLoader, and what Lightning stores, on samplers and loaders."""

import json

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful import Stateful

import geostream as gs
from geostream.errors import ConfigError
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler, TileBatchGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene


def dataset():
    return MemoryDataset([MemoryScene(np.zeros((1, 80, 80), np.uint8), (1000.0 * i, 0.0)) for i in range(3)])


def seeded():
    return torch.Generator().manual_seed(5)


KINDS = {
    "batch": lambda ds: {"batch_sampler": RandomBatchGeoSampler(ds, 8, 4, length=40, generator=seeded())},
    "tile": lambda ds: {"batch_sampler": TileBatchGeoSampler(ds, 8, 4, length=40, generator=seeded())},
    "random": lambda ds: {"sampler": RandomGeoSampler(ds, 8, length=40, generator=seeded()), "batch_size": 4},
    "grid": lambda ds: {"sampler": GridGeoSampler(ds, 16), "batch_size": 4},
}


def loader(kind, workers, cls=StatefulDataLoader):
    place = dataset()
    context = "fork" if workers else None
    options = {"num_workers": workers, "collate_fn": gs.stack_samples, "multiprocessing_context": context}
    return cls(place, **KINDS[kind](place), **options)


def places(batch):
    return batch["bounds"].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_it_is_stateful(kind):
    place = dataset()
    arguments = KINDS[kind](place)
    for thing in (arguments.get("batch_sampler", arguments.get("sampler")), gs.DataLoader(place, **arguments)):
        assert isinstance(thing, Stateful)
        assert json.loads(json.dumps(thing.state_dict())) == thing.state_dict(), "plain types only"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_torchdatas_loader_goes_on_with_the_next_batch(kind, workers):
    reference = loader(kind, workers)
    first, second = ([places(batch) for batch in reference] for _ in range(2))
    stopped = loader(kind, workers)
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    resumed = loader(kind, workers)
    resumed.load_state_dict(stopped.state_dict())
    assert [places(batch) for batch in resumed] == first[3:]
    assert [places(batch) for batch in resumed] == second


@pytest.mark.parametrize("kind", KINDS)
def test_our_loader_goes_on_with_another_number_of_workers(kind):
    first = [places(batch) for batch in loader(kind, 0, gs.DataLoader)]
    stopped = loader(kind, 2, gs.DataLoader)
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    resumed = loader(kind, 0, gs.DataLoader)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [places(batch) for batch in resumed] == first[3:]
    assert len(resumed) == len(first)


@pytest.mark.parametrize("options", [{"num_workers": True}, {"num_workers": -1}, {"prefetch_batches": True}])
def test_counts_of_a_loader_are_numbers(options):
    place = dataset()
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        gs.DataLoader(place, **KINDS["grid"](place), **options)


@pytest.mark.parametrize("state", [None, [], 3, "epoch"])
def test_what_is_no_state_of_a_loader_is_refused(state):
    place = dataset()
    with pytest.raises(ConfigError, match="state"):
        gs.DataLoader(place, **KINDS["grid"](place)).load_state_dict(state)


def test_an_empty_state_changes_nothing():
    place = dataset()
    loader = gs.DataLoader(place, **KINDS["batch"](place))
    loader.load_state_dict({"seed": 3, "epoch": 2, "batches": 1})
    before = loader.state_dict()
    loader.load_state_dict({})
    assert loader.state_dict() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_batch_is_refused_in_its_turn(workers):
    place = dataset()
    batch = next(iter(KINDS["batch"](place)["batch_sampler"]))
    context = "fork" if workers else None
    batches = iter(
        gs.DataLoader(place, batch_sampler=[batch, []], num_workers=workers, multiprocessing_context=context)
    )
    assert len(next(batches)["image"]) == len(batch)
    with pytest.raises(ConfigError, match="empty batch"):
        next(batches)
