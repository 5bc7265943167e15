"""The range server in a process of its own, so that client and server do not share an interpreter lock."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from geostream.testing.server import Endpoint, RangeServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from geostream.testing.objects import Content
    from geostream.testing.records import Counters, Fault, Served

__all__ = ["ServerProcess"]

_STOP_SECONDS = 10.0


class _RemoteFaults:
    """The faults of a server elsewhere, with the methods of those here."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def add(self, *faults: Fault) -> None:
        """Arm ``faults`` after those already there."""
        self._server._ask("add", faults)  # noqa: SLF001 - the same module

    def clear(self) -> None:
        """Disarm all faults; requests being served keep theirs."""
        self._server._ask("clear")  # noqa: SLF001 - the same module


class ServerProcess(Endpoint):
    """A `RangeServer` in a child process; made by `RangeServer.spawn`, used like one.

    The child ends when told to, and when this process ends however it may. A mapping is copied to the child once.

    Args:
        source: directory or mapping, as for `RangeServer`.
        options: what else `RangeServer` takes.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Content], **options: Any) -> None:
        self._setup = (source if isinstance(source, (str, os.PathLike)) else dict(source), options)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self.faults = _RemoteFaults(self)

    def start(self) -> Self:
        """Start the process; returns when requests are being accepted.

        Raises:
            RuntimeError: if it was started before, or the process ends instead of serving; it says why on stderr.
        """
        if self._child is not None:
            raise RuntimeError("this server was started before; make a new one")
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - a string is wanted
        self._child = subprocess.Popen(
            [sys.executable, "-m", "geostream.testing.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            self.url, self.bucket = self._ask("start", self._setup)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process, at the latest after ten seconds by force; does nothing if it does not run."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return
        with self._lock:
            if child.poll() is None:
                _close(child.stdin, farewell=True)
                try:
                    child.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            _close(child.stdin, farewell=False)
            child.stdout.close()

    @property
    def counters(self) -> Counters:
        """What was served since the start or the last `reset`, faults included."""
        counters: Counters = self._ask("counters")
        return counters

    @property
    def log(self) -> list[Served]:
        """The requests since the start or the last `reset`, in the order in which they arrived."""
        log: list[Served] = self._ask("log")
        return log

    def reset(self) -> None:
        """Set the counters to zero and forget the log; faults stay."""
        self._ask("reset")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _ask(self, what: str, argument: Any = None) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise RuntimeError("this server was not started; use it as a context manager")
        with self._lock:
            try:
                pickle.dump((what, argument), child.stdin)
                child.stdin.flush()
                reply = pickle.load(child.stdout)  # noqa: S301 - from our own child
            except (OSError, EOFError, ValueError) as error:
                raise RuntimeError(f"the server's process has ended, with exit code {child.poll()}") from error
        if isinstance(reply, BaseException):
            raise reply
        return reply


def _close(pipe: BinaryIO | Any, *, farewell: bool) -> None:
    try:
        if farewell and not pipe.closed:
            pickle.dump(("stop", None), pipe)
        pipe.close()
    except OSError:  # the other end is gone, which is what was wanted
        pass


class _Child:
    """What runs in the child: a server, and the parent's orders carried out one by one."""

    def __init__(self) -> None:
        self._server: RangeServer | None = None

    def start(self, setup: tuple[Any, dict[str, Any]]) -> tuple[str, str]:
        source, options = setup
        self._server = RangeServer(source, **options).start()
        return self._server.url, self._server.bucket

    def obey(self, what: str, argument: Any) -> Any:
        if what == "start":
            return self.start(argument)
        server = self._server
        if server is None:
            raise RuntimeError("not started")
        if what == "add":
            return server.faults.add(*argument)
        if what == "clear":
            return server.faults.clear()
        if what == "reset":
            return server.reset()
        return getattr(server, what)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def main() -> None:
    """Serve as told over stdin, until told to stop or nobody is there to tell."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is written to stdout must not be taken for a reply
    child = _Child()
    try:
        while True:
            what, argument = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
            if what == "stop":
                break
            try:
                reply = child.obey(what, argument)
            except Exception as error:  # noqa: BLE001 - raised in the parent
                reply = error
            pickle.dump(reply, replies)
            replies.flush()
    except (EOFError, BrokenPipeError):
        pass
    finally:
        child.stop()


if __name__ == "__main__":
    main()
