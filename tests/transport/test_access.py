"""URLs as geostream writes them, and ways of access that can be compared, hashed, copied and shown."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from pathlib import Path

import fsspec
import pytest

import geostream
from geostream.errors import ConfigError
from geostream.transport import Access, RetryPolicy, normalize_url


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/vsis3/bucket/a/b.tif", "s3://bucket/a/b.tif"),
        ("/vsigs/bucket/b.tif", "gs://bucket/b.tif"),
        ("/vsiaz/container/b.tif", "az://container/b.tif"),
        ("/vsicurl/https://host/b.tif?x=1", "https://host/b.tif?x=1"),
        ("/vsicurl?max_retry=3&url=http%3A%2F%2Fhost%2Fb.tif", "http://host/b.tif"),
        ("/vsicurl?url=https://host/b.tif", "https://host/b.tif"),
        ("file:/data/a.tif", "/data/a.tif"),
        ("/vsizip//vsis3/bucket/x.zip/a/b.tif", "zip://a/b.tif::s3://bucket/x.zip"),
        ("/vsizip/vsicurl/https://host/x.zip/b.tif", "zip://b.tif::https://host/x.zip"),
        ("/vsizip/{/data/odd}/b.tif", "zip://b.tif::/data/odd"),
        ("/vsizip//data/x.zip/b.tif", "zip://b.tif::/data/x.zip"),
        ("s3://bucket/a b.tif", "s3://bucket/a b.tif"),
        ("memory://a.tif", "memory://a.tif"),
        ("file:///data/a.tif", "/data/a.tif"),
        ("file://localhost/data/a.tif", "/data/a.tif"),
        ("/data/../data/a.tif", "/data/a.tif"),
        (Path("/data/a.tif"), "/data/a.tif"),
        ("a.tif", str(Path.cwd() / "a.tif")),
        ("~/a.tif", str(Path.home() / "a.tif")),
        ("zip://a.tif::x.zip", f"zip://a.tif::{Path.cwd() / 'x.zip'}"),
        ("zip://a.tif::file:///x.zip", "zip://a.tif::/x.zip"),
        ("simplecache::s3://bucket/a.tif", "simplecache::s3://bucket/a.tif"),
    ],
)
def test_urls(given, expected):
    assert normalize_url(given) == expected
    assert normalize_url(normalize_url(given)) == expected


def test_paths_of_the_users_own_filesystem_are_left_alone():
    assert normalize_url("bucket/a.tif", Access(fs=fsspec.filesystem("memory"))) == "bucket/a.tif"


@pytest.mark.parametrize(
    "given",
    [
        *("/vsimem/a.tif", "/vsitar/a.tar/b.tif", "/vsizip/a.7z", "/vsimem", "/vsicurl", "/vsicurl?max_retry=1"),
        *("/vsis3?url=s3://bucket/a.tif", "/vsiwhat/a.tif", b"/a.tif", 5, None),
        *("http://[bad/x.tif", "http://user:hunter2@[bad/x.tif", "https:///x.tif", "http://host:port/x.tif"),
    ],
)
def test_what_is_no_url(given):
    with pytest.raises(ConfigError) as caught:
        normalize_url(given)
    assert "hunter2" not in str(caught.value)


def test_arguments_of_the_wrong_kind_are_named():
    with pytest.raises(ConfigError, match=r"storage_options= .*type str") as caught:
        Access("hunter2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"fs= .*type str"):
        Access(fs="s3")


def test_equal_options_are_equal_and_hash_alike():
    one = Access({"key": "a", "client_kwargs": {"region_name": "x", "list": [1, 2]}})
    two = Access({"client_kwargs": {"list": [1, 2], "region_name": "x"}, "key": "a"})
    assert one == two
    assert hash(one) == hash(two)
    assert {one: 1}[two] == 1
    for other in (Access({"key": "b"}), Access(), Access(one.storage_options, retry=RetryPolicy(attempts=1))):
        assert one != other
    fs = fsspec.filesystem("memory")
    assert Access(fs=fs) == Access(fs=fs) != Access()
    odd = Access({"client_kwargs": {"auth": object(), "set": {1, 2}, "bytes": bytearray(b"x")}})
    assert odd == odd  # noqa: PLR0124 - what cannot hash is itself only
    assert hash(odd) == hash(odd)


def test_copies_are_equal_and_cached_hashes_stay_behind():
    one = Access({"key": "a", "client_kwargs": {"region_name": "x"}})
    hash(one)
    assert b"_hash" not in pickle.dumps(one)
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
        assert other == one
        assert hash(other) == hash(one)


def test_secrets_are_not_shown():
    assert repr(Access({"secret": "hunter2", "key": "a"})) == "Access(storage_options=[key, secret])"


def test_options_of_a_link():
    access = Access({"anon": True, "s3": {"key": "a"}, "zip": {"mode": "r"}})
    assert access.options_for("s3") == {"anon": True, "key": "a"}
    assert access.options_for("http") == {"anon": True}


@pytest.mark.parametrize(
    ("fs", "url", "words"),
    [
        ("s3", "http://host/a.tif", "fs= is s3, the URL is http"),
        ("http", "s3://bucket/a.tif", "fs= is http, the URL is s3"),
        ("s3", "file:///a.tif", "fs= is s3, the URL is file"),
        ("s3", __file__, "fs= is s3, the URL is a local path"),
    ],
)
def test_a_filesystem_of_another_protocol(fs, url, words):
    with pytest.raises(ConfigError, match=words):
        normalize_url(url, Access(fs=fsspec.filesystem(fs)))


@pytest.mark.parametrize(
    ("fs", "url"), [("s3", "s3a://bucket/a.tif"), ("http", "https://host/a.tif"), ("s3", "bucket/a.tif")]
)
def test_a_filesystem_of_the_protocol(fs, url):
    assert normalize_url(url, Access(fs=fsspec.filesystem(fs))) == url


@pytest.mark.parametrize("url", ["S3://Bucket/A.tif", "HTTP://Host/A.tif"])
def test_protocols_in_capitals(url):
    protocol, _, rest = url.partition("://")
    assert normalize_url(url, Access()) == f"{protocol.lower()}://{rest}"


@pytest.mark.parametrize("options", [{"config_kwargs": 3}, {"s3": {"client_kwargs": "eu"}}])
def test_arguments_of_clients_are_dictionaries(options):
    with pytest.raises(ConfigError, match=r"_kwargs'.*pass a dictionary"):
        Access(options)


@pytest.mark.parametrize(("url", "words"), [("foo://b/a.tif", "foo://"), ("hdfs2://b/", "hdfs2://")])
def test_unknown_protocols(url, words):
    with pytest.raises(ConfigError, match=f"no filesystem is known for {words}"):
        geostream.RasterDataset(url)


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_a_protocol_whose_package_is_missing():
    with pytest.raises(ConfigError, match=r"gs:// needs a package: .*gcsfs"):
        geostream.RasterDataset("gs://bucket/a.tif")
