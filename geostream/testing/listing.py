"""S3's ListObjectsV2 and ListBuckets, as XML."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from geostream.testing.objects import Store

__all__ = ["list_buckets", "list_objects"]

_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_PAGE = 1000


def list_buckets(bucket: str) -> str:
    """The one bucket there is."""
    return (
        f"<ListAllMyBucketsResult {_NAMESPACE}><Buckets><Bucket><Name>{escape(bucket)}</Name>"
        "<CreationDate>2024-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
    )


def list_objects(store: Store, bucket: str, query: Mapping[str, str]) -> str:
    """One page of keys: prefix, delimiter, max-keys, start-after, continuation-token and encoding-type=url."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    size = min(_PAGE, int(query.get("max-keys", _PAGE)))
    token = query.get("continuation-token")
    after = urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
    page: list[str] = []
    more = False
    for entry in _entries(store.keys(), prefix, delimiter):
        if entry.encode() <= after.encode():
            continue
        if len(page) == size:
            more = True
            break
        page.append(entry)
    encode: Callable[[str], str] = quote if query.get("encoding-type") == "url" else escape
    parts = [
        f"<Name>{escape(bucket)}</Name><Prefix>{encode(prefix)}</Prefix><Delimiter>{encode(delimiter)}</Delimiter>",
        f"<MaxKeys>{size}</MaxKeys><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>",
    ]
    if encode is quote:
        parts.append("<EncodingType>url</EncodingType>")
    if more and page:
        following = urlsafe_b64encode(page[-1].encode()).decode()
        parts.append(f"<NextContinuationToken>{following}</NextContinuationToken>")
    parts += [_entry(store, entry, encode, common=_is_common(entry, prefix, delimiter)) for entry in page]
    return f"<ListBucketResult {_NAMESPACE}>{''.join(parts)}</ListBucketResult>"


def _entries(keys: list[str], prefix: str, delimiter: str) -> Iterator[str]:
    """Keys with ``prefix``, those that share what comes up to the next ``delimiter`` once, by that part."""
    last = None
    for key in keys:
        if not key.startswith(prefix):
            continue
        entry = key
        if delimiter and (at := key.find(delimiter, len(prefix))) >= 0:
            entry = key[: at + len(delimiter)]
        if entry != last:
            yield entry
        last = entry


def _is_common(entry: str, prefix: str, delimiter: str) -> bool:
    return bool(delimiter) and delimiter in entry[len(prefix) :]


def _entry(store: Store, entry: str, encode: Callable[[str], str], *, common: bool) -> str:
    if common:
        return f"<CommonPrefixes><Prefix>{encode(entry)}</Prefix></CommonPrefixes>"
    found = store.get(entry)
    if found is None:  # removed since the keys were listed
        return ""
    modified = datetime.fromtimestamp(found.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{encode(entry)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(found.etag)}</ETag><Size>{found.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
