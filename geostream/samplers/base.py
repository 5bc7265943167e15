"""What every sampler shares: one order per (seed, epoch), dealt to ranks, with a place to go on from."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from geostream.errors import ConfigError
from geostream.samplers.checks import check_choice, check_count, check_flag, check_share
from geostream.samplers.chips import fitting
from geostream.samplers.regions import Place, dataset_res, index_of, regions_of
from geostream.samplers.units import Units, pixel_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from geostream.samplers.valid import ValidMap

__all__ = ["ChipOptions", "ChipSampler", "EpochSampler", "Iteration", "Place", "RankOptions", "Uneven", "epoch_rng"]

Item = TypeVar("Item")

Uneven = Literal["pad", "drop"]
"""What becomes of an epoch that ranks cannot share equally: its first items are dealt again, or the last left out."""

_MASK = (1 << 64) - 1


class RankOptions(TypedDict, total=False):
    """Keyword arguments of every sampler: how an epoch is dealt to ranks."""

    rank: int | None
    """This process's rank; by default torch.distributed's, asked at iteration."""
    world_size: int | None
    """Number of ranks, given together with ``rank``."""
    uneven: Uneven
    """What becomes of an epoch that ranks cannot share equally: ``"pad"``, the default, deals its first items again
    until every rank has as many as the others, ``"drop"`` leaves the last ones out."""


class ChipOptions(RankOptions, total=False):
    """Keyword arguments of every sampler of chips of one size."""

    pad: bool
    """Also take regions smaller than a chip; their chips reach beyond the data."""
    min_valid: float
    """Least share of a chip, 0 to 1, that must lie inside its scene's footprint and ``roi``, and be valid by the map
    ``valid``. 1 keeps chips wholly inside; by default some of it must lie inside."""
    valid: ValidMap | None
    """Where scenes hold data, told from their overviews by `read_valid`; without it footprints alone count."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What fixes the items of one pass over a sampler."""

    seed: int
    """Seed of every random choice."""
    epoch: int
    """Number of the epoch; with the seed it determines the order."""
    start: int
    """Items, over all ranks, that earlier runs of this epoch have dealt."""
    rank: int
    """This process's rank."""
    world_size: int
    """Number of ranks the items are dealt to."""


