"""One attempt at one range of an S3 object, through the client inside an s3fs filesystem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from geostream.transport.adapters import CONNECT_ERRORS, disable_resend, receive, why
from geostream.transport.answer import (
    Again,
    Ask,
    AttemptFailed,
    Body,
    Final,
    Head,
    Missing,
    empty_body,
    endless_redirects,
    fulfil,
    judge,
    refuse_status,
)
from geostream.transport.counting import count_session, drain, metered, set_meter
from geostream.transport.obstore_adapters import s3_relay
from geostream.transport.obstores import Relay, is_plain_key, usable
from geostream.transport.retry import parse_retry_after
from geostream.transport.s3_direct import Direct, Keys

if TYPE_CHECKING:
    from geostream.transport.counting import Meter

__all__ = ["S3Adapter", "s3_options"]

_UNSATISFIABLE = 416
_REDIRECTS = range(300, 400)
_MOST_REDIRECTS = 3
"""Of one attempt: an object's, its bucket's, and one more. botocore would go on until Python's stack is full."""
_NO_LIMIT = 86400
_BOTOCORE_KNOWS_MORE = frozenset({301, 302, 303, 307, 308, 400})  # other regions, expired tokens
_BUSY_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling"})
_KEY_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"})
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchVersion"})


def s3_options(options: dict[str, Any], connections: int) -> dict[str, Any]:
    """Return s3fs options with botocore's own retries off and as many connections as geostream uses."""
    config = {
        "max_pool_connections": connections,
        "parameter_validation": False,  # a tenth of a request's work, on what geostream itself wrote
        "response_checksum_validation": "when_required",  # a range has none
        "user_agent": "geostream",  # botocore's own is put together anew for each request
        "connect_timeout": _NO_LIMIT,  # geostream's own limit holds for every protocol
        "read_timeout": _NO_LIMIT,
        **dict(options.get("config_kwargs") or {}),
    }
    config["retries"] = {"total_max_attempts": 1, "mode": "standard"}
    return {**options, "config_kwargs": config, "use_listings_cache": False}


@dataclass(frozen=True, slots=True)
class _Place:
    """An object, and the client that reaches its bucket."""

    bucket: str
    key: str
    version: str | None
    client: Any


