"""Whole files, of an index, of STAC, in a number of requests that does not grow with them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from geostream.errors import NotFoundError, ReadError, redact
from geostream.transport import WHOLE_OBJECT_LIMIT, get_range

if TYPE_CHECKING:
    from geostream.transport import Access, LoopThread

__all__ = ["read_document"]

_PARTS = 8
"""Requests, at most, for what the first one leaves."""
_LEAST = 2**24


def read_document(session: LoopThread, url: str, access: Access) -> bytes:
    """All bytes of a file.

    Args:
        session: where requests are made.
        url: normalised URL or absolute path.
        access: how it is reached.

    Raises:
        NotFoundError: there is no such file.
        ReadError: it could not be read.
    """
    if "://" not in url and "::" not in url and access.fs is None:
        try:
            return Path(url).read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"{url}: there is no such file", url=url) from error
        except OSError as error:
            raise ReadError(f"{url}: it cannot be read: {error}", url=url) from error
    return session.run(_whole(url, access))


async def _whole(url: str, access: Access) -> bytes:
    first = await get_range(url, access, 0, WHOLE_OBJECT_LIMIT)
    if len(first.bytes) < WHOLE_OBJECT_LIMIT or first.total == WHOLE_OBJECT_LIMIT:
        return first.bytes
    if first.total is None:
        raise ReadError(f"{redact(url)}: the server does not say how large it is: download it first", url=url)
    step = max(_LEAST, -(-(first.total - WHOLE_OBJECT_LIMIT) // _PARTS))
    starts = range(WHOLE_OBJECT_LIMIT, first.total, step)
    stops = [min(start + step, first.total) for start in starts]
    parts = zip(starts, stops, strict=True)
    rest = await asyncio.gather(*(get_range(url, access, *part, etag=first.etag) for part in parts))
    return b"".join([first.bytes, *(body.bytes for body in rest)])
