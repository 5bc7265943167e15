"""The loader: order, read-ahead, failures, workers, and going on from a state."""

import copy
import gc
import itertools
import pickle
import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

from geostream.accounting import stats
from geostream.dataset import RasterDataset
from geostream.errors import ConfigError, QueryError, ReadError
from geostream.loader import BatchPlace, DataLoader
from geostream.reader import CACHE_BYTES, set_cache_bytes
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler
from geostream.testing import RangeServer
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog


def images(count=2, side=64):
    rng = np.random.default_rng(0)
    return [MemoryScene(rng.integers(0, 255, (2, side, side), dtype=np.uint8), (1000.0 * i, 0.0)) for i in range(count)]


class Plain(torch_data.Dataset):
    """The same samples without read-ahead."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.index, self.bounds = dataset.index, dataset.bounds

    def __getitem__(self, query):
        return self.dataset[query]


class Counting(MemoryDataset):
    """Counts a request for every chip, and fails where told."""

    bad = frozenset()

    def __getitem__(self, query):
        stats.add(requests=1, bytes=100)
        if query[0].start in self.bad:
            raise ReadError(f"chip at {query[0].start} cannot be read", url="s3://bucket/a.tif", status=503)
        return super().__getitem__(query)

    def prefetch(self, queries):
        raise AssertionError("workers read through __getitems__")

    def __getitems__(self, queries):
        return [self[query] for query in queries]


class Slow(MemoryDataset):
    """Reads that finish only when the test says so."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []
        self.futures = []
        self.finishing = 10**9

    def prefetch(self, queries):
        future = Future()
        self.asked.append(list(queries))
        self.futures.append(future)
        if len(self.futures) <= self.finishing:
            future.set_result([self._outcome(query) for query in queries])
        return future


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def batches_of(dataset, length=40, **kwargs):
    return RandomBatchGeoSampler(dataset, 8, 4, length=length, generator=seeded(), **kwargs)


def same(a, b):
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_batches_equal_torchs_own_loader():
    dataset = MemoryDataset(images(), labels=True)
    ours = list(DataLoader(dataset, batch_sampler=batches_of(dataset)))
    theirs = list(
        torch_data.DataLoader(
            Plain(dataset), batch_sampler=batches_of(dataset), collate_fn=DataLoader(dataset, sampler=[]).collate_fn
        )
    )
    same(ours, theirs)
    assert len(ours) == 10
    assert ours[0]["image"].shape == (4, 1, 8, 8)
    assert ours[0]["mask"].shape == (4, 8, 8)


def test_a_plain_sampler_is_batched():
    dataset = MemoryDataset(images())
    sampler = RandomGeoSampler(dataset, 8, length=10, generator=seeded())
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    assert [len(batch["image"]) for batch in loader] == [4, 4, 2]
    assert len(loader) == 3
    assert [len(b["image"]) for b in DataLoader(dataset, batch_size=4, sampler=sampler, drop_last=True)] == [4, 4]


def test_datasets_of_numbers_work_as_usual():
    numbers = [torch.tensor(i) for i in range(10)]
    loader = DataLoader(numbers, batch_size=5, collate_fn=torch.stack)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    shuffled = DataLoader(numbers, batch_size=10, shuffle=True, collate_fn=torch.stack)
    assert sorted(next(iter(shuffled)).tolist()) == list(range(10))
    assert loader.state_dict() == {}
    assert loader.place is None
    with pytest.raises(ConfigError, match="sampler"):
        loader.load_state_dict({"epoch": 0, "batches": 1})


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_so_many_batches_are_in_flight(ahead):
    dataset = Slow(images())
    loader = DataLoader(dataset, batch_sampler=batches_of(dataset), prefetch_batches=ahead)
    iterator = iter(loader)
    assert dataset.asked == []
    for served in range(1, 11):
        next(iterator)
        assert len(dataset.asked) == min(10, served + ahead)
    assert next(iterator, None) is None
    assert dataset.asked == list(batches_of(dataset))


def test_auto_starts_small_and_stays_within_its_bytes(monkeypatch):
    dataset = Slow(images())
    loader = DataLoader(dataset, batch_sampler=batches_of(dataset, length=4 * 100))
    iterator = iter(loader)
    counts = [len(dataset.asked) for _ in itertools.islice(iterator, 6)]
    assert counts == [5, 6, 7, 8, 9, 10]  # nobody waited, so that more would not help
    import geostream.loader as module

    nbytes = sum(t.nbytes for t in next(iterator).values())
    monkeypatch.setattr(module, "_PREFETCH_BYTES", 6 * nbytes)
    dataset.asked.clear()
    iterator = iter(loader)
    counts = [len(dataset.asked) for _ in itertools.islice(iterator, 6)]
    assert counts == [5, 5, 6, 7, 8, 9]


