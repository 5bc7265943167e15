"""The order of an epoch's chips: lanes that share no tile, in each of which some tile groups are open at a time.

An epoch's batches are dealt to ranks in turn. So batches that stand a multiple of the number of lanes apart may share
tiles, and no others may: then every rank whose number divides that of the lanes reads tiles that no other rank reads.
Within a lane, each open group is visited once in a round, in random order, and gives a few of its chips at each visit;
one that has given all is followed by another. So between two visits to a group at most every other one is visited
twice, which bounds what a cache has to hold by twice what is open, and a batch of each lane.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Lanes", "deal", "interleave"]

_SLACK = 8
"""Lanes may lengthen an epoch by one part in so many, or by one batch each if that is more."""
_LONG = 4
"""Groups for each slot from which on it pays to open them evenly, at the price of a beginning with fewer open."""


@dataclass(frozen=True)
class Lanes:
    """How tile groups are shared out; the same in every epoch but for which groups of a size take which place."""

    sizes: Ints
    """(N,) chips of each group."""
    lane: Ints
    """(N,) lane of the largest group, of the second largest, and so on."""
    count: int
    """Number of lanes."""
    batches: int
    """Batches in each lane."""

    @property
    def total(self) -> int:
        """Batches in all lanes."""
        return self.count * self.batches


def deal(sizes: Ints, batch_size: int, lanes: int) -> Lanes:
    """Share groups out so that lanes hold about as many chips.

    Fewer lanes are made, a divisor of ``lanes``, where there are too few groups for them or too uneven ones.

    Args:
        sizes: (N,) chips of each group.
        batch_size: chips in a batch.
        lanes: how many lanes to make.
    """
    shortest = -(-int(sizes.sum()) // batch_size)
    descending = np.sort(sizes)[::-1]
    for count in (n for n in range(lanes, 0, -1) if lanes % n == 0):
        lane, load = _balanced(descending, count)
        batches = -(-load // batch_size)
        if count == 1 or (count <= len(sizes) and count * batches <= shortest + max(count - 1, shortest // _SLACK)):
            break
    return Lanes(sizes, lane, count, batches)


def _balanced(descending: Ints, count: int) -> tuple[Ints, int]:
    """The lane of each group, the least filled one taking the next, and the chips of the fullest."""
    heap = [(0, lane) for lane in range(count)]
    places = np.empty(len(descending), dtype=np.int64)
    for place, size in enumerate(descending.tolist()):
        load, lane = heapq.heappop(heap)
        places[place] = lane
        heapq.heappush(heap, (load + size, lane))
    return places, max(load for load, _ in heap)


def interleave(lanes: Lanes, batch_size: int, open_groups: int, visit: int, rng: np.random.Generator) -> Ints:
    """The groups of an epoch's chips, batch by batch.

    Args:
        lanes: which groups there are.
        batch_size: chips in a batch.
        open_groups: groups open at a time in each lane.
        visit: chips that an open group gives when it is visited.
        rng: where randomness comes from.

    Returns:
        (batches, batch_size) numbers of groups. Each occurs as often as it has chips, those that a lane ends with more
        often where the lane's chips do not fill its batches.
    """
    queues = _queues(lanes, batch_size, open_groups, rng)
    column = np.repeat(queues.lane * open_groups + queues.slot, queues.sizes)  # one number a slot
    rounds = _rounds(queues, visit)
    visits = np.cumsum(_changes(column) | _changes(rounds)) - 1
    turn = rng.random(visits[-1] + 1)[visits]
    group, lane = np.repeat(queues.group, queues.sizes), np.repeat(queues.lane, queues.sizes)
    group = group[np.lexsort((np.arange(len(group)), turn, rounds, lane))]
    batches = group.reshape(lanes.count, lanes.batches, batch_size)
    return np.ascontiguousarray(batches.swapaxes(0, 1)).reshape(lanes.total, batch_size)


@dataclass(frozen=True)
class _Queues:
    """Groups in the order in which they are opened: slot by slot, lane by lane."""

    group: Ints
    """(N,) number of the group."""
    sizes: Ints
    """(N,) chips that it gives."""
    lane: Ints
    """(N,) its lane."""
    slot: Ints
    """(N,) its slot."""
    slots: Ints
    """(N,) slots of its lane."""
    follow: NDArray[np.bool_]
    """(N,) whether its lane has many more groups than slots."""


def _queues(lanes: Lanes, batch_size: int, open_groups: int, rng: np.random.Generator) -> _Queues:
    number = len(lanes.sizes)
    lane_of = np.empty(number, dtype=np.int64)
    lane_of[np.lexsort((rng.random(number), -lanes.sizes))] = lanes.lane
    group = np.lexsort((rng.random(number), lane_of)).astype(np.int64)
    lane, sizes = lane_of[group], lanes.sizes[group]
    in_lane = np.bincount(lane, minlength=lanes.count)
    chips = np.bincount(lane, weights=sizes, minlength=lanes.count).astype(np.int64)
    place = np.arange(number) - (np.cumsum(in_lane) - in_lane)[lane]
    groups, slots = in_lane[lane], np.minimum(open_groups, in_lane)[lane]
    lacking, fromend = (lanes.batches * batch_size - chips)[lane], groups - 1 - place
    more = np.where(fromend < slots, lacking // slots + (fromend < lacking % slots), 0)
    # Groups take slots in turn; those too few for a whole turn take the slots that are empty first.
    rest = groups % slots
    slot = np.where(place >= groups - rest, slots - rest + place % slots, place % slots)
    queue = np.lexsort((place, slot, lane))
    return _Queues(
        group[queue], (sizes + more)[queue], lane[queue], slot[queue], slots[queue], (groups >= _LONG * slots)[queue]
    )


def _changes(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it; the first counts."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def _rounds(queues: _Queues, visit: int) -> Ints:
    """In which round each chip of the queues has its turn. A visit ends with its group.

    Where many groups follow one another, slots begin at different speeds: in the time in which the last of K slots
    gives all of its first group, the k-th gives k / K. Else all groups would be exhausted at once, and batches that
    need every tile anew would follow many that need none.
    """
    sizes = queues.sizes
    slots = np.flatnonzero(_changes(queues.lane) | _changes(queues.slot))
    part, parts = queues.slot + 1, queues.slots
    slow = np.zeros(len(sizes), dtype=np.int64)
    slow[slots] = np.where(queues.follow & (sizes > visit), sizes * part // parts, 0)[slots]
    begin = np.where(slow > 0, -(-sizes // visit), 0)
    needed = begin - (slow - sizes) // visit
    done = np.cumsum(needed) - needed
    length = np.diff(np.append(slots, len(sizes)))
    done -= np.repeat(done[slots], length)
    group = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    early = nth * parts[group] // (visit * part[group])
    within = np.where(nth < slow[group], early, begin[group] + (nth - slow[group]) // visit)
    rounds: Ints = done[group] + within
    return rounds
