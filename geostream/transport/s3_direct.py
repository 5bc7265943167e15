"""S3 GETs signed here and sent on the client's own HTTP session, for a quarter of the work botocore makes of each.

Nothing is guessed: the client's first request to a bucket, as botocore addressed and signed it, is the pattern for
the rest. Where that shows anything but plain Signature Version 4 or an anonymous request, there is no `Direct`, and
botocore goes on sending every one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Direct", "Keys"]

_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request,.*", re.DOTALL)
_OF_ONE_REQUEST = frozenset(
    {
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "connection",
        "content-length",
        "host",
        "if-match",
        "range",
        "x-amz-date",
        "x-amz-security-token",
    }
)
_HASH = "x-amz-content-sha256"
_NOTHING = hashlib.sha256(b"").hexdigest()
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials, as they are at one moment."""

    access: str
    """Access key id."""
    secret: str = field(repr=False)
    """Secret access key."""
    token: str | None = field(default=None, repr=False)
    """Session token of temporary credentials."""


class Direct:
    """How one client's requests to one bucket look.

    Args:
        base: URL that object keys are appended to, without a slash at the end.
        headers: What every request has, names in lower case.
        region: Region of the signature; None for anonymous requests.
    """

    def __init__(self, base: str, headers: Mapping[str, str], region: str | None) -> None:
        self.base = base
        self.headers = dict(headers)
        self.region = region
        parts = urlsplit(base)
        self._path = parts.path
        port = parts.port
        self._host = parts.hostname or ""
        if port is not None and port != _DEFAULT_PORTS.get(parts.scheme):
            self._host = f"{self._host}:{port}"
        self._signing_key: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def __repr__(self) -> str:
        return f"<Direct {self.base} {self.region or 'anonymous'}>"

    @property
    def signed(self) -> bool:
        """Whether requests are to be signed."""
        return self.region is not None

    @classmethod
    def learn(cls, url: str, headers: Mapping[str, str | bytes], key: str) -> Direct | None:
        """Return the pattern of the request that botocore sent for ``key``, or None where it is not a plain one."""
        path = "/" + quote(key, safe="/~")
        parts = urlsplit(url)
        if parts.query or parts.username or not parts.path.endswith(path) or "[" in parts.netloc:
            return None
        texts = {
            name.lower(): value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for name, value in headers.items()
        }
        region = None
        if "authorization" in texts:
            scope = _SCOPE.fullmatch(texts["authorization"])
            if scope is None:
                return None
            region = scope.group(1)
        kept = {name: value for name, value in texts.items() if name not in _OF_ONE_REQUEST}
        if region is not None:
            kept[_HASH] = kept.get(_HASH, _NOTHING)
        return cls(url.removesuffix(path), kept, region)

    def request(
        self, key: str, words: Mapping[str, str], keys: Keys | None, now: float | None = None
    ) -> tuple[URL, dict[str, str]]:
        """Return the URL and the headers of a GET.

        Args:
            key: Object key.
            words: Further headers, names in lower case.
            keys: What to sign with; None for an anonymous request.
            now: Seconds since the epoch; the clock's by default.
        """
        path = "/" + quote(key, safe="/~")
        headers = {**self.headers, **words}
        if keys is not None and self.region is not None:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
            headers["x-amz-date"] = stamp
            if keys.token:
                headers["x-amz-security-token"] = keys.token
            headers["authorization"] = self._authorization(self._path + path, headers, keys, stamp)
        return URL(self.base + path, encoded=True), headers

    def _authorization(self, path: str, headers: Mapping[str, str], keys: Keys, stamp: str) -> str:
        day = stamp[:8]
        signed = {name: " ".join(value.split()) for name, value in headers.items() if name.startswith("x-amz-")}
        signed["host"] = self._host
        for name in ("range", "if-match"):
            if name in headers:
                signed[name] = " ".join(headers[name].split())
        names = sorted(signed)
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        canonical = f"GET\n{path}\n\n{lines}\n{';'.join(names)}\n{headers[_HASH]}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(keys.secret, day), text.encode(), "sha256").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
        )

    def _key_of(self, secret: str, day: str) -> bytes:
        """Return the signing key, which holds for a day."""
        if self._signing_key[0] != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self.region or "", "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._signing_key = ((secret, day), key)
        return self._signing_key[1]
