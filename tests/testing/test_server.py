"""The range server: HTTP and S3 as clients need them, faults as asked for, an exact account, nothing left behind."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import s3fs

from geostream.testing import Counters, Fault, RangeServer, Served
from geostream.testing.answers import parse_range
from geostream.testing.objects import make_store

BYTES = bytes(range(256)) * 4


def ask(server, path, method="GET", **headers):
    """One request on a connection of its own: status, headers by lower-case name, body."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture
def server():
    with RangeServer({"a/b.tif": BYTES, "empty": b"", "ä b.txt": b"text"}) as server:
        yield server


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        ("bytes=0-0", 10, (0, 1)),
        ("bytes=2-5", 10, (2, 6)),
        ("bytes=2-500", 10, (2, 10)),
        ("bytes=7-", 10, (7, 10)),
        ("bytes=-3", 10, (7, 10)),
        ("bytes=-30", 10, (0, 10)),
        ("bytes=-0", 10, (10, 10)),
        ("bytes=10-", 10, (10, 10)),
        ("bytes=0-", 0, (0, 0)),
        ("bytes=5-2", 10, None),
        ("bytes=1-2,4-5", 10, None),
        ("bytes=-", 10, None),
        ("items=0-1", 10, None),
        (None, 10, None),
    ],
)
def test_parse_range(header, size, expected):
    assert parse_range(header, size) == expected


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=3-9", 3, 10), ("bytes=1000-", 1000, 1024), ("bytes=-5", 1019, 1024), ("bytes=1020-4000", 1020, 1024)],
)
def test_single_range(server, header, start, stop):
    status, headers, body = ask(server, "/a/b.tif", range=header)
    assert (status, body) == (206, BYTES[start:stop])
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/1024"
    assert headers["content-length"] == str(stop - start)
    assert headers["accept-ranges"] == "bytes"
    assert server.log == [Served("GET", "a/b.tif", start, stop, header, None, 206, stop - start)]


def test_whole_object(server):
    assert ask(server, "/a/b.tif")[::2] == (200, BYTES)
    assert ask(server, "/a/b.tif", range="bytes=0-1,5-6")[::2] == (200, BYTES)
    assert server.log[0] == Served("GET", "a/b.tif", status=200, bytes_sent=1024)


@pytest.mark.parametrize(
    ("path", "header"), [("/a/b.tif", "bytes=1024-"), ("/empty", "bytes=0-9"), ("/empty", "bytes=-9")]
)
def test_unsatisfiable_range(server, path, header):
    status, headers, body = ask(server, path, range=header)
    assert status == 416
    assert headers["content-range"] == f"bytes */{1024 if path == '/a/b.tif' else 0}"
    assert b"<Code>InvalidRange</Code>" in body
    assert server.counters.bytes_sent == len(body)


def test_head(server):
    status, headers, body = ask(server, "/a/b.tif", "HEAD")
    assert (status, headers["content-length"], body) == (200, "1024", b"")
    assert ask(server, "/a/b.tif", "HEAD", range="bytes=0-9")[1]["content-range"] == "bytes 0-9/1024"
    assert ask(server, "/missing", "HEAD")[::2] == (404, b"")
    assert server.counters == Counters(
        requests=3, head=3, by_status={200: 1, 206: 1, 404: 1}, connections=3, peak_in_flight=1
    )


def test_missing_object(server):
    status, _, body = ask(server, "/nowhere/x.tif")
    assert status == 404
    assert b"<Code>NoSuchKey</Code>" in body
    assert b"<Key>nowhere/x.tif</Key>" in body


def test_preconditions(server):
    etag = ask(server, "/a/b.tif", "HEAD")[1]["etag"]
    assert etag.startswith('"')
    assert etag.endswith('"')
    assert ask(server, "/a/b.tif", if_match=etag, range="bytes=0-3")[::2] == (206, BYTES[:4])
    status, _, body = ask(server, "/a/b.tif", if_match='"other"')
    assert status == 412
    assert b"<Code>PreconditionFailed</Code>" in body
    assert server.log[-1].if_match == '"other"'
    assert ask(server, "/a/b.tif", if_none_match=etag)[::2] == (304, b"")
    assert ask(server, "/a/b.tif", if_none_match='"other"')[0] == 200
    assert ask(server, "/a/b.tif", if_range=etag, range="bytes=0-3")[0] == 206
    assert ask(server, "/a/b.tif", if_range='"other"', range="bytes=0-3")[0] == 200