def test_batches_come_in_order_whatever_finishes_first():
    dataset = Slow(images())
    dataset.finishing = 0
    iterator = iter(DataLoader(dataset, batch_sampler=batches_of(dataset), prefetch_batches=9))
    got = []
    thread = threading.Thread(target=lambda: got.extend(iterator))
    thread.start()
    while len(dataset.futures) < 10:
        thread.join(0.001)
    for future, queries in reversed(list(zip(dataset.futures, dataset.asked, strict=True))):
        future.set_result([dataset._outcome(query) for query in queries])
    thread.join()
    expected = [torch.stack([dataset[q]["image"] for q in queries]) for queries in batches_of(dataset)]
    assert all(torch.equal(batch["image"], image) for batch, image in zip(got, expected, strict=True))


@pytest.mark.parametrize("end", ["break", "error", "interrupt"])
def test_what_is_in_flight_is_given_up(end):
    dataset = Slow(images())
    dataset.finishing = 1
    loader = DataLoader(dataset, batch_sampler=batches_of(dataset), prefetch_batches=5)
    threads = threading.active_count()

    def consume():
        for _ in loader:
            if end == "break":
                break
            if end == "error":
                raise RuntimeError
            dataset.futures[1].set_exception(KeyboardInterrupt())

    if end == "break":
        consume()
    else:
        with pytest.raises(RuntimeError if end == "error" else KeyboardInterrupt):
            consume()
    gc.collect()
    given_up = dataset.futures[1:] if end != "interrupt" else dataset.futures[2:]
    assert len(dataset.futures) == (6 if end != "interrupt" else 7)
    assert all(future.cancelled() for future in given_up)
    assert threading.active_count() == threads
    dataset.finishing = 10**9
    assert len(list(loader)) == 10


def test_failures_are_raised_at_their_batch_and_the_next_follows():
    dataset = MemoryDataset(images())
    good = list(batches_of(dataset, length=16))
    missing = [(slice(9e6, 9e6 + 8, 1.0), *good[0][0][1:])]
    iterator = iter(DataLoader(dataset, batch_sampler=[good[0], missing, good[1]], prefetch_batches=4))
    assert next(iterator)["image"].shape == (4, 2, 8, 8)
    with pytest.raises(QueryError, match="no scene"):
        next(iterator)
    assert next(iterator)["image"].shape == (4, 2, 8, 8)
    assert next(iterator, None) is None


def test_a_failing_prefetch_or_sampler_is_raised_at_its_batch():
    class Refusing(MemoryDataset):
        def prefetch(self, queries):
            if len(queries) == 1:
                raise ConfigError("no batches of one")
            return super().prefetch(queries)

    dataset = Refusing(images())
    good = list(batches_of(dataset, length=8))

    def sampler():
        yield good[0]
        yield good[1][:1]
        yield good[1]
        raise RuntimeError("out of ideas")

    class Batches:
        def __iter__(self):
            return sampler()

    iterator = iter(DataLoader(dataset, batch_sampler=Batches(), prefetch_batches=9))
    next(iterator)
    with pytest.raises(ConfigError, match="no batches of one"):
        next(iterator)
    next(iterator)
    with pytest.raises(RuntimeError, match="out of ideas"):
        next(iterator)
    assert next(iterator, None) is None


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({}, "RandomGeoSampler"),
        ({"shuffle": True}, "RandomGeoSampler"),
        ({"sampler": "batch"}, "batch_sampler="),
        ({"batch_sampler": "plain"}, "sampler="),
        ({"sampler": "plain", "batch_size": None}, "batch_size"),
        ({"batch_sampler": "batch", "prefetch_batches": -1}, "prefetch_batches"),
        ({"batch_sampler": "batch", "prefetch_batches": "all"}, "prefetch_batches"),
        ({"batch_sampler": "batch", "prefetch_bytes": -1}, "prefetch_bytes=-1 is no number of bytes"),
        ({"batch_sampler": "batch", "cache_bytes": 1.5}, "cache_bytes=1.5 is no number of bytes"),
    ],
)
def test_contradictory_arguments_are_refused(kwargs, word):
    dataset = MemoryDataset(images())
    samplers = {"batch": batches_of(dataset), "plain": RandomGeoSampler(dataset, 8)}
    with pytest.raises(ConfigError, match=word):
        DataLoader(dataset, **{key: samplers.get(value, value) for key, value in kwargs.items()})


