"""Folders on web servers that cannot be listed: what went wrong is said, and is no absence of files."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import geostream as gs
from geostream.errors import NotFoundError, ReadError
from geostream.scan.listing import list_scenes
from geostream.testing.rasters import write_cog
from geostream.transport import Access, RetryPolicy

QUICK = RetryPolicy(attempts=2, base=0.01)


@pytest.fixture
def serve():
    """Serve one answer to every request: (status, body) -> URL, and the requests so far."""
    servers = []

    def start(status, body):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("path", ["folder/", "folder/*.tif"])
def test_a_refused_connection_is_no_empty_folder(path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(ReadError, match=r"after 2 attempts: .*onnect") as caught:
            list_scenes(f"http://127.0.0.1:{held.getsockname()[1]}/{path}", "*", Access(retry=QUICK))
    assert not isinstance(caught.value, NotFoundError)
    assert caught.value.attempts == 2


@pytest.mark.parametrize(("status", "attempts"), [(403, 1), (503, 2)])
def test_a_folder_that_is_refused_is_no_empty_one(serve, status, attempts):
    url, _ = serve(status, b"no")
    with pytest.raises(ReadError) as caught:
        list_scenes(url, "*", Access(retry=QUICK))
    assert not isinstance(caught.value, NotFoundError)
    assert (caught.value.status, caught.value.attempts) == (status, attempts)


@pytest.mark.parametrize(("status", "body"), [(200, b"welcome"), (404, b"")])
def test_a_server_without_listings(serve, status, body):
    url, _ = serve(status, body)
    with pytest.raises(NotFoundError, match="shows none, pass the files' URLs or an index"):
        gs.RasterDataset(url)


@pytest.mark.parametrize(("paths", "words"), [([3], "holds 3, a int"), ([None], "NoneType")])
def test_paths_that_are_none(paths, words):
    with pytest.raises(gs.ConfigError, match=words):
        gs.RasterDataset(paths)


def test_no_paths_at_all():
    with pytest.raises(NotFoundError, match="no paths were given"):
        gs.RasterDataset([])


def test_a_local_file_that_was_cut_short_has_no_etag_to_speak_of(tmp_path):
    path = write_cog(tmp_path / "a.tif", shape=(256, 256), count=1, blocksize=64)
    dataset = gs.RasterDataset(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ReadError, match="its size or time of modification differs") as caught:
        _ = dataset[dataset.bounds]
    assert "ETag" not in str(caught.value)