def test_etag_follows_the_content(tmp_path):
    (tmp_path / "x").write_bytes(b"one")
    items = {"y": b"one"}
    with RangeServer(tmp_path) as files, RangeServer(items) as mapping:
        before = [ask(s, p, "HEAD")[1]["etag"] for s, p in ((files, "/x"), (mapping, "/y"))]
        again = [ask(s, p, "HEAD")[1]["etag"] for s, p in ((files, "/x"), (mapping, "/y"))]
        assert before == again
        (tmp_path / "x").write_bytes(b"three")
        items["y"] = b"two"
        after = [ask(s, p, "HEAD")[1]["etag"] for s, p in ((files, "/x"), (mapping, "/y"))]
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_names_are_decoded_and_served_in_a_bucket_too(server):
    assert ask(server, server.url_for("ä b.txt").removeprefix(server.url))[::2] == (200, b"text")
    assert ask(server, "/bucket/a/b.tif", range="bytes=0-1")[::2] == (206, BYTES[:2])
    assert [served.path for served in server.log] == ["ä b.txt", "a/b.tif"]


@pytest.mark.parametrize(
    "path", ["/../secret", "/%2e%2e/secret", "/sub/../../secret", "//etc/passwd", "/./inside", "/%00", "/" + "x" * 5000]
)
def test_nothing_outside_the_root_is_served(tmp_path, path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "inside").write_bytes(b"inside")
    with RangeServer(tmp_path / "root") as server:
        assert ask(server, path)[0] == 404
        assert ask(server, "/inside")[0] == 200
        assert ask(server, "/sub")[0] == 404


def test_root_must_exist(tmp_path):
    with pytest.raises(NotADirectoryError, match="not a directory"):
        RangeServer(tmp_path / "none")


def test_connections_are_kept_and_requests_may_be_pipelined(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    for start in range(5):
        connection.request("GET", "/a/b.tif", headers={"Range": f"bytes={start}-{start}"})
        assert connection.getresponse().read() == BYTES[start : start + 1]
    request = b"GET /a/b.tif HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-%d\r\n\r\n"
    connection.sock.sendall(request % (1, 1) + request % (2, 2) + request[:20])
    connection.sock.sendall(request[20:] % (3, 3))
    received = b""
    while received.count(b"HTTP/1.1 206") < 3 or not received.endswith(BYTES[3:4]):
        received += connection.sock.recv(65536)
    connection.close()
    assert server.counters.connections == 1
    assert server.counters.requests == 8


def test_other_methods_and_nonsense(server):
    assert ask(server, "/a/b.tif", "PUT")[0] == 405
    assert ask(server, "/a/b.tif", "HEAD", connection="close")[1]["connection"] == "close"
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.connect()
    connection.sock.sendall(b"nonsense\r\n\r\n")
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 400")
    connection.close()


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (429, "TooManyRequests"), (500, "InternalError"), (503, "SlowDown")]
)
def test_status_fault(server, status, code):
    server.faults.add(Fault("status", status=status, times=2, retry_after=0.5))
    for _ in range(2):
        answered, headers, body = ask(server, "/a/b.tif", range="bytes=0-9")
        assert answered == status
        assert headers["retry-after"] == "0.5"
        assert f"<Code>{code}</Code>".encode() in body
    assert ask(server, "/a/b.tif", range="bytes=0-9")[0] == 206
    assert server.counters == Counters(
        requests=3,
        get=3,
        by_status={status: 2, 206: 1},
        bytes_sent=2 * len(body) + 10,
        connections=3,
        peak_in_flight=1,
    )
    assert [served.fault for served in server.log] == ["status", "status", None]


def test_reset_before_the_answer(server):
    server.faults.add(Fault("reset", times=1))
    with pytest.raises(ConnectionResetError):
        ask(server, "/a/b.tif")
    assert ask(server, "/a/b.tif")[0] == 200
    assert server.log[0] == Served("GET", "a/b.tif", fault="reset")
    assert server.counters.by_status == {0: 1, 200: 1}


def test_reset_in_the_body(server):
    server.faults.add(Fault("reset_body", times=1, size=100))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        ask(server, "/a/b.tif", range="bytes=0-499")
    assert server.log == [Served("GET", "a/b.tif", 0, 500, "bytes=0-499", None, 206, 100, "reset_body")]


def test_truncated_body(server):
    server.faults.add(Fault("truncate", times=1))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(server, "/a/b.tif", range="bytes=0-499")
    assert caught.value.partial == BYTES[:250]
    assert caught.value.expected == 250
    assert server.counters.bytes_sent == 250


