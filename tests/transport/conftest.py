"""Objects, servers that serve them, and a policy that does not make tests wait."""

from __future__ import annotations

import pytest

from geostream.accounting import stats
from geostream.testing import RangeServer
from geostream.transport import Access, RetryPolicy, get_range, run

KEY = "dir/some file.bin"
DATA = bytes((i * 7 + i // 256) % 256 for i in range(300_000))
QUICK = RetryPolicy(attempts=4, base=0.001, cap=0.01, deadline=20, attempt_timeout=10)


@pytest.fixture
def data():
    return DATA


@pytest.fixture
def quick():
    return QUICK


@pytest.fixture
def server():
    with RangeServer({KEY: DATA, "empty.bin": b""}) as running:
        yield running


@pytest.fixture(params=["http", "s3", "s3-again", "http-obstore", "s3-obstore"])
def remote(request, server):
    """A URL-maker and an Access, for each way of reading from the range server."""
    protocol, _, way = request.param.partition("-")
    transport = "obstore" if way == "obstore" else "fsspec"
    options = {**server.storage_options, "anon": False, "key": "key", "secret": "secret"}
    access = Access(options if protocol == "s3" else None, retry=QUICK, transport=transport)
    url_for = server.s3_url if protocol == "s3" else server.url_for
    if way:  # after the first answer of a bucket or host, requests are geostream's own, or obstore's
        run(get_range(url_for(KEY), access, 0, 1))
        server.reset()
    return url_for, access


@pytest.fixture
def obstore(request):
    """Whether this test reads through obstore."""
    return request.node.callspec.params["remote"].endswith("obstore")


@pytest.fixture
def same_counts(server, remote):
    """Check that geostream counted exactly what the server did, over the whole test."""
    server.reset()
    with stats.measure() as measured:
        yield
    served = server.counters
    assert (measured.requests, measured.bytes) == (served.requests, served.bytes_sent)
