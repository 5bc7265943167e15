"""The most frequent value under each output pixel: resampling for classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.kernels import SNAP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

__all__ = ["modes"]

_MOST_TAPS = 1 << 20
"""Source pixels looked at in one go: bounds temporary memory."""


def modes(
    data: Array, valid: Bools | None, cols: Floats, rows: Floats, scale: tuple[float, float]
) -> tuple[Array, Bools]:
    """Most frequent valid value of the source pixels that each output pixel touches, as GDAL finds it.

    Pixels touched in part count in full. Of values equally frequent, the one that gets there first wins, line by line.

    Args:
        data: (C, h, w) source pixels.
        valid: (C, h, w) or (1, h, w); None if all are.
        cols: (N,) columns of the output pixels' centres, 0.5 the centre of the first source pixel.
        rows: (N,) rows likewise.
        scale: source pixels per output pixel along (columns, rows).

    Returns:
        (C, N) values, and whether anything valid was there.
    """
    count = len(cols)
    out, found = np.zeros((len(data), count), data.dtype), np.zeros((len(data), count), bool)
    size = math.prod(math.ceil(s) + 1 for s in scale)
    step = max(1, _MOST_TAPS // size)
    for start in range(0, count, step):
        part = slice(start, start + step)
        col, in_col = _span(cols[part], scale[0], data.shape[2])
        row, in_row = _span(rows[part], scale[1], data.shape[1])
        places = (row[:, :, None] * data.shape[2] + col[:, None, :]).reshape(len(col), -1)
        inside = (in_row[:, :, None] & in_col[:, None, :]).reshape(len(col), -1)
        for band, plane in enumerate(data):
            present = inside
            if valid is not None:
                present = inside & valid[min(band, len(valid) - 1)].ravel()[places]
            out[band, part], found[band, part] = _most_frequent(plane.ravel()[places], present)
    return out, found


def _span(at: Floats, scale: float, size: int) -> tuple[Ints, Bools]:
    """Source pixels (N, K) that the output pixels centred at ``at`` touch along one axis, and which are theirs."""
    first = np.floor(at - scale / 2 + SNAP).astype(np.intp)
    stop = np.maximum(np.ceil(at + scale / 2 - SNAP).astype(np.intp), first + 1)
    taps = first[:, None] + np.arange(math.ceil(scale) + 1)
    within = (taps >= 0) & (taps < np.minimum(stop, size)[:, None])
    return np.clip(taps, 0, size - 1), within


def _most_frequent(values: Array, present: Bools) -> tuple[Array, Bools]:
    """Of each line of values (N, K), the one that first reaches the highest count among those present."""
    count, taps = values.shape
    order = np.lexsort((np.broadcast_to(np.arange(taps), values.shape), values, ~present), axis=1)
    lines = np.arange(count)[:, None]
    ranked, here = values[lines, order], present[lines, order]
    starts = np.ones((count, taps), bool)
    same = (ranked[:, 1:] == ranked[:, :-1]) | (np.isnan(ranked[:, 1:]) & np.isnan(ranked[:, :-1]))
    starts[:, 1:] = ~same | (here[:, 1:] != here[:, :-1])
    position = np.arange(taps)
    run = position - np.maximum.accumulate(np.where(starts, position, 0), axis=1) + 1
    score = np.where(here, run * taps + (taps - 1 - order), -1)
    best = score.argmax(axis=1)
    return ranked[np.arange(count), best], here[np.arange(count), best]
