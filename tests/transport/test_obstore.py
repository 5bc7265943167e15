"""obstore: when it is used, what maps to it, and that forks do without it."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import geostream as gs
from geostream.accounting import stats
from geostream.errors import ConfigError, NotFoundError, ReadError
from geostream.testing import Fault, RangeServer
from geostream.transport import Access, get_range, obstores, run, scan_session
from geostream.transport.adapters import Meter
from geostream.transport.answer import Ask, Body
from geostream.transport.obstore_adapters import ObstoreBucketAdapter
from geostream.transport.obstore_options import map_options, split_http

KEY = "dir/some file.bin"
ODD = "odd &+= ~é'(1)[2]{3}*!$,;:@%41.bin"
SIGNED = {"anon": False, "key": "key", "secret": "secret"}


@pytest.fixture
def calls(monkeypatch):
    """Names of the objects asked of obstore, in order."""
    import obstore

    asked = []
    plain = obstore.get_async

    def get_async(store, key, **words):
        asked.append(key)
        return plain(store, key, **words)

    monkeypatch.setattr("obstore.get_async", get_async)
    return asked


@pytest.fixture(params=["http", "s3"])
def place(request, server, quick):
    """A URL-maker and options, for each protocol that learns from its first answer."""
    if request.param == "http":
        return server.url_for, {}
    return server.s3_url, {**server.storage_options, **SIGNED}


def read(url, access, start=5, stop=10, **words):
    return run(get_range(url, access, start, stop, **words))


@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_the_first_answer_is_anothers_and_the_rest_obstores(place, data, quick, calls, transport):
    url_for, options = place
    access = Access(options, retry=quick, transport=transport)
    bodies = [read(url_for(KEY), access) for _ in range(3)]
    assert {(body.bytes, body.total, body.etag, body.status) for body in bodies} == {
        (data[5:10], len(data), bodies[0].etag, 206)
    }
    assert type(bodies[2].bytes) is bytes
    assert calls == ([] if transport == "fsspec" else [KEY, KEY])


def test_by_default_it_is_for_crowds(place, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick)
    for _ in range(3):
        assert read(url_for(KEY), access).bytes == data[5:10]
    assert calls == []

    async def together(count):
        return await asyncio.gather(*(get_range(url_for(KEY), access, i, i + 9) for i in range(count)))

    for count in (40, 200, 200):
        assert [body.bytes for body in run(together(count))] == [data[i : i + 9] for i in range(count)]
    assert 0 < len(calls) < 400


def test_sessions_use_none_of_it(place, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick, transport="obstore")
    with scan_session() as session:
        for _ in range(3):
            assert session.run(get_range(url_for(KEY), access, 5, 10)).bytes == data[5:10]
    assert calls == []


def test_hundreds_at_once(place, server, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick, transport="obstore")
    read(url_for(KEY), access)

    async def all_of_them():
        return await asyncio.gather(*(get_range(url_for(KEY), access, i * 500, i * 500 + 999) for i in range(512)))

    server.reset()
    with stats.measure() as measured:
        bodies = run(all_of_them())
    assert [body.bytes for body in bodies] == [data[i * 500 : i * 500 + 999] for i in range(512)]
    assert (measured.requests, measured.bytes) == (512, 512 * 999)
    assert (server.counters.requests, server.counters.bytes_sent) == (512, 512 * 999)
    assert len(calls) == 512


def test_names_arrive_as_they_are(quick, calls):
    names = [ODD, "a%20b.bin", "a//b.bin", "./c.bin"]
    with RangeServer({name: name.encode() for name in names}) as server:
        signed = Access({**server.storage_options, **SIGNED}, retry=quick, transport="obstore")
        plain = Access(retry=quick)
        for _ in range(2):
            for name in names:
                assert read(server.s3_url(name), signed, 0, 99).bytes == name.encode()
            for name in (ODD, "a%20b.bin"):
                assert read(server.url_for(name), plain, 0, 99).bytes == name.encode()
    assert set(calls) == {ODD, "a%20b.bin"}


def test_what_another_client_can_obstore_need_not(place, server, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick, transport="obstore")
    read(url_for(KEY), access)
    server.faults.add(Fault("ignore_range", times=2))
    assert read(url_for(KEY), access).status == 200
    assert len(calls) == 1
    assert read(url_for(KEY), access).bytes == data[5:10]
    assert len(calls) == 1  # the store rests


def test_a_busy_store_is_asked_by_a_client_that_hears_how_long_to_wait(place, server, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick, transport="obstore")
    read(url_for(KEY), access)
    server.faults.add(Fault("status", status=503, times=2))
    assert read(url_for(KEY), access).bytes == data[5:10]
    assert len(calls) == 1
    assert read(url_for(KEY), access).bytes == data[5:10]
    assert len(calls) == 2


def test_headers_of_the_users_are_sent(quick, calls):
    with RangeServer({"a": b"0123456789"}) as server:
        seen = []
        answer = server._site.faults.draw
        server._site.faults.draw = lambda method, path: seen.append(path) or answer(method, path)
        access = Access({"headers": {"If-None-Match": "*"}}, retry=quick)
        with pytest.raises(ReadError, match="304"):
            read(server.url_for("a"), access)
        assert (seen, calls) == (["a"], [])  # no good answer, so obstore never came to it


def test_copies_share_a_client(server, data, quick, calls):
    access = Access({**server.storage_options, **SIGNED}, retry=quick, transport="obstore")
    read(server.s3_url(KEY), access)
    for other in (pickle.loads(pickle.dumps(access)), copy.deepcopy(access)):
        assert other == access
        assert read(server.s3_url(KEY), other).bytes == data[5:10]
    assert len(calls) == 2
    assert Access(transport="fsspec") != Access()


def test_changed_credentials_are_used(server, data, quick, calls, monkeypatch):
    access = Access({**server.storage_options, **SIGNED}, retry=quick, transport="obstore")
    made = []
    from geostream.transport import s3

    plain = s3.s3_relay
    monkeypatch.setattr(s3, "s3_relay", lambda bucket, pattern, keys: made.append(keys) or plain(bucket, pattern, keys))
    for secret in ("one", "one", "two"):
        monkeypatch.setattr(s3, "_keys", lambda client, secret=secret: keys_of(secret))
        read(server.s3_url(KEY), access)
        read(server.s3_url(KEY), access)
    assert [keys.secret for keys in made] == ["one", "two"]
    assert len(calls) == 5


async def keys_of(secret):
    from geostream.transport.s3_direct import Keys

    return Keys("key", secret)


@pytest.mark.parametrize(
    ("protocol", "options", "names"),
    [
        ("http", {}, ""),
        ("https", {"headers": {"Authorization": "Bearer x"}, "block_size": 5}, ""),
        ("https", {"client_kwargs": {"headers": {"X-A": "b"}}}, ""),
        ("https", {"client_kwargs": {"trust_env": True}}, "client_kwargs.trust_env"),
        ("https", {"auth": ("a", "b"), "proxy": "http://x"}, "auth, proxy"),
        ("https", {"headers": {"Range": "bytes=0-1"}}, "headers.Range"),
        ("https", {"headers": {"X": "é"}}, "headers"),
        ("https", {"get_client": print}, "get_client"),
        ("s3", {}, ""),
        ("s3", {"key": "a", "secret": "b", "token": "c", "endpoint_url": "http://x"}, ""),
        ("s3", {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}, "requester_pays": True}, ""),
        ("s3", {"profile": "p", "config_kwargs": {"s3": {"addressing_style": "path"}}}, ""),
        ("s3", {"session": object(), "s3_additional_kwargs": {}}, "s3_additional_kwargs, session"),
        ("s3", {"client_kwargs": {"verify": False}}, "client_kwargs.verify"),
        (
            "s3",
            {"config_kwargs": {"read_timeout": 5}, "version_aware": True},
            "config_kwargs.read_timeout, version_aware",
        ),
        ("gs", {"token": "anon"}, ""),
        ("gs", {"token": {"type": "service_account", "client_email": "a"}, "project": "p"}, ""),
        ("gs", {"token": "anon", "requester_pays": True, "endpoint_url": "http://x"}, "requester_pays"),
        ("gs", {}, "token=None (gcsfs then tries several ways to log in)"),
        ("gs", {"token": "cloud"}, "token"),
        ("az", {"account_name": "a", "account_key": "aGk="}, ""),
        ("abfs", {"account_name": "a", "sas_token": "?sv=1"}, ""),
        ("az", {"account_name": "a", "anon": True}, ""),
        ("az", {"account_name": "a", "tenant_id": "t", "client_id": "c", "client_secret": "s"}, ""),
        ("az", {"account_name": "a"}, "its credentials (adlfs then tries several ways to log in)"),
        ("az", {"connection_string": "x", "anon": True}, "account_name=None, connection_string"),
    ],
)
def test_what_maps_is_known_option_by_option(protocol, options, names, monkeypatch):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert map_options(protocol, options, "fsspec") is None
    assert (map_options(protocol, options, "auto") is None) == bool(names)
    if names:
        with pytest.raises(ConfigError) as caught:
            map_options(protocol, options, "obstore")
        assert f"with {names}, which" in str(caught.value)
    else:
        mapped = map_options(protocol, options, "obstore")
        for secret in ("Bearer", "aGk", "sv=1", "client_email"):
            assert secret not in repr(mapped)


def test_the_environment_counts(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@proxy")
    assert map_options("s3", {}, "auto") is None
    with pytest.raises(ConfigError, match="environment's https proxy") as caught:
        map_options("https", {}, "obstore")
    assert "hunter2" not in str(caught.value)


def test_google_keys_by_file(tmp_path, monkeypatch):
    file = tmp_path / "key.json"
    file.write_text(json.dumps({"type": "service_account"}))
    assert map_options("gs", {"token": str(file)}, "auto")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert map_options("gs", {}, "auto")
    file.write_text(json.dumps({"type": "authorized_user"}))
    assert map_options("gs", {}, "auto") is None


def test_which_urls_map():
    assert split_http("https://a.b:8/c%20d/e.tif") == ("https://a.b:8", "c d/e.tif")
    for url in (
        "https://a/b?sig=x",
        "https://u:p@a/b",
        "https://a/b//c",
        "https://a/../c",
        "https://a/b%2Fc",
        "https://a/",
    ):
        assert split_http(url) is None


def test_what_was_demanded_and_cannot_be_had(server, quick):
    forced = Access(retry=quick, transport="obstore")
    with pytest.raises(ConfigError, match="query"):
        read(server.url_for(KEY) + "?signature=hunter2", forced)
    with scan_session() as session, pytest.raises(ConfigError, match=r"obstore.*get_client"):
        session.run(get_range(server.url_for(KEY), Access({"get_client": print}, transport="obstore"), 0, 1))
    with pytest.raises(ConfigError, match="none of 'auto', 'obstore', 'fsspec'"):
        Access(transport="curl")
    import fsspec

    with pytest.raises(ConfigError, match="fs="):
        Access(fs=fsspec.filesystem("memory"), transport="obstore")


def test_without_obstore_installed(monkeypatch, server, data, quick):
    monkeypatch.setattr("geostream.transport.obstores.installed", lambda: False)
    monkeypatch.setattr("geostream.transport.obstore_options.installed", lambda: False)
    for _ in range(2):
        assert read(server.url_for(KEY), Access({"block_size": 7}, retry=quick)).bytes == data[5:10]
    with pytest.raises(ConfigError, match="pip install obstore"):
        read(server.url_for(KEY), Access({"block_size": 7}, transport="obstore"))


class Behind:
    """Stands for the filesystem behind obstore."""

    def __init__(self):
        self.asked = []

    async def prepare(self):
        pass

    async def fetch(self, ask, meter):
        self.asked.append(ask.path)
        return Body(b"behind", None, None, 206)

    async def aclose(self):
        pass


@pytest.mark.parametrize("protocol", ["gs", "az"])
def test_other_stores(server, data, protocol):
    options = {"gs": {"token": "anon", "endpoint_url": server.url}, "az": {"account_name": "a", "anon": True}}
    mapped = map_options(protocol, options[protocol], "obstore")
    if protocol == "az":
        mapped.config["endpoint"] = server.url
    behind, meter = Behind(), Meter()
    adapter = ObstoreBucketAdapter(behind, mapped)

    def fetch(key, start=5, stop=10, etag=None):
        return run(adapter.fetch(Ask(f"{server.bucket}/{key}", start, stop, etag), meter))

    run(adapter.prepare())
    body = fetch(KEY)
    assert (body.bytes, body.total, body.status) == (data[5:10], len(data), 206)
    assert fetch(KEY, etag=body.etag).bytes == data[5:10]
    assert (meter.requests, meter.bytes, behind.asked) == (2, 10, [])
    for key, etag, words in ((KEY, '"other"', "changed"), ("absent", None, "404")):
        with pytest.raises(Exception, match=words):
            fetch(key, etag=etag)
    assert fetch("a//b").bytes == b"behind"
    server.faults.add(Fault("ignore_range", times=1))
    assert fetch(KEY).bytes == b"behind"
    assert (meter.requests, server.counters.requests) == (5, 5)
    run(adapter.aclose())


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


def test_a_fork_does_without_and_says_so_once(place, server, data, quick, calls):
    url_for, options = place
    access = Access(options, retry=quick, transport="obstore")
    for _ in range(2):
        read(url_for(KEY), access)
    assert len(calls) == 1

    def check():
        told = []
        handler = logging.Handler()
        handler.emit = told.append
        logging.getLogger("geostream").addHandler(handler)
        for _ in range(3):
            assert read(url_for(KEY), access).bytes == data[5:10]
        assert len(calls) == 1
        assert len(told) == 1
        assert "forked" in told[0].getMessage()
        assert in_fork(lambda: [read(url_for(KEY), access) for _ in range(2)]) == 0

    assert in_fork(check) == 0
    read(url_for(KEY), access)
    assert len(calls) == 2  # the parent goes on as before


def in_new_process(script, *words):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", textwrap.dedent(script), *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_fork_before_the_first_use_may_use_it(server):
    script = """
        import os, sys
        from geostream.transport import Access, get_range, obstores, run
        access = Access(transport="obstore")
        with __import__("geostream.transport", fromlist=["x"]).scan_session() as session:
            for _ in range(3):
                session.run(get_range(sys.argv[1], access, 0, 9))
        pid = os.fork()
        for _ in range(3):
            run(get_range(sys.argv[1], access, 0, 9))
        assert obstores.usable() and obstores._state.last_used
        if pid:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    in_new_process(script, server.url_for(KEY))


