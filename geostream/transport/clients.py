"""The filesystems of one event loop: made on it, used on it, closed on it."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import fsspec
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem

from geostream.errors import ConfigError, redact
from geostream.transport.access import LOCAL_PROTOCOLS, protocol_of
from geostream.transport.adapters import (
    Adapter,
    CatFileAdapter,
    ForeignLoopAdapter,
    HttpAdapter,
    LocalAdapter,
)
from geostream.transport.obstore_adapters import ObstoreBucketAdapter, ObstoreHttpAdapter
from geostream.transport.obstore_options import map_options, must_map
from geostream.transport.signing import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from fsspec import AbstractFileSystem

    from geostream.transport.access import Access
    from geostream.transport.archive import Archives
    from geostream.transport.obstore_options import Mapped

__all__ = ["CONNECTIONS", "IN_FLIGHT", "ClientPool", "Route", "unknown_options"]

IN_FLIGHT = 256
"""Most requests a loop has under way at a time."""
CONNECTIONS = 512
"""Most connections of one client: above `IN_FLIGHT`, so that no request waits for one within its own time limit."""
_ROUTES = 8192
_HTTP = frozenset({"http", "https"})
_S3 = frozenset({"s3", "s3a"})
_REQUEST_WORDS = set(inspect.signature(aiohttp.ClientSession._request).parameters)  # noqa: SLF001 - get()'s are bare
_CHEAP_INFO = frozenset({"memory", "zip", "tar", "dir", "file", "local", "data"})


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach one URL."""

    adapter: Adapter
    """Makes the attempts."""
    path: str
    """The URL in the words of the adapter's filesystem."""
    fs: AbstractFileSystem
    """The filesystem itself, asynchronous, for listings."""
    loop: asyncio.AbstractEventLoop | None
    """Loop of the user's own filesystem, where that is another than the pool's."""


class ClientPool:
    """Filesystems and adapters of one loop, one for each way of access. All methods are called on that loop.

    Args:
        lasting: Whether the process keeps the loop. obstore, which cannot be shut down, is used on such a one only.
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self.archives: Archives | None = None
        self.in_flight = asyncio.Semaphore(IN_FLIGHT)
        self.under_way = 0
        """Attempts being made."""
        self.signatures = Signatures()
        self._routes: OrderedDict[tuple[str, Access], Route] = OrderedDict()
        self._clients: dict[Hashable, Route] = {}

    def known_route(self, url: str, access: Access) -> Route | None:
        """Return how to reach ``url``, if it was asked for before."""
        return self._routes.get((url, access))

    async def route(self, url: str, access: Access) -> Route:
        """Return how to reach ``url``, making the filesystem on first use."""
        key = (url, access)
        route = self._routes.get(key)
        if route is None:
            route = await self._find_route(url, access)
            await route.adapter.prepare()
            self._routes[key] = route
            if len(self._routes) > _ROUTES:
                self._routes.popitem(last=False)
        return route

    async def _find_route(self, url: str, access: Access) -> Route:
        if access.fs is not None:
            fs = access.fs
            client = self._client(("fs", access), lambda: _client_of_user(fs))
            return _at(client, client.fs._strip_protocol(url) if "::" not in url else url)  # noqa: SLF001
        if "::" in url:
            options = dict(access.storage_options or {})
            # A chain may open its links, over the network, while it is made: not on the loop.
            fs, path = await asyncio.to_thread(_open_chain, url, options)
            return _at(_wrapped(fs), path)
        protocol = protocol_of(url)
        if protocol in LOCAL_PROTOCOLS:
            client = self._client("local", lambda: Route(LocalAdapter(), "", _asynchronous(LocalFileSystem()), None))
            return _at(client, LocalFileSystem._strip_protocol(url))  # noqa: SLF001
        kind = _filesystem_class(url, protocol)
        options = {**kind._get_kwargs_from_urls(url), **access.options_for(protocol)}  # noqa: SLF001
        mapped = map_options(protocol, options, access.transport)
        if mapped is not None:
            must_map(url, mapped, access.transport)
        fast = mapped if self._lasting else None
        facts = ("made", protocol, access, repr(sorted(options)))
        client = self._client(facts, lambda: _make_client(protocol, kind, options, fast))
        return _at(client, kind._strip_protocol(url))  # noqa: SLF001

    def _client(self, key: Hashable, make: Callable[[], Route]) -> Route:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = make()
        return client

    async def aclose(self) -> None:
        """Close every connection that geostream opened on this loop."""
        clients, self._clients = list(self._clients.values()), {}
        self._routes.clear()
        for client in clients:
            await client.adapter.aclose()


def _filesystem_class(url: str, protocol: str) -> type[AbstractFileSystem]:
    try:
        kind: type[AbstractFileSystem] = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ConfigError(f"{redact(url)}: the protocol {protocol}:// needs a package: {error}", url=url) from error
    except ValueError as error:
        raise ConfigError(
            f"{redact(url)}: no filesystem is known for {protocol}://. Check the spelling, or install the package that "
            "registers the protocol with fsspec",
            url=url,
        ) from error
    return kind


def _at(client: Route, path: str) -> Route:
    return Route(client.adapter, path, client.fs, client.loop)


def _make_client(
    protocol: str, kind: type[AbstractFileSystem], options: dict[str, Any], mapped: Mapped | None
) -> Route:
    """Make a filesystem, with obstore before it where the options are mapped."""
    if protocol in _HTTP:
        return _http_client(kind, options, mapped)
    if protocol in _S3:
        from geostream.transport.s3 import S3Adapter, s3_options  # noqa: PLC0415 - botocore is slow to import

        fs = kind(**{**s3_options(options, CONNECTIONS), "asynchronous": True, "skip_instance_cache": True})
        return Route(S3Adapter(fs, owned=True, obstore=mapped is not None), "", fs, None)
    if kind.async_impl:
        fs = kind(**{**options, "asynchronous": True, "skip_instance_cache": True})
        adapter: Adapter = CatFileAdapter(fs, cheap_info=False)
        return Route(adapter if mapped is None else ObstoreBucketAdapter(adapter, mapped), "", fs, None)
    return _wrapped(kind(**{**options, "skip_instance_cache": True}))


def _http_client(kind: type[AbstractFileSystem], options: dict[str, Any], mapped: Mapped | None) -> Route:
    """Make an HTTP filesystem with more connections than aiohttp's 100 and bodies left as they were sent."""
    words = dict(options.pop("client_kwargs", None) or {})
    words.setdefault("connector", aiohttp.TCPConnector(limit=CONNECTIONS, limit_per_host=0, ttl_dns_cache=300))
    words.setdefault("auto_decompress", False)
    words.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=30))
    fs = kind(**{**options, "client_kwargs": words, "asynchronous": True, "skip_instance_cache": True})
    unknown = set(fs.kwargs) - _REQUEST_WORDS
    if unknown and "get_client" not in options:
        raise unknown_options("", unknown)
    adapter = HttpAdapter(fs, owned=True)
    return Route(adapter if mapped is None else ObstoreHttpAdapter(adapter, mapped), "", fs, None)


