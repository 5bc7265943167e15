"""Where each pixel of an output grid lies among a source's pixels, by PROJ on a coarse lattice of nodes.

PROJ is exact but slow, and what it computes is smooth: it is asked at nodes about `_STEP` pixels apart, and cubic
interpolation fills in between. The same nodes say how good that is (every second one predicts the others); where they
disagree the lattice is refined, in the end to every pixel, block by block, so that a discontinuity such as the
antimeridian costs only the blocks that it crosses.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from pyproj import Transformer

from geostream.errors import ConfigError
from geostream.grid import relative_transform, same_crs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pyproj import CRS

    from geostream.grid import Grid

    Floats = NDArray[np.float64]
    Mapping = Callable[[Floats, Floats], tuple[Floats, Floats]]

__all__ = ["Coordinates", "grid_scale", "source_coordinates"]

_TOLERANCE = 5e-5
"""Largest coordinate error in source pixels. A coordinate off by e falls into the wrong pixel with a chance of e on
each axis, so this keeps nearest neighbour wrong on fewer than 0.01 % of pixels."""

_STEP = 32
"""Output pixels between nodes to begin with."""

_BLOCK = 512
"""Edge of the blocks that are refined independently, in output pixels."""

_CUBIC_ORDER = 4.0
"""Halving the distance between nodes divides the cubic's error by 2 to this power."""

_FEWEST_NODES = 7
"""On each axis: every second of seven is four, which a cubic needs."""

_SERIAL_PRODUCTS = 1 << 16
"""Multiplications of one matrix product up to which OpenBLAS uses one thread."""

_MAX_TRANSFORMERS = 64
"""Transformers kept per thread."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """Coordinates at nodes spread over an output, from its first pixel's centre to its last's, and cubics between."""

    cols: Floats
    """(n, m) source columns."""
    rows: Floats
    """(n, m) source rows."""
    width: int
    """Width of the output in pixels."""
    height: int
    """Height of the output in pixels."""

    def filled(self, nodes: Floats) -> Floats:
        """Values at every pixel (height, width), or (height, width, k), of those at nodes (n, m), or (n, m, k)."""
        x, y = _cubic_weights(self.width, nodes.shape[1]), _cubic_weights(self.height, nodes.shape[0])
        lines = (x @ nodes).reshape(len(nodes), -1) if nodes.ndim > 2 else nodes @ x.T  # noqa: PLR2004 - several values
        # some rows at a time: BLAS would start threads for more, which would compete with decoding
        rows = max(1, _SERIAL_PRODUCTS // lines.size)
        values = np.empty((self.height, lines.shape[1]))
        whole = self.height // rows * rows
        np.matmul(y[:whole].reshape(-1, rows, len(lines)), lines, out=values[:whole].reshape(-1, rows, lines.shape[1]))
        np.matmul(y[whole:], lines, out=values[whole:])
        return values.reshape(self.height, self.width, *nodes.shape[2:])

    def extent(self, nodes: Floats) -> tuple[float, float]:
        """Least and greatest value."""
        if not (_monotonous(nodes, 0) or _monotonous(nodes, 1)):
            values = self.filled(nodes)
            return float(values.min()), float(values.max())
        x, y = _cubic_weights(self.width, nodes.shape[1]), _cubic_weights(self.height, nodes.shape[0])
        edges = np.concatenate([x @ nodes[0], x @ nodes[-1], y @ nodes[:, 0], y @ nodes[:, -1]])
        return float(edges.min()), float(edges.max())

    @property
    def scale(self) -> tuple[float, float]:
        """Median length of the gradient of columns and rows, source pixels per output pixel."""
        down, across = (
            (size - 1) / (nodes - 1) for size, nodes in zip((self.height, self.width), self.cols.shape, strict=True)
        )
        col, row = (_median(np.hypot(*_gradient(v, down, across))) for v in (self.cols, self.rows))
        return col, row


def _gradient(nodes: Floats, down: float, across: float) -> tuple[Floats, Floats]:
    """Change along rows and columns at nodes that have neighbours on all sides."""
    inner = np.s_[1:-1]
    return (nodes[2:, inner] - nodes[:-2, inner]) / (2 * down), (nodes[inner, 2:] - nodes[inner, :-2]) / (2 * across)


def _monotonous(nodes: Floats, axis: int) -> bool:
    """Whether values only rise, or only fall, along an axis: then the least and the greatest are on the edges."""
    steps = np.diff(nodes, axis=axis)
    return bool((steps >= 0).all() or (steps <= 0).all())


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Source pixel coordinates of every output pixel's centre."""

    places: tuple[Floats, Floats] | Lattice
    """Columns and rows, (H, W) each, or nodes from which to compute them."""
    scale: tuple[float, float]
    """Source pixels per output pixel along the source's (columns, rows): above 1 where the output is coarser."""

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W)."""
        at = self.places
        return (at.height, at.width) if isinstance(at, Lattice) else (at[0].shape[0], at[0].shape[1])

    @cached_property
    def cols(self) -> Floats:
        """(H, W) source columns; 0.5 is the centre of the first column, NaN a place the source's CRS does not have."""
        at = self.places
        return at.filled(at.cols) if isinstance(at, Lattice) else at[0]

    @cached_property
    def rows(self) -> Floats:
        """(H, W) source rows; 0.5 is the centre of the first row, NaN as in ``cols``."""
        at = self.places
        return at.filled(at.rows) if isinstance(at, Lattice) else at[1]

    @cached_property
    def extent(self) -> tuple[float, float, float, float]:
        """Least and greatest column, least and greatest row; NaN where there is any."""
        at = self.places
        if isinstance(at, Lattice):
            return *at.extent(at.cols), *at.extent(at.rows)
        cols, rows = (at[0][0], at[1][:, 0]) if self.separable else at
        return float(cols.min()), float(cols.max()), float(rows.min()), float(rows.max())

    @property
    def separable(self) -> bool:
        """Whether columns depend on the output column only and rows on the output row only (both are then views)."""
        at = self.places
        return not isinstance(at, Lattice) and at[0].strides[0] == 0 and at[1].strides[1] == 0


