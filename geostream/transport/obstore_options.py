"""Which ways of access mean the same to obstore as to fsspec's filesystems, option by option.

An option that is not known here to mean the same, or to be about something else than reading ranges, does not map:
the answer is then its name, and fsspec's own client reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from geostream.errors import ConfigError, redact
from geostream.transport.obstores import installed, is_plain_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["TRANSPORTS", "Mapped", "Transport", "map_options", "must_map", "split_http", "split_store"]

Transport = Literal["auto", "obstore", "fsspec"]
"""Which clients fetch from s3, gs, az and http(s)."""
TRANSPORTS: tuple[Transport, ...] = ("auto", "obstore", "fsspec")

_ANY = frozenset(
    {
        "asynchronous",
        "batch_size",
        "block_size",
        "cache_options",
        "cache_type",
        "default_block_size",
        "default_cache_type",
        "default_fill_cache",
        "dircache",
        "listings_expiry_time",
        "max_concurrency",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)
_HTTP = _ANY | {"headers", "same_scheme", "simple_links", "size_policy"}
_S3 = _ANY | {
    "anon",
    "cache_regions",
    "endpoint_url",
    "key",
    "password",
    "profile",
    "requester_pays",
    "secret",
    "token",
    "use_ssl",
    "username",
}
_S3_CLIENT = frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "use_ssl"}
) | {"region_name"}
_S3_CONFIG = frozenset({"max_pool_connections", "region_name", "retries", "s3", "signature_version"})
_GCS = _ANY | {"access", "check_connection", "consistency", "endpoint_url", "project", "token"}
_AZURE = _ANY | {"account_host", "account_key", "account_name", "anon", "client_id", "client_secret", "sas_token"}
_AZURE |= {"tenant_id"}

# Read from the environment by obstore alone.
_OF_ONE_SIDE = {
    "s3": ("AWS_PROXY_URL", "AWS_SSE_CUSTOMER_KEY_BASE64", "AWS_S3_EXPRESS"),
    "gs": ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_PROXY_URL"),
    "az": ("AZURE_STORAGE_TOKEN", "AZURE_USE_AZURE_CLI", "AZURE_PROXY_URL", "AZURE_ENCRYPTION_KEY"),
}
_KINDS = {
    "http": "http",
    "https": "http",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}


@dataclass(frozen=True, slots=True)
class Mapped:
    """Options in obstore's words."""

    kind: str
    """``http``, ``s3``, ``gs`` or ``az``."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the store; empty for s3, where botocore's first request shows them."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request."""


def map_options(protocol: str, options: Mapping[str, Any], transport: Transport) -> Mapped | None:
    """Return the options as obstore's, or None where fsspec's client is to read.

    Raises:
        ConfigError: obstore was demanded, and is not installed, or the options do not map to it.
    """
    kind = _KINDS.get(protocol)
    if kind is None or transport == "fsspec":
        return None
    forced = transport == "obstore"
    if not installed():
        if forced:
            raise ConfigError('transport="obstore" needs the obstore package: pip install obstore, or pass "auto"')
        return None
    mapped, strange = _MAPPERS[kind](options)
    strange = [*strange, *_environment(kind)]
    if strange and forced:
        raise ConfigError(
            f'transport="obstore" cannot be had for {protocol}:// with {", ".join(sorted(strange))}, which '
            'would not mean the same there: leave that out, or pass transport="auto"'
        )
    return None if strange else mapped


def must_map(url: str, mapped: Mapped, transport: Transport) -> None:
    """Refuse a URL that obstore would not ask for as it is written, where obstore was demanded.

    Raises:
        ConfigError: It was.
    """
    if transport == "obstore" and mapped.kind == "http" and split_http(url) is None:
        raise ConfigError(
            f'{redact(url)}: transport="obstore" takes no URL with a query, a user name or empty parts: '
            'pass transport="auto"',
            url=url,
        )


