"""Chips as arrays: which region, which row, which column. Queries are made one at a time, when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from geostream.errors import ConfigError
from geostream.samplers.regions import Place, Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Chips",
    "Edge",
    "check_edge",
    "draw_chips",
    "draw_regions",
    "fitting",
    "grid_chips",
    "offsets",
    "tile_count",
]

Edge = Literal["shift", "overhang", "drop"]
"""What becomes of a last row or column of chips that would leave the region."""

_ROUNDS = 64
"""How often a chip that misses its region's outline is drawn again before one of the region's grid is taken."""


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
    """Chips row by row from the top of every region, those left out that hold nothing of its outline."""
    parts = []
    for number, region in enumerate(regions):
        window = region.window
        tops = window.row_off + offsets(window.height, size[0], stride[0], edge)
        lefts = window.col_off + offsets(window.width, size[1], stride[1], edge)
        rows, cols = np.repeat(tops, len(lefts)), np.tile(lefts, len(tops))
        kept = region.touched(rows, cols, size)
        parts.append((np.full(int(kept.sum()), number, dtype=np.int64), rows[kept], cols[kept]))
    which, rows, cols = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Chips(regions, size, which, rows, cols)


def draw_regions(regions: Sequence[Region], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of regions, each as likely as its area."""
    shares = np.cumsum([region.area for region in regions])
    drawn = np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
    return np.asarray(np.minimum(drawn, len(regions) - 1), dtype=np.int64)


def draw_chips(
    regions: Sequence[Region], which: NDArray[np.int64], size: tuple[int, int], rng: np.random.Generator
) -> Chips:
    """One chip in each of the regions named by ``which``, every position that fits being equally likely.

    A chip larger than its region (`pad`) holds all of it. A chip that holds nothing of the region's outline is drawn
    again.
    """
    row, col = _positions(regions, which, size, rng)
    outlined = {number for number in np.unique(which).tolist() if regions[number].outline is not None}
    for _ in range(_ROUNDS):
        missed = _missed(regions, outlined, which, row, col, size)
        if not len(missed):
            break
        row[missed], col[missed] = _positions(regions, which[missed], size, rng)
    for chip in _missed(regions, outlined, which, row, col, size):
        grid = grid_chips([regions[int(which[chip])]], size, size)
        pick = int(rng.random() * len(grid))
        row[chip], col[chip] = grid.row[pick], grid.col[pick]
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


def _missed(
    regions: Sequence[Region],
    outlined: set[int],
    which: NDArray[np.int64],
    row: NDArray[np.int64],
    col: NDArray[np.int64],
    size: tuple[int, int],
) -> NDArray[np.int64]:
    lost = [np.zeros(0, dtype=np.int64)]
    for number in sorted(outlined):
        chips = np.flatnonzero(which == number)
        lost.append(chips[~regions[number].touched(row[chips], col[chips], size)])
    return np.sort(np.concatenate(lost))


def fitting(regions: Sequence[Region], size: tuple[int, int], *, pad: bool) -> tuple[list[Region], int]:
    """The regions that hold a chip of ``size``, and how many were too small.

    Slivers without a whole pixel, which intersections of neighbouring footprints leave, never count.

    Raises:
        ConfigError: none holds a chip.
    """
    real = [region for region in regions if region.window.width and region.window.height]
    if pad:
        kept = real
    else:
        kept = [region for region in real if region.window.height >= size[0] and region.window.width >= size[1]]
    kept = [region for region in kept if region.outline is None or len(grid_chips([region], size, size))]
    if not kept:
        largest = max(((r.window.height, r.window.width) for r in real), default=(0, 0), key=lambda hw: hw[0] * hw[1])
        raise ConfigError(
            f"every region is smaller than one chip of {size[0]} x {size[1]} pixels; the largest has {largest[0]} x "
            f"{largest[1]}: use a smaller size, a larger roi, or pad=True, which lets chips reach beyond the data"
        )
    return kept, len(real) - len(kept)


def check_edge(edge: Any) -> Edge:
    """``edge``, checked.

    Raises:
        ConfigError: not one of the three.
    """
    if edge not in {"shift", "overhang", "drop"}:
        raise ConfigError(f"edge={edge!r}: pass 'shift', 'overhang' or 'drop'")
    return edge  # type: ignore[no-any-return]
