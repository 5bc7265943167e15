"""What messages and errors may hold."""

import pickle

import pytest

import geostream as gs
from geostream.errors import TruncatedError, redact


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host/a.tif?sig=1#x", "https://host/a.tif"),
        ("s3://KEY:SEC/RET@bucket/a.tif", "s3://bucket/a.tif"),
        ("s3://KEY:s3cr3t@bucket/a@b.tif", "s3://bucket/a@b.tif"),
        ("https://host:8080/tiles@v1/a.tif", "https://host:8080/tiles@v1/a.tif"),
        ("https://host/tiles@v1/a.tif", "https://host/tiles@v1/a.tif"),
        ("zip://a.tif?x=1::https://u:p@host/b.zip?token=1", "zip://a.tif::https://host/b.zip"),
        ("/data/a b.tif", "/data/a b.tif"),
    ],
)
def test_redacted(url, shown):
    assert redact(url) == shown


@pytest.mark.parametrize(
    "kind",
    [gs.HeaderError, gs.ReadError, gs.NotFoundError, gs.DecodeError, gs.QueryError, gs.ConfigError, TruncatedError],
)
def test_errors_travel_between_processes(kind):
    error = kind("it says what to do", url="https://user:secret@host/a.tif?x", attempts=3, status=503)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.url, again.attempts, again.status) == (str(error), "https://host/a.tif", 3, 503)
    assert str(kind("rebuilt from its message alone")) == "rebuilt from its message alone"