def test_stall_until_the_client_gives_up(server):
    server.faults.add(Fault("stall", times=1), Fault("stall_body", times=1, size=7))
    for expected in (
        Served("GET", "a/b.tif", fault="stall"),
        Served("GET", "a/b.tif", None, None, None, None, 200, 7, "stall_body"),
    ):
        server.reset()
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=0.2)
        connection.request("GET", "/a/b.tif")
        with pytest.raises(TimeoutError):
            connection.getresponse().read()
        connection.close()
        assert server.log == [expected]


def test_stall_ends(server):
    server.faults.add(Fault("stall", seconds=0.05), Fault("stall_body", seconds=0.05))
    assert ask(server, "/a/b.tif")[::2] == (200, BYTES)
    server.faults.clear()
    server.faults.add(Fault("stall_body", seconds=0.05))
    assert ask(server, "/a/b.tif")[::2] == (200, BYTES)


def test_ignored_range(server):
    server.faults.add(Fault("ignore_range"))
    status, headers, body = ask(server, "/a/b.tif", range="bytes=5-9")
    assert (status, body) == (200, BYTES)
    assert "content-range" not in headers
    assert (server.log[0].start, server.log[0].stop, server.log[0].bytes_sent) == (5, 10, 1024)


@pytest.mark.parametrize(
    ("kind", "content_range", "length"),
    [
        ("short_range", "bytes 10-14/1024", 5),
        ("wrong_range", "bytes 11-20/1024", 10),
        ("wrong_length", "bytes 10-19/1024", 9),
        ("wrong_total", "bytes 10-19/2048", 10),
    ],
)
def test_lies_about_the_range(server, kind, content_range, length):
    server.faults.add(Fault(kind))
    status, headers, body = ask(server, "/a/b.tif", range="bytes=10-19")
    assert (status, headers["content-range"], headers["content-length"]) == (206, content_range, str(length))
    assert body == BYTES[10 : 10 + length]
    assert (server.log[0].start, server.log[0].stop, server.log[0].bytes_sent) == (10, 20, length)


def test_replaced_object(server):
    etag = ask(server, "/a/b.tif", "HEAD")[1]["etag"]
    server.faults.add(Fault("changed"))
    assert ask(server, "/a/b.tif", range="bytes=0-3", if_match=etag)[0] == 412
    status, headers, body = ask(server, "/a/b.tif", range="bytes=0-3")
    assert (status, body) == (206, b"\xff\xfe\xfd\xfc")
    assert ask(server, "/a/b.tif", range="bytes=0-3", if_match=headers["etag"])[0] == 206
    server.faults.clear()
    server.faults.add(Fault("swapped"))
    status, headers, body = ask(server, "/a/b.tif", range="bytes=0-3", if_match=etag)
    assert (status, body) == (206, b"\xff\xfe\xfd\xfc")
    assert headers["etag"] != etag


def test_garbage_and_no_etag(server):
    server.faults.add(Fault("garbage", times=1), Fault("no_etag", times=1))
    status, _, body = ask(server, "/a/b.tif", range="bytes=0-99")
    assert (status, len(body)) == (206, 100)
    assert body != BYTES[:100]
    status, headers, body = ask(server, "/a/b.tif", range="bytes=0-99")
    assert (status, body) == (206, BYTES[:100])
    assert "etag" not in headers


def test_faults_choose_path_method_and_turn(server):
    server.faults.add(Fault("status", path="*.tif", method="GET", skip=1, times=1))
    assert ask(server, "/a/b.tif", "HEAD")[0] == 200
    assert ask(server, "/empty")[0] == 200
    assert [ask(server, "/a/b.tif")[0] for _ in range(3)] == [200, 503, 200]


def test_probable_faults_are_reproducible():
    seen = []
    for _ in range(2):
        with RangeServer({"x": b"x"}, faults=[Fault("status", probability=0.5)], seed=7) as server:
            seen.append([ask(server, "/x")[0] for _ in range(30)])
    assert seen[0] == seen[1]
    assert set(seen[0]) == {200, 503}


