"""Answers no server of the tests gives, judged without one."""

from __future__ import annotations

import pytest

from geostream.transport.answer import (
    Again,
    Ask,
    Final,
    Head,
    Missing,
    fulfil,
    judge,
    parse_content_range,
    redact_text,
    refuse_status,
)

ASK = Ask("x", 10, 20, '"one"')


def test_headers_that_are_sent():
    assert (ASK.range_header, ASK.if_match) == ("bytes=10-19", '"one"')
    assert Ask("x", 0, 1, 'W/"one"').if_match is None
    assert Ask("x", 0, 1).if_match is None


@pytest.mark.parametrize(
    ("head", "kind", "words"),
    [
        (Head(206), Final, "Content-Range None"),
        (Head(206, "bytes */100"), Final, "Content-Range"),
        (Head(206, "items 10-19/100"), Final, "Content-Range"),
        (Head(206, "bytes 10-19/15"), Final, "Content-Range"),
        (Head(206, "bytes 9-19/100"), Final, "Content-Range"),
        (Head(206, "bytes 10-20/100"), Final, "Content-Range"),
        (Head(206, "bytes 10-14/100"), Again, "stops before"),
        (Head(206, "bytes 10-14/*"), Again, "stops before"),
        (Head(206, "bytes 10-19/100", 9), Again, "Content-Length 9"),
        (Head(206, "bytes 10-19/100", 10, '"two"'), Final, "changed"),
        (Head(206, "bytes 10-19/100", 10, '"one"', "gzip"), Final, "gzip"),
        (Head(200, None, 100, '"two"'), Final, "changed"),
        (Head(200, None, 9 * 1024**2), Final, "ignores range"),
        (Head(304), Final, "304"),
        (Head(308), Final, "moved"),
        (Head(418), Final, "418"),
        (Head(503), Again, "503"),
        (Head(404), Missing, "404"),
    ],
)
def test_answers_that_are_refused(head, kind, words):
    with pytest.raises(kind) as caught:
        judge(ASK, head)
    assert type(caught.value) is kind
    assert words in f"{caught.value.why} {caught.value.advice}"


def test_weak_etags_are_compared_as_they_are():
    head = Head(206, "bytes 10-19/100", 10, 'W/"one"')
    assert fulfil(ASK, judge(Ask("x", 10, 20, 'W/"one"'), head), bytes(10)).etag == 'W/"one"'
    with pytest.raises(Final, match="changed"):
        judge(ASK, head)


def test_an_unsized_answer_is_believed_where_it_is_whole():
    assert fulfil(ASK, judge(ASK, Head(206, "bytes 10-19/*")), bytes(10)).total is None
    with pytest.raises(Final, match="longer"):
        fulfil(ASK, judge(ASK, Head(206, "bytes 10-19/*")), bytes(11))
    with pytest.raises(Again, match="broke off after 3 of 10"):
        fulfil(ASK, judge(ASK, Head(206, "bytes 10-19/*")), bytes(3))


def test_retry_after_travels_with_a_busy_answer():
    assert refuse_status(429, retry_after="7").retry_after == 7
    assert refuse_status(503, retry_after="soon").retry_after is None


def test_content_ranges_too_long_to_be_true():
    assert parse_content_range("bytes 0-99999999999999999999/1") is None


def test_foreign_messages_are_shortened_and_redacted():
    text = redact_text(f"at https://u:p@h/a?token=secret\n{'x' * 1000}")
    assert "secret" not in text
    assert "u:p" not in text
    assert "\n" not in text
    assert len(text) == 300
