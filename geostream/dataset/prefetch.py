"""One plan for many queries: what was read ahead, and how datasets find it while they assemble samples.

A dataset names what a query will ask of the reader (`requests`), everything is read at once, and then each sample is
made by the dataset's ordinary ``__getitem__``, which finds its pixels here instead of reading them. So transforms,
compositions and overridden ``__getitem__`` methods need to know nothing of batches.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geostream.reader import read_many, submit_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from geostream.plan import Request
    from geostream.reader import Outcome

__all__ = ["Prefetched", "fetch", "is_nothing_left", "mark_nothing_left", "prefetched", "reading_validity", "submit"]

_NOTHING_LEFT = "_nothing_left"


@dataclass(frozen=True)
class Prefetched:
    """What was read for a batch of queries."""

    outcomes: Mapping[Request, Outcome] = field(default_factory=dict)
    """Pixels, or the error that stands in their place, of each request."""


_current: ContextVar[Prefetched | None] = ContextVar("geostream_prefetched", default=None)
_validity: ContextVar[bool] = ContextVar("geostream_validity", default=False)


def submit(requests: Iterable[Request]) -> Future[Prefetched]:
    """Start reading; equal requests are read once."""
    unique = list(dict.fromkeys(requests))
    result: Future[Prefetched] = Future()
    if not unique:
        result.set_result(Prefetched())
        return result

    def finish(done: Future[list[Outcome]]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(Prefetched(dict(zip(unique, done.result(), strict=True))))

    submit_many(unique).add_done_callback(finish)
    return result


@contextmanager
def prefetched(batch: Prefetched) -> Iterator[None]:
    """Within the block, datasets of this thread take their pixels from ``batch``."""
    token = _current.set(batch)
    try:
        yield
    finally:
        _current.reset(token)


def is_prefetching() -> bool:
    """Whether samples of a batch are being assembled."""
    return _current.get() is not None


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