def test_iterable_datasets_are_refused():
    class Stream(torch_data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(ConfigError, match="Iterable"):
        DataLoader(Stream())


def test_workers_deliver_the_same_batches_and_their_counts():
    dataset = pickle.loads(pickle.dumps(MemoryDataset(images(), labels=True)))
    expected = list(DataLoader(dataset, batch_sampler=batches_of(dataset, length=16)))
    counting = Counting(images(), labels=True)
    loader = DataLoader(counting, batch_sampler=batches_of(dataset, length=16), num_workers=1)
    stats.add(requests=5)  # not to be counted again by a forked worker
    with stats.measure() as counted:
        got = list(loader)
    same(got, expected)
    assert (counted.requests, counted.bytes) == (16, 1600)
    with stats.measure() as counted:
        list(loader)
    assert counted.requests == 16


def test_a_workers_error_keeps_its_class():
    dataset = Counting(images())
    batches = list(batches_of(dataset, length=8))
    dataset.bad = {batches[0][2][0].start}
    iterator = iter(DataLoader(dataset, batch_sampler=batches, num_workers=1))
    with pytest.raises(ReadError, match="cannot be read"):
        next(iterator)
    assert len(next(iterator)["image"]) == 4
    assert next(iterator, None) is None


def test_persistent_workers_draw_nothing_before_the_first_next():
    dataset = Counting(images())
    sampler = batches_of(dataset, length=16)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=1, persistent_workers=True)
    epochs = [list(batches_of(dataset, length=16)) for _ in range(1)]
    for epoch in (0, 3):
        iterator = iter(loader)
        sampler.set_epoch(epoch)  # as Lightning does, after iter()
        assert sampler.iteration is None
        got = list(iterator)
        assert loader.place == BatchPlace(5, epoch, 3)
        reference = batches_of(dataset, length=16)
        reference.set_epoch(epoch)
        starts = [[place[0].start for place in batch] for batch in reference]
        assert [batch["bounds"][:, 0].tolist() for batch in got] == starts
    assert len(epochs[0]) == 4
    loader._iterator._shutdown_workers()


def loaders(kind, dataset, **ranks):
    if kind == "batch":
        return DataLoader(dataset, batch_sampler=batches_of(dataset, **ranks))
    sampler = RandomGeoSampler(dataset, 8, length=39, generator=seeded(), **ranks)
    return DataLoader(dataset, sampler=sampler, batch_size=4, drop_last=kind == "drop")


def starts(batches):
    return [batch["bounds"][:, [0, 4]].tolist() for batch in batches]