# --- s3 -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path):
    for name in ("a/1.tif", "a/2.tif", "a/deep/3.tif", "b & c/4.tif", "top.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 10)
    with RangeServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize("signed", [{}, {"anon": False, "key": "any", "secret": "thing"}])
def test_s3fs_reads_and_lists(bucket, signed):
    s3 = s3fs.S3FileSystem(skip_instance_cache=True, **(bucket.storage_options | signed))
    assert sorted(s3.ls("bucket", detail=False)) == ["bucket/a", "bucket/b & c", "bucket/top.txt"]
    assert s3.glob("bucket/**/*.tif") == [
        "bucket/a/1.tif",
        "bucket/a/2.tif",
        "bucket/a/deep/3.tif",
        "bucket/b & c/4.tif",
    ]
    assert s3.cat_file(bucket.s3_url("a/2.tif"), start=2, end=7) == b"2.tif"
    assert bucket.log[-1].range == "bytes=2-6"
    info = s3.info("s3://bucket/b & c/4.tif")
    assert (info["size"], info["type"]) == (110, "file")
    with pytest.raises(FileNotFoundError):
        s3.cat_file("s3://bucket/missing")


def test_s3fs_sees_errors_as_s3_would_send_them(bucket):
    s3 = s3fs.S3FileSystem(skip_instance_cache=True, **bucket.storage_options)
    bucket.faults.add(Fault("status", status=403, method="GET"))
    with pytest.raises(PermissionError):
        s3.cat_file("s3://bucket/top.txt")


def test_listing_pages(bucket):
    keys, token, pages = [], "", 0
    while True:
        status, _, body = ask(bucket, f"/bucket?list-type=2&max-keys=2&prefix=&continuation-token={token}")
        assert status == 200
        text, pages = body.decode(), pages + 1
        keys += [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]
        if "<IsTruncated>true" not in text:
            break
        token = text.split("<NextContinuationToken>")[1].split("<")[0]
    assert keys == ["a/1.tif", "a/2.tif", "a/deep/3.tif", "b &amp; c/4.tif", "top.txt"]
    assert pages == 3
    assert bucket.counters.list == 3
    assert bucket.counters.get == 0


def test_listing_folds_at_the_delimiter(bucket):
    text = ask(bucket, "/bucket/?list-type=2&prefix=a/&delimiter=/&encoding-type=url")[2].decode()
    assert text.count("<Contents>") == 2
    assert "<CommonPrefixes><Prefix>a/deep/</Prefix></CommonPrefixes>" in text
    assert "<KeyCount>3</KeyCount>" in text
    text = ask(bucket, "/bucket/?list-type=2&start-after=a/2.tif&encoding-type=url")[2].decode()
    assert "b%20%26%20c/4.tif" in text
    assert "a/2.tif" not in text


def test_s3fs_pages_through_many_keys():
    items = {f"many/{number:05d}.tif": b"" for number in range(2500)}
    with RangeServer(items) as server:
        s3 = s3fs.S3FileSystem(skip_instance_cache=True, **server.storage_options)
        assert s3.find("bucket/many") == [f"bucket/{key}" for key in items]
        assert server.counters.list >= 3


# --- pace, load and life --------------------------------------------------------------------------------------------


def fetch_all(server, path, ranges):
    """All ranges at once, each on a connection of its own."""

    async def run():
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one(start, stop):
                async with session.get(server.url + path, headers={"Range": f"bytes={start}-{stop - 1}"}) as answer:
                    return await answer.read()

            return await asyncio.gather(*(one(*span) for span in ranges))

    return asyncio.run(run())


@pytest.mark.parametrize("make", [RangeServer, RangeServer.spawn])
def test_hundreds_of_connections(make, tmp_path):
    data = os.urandom(1 << 20)
    (tmp_path / "x").write_bytes(data)
    ranges = [(n * 2000, n * 2000 + 65536) for n in range(400)]
    with make(tmp_path, latency=0.5, jitter=0.1) as server:
        bodies = fetch_all(server, "/x", ranges)
        counters = server.counters
    assert bodies == [data[start:stop] for start, stop in ranges]
    assert counters.bytes_sent == 400 * 65536
    assert counters.requests == counters.connections == 400
    assert counters.peak_in_flight > 50


@pytest.mark.parametrize("distribution", ["lognormal", "uniform"])
def test_pace_is_what_was_asked_for(distribution):
    import random
    from statistics import median

    from geostream.testing.connection import Pace

    pace = Pace(latency=0.04, jitter=0.3, distribution=distribution)
    delays = [pace.delay(random.Random(seed)) for seed in range(500)]
    assert min(delays) > 0
    assert 0.03 < median(delays) < 0.05
    assert len(set(delays)) == 500
    assert Pace(latency=0.04).delay(random.Random(0)) == 0.04


def test_latency_and_bandwidth_take_at_least_their_time(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 20_000)
    with RangeServer(tmp_path, latency=0.05, bandwidth=100_000) as server:
        before = time.perf_counter()
        assert len(ask(server, "/x")[2]) == 20_000
        assert time.perf_counter() - before >= 0.25 - 0.01


def test_connections_share_the_link(tmp_path):
    (tmp_path / "x").write_bytes(bytes(10_000))
    with RangeServer(tmp_path, link=100_000) as server, ThreadPoolExecutor(3) as pool:
        before = time.perf_counter()
        bodies = list(pool.map(lambda _: ask(server, "/x")[2], range(3)))
        assert time.perf_counter() - before >= 0.3 - 0.01
        assert bodies == [bytes(10_000)] * 3


def test_big_bodies_are_sent_whole_and_a_client_that_leaves_is_no_failure(tmp_path):
    data = os.urandom(5_000_000)
    (tmp_path / "x").write_bytes(data)
    with RangeServer(tmp_path) as server:
        assert ask(server, "/x")[2] == data
        assert server.counters.bytes_sent == len(data)
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
        connection.request("GET", "/x")
        connection.getresponse().read(10)
        connection.close()
        assert ask(server, "/x", range="bytes=0-4")[2] == data[:5]


def test_reset_of_the_counters(server):
    ask(server, "/a/b.tif")
    server.reset()
    assert server.counters == Counters()
    assert server.log == []


def test_nothing_is_left_after_exit():
    before = threading.active_count()
    with RangeServer({"x": b"x"}, faults=[Fault("stall", path="x")]) as server:
        open_connections = [http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=5) for _ in range(5)]
        for connection in open_connections:
            connection.request("GET", "/x")
        while server.counters.requests < 5:
            time.sleep(0.001)
    for connection in open_connections:
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            connection.getresponse()
        connection.close()
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/x")
    server.stop()
    with pytest.raises(RuntimeError, match="new RangeServer"):
        server.start()


