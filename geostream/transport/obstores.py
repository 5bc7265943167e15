"""Ranges through obstore: connections, TLS and signing in Rust, outside the interpreter's lock.

obstore tells less than an HTTP client does, and runs on threads that neither end nor survive a fork. Both are dealt
with here: whatever its words do not settle is asked again of the adapter that stands behind it, and a process forked
after obstore came to life does without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from geostream.transport.answer import (
    Again,
    Ask,
    AttemptFailed,
    Body,
    Head,
    empty_body,
    fulfil,
    judge,
    refuse_status,
)
from geostream.transport.retry import is_transient_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from obstore import GetOptions

    from geostream.transport.adapters import Meter

__all__ = ["Relay", "Unclear", "client_words", "installed", "is_plain_key", "let_finish", "usable"]

logger = logging.getLogger(__name__)

_PARTIAL, _BAD_REQUEST, _UNSATISFIABLE = 206, 400, 416
_REST_SECONDS = 300.0
_LAST_WORDS_SECONDS = 0.1
_STATUS = re.compile(r"status code: (\d{3})[^:\n]*: ?(.*?)\n\nDebug source:", re.DOTALL)
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_OTHER_RANGE = re.compile(r"Requested \d+\.\.\d+, got (\d+)\.\.(\d+)")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_NO_KEY = re.compile(r"[\x00-\x1f\x7f]")


class Unclear(Exception):  # noqa: N818 - never leaves the package
    """obstore failed, and its words do not say what another client would have got."""


class _State:
    """What this process knows of obstore's runtime."""

    def __init__(self) -> None:
        self.inherited = False
        self.told = False
        self.last_used: float | None = None


_state = _State()


def installed() -> bool:
    """Tell whether obstore can be imported, without importing it."""
    return "obstore" in sys.modules or importlib.util.find_spec("obstore") is not None


def usable() -> bool:
    """Tell whether obstore may run in this process; say once why it may not, where a fork is the reason."""
    if _state.inherited:
        if not _state.told:
            _state.told = True
            logger.warning(
                "process %d was forked after obstore had run, whose threads do not survive that: "
                "it reads through fsspec's clients instead. Start workers with spawn or forkserver, or read "
                "nothing before they start, to keep obstore there.",
                os.getpid(),
            )
        return False
    return installed()


def _note_fork() -> None:
    # Imported is as good as run: geostream imports it only to use it, and what others did with it cannot be seen.
    _state.inherited = _state.inherited or "obstore" in sys.modules
    _state.last_used = None


def let_finish() -> None:
    """Let obstore's threads hand over what they hold: one that wants the interpreter's lock at its end aborts it."""
    if _state.last_used is not None:
        time.sleep(_LAST_WORDS_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def client_words(headers: Mapping[str, str] | None = None, roots: bytes | None = None) -> dict[str, Any]:
    """Return the options of any obstore store: no retries, no time limits but geostream's, bodies as they are.

    Args:
        headers: Of every request.
        roots: Certificates to trust besides the system's, as PEM.
    """
    named = {name.lower(): value for name, value in (headers or {}).items()}
    agent = named.pop("user-agent", "geostream")
    options: dict[str, Any] = {
        "allow_http": True,
        "allow_invalid_certificates": False,
        "connect_timeout": "30s",
        "default_headers": {"accept-encoding": "identity", **named},
        "http1_only": True,
        "timeout": "1day",
        "user_agent": agent,
    }
    if roots is not None:
        options["root_certificate"] = roots
    return {"client_options": options, "retry_config": {"max_retries": 0}}


def is_plain_key(key: str) -> bool:
    """Tell whether obstore would ask for exactly this key: it tidies slashes away, and knows no dots and controls."""
    return not _NO_KEY.search(key) and all(part not in {"", ".", ".."} for part in key.split("/"))


class Relay:
    """One obstore store, and when to leave it alone.

    A store that answers that it is busy is asked through the other client until that gets a good answer, because
    obstore does not pass ``Retry-After`` on. Where obstore could not do what the other client then could, it rests for
    five minutes.

    Args:
        store: The obstore store.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._busy = False
        self._rests_until = 0.0

    def __repr__(self) -> str:
        return f"<Relay {'resting' if self.rests else 'ready'}>"

    @property
    def rests(self) -> bool:
        """Whether the other client is to be asked."""
        return self._busy or time.monotonic() < self._rests_until

    async def fetch(
        self,
        ask: Ask,
        key: str,
        meter: Meter,
        other: Callable[[], Awaitable[Body]],
        settle: Callable[[], Awaitable[Body]] | None = None,
    ) -> Body:
        """Ask once; and once more through another client where obstore does not tell what happened.

        Args:
            ask: What is asked.
            key: The object's name in the store.
            meter: What it costs.
            other: Asks the other client.
            settle: Asks it what was unclear; ``other`` by default.

        Raises:
            AttemptFailed: Nothing usable came.
        """
        if self.rests:
            body = await other()
            self._busy = False
            return body
        try:
            return await self._fetch(ask, key, meter)
        except Unclear:
            body = await (settle or other)()
            self._rests_until = time.monotonic() + _REST_SECONDS
            return body
        except Again as failure:
            if failure.status is not None and is_transient_status(failure.status):
                self._busy = True
            raise

    async def _fetch(self, ask: Ask, key: str, meter: Meter) -> Body:
        import obstore  # noqa: PLC0415 - optional, and imported only to be used

        options: GetOptions = {"range": (ask.start, ask.stop)}
        if ask.if_match is not None:
            options["if_match"] = ask.if_match
        _state.last_used = time.monotonic()
        meter.requests += 1
        try:
            answer = await obstore.get_async(self._store, key, options=options)
            promise = judge(ask, _head(answer))
            data = bytes(await answer.bytes_async())
        except (AttemptFailed, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - its exceptions share no base with the built-in ones it raises
            return _refused(ask, str(error), meter)
        meter.bytes += len(data)
        return fulfil(ask, promise, data)


def _head(answer: Any) -> Head:
    meta, (start, stop) = answer.meta, answer.range
    return Head(
        status=_PARTIAL,
        content_range=f"bytes {start}-{stop - 1}/{meta['size']}",
        etag=meta["e_tag"],
        encoding=answer.attributes.get("Content-Encoding"),
    )


def _refused(ask: Ask, words: str, meter: Meter) -> Body:
    """Return the empty body that a 416 may mean; raise what any other of obstore's exceptions means.

    Its words hold the URL and the answer's text: none of them go further than here.
    """
    found = _STATUS.search(words)
    if found is not None:
        status, text = int(found.group(1)), found.group(2)
        meter.bytes += len(text.encode())
        if status == _UNSATISFIABLE:
            return empty_body(ask, Head(status))
        if status <= _BAD_REQUEST:
            raise Unclear
        code = _CODE.search(text)
        raise refuse_status(status, detail=code.group(1) if code else "")
    other = _OTHER_RANGE.search(words)
    if other is not None:
        start, stop = map(int, other.groups())
        judge(ask, Head(_PARTIAL, f"bytes {start}-{stop - 1}/*"))
    kind = _KIND.search(words)
    if kind is not None and kind.group(1) == "Connect":
        meter.requests -= 1  # no connection, so nothing was sent
    elif kind is not None:
        raise Again(f"the connection failed (obstore: {kind.group(1)})", advice="Check the network")
    raise Unclear
