"""A DataLoader that keeps batches in flight inside this process, and knows what it has delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.utils.data as torch_data
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory

from geostream.accounting import Stats, stats
from geostream.dataset.collate import stack_samples
from geostream.errors import ConfigError
from geostream.lookahead import LookAhead
from geostream.reader import AHEAD_BYTES, set_ahead_bytes, set_cache_bytes
from geostream.samplers.base import EpochSampler, Iteration
from geostream.samplers.checks import check_count

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

__all__ = ["BatchPlace", "DataLoader"]

_pinned: Callable[[Any], Any] = torch_pin_memory
"""A copy in pinned memory of every tensor in a batch, as torch's own loader makes it."""

_SHARES = 4
_PREFETCH_BYTES = _SHARES * AHEAD_BYTES
"""Bytes that reading ahead may hold unless ``prefetch_bytes`` says otherwise."""


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where in the run a batch stands; the same whatever the number of ranks."""

    seed: int
    """Seed of the order."""
    epoch: int
    """Number of the epoch."""
    batch: int
    """Number of the batch within the epoch, over all ranks."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bytes that this process may use; None leaves them as they are."""

    prefetch_bytes: int | None
    cache_bytes: int | None

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "cache_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(f"{name}={value!r} is no number of bytes")

    def hold(self) -> None:
        """Have this process's reads keep to them."""
        if self.cache_bytes is not None:
            set_cache_bytes(self.cache_bytes)
        if self.prefetch_bytes is not None:
            set_ahead_bytes(self.prefetch_bytes // _SHARES)


@dataclass(slots=True)
class _Progress:
    """What one pass over the loader has delivered."""

    iteration: Iteration | None = None
    delivered: int = 0


class DataLoader(torch_data.DataLoader[Any]):
    """`torch.utils.data.DataLoader` for datasets that are asked for places.

    With ``num_workers=0`` the reads of the batches to come are in flight while a batch is used, on the dataset's own
    background loop and decoding threads; no worker processes are needed. With workers, each reads whole batches through
    ``__getitems__``, and what it counted in `geostream.stats` arrives with its batches.

    Args:
        dataset: a geostream dataset, or any map-style dataset.
        batch_size: samples in a batch of ``sampler``.
        shuffle: for datasets of numbered samples only.
        sampler: places one at a time, such as `geostream.samplers.RandomGeoSampler`.
        batch_sampler: whole batches of places, such as `geostream.samplers.RandomBatchGeoSampler`.
        num_workers: worker processes; 0 keeps everything in this process.
        collate_fn: makes a batch of a list of samples; by default `geostream.stack_samples`.
        pin_memory: copy batches to pinned memory.
        drop_last: leave out a last batch of ``sampler`` that is not full.
        prefetch_batches: batches in flight ahead of the one that is due, with ``num_workers=0``; ``"auto"`` keeps as
            many as spare the consumer waiting, as far as ``prefetch_bytes`` allow, and at least one.
        prefetch_bytes: bytes that reading ahead may hold, in this process or in each worker. A quarter are for ranges
            that are being fetched or wait to be decoded, a quarter for decoded tiles that batches in flight share; both
            are shared by all loaders of a process. Half are for the pixels of batches in flight, those of the due one
            aside. None leaves it as it is, 512 MiB at first.
        cache_bytes: bytes of decoded tiles to keep for later batches, in this process or in each worker; None leaves it
            as it is, 128 MiB at first. All loaders of a process share one cache.
        options: all other arguments of torch's DataLoader.

    Raises:
        ConfigError: a dataset of places without a sampler of places, or contradictory arguments.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        prefetch_batches: int | Literal["auto"] = "auto",
        prefetch_bytes: int | None = None,
        cache_bytes: int | None = None,
        **options: Any,
    ) -> None:
        limits = _Limits(prefetch_bytes, cache_bytes)
        _check_samplers(dataset, batch_size, sampler, batch_sampler)
        counts = isinstance(prefetch_batches, int) and not isinstance(prefetch_batches, bool) and prefetch_batches >= 0
        if prefetch_batches != "auto" and not counts:
            raise ConfigError(f"prefetch_batches={prefetch_batches!r}: pass 'auto' or a number of batches")
        num_workers = check_count("num_workers", num_workers, 0)
        collate: Any = stack_samples if collate_fn is None else collate_fn
        if num_workers > 0 and not isinstance(collate, _Reporting):
            collate = _Reporting(collate, limits)
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate,
            pin_memory=pin_memory,
            drop_last=drop_last,
            **options,
        )
        self.prefetch_batches: int | Literal["auto"] = prefetch_batches
        self.prefetch_bytes = prefetch_bytes
        self.cache_bytes = cache_bytes
        self._progress = _Progress()
        self._source, self._unit = _source(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class here
        """The batches of the next epoch. Nothing is drawn, read or started before the first `next`."""
        return _Pass(self)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, where the sampler can be told."""
        sampler = self._source or getattr(self.batch_sampler, "sampler", None) or self.sampler
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    @property
    def place(self) -> BatchPlace | None:
        """Place of the batch delivered last on this rank; None before the first, or where the sampler has no seed."""
        iteration, delivered = self._progress.iteration, self._progress.delivered
        if iteration is None or not delivered:
            return None
        before = iteration.start // self._unit + (delivered - 1) * iteration.world_size
        return BatchPlace(iteration.seed, iteration.epoch, before + iteration.rank)

    def state_dict(self) -> dict[str, int]:
        """``seed`` (once drawn), ``epoch`` and ``batches``: those delivered in this epoch on all ranks together.

        Batches in flight do not count. The state is the same on every rank and holds for any number of ranks. Where the
        sampler is not geostream's, there is nothing to go on from, and the state is empty.
        """
        if self._source is None:
            return {}
        iteration = self._progress.iteration
        if iteration is None or iteration is not self._source.iteration:
            state = self._source.state_dict()
            kept: dict[str, int] = {name: state[name] for name in ("seed", "epoch") if name in state}
            return {**kept, "batches": state["position"] // self._unit}
        batches = iteration.start // self._unit + self._progress.delivered * iteration.world_size
        return {"seed": iteration.seed, "epoch": iteration.epoch, "batches": batches}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from ``state``: the next pass yields the batches its epoch had left, or the epoch after.

        ``len()`` remains that of a whole epoch. An empty state, which a loader with a foreign sampler gives, changes
        nothing.

        Raises:
            ConfigError: not a state of a loader, or the sampler cannot go on from one.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(f"{state!r} is not a loader's state: pass what state_dict() returned")
        if not state:
            return
        if self._source is None:
            raise ConfigError(
                f"a {type(self.batch_sampler).__name__} cannot go on from a state: use a sampler of geostream.samplers"
            )
        try:
            epoch, batches = int(state["epoch"]), int(state["batches"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{state!r} is not a loader's state: pass what state_dict() returned") from error
        if self._source.left(batches * self._unit) < (self._unit if self.drop_last else 1):
            epoch, batches = epoch + 1, 0
        seed = {"seed": int(state["seed"])} if "seed" in state else {}
        self._source.load_state_dict({**seed, "epoch": epoch, "position": batches * self._unit})
        self._progress = _Progress()

    def _open(self) -> Iterator[Any]:
        _Limits(self.prefetch_bytes, self.cache_bytes).hold()
        if self.num_workers == 0 and hasattr(self.dataset, "prefetch") and hasattr(self.dataset, "assemble"):
            return _InFlight(self)
        if self._source is not None:
            self._source.fix_seed()  # before torch draws its workers' seed, so that orders do not depend on workers
        return super().__iter__()

    def _begin(self, progress: _Progress) -> None:
        self._progress = progress


class _Pass(Iterator[Any]):
    """One pass over a loader, begun at its first `next`."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._progress = _Progress()

    def __next__(self) -> Any:
        first = self._batches is None
        try:
            if self._batches is None:
                self._batches = self._loader._open()  # noqa: SLF001 - the loader's own other half
            batch = next(self._batches)
        except StopIteration:
            self._note(first=first)
            raise
        except Exception:
            self._note(first=first)
            self._progress.delivered += 1  # the next one follows it
            raise
        self._note(first=first)
        self._progress.delivered += 1
        if isinstance(batch, _Parcel):
            stats.add(**batch.counts)
            return batch.batch
        return batch

    def _note(self, *, first: bool) -> None:
        if first:
            loader = self._loader
            self._progress.iteration = None if loader._source is None else loader._source.iteration  # noqa: SLF001
            loader._begin(self._progress)  # noqa: SLF001


class _InFlight(Iterator[Any]):
    """Batches in order, the reads of those ahead in flight. Failures wait for their turn."""

    def __init__(self, loader: DataLoader) -> None:
        self._started: deque[tuple[list[Any], Future[Any] | Exception]] = deque()
        self._loader = loader
        self._queries: Iterator[list[Any]] | None = iter(loader.batch_sampler or ())
        budget = _PREFETCH_BYTES if loader.prefetch_bytes is None else loader.prefetch_bytes
        self._ahead = LookAhead(loader.prefetch_batches, budget * 2 // _SHARES)

    def __next__(self) -> Any:
        self._fill()
        if not self._started:
            raise StopIteration
        queries, read = self._started.popleft()
        if isinstance(read, Exception):
            raise read
        waited = not read.done()
        try:
            samples = self._loader.dataset.assemble(queries, read.result())  # type: ignore[attr-defined]
        except Exception:
            read.cancel()
            raise
        except BaseException:  # Ctrl-C ends the pass, whatever its traceback keeps alive
            read.cancel()
            self.close()
            raise
        batch = self._loader.collate_fn(samples)
        self._ahead.delivered(waited=waited, cost=_nbytes(batch))
        return _pinned(batch) if self._loader.pin_memory and torch.cuda.is_available() else batch

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is in flight, and start nothing more."""
        self._queries = None
        while self._started:
            _, read = self._started.popleft()
            if not isinstance(read, Exception):
                read.cancel()

    def _fill(self) -> None:
        while self._queries is not None and len(self._started) <= self._ahead.batches:
            try:
                queries = next(self._queries)
            except StopIteration:
                self._queries = None
                return
            except Exception as error:  # noqa: BLE001 - the sampler's failure is raised after the batches before it
                self._queries = None
                self._started.append(([], error))
                return
            self._started.append((queries, self._start(queries) if len(queries) else _no_chips()))

    def _start(self, queries: list[Any]) -> Future[Any] | Exception:
        try:
            read: Future[Any] = self._loader.dataset.prefetch(queries)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - raised at its batch
            return error
        self._ahead.started(getattr(read, "nbytes", 0))
        return read


def _no_chips() -> ConfigError:
    return ConfigError("the batch sampler yielded an empty batch: have it leave such batches out")


@dataclass(slots=True)
class _Parcel:
    """A worker's batch and what the worker counted since its last."""

    batch: Any
    counts: dict[str, float]

    def pin_memory(self) -> _Parcel:
        """What torch's pinning thread calls."""
        return _Parcel(_pinned(self.batch), self.counts)


class _Reporting:
    """A collate function that, in a worker, wraps its batch in a parcel."""

    def __init__(self, collate: Callable[[list[Any]], Any], limits: _Limits) -> None:
        self._collate = collate
        self._limits = limits
        self._reported = Stats()

    def __call__(self, samples: list[Any]) -> Any:
        if isinstance(samples, list) and not samples:
            raise _no_chips()
        batch = self._collate(samples)
        if torch_data.get_worker_info() is None:
            return batch
        self._limits.hold()
        counted = stats()
        counts = (counted - self._reported).as_dict()
        self._reported = counted
        return _Parcel(batch, counts)


def _source(batch_sampler: Any) -> tuple[EpochSampler[Any] | None, int]:
    """The sampler that decides the order, and how many of its items make a batch."""
    if isinstance(batch_sampler, EpochSampler):
        return batch_sampler, 1
    inner = getattr(batch_sampler, "sampler", None)
    if isinstance(inner, EpochSampler):
        return inner, int(batch_sampler.batch_size)
    wrapped = getattr(batch_sampler, "_batch_sampler", None)  # Lightning's, which notes the indices of predictions
    return (None, 1) if wrapped is None else _source(wrapped)


def _check_samplers(dataset: Any, batch_size: int | None, sampler: Any, batch_sampler: Any) -> None:
    if isinstance(dataset, torch_data.IterableDataset):
        raise ConfigError("an IterableDataset has no samples to ask for: use torch.utils.data.DataLoader")
    if sampler is None and batch_sampler is None and hasattr(dataset, "index") and hasattr(dataset, "bounds"):
        raise ConfigError(
            f"a {type(dataset).__name__} is asked for places, which only a sampler knows: pass sampler="
            "RandomGeoSampler(dataset, size) or batch_sampler=RandomBatchGeoSampler(dataset, size, batch_size) instead "
            "of shuffle"
        )
    if batch_size is None and batch_sampler is None:
        raise ConfigError("batch_size=None: samples are always read in batches; pass batch_size=1")
    for outer in (sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(getattr(getattr(outer, "dataset", None), "_sampler", None), EpochSampler):  # Lightning's wrapper
            raise ConfigError(
                f"a {type(outer).__name__} around the sampler would deal each chip out twice: pass "
                "Trainer(use_distributed_sampler=False); geostream's samplers deal to ranks themselves"
            )
    if isinstance(sampler, EpochSampler) and hasattr(sampler, "batch_size"):
        raise ConfigError(f"a {type(sampler).__name__} yields whole batches: pass it as batch_sampler=")
    if isinstance(batch_sampler, EpochSampler) and not hasattr(batch_sampler, "batch_size"):
        raise ConfigError(f"a {type(batch_sampler).__name__} yields single places: pass it as sampler=")


def _nbytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, Mapping):
        return sum(_nbytes(value) for value in batch.values())
    if isinstance(batch, tuple | list):
        return sum(_nbytes(value) for value in batch)
    return 0
