"""One background loop a process: made on first use, gone after a fork, stopped at exit; sessions leave nothing."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from geostream.errors import ReadError
from geostream.transport import Access, get_range, run, scan_session, submit

KEY = "dir/some file.bin"


def sockets():
    """Inodes of the sockets this process holds."""
    links = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(handle.readlink()))
        except OSError:
            continue
    return {link for link in links if link.startswith("socket:")}


def in_fork(check):
    """Run ``check`` in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_one_loop_in_one_named_daemon_thread():
    async def here():
        return threading.current_thread(), asyncio.get_running_loop()

    first, second = run(here()), submit(here()).result()
    assert first == second
    assert (first[0].name, first[0].daemon) == ("geostream-loop", True)


def test_waiting_on_the_loop_for_itself_is_refused():
    async def outer():
        async def inner():
            pass

        run(inner())

    with pytest.raises(RuntimeError, match="own thread"):
        run(outer())


def test_a_foreign_loop_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"transport\.run"):
        asyncio.run(get_range(str(tmp_path), Access(), 0, 1))


def test_an_interrupt_cancels_what_runs():
    cancelled = threading.Event()

    async def forever():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    main = threading.main_thread().ident
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(forever())
    timer.join()
    assert cancelled.wait(10)


@pytest.mark.parametrize("remote", ["http", "s3"], indirect=True)
def test_a_session_leaves_no_thread_and_no_socket(remote, server, data):
    url_for, access = remote
    threads, before = set(threading.enumerate()), sockets()
    with scan_session() as session:
        body = session.run(get_range(url_for(KEY), access, 0, 100))
        local = session.run(get_range(__file__, access, 0, 10))
        assert len(set(threading.enumerate()) - threads) >= 1
    assert (body.bytes, len(local.bytes)) == (data[:100], 10)
    assert set(threading.enumerate()) <= threads
    # The server is in this process too, and closes its side when it hears of it.
    deadline = time.monotonic() + 10
    while sockets() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sockets() <= before
    gc.collect()


def test_a_session_ends_though_requests_are_under_way():
    threads = set(threading.enumerate())

    async def stuck():
        await asyncio.sleep(1000)

    with scan_session() as session:
        future = session.submit(stuck())
    assert future.cancelled()
    assert set(threading.enumerate()) <= threads


def test_a_fork_gets_a_loop_of_its_own_and_the_parent_keeps_its(remote, data, server):
    url_for, access = remote

    def check():
        assert run(get_range(url_for(KEY), access, 5, 10)).bytes == data[5:10]

    check()
    connections = server.counters.connections
    assert in_fork(lambda: (check(), check())) == 0
    assert server.counters.connections == connections + 1  # not the parent's
    check()
    assert server.counters.connections == connections + 1  # which still serves


@pytest.mark.parametrize("remote", ["http", "s3"], indirect=True)
def test_a_fork_from_within_a_session(remote, data):
    url_for, access = remote
    with scan_session() as session:
        session.run(get_range(url_for(KEY), access, 5, 10))

        def check():
            assert run(get_range(url_for(KEY), access, 5, 10)).bytes == data[5:10]
            with scan_session() as another:
                another.run(get_range(url_for(KEY), access, 5, 10))

        assert in_fork(check) == 0
        assert session.run(get_range(url_for(KEY), access, 6, 10)).bytes == data[6:10]


def read_length(url, access, start, stop):
    return len(run(get_range(url, access, start, stop)).bytes)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("remote", ["http", "s3-obstore"], indirect=True)
def test_workers_of_every_kind(remote, data, method):
    url_for, access = remote
    run(get_range(url_for(KEY), access, 5, 10))
    with multiprocessing.get_context(method).Pool(1) as pool:
        # Not a function of this module, which a spawned process may not find.
        read = "t.run(t.get_range(url, access, 1, 8)).bytes"
        words = f"[{read} for t in [__import__('geostream.transport', fromlist=['run'])]][0]"
        assert pool.apply(eval, (words, {"url": url_for(KEY), "access": access})) == data[1:8]
    assert read_length(url_for(KEY), access, 0, 9) == 9


@pytest.mark.parametrize(
    ("ending", "transport"),
    [
        ("", "fsspec"),
        ("sys.exit(0)", "obstore"),
        ("raise KeyboardInterrupt", "fsspec"),
        ("pid or sys.exit(0); os.waitpid(pid, 0)", "fsspec"),
        ("pid or sys.exit(0); os.waitpid(pid, 0)", "obstore"),
    ],
)
def test_a_process_ends_quietly(server, ending, transport):
    script = f"""
        transport = {transport!r}
        import os, sys
        from geostream.transport import Access, get_range, run, submit
        options = {server.storage_options!r}
        import logging
        logging.disable()  # what a fork leaves unused is told, in other tests
        pid = 1
        def read():
            run(get_range({server.url_for(KEY)!r}, Access(transport=transport), 0, 10))
            run(get_range({server.s3_url(KEY)!r}, Access(options, transport=transport), 0, 10))
        read()
        read()
        if {"pid or" in ending}:
            pid = os.fork()
            read()
        import asyncio
        future = submit(asyncio.sleep(1000))
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    noise = [
        line for line in done.stderr.splitlines() if "Unclosed" in line or "destroyed" in line or "Warning" in line
    ]
    assert noise == []
    if "Interrupt" not in ending:
        assert (done.returncode, done.stderr) == (0, "")


def test_importing_starts_nothing():
    script = "import threading, geostream.transport; assert len(threading.enumerate()) == 1"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_a_dropped_keepalive_connection_is_counted_once(remote, server, data, same_counts):
    url_for, access = remote
    run(get_range(url_for(KEY), access, 0, 10))
    from geostream.testing import Fault

    server.faults.add(Fault("reset", times=1))
    assert run(get_range(url_for(KEY), access, 0, 10)).bytes == data[:10]


@pytest.mark.parametrize("remote", ["http", "s3"], indirect=True)
def test_errors_in_a_session_are_raised(remote):
    url_for, access = remote
    with scan_session() as session, pytest.raises(ReadError):
        session.run(get_range(url_for("absent"), access, 0, 10))
