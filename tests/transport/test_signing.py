"""``sign=``: URLs with tokens that expire, from a server that asks for them."""

from __future__ import annotations

import functools
import http.server
import pickle
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

import geostream as gs
from geostream.errors import ConfigError, ReadError
from geostream.testing.rasters import write_cog
from geostream.transport import Access, RetryPolicy, get_range, run, scan_session, signing

SECRET = "sv=2024&sig=TOPSECRET"
QUICK = RetryPolicy(attempts=2, base=0.001, cap=0.01, deadline=20, attempt_timeout=10)
DATA = bytes(range(256)) * 40


class TokenServer(http.server.ThreadingHTTPServer):
    """Serves ranges to those whose token is the current one: others get 403."""

    daemon_threads = True

    def __init__(self, objects):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects, self.token, self.asked, self.refused = objects, 0, [], 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def sign(self, url):
        """What Planetary Computer's `sign` does: the URL with a token of the moment."""
        self.asked.append(url)
        return f"{url}?{SECRET}{self.token}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = urlsplit(self.path)
        data = self.server.objects.get(parts.path.lstrip("/"))
        given = parse_qs(parts.query).get("sig", [""])[0]
        if given != f"TOPSECRET{self.server.token}":
            self.server.refused += 1
            return self._answer(403, f"denied: {self.path}".encode())
        if data is None:
            return self._answer(404, b"")
        start, stop = self.headers["Range"].removeprefix("bytes=").split("-")
        stop = min(int(stop) + 1, len(data))
        return self._answer(206, data[int(start) : stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"1"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    write_cog(tmp_path / "a.tif", shape=(600, 600), dtype="uint16")
    with TokenServer({"a.bin": DATA, "a.tif": (tmp_path / "a.tif").read_bytes()}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(params=["fsspec", "auto"])
def access(request, server):
    return Access(transport=request.param, sign=server.sign, retry=QUICK)


def get(server, access, start=100, name="a.bin"):
    return run(get_range(f"{server.url}/{name}", access, start, start + 50)).bytes


def test_urls_are_signed_once_for_many_requests(server, access):
    assert [get(server, access, start) for start in (0, 100, 700)] == [DATA[s : s + 50] for s in (0, 100, 700)]
    assert server.asked == [f"{server.url}/a.bin"]


def test_urls_are_signed_again_when_their_time_has_passed(server, access, monkeypatch):
    get(server, access)
    monkeypatch.setattr(signing, "KEPT_SECONDS", 0.0)
    server.token += 1
    assert get(server, access) == DATA[100:150]
    assert (len(server.asked), server.refused) == (2, 0)


def test_a_token_that_expires_early_is_renewed_once(server, access):
    get(server, access)
    server.token += 1
    assert get(server, access) == DATA[100:150]
    assert (len(server.asked), server.refused) == (2, 1)


def test_a_scan_signs_too(server):
    access = Access(sign=server.sign, retry=QUICK)
    with scan_session() as session:
        assert session.run(get_range(f"{server.url}/a.bin", access, 5, 9)).bytes == DATA[5:9]


def test_a_refusal_names_no_token(server, access):
    wrong = Access(transport=access.transport, sign=lambda url: f"{url}?{SECRET}-wrong", retry=QUICK)
    with pytest.raises(ReadError, match="403") as caught:
        get(server, wrong)
    assert f"{server.url}/a.bin" in str(caught.value)
    assert "TOPSECRET" not in f"{caught.value!r} {caught.value} {vars(caught.value)} {caught.value.__context__!r}"
    assert server.refused == 2


def test_a_missing_object_is_not_signed_again(server, access):
    with pytest.raises(gs.NotFoundError):
        get(server, access, name="b.bin")
    assert len(server.asked) == 1


def fail(url):
    raise ConnectionError(f"no token from https://tokens/?key=TOPSECRET for {url}")


@pytest.mark.parametrize(
    ("sign", "kind", "words"),
    [(fail, ReadError, "sign= failed: ConnectionError"), (lambda _: None, ConfigError, "returned a NoneType")],
)
def test_a_function_that_does_not_sign(server, sign, kind, words):
    with pytest.raises(kind, match=words) as caught:
        get(server, Access(sign=sign))
    assert "TOPSECRET" not in str(caught.value)


def test_what_is_no_function():
    with pytest.raises(ConfigError, match="a function that takes a URL"):
        gs.read("https://host/a.tif", sign="token")


def add_token(url, token):
    return f"{url}?{token}"


def test_datasets_and_readers_sign_and_show_nothing(server):
    url = f"{server.url}/a.tif"
    assert gs.info(url, sign=server.sign)["bands"] == 3
    assert gs.read(url, sign=server.sign, window=(0, 0, 5, 5)).data.shape == (3, 5, 5)
    dataset = gs.RasterDataset(url, sign=server.sign)
    assert dataset[:, :]["image"].shape == (3, 600, 600)
    assert dataset.files == [url]
    shown = f"{dataset} {dataset!r} {vars(dataset)} {dataset._scenes}"
    assert "TOPSECRET" not in shown


def test_signed_access_compares_and_pickles():
    first, second = Access(sign=add_token), Access(sign=functools.partial(add_token, token="x"))
    assert first == Access(sign=add_token)
    assert first != second
    assert first != Access()
    assert pickle.loads(pickle.dumps(first)) == first
    assert "token" not in repr(second)