def unknown_options(url: str, names: Iterable[str]) -> ConfigError:
    """Build the error of options that no part of a filesystem knows."""
    words = ", ".join(map(repr, sorted(names)))
    place = f"{redact(url)}: " if url else ""
    return ConfigError(
        f"{place}storage_options= has {words}, which the filesystem does not know. Check the spelling.", url=url or None
    )


def _client_of_user(fs: AbstractFileSystem) -> Route:
    if isinstance(fs, LocalFileSystem):
        return Route(LocalAdapter(), "", _asynchronous(fs), None)
    if not _is_asynchronous(fs):
        return _wrapped(fs)
    loop = _loop_of(fs)
    if loop is None:
        # It runs on a loop that cannot be known, or on one that a fork left behind: make it anew on this one.
        fs = type(fs)(
            *fs.storage_args, **{**fs.storage_options, "loop": None, "asynchronous": True, "skip_instance_cache": True}
        )
        return Route(_adapter_for(fs, owned=True), "", fs, None)
    adapter = _adapter_for(fs, owned=False)
    if loop is asyncio.get_running_loop():
        return Route(adapter, "", fs, None)
    return Route(ForeignLoopAdapter(adapter, loop), "", fs, loop)


def _is_asynchronous(fs: AbstractFileSystem) -> bool:
    """Tell whether a filesystem's coroutines work: those of one that wraps another are the other's."""
    inner = getattr(fs, "fs", None)
    return bool(fs.async_impl) and (not isinstance(inner, fsspec.AbstractFileSystem) or _is_asynchronous(inner))


def _loop_of(fs: AbstractFileSystem) -> asyncio.AbstractEventLoop | None:
    """Return the running loop of an asynchronous filesystem, or None where it has none in this process."""
    inner = getattr(fs, "fs", None)
    if isinstance(inner, fsspec.AbstractFileSystem):
        return _loop_of(inner)
    try:
        loop: asyncio.AbstractEventLoop | None = fs.loop
    except RuntimeError:  # fsspec's refusal after a fork
        return None
    return loop if loop is not None and loop.is_running() else None


def _adapter_for(fs: AbstractFileSystem, *, owned: bool) -> Adapter:
    if isinstance(fs, HTTPFileSystem):
        return HttpAdapter(fs, owned=owned)
    if hasattr(fs, "_call_s3") and hasattr(fs, "split_path"):
        from geostream.transport.s3 import S3Adapter  # noqa: PLC0415 - botocore is slow to import

        return S3Adapter(fs, owned=owned)
    return CatFileAdapter(fs, cheap_info=False)


def _open_chain(url: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    fs, path = fsspec.url_to_fs(url, **options, skip_instance_cache=True)
    return fs, path


def _wrapped(fs: AbstractFileSystem) -> Route:
    if isinstance(fs, LocalFileSystem):
        return Route(LocalAdapter(), "", _asynchronous(fs), None)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    wrapper = _asynchronous(fs)
    return Route(CatFileAdapter(wrapper, cheap_info=bool(protocols & _CHEAP_INFO)), "", wrapper, None)


def _asynchronous(fs: AbstractFileSystem) -> AbstractFileSystem:
    return AsyncFileSystemWrapper(fs, asynchronous=True)