def source_coordinates(src: Grid, dst: Grid) -> Coordinates:
    """Find every output pixel's centre among the source's pixels.

    Grids of one CRS are related by their transforms alone. Otherwise coordinates are within 5e-5 source pixels of what
    PROJ gives. Longitudes of a geographic source are taken modulo 360 degrees to those nearest the source's centre, so
    that a raster may cross the antimeridian or run from 0 to 360; a projected source is reached from one side only.

    Args:
        src: the source's grid (of the level that will be read).
        dst: the output's grid.

    Returns:
        Coordinates of shape (dst.height, dst.width), float64.

    Raises:
        ConfigError: if one of the grids has a CRS and the other has none, or PROJ knows no way between them.
    """
    if same_crs(src.crs, dst.crs) and not src.curved:
        return _affine_coordinates(src, dst)
    mapping = _projected_mapping(src, dst)
    if max(dst.width, dst.height) <= _BLOCK:
        places = _block_places(mapping, 0, 0, dst.width, dst.height)
        known = places.scale if isinstance(places, Lattice) and min(dst.width, dst.height) > 1 else None
        scale = known or _scale_of_mapping(mapping, dst)
        return Coordinates(places, scale)
    scale = _scale_of_mapping(mapping, dst)
    cols, rows = np.empty((dst.height, dst.width)), np.empty((dst.height, dst.width))
    for top in range(0, dst.height, _BLOCK):
        for left in range(0, dst.width, _BLOCK):
            part = np.s_[top : top + _BLOCK, left : left + _BLOCK]
            height, width = cols[part].shape
            block = Coordinates(_block_places(mapping, left, top, width, height), scale)
            cols[part], rows[part] = block.cols, block.rows
    return Coordinates((cols, rows), scale)