def test_importing_does_not_import_obstore():
    in_new_process("import sys, geostream, geostream.transport; assert 'obstore' not in sys.modules")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_after_the_parent_has_read(method, tmp_path, server):
    """Pixels of forked and spawned workers are those of the parent, which had read through obstore before."""
    from torch.utils.data import DataLoader

    from geostream.testing.rasters import write_cog

    pixels = np.arange(256 * 256, dtype=np.uint16).reshape(1, 256, 256)
    write_cog(tmp_path / "a.tif", pixels, blocksize=64)
    with RangeServer(tmp_path) as files:
        dataset = gs.RasterDataset(files.s3_url(), storage_options={**files.storage_options, **SIGNED})
        (left, right), (_, top) = ((axis.start, axis.stop) for axis in dataset.bounds[:2])
        step = dataset.res[0] * 64
        queries = [
            (slice(x, x + step), slice(top - step, top), dataset.bounds[2]) for x in np.arange(left, right, step)
        ]
        here = [dataset[query]["image"] for query in queries]
        assert obstores._state.last_used is not None
        loader = DataLoader(dataset, sampler=queries, batch_size=None, num_workers=2, multiprocessing_context=method)
        there = [sample["image"] for sample in loader]
    assert [image.tolist() for image in there] == [image.tolist() for image in here]
    assert len({image.flatten()[0].item() for image in here}) == 4


def test_errors_are_those_of_other_clients(place, server, quick):
    url_for, options = place
    accesses = [Access(options, retry=quick, transport=transport) for transport in ("fsspec", "obstore")]
    for access in accesses:
        for _ in range(2):
            read(url_for(KEY), access)
    for fault, kind in ((None, NotFoundError), (403, ReadError), (401, ReadError), (503, ReadError)):
        if fault:
            server.faults.add(Fault("status", status=fault))
        said = []
        for access in accesses:
            with pytest.raises(ReadError) as caught:
                read(url_for("absent"), access)
            assert type(caught.value) is kind
            said.append(str(caught.value))
        assert said[0] == said[1]
        server.faults.clear()
