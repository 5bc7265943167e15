"""How a URL is reached: options or the user's own filesystem, and the forms a URL may take."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import fsspec

from geostream.errors import ConfigError, redact
from geostream.transport.obstore_options import TRANSPORTS, Transport
from geostream.transport.retry import DEFAULT_RETRY, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fsspec import AbstractFileSystem

__all__ = ["LOCAL_PROTOCOLS", "Access", "normalize_url", "protocol_of"]

LOCAL_PROTOCOLS = frozenset({"file", "local"})
_HTTP = frozenset({"http", "https"})
_VSI = {
    "vsis3": "s3://",
    "vsis3_streaming": "s3://",
    "vsigs": "gs://",
    "vsigs_streaming": "gs://",
    "vsiaz": "az://",
    "vsiaz_streaming": "az://",
    "vsiadls": "abfs://",
    "vsicurl": "",
    "vsicurl_streaming": "",
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs", "https": "http", "local": "file", "ssh": "sftp"}
_TOLD_APART = frozenset(_ALIASES.values()) | {"memory", "ftp"}
_OF_SERVERS = _TOLD_APART - {"file", "memory"}
_VSI_PATH = re.compile(r"/(vsi[a-z0-9_]+)(?:([/?])(.*))?", re.DOTALL)
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BARE_FILE = re.compile(r"file:(?=/(?!/))", re.IGNORECASE)  # RFC 8089's short form


@dataclass(frozen=True, eq=False)
class Access:
    """How URLs are reached. Pickles and deep-copies with a dataset; two with equal options are equal.

    It holds no open resource of geostream's. ``fs`` is the user's own filesystem: where it is asynchronous and runs
    on a loop, requests are made on that loop; in a forked or spawned process it is made anew from its arguments.
    """

    storage_options: Mapping[str, Any] | None = None
    """Options of the fsspec filesystem, as in pandas; those of the links of a chained URL nested by protocol."""
    fs: AbstractFileSystem | None = None
    """The user's own filesystem, instead of options."""
    retry: RetryPolicy = field(default=DEFAULT_RETRY)
    """When and how often a failed request is sent again."""
    transport: Transport = "auto"
    """Which clients fetch from s3, gs, az and http(s): ``"fsspec"`` only its filesystems', ``"obstore"`` obstore or an
    error, ``"auto"`` obstore where it is installed and the options mean the same to it. Nothing to other URLs."""
    sign: Callable[[str], str] | None = None
    """Called with a file's URL right before it is asked for, in a thread; returns the URL to ask for, such as one with
    a token. Called again after half a minute, and when the answer is 401 or 403. Directories are listed unsigned."""

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport={self.transport!r} is none of {', '.join(map(repr, TRANSPORTS))}")
        if self.sign is not None and not callable(self.sign):
            raise ConfigError(
                f"sign= is {_kind(self.sign)}: pass a function that takes a URL and returns the signed one"
            )
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise ConfigError(
                f"storage_options= is {_kind(self.storage_options)}: pass a dictionary of the filesystem's options"
            )
        _check_nested(self.storage_options or {})
        if self.fs is not None and not isinstance(self.fs, fsspec.AbstractFileSystem):
            raise ConfigError(f"fs= is {_kind(self.fs)}: pass a filesystem, such as fsspec.filesystem(...) returns")
        if self.fs is not None and self.transport == "obstore":
            raise ConfigError('transport="obstore" and fs= contradict each other: pass storage_options= instead of fs=')
        if self.fs is not None and self.storage_options:
            raise ConfigError("storage_options= and fs= contradict each other: pass one, and configure fs itself")

    def options_for(self, protocol: str) -> dict[str, Any]:
        """Return the options meant for one protocol: the plain ones, and those nested under its name."""
        links = set(fsspec.available_protocols()) - {protocol}
        options = {
            key: value
            for key, value in (self.storage_options or {}).items()
            if not (key in links and isinstance(value, Mapping))
        }
        nested = options.pop(protocol, None)
        if isinstance(nested, Mapping):
            return {**options, **nested}
        return options if nested is None else {**options, protocol: nested}

    @cached_property
    def key(self) -> Hashable:
        """What tells one way of access from another."""
        if self.fs is not None:
            return ("fs", self.fs, self.retry, self.transport, _canonical(self.sign))
        return ("options", _canonical(self.storage_options or {}), self.retry, self.transport, _canonical(self.sign))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Access) and self.key == other.key

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ between processes: cached ones must not travel.
        names = ("storage_options", "fs", "retry", "transport", "sign")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        # Values may be secrets.
        options = ", ".join(sorted(self.storage_options or {}))
        return f"Access(fs={type(self.fs).__name__})" if self.fs is not None else f"Access(storage_options=[{options}])"


def _kind(value: Any) -> str:
    """Name a value's class: the value itself may be a secret."""
    return f"a value of type {type(value).__name__}"


