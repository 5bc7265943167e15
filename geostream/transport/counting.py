"""What an attempt costs: requests counted where aiohttp writes them, and the bytes of answers that are refused."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["Meter", "count_session", "drain", "metered", "set_meter"]

_DRAIN_BYTES = 1024 * 1024
_DRAIN_SECONDS = 5.0


@dataclass(slots=True)
class Meter:
    """What one attempt cost."""

    requests: int = 0
    """Requests sent."""
    bytes: int = 0
    """Body bytes received."""
    sent: Any = None
    """The last request, where the client that sent it shows it."""
    plain: bool = False
    """Whether the range came from the very URL, without redirects and cookies: any client would have got it."""
    crowded: bool = True
    """Whether so many requests are under way that the interpreter sets their pace, or obstore was asked for."""
    redirects: int = 0
    """Answers that sent the client elsewhere."""
    location: str | None = None
    """Where the last of them did."""


_METER: contextvars.ContextVar[Meter | None] = contextvars.ContextVar("geostream_meter", default=None)


def metered() -> Meter | None:
    """Return the meter of the attempt that runs in this context, for hooks called from deep inside a client."""
    return _METER.get()


def set_meter(meter: Meter) -> contextvars.Token[Meter | None]:
    """Make ``meter`` the one that hooks find in this context."""
    return _METER.set(meter)


def count_session(session: Any) -> bool:
    """Have the session's requests counted as they are written to a connection, redirects included.

    Returns:
        Whether it can: a client that only looks like aiohttp's may not tell.
    """
    traces = getattr(session, "trace_configs", None)
    if not isinstance(session, aiohttp.ClientSession) or not isinstance(traces, list):
        return False
    if _TRACE not in traces:
        traces.append(_TRACE)
    return True


async def drain(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a refused answer, so that its bytes count and its connection can serve again.

    One that is longer than a megabyte, or does not come within seconds, is left where it is.
    """
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > _DRAIN_BYTES:
        return b""
    parts, content = [], response.content
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while content.total_bytes <= _DRAIN_BYTES and (part := await content.readany()):
                parts.append(part)
    except (aiohttp.ClientError, OSError):  # a timeout is one
        response.close()
    return b"".join(parts)


async def _on_sent(_session: Any, _context: Any, _params: Any) -> None:
    meter = metered()
    if meter is not None:
        meter.requests += 1


async def _on_redirect(_session: Any, _context: Any, params: aiohttp.TraceRequestRedirectParams) -> None:
    meter, response = metered(), params.response
    location = response.headers.get("Location") or response.headers.get("URI")
    if meter is None or location is None:  # without one, it is the last answer, and counted as such
        return
    meter.redirects += 1
    meter.location = location
    await drain(response)
    meter.bytes += response.content.total_bytes


def _counting_trace() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_on_sent)
    trace.on_request_redirect.append(_on_redirect)
    trace.freeze()
    return trace


_TRACE = _counting_trace()
