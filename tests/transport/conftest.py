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


@pytest.fixture(params=["http", "s3", "s3-again"])
def remote(request, server):
    """A URL-maker and an Access, for each way of reading from the range server."""
    if request.param == "http":
        return server.url_for, Access(retry=QUICK)
    options = {**server.storage_options, "anon": False, "key": "key", "secret": "secret"}
    access = Access(options, retry=QUICK)
    if request.param == "s3-again":  # after the first answer of a bucket, requests are geostream's own
        run(get_range(server.s3_url(KEY), access, 0, 1))
        server.reset()
    return server.s3_url, access


@pytest.fixture
def same_counts(server, remote):
    """Check that geostream counted exactly what the server did, over the whole test."""
    server.reset()
    with stats.measure() as measured:
        yield
    served = server.counters
    assert (measured.requests, measured.bytes) == (served.requests, served.bytes_sent)