class S3Adapter:
    """s3:// through s3fs's client: status, Content-Range, ETag and If-Match all checked.

    The client is called directly, so that s3fs's own retries are out of the way. Each request the client sends is
    counted where it sends it, a second one after a redirect to another region included. The first request to a bucket
    is botocore's; the rest follow its pattern (`Direct`), and where one of them meets a redirect or a 400, botocore
    asks once more, because it knows what to do about them. Where the filesystem is the user's own, botocore makes all
    requests, and retries as the user configured it: counted, but not paced by geostream.
    """

    def __init__(self, fs: Any, *, owned: bool, obstore: bool = False) -> None:
        self._fs = fs
        self._owned = owned
        self._obstore = obstore
        self._client: Any = None
        self._direct: dict[tuple[str, int], Direct] = {}
        self._relays: dict[tuple[str, int], tuple[Keys | None, Relay | None]] = {}
        # A session of the user's making may sign, or listen, in ways of its own.
        self._own_session = fs.session is None

    async def _open(self) -> Any:
        client = await self._fs.set_session()
        if client is not self._client:
            transport = http_session(client)
            traced = transport is not None and count_session(await transport._get_session(None))  # noqa: SLF001 - as below
            _count_requests(client, traced=traced)
            if self._owned:
                await _disable_inner_resend(client)
                _leave_dates_alone(client)
            self._client = client
        return client

    async def prepare(self) -> None:
        """Make the client, so that whatever is called on the filesystem next is counted, and sent once."""
        if self._owned:
            self._fs.retries = 1  # attempts, in s3fs's words
        await self._open()

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Send one GetObject."""
        set_meter(meter)
        try:
            await self._open()
            bucket, key, version = self._fs.split_path(ask.path)
            if "@" in bucket or (":" in bucket and "@" in key and not bucket.startswith("arn:")):
                raise Final(
                    "it holds credentials before the bucket's name",
                    advice="Pass key and secret in storage_options=, and the URL without them",
                )
            if not key:
                raise Final("it names a bucket, not an object", advice="Pass the URL of a file")
            client = await self._fs.get_s3(bucket)
            place = _Place(bucket, key, version, client)
            direct = self._direct.get((bucket, id(client))) if not version else None
            if direct is None:
                return await self._fetch_by_botocore(place, ask, meter)
            keys = await _keys(client) if direct.signed else None

            async def fetch_direct() -> Body:
                return await self._fetch_direct(direct, keys, place, ask, meter)

            relay = self._relay(place, direct, keys) if meter.crowded else None
            if relay is None:
                return await fetch_direct()
            return await relay.fetch(ask, key, meter, fetch_direct, lambda: self._fetch_by_botocore(place, ask, meter))
        except ClientError as error:
            return _refused(ask, error)
        except (BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError, ValueError) as error:
            raise s3_failure(error) from None

    async def _fetch_by_botocore(self, place: _Place, ask: Ask, meter: Meter) -> Body:
        words = {"Bucket": place.bucket, "Key": place.key, "Range": ask.range_header}
        if ask.if_match is not None:
            words["IfMatch"] = ask.if_match
        if place.version:
            words["VersionId"] = place.version
        call = place.client.get_object
        answer = await call(**self._fs._get_s3_method_kwargs(call, self._fs.req_kw, **words))  # noqa: SLF001
        if self._owned and not place.version:
            self._learn(place, meter)
        return await _receive(ask, answer, meter)

    def _learn(self, place: _Place, meter: Meter) -> None:
        """Note how the client asks this bucket for an object, where geostream may ask in its stead."""
        sent = meter.sent
        if sent is None or not self._own_session or http_session(place.client) is None:
            return
        direct = Direct.learn(sent.url, sent.headers, place.key)
        if direct is not None:
            self._direct[place.bucket, id(place.client)] = direct

    def _relay(self, place: _Place, direct: Direct, keys: Keys | None) -> Relay | None:
        """Return obstore's way to the bucket, made anew when the credentials have changed."""
        if not self._obstore or not is_plain_key(place.key) or not usable():
            return None
        where = (place.bucket, id(place.client))
        made_with, relay = self._relays.get(where, (None, None))
        if where not in self._relays or made_with != keys:
            relay = s3_relay(place.bucket, direct, keys)
            self._relays[where] = (keys, relay)
        return relay

    async def _fetch_direct(self, direct: Direct, keys: Keys | None, place: _Place, ask: Ask, meter: Meter) -> Body:
        words = {"range": ask.range_header}
        if ask.if_match is not None:
            words["if-match"] = ask.if_match
        url, headers = direct.request(place.key, words, keys)
        session = await http_session(place.client)._get_session(None)  # noqa: SLF001 - the client's own connections
        counted = count_session(session)
        meter.requests += not counted
        try:
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                return await receive(ask, response, meter)
        except CONNECT_ERRORS:
            meter.requests -= not counted  # no connection, so nothing was sent
            raise
        except AttemptFailed as failure:
            if failure.status not in _BOTOCORE_KNOWS_MORE:
                raise
            return await self._fetch_by_botocore(place, ask, meter)

    async def aclose(self) -> None:
        """Close the client, if geostream made it."""
        creator = getattr(self._fs, "_s3creator", None)
        if self._owned and creator is not None:
            await creator.__aexit__(None, None, None)


async def _keys(client: Any) -> Keys:
    now = await client._request_signer._credentials.get_frozen_credentials()  # noqa: SLF001 - nothing public has them
    return Keys(now.access_key, now.secret_key, now.token)


async def _receive(ask: Ask, answer: dict[str, Any], meter: Meter) -> Body:
    stream = answer["Body"]
    raw = getattr(stream, "raw_stream", None) or getattr(stream, "__wrapped__", None)
    before = meter.bytes
    received = 0
    try:
        promise = judge(ask, _head(answer))
        data = await (stream.read() if promise.length is not None else stream.read(promise.limit + 1))
        received = len(data)
        return fulfil(ask, promise, data)
    except AttemptFailed:
        if isinstance(raw, aiohttp.ClientResponse):
            await drain(raw)
        stream.close()
        raise
    finally:
        # What had arrived before a break is in the stream's own count only.
        meter.bytes = before + getattr(getattr(raw, "content", None), "total_bytes", received)


def _head(answer: dict[str, Any]) -> Head:
    facts = answer["ResponseMetadata"]
    headers = facts["HTTPHeaders"]
    length = headers.get("content-length")
    return Head(
        status=facts["HTTPStatusCode"],
        content_range=headers.get("content-range"),
        content_length=int(length) if length is not None and length.isdigit() else None,
        etag=headers.get("etag"),
        encoding=headers.get("content-encoding"),
    )


def _refused(ask: Ask, error: ClientError) -> Body:
    """Return the empty body that a 416 may mean; raise the failure that any other error answer means."""
    facts = error.response.get("ResponseMetadata", {})
    status = facts.get("HTTPStatusCode")
    if status == _UNSATISFIABLE:
        headers = facts.get("HTTPHeaders", {})
        return empty_body(ask, Head(status, headers.get("content-range"), None, headers.get("etag")))
    raise s3_failure(error) from None


