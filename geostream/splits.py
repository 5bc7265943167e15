"""Parts of a dataset that share no ground, or no time: to train on one, and to validate and test on others.

Names and arguments are those of ``torchgeo.datasets.splits``. Each part is a dataset of the same kind, whose index
holds what is its own; the original stays as it was. Ground where scenes overlap is given to one part only, samplers
keep their chips within it, and a query that reaches into other ground raises `QueryError`: nothing can leak.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import shapely
import torch

from geostream.borders import Border
from geostream.errors import ConfigError
from geostream.grid import PASTE_TOLERANCE, parse_crs
from geostream.samplers.checks import check_count
from geostream.samplers.regions import dataset_res, index_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import geopandas as gpd
    from numpy.typing import NDArray

__all__ = [
    "random_bbox_assignment",
    "random_bbox_splitting",
    "random_grid_cell_assignment",
    "roi_split",
    "time_series_split",
]

_ALIKE = 0.5
"""Share of the larger of two scenes from which on what they have in common makes them one place."""

Piece = tuple[int, Any, int]
"""Row of the index, the ground that is to be cut out of its footprint, and the number of the split that gets it."""


def random_bbox_assignment(
    dataset: Any, lengths: Sequence[float], generator: torch.Generator | None = None
) -> list[Any]:
    """Give each scene to one of several splits at random.

    Scenes of one place (those that overlap by more than half of the larger: other dates, mostly) go together.
    Where scenes of two splits still overlap, the ground goes to the split that is named first.

    Args:
        dataset: the dataset to split; a combination is split by its own index.
        lengths: number of scenes of each split, or fractions that sum to 1; met as closely as places allow.
        generator: where randomness comes from; by default torch's global generator.

    Returns:
        One dataset for each length.

    Raises:
        ConfigError: lengths that do not sum up, or a split that would be empty.
    """
    places = _places(index_of(dataset))
    total = len(dataset.index)
    counts = _counts(lengths, total)
    split_of = _dealt([len(rows) for rows in places], counts, generator)
    footprints = _footprints(dataset)
    pieces = [(row, footprints[row], split) for rows, split in zip(places, split_of, strict=True) for row in rows]
    return _parts(dataset, pieces, len(counts))


def random_bbox_splitting(
    dataset: Any, fractions: Sequence[float], generator: torch.Generator | None = None
) -> list[Any]:
    """Cut each scene into strips, one for each split, in a random direction and order.

    Scenes of one place are cut alike. Cuts run along pixels.

    Args:
        dataset: the dataset to split; a combination is split by its own index.
        fractions: each split's fraction of every scene; they sum to 1.
        generator: where randomness comes from; by default torch's global generator.

    Returns:
        One dataset for each fraction.

    Raises:
        ConfigError: fractions that do not sum to 1, or a split that would be empty.
    """
    shares = _fractions("fractions", fractions)
    pieces: list[Piece] = []
    for rows, box in _boxed_places(dataset):
        down = bool(torch.randint(0, 2, (1,), generator=generator))
        order = torch.randperm(len(shares), generator=generator).tolist()
        ends = [0.0, *itertools.accumulate(shares[split] for split in order)]
        cells = box.cells(ends, [0.0, 1.0]) if down else box.cells([0.0, 1.0], ends)
        pieces += [(row, cell, split) for cell, split in zip(cells, order, strict=True) for row in rows]
    return _parts(dataset, pieces, len(shares))


def random_grid_cell_assignment(
    dataset: Any, fractions: Sequence[float], grid_size: int = 6, generator: torch.Generator | None = None
) -> list[Any]:
    """Lay a grid over each scene, and give each cell to one of several splits at random.

    Scenes of one place have one grid. Cells are cut along pixels.

    Args:
        dataset: the dataset to split; a combination is split by its own index.
        fractions: each split's fraction of all cells; they sum to 1.
        grid_size: rows, and columns, of the grid over a scene.
        generator: where randomness comes from; by default torch's global generator.

    Returns:
        One dataset for each fraction.

    Raises:
        ConfigError: fractions that do not sum to 1, a grid of one cell, or a split that would be empty.
    """
    shares, side = _fractions("fractions", fractions), check_count("grid_size", grid_size, 2)
    ends = np.linspace(0.0, 1.0, side + 1).tolist()
    cells = [(rows, cell) for rows, box in _boxed_places(dataset) for cell in box.cells(ends, ends)]
    split_of = _dealt([1] * len(cells), _counts(shares, len(cells)), generator)
    pieces = [(row, cell, split) for (rows, cell), split in zip(cells, split_of, strict=True) for row in rows]
    return _parts(dataset, pieces, len(shares))


def roi_split(dataset: Any, rois: Sequence[Any]) -> list[Any]:
    """Keep to a region of interest in each split.

    Args:
        dataset: the dataset to split; a combination is split by its own index.
        rois: shapely polygons in the dataset's CRS, which may touch but not overlap.

    Returns:
        One dataset for each region, whose chips lie wholly within.

    Raises:
        ConfigError: regions that overlap or are no polygons, or in which there is nothing.
    """
    rois = _listed("rois", rois)
    for roi in rois:
        if not (isinstance(roi, shapely.Geometry) and shapely.is_valid(roi) and roi.area > 0):
            raise ConfigError(f"rois holds {roi!r}: pass valid shapely polygons in the dataset's CRS")
    for (i, one), (j, other) in itertools.combinations(enumerate(rois), 2):
        if shapely.intersection(one, other).area > 0:
            raise ConfigError(f"rois {i} and {j} overlap, so that what is common would be in two splits")
    rows = range(len(index_of(dataset)))
    return _parts(dataset, [(row, roi, split) for split, roi in enumerate(rois) for row in rows], len(rois))


def time_series_split(
    dataset: Any, lengths: Sequence[float] | Sequence[pd.Timedelta] | Sequence[pd.Interval]
) -> list[Any]:
    """Split by time, the earliest first.

    A scene whose interval reaches across a border belongs to no split, which a warning tells. In combinations masks are
    not split: they are read at the times of the images.

    Args:
        dataset: the dataset to split.
        lengths: fractions of the time from the first scene's beginning to the last one's end, which sum to 1, and
            between which the cut falls where it parts no scene, if there is such a moment nearby; or
            `pandas.Timedelta` from the first scene on; or `pandas.Interval`, from the left end, included, to the right
            one, excluded if another interval begins there. Times between intervals are left out.

    Returns:
        One dataset for each length.

    Raises:
        ConfigError: lengths of differing kinds, fractions that do not sum to 1, intervals that overlap, or a split that
            would be empty.
    """
    spans = _spans(index_of(dataset).index, _listed("lengths", lengths))
    whole = min(start for start, _ in spans), max(stop for _, stop in spans)
    kept = [_within(dataset.index.index, span, spans) for span in spans]
    for number, rows in enumerate(kept):
        if not rows.any():
            start, stop = spans[number]
            raise ConfigError(f"split {number} would be empty: no scene lies wholly between {start} and {stop}")
    met = _during(dataset.index.index, whole)
    lost = int((met & ~np.logical_or.reduce(kept)).sum())
    if lost:
        warnings.warn(
            f"{lost} of {len(met)} scenes reach across a border between splits, or beyond the last, and are left out",
            stacklevel=2,
        )
    return [_at_time(dataset, rows, span, spans) for rows, span in zip(kept, spans, strict=True)]


class _Box:
    """The box around a place, to be cut along pixels."""

    def __init__(self, bounds: Sequence[float], res: tuple[float, float]) -> None:
        self.xmin, self.ymin, self.xmax, self.ymax = bounds
        self.res = res

    def cells(self, down: Sequence[float], across: Sequence[float]) -> list[Any]:
        """Boxes between ends given as fractions, row by row from the top; none where no pixel lies between."""
        xs = [self._along(end, self.xmax - self.xmin, self.res[0]) for end in across]
        ys = [self._along(end, self.ymax - self.ymin, self.res[1]) for end in down]
        return [
            shapely.box(self.xmin + left, self.ymax - bottom, self.xmin + right, self.ymax - top)
            for top, bottom in itertools.pairwise(ys)
            for left, right in itertools.pairwise(xs)
        ]

    @staticmethod
    def _along(fraction: float, extent: float, res: float) -> float:
        return min(extent, round(fraction * extent / res) * res) if fraction < 1 - PASTE_TOLERANCE else extent


def _boxed_places(dataset: Any) -> Iterator[tuple[list[int], _Box]]:
    """Rows of the index that are one place, and the box around them."""
    footprints, res = _footprints(dataset), dataset_res(dataset)
    for rows in _places(index_of(dataset)):
        yield rows, _Box(shapely.total_bounds(footprints[rows]).tolist(), res)


def _footprints(dataset: Any) -> NDArray[Any]:
    return np.asarray(index_of(dataset).geometry.array, dtype=object)


def _places(index: gpd.GeoDataFrame) -> list[list[int]]:
    """Rows of the index, those together that share more than half of the larger footprint, in the index's order."""
    keys: dict[bytes, int] = {}
    kind = np.array([keys.setdefault(shape.wkb, len(keys)) for shape in index.geometry])
    shapes = np.array([shapely.from_wkb(wkb) for wkb in keys], dtype=object)
    one, other = shapely.STRtree(shapes).query(shapes, predicate="intersects")
    one, other = one[one < other], other[one < other]
    common = shapely.area(shapely.intersection(shapes[one], shapes[other]))
    larger = np.maximum(shapely.area(shapes[one]), shapely.area(shapes[other]))
    root = list(range(len(shapes)))

    def find(number: int) -> int:
        while root[number] != number:
            root[number] = root[root[number]]
            number = root[number]
        return number

    for a, b in zip(one[common > _ALIKE * larger], other[common > _ALIKE * larger], strict=True):
        root[find(int(b))] = find(int(a))
    places: dict[int, list[int]] = {}
    for row, shape in enumerate(kind.tolist()):
        places.setdefault(find(shape), []).append(row)
    return list(places.values())


