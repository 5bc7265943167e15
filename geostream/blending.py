"""Overlapping chips made into one raster: kept on disk as they come, blended strip by strip."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Chip", "ChipFile", "blended", "covers", "one_of_each", "strips"]

_ROWS = 512
"""Rows that are looked at together."""

_HIGHEST = 64
"""Weight in the middle of a chip: small whole numbers keep sums of float32 predictions exact in float64."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A prediction that waits on disk."""

    scene: int
    """Number of the scene that it belongs to."""
    row: int
    """Row of its upper left pixel in the scene; negative where the chip reaches beyond it."""
    col: int
    """Column of its upper left pixel, likewise."""
    shape: tuple[int, int, int]
    """(C, H, W)."""
    dtype: str
    """NumPy's name of the values' type."""
    file: str
    """Path of the file that holds the values."""
    start: int
    """Where in the file they begin, in bytes."""
    holed: bool
    """Whether bool (H, W) follow there: which pixels count."""

    @property
    def values(self) -> NDArray[Any]:
        """(C, H, W) the values, mapped from the file."""
        return np.memmap(self.file, dtype=self.dtype, mode="r", offset=self.start, shape=self.shape)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """(H, W) which pixels count, mapped from the file; None if all do."""
        if not self.holed:
            return None
        behind = self.start + int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        return np.memmap(self.file, dtype=bool, mode="r", offset=behind, shape=self.shape[1:])


class ChipFile:
    """Chips written one behind the other, and the list of them, for other processes to read.

    Args:
        folder: where the files are made; it must exist.
        name: their name, different in each process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._list = folder / f"{name}.bin", folder / f"{name}.json"
        self._file = self._path.open("wb")
        self._chips: list[dict[str, Any]] = []

    def add(
        self, values: NDArray[Any], valid: NDArray[np.bool_] | None, places: Iterable[tuple[int, int, int]]
    ) -> None:
        """Keep a chip (C, H, W) and which of its pixels count, (H, W) or all, for its places (scene, row, column)."""
        start, holed = self._file.tell(), valid is not None and not valid.all()
        self._file.write(np.ascontiguousarray(values).tobytes())
        if valid is not None and holed:
            self._file.write(valid.tobytes())
        fact = {
            "shape": values.shape,
            "dtype": values.dtype.str,
            "file": str(self._path),
            "start": start,
            "holed": holed,
        }
        self._chips += [{"scene": scene, "row": row, "col": col, **fact} for scene, row, col in places]

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        self._list.write_text(json.dumps(self._chips))

    @staticmethod
    def read_all(folder: Path) -> list[list[Chip]]:
        """The chips of every process that has finished its files in ``folder``."""
        lists = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        return [[Chip(**{**fact, "shape": tuple(fact["shape"])}) for fact in facts] for facts in lists]


def one_of_each(chips: Iterable[Chip]) -> list[Chip]:
    """Chips from the top down, one of those at the same place: ranks that share an epoch predict some chips twice."""
    places = {(chip.row, chip.col, chip.shape): chip for chip in chips}
    return [places[key] for key in sorted(places)]


def strips(height: int, step: int) -> Iterator[tuple[int, int]]:
    """First row and row count of what is written at a time."""
    return ((top, min(step, height - top)) for top in range(0, height, step))


def blended(chips: Sequence[Chip], top: int, height: int, width: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Blend rows ``top`` to ``top + height`` of a scene that is ``width`` pixels wide.

    Floating point predictions are weighted means: a pixel counts the more, the farther it lies from its chip's edge.
    Whole numbers are labels, of which no mean can be taken: the chip in which the pixel lies farthest from the edge
    says which. NaN is no prediction.

    Args:
        chips: the scene's chips, as `one_of_each` gives them.
        top: first row.
        height: number of rows.
        width: number of columns.

    Returns:
        Values (C, height, width) in the chips' dtype, 0 where nothing is predicted, and bool (height, width): where
        anything is.

    Raises:
        ConfigError: the chips have different numbers of channels.
    """
    kinds = {(chip.shape[0], chip.dtype) for chip in chips}
    if len(kinds) != 1:
        raise ConfigError(f"a scene's chips must be alike, and have (channels, dtype) {sorted(kinds)}")
    ((channels, dtype),) = kinds
    means = np.dtype(dtype).kind == "f"
    total = np.zeros((channels, height, width), np.float64 if means else dtype)
    weight = np.zeros((height, width), np.float64)
    for chip in chips:
        rows, cols = _overlap(chip.row - top, chip.shape[1], height), _overlap(chip.col, chip.shape[2], width)
        if rows is None or cols is None:
            continue
        there = np.s_[rows[0], cols[0]]
        values, share = chip.values[:, rows[1], cols[1]], _weights(*chip.shape[1:])[rows[1], cols[1]]
        if chip.valid is not None:
            share = np.where(chip.valid[rows[1], cols[1]], share, 0.0)
        if means:
            share = np.where(np.isnan(values).any(axis=0), 0.0, share)
            total[:, *there] += np.where(share > 0, values, 0) * share
            weight[there] += share
        else:
            better = share > weight[there]
            np.copyto(total[:, *there], values, where=better)
            np.copyto(weight[there], share, where=better)
    found = weight > 0
    if means:
        total /= np.where(found, weight, 1)
    return total.astype(dtype), found


def covers(chips: Sequence[Chip], height: int, width: int) -> bool:
    """Whether the chips leave nothing of a scene out."""
    if any(chip.holed for chip in chips):
        return False
    for top, count in strips(height, _ROWS):
        covered = np.zeros((count, width), bool)
        for chip in chips:
            rows, cols = _overlap(chip.row - top, chip.shape[1], count), _overlap(chip.col, chip.shape[2], width)
            if rows is not None and cols is not None:
                covered[rows[0], cols[0]] = True
        if not covered.all():
            return False
    return True


def _overlap(start: int, length: int, end: int) -> tuple[slice, slice] | None:
    """The part of ``start`` to ``start + length`` within 0 to ``end``, counted from 0 and from ``start``."""
    first, last = max(0, start), min(end, start + length)
    return None if first >= last else (slice(first, last), slice(first - start, last - start))


def _weights(height: int, width: int) -> NDArray[np.float64]:
    """(height, width) whole numbers from 1 at the edges to the highest in the middle."""
    down, across = (_ramp(side) for side in (height, width))
    return np.outer(down, across)


def _ramp(side: int) -> NDArray[np.float64]:
    at = np.arange(side)
    inward = np.minimum(at, side - 1 - at) + 1
    ramp: NDArray[np.float64] = np.ceil(inward * _HIGHEST / ((side + 1) // 2)).astype(np.float64)
    return ramp
