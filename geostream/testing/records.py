"""What the range server is told to do wrong, and what it did: faults, counters and the log of requests."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Counters", "Fault", "FaultKind", "Faults", "Ledger", "Served"]

FaultKind = Literal[
    "status",
    "reset",
    "reset_body",
    "truncate",
    "stall",
    "stall_body",
    "ignore_range",
    "short_range",
    "wrong_range",
    "wrong_length",
    "wrong_total",
    "changed",
    "swapped",
    "no_etag",
    "garbage",
]
"""How an answer goes wrong.

- ``status``: an error answer with `Fault.status`, an S3-style XML body and, if set, ``Retry-After``.
- ``reset``: the connection is reset (RST) before anything is answered.
- ``reset_body``: head and `Fault.size` bytes of the body, then a reset.
- ``truncate``: head with the full length and `Fault.size` bytes of the body, then an orderly close.
- ``stall``: nothing for `Fault.seconds`, then the ordinary answer.
- ``stall_body``: head and `Fault.size` bytes, nothing for `Fault.seconds`, then the rest.
- ``ignore_range``: 200 with the whole object, whatever range was asked.
- ``short_range``: a legal 206 for the first half of what was asked.
- ``wrong_range``: the bytes asked for, under a Content-Range one byte further on.
- ``wrong_length``: Content-Range as asked, Content-Length and body one byte shorter.
- ``wrong_total``: Content-Range names twice the object's size.
- ``changed``: the object was replaced: other bytes, another ETag; If-Match with the old ETag gets 412.
- ``swapped``: the same, by a server that ignores If-Match.
- ``no_etag``: the ordinary answer without an ETag.
- ``garbage``: the ordinary head over random bytes.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to misbehave, and when."""

    kind: FaultKind
    """What goes wrong."""
    path: str = "*"
    """Shell-style pattern of the keys concerned: no leading slash, no bucket; ``*`` also matches ``/``."""
    method: Literal["GET", "HEAD", "LIST"] | None = None
    """Kind of request concerned; None for any."""
    times: int | None = None
    """How many requests it spoils; None for all of them."""
    skip: int = 0
    """How many requests that match are let through first."""
    probability: float = 1.0
    """Chance that it strikes a request that matches, drawn from the server's seed."""
    status: int = 503
    """Status of a ``status`` fault."""
    retry_after: float | None = None
    """Seconds in the Retry-After header of a ``status`` fault; None for no such header."""
    size: int | None = None
    """Bytes of the body let through by ``truncate``, ``reset_body`` and ``stall_body``; None for half of them."""
    seconds: float = math.inf
    """How long ``stall`` and ``stall_body`` wait; by default until one side closes."""

    def concerns(self, method: str, path: str) -> bool:
        """Whether a request of this method (GET, HEAD, LIST) and key is one this fault may spoil."""
        return self.method in {None, method} and fnmatchcase(path, self.path)


@dataclass(slots=True)
class _Armed:
    fault: Fault
    skip: int
    left: float


class Faults:
    """The faults of one server, to add to and clear while it runs. The first one added that strikes wins.

    Args:
        faults: what to start with.
        seed: of the draws for faults with a probability.
    """

    def __init__(self, faults: tuple[Fault, ...] = (), *, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)  # noqa: S311 - reproducible faults, not secrets
        self._armed: list[_Armed] = []
        self.add(*faults)

    def add(self, *faults: Fault) -> None:
        """Arm ``faults`` after those already there."""
        armed = [_Armed(f, f.skip, math.inf if f.times is None else f.times) for f in faults]
        with self._lock:
            self._armed.extend(armed)

    def clear(self) -> None:
        """Disarm all faults; requests being served keep theirs."""
        with self._lock:
            self._armed.clear()

    def draw(self, method: str, path: str) -> Fault | None:
        """The fault that spoils this request, used up by one; None if it is served properly."""
        with self._lock:
            return next((a.fault for a in self._armed if self._strikes(a, method, path)), None)

    def _strikes(self, armed: _Armed, method: str, path: str) -> bool:
        fault = armed.fault
        if armed.left <= 0 or not fault.concerns(method, path):
            return False
        if armed.skip > 0:
            armed.skip -= 1
            return False
        if fault.probability < 1 and self._random.random() >= fault.probability:
            return False
        armed.left -= 1
        return True


