"""Where the range server's objects come from: the files below a directory, or a mapping."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

__all__ = ["Content", "DirectoryStore", "MappingStore", "Store", "StoredObject", "make_store"]

Content = bytes | str | os.PathLike[str]
"""An object's bytes, or the path of the file that holds them."""

_INVERTED = bytes(255 - i for i in range(256))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it is at this moment."""

    key: str
    """Its name, without a leading slash."""
    size: int
    """Bytes."""
    etag: str
    """Entity tag, with its quotes; differs whenever the content differs."""
    modified: float
    """Seconds since the epoch."""
    read: Callable[[int, int], bytes]
    """Returns the bytes from ``start`` to ``stop``."""

    def replaced(self) -> StoredObject:
        """What another upload under this key could look like: as long, every byte different, its own ETag."""
        read = self.read
        return replace(
            self,
            etag=f'"changed-{self.etag[1:]}',
            read=lambda start, stop: read(start, stop).translate(_INVERTED),
        )


class Store(Protocol):
    """Objects by key."""

    def get(self, key: str) -> StoredObject | None:
        """The object of that name, or None."""

    def keys(self) -> list[str]:
        """All names, in the order of their UTF-8 bytes."""


class DirectoryStore:
    """The files below ``root``, as they are when asked for. Symbolic links are followed; no key leads above root."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        if not self._root.is_dir():
            raise NotADirectoryError(f"{root} is not a directory; give one that exists, or a mapping of keys to bytes")

    def get(self, key: str) -> StoredObject | None:
        """The file of that name, or None."""
        if any(part in {"", ".", ".."} for part in key.split("/")) or "\0" in key:
            return None
        return _file_object(key, os.path.join(self._root, key))  # noqa: PTH118 - called once a request, Path is slow

    def keys(self) -> list[str]:
        """All names below the root."""
        found: list[str] = []
        for folder, _, names in os.walk(self._root, followlinks=True):
            prefix = Path(folder).relative_to(self._root)
            found.extend((prefix / name).as_posix() for name in names)
        return sorted(found, key=str.encode)


class MappingStore:
    """The items of a mapping, as they are when asked for: the caller may change it while it is served."""

    def __init__(self, items: Mapping[str, Content]) -> None:
        self._items = items
        self._started = time.time()
        self._tags: dict[str, tuple[bytes, str]] = {}

    def get(self, key: str) -> StoredObject | None:
        """The item of that name, or None."""
        content = self._items.get(key)
        if content is None:
            return None
        if not isinstance(content, bytes):
            return _file_object(key, os.fspath(content))
        return StoredObject(key, len(content), self._tag(key, content), self._started, _slicer(content))

    def keys(self) -> list[str]:
        """All names."""
        return sorted(self._items, key=str.encode)

    def _tag(self, key: str, content: bytes) -> str:
        known = self._tags.get(key)
        if known is None or known[0] is not content:
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            known = self._tags[key] = (content, f'"{digest}"')
        return known[1]


def make_store(source: str | os.PathLike[str] | Mapping[str, Content]) -> Store:
    """The store for what a server was given: a mapping, or the directory of that name."""
    return MappingStore(source) if isinstance(source, Mapping) else DirectoryStore(source)


def _slicer(content: bytes) -> Callable[[int, int], bytes]:
    return lambda start, stop: content[start:stop]


def _file_object(key: str, path: str) -> StoredObject | None:
    try:
        # Not blocking, since it may be a pipe, which has no bytes until somebody writes some.
        file = _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, ValueError):  # not there, or no possible name
        return None
    status = file.status
    if not stat.S_ISREG(status.st_mode):
        return None
    etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    return StoredObject(key, status.st_size, etag, status.st_mtime, file.read)


class _OpenFile:
    """A file that stays the one that was opened, whatever takes its name: its bytes never go under another's ETag."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._descriptor, stop - start, start)