class EpochSampler(Sampler[Item], Generic[Item]):
    """A sampler whose order is a function of (seed, epoch) alone, dealt to ranks in turn.

    Nothing is drawn before the first `next` of an iteration: then the seed is fixed (once), the epoch is claimed (the
    next one, unless `set_epoch` said which) and rank and world size are resolved.

    Args:
        generator: its ``initial_seed()`` is the seed; it is never advanced. None draws one number from torch's global
            generator; under torch.distributed every rank uses rank 0's seed.
        options: see `RankOptions`.

    Raises:
        ConfigError: only one of ``rank`` and ``world_size``, or values that contradict each other.
    """

    def __init__(self, *, generator: torch.Generator | None = None, **options: Unpack[RankOptions]) -> None:
        rank, world_size, uneven = _check_ranks(**options)
        if not (generator is None or hasattr(generator, "initial_seed")):
            raise ConfigError(f"generator={generator!r}: pass torch.Generator().manual_seed(…)")
        self.generator = generator
        self.rank = rank
        self.world_size = world_size
        self.uneven: Uneven = uneven
        self._seed: int | None = None
        self._epoch = 0
        self._position = 0
        self._claimed = False
        self._iteration: Iteration | None = None

    @property
    @abstractmethod
    def total(self) -> int:
        """Items in a whole epoch, over all ranks."""

    @property
    def random(self) -> bool:
        """Whether anything is left to chance: else no seed is drawn."""
        return True

    def items(self, epoch: int) -> Sequence[Item]:
        """All items of an epoch, over all ranks. The sampler stays where it stands; its seed is drawn if need be."""
        return self._order(epoch_rng(self.fix_seed(), epoch))

    @abstractmethod
    def _order(self, rng: np.random.Generator) -> Sequence[Item]:
        """The whole epoch's items, every random choice taken from ``rng``; called once an iteration."""

    def __len__(self) -> int:
        """Items of a whole epoch that this rank gets, whatever part of it a resumed run has left."""
        return self.left(0)

    def __iter__(self) -> Iterator[Item]:
        """The items of the next epoch that fall to this rank."""
        iteration = self._begin()
        items = self._order(epoch_rng(iteration.seed, iteration.epoch))
        for step in range(_share(len(items) - iteration.start, iteration.world_size, self.uneven)):
            dealt = iteration.start + step * iteration.world_size
            if self._iteration is iteration and self._claimed:
                self._position = dealt + iteration.world_size
            yield items[(dealt + iteration.rank) % len(items)]

    @property
    def iteration(self) -> Iteration | None:
        """The iteration that began last, or None where the next is decided already (`set_epoch`, a loaded state)."""
        return self._iteration if self._claimed else None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. The epoch that a loaded state stands in goes on where the state stands."""
        if self._claimed or epoch != self._epoch:
            self._rewind(check_count("epoch", epoch, 0), 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands: ``epoch``, ``position`` (items dealt to all ranks) and, once drawn, ``seed``.

        ``sampler``, the class's name, and ``total``, the items of a whole epoch, tell what order it is of. The
        same on every rank, and valid for another number of ranks. Items that a loader has fetched ahead count as
        dealt; `geostream.DataLoader` keeps count of what it has delivered.
        """
        position = min(self._position, self.total)
        state = {"epoch": self._epoch, "position": position, "sampler": type(self).__name__, "total": self.total}
        return state if self._seed is None else {"seed": self._seed, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where ``state`` stood: the next iteration yields what was left of its epoch, or the epoch after.

        A state from between two epochs may be of any sampler. ``sampler`` and ``total`` may be missing, as they are in
        older states.

        Raises:
            ConfigError: not a state of a sampler, or one from within an epoch of another sampler or length.
        """
        try:
            epoch, position = int(state["epoch"]), int(state["position"])
            seed, total = (None if state.get(name) is None else int(state[name]) for name in ("seed", "total"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{state!r} is not a sampler's state: pass what state_dict() returned") from error
        if min(epoch, position) < 0 or (total is not None and position > total):
            raise ConfigError(f"{state!r} is not a sampler's state: pass what state_dict() returned")
        there = self.total if total is None else total
        ended = position > 0 and not self._left_of(there, position)
        if position and not ended:
            self._check_origin(str(state.get("sampler", type(self).__name__)), there)
        self._seed = self._seed if seed is None else seed
        self._rewind(*((epoch + 1, 0) if ended else (epoch, position)))

    def _check_origin(self, name: str, total: int) -> None:
        """Refuse a place in another order."""
        if (name, total) != (own := (type(self).__name__, self.total)):
            raise ConfigError(
                f"the state stands within an epoch of a {name} of {total} items, this is a {own[0]} of {own[1]}, whose "
                "order is another: make the sampler as it was, or begin an epoch by set_epoch"
            )

    def ranks(self) -> tuple[int, int]:
        """(rank, world size): those given, else torch.distributed's, else (0, 1)."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1

    def fix_seed(self) -> int:
        """The seed, drawn now if it has not been: for whoever is about to draw numbers of their own."""
        return self._fixed_seed(self.ranks()[1])

    def left(self, position: int) -> int:
        """Items that this rank still gets of an epoch of which ``position`` have been dealt to all ranks."""
        return self._left_of(self.total, position)

    def _left_of(self, total: int, position: int) -> int:
        return _share(max(0, total - position), self.ranks()[1], self.uneven)

    def _rewind(self, epoch: int, position: int) -> None:
        self._epoch, self._position, self._claimed = epoch, position, False

    def _begin(self) -> Iteration:
        rank, world_size = self.ranks()
        seed = self._fixed_seed(world_size)
        if self._claimed:
            self._rewind(self._epoch + 1, 0)
        self._claimed = True
        self._iteration = Iteration(seed, self._epoch, self._position, rank, world_size)
        return self._iteration

    def _fixed_seed(self, world_size: int) -> int:
        if not self.random:
            return self._seed or 0
        if self._seed is None:
            shared = dist.is_available() and dist.is_initialized() and self.rank is None
            if self.generator is None and world_size > 1 and not shared:
                raise ConfigError(
                    f"{world_size} ranks would each draw their own seed: pass generator="
                    "torch.Generator().manual_seed(…), the same on every rank, or initialise torch.distributed"
                )
            seed = _draw() if self.generator is None else int(self.generator.initial_seed())
            self._seed = _broadcast(seed) if shared and world_size > 1 else seed
        return self._seed


class ChipSampler(EpochSampler[Item], Generic[Item]):
    """A sampler of chips of one size from the scenes of a dataset.

    Chips lie on the pixel grid of the scene they are cut from, whole multiples of ``dataset.res`` from its upper left
    corner, so that a scene in the dataset's own CRS and resolution is pasted and never resampled. Their slices carry
    the resolution as step. The dataset's index is read once, here; nothing is drawn or fetched.

    Args:
        dataset: the GeoDataset to sample.
        size: side of a chip, or (height, width), in ``units``.
        roi: shapely polygon in the dataset's CRS to stay within (chips within its bounding box that hold some of it).
        toi: `pandas.Interval` to stay within, both ends included.
        units: what ``size`` is measured in.
        generator: its ``initial_seed()`` is the seed.
        pad: see `ChipOptions`, as for all that follow.
        min_valid: the same.
        valid: the same.
        options: the same.

    Raises:
        ConfigError: no region holds a chip, or malformed arguments.
    """

    def __init__(
        self,
        dataset: Any,
        size: tuple[float, float] | float,
        *,
        roi: Any = None,
        toi: Any = None,
        units: Units = Units.PIXELS,
        generator: torch.Generator | None = None,
        pad: bool = False,
        min_valid: float = 0.0,
        valid: ValidMap | None = None,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(generator=generator, **options)
        self.index = index_of(dataset)
        self.res = dataset_res(dataset)
        self.roi = roi
        self.toi = toi
        self.units = units
        self.pad = check_flag("pad", pad)
        self.min_valid = check_share("min_valid", min_valid)
        self.pixels = pixel_size(size, units, self.res, "size")
        self.size = (self.pixels[0] * self.res[1], self.pixels[1] * self.res[0])
        regions = [replace(region, least=self.min_valid) for region in regions_of(dataset, roi, toi, self._reach())]
        if valid is not None:
            if not hasattr(valid, "attached"):
                raise ConfigError(f"valid={valid!r}: pass what samplers.read_valid(dataset) returns")
            regions = valid.attached(dataset, regions)
        self.regions, small, refused = fitting(regions, self.pixels, pad=self.pad)
        _tell_of_left_out(self.pixels, len(regions), small, refused)

    def _reach(self) -> tuple[float, float]:
        """How far (x, y) chips may reach beyond their region, in CRS units."""
        return (self.size[1], self.size[0]) if self.pad else (0.0, 0.0)


def _tell_of_left_out(size: tuple[int, int], regions: int, small: int, refused: int) -> None:
    chip = f"one chip of {size[0]} x {size[1]} pixels"
    if small:
        warnings.warn(
            f"{small} of {regions} regions are smaller than {chip} and are left out; pad=True takes them, with chips "
            "that reach beyond them",
            stacklevel=4,
        )
    if refused:
        warnings.warn(
            f"{refused} of {regions} regions are left out: in none of them {chip} holds as much valid ground as "
            "min_valid says and keeps within roi and its split",
            stacklevel=4,
        )


def _check_ranks(
    rank: int | None = None, world_size: int | None = None, uneven: Uneven = "pad"
) -> tuple[int | None, int | None, Uneven]:
    check_choice("uneven", uneven, ("pad", "drop"))
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size go together: pass both, or neither to follow torch.distributed")
    if rank is None or world_size is None:
        return None, None, uneven
    rank, world_size = check_count("rank", rank, 0), check_count("world_size", world_size)
    if rank >= world_size:
        raise ConfigError(f"rank {rank} does not exist among {world_size}: ranks count from 0")
    return rank, world_size, uneven


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """Where an epoch's random choices come from."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed & _MASK, epoch])))


def _share(items: int, world_size: int, uneven: Uneven) -> int:
    """How many of ``items`` each rank gets."""
    return -(-items // world_size) if uneven == "pad" else items // world_size


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _broadcast(seed: int) -> int:
    box: list[Any] = [seed]
    dist.broadcast_object_list(box, src=0)
    return int(box[0])