@dataclass(frozen=True, slots=True)
class Served:
    """One request as the server saw it."""

    method: str
    """GET, HEAD, LIST (a GET that lists a bucket), or whatever other method was sent."""
    path: str
    """Key, decoded, without bucket and leading slash; for LIST the prefix."""
    start: int | None = None
    """First byte of the range asked for, resolved against the object's size; None without a usable range."""
    stop: int | None = None
    """One past the last byte of that range, clipped to the object's size."""
    range: str | None = None
    """The Range header as sent."""
    if_match: str | None = None
    """The If-Match header as sent."""
    status: int = 0
    """Status answered; 0 while or if nothing was answered."""
    bytes_sent: int = 0
    """Bytes of the body handed to the network, error bodies included, heads not."""
    fault: FaultKind | None = None
    """The fault that spoiled it, if any."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server did since it started or was last reset. Spoiled requests count like others."""

    requests: int = 0
    """Requests whose head arrived, answered or not."""
    get: int = 0
    """Of these, GETs of objects."""
    head: int = 0
    """Of these, HEADs."""
    list: int = 0
    """Of these, listings."""
    by_status: Mapping[int, int] = field(default_factory=dict)
    """Requests by status answered; 0 for those unanswered."""
    bytes_sent: int = 0
    """Bytes of bodies handed to the network, error bodies and truncated ones included, heads not."""
    connections: int = 0
    """Connections accepted."""
    peak_in_flight: int = 0
    """Most requests being served at once."""


class Ledger:
    """Keeps the log. Written by the server's thread before the bytes it speaks of leave, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log: dict[int, Served] = {}
        self._next = 0
        self._connections = 0
        self._open: set[int] = set()
        self._peak = 0

    def connected(self) -> None:
        """Note one more connection."""
        with self._lock:
            self._connections += 1

    def begin(self, served: Served) -> int:
        """Note a request that arrived; returns the number to speak of it by."""
        with self._lock:
            number = self._next
            self._next += 1
            self._log[number] = served
            self._open.add(number)
            self._peak = max(self._peak, len(self._open))
            return number

    def answer(self, number: int, status: int, start: int | None, stop: int | None) -> None:
        """Note how request ``number`` is answered. Requests from before the last reset are ignored."""
        with self._lock:
            if (served := self._log.get(number)) is not None:
                self._log[number] = replace(served, status=status, start=start, stop=stop)

    def sent(self, number: int, size: int) -> None:
        """Note ``size`` more bytes of the body of request ``number``."""
        with self._lock:
            if (served := self._log.get(number)) is not None:
                self._log[number] = replace(served, bytes_sent=served.bytes_sent + size)

    def end(self, number: int) -> None:
        """Note that request ``number`` is no longer in flight."""
        with self._lock:
            self._open.discard(number)

    def reset(self) -> None:
        """Forget everything noted; what is in flight ends unnoted."""
        with self._lock:
            self._log.clear()
            self._open.clear()
            self._connections = self._peak = 0

    @property
    def log(self) -> list[Served]:
        """The requests in the order in which they arrived."""
        with self._lock:
            return list(self._log.values())

    @property
    def counters(self) -> Counters:
        """The sums over the log."""
        with self._lock:
            log, connections, peak = list(self._log.values()), self._connections, self._peak
        methods = Counter(served.method for served in log)
        return Counters(
            requests=len(log),
            get=methods["GET"],
            head=methods["HEAD"],
            list=methods["LIST"],
            by_status=dict(Counter(served.status for served in log)),
            bytes_sent=sum(served.bytes_sent for served in log),
            connections=connections,
            peak_in_flight=peak,
        )
