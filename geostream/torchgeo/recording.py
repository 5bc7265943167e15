"""What a dataset's ``__getitem__`` will ask of the reader, found by running it without reading."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from geostream.plan import Request

__all__ = ["Unforeseeable", "is_recording", "note", "recording"]

_requests: ContextVar[list[Request] | None] = ContextVar("geostream_recording", default=None)


class Unforeseeable(Exception):  # noqa: N818 - ends a recording, and never leaves the package
    """What comes next depends on pixels, or on a file handle."""


@contextmanager
def recording() -> Iterator[list[Request]]:
    """Within the block, datasets of this thread note requests in the list instead of reading."""
    found: list[Request] = []
    token = _requests.set(found)
    try:
        yield found
    finally:
        _requests.reset(token)


def is_recording() -> bool:
    """Whether requests are only noted."""
    return _requests.get() is not None


def note(requests: Sequence[Request]) -> bool:
    """Note the requests if a recording is under way; whether it is."""
    found = _requests.get()
    if found is None:
        return False
    found.extend(requests)
    return True
