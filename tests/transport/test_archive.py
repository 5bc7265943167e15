"""Zip members are read by range where they are stored, and unpacked once where they are deflated."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

import pytest

from geostream.accounting import stats
from geostream.errors import NotFoundError, ReadError
from geostream.testing import RangeServer
from geostream.transport import Access, get_range, list_files, normalize_url, run

STORED = bytes(range(256)) * 400
DEFLATED = b"geostream " * 50_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("dir/stored.bin", STORED)
        file.writestr("dir/deflated.bin", DEFLATED, compress_type=zipfile.ZIP_DEFLATED)
        file.writestr("bzip2.bin", DEFLATED, compress_type=zipfile.ZIP_BZIP2)
        file.writestr("empty.bin", b"")
        file.mkdir("folder")
    return path


@pytest.fixture
def remote(archive, quick):
    with RangeServer({"x.zip": archive}) as server:
        yield server, Access({"s3": server.storage_options, "zip": {"mode": "r"}}, retry=quick)


@pytest.mark.parametrize("scheme", ["http", "s3", "local"])
@pytest.mark.parametrize(("name", "content"), [("dir/stored.bin", STORED), ("dir/deflated.bin", DEFLATED)])
def test_members_are_read_by_range(archive, remote, scheme, name, content):
    server, access = remote
    inner = {"http": server.url_for("x.zip"), "s3": server.s3_url("x.zip"), "local": str(archive)}[scheme]
    url = normalize_url(f"zip://{name}::{inner}")
    for start, stop in [(0, 10), (999, 5001), (len(content) - 5, len(content) + 100)]:
        body = run(get_range(url, access, start, stop))
        assert (body.bytes, body.total) == (content[start:stop], len(content))
        assert body.etag
    with pytest.raises(ReadError, match="past the end"):
        run(get_range(url, access, len(content), len(content) + 1))


def test_a_stored_member_costs_its_ranges_and_a_deflated_one_is_fetched_once(remote, archive):
    server, access = remote
    http = server.url_for("x.zip")
    assert run(get_range(f"zip://dir/stored.bin::{http}", access, 0, 10)).bytes == STORED[:10]
    assert server.counters.requests == 4  # the size, the table of contents, the member's header, the range
    server.reset()

    async def many(name):
        return await asyncio.gather(*(get_range(f"zip://{name}::{http}", access, i, i + 9) for i in range(50)))

    with stats.measure() as measured:
        assert [body.bytes for body in run(many("dir/stored.bin"))] == [STORED[i : i + 9] for i in range(50)]
    assert (measured.requests, measured.bytes) == (50, 450) == (server.counters.requests, server.counters.bytes_sent)
    server.reset()
    with stats.measure() as measured:
        assert [body.bytes for body in run(many("dir/deflated.bin"))] == [DEFLATED[i : i + 9] for i in range(50)]
    packed = zipfile.ZipFile(archive).getinfo("dir/deflated.bin").compress_size
    assert (measured.requests, measured.bytes) == (2, 30 + packed)
    assert (server.counters.requests, server.counters.bytes_sent) == (2, 30 + packed)


def test_unpacked_members_are_bounded(archive, monkeypatch, quick):
    monkeypatch.setattr("geostream.transport.archive.UNPACKED_LIMIT", 1)
    access = Access(retry=quick)
    with zipfile.ZipFile(archive.with_name("two.zip"), "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", b"a" * 1000)
        file.writestr("b", b"b" * 1000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in "abab":
        url = f"zip://{name}::{archive.with_name('two.zip')}"
        assert run(get_range(url, access, 0, 3)).bytes == name.encode() * 3
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_an_empty_member_is_told_as_such(archive):
    body = run(get_range(f"zip://empty.bin::{archive}", Access(), 0, 100))
    assert (body.bytes, body.total) == (b"", 0)


def test_what_cannot_be_read_says_why(archive, tmp_path):
    with pytest.raises(ReadError, match="compressed by method 12"):
        run(get_range(f"zip://bzip2.bin::{archive}", Access(), 0, 10))
    with pytest.raises(NotFoundError, match="no such member"):
        run(get_range(f"zip://none.bin::{archive}", Access(), 0, 10))
    with pytest.raises(NotFoundError, match=r"none\.zip"):
        run(get_range(f"zip://a::{tmp_path}/none.zip", Access(), 0, 10))
    (tmp_path / "text.zip").write_text("not an archive")
    with pytest.raises(ReadError, match="not a readable zip archive"):
        run(get_range(f"zip://a::{tmp_path}/text.zip", Access(), 0, 10))
    damaged = bytearray(archive.read_bytes())
    at = zipfile.ZipFile(archive).getinfo("dir/deflated.bin").header_offset + 100
    damaged[at] ^= 0xFF
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(ReadError, match="damaged"):
        run(get_range(f"zip://dir/deflated.bin::{tmp_path}/damaged.zip", Access(), 0, 10))


def test_a_table_of_contents_longer_than_the_first_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as file:
        for number in range(3000):
            file.writestr(f"{number:05d}-with-a-rather-long-name.bin", b"%d" % number)
        file.comment = b"x" * 60000
    url = f"zip://00017-with-a-rather-long-name.bin::{tmp_path}/many.zip"
    assert run(get_range(url, Access(), 0, 10)).bytes == b"17"


def test_archives_are_listed(archive, remote):
    server, access = remote
    http = server.url_for("x.zip")
    every = run(list_files(f"zip://::{http}", access))
    assert [(entry.url.partition("::")[0], entry.size) for entry in every] == [
        ("zip://bzip2.bin", len(DEFLATED)),
        ("zip://dir/deflated.bin", len(DEFLATED)),
        ("zip://dir/stored.bin", len(STORED)),
        ("zip://empty.bin", 0),
    ]
    assert run(get_range(every[2].url, access, 0, 4)).bytes == STORED[:4]
    names = [entry.url for entry in run(list_files(f"zip://dir/*.bin::{http}", access))]
    assert names == [f"zip://dir/deflated.bin::{http}", f"zip://dir/stored.bin::{http}"]
    assert len(run(list_files(f"zip://dir::{http}", access))) == 2
    assert run(list_files(f"zip://*.tif::{archive}", Access())) == []
    assert run(list_files(f"zip://*.tif::{archive}.absent", Access())) == []