def test_a_forked_child_does_not_hold_the_connections(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request("GET", "/empty")
    connection.getresponse().read()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        server.faults.add(Fault("truncate", size=1))
        connection.request("GET", "/a/b.tif")
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
    finally:
        connection.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_of_its_own(tmp_path):
    (tmp_path / "x").write_bytes(BYTES)
    with RangeServer.spawn(tmp_path, faults=[Fault("status", times=1)], bucket="b") as server:
        assert [ask(server, "/x")[0] for _ in range(2)] == [503, 200]
        assert server.counters.by_status == {503: 1, 200: 1}
        assert server.log[1] == Served("GET", "x", status=200, bytes_sent=1024)
        assert server.s3_url("x") == "s3://b/x"
        server.reset()
        server.faults.add(Fault("status", status=429))
        assert ask(server, "/b/x")[0] == 429
        server.faults.clear()
        assert ask(server, "/b/x", range="bytes=-4")[::2] == (206, BYTES[-4:])
        assert server.counters.requests == 2
        with pytest.raises(RuntimeError, match="before"):
            server.start()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/x")
    with pytest.raises(RuntimeError, match="ended"):
        _ = server.counters


def test_a_process_that_cannot_serve_says_why(tmp_path):
    with pytest.raises(NotADirectoryError):
        RangeServer.spawn(tmp_path / "none").start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = RangeServer.spawn(tmp_path).counters


def test_the_process_ends_with_its_parent():
    script = (
        "import os; from geostream.testing import RangeServer; s = RangeServer.spawn({'x': b'x'}).start();"
        "print(s.url, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    netloc = urlsplit(done.stdout.strip()).netloc
    for _ in range(1000):
        connection = http.client.HTTPConnection(netloc, timeout=5)
        try:
            connection.connect()
        except ConnectionRefusedError:
            return
        finally:
            connection.close()
        time.sleep(0.01)
    pytest.fail("the server outlived its parent")


def test_bytes_never_go_under_the_etag_of_another_file(tmp_path):
    (tmp_path / "a").write_bytes(b"first")
    store = make_store(tmp_path)
    before = store.get("a")
    (tmp_path / "b").write_bytes(b"other")
    (tmp_path / "b").replace(tmp_path / "a")
    after = store.get("a")
    assert (before.read(0, 5), after.read(0, 5)) == (b"first", b"other")
    assert before.etag != after.etag
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    del before, after
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 2


def test_what_is_no_file_is_not_served(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert [make_store(tmp_path).get(name) for name in ("pipe", "folder", "none")] == [None] * 3