def _canonical(value: Any) -> Hashable:
    """Return a hashable stand-in for an option: equal for equal nested containers, identity for what cannot hash."""
    if isinstance(value, Mapping):
        return ("mapping", tuple(sorted(((str(k), _canonical(v)) for k, v in value.items()), key=lambda item: item[0])))
    if isinstance(value, list | tuple):
        return ("sequence", tuple(_canonical(item) for item in value))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(_canonical(item) for item in value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


def protocol_of(url: str) -> str:
    """Return the protocol of a URL's first link; ``file`` where it names none."""
    match = _PROTOCOL.match(url)
    if match is not None:
        return match.group(1).lower()
    first, chained, _ = url.partition("::")
    return first if chained and first.isidentifier() else "file"


def normalize_url(url: str | os.PathLike[str], access: Access | None = None) -> str:
    """Return the URL as the rest of geostream writes it.

    GDAL's paths (``/vsis3/bucket/key``, ``/vsicurl/https://…``, ``/vsigs/…``, ``/vsiaz/…``, ``/vsizip/…``) become
    the URLs they mean; local paths and ``file://`` URLs become absolute paths, with ``~`` expanded.

    Args:
        url: Local path, or any fsspec URL, chained ones included.
        access: How it is reached: a path that names no protocol is left to the filesystem in it, if there is one.

    Raises:
        ConfigError: It is no text, no well-formed URL, or a path of GDAL's that means nothing outside GDAL.
    """
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(text, str):
        raise ConfigError(f"a URL is a str or a path, not {type(text).__name__}")
    if "\0" in text:
        raise ConfigError(f"{text!r} has a null character in it, which no path or URL has")
    match = _VSI_PATH.fullmatch(text)
    if match is not None:
        return _from_vsi(*match.groups())
    text = _BARE_FILE.sub("file://", text)
    if "::" in text:
        first, _, rest = text.partition("::")
        return f"{first}::{normalize_url(rest, access)}"
    if _PROTOCOL.match(text):
        if access is not None and access.fs is not None:
            _check_fs(access.fs, text)
        return _local_path(text) if protocol_of(text) in LOCAL_PROTOCOLS else _checked(text)
    if access is not None and access.fs is not None:
        if os.path.isabs(text) and _kind_of(access.fs) in _OF_SERVERS and os.path.exists(text):  # noqa: PTH110, PTH117
            raise _contradiction(access.fs, "a local path", text)
        return text
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - pathlib would keep "..", and drop a final slash


def _checked(url: str) -> str:
    """Return an http(s) URL, or one of another protocol, unless it is malformed."""
    if protocol_of(url) in _HTTP:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{redact(url)} is no URL: {error}. Check its host and port.", url=url) from None
        if not host:
            raise ConfigError(f"{redact(url)} names no host.", url=url)
    protocol = protocol_of(url)
    return protocol + url[len(protocol) :]


def _check_nested(options: Mapping[str, Any]) -> None:
    """Refuse arguments for a client that are no dictionary; of options nested by protocol, too."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            _check_nested(value)
        elif str(name).endswith("_kwargs") and value is not None:
            raise ConfigError(f"storage_options= has {name!r}, which is {_kind(value)}: pass a dictionary there")


def _kind_of(fs: AbstractFileSystem) -> str | None:
    """The protocol of a filesystem, one name for all of its aliases; None of one that wraps others."""
    if isinstance(getattr(fs, "fs", None), fsspec.AbstractFileSystem):
        return None
    name = fs.protocol if isinstance(fs.protocol, str) else next(iter(fs.protocol), "")
    kind = _ALIASES.get(name, name)
    return kind if kind in _TOLD_APART else None


def _check_fs(fs: AbstractFileSystem, url: str) -> None:
    """Refuse a filesystem that is not for the URL's protocol, as far as both are known."""
    kind, protocol = _kind_of(fs), protocol_of(url)
    if kind is not None and _ALIASES.get(protocol, protocol) != kind:
        raise _contradiction(fs, protocol, url)


def _contradiction(fs: AbstractFileSystem, what: str, url: str) -> ConfigError:
    return ConfigError(
        f"{redact(url)}: fs= is {_kind_of(fs)}, the URL is {what}: pass a filesystem of the URL's protocol, or none",
        url=url,
    )


def _local_path(url: str) -> str:
    path = _PROTOCOL.sub("", url, count=1)
    if path.startswith("localhost/"):
        path = path.removeprefix("localhost")
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - as above


def _from_vsi(name: str, mark: str | None, rest: str | None) -> str:
    """Return the URL that a path ``/name``, ``/name/rest`` or ``/name?rest`` of GDAL's means."""
    if mark == "?" and name == "vsicurl":
        urls = parse_qs(rest or "").get("url", [])
        if len(urls) == 1:
            return normalize_url(urls[0])
    if mark == "/" and rest:
        if name in _VSI:
            return normalize_url(_VSI[name] + rest)
        if name == "vsizip":
            member, archive = _split_zip(rest)
            if member:
                return f"zip://{member}::{normalize_url(archive)}"
    raise ConfigError(
        f"/{name} paths are GDAL's own, and this one is not understood: write the URL that fsspec knows it by "
        "(s3://, https://, zip://…)"
    )


def _split_zip(rest: str) -> tuple[str, str]:
    """Return the member and the archive that what follows ``/vsizip/`` names."""
    archive, extension, member = rest.partition(".zip/")
    if archive.startswith("{"):
        archive, extension, member = rest.removeprefix("{").partition("}/")
        extension = ""
    elif extension:
        extension = ".zip"
    return member, f"/{archive}{extension}" if archive.startswith("vsi") else archive + extension