@pytest.mark.parametrize("kind", ["batch", "plain", "drop"])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_state_counts_what_was_delivered_and_goes_on_from_there(kind, taken):
    dataset = Slow(images())
    loader = loaders(kind, dataset)
    first, second = starts(loader), starts(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    assert state == {"seed": 5, "epoch": 0, "batches": taken}
    resumed = loaders(kind, dataset)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert len(resumed) == len(first)
    rest = iter(resumed)
    resumed.batch_sampler.sampler.set_epoch(0)
    assert starts(rest) == first[taken:]
    assert resumed.state_dict() == {"seed": 5, "epoch": 0, "batches": len(first)}
    assert starts(resumed) == second
    assert resumed.state_dict()["epoch"] == 1


@pytest.mark.parametrize("kind", ["batch", "plain", "drop"])
def test_a_state_at_the_end_of_an_epoch_means_the_next(kind):
    dataset = MemoryDataset(images())
    loader = loaders(kind, dataset)
    for _ in loader:
        pass
    state, second = loader.state_dict(), starts(loader)
    resumed = loaders(kind, dataset)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == {"seed": 5, "epoch": 1, "batches": 0}
    assert starts(resumed) == second


@pytest.mark.parametrize("kind", ["batch", "plain"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_a_state_holds_for_another_number_of_ranks(kind, before, after):
    dataset = MemoryDataset(images())
    whole = [place for batch in starts(loaders(kind, dataset)) for place in batch]
    states = []
    for rank in range(before):
        loader = loaders(kind, dataset, rank=rank, world_size=before)
        iterator = iter(loader)
        delivered = [next(iterator), next(iterator)]
        assert loader.place.batch == before + rank
        states.append(loader.state_dict())
        assert len(delivered) == 2
    assert all(state == {"seed": 5, "epoch": 0, "batches": 2 * before} for state in states)
    rest = []
    for rank in range(after):
        loader = loaders(kind, dataset, rank=rank, world_size=after)
        loader.load_state_dict(states[0])
        rest += [tuple(place) for batch in starts(loader) for place in batch]
    left = Counter(tuple(place) for place in whole[2 * before * 4 :])
    assert left <= Counter(rest)
    assert len(rest) - left.total() < after


def test_a_fresh_loaders_state_has_no_seed_and_draws_none():
    dataset = MemoryDataset(images())
    before = torch.get_rng_state()
    loader = DataLoader(dataset, batch_sampler=RandomBatchGeoSampler(dataset, 8, 4))
    assert loader.state_dict() == {"epoch": 0, "batches": 0}
    loader.load_state_dict({"epoch": 2, "batches": 1})
    assert loader.state_dict() == {"epoch": 2, "batches": 1}
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ConfigError, match="state"):
        loader.load_state_dict({"_snapshot": 1})


def test_places_name_the_batch_delivered_last():
    dataset = MemoryDataset(images())
    loader = DataLoader(dataset, batch_sampler=batches_of(dataset))
    assert loader.place is None
    places = [loader.place for _ in loader]
    assert places == [BatchPlace(5, 0, batch) for batch in range(10)]
    loader.load_state_dict({"seed": 9, "epoch": 4, "batches": 7})
    assert loader.place is None
    assert [loader.place for _ in loader] == [BatchPlace(9, 4, batch) for batch in (7, 8, 9)]


def test_loaders_are_copied():
    dataset = MemoryDataset(images())
    loader = DataLoader(dataset, batch_sampler=batches_of(dataset))
    first = starts(loader)
    loader.set_epoch(0)
    assert starts(copy.deepcopy(loader)) == first


def test_a_grid_reads_a_scene_whole():
    dataset = MemoryDataset(images(1, side=50))
    out = np.zeros((2, 50, 50), np.uint8)
    for batch in DataLoader(dataset, sampler=GridGeoSampler(dataset, 16), batch_size=5):
        for image, transform in zip(batch["image"], batch["transform"], strict=True):
            row, col = round(-float(transform[5])), round(float(transform[2]))
            out[:, row : row + 16, col : col + 16] = image
    assert (out == dataset.scenes[0].data).all()


@pytest.mark.parametrize(("cache_bytes", "epochs_that_fetch"), [(0, [True, True]), (2**26, [True, False])])
def test_cache_bytes_bound_what_is_kept_for_the_next_epoch(tmp_path, cache_bytes, epochs_that_fetch):
    path = write_cog(tmp_path / "a.tif", shape=(512, 512), count=1, blocksize=128, overviews=False)
    with RangeServer(tmp_path) as server:
        dataset = RasterDataset(server.url_for(path.name))
        sampler = GridGeoSampler(dataset, 128)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, cache_bytes=cache_bytes)
        before = CACHE_BYTES
        try:
            fetched = []
            for _ in range(2):
                server.reset()
                assert sum(len(batch["image"]) for batch in loader) == 16
                fetched.append(server.counters.requests > 0)
        finally:
            set_cache_bytes(before)
    assert fetched == epochs_that_fetch


def test_batches_in_flight_share_what_they_decode_without_a_cache(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(1024, 1024), count=3, blocksize=128, overviews=False)
    before = CACHE_BYTES
    with RangeServer(tmp_path, latency=0.2) as server:
        dataset = RasterDataset(server.url_for(path.name))
        sampler = RandomBatchGeoSampler(dataset, 256, 4, length=4 * 12, generator=seeded())
        plan = dataset.plan([query for batch in sampler for query in batch])
        sampler.set_epoch(0)
        loader = DataLoader(dataset, batch_sampler=sampler, prefetch_batches=11, cache_bytes=0)
        try:
            with stats.measure() as measured:
                assert sum(len(batch["image"]) for batch in loader) == 48
        finally:
            set_cache_bytes(before)
    assert measured.tiles == len(plan.tiles) < sum(map(len, plan.needs))
    assert measured.useful_bytes == plan.useful_bytes
    assert measured.bytes <= 1.05 * plan.useful_bytes


def test_a_batch_that_is_gone_gives_its_memory_back_at_once(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(512, 512), count=1, blocksize=128, overviews=False)
    dataset = RasterDataset(path)
    sampler = RandomGeoSampler(dataset, 64, length=4 * 30, generator=seeded())
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, prefetch_batches=1)
    gc.disable()  # references in circles would keep it until the collector came by
    try:
        addresses = {batch["image"].data_ptr() for batch in loader}
    finally:
        gc.enable()
    assert len(addresses) <= 4
