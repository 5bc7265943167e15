"""One plan for many queries: what was read ahead, and how datasets find it while they assemble samples.

A dataset names what a query will ask of the reader (`requests`), everything is read at once, and then each sample is
made by the dataset's ordinary ``__getitem__``, which finds its pixels here instead of reading them. So transforms,
compositions and overridden ``__getitem__`` methods need to know nothing of batches.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.dataset.buffers import batch_tensor
from geostream.reader import Lease, read_many, submit_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from geostream.plan import Request
    from geostream.reader import Outcome

__all__ = [
    "Prefetched",
    "fetch",
    "is_nothing_left",
    "mark_nothing_left",
    "prefetched",
    "reading_validity",
    "submit",
    "take_drawn",
]

_NOTHING_LEFT = "_nothing_left"


@dataclass(frozen=True)
class Prefetched:
    """What was read for a batch of queries."""

    outcomes: Mapping[Request, Outcome] = field(default_factory=dict)
    """Pixels, or the error that stands in their place, of each request."""
    drawn: dict[Request, Tensor] = field(default_factory=dict)
    """Samples' pixels (C, H, W), parts of one tensor for the batch, by the first request that drew into each; handed
    out once, since whoever gets one may change it."""
    lease: Lease | None = None
    """Holds the batch's tiles for those behind it, until this one is delivered."""


_current: ContextVar[Prefetched | None] = ContextVar("geostream_prefetched", default=None)
_validity: ContextVar[bool] = ContextVar("geostream_validity", default=False)


class _Reading(Future[Prefetched]):
    """A batch on its way. Cancelled, it cancels its reads; done, it holds nothing but its result.

    Futures keep their callbacks for good. Were this one to refer to the reads, whose callback refers to it, every batch
    would stay in memory until the garbage collector comes by.
    """

    def __init__(self, requests: list[Request], drawn: dict[Request, Tensor]) -> None:
        super().__init__()
        self.nbytes = sum(map(_pixel_bytes, requests))
        """Bytes of all pixels and their validity, as far as headers are known."""
        self._requests = requests
        self._drawn = drawn
        self._lease = Lease()
        self._reads: Future[list[Outcome]] | None = None

    def begin(self) -> None:
        """Start the reads."""
        reads = submit_many(self._requests, self._lease)
        self._reads = reads
        reads.add_done_callback(self._finish)

    def cancel(self) -> bool:
        """Give the batch up, if it is not there yet."""
        cancelled = super().cancel()
        reads = self._reads
        if cancelled and reads is not None:
            reads.cancel()
        return cancelled

    def _finish(self, reads: Future[list[Outcome]]) -> None:
        self._reads = None
        if reads.cancelled():  # by the loop that ends with the interpreter
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        error = reads.exception()
        if error is not None:
            self.set_exception(error)
        else:
            outcomes = dict(zip(self._requests, reads.result(), strict=True))
            self.set_result(Prefetched(outcomes, self._drawn, self._lease))


def _pixel_bytes(request: Request) -> int:
    header, out = request.source.header, request.out
    dtype = header.dtype if header is not None else np.dtype(np.uint8)
    bands = len(request.bands) if request.bands is not None else header.count if header is not None else 1
    itemsize = (dtype if out is None else out.dtype).itemsize
    return request.grid.width * request.grid.height * bands * (itemsize + 1)


def submit(requests: Iterable[Request]) -> Future[Prefetched]:
    """Start reading; equal requests are read once, those with a layout into tensors that hold the whole batch."""
    unique, drawn = _with_batch_tensors(list(dict.fromkeys(requests)))
    if not unique:
        nothing: Future[Prefetched] = Future()
        nothing.set_result(Prefetched())
        return nothing
    reading = _Reading(unique, drawn)
    reading.begin()
    return reading


def _with_batch_tensors(requests: Sequence[Request]) -> tuple[list[Request], dict[Request, Tensor]]:
    """Requests that draw into tensors (N, C, H, W) shared by the samples of one shape and type, and each sample's."""
    samples: dict[tuple[np.dtype[Any], tuple[int, int, int]], list[list[Request]]] = {}
    for request in requests:
        layout = request.layout
        if layout is not None:
            kind = (layout.dtype, (layout.channels, request.grid.height, request.grid.width))
            alike = samples.setdefault(kind, [])
            if layout.first == 0:
                alike.append([])
            if alike:
                alike[-1].append(request)
    drawing: dict[Request, Request] = {}
    drawn: dict[Request, Tensor] = {}
    for (dtype, shape), alike in samples.items():
        batch = batch_tensor((len(alike), *shape), dtype)
        for pixels, parts in zip(batch, alike, strict=True):
            if _is_complete(parts):
                drawn[parts[0]] = pixels
                drawing |= {part: replace(part, out=_channels(pixels, part)) for part in parts}
    return [drawing.get(request, request) for request in requests], drawn


def _is_complete(parts: Sequence[Request]) -> bool:
    """Whether the requests fill all channels of one sample, in order: equal requests of two samples are read once."""
    layouts = [part.layout for part in parts if part.layout is not None]
    filled = [channel for at in layouts for channel in range(at.first, at.first + at.count)]
    return filled == list(range(layouts[0].channels)) and all(part.grid == parts[0].grid for part in parts)


def _channels(pixels: Tensor, part: Request) -> NDArray[Any]:
    assert part.layout is not None
    return pixels.numpy()[part.layout.first : part.layout.first + part.layout.count]


def take_drawn(requests: Sequence[Request]) -> Tensor | None:
    """The pixels (C, H, W) that these requests, one sample's, have drawn; None if there are none or they were taken."""
    batch = _current.get()
    return batch.drawn.pop(requests[0], None) if batch is not None and requests else None


@contextmanager
def prefetched(batch: Prefetched) -> Iterator[None]:
    """Within the block, datasets of this thread take their pixels from ``batch``."""
    token = _current.set(batch)
    try:
        yield
    finally:
        _current.reset(token)


def fetch(requests: Sequence[Request]) -> list[Outcome]:
    """Outcomes in the order of ``requests``: those read ahead, and the rest read now in one plan."""
    batch = _current.get()
    known = {} if batch is None else batch.outcomes
    missing = list(dict.fromkeys(request for request in requests if request not in known))
    read = dict(zip(missing, read_many(missing), strict=True)) if missing else {}
    return [known[request] if request in known else read[request] for request in requests]


@contextmanager
def reading_validity() -> Iterator[bool]:
    """Within the block, raster datasets add ``mask_valid`` to their samples; yields whether they already did."""
    before = _validity.get()
    token = _validity.set(True)
    try:
        yield before
    finally:
        _validity.reset(token)


def is_validity_wanted() -> bool:
    """Whether a union further up needs to know where samples are valid."""
    return _validity.get()


def mark_nothing_left(error: Exception) -> None:
    """Note on ``error`` that its dataset skips failing scenes and had no other: the chip may be replaced."""
    setattr(error, _NOTHING_LEFT, True)


def is_nothing_left(error: Exception) -> bool:
    """Whether `mark_nothing_left` was called on ``error``."""
    return getattr(error, _NOTHING_LEFT, False)
