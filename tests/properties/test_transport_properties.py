"""Properties of what is decided without I/O: Content-Range, judged answers, waits."""

from __future__ import annotations

import calendar
import math
import time
from email.utils import formatdate
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from geostream.transport.answer import Ask, AttemptFailed, Head, empty_body, fulfil, judge, parse_content_range
from geostream.transport.retry import RetryPolicy, parse_retry_after
from geostream.transport.s3_direct import Direct, Keys

ranges = st.tuples(st.integers(0, 400), st.integers(1, 200)).map(lambda pair: (pair[0], sum(pair)))


@settings(deadline=None)
@given(
    st.integers(0, 2**62), st.integers(1, 2**40), st.integers(0, 2**40) | st.none(), st.sampled_from(["bytes", "Bytes"])
)
def test_content_range_round_trip(start, length, more, unit):
    total = None if more is None else start + length + more
    said = parse_content_range(f"{unit} {start}-{start + length - 1}/{'*' if total is None else total}")
    assert said is not None
    assert (said.start, said.stop, said.total) == (start, start + length, total)


@settings(deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"bytes [0-9*-]{1,9}/[0-9*]{1,9}", fullmatch=True))
def test_content_range_is_parsed_consistently_or_not_at_all(text):
    said = parse_content_range(text)
    if said is not None and said.start is not None:
        assert 0 <= said.start < said.stop
        assert said.total is None or said.stop <= said.total


@settings(deadline=None)
@given(ranges, st.integers(0, 500), st.sampled_from(["partial", "whole", "whole-unsized"]))
def test_right_answers_give_the_slice(asked, size, kind):
    ask, content = Ask("x", *asked), bytes(i % 251 for i in range(size))
    part = content[ask.start : ask.stop]
    if kind == "partial":
        if not part:
            head = Head(416, f"bytes */{size}")
            if size == 0 and ask.start == 0:
                assert empty_body(ask, head).total == 0
            else:
                with pytest.raises(AttemptFailed, match="past the end"):
                    empty_body(ask, head)
            return
        head = Head(206, f"bytes {ask.start}-{ask.start + len(part) - 1}/{size}", len(part))
        body = fulfil(ask, judge(ask, head), part)
    else:
        head = Head(200, None, None if kind == "whole-unsized" else size)
        if ask.start >= size and not (size == 0 and ask.start == 0):
            with pytest.raises(AttemptFailed, match="past the end"):
                fulfil(ask, judge(ask, head), content)
            return
        body = fulfil(ask, judge(ask, head), content)
    assert (body.bytes, body.total) == (part, size)


@settings(deadline=None)
@given(ranges, ranges, st.integers(1, 700) | st.none(), st.integers(0, 300), st.integers(0, 300) | st.none())
def test_nothing_but_the_range_asked_for_is_believed(asked, answered, total, length, declared):
    ask = Ask("x", *asked)
    head = Head(206, f"bytes {answered[0]}-{answered[1] - 1}/{'*' if total is None else total}", declared)
    try:
        body = fulfil(ask, judge(ask, head), bytes(length))
    except AttemptFailed:
        return
    assert ask.start == answered[0]
    assert ask.start + len(body.bytes) == (ask.stop if total is None else min(ask.stop, total))


@settings(deadline=None)
@given(
    st.integers(1, 10_000),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e9) | st.none(),
)
def test_waits_stay_within_their_bounds(attempt, base, cap, draw, asked):
    delay = RetryPolicy(base=base, cap=cap).delay(attempt, asked, draw)
    assert 0 <= delay <= cap
    if asked is None:
        assert delay <= base * 2.0 ** min(attempt - 1, 60)
    else:
        assert delay >= min(cap, asked)


@settings(deadline=None)
@given(
    key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
    token=st.none() | st.just("token/with+signs="),
    etag=st.none() | st.just('"0123"'),
    extra=st.sampled_from([{}, {"x-amz-request-payer": "requester"}]),
    base=st.sampled_from(["https://bucket.s3.amazonaws.com", "http://127.0.0.1:9000/bucket", "https://host:443/a%20b"]),
)
def test_signatures_are_botocores(key, token, etag, extra, base):
    words = {"range": "bytes=0-9"} | ({} if etag is None else {"if-match": etag})
    path = quote(key, safe="/~")
    theirs = AWSRequest("GET", f"{base}/{path}", {**extra, **words})
    S3SigV4Auth(Credentials("access", "secret", token), "s3", "eu-west-1").add_auth(theirs)
    sent = theirs.headers
    direct = Direct.learn(f"{base}/{path}", dict(sent.items()), key)
    assert direct is not None
    now = calendar.timegm(time.strptime(sent["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
    url, ours = direct.request(key, words, Keys("access", "secret", token), now)
    assert url.raw_path == urlsplit(f"{base}/{path}").path
    assert ours == {name.lower(): value for name, value in sent.items()}


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_retry_after_in_both_forms(seconds):
    now = 1_700_000_000.0
    assert parse_retry_after(f" {seconds} ") == seconds
    assert parse_retry_after(formatdate(now + seconds, usegmt=True), now) == seconds
    assert parse_retry_after(formatdate(now - seconds, usegmt=True), now) == 0


@settings(deadline=None)
@given(st.text(max_size=30))
def test_retry_after_of_any_text(text):
    seconds = parse_retry_after(text)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))
