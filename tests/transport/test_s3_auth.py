"""S3 with authentication switched on: a private bucket, signed requests, wrong keys, denied access, listings."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from dataclasses import replace

import boto3
import pytest
from moto.server import ThreadedMotoServer

from geostream.accounting import stats
from geostream.errors import NotFoundError, ReadError
from geostream.transport import Access, FileEntry, get_range, list_files, run

DATA = bytes(range(256)) * 64
ODD = "odd &+=%20 ~é'(1).tif"


def user(iam, name, actions):
    iam.create_user(UserName=name)
    statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


@pytest.fixture(scope="module")
def store():
    """Endpoint of a store with authentication on, and the keys of a user who may read and one who may not."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    words = {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
    }
    iam, s3 = boto3.client("iam", **words), boto3.client("s3", **words)
    reader = user(iam, "reader", ["s3:GetObject", "s3:ListBucket"])
    stranger = user(iam, "stranger", ["sqs:*"])
    s3.create_bucket(Bucket="private")
    for name in ("a.tif", "sub/b.tif", "sub/b.txt"):
        s3.put_object(Bucket="private", Key=f"scenes/{name}", Body=DATA)
    s3.put_object(Bucket="private", Key="empty.tif", Body=b"")
    s3.put_object(Bucket="private", Key=f"scenes/{ODD}", Body=DATA)
    switch = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST"
    )
    urllib.request.urlopen(switch).read()
    yield endpoint, reader, stranger
    off = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", b"inf", {"Content-Type": "text/plain"}, method="POST"
    )
    urllib.request.urlopen(off).read()
    server.stop()


@pytest.fixture(params=["fsspec", "obstore"])
def access_of(store, quick, monkeypatch, request):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_EC2_METADATA_DISABLED"]:
        monkeypatch.delenv(name)

    def make(keys=None, **options):
        words = {"endpoint_url": store[0], "client_kwargs": {"region_name": "us-east-1"}, **options}
        if keys:
            words |= {"key": keys[0], "secret": keys[1]}
        return Access(words, retry=quick, transport=request.param)

    return make


def first_answer(access):
    """Have a bucket's first request behind us, which is botocore's; whether it may be read or not."""
    with contextlib.suppress(ReadError):
        run(get_range("s3://private/scenes/a.tif", access, 0, 1))


@pytest.mark.parametrize("key", ["scenes/a.tif", f"scenes/{ODD}"])
def test_further_requests_are_signed_here(store, access_of, key, monkeypatch):
    access = access_of(store[1])
    bodies = [run(get_range(f"s3://private/{key}", access, i, i + 10)) for i in range(3)]
    etag = bodies[0].etag
    assert [body.bytes for body in bodies] == [DATA[i : i + 10] for i in range(3)]
    with monkeypatch.context() as patch:  # which botocore has no part in
        patch.setattr("aiobotocore.client.AioBaseClient._make_api_call", None)
        assert run(get_range(f"s3://private/{key}", access, 5, 10, etag=etag)).bytes == DATA[5:10]
        with pytest.raises(NotFoundError, match="NoSuchKey"):
            run(get_range("s3://private/none", access, 5, 10))


def test_signed_requests_read_a_private_bucket(store, access_of):
    first_answer(access_of(store[1]))
    with stats.measure() as measured:
        body = run(get_range("s3://private/scenes/a.tif", access_of(store[1]), 100, 200))
    assert (body.bytes, body.total, body.status) == (DATA[100:200], len(DATA), 206)
    assert (measured.requests, measured.bytes) == (1, 100)
    again = run(get_range("s3://private/scenes/a.tif", access_of(store[1]), 0, 10, etag=body.etag))
    assert again.etag == body.etag
    with pytest.raises(ReadError, match="changed"):
        run(get_range("s3://private/scenes/a.tif", access_of(store[1]), 0, 10, etag='"other"'))


def test_who_may_not_read_is_told_what_to_check(store, access_of):
    reader, stranger = store[1:]
    accesses = {
        "AccessDenied": access_of(stranger),
        "SignatureDoesNotMatch": access_of((reader[0], "wrong")),
        "InvalidAccessKeyId": access_of(("AKIAWRONG", "wrong")),
        "403": access_of(anon=True),
    }
    for code, access in accesses.items():
        asks = [get_range("s3://private/scenes/a.tif", access, 0, 10)]
        if code != "403":  # moto fails at unsigned listings
            asks.append(list_files("s3://private/scenes", access))
        for ask in asks:
            with stats.measure() as measured, pytest.raises(ReadError, match="credentials") as caught:
                run(ask)
            assert code in str(caught.value)
            assert not isinstance(caught.value, NotFoundError)
            assert caught.value.status == 403
            assert measured.retries == 0
            assert reader[1] not in str(caught.value)


def test_a_profile_signs_and_the_requester_pays(store, access_of, tmp_path, monkeypatch):
    key, secret = store[1]
    file = tmp_path / "credentials"
    file.write_text(f"[reader]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    access = access_of(profile="reader", requester_pays=True)
    for start in range(3):
        assert run(get_range("s3://private/scenes/a.tif", access, start, start + 10)).bytes == DATA[start : start + 10]
    with pytest.raises(ReadError, match="other"):
        run(get_range("s3://private/scenes/a.tif", access_of(profile="other"), 0, 10))


def test_no_keys_at_all(access_of, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ReadError, match="anon=True"):
        run(get_range("s3://private/scenes/a.tif", access_of(), 0, 10))


def test_what_is_missing(store, access_of):
    access = access_of(store[1])
    first_answer(access)
    for url in ("s3://private/scenes/none.tif", "s3://nobucket/a.tif"):
        with pytest.raises(NotFoundError):
            run(get_range(url, access, 0, 10))
    with pytest.raises(ReadError, match="bucket"):
        run(get_range("s3://private", access, 0, 10))
    body = run(get_range("s3://private/empty.tif", access, 0, 16384))
    assert (body.bytes, body.total) == (b"", 0)


def test_listings(store, access_of):
    access = access_of(store[1])
    with stats.measure() as measured:
        found = run(list_files("s3://private/scenes/", access))
    etag = found[0].etag
    names = ["a.tif", ODD, "sub/b.tif", "sub/b.txt"]
    assert all(entry.modified is not None for entry in found)
    assert [replace(entry, modified=None) for entry in found] == [
        FileEntry(f"s3://private/scenes/{name}", len(DATA), etag) for name in names
    ]
    assert measured.requests == 1
    globbed = {
        "s3://private/scenes/*.tif": ["scenes/a.tif", f"scenes/{ODD}"],
        "s3://private/**/*.tif": ["empty.tif", "scenes/a.tif", f"scenes/{ODD}", "scenes/sub/b.tif"],
        "s3://private/scenes/**/*.txt": ["scenes/sub/b.txt"],
        "s3://private/scenes/sub": ["scenes/sub/b.tif", "scenes/sub/b.txt"],
        "s3://private/scenes/a.tif": ["scenes/a.tif"],
        "s3://private/none/*.tif": [],
        "s3://private/none/": [],
    }
    for pattern in ("s3://private/scenes/*.tif", "s3://private/scenes/a*", "s3://private/**/*.tif"):
        with stats.measure() as measured:
            assert run(list_files(pattern, access))
        assert measured.requests == 1
    for pattern, names in globbed.items():
        assert [entry.url for entry in run(list_files(pattern, access))] == [f"s3://private/{name}" for name in names]
    assert run(get_range(found[1].url, access, 0, 4)).etag == found[1].etag