def grid_scale(
    src: Grid, dst: Grid, locate: Callable[[Grid, Grid], Coordinates] = source_coordinates
) -> tuple[float, float]:
    """Source pixels per output pixel along the source's (columns, rows), without all coordinates of a large output.

    The same as ``source_coordinates(src, dst).scale``: the median over the output where it varies, and 1.0 where no
    part of the output can be expressed in the source's CRS.

    Args:
        src: the source's grid.
        dst: the output's grid.
        locate: `source_coordinates`, or what remembers its answers: those of small outputs are asked for here.

    Raises:
        ConfigError: as `source_coordinates`.
    """
    if same_crs(src.crs, dst.crs) and not src.curved:
        return _scale_of_affine(relative_transform(src.transform, dst.transform))
    if max(dst.width, dst.height) <= _BLOCK:
        return locate(src, dst).scale
    return _scale_of_mapping(_projected_mapping(src, dst), dst)


def _affine_coordinates(src: Grid, dst: Grid) -> Coordinates:
    a, b, c, d, e, f = relative = relative_transform(src.transform, dst.transform)
    shape = dst.height, dst.width
    x, y = np.arange(dst.width) + 0.5, (np.arange(dst.height) + 0.5)[:, None]
    if b == 0 and d == 0:
        cols, rows = np.broadcast_to(a * x + c, shape), np.broadcast_to(e * y + f, shape)
    else:
        cols, rows = a * x + (b * y + c), d * x + (e * y + f)
    return Coordinates((cols, rows), _scale_of_affine(relative))


def _scale_of_affine(relative: tuple[float, float, float, float, float, float]) -> tuple[float, float]:
    a, b, _, d, e, _ = relative
    return math.hypot(a, b), math.hypot(d, e)


