"""When to send a request again, and how long to wait first: the only retries in geostream."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

__all__ = ["DEFAULT_RETRY", "RetryPolicy", "is_transient_status", "parse_retry_after"]

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 599})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently one range is asked for: exponential backoff with full jitter."""

    attempts: int = 6
    """Most times a request is sent, the first included."""
    base: float = 0.2
    """Seconds: the first wait is drawn from [0, base], each next one from twice that."""
    cap: float = 20.0
    """Seconds: no wait is longer, not even one a server asks for with Retry-After."""
    deadline: float = 120.0
    """Seconds that all attempts and the waits between them may take; large ranges get more, as below."""
    attempt_timeout: float = 20.0
    """Seconds one attempt may take, whatever its size."""
    slowest_rate: float = 128 * 1024.0
    """Bytes a second below which an answer counts as stalled: large ranges get size / slowest_rate seconds more."""

    def timeout_for(self, length: int, spent: float = 0.0) -> float:
        """Return the seconds one attempt at ``length`` bytes may take, ``spent`` seconds after the first began."""
        return max(0.0, min(self.attempt_timeout, self.deadline - spent)) + length / self.slowest_rate

    def delay(self, attempt: int, retry_after: float | None = None, draw: float | None = None) -> float:
        """Return the seconds to wait after failed ``attempt`` (1 for the first).

        Args:
            attempt: Number of attempts made so far.
            retry_after: What the server asked for, in seconds; respected up to ``cap``.
            draw: The jitter, in [0, 1); drawn where not given.
        """
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 60))
        jitter = random.random() if draw is None else draw  # noqa: S311 - spreads load, guards no secret
        return min(self.cap, max(ceiling * jitter, retry_after or 0.0))


DEFAULT_RETRY = RetryPolicy()
"""The policy of an `Access` that names none."""


def is_transient_status(status: int) -> bool:
    """Tell whether an HTTP status may be gone when asked again."""
    return status in _TRANSIENT


def parse_retry_after(value: str | None, now: float | None = None) -> float | None:
    """Return the seconds a Retry-After header asks for: a number or an HTTP date; None where it says neither."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        when = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
    return max(0.0, when - (time.time() if now is None else now))
