"""Every sampler: one order per seed and epoch, dealt to ranks, to be gone on with."""

import copy
import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from geostream.errors import ConfigError
from geostream.loader import DataLoader
from geostream.samplers import (
    GridGeoSampler,
    PreChippedGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    TileBatchGeoSampler,
)
from geostream.testing.memory import MemoryDataset, MemoryScene

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks will fetch some tiles several times:UserWarning")


def dataset():
    shapes = [(70, 90), (64, 64), (100, 40), (16, 16), (20, 30)]
    corners = [(1000.0 * i, 5000.0) for i in range(1, 6)]
    return MemoryDataset(
        [
            MemoryScene(np.zeros((1, *shape), np.uint8), corner, (2.0, 3.0))
            for shape, corner in zip(shapes, corners, strict=True)
        ]
    )


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


KINDS = {
    "random": lambda **kw: RandomGeoSampler(dataset(), 16, length=23, generator=seeded(), **kw),
    "batch": lambda **kw: RandomBatchGeoSampler(dataset(), 16, 4, length=23 * 4, generator=seeded(), **kw),
    "scenes": lambda **kw: RandomBatchGeoSampler(
        dataset(), 16, 4, length=23 * 4, generator=seeded(), scenes_per_batch=2, **kw
    ),
    "tile": lambda **kw: TileBatchGeoSampler(dataset(), 16, 4, length=23 * 4, generator=seeded(), **kw),
    "grid": lambda **kw: GridGeoSampler(dataset(), 16, **kw),
    "prechipped": lambda **kw: PreChippedGeoSampler(dataset(), shuffle=True, generator=seeded(), **kw),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_the_order_is_a_function_of_seed_and_epoch(kind):
    sampler = kind()
    first, second = list(sampler), list(sampler)
    assert len(first) == len(second) == len(sampler) == sampler.total
    sampler.set_epoch(0)
    assert list(sampler) == first
    sampler.set_epoch(1)
    torch.manual_seed(99)
    assert list(sampler) == second
    other = kind()
    assert list(other) == first


@pytest.mark.parametrize("name", ["random", "batch", "scenes", "tile"])
def test_epochs_and_seeds_differ(name):
    sampler = KINDS[name]()
    epochs = [list(sampler) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    other = RandomGeoSampler(dataset(), 16, length=23, generator=seeded(8))
    assert list(other) != list(KINDS["random"]())


def test_the_generator_is_not_advanced():
    generator = seeded()
    before = generator.get_state()
    list(RandomGeoSampler(dataset(), 16, length=5, generator=generator))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_ranks_share_the_epoch_in_turn(kind, world_size):
    whole = list(kind())
    samplers = [kind(rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {len(samplers[0])} == {-(-len(whole) // world_size)}
    dealt = [item for items in zip(*shares, strict=True) for item in items]
    assert dealt[: len(whole)] == whole
    assert dealt[len(whole) :] == [whole[i % len(whole)] for i in range(len(dealt) - len(whole))]


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_rest_may_be_left_out(kind, world_size):
    whole = list(kind())
    shares = [list(kind(rank=rank, world_size=world_size, uneven="drop")) for rank in range(world_size)]
    dealt = [item for items in zip(*shares, strict=True) for item in items]
    assert dealt == whole[: len(whole) // world_size * world_size]


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_a_state_goes_on_where_it_stood_with_any_number_of_ranks(kind, taken, before, after):
    running = [kind(rank=rank, world_size=before) for rank in range(before)]
    for sampler in running:
        sampler.set_epoch(3)
        iterator = iter(sampler)
        for _ in range(taken):
            next(iterator)
    states = [sampler.state_dict() for sampler in running]
    assert all(state == states[0] for state in states)
    assert set(map(type, states[0].values())) == {int, str}
    reference = kind()
    reference.set_epoch(3)
    whole = list(reference)
    resumed = [kind(rank=rank, world_size=after) for rank in range(after)]
    shares = []
    for sampler in resumed:
        sampler.load_state_dict(states[0])
        iterator = iter(sampler)
        sampler.set_epoch(3)  # Lightning says so after iter(), and before the first next
        shares.append(list(iterator))
        assert len(sampler) == -(-len(whole) // after)
    dealt = [item for items in itertools.zip_longest(*shares) for item in items]
    rest = whole[taken * before :]
    assert dealt[: len(rest)] == rest
    assert len(dealt) - len(rest) < after


def test_after_the_end_of_an_epoch_comes_the_next(kind):
    sampler = kind()
    list(sampler)
    state = sampler.state_dict()
    following = list(sampler)
    resumed = kind()
    resumed.load_state_dict(state)
    assert list(resumed) == following
    assert resumed.state_dict()["epoch"] == 1


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_no_resumed_epoch_is_empty(kind, uneven, world_size):
    options = {"rank": 0, "world_size": world_size, "uneven": uneven}
    sampler = kind(**options)
    assert len(list(sampler)) == len(sampler)
    resumed = kind(**options)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == list(sampler), "the epoch after, whole"


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [72, 73, 75, 76, 79])
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_no_epoch_of_a_resumed_loader_is_empty(length, drop_last, uneven):
    def make(rank=0):
        place = dataset()
        sampler = RandomGeoSampler(place, 16, length=length, generator=seeded(), rank=rank, world_size=2, uneven=uneven)
        return DataLoader(place, batch_size=4, sampler=sampler, drop_last=drop_last)

    running = make()
    whole = [batch["bounds"].tolist() for batch in running]
    assert len(whole) == len(running)
    following = [batch["bounds"].tolist() for batch in running]
    for taken in (len(whole) - 1, len(whole)):
        stopped = make()
        iterator = iter(stopped)
        for _ in range(taken):
            next(iterator)
        resumed = make()
        resumed.load_state_dict(stopped.state_dict())
        rest = [batch["bounds"].tolist() for batch in resumed]
        assert rest == (whole[taken:] or following)


def test_another_epoch_than_the_state_starts_at_its_beginning(kind):
    sampler = kind()
    sampler.load_state_dict({"seed": 7, "epoch": 2, "position": 1})
    sampler.set_epoch(5)
    reference = kind()
    reference.set_epoch(5)
    assert list(sampler) == list(reference)


def test_an_unfinished_iteration_neither_disturbs_nor_is_disturbed(kind):
    sampler = kind()
    whole, following = list(sampler), list(sampler)
    sampler.set_epoch(0)
    first = iter(sampler)
    head = next(first)
    second = list(sampler)
    assert [head, *first] == whole
    assert second == following
    assert sampler.state_dict()["epoch"] == 1
    assert sampler.state_dict()["position"] == len(whole)


def test_nothing_is_drawn_before_the_first_next():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    sampler = RandomBatchGeoSampler(dataset(), 16, 4)
    iterator = iter(sampler)
    assert len(sampler) > 0
    state = sampler.state_dict()
    assert (state["epoch"], state["position"], "seed" in state) == (0, 0, False)
    assert torch.equal(torch.get_rng_state(), before)
    sampler.set_epoch(4)
    next(iterator)
    assert not torch.equal(torch.get_rng_state(), before)
    assert sampler.iteration.epoch == 4
    after = torch.get_rng_state()
    list(sampler)
    assert torch.equal(torch.get_rng_state(), after)


def test_the_global_seed_decides_where_no_generator_is_given():
    def order(seed):
        torch.manual_seed(seed)
        return list(RandomGeoSampler(dataset(), 16, length=9))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_samplers_without_chance_draw_nothing():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(GridGeoSampler(dataset(), 16))
    list(PreChippedGeoSampler(dataset()))
    assert torch.equal(torch.get_rng_state(), before)


def test_samplers_are_copied_and_pickled(kind):
    sampler = kind()
    whole = list(sampler)
    sampler.set_epoch(0)
    for twin in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert list(twin) == whole


def test_a_batch_sampler_is_its_own_sampler_and_hides_from_rebuilding():
    sampler = KINDS["batch"]()
    assert sampler.sampler is sampler
    assert not hasattr(sampler, "drop_last")


def test_given_ranks_need_a_common_seed():
    sampler = RandomGeoSampler(dataset(), 16, rank=0, world_size=2)
    with pytest.raises(ConfigError, match="generator"):
        next(iter(sampler))


@pytest.mark.parametrize(
    "ranks",
    [
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"rank": 0.0, "world_size": 2},
        {"rank": False, "world_size": 2},
        {"rank": 0, "world_size": 0},
        {"rank": 0, "world_size": True},
        {"uneven": "x"},
    ],
)
def test_contradictory_ranks_are_refused(kind, ranks):
    with pytest.raises(ConfigError):
        kind(**ranks)


def test_a_foreign_state_is_refused(kind):
    with pytest.raises(ConfigError, match="state"):
        kind().load_state_dict({"sampler_iter_yielded": 3})


@pytest.mark.parametrize("state", [{}, {"epoch": -1, "position": 0}, {"epoch": 0, "position": -3}, {"epoch": None}])
def test_a_state_that_is_none_is_refused(kind, state):
    with pytest.raises(ConfigError, match="state"):
        kind().load_state_dict(state)


def stopped_after(sampler, taken):
    iterator = iter(sampler)
    for _ in range(taken):
        next(iterator)
    return sampler.state_dict()


def test_a_state_from_within_an_epoch_of_another_sampler_is_refused():
    ground = dataset()
    state = stopped_after(RandomGeoSampler(ground, 16, length=10, generator=seeded()), 4)
    fresh = RandomGeoSampler(ground, 16, length=20, generator=seeded())
    with pytest.raises(ConfigError, match=r"10 items.*of 20"):
        fresh.load_state_dict(state)
    assert fresh.state_dict()["position"] == 0, "it stays where it stood"
    with pytest.raises(ConfigError, match=r"RandomGeoSampler of 10.*GridGeoSampler"):
        GridGeoSampler(ground, 16).load_state_dict(state)


def test_a_position_past_the_end_is_refused():
    state = stopped_after(RandomGeoSampler(dataset(), 16, length=10, generator=seeded()), 4)
    with pytest.raises(ConfigError, match="state"):
        RandomGeoSampler(dataset(), 16, length=10).load_state_dict({**state, "position": 11})


@pytest.mark.parametrize("taken", [0, 10])
def test_between_epochs_another_length_may_follow(taken):
    state = stopped_after(RandomGeoSampler(dataset(), 16, length=10, generator=seeded()), taken)
    longer = RandomGeoSampler(dataset(), 16, length=20, generator=seeded())
    longer.load_state_dict(state)
    reference = RandomGeoSampler(dataset(), 16, length=20, generator=seeded())
    reference.set_epoch(1 if taken else 0)
    assert list(longer) == list(reference)


def test_states_of_earlier_versions_are_understood():
    make = lambda: RandomGeoSampler(dataset(), 16, length=10, generator=seeded())  # noqa: E731
    state = stopped_after(make(), 4)
    resumed = make()
    resumed.load_state_dict({name: state[name] for name in ("seed", "epoch", "position")})
    assert list(resumed) == list(make())[4:]


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, None])
def test_epochs_are_numbers(kind, epoch):
    with pytest.raises(ConfigError, match="epoch"):
        kind().set_epoch(epoch)


@pytest.mark.parametrize("generator", [42, "seed", np.random.default_rng(1)])
def test_generators_are_torchs(generator):
    with pytest.raises(ConfigError, match="generator"):
        RandomGeoSampler(dataset(), 16, generator=generator)


def test_an_order_ends_by_index():
    sampler = KINDS["batch"]()
    order = sampler.items(0)
    assert list(order) == list(sampler) == order[:]
    assert order[-1] == order[len(order) - 1]
    with pytest.raises(IndexError):
        order[len(order)]


def test_times_travel_with_the_chips():
    interval = (pd.Timestamp(2021, 5, 1), pd.Timestamp(2021, 5, 1))
    instant = MemoryDataset([MemoryScene(np.zeros((1, 20, 20), np.uint8), interval=interval)])
    for sampler in (RandomGeoSampler(instant, 8, length=1), GridGeoSampler(instant, 20), PreChippedGeoSampler(instant)):
        assert [t for _, _, t in sampler] == [slice(*interval)]