def s3_failure(error: BaseException) -> AttemptFailed:
    """Return what an exception of the client means for a retry."""
    if isinstance(error, ClientError):
        return _answered(error)
    inner = error.kwargs.get("error") if isinstance(error, HTTPClientError) else error
    if isinstance(inner, aiohttp.TooManyRedirects):
        meter = metered()
        return endless_redirects(None, None if meter is None else meter.location)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Final(
            why(error), advice="Pass key and secret, or anon=True for a public bucket, in storage_options= (or use fs=)"
        )
    if isinstance(
        error,
        HTTPClientError
        | BotoConnectionError
        | IncompleteReadError
        | ResponseStreamingError
        | ResponseParserError
        | aiohttp.ClientError
        | OSError,
    ):
        return Again(why(error), advice="Check the endpoint's name and the network")
    return Final(why(error), advice="Check the URL and the storage options")


def _answered(error: ClientError) -> AttemptFailed:
    facts = error.response.get("ResponseMetadata", {})
    status = facts.get("HTTPStatusCode")
    code = str(error.response.get("Error", {}).get("Code", ""))
    headers = facts.get("HTTPHeaders", {})
    retry_after = headers.get("retry-after")
    if code in _BUSY_CODES:
        return Again(
            f"the store answered {status} ({code})",
            status=status,
            retry_after=parse_retry_after(retry_after),
            advice="The store is busy or failing: try again later",
        )
    if code in _KEY_CODES:
        return Final(
            f"the store answered {status} ({code})",
            status=status,
            advice="Check that key, secret and token in storage_options= (or fs=) are valid and not expired",
        )
    if code in _MISSING_CODES:
        return Missing(
            f"the store answered {status} ({code})",
            status=status,
            advice="Check the spelling of the bucket and key, the endpoint, and that the object exists",
        )
    detail = code if code != str(status) else ""
    return refuse_status(status or 0, detail=detail, retry_after=retry_after, location=headers.get("location"))


def _count_requests(client: Any, *, traced: bool) -> None:
    """Count what the client sends and the bodies it reads itself, while an attempt of geostream's is under way.

    Args:
        client: botocore's client.
        traced: Whether its HTTP session counts the requests already.
    """
    events = client.meta.events
    events.register("before-send.s3", _on_send, unique_id="geostream-sent")
    events.register("before-parse.s3", _on_answer, unique_id="geostream-bytes")
    if not traced:
        events.register("before-send.s3", _on_uncounted_send, unique_id="geostream-requests")


def _on_send(request: Any = None, **_: Any) -> None:
    meter = metered()
    if meter is not None:
        if meter.redirects >= _MOST_REDIRECTS:
            raise endless_redirects(None, meter.location)
        meter.sent = request


def _on_uncounted_send(**_: Any) -> None:
    meter = metered()
    if meter is not None:
        meter.requests += 1


def _on_answer(response_dict: dict[str, Any] | None = None, **_: Any) -> None:
    meter, answer = metered(), response_dict or {}
    if meter is None:
        return
    if isinstance(answer.get("body"), bytes):
        meter.bytes += len(answer["body"])
    if answer.get("status_code") in _REDIRECTS:
        meter.redirects += 1
        meter.location = answer.get("headers", {}).get("location")


def _leave_dates_alone(client: Any) -> None:
    """Keep the client from parsing Last-Modified of each answer: it takes longer than signing, for nothing."""
    factory: Any = getattr(getattr(client, "_endpoint", None), "_response_parser_factory", None)
    if hasattr(factory, "set_parser_defaults"):
        factory.set_parser_defaults(timestamp_parser=str)


async def _disable_inner_resend(client: Any) -> None:
    """Make the client's HTTP session now, because aiohttp resends by itself unless told otherwise beforehand."""
    transport = http_session(client)
    if transport is not None:
        disable_resend(await transport._get_session(None))  # noqa: SLF001 - nothing public leads there


def http_session(client: Any) -> Any:
    """Return what keeps the client's aiohttp sessions; None where it has none, or goes through a proxy."""
    transport = getattr(getattr(client, "_endpoint", None), "http_session", None)
    if getattr(transport, "_sessions", None) is None or not hasattr(transport, "_get_session"):
        return None
    proxies = getattr(transport, "_proxy_config", None)
    return None if proxies is not None and proxies.proxy_url_for(client.meta.endpoint_url) else transport
