"""Local files, filesystems of every other kind, and the user's own."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import threading

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from geostream.accounting import stats
from geostream.errors import ConfigError, NotFoundError, ReadError
from geostream.testing import Fault
from geostream.transport import Access, get_range, list_files, normalize_url, run, scan_session

KEY = "dir/some file.bin"


@pytest.fixture
def file(tmp_path, data):
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    return path


@pytest.fixture
def memory(data):
    fs = MemoryFileSystem()
    fs.pipe({"/gs/a.bin": data, "/gs/sub/b.bin": b"b", "/gs/empty.bin": b""})
    yield fs
    fs.rm("/gs", recursive=True)


def reason(ask):
    with pytest.raises(ReadError) as caught:
        run(ask)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("form", ["path", "file://", "fs"])
def test_local_files(file, data, form):
    url = f"file://{file}" if form == "file://" else str(file)
    access = Access(fs=fsspec.filesystem("file")) if form == "fs" else Access()
    with stats.measure() as measured:
        body = run(get_range(url, access, 10, 20))
    assert (body.bytes, body.total, body.status) == (data[10:20], len(data), 206)
    assert (measured.requests, measured.bytes) == (1, 10)
    assert run(get_range(url, access, 299_990, 400_000, etag=body.etag)).bytes == data[299_990:]
    assert "past the end" in reason(get_range(url, access, 300_000, 300_001))[1]
    os.utime(file, ns=(1, 1))
    assert "changed" in reason(get_range(url, access, 0, 1, etag=body.etag))[1]


def test_local_failures(tmp_path):
    access = Access()
    kind, words = reason(get_range(str(tmp_path / "none"), access, 0, 1))
    assert (kind, "no such file" in words) == (NotFoundError, True)
    assert "not a regular file" in reason(get_range(str(tmp_path), access, 0, 1))[1]
    (tmp_path / "empty").touch()
    body = run(get_range(str(tmp_path / "empty"), access, 0, 10))
    assert (body.bytes, body.total) == (b"", 0)
    with pytest.raises(ConfigError):
        run(get_range(str(tmp_path / "empty"), access, 5, 5))


@pytest.mark.parametrize("own", [False, True])
def test_memory(memory, data, own):
    access = Access(fs=memory) if own else Access()
    body = run(get_range("memory://gs/a.bin", access, 10, 20))
    assert (body.bytes, body.total, body.etag) == (data[10:20], len(data), None)
    assert run(get_range("memory://gs/a.bin", access, 299_990, 400_000)).bytes == data[299_990:]
    assert run(get_range("memory://gs/empty.bin", access, 0, 10)).total == 0
    assert "past the end" in reason(get_range("memory://gs/a.bin", access, 300_000, 300_001))[1]
    assert reason(get_range("memory://gs/none", access, 0, 1))[0] is NotFoundError
    assert reason(get_range("memory://gs/sub", access, 0, 1))[0] is ReadError


def test_chains_of_caches(server, data, tmp_path, quick):
    access = Access({"simplecache": {"cache_storage": str(tmp_path)}}, retry=quick)
    url = f"simplecache::{server.url_for(KEY)}"
    assert run(get_range(url, access, 10, 20)).bytes == data[10:20]
    server.reset()
    assert run(get_range(url, access, 20, 30)).bytes == data[20:30]
    assert server.counters.get == 0


def test_unknown_protocols_and_options_are_refused():
    with pytest.raises(ConfigError, match="no filesystem is known for nosuch://"):
        run(get_range("nosuch://a/b", Access(), 0, 1))
    with pytest.raises(ConfigError, match="contradict"):
        Access({"key": "a"}, fsspec.filesystem("file"))


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_the_users_filesystem_is_awaited_on_its_own_loop(server, data, protocol, quick):
    options = server.storage_options if protocol == "s3" else {}
    fs = fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    url = server.s3_url(KEY) if protocol == "s3" else server.url_for(KEY)
    assert fs.cat_file(url)[:4] == data[:4]  # used before, on fsspec's loop
    access = Access(fs=fs, retry=quick)
    server.reset()
    with stats.measure() as measured:
        bodies = run(many(url, access))
    assert [body.bytes for body in bodies] == [data[i : i + 9] for i in range(40)]
    assert bodies[0].etag
    assert (measured.requests, measured.bytes) == (server.counters.requests, server.counters.bytes_sent) == (40, 360)
    server.faults.add(Fault("status", status=503, times=2))
    assert run(get_range(url, access, 0, 9)).bytes == data[:9]
    assert [entry.size for entry in run(list_files(url, access))] == [len(data)]
    with scan_session() as session:
        assert session.run(get_range(url, access, 1, 9)).bytes == data[1:9]
    assert fs.cat_file(url)[:4] == data[:4]  # and it is as usable as before


async def many(url, access):
    return await asyncio.gather(*(get_range(url, access, i, i + 9) for i in range(40)))


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_the_users_filesystem_in_a_fork_and_a_copy(server, data, protocol, quick):
    options = server.storage_options if protocol == "s3" else {}
    url = server.s3_url(KEY) if protocol == "s3" else server.url_for(KEY)
    access = Access(fs=fsspec.filesystem(protocol, **options), retry=quick)
    assert run(get_range(url, access, 0, 9)).bytes == data[:9]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(run(get_range(url, access, 1, 9)).bytes != data[1:9])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run(get_range(url, access, 2, 9)).bytes == data[2:9]
    for other in (pickle.loads(pickle.dumps(access)), copy.deepcopy(access)):
        assert other == access
        assert run(get_range(url, other, 2, 9)).bytes == data[2:9]


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_the_users_asynchronous_filesystem_that_has_no_loop_yet(server, data, protocol, quick):
    options = server.storage_options if protocol == "s3" else {}
    url = server.s3_url(KEY) if protocol == "s3" else server.url_for(KEY)
    access = Access(fs=fsspec.filesystem(protocol, asynchronous=True, skip_instance_cache=True, **options), retry=quick)
    with scan_session() as session:
        assert session.run(get_range(url, access, 2, 9)).bytes == data[2:9]
    assert run(get_range(url, access, 2, 9)).bytes == data[2:9]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_other_filesystems_of_the_user(server, data, memory, quick, asynchronous):
    if asynchronous:
        inner = fsspec.filesystem("s3", skip_instance_cache=True, **server.storage_options)
        fs, path = DirFileSystem(f"{server.bucket}/dir", inner), "some file.bin"
    else:
        fs, path = DirFileSystem("/gs", memory), "a.bin"
    access = Access(fs=fs, retry=quick)
    assert normalize_url(path, access) == path
    body = run(get_range(path, access, 299_000, 400_000))
    assert body.bytes == data[299_000:]
    assert reason(get_range("none", access, 0, 1))[0] is NotFoundError
    assert path in [entry.url for entry in run(list_files("", access))]


def test_local_listings(tmp_path):
    names = ["a.tif", "b.txt", "sub/c.tif", "sub/deep/d.tif"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"abc")
    access = Access()
    cases = {
        "": names,
        "*.tif": names[:1],
        "**/*.tif": [names[0], *names[2:]],
        "sub": names[2:],
        "sub/*.tif": names[2:3],
        "a.tif": names[:1],
        "*/c.tif": names[2:3],
        "none": [],
        "none/*.tif": [],
        "none.tif": [],
    }
    for pattern, expected in cases.items():
        found = run(list_files(f"{tmp_path}/{pattern}", access))
        assert [entry.url for entry in found] == [f"{tmp_path}/{name}" for name in expected], pattern
        assert all(entry.size == 3 for entry in found)


def test_memory_and_http_listings(memory, server, data):
    access = Access()
    assert [entry.url for entry in run(list_files("memory://gs/**/*.bin", access))] == [
        "memory:///gs/a.bin",
        "memory:///gs/empty.bin",
        "memory:///gs/sub/b.bin",
    ]
    found = run(list_files(server.url_for(KEY), access))
    assert [(entry.url, entry.size) for entry in found] == [(server.url_for(KEY), len(data))]
    assert found[0].etag
    assert run(list_files(server.url_for("none.tif"), access)) == []
    assert server.counters.requests == server.counters.get == 2
    server.faults.add(Fault("status", status=403))
    assert "credentials" in reason(list_files(server.url_for(KEY), access))[1]


def test_options_that_nobody_knows(server, quick):
    access = Access({"no_such_option": 1}, retry=quick)
    for url in (server.url_for(KEY), server.s3_url(KEY)):
        with pytest.raises(ConfigError, match=r"storage_options= has 'no_such_option'"):
            run(get_range(url, access, 0, 1))


def test_threads_are_bounded_and_results_right(file, data):
    async def many():
        return await asyncio.gather(*(get_range(str(file), Access(), i, i + 9) for i in range(500)))

    assert [body.bytes for body in run(many())] == [data[i : i + 9] for i in range(500)]
    assert sum(thread.name.startswith("geostream-loop-io") for thread in threading.enumerate()) <= 32