def _listed(name: str, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError as error:
        raise ConfigError(f"{name}={values!r}: pass a list, with one item for each split") from error


def _fractions(name: str, fractions: Any) -> list[float]:
    try:
        shares = [float(fraction) for fraction in _listed(name, fractions)]
    except (TypeError, ValueError):
        shares = []
    if not shares or min(shares) <= 0 or not math.isclose(sum(shares), 1):
        raise ConfigError(f"{name}={fractions!r} do not split a dataset: pass positive fractions that sum to 1")
    return shares


def _counts(lengths: Any, total: int) -> list[int]:
    """Whole numbers that sum to ``total``: those given, or as torch's `random_split` makes them of fractions."""
    given = _listed("lengths", lengths)
    if all(isinstance(length, Real) for length in given) and sum(given) == total:
        return [check_count("lengths", length) for length in given]
    counts = [math.floor(fraction * total) for fraction in _fractions("lengths", given)]
    for number in range(total - sum(counts)):
        counts[number % len(counts)] += 1
    return counts


def _dealt(weights: Sequence[int], counts: Sequence[int], generator: torch.Generator | None) -> list[int]:
    """The split of each item, at random, so that items weigh about as much in each as its count says."""
    order = torch.randperm(len(weights), generator=generator).tolist()
    middles = np.cumsum([weights[item] for item in order]) - np.array([weights[item] for item in order]) / 2
    found = np.minimum(np.searchsorted(np.cumsum(counts), middles, side="right"), len(counts) - 1)
    split_of = dict(zip(order, found.tolist(), strict=True))
    return [int(split_of[item]) for item in range(len(weights))]


def _parts(dataset: Any, pieces: Iterable[Piece], splits: int) -> list[Any]:
    """The dataset cut into pieces; ground that pieces of several splits share goes to the first."""
    footprints, res = _footprints(dataset), dataset_res(dataset)
    listed = list(pieces)
    rows, split_of = (np.array([piece[at] for piece in listed]) for at in (0, 2))
    cut = shapely.intersection(footprints[rows], np.array([shape for _, shape, _ in listed], dtype=object))
    everything, taken = shapely.union_all(footprints), shapely.Polygon()
    parts = []
    for split in range(splits):
        own = split_of == split
        ground = shapely.difference(shapely.union_all(cut[own]), taken)
        mine = cut[own] if taken.is_empty else shapely.intersection(cut[own], ground)
        taken = shapely.union(taken, ground)
        solid = shapely.area(mine) > res[0] * res[1] / 2
        if not solid.any():
            raise ConfigError(
                f"split {split} of {splits} would be empty: the dataset has too few scenes, or too small ones"
            )
        index = dataset.index.iloc[rows[own][solid]].set_geometry(mine[solid], crs=dataset.index.crs)
        border = Border(_opened(shapely.difference(everything, ground), res), parse_crs(dataset.crs))
        parts.append(_part(dataset, index, border))
    return parts


def _opened(closed: Any, res: tuple[float, float]) -> Any:
    """Closed ground without the slivers that arithmetic leaves between neighbouring pieces."""
    width = PASTE_TOLERANCE * min(res) / 4
    return shapely.buffer(shapely.buffer(closed, -width, join_style="mitre"), width, join_style="mitre")


def _part(dataset: Any, index: gpd.GeoDataFrame, border: Border | None = None) -> Any:
    """A copy of the dataset that is restricted; neither changes the other."""
    twin = copy.copy(dataset)
    twin.index = index
    if border is not None:
        twin.border = border.joined(getattr(dataset, "border", None))
    return twin


Span = tuple[pd.Timestamp, pd.Timestamp]
"""First instant, and last or the one after."""


def _spans(times: pd.IntervalIndex, lengths: Sequence[Any]) -> list[Span]:
    if lengths and all(isinstance(length, pd.Interval) for length in lengths):
        spans = [(pd.Timestamp(length.left), pd.Timestamp(length.right)) for length in lengths]
        ordered = sorted(spans)
        if any(one[1] > other[0] for one, other in itertools.pairwise(ordered)):
            raise ConfigError(f"the intervals {lengths} overlap, so that what is common would be in two splits")
        return spans
    dated = (times.left > pd.Timestamp.min) & (times.right < pd.Timestamp.max.floor("s"))
    if not dated.any():
        raise ConfigError("no scene has a time: let filename_regex find a date in its name, or pass pandas.Interval")
    first, last = times.left[dated].min(), times.right[dated].max()
    if lengths and all(isinstance(length, pd.Timedelta) for length in lengths):
        cuts = [first + length for length in itertools.accumulate(lengths)]
    else:
        shares = _fractions("lengths", lengths)
        nominal = [first + share * (last - first) for share in itertools.accumulate(shares)]
        room = min(shares) / 2 * (last - first)
        cuts = [*(_between_scenes(cut, times[dated], room) for cut in nominal[:-1]), last]
    return list(itertools.pairwise([first, *cuts]))


def _between_scenes(cut: pd.Timestamp, times: pd.IntervalIndex, room: pd.Timedelta) -> pd.Timestamp:
    """The moment nearest to ``cut``, within ``room``, at which a scene begins and none goes on; else ``cut``."""
    near = [at for at in times.left.unique() if abs(at - cut) < room]
    free = [at for at in near if not ((times.left < at) & (times.right >= at)).any()]
    return min(free, key=lambda at: abs(at - cut), default=cut)


def _within(times: pd.IntervalIndex, span: Span, spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Which scenes lie wholly within a span, whose end belongs to it unless another begins there."""
    start, stop = span
    ends = times.right < stop if any(other[0] == stop for other in spans) else times.right <= stop
    return np.asarray((times.left >= start) & ends)


def _during(times: pd.IntervalIndex, span: Span) -> NDArray[np.bool_]:
    return np.asarray((times.left <= span[1]) & (times.right >= span[0]))


def _at_time(dataset: Any, rows: NDArray[np.bool_], span: Span, spans: Sequence[Span]) -> Any:
    """The dataset restricted to some rows, and the images it was made of to those of the same time."""
    twin = _part(dataset, dataset.index[rows])
    if getattr(dataset, "datasets", None):
        parts = dataset.datasets
        timed = parts[:1] if getattr(dataset, "spatial_only", False) else parts
        twin.datasets = [*(_images_at_time(part, span, spans) for part in timed), *parts[len(timed) :]]
    return twin


def _images_at_time(dataset: Any, span: Span, spans: Sequence[Span]) -> Any:
    times = dataset.index.index
    if not getattr(dataset, "is_image", True):
        return dataset
    always = np.asarray(
        (times.left <= min(start for start, _ in spans)) & (times.right >= max(stop for _, stop in spans))
    )
    return _at_time(dataset, _within(times, span, spans) | always, span, spans)