def split_http(url: str) -> tuple[str, str] | None:
    """Return origin and decoded path of an http URL that obstore would ask for as it is written, else None."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    if parts.query or parts.fragment or "@" in parts.netloc or "?" in url or "%2f" in path.lower():
        return None
    key = unquote(path)
    return (f"{parts.scheme}://{parts.netloc}", key) if is_plain_key(key) else None


def split_store(path: str) -> tuple[str, str] | None:
    """Return bucket and key of a path that obstore would ask for as it is written, else None."""
    bucket, _, key = path.partition("/")
    return (bucket, key) if bucket and is_plain_key(key) else None


def _environment(kind: str) -> list[str]:
    proxies = sorted(set(getproxies_environment()) - {"no"})
    found = [name for name in _OF_ONE_SIDE.get(kind, ()) if os.environ.get(name)]
    return [f"the environment's {name}" for name in found] + [f"the environment's {name} proxy" for name in proxies]


def _names(options: Mapping[str, Any], known: Iterable[str], inside: str = "") -> list[str]:
    prefix = f"{inside}." if inside else ""
    return [f"{prefix}{name}" for name, value in options.items() if name not in set(known) and value is not None]


def _text_headers(headers: Any, strange: list[str], where: str) -> dict[str, str]:
    if not headers:
        return {}
    if not isinstance(headers, Mapping) or not all(
        isinstance(part, str) and part.isascii() and part.isprintable() for item in headers.items() for part in item
    ):
        strange.append(where)
        return {}
    taken = {str(name): str(value) for name, value in headers.items()}
    own = {"host", "range", "if-match", "connection", "accept-encoding"}
    strange.extend(f"{where}.{name}" for name in taken if name.lower() in own)
    return taken


def _http(options: Mapping[str, Any]) -> tuple[Mapped, list[str]]:
    client = options.get("client_kwargs") or {}
    strange = _names(options, _HTTP | {"client_kwargs"}) + _names(client, {"headers"}, "client_kwargs")
    headers = _text_headers(client.get("headers"), strange, "client_kwargs.headers")
    # aiohttp: those of a request win over those of the session, whatever their case.
    of_request = _text_headers(options.get("headers"), strange, "headers")
    lower = {name.lower(): value for name, value in headers.items()}
    return Mapped("http", headers=lower | {name.lower(): value for name, value in of_request.items()}), strange


def _s3(options: Mapping[str, Any]) -> tuple[Mapped, list[str]]:
    client, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
    strange = _names(options, _S3 | {"client_kwargs", "config_kwargs", "version_aware"})
    strange += _names(client, _S3_CLIENT, "client_kwargs") + _names(config, _S3_CONFIG, "config_kwargs")
    if options.get("version_aware"):
        strange.append("version_aware")
    return Mapped("s3"), strange


def _gcs(options: Mapping[str, Any]) -> tuple[Mapped, list[str]]:
    strange = _names(options, _GCS | {"requester_pays"})
    strange += [name for name in ("requester_pays",) if options.get(name)]
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        strange.append("the environment's STORAGE_EMULATOR_HOST")
    config: dict[str, Any] = {"skip_signature": False}
    if options.get("endpoint_url"):
        config["base_url"] = str(options["endpoint_url"]).rstrip("/")
    token = options.get("token")
    if token == "anon":  # noqa: S105 - what gcsfs calls none
        config["skip_signature"] = True
    elif (account := _service_account(token)) is not None:
        config |= account
    else:
        strange.append("token" if token is not None else "token=None (gcsfs then tries several ways to log in)")
    return Mapped("gs", config), strange


def _service_account(token: Any) -> dict[str, str] | None:
    """Return a Google service account's key in obstore's words, if ``token`` is one: its dictionary or its file."""
    if token is None or token == "google_default":  # noqa: S105 - what gcsfs calls the environment
        token = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if isinstance(token, str | os.PathLike):
        try:
            token = json.loads(Path(token).read_bytes())
        except (OSError, ValueError):
            return None
    if isinstance(token, Mapping) and token.get("type") == "service_account":
        return {"service_account_key": json.dumps(dict(token))}
    return None


def _azure(options: Mapping[str, Any]) -> tuple[Mapped, list[str]]:
    strange = _names(options, _AZURE)
    name = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    config: dict[str, Any] = {"skip_signature": False}
    if name:
        config["account_name"] = str(name)
    else:
        strange.append("account_name=None")
    if options.get("account_host"):
        config["endpoint"] = f"https://{options['account_host']}"
    secrets = [key for key in ("account_key", "sas_token", "client_secret") if options.get(key)]
    if options.get("anon") is True and not secrets:
        config["skip_signature"] = True
    elif secrets == ["account_key"]:
        config |= {"account_key": options["account_key"], "credential_type": "access_key"}
    elif secrets == ["sas_token"]:
        config |= {"sas_key": str(options["sas_token"]).removeprefix("?"), "credential_type": "sas_token"}
    elif secrets == ["client_secret"] and options.get("tenant_id") and options.get("client_id"):
        config |= {key: options[key] for key in ("tenant_id", "client_id", "client_secret")}
        config["credential_type"] = "client_secret"
    else:
        strange.append("its credentials (adlfs then tries several ways to log in)")
    return Mapped("az", config), strange


_MAPPERS: dict[str, Callable[[Mapping[str, Any]], tuple[Mapped, list[str]]]] = {
    "http": _http,
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
}
