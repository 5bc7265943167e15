"""URLs signed right before they are asked for: what ``sign=`` returns is used, kept for half a minute, never stored."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geostream.errors import ConfigError, GeostreamError, ReadError, redact
from geostream.transport.access import normalize_url
from geostream.transport.answer import redact_text

if TYPE_CHECKING:
    from geostream.transport.access import Access

__all__ = ["Signatures"]

KEPT_SECONDS = 30.0
"""How long a signed URL is used. Those who sign hand out what is valid for a minute at the very least."""
_MOST = 65_536


@dataclass(frozen=True, slots=True)
class _Signing:
    """A URL being signed, or signed."""

    made: float
    """When it was begun, on the monotonic clock."""
    task: asyncio.Task[str]
    """Gives the signed URL."""


class Signatures:
    """Signed URLs of one loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Access], _Signing] = OrderedDict()

    async def sign(self, url: str, access: Access, *, after: float = 0.0) -> str:
        """The URL to ask for instead of ``url``; that itself where ``access`` signs nothing.

        Args:
            url: what is wanted.
            access: how it is reached.
            after: a moment of the monotonic clock; a signature made before is refused already.

        Raises:
            ReadError: ``sign`` failed.
            ConfigError: it returned no URL.
        """
        if access.sign is None:
            return url
        key = (url, access)
        known = self._known.get(key)
        if known is None or known.made < max(after, time.monotonic() - KEPT_SECONDS):
            known = self._known[key] = _Signing(time.monotonic(), asyncio.ensure_future(_signed(url, access)))
            self._known.move_to_end(key)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        try:
            return await asyncio.shield(known.task)
        except GeostreamError:
            if self._known.get(key) is known:
                del self._known[key]
            raise


async def _signed(url: str, access: Access) -> str:
    """Call ``sign`` in a thread: it may ask a server for a token."""
    assert access.sign is not None
    try:
        signed = await asyncio.to_thread(access.sign, url)
    except Exception as error:  # noqa: BLE001 - the user's function raises what it likes
        words = redact_text(str(error))
        raise ReadError(
            f"{redact(url)}: sign= failed: {type(error).__name__}: {words}. Check its credentials and the service.",
            url=url,
        ) from None
    if not isinstance(signed, str):
        raise ConfigError(
            f"{redact(url)}: sign= returned a {type(signed).__name__}: it takes a URL and returns one", url=url
        )
    return normalize_url(signed)
