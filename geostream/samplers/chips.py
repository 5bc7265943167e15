"""Chips as arrays: which region, which row, which column. Queries are made one at a time, when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from geostream.errors import ConfigError
from geostream.samplers.regions import Place, Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Chips",
    "Edge",
    "draw_chips",
    "draw_regions",
    "fitting",
    "grid_chips",
    "offsets",
    "some_chips",
    "tile_count",
]

Edge = Literal["shift", "overhang", "drop"]
"""What becomes of a last row or column of chips that would leave the region."""

_ROUNDS = 64
"""How often a chip that its region does not admit is drawn again before one of the region's grid is taken."""


@dataclass(frozen=True)
class Chips(Sequence[Place]):
    """A sequence of queries of one size, kept as three integers each."""

    regions: Sequence[Region]
    """Where the chips lie."""
    size: tuple[int, int]
    """Height and width of every chip in pixels."""
    region: NDArray[np.int64]
    """(N,) number of each chip's region."""
    row: NDArray[np.int64]
    """(N,) first row of each chip, counted from its region's origin."""
    col: NDArray[np.int64]
    """(N,) first column of each chip, counted from its region's origin."""

    def __len__(self) -> int:
        return len(self.region)

    @overload
    def __getitem__(self, item: int) -> Place: ...
    @overload
    def __getitem__(self, item: slice) -> list[Place]: ...
    def __getitem__(self, item: int | slice) -> Place | list[Place]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        region = self.regions[int(self.region[item])]
        return region.place(int(self.row[item]), int(self.col[item]), *self.size)


def offsets(extent: int, size: int, stride: int, edge: Edge) -> NDArray[np.int64]:
    """First pixels of the chips of ``size`` that cover ``extent`` pixels, ``stride`` apart; at least one."""
    if extent <= size:
        return np.zeros(1, dtype=np.int64)
    inside = np.arange(0, extent - size + 1, stride, dtype=np.int64)
    following = int(inside[-1]) + stride
    if edge == "drop" or inside[-1] + size >= extent:
        return inside
    if edge == "shift":
        return np.append(inside, extent - size)
    return np.append(inside, following) if following < extent else inside


def tile_count(extent: int, size: int) -> int:
    """How many chips of ``size`` stand for ``extent`` pixels, as TorchGeo counts them; at least one."""
    return max(1, -(-(extent - size) // size) + 1)


def grid_chips(
    regions: Sequence[Region], size: tuple[int, int], stride: tuple[int, int], edge: Edge = "shift"
) -> Chips:
    """Chips row by row from the top of every region, those left out that it does not admit."""
    parts = []
    for number, region in enumerate(regions):
        window = region.window
        tops = window.row_off + offsets(window.height, size[0], stride[0], edge)
        lefts = window.col_off + offsets(window.width, size[1], stride[1], edge)
        rows, cols = np.repeat(tops, len(lefts)), np.tile(lefts, len(tops))
        kept = region.admits(rows, cols, size)
        parts.append((np.full(int(kept.sum()), number, dtype=np.int64), rows[kept], cols[kept]))
    which, rows, cols = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Chips(regions, size, which, rows, cols)


def some_chips(region: Region, size: tuple[int, int]) -> Chips:
    """Chips that the region admits: those side by side, or if these are none, those that are a quarter apart."""
    beside = grid_chips([region], size, size)
    return beside if len(beside) else grid_chips([region], size, _quarter(size))


def _quarter(size: tuple[int, int]) -> tuple[int, int]:
    return max(1, size[0] // 4), max(1, size[1] // 4)


def draw_regions(regions: Sequence[Region], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of regions, each as likely as its area."""
    shares = np.cumsum([region.area for region in regions])
    drawn = np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
    return np.asarray(np.minimum(drawn, len(regions) - 1), dtype=np.int64)


def draw_chips(
    regions: Sequence[Region], which: NDArray[np.int64], size: tuple[int, int], rng: np.random.Generator
) -> Chips:
    """One chip in each of the regions named by ``which``, every position that fits being equally likely.

    A chip larger than its region (`pad`) holds all of it. A chip that the region does not admit is drawn again.
    """
    row, col = _positions(regions, which, size, rng)
    doubtful = np.flatnonzero(np.array([region.selective for region in regions])[which])
    for _ in range(_ROUNDS):
        doubtful = _refused(regions, doubtful, which, row, col, size)
        if not len(doubtful):
            break
        row[doubtful], col[doubtful] = _positions(regions, which[doubtful], size, rng)
    known: dict[int, Chips] = {}
    for chip in _refused(regions, doubtful, which, row, col, size):
        number = int(which[chip])
        known[number] = known.get(number) or some_chips(regions[number], size)
        pick = int(rng.random() * len(known[number]))
        row[chip], col[chip] = known[number].row[pick], known[number].col[pick]
    return Chips(regions, size, which, row, col)


def _positions(
    regions: Sequence[Region], which: NDArray[np.int64], size: tuple[int, int], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    windows = np.array([(r.window.row_off, r.window.col_off, r.window.height, r.window.width) for r in regions])[which]
    drawn = rng.random((2, len(which)))
    rows, cols = (
        _slid(windows[:, axis], windows[:, axis + 2] - size[axis], drawn[axis])  # height, then width
        for axis in (0, 1)
    )
    return rows, cols


def _slid(first: NDArray[np.int64], free: NDArray[np.int64], drawn: NDArray[np.float64]) -> NDArray[np.int64]:
    """``first`` moved by 0 to ``free`` pixels, forward where free is positive and backward where it is negative."""
    moved = first + np.minimum(free, 0) + (drawn * (np.abs(free) + 1)).astype(np.int64)
    return np.asarray(moved, dtype=np.int64)


def _refused(
    regions: Sequence[Region],
    chips: NDArray[np.int64],
    which: NDArray[np.int64],
    row: NDArray[np.int64],
    col: NDArray[np.int64],
    size: tuple[int, int],
) -> NDArray[np.int64]:
    """Those of ``chips`` that their regions do not admit."""
    by_region = chips[np.argsort(which[chips], kind="stable")]
    ends = np.flatnonzero(np.diff(which[by_region])) + 1
    refused = [
        part[~regions[int(which[part[0]])].admits(row[part], col[part], size)]
        for part in np.split(by_region, ends)
        if len(part)
    ]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *refused]))


def fitting(regions: Sequence[Region], size: tuple[int, int], *, pad: bool) -> tuple[list[Region], int, int]:
    """The regions that hold a chip of ``size``, how many were too small, and how many admit none.

    Slivers without a whole pixel, which intersections of neighbouring footprints leave, never count.

    Raises:
        ConfigError: none holds a chip.
    """
    real = [region for region in regions if region.window.width and region.window.height]
    large = [r for r in real if pad or (r.window.height >= size[0] and r.window.width >= size[1])]
    if not large:
        largest = max(((r.window.height, r.window.width) for r in real), default=(0, 0), key=lambda hw: hw[0] * hw[1])
        raise ConfigError(
            f"every region is smaller than one chip of {size[0]} x {size[1]} pixels; the largest has {largest[0]} x "
            f"{largest[1]}: use a smaller size, a larger roi, or pad=True, which lets chips reach beyond the data"
        )
    kept = [region for region in large if not region.selective or len(some_chips(region, size))]
    if not kept:
        raise ConfigError(
            f"no chip of {size[0]} x {size[1]} pixels in {len(large)} regions has min_valid={large[0].least} of valid "
            "ground and keeps within roi and its split: use a smaller size, a lower min_valid, or a larger roi"
        )
    return kept, len(real) - len(large), len(large) - len(kept)