class _Transformers(threading.local):
    """This thread's transformers. PROJ's objects belong to the thread, and the process, that made them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.made: dict[tuple[str, str], Transformer] = {}
        self.known: dict[tuple[int, int], tuple[CRS, CRS, Transformer]] = {}

    def get(self, source: CRS, target: CRS) -> Transformer:
        if self.pid != os.getpid() or max(len(self.made), len(self.known)) >= _MAX_TRANSFORMERS:
            self.pid, self.made, self.known = os.getpid(), {}, {}
        objects = id(source), id(target)  # asking a CRS what it is takes it longer than transforming a chip's nodes
        if objects not in self.known:
            key = source.srs, target.srs  # what they were made from; hashing a CRS itself writes out its WKT
            if key not in self.made:
                self.made[key] = _make_transformer(source, target)
            self.known[objects] = source, target, self.made[key]
        return self.known[objects][2]


_transformers = _Transformers()


def _make_transformer(source: CRS, target: CRS) -> Transformer:
    try:
        return Transformer.from_crs(source, target, always_xy=True)
    except Exception as error:  # pyproj raises ProjError and CRSError
        raise ConfigError(
            f"PROJ knows no way from {source.name!r} to {target.name!r}: {error}. "
            "Ask for a crs on the same celestial body, or leave crs out to read in the file's own."
        ) from error


def _projected_mapping(src: Grid, dst: Grid) -> Mapping:
    """Output pixel coordinates -> source pixel coordinates by PROJ; NaN where it fails."""
    if src.crs is None or dst.crs is None:
        which = "the raster" if src.crs is None else "the output grid"
        raise ConfigError(
            f"{which} has no CRS, so it cannot be warped between CRSs. "
            "Leave crs (and bounds_crs) out to read by pixel coordinates, or give the file a CRS first."
        )
    transformer = _transformers.get(dst.crs, src.crs)
    t = dst.transform
    period = _longitude_period(src.crs)
    middle = sum(src.bounds[::2]) / 2

    def mapping(cols: Floats, rows: Floats) -> tuple[Floats, Floats]:
        x, y = transformer.transform(t.a * cols + t.b * rows + t.c, t.d * cols + t.e * rows + t.f, errcheck=False)
        failed = ~(np.isfinite(x) & np.isfinite(y))
        if failed.any():
            x[failed] = y[failed] = np.nan
        if period is not None:
            x -= period * np.round((x - middle) / period)
        cols, rows = src.pixels_of(x, y)
        return cols, rows

    return mapping


def _longitude_period(crs: CRS) -> float | None:
    """A full turn in the units of a geographic CRS; None for any other."""
    if not crs.is_geographic or not crs.axis_info:
        return None
    return math.tau / crs.axis_info[0].unit_conversion_factor


def _scale_of_mapping(mapping: Mapping, dst: Grid) -> tuple[float, float]:
    """Median length of the gradient of source columns and rows, at three by three places of the output."""
    x, y = np.meshgrid(*((np.arange(3) + 0.5) / 3 * n for n in (dst.width, dst.height)))
    steps = ((0.5, 0.0), (-0.5, 0.0), (0.0, 0.5), (0.0, -0.5))
    cols, rows = mapping(np.stack([x + dx for dx, _ in steps]), np.stack([y + dy for _, dy in steps]))
    col_scale, row_scale = (_median(np.hypot(v[0] - v[1], v[2] - v[3])) for v in (cols, rows))
    return col_scale, row_scale


def _median(scales: Floats) -> float:
    known = sorted(v for v in scales.ravel().tolist() if math.isfinite(v))  # NumPy's takes ten times as long for nine
    return (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2 if known else 1.0


def _block_places(mapping: Mapping, left: int, top: int, width: int, height: int) -> tuple[Floats, Floats] | Lattice:
    """Places in one block: the coarsest lattice that predicts itself well enough, or every pixel."""
    step = _STEP
    while step > 1:
        nodes_x, nodes_y = _node_positions(width, step), _node_positions(height, step)
        if nodes_x.size * nodes_y.size * 2 > width * height:
            break
        values = mapping(*np.meshgrid(nodes_x + (left + 0.5), nodes_y + (top + 0.5)))
        finite = np.isfinite(values[0])
        if not finite.any():
            return np.full((height, width), np.nan), np.full((height, width), np.nan)
        if not finite.all():
            break
        if max(_self_error(v) for v in values) <= _TOLERANCE * 2**_CUBIC_ORDER:
            return Lattice(*values, width, height)
        step //= 2
    return mapping(*np.meshgrid(np.arange(width) + (left + 0.5), np.arange(height) + (top + 0.5)))


@lru_cache(maxsize=64)
def _node_positions(count: int, step: int) -> Floats:
    """An odd number of evenly spaced positions from the first pixel's centre to the last's, at most ``step`` apart."""
    return np.linspace(0, count - 1, max(_FEWEST_NODES, 2 * math.ceil((count - 1) / (2 * step)) + 1))


@lru_cache(maxsize=64)
def _cubic_weights(count: int, nodes: int) -> Floats:
    """Weights (count, nodes) of the cubic through the four nodes around each of ``count`` positions spread over all."""
    at = np.linspace(0, nodes - 1, count) if count > 1 else np.zeros(1)
    first = np.clip(np.floor(at).astype(np.intp) - 1, 0, nodes - 4)
    t = at - first
    a, b, c = t - 1, t - 2, t - 3
    weights = np.zeros((count, nodes))
    for k, weight in enumerate((a * b * c / -6, t * b * c / 2, t * a * c / -2, t * a * b / 6)):
        weights[np.arange(count), first + k] = weight
    weights.flags.writeable = False  # shared by all that ask
    return weights


def _self_error(nodes: Floats) -> float:
    """How far the cubic through every second node (on both axes) misses the others."""
    height, width = nodes.shape
    x, y = _cubic_weights(width, (width + 1) // 2), _cubic_weights(height, (height + 1) // 2)
    return float(np.abs(y @ nodes[::2, ::2] @ x.T - nodes).max())
