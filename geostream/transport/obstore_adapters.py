"""Adapters that read through obstore, in front of those of fsspec's filesystems."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geostream.transport.obstore_options import split_http, split_store
from geostream.transport.obstores import Relay, client_words, usable

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential, S3CredentialProvider

    from geostream.transport.adapters import Adapter, HttpAdapter, Meter
    from geostream.transport.answer import Ask, Body
    from geostream.transport.obstore_options import Mapped
    from geostream.transport.s3_direct import Direct, Keys

__all__ = ["ObstoreBucketAdapter", "ObstoreHttpAdapter", "s3_relay"]

_split_http = lru_cache(8192)(split_http)
# Headers of botocore's that obstore sends by itself, or that mean nothing to a store.
_LEFT_OUT = frozenset({"x-amz-content-sha256", "accept-encoding", "accept", "expect", "x-amz-checksum-mode"})
_REQUEST_PAYER, _AGENT = "x-amz-request-payer", "user-agent"


class ObstoreHttpAdapter:
    """http(s) through obstore, once an origin's first answer shows that it is as good.

    That first answer comes through aiohttp, as all do while few requests are under way: obstore gains nothing then.
    Where it is no 206, or came by a redirect or with a cookie, so does everything else from there; so do URLs with a
    query (signed ones) or a user name. What obstore does not show, nobody can count: redirects of later answers, and
    the bytes of bodies that broke off or were refused.
    """

    def __init__(self, other: HttpAdapter, mapped: Mapped) -> None:
        self._other = other
        self._headers = mapped.headers
        self._relays: dict[str, Relay] = {}

    async def prepare(self) -> None:
        """Make the other client."""
        await self._other.prepare()

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Send one GET."""
        place = _split_http(ask.path)
        if place is None:
            return await self._other.fetch(ask, meter)
        origin, key = place
        relay = self._relays.get(origin)
        if relay is not None and meter.crowded:
            return await relay.fetch(ask, key, meter, lambda: self._other.fetch(ask, meter))
        body = await self._other.fetch(ask, meter)
        if relay is None and meter.plain and meter.crowded and usable():
            self._relays[origin] = _http_relay(origin, self._headers)
        return body

    async def aclose(self) -> None:
        """Close the other client; obstore's connections close when nobody has used them for a while."""
        self._relays.clear()
        await self._other.aclose()


class ObstoreBucketAdapter:
    """gs:// and az:// through obstore: status, Content-Range, ETag and If-Match all checked.

    Where obstore does not tell what happened, the filesystem behind it is asked, with what `CatFileAdapter` promises.
    """

    def __init__(self, other: Adapter, mapped: Mapped) -> None:
        self._other = other
        self._mapped = mapped
        self._relays: dict[str, Relay] = {}

    async def prepare(self) -> None:
        """Make the other client."""
        await self._other.prepare()

    async def fetch(self, ask: Ask, meter: Meter) -> Body:
        """Send one GET."""
        place = split_store(ask.path)
        if place is None or not usable():
            return await self._other.fetch(ask, meter)
        bucket, key = place
        relay = self._relays.get(bucket)
        if relay is None:
            relay = self._relays[bucket] = _bucket_relay(bucket, self._mapped)
        return await relay.fetch(ask, key, meter, lambda: self._other.fetch(ask, meter))

    async def aclose(self) -> None:
        """Close the other client; obstore's connections close when nobody has used them for a while."""
        self._relays.clear()
        await self._other.aclose()


def _http_relay(origin: str, headers: Any) -> Relay:
    from obstore.store import HTTPStore  # noqa: PLC0415 - optional, and imported only to be used

    return Relay(HTTPStore(origin, **client_words(headers)))


def _bucket_relay(bucket: str, mapped: Mapped) -> Relay:
    from obstore.store import AzureStore, GCSStore  # noqa: PLC0415 - optional, and imported only to be used

    kind: Any = AzureStore if mapped.kind == "az" else GCSStore
    return Relay(kind(bucket, config=dict(mapped.config), **client_words()))


def s3_relay(bucket: str, pattern: Direct, keys: Keys | None) -> Relay | None:
    """Return a relay that asks for objects of a bucket as botocore does, or None where obstore cannot.

    Args:
        bucket: The bucket.
        pattern: How botocore's requests to it look.
        keys: What to sign with; None for anonymous requests.
    """
    headers = {name: value for name, value in pattern.headers.items() if name not in _LEFT_OUT}
    payer = headers.pop(_REQUEST_PAYER, None)
    agent = headers.pop(_AGENT, "geostream")
    if headers or payer not in {None, "requester"}:
        return None
    from obstore.store import S3Store  # noqa: PLC0415 - optional, and imported only to be used

    config: S3Config = {
        "endpoint": pattern.base,
        "aws_endpoint_url_s3": pattern.base,
        "virtual_hosted_style_request": True,  # the bucket is in the endpoint, wherever botocore puts it
        "region": pattern.region or "us-east-1",
        "request_payer": payer is not None,
        "skip_signature": keys is None,
        "unsigned_payload": False,
    }
    # By way of a provider, they are not mixed with those of the environment.
    provider = None if keys is None else _provider(keys)
    words = client_words({_AGENT: agent}, _roots() if pattern.base.startswith("https:") else None)
    return Relay(S3Store(bucket, config=config, credential_provider=provider, **words))


def _roots() -> bytes | None:
    """Return the certificates that the environment tells botocore to trust."""
    path = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        return Path(path).read_bytes() if path else None
    except OSError:
        return None


def _provider(keys: Keys) -> S3CredentialProvider:
    held: S3Credential = {
        "access_key_id": keys.access,
        "secret_access_key": keys.secret,
        "token": keys.token,
        "expires_at": None,
    }
    return lambda: held
