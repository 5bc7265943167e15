"""``get_range``: attempts, waits between them, counters, and the error that says what happened."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from geostream.accounting import stats
from geostream.errors import ConfigError, NotFoundError, ReadError, redact
from geostream.transport.adapters import classify, why
from geostream.transport.answer import Again, Ask, AttemptFailed, Final, Missing
from geostream.transport.archive import Archives, is_member
from geostream.transport.clients import unknown_options
from geostream.transport.counting import Meter
from geostream.transport.loop import current_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geostream.transport.access import Access
    from geostream.transport.answer import Body
    from geostream.transport.clients import ClientPool, Route

_CROWD = 64
"""Requests under way from which on obstore's threads gain more than its silence about failed ones costs: with fewer,
every byte of every answer is counted."""
_CHECK_PROTOCOL = "Check the URL's protocol, that the package it needs is installed, and storage_options="

_REFUSED = frozenset({401, 403})
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
_USERINFO = re.compile(r"://([^?#]*:[^?#]*)@")
_SECRET_NAME = re.compile(r"key|secret|token|pass|sas|auth|credential|connection_string|cookie", re.IGNORECASE)
_SHORTEST_SECRET = 3
_SHORTEST_TOKEN = 8
"""Values in a signed URL's query may be short words, too, and no secrets."""

__all__ = ["archives_of", "failure_to_error", "get_range", "reach"]


async def get_range(url: str, access: Access, start: int, stop: int, *, etag: str | None = None) -> Body:
    """Read bytes ``start`` to ``stop`` (exclusive) of an object, with retries, every answer checked, all counted.

    Runs on the background loop (`run`, `submit`) or in a `scan_session`.

    Args:
        url: URL or path, as `normalize_url` returns it.
        access: How it is reached.
        start: First byte.
        stop: One past the last byte. Past the object's end it is clipped.
        etag: ETag that the object must still have.

    Returns:
        The bytes (fewer than asked for only where the object ends; none where the object is empty and ``start`` is 0),
        the object's size and ETag where the filesystem tells them, and the status.

    Raises:
        NotFoundError: There is no such object.
        ReadError: It could not be read: the message says what happened and what to do.
        ConfigError: The range is no range, or ``transport="obstore"`` cannot be had.
    """
    if not 0 <= start < stop:
        raise ConfigError(f"{redact(url)}: {start} to {stop} is not a range of bytes", url=url)
    what = f"bytes {start}-{stop - 1}"
    pool = current_pool()
    if is_member(url):
        return await archives_of(pool).get_range(url, access, start, stop, etag)
    signed, is_renewed = await pool.signatures.sign(url, access), access.sign is None
    while True:
        route = await reach(pool, signed, access, what)
        asked = time.monotonic()
        outcome, attempts = await _attempts(pool, route, Ask(route.path, start, stop, etag), access)
        if not isinstance(outcome, AttemptFailed):
            return outcome
        if is_renewed or outcome.status not in _REFUSED:
            raise failure_to_error(outcome, url, what, attempts, access, signed)
        signed, is_renewed = await pool.signatures.sign(url, access, after=asked), True


def archives_of(pool: ClientPool) -> Archives:
    """Return the archives read on a loop."""
    if pool.archives is None:
        pool.archives = Archives(get_range)
    return pool.archives


async def reach(pool: ClientPool, url: str, access: Access, what: str) -> Route:
    """Return the route to ``url``.

    Raises:
        ReadError: No filesystem can be made for it.
        ConfigError: Its protocol is unknown or needs a package, or ``transport="obstore"`` cannot be had for it.
    """
    known = pool.known_route(url, access)
    if known is not None:
        return known
    try:
        async with asyncio.timeout(access.retry.deadline):
            return await pool.route(url, access)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign filesystem's constructor raises what it likes
        unknown = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
        if unknown is not None:
            raise unknown_options(url, [unknown.group(1)]) from None
        failure: AttemptFailed = classify(error)
        if isinstance(error, ImportError | ValueError | TypeError):
            failure = Final(why(error), advice=_CHECK_PROTOCOL)
    raise failure_to_error(failure, url, what, 0, access)


async def _attempts(pool: ClientPool, route: Route, ask: Ask, access: Access) -> tuple[Body | AttemptFailed, int]:
    """Try until there is an answer or no sense in trying; return it, or the last failure, and the attempts made."""
    policy = access.retry
    attempt = 0
    spent = 0.0  # waiting for a turn is no fault of the server's
    while True:
        attempt += 1
        async with pool.in_flight:
            began = time.monotonic()
            pool.under_way += 1
            try:
                meter = Meter(crowded=access.transport == "obstore" or pool.under_way >= _CROWD)
                outcome = await _attempt(route, ask, policy.timeout_for(ask.stop - ask.start, spent), attempt, meter)
            finally:
                pool.under_way -= 1
                spent += time.monotonic() - began
        if not isinstance(outcome, Again) or attempt >= policy.attempts:
            return outcome, attempt
        delay = policy.delay(attempt, outcome.retry_after)
        spent += delay
        if spent >= policy.deadline:
            return outcome, attempt
        await asyncio.sleep(delay)


async def _attempt(route: Route, ask: Ask, limit: float, attempt: int, meter: Meter) -> Body | AttemptFailed:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(limit):
            return await route.adapter.fetch(ask, meter)
    except AttemptFailed as failure:
        return failure
    except TimeoutError:
        return Again(
            f"no complete answer within {limit:.3g} s", advice="Check the network and the server, or try again later"
        )
    finally:
        stats.add(
            requests=meter.requests,
            bytes=meter.bytes,
            retries=int(attempt > 1),
            network_seconds=time.perf_counter() - began,
        )


def failure_to_error(
    failure: AttemptFailed, url: str, what: str, attempts: int, access: Access, signed: str = ""
) -> ReadError:
    """Return the error a user sees: the URL without secrets, the range, the attempts, the cause, and what to do.

    ``signed`` is the URL that was asked for instead, if one was.
    """
    kind = NotFoundError if isinstance(failure, Missing) else ReadError
    tries = f" after {attempts} attempts" if attempts > 1 else ""
    advice = f". {failure.advice}." if failure.advice else "."
    message = f"{redact(url)}: {what} could not be read{tries}: {_hide(failure.why, url, signed, access)}{advice}"
    return kind(message, url=url, attempts=attempts, status=failure.status)


def _hide(words: str, url: str, signed: str, access: Access) -> str:
    """Strike the secrets out of a cause, which may quote what others were given."""
    secrets = {match.group(1) for match in map(_USERINFO.search, [*url.split("::"), signed]) if match is not None}
    secrets |= {part for secret in secrets for part in re.split("[:/]", secret)}
    secrets |= set(_secret_values(access.storage_options or {}))
    secrets |= {value for _, value in parse_qsl(urlsplit(signed).query) if len(value) >= _SHORTEST_TOKEN}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            words = words.replace(secret, "***")
    return words


def _secret_values(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_values(value)
        elif isinstance(value, str) and _SECRET_NAME.search(str(name)):
            yield value
