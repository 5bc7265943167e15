"""Why a TorchGeo class cannot be streamed: told from the bytecode of its methods, before any file is touched."""

from __future__ import annotations

import builtins
import dis
import functools
import glob
import inspect
import os
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import rasterio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["why_not"]

_MERGING = frozenset({"_merge_files", "_merge_or_stack", "_load_warp_file", "_cached_load_warp_file"})
_READING = frozenset({"__getitem__", *_MERGING})
_FINDING = frozenset({"__init__", "files"})
_UNREAD = frozenset({"plot", "_download", "_extract", "download"})
"""Methods that find or read no pixels of samples."""

_LOCAL_CALLS: dict[Any, str] = {
    glob.glob: "glob.glob",
    glob.iglob: "glob.iglob",
    os.walk: "os.walk",
    os.listdir: "os.listdir",
    os.scandir: "os.scandir",
    builtins.open: "open",
    rasterio.open: "rasterio.open",
}
_LOCAL_NAMES = frozenset(
    {
        "PIL.Image.open",
        "rioxarray.open_rasterio",
        "xarray.open_dataset",
        "xarray.open_mfdataset",
        "h5py.File",
        "numpy.load",
        "numpy.memmap",
        "netCDF4.Dataset",
        "laspy.read",
        "pandas.read_csv",
        "geopandas.read_file",
        "fiona.open",
        "torch.load",
    }
)
"""The same, of libraries that need not be installed: by where they are defined, or by module and name."""
_LOCAL_METHODS = frozenset({"iterdir", "rglob"})
"""Methods of `pathlib.Path`, known by their names alone."""


@dataclass
class _Reach:
    """What is called from a class's methods, directly or through others of its methods."""

    local: list[str] = field(default_factory=list)
    """``"Method opens … by …"`` for each call that goes to this machine's files."""
    bypasses: list[str] = field(default_factory=list)
    """Methods that call `RasterDataset`'s own by name, past whatever stands between."""
    names: set[str] = field(default_factory=set)
    """Names of attributes that are used."""


def why_not(cls: type, base: type) -> str | None:
    """The reason why geostream cannot stand between ``cls`` and its base, or None if it can.

    Args:
        cls: subclass of TorchGeo's `RasterDataset`.
        base: `RasterDataset`.
    """
    finding = _reached(cls, base, _FINDING)
    if finding.bypasses:
        return f"{finding.bypasses[0]}, past whatever stands between: call super() instead"
    if finding.local:
        return f"its files do not come from .files alone: {finding.local[0]}, which knows local files only"
    if not _leads_on(cls, base, "__init__"):
        owner = _owner(cls, base, "__init__").__name__
        return f"its files do not come from .files: {owner}.__init__ does not call super().__init__"
    reading = _reached(cls, base, _READING)
    if reading.local:
        return (
            "its pixels do not all come through _load_warp_file, _merge_files or _merge_or_stack: "
            f"{reading.local[0]}, which knows local files only"
        )
    if not _leads_on(cls, base, "__getitem__") and not reading.names & _MERGING:
        return (
            "its pixels do not come through _load_warp_file, _merge_files or _merge_or_stack: "
            f"{_owner(cls, base, '__getitem__').__name__}.__getitem__ calls none of them"
        )
    return None


def _classes(cls: type, base: type) -> list[type]:
    """``cls`` and what it derives from, in order, up to ``base``."""
    return list(cls.__mro__[: cls.__mro__.index(base)])


def _owner(cls: type, base: type, name: str) -> type:
    return next(kind for kind in _classes(cls, base) if name in vars(kind))


def _leads_on(cls: type, base: type, name: str) -> bool:
    """Whether every override of a method names it, as those do that call ``super()``'s; True where there is none."""
    owners = [kind for kind in _classes(cls, base) if name in vars(kind)]
    return all(name in _names(code) for kind in owners for code in _codes(_function(vars(kind)[name])))


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _reached(cls: type, base: type, roots: frozenset[str]) -> _Reach:
    reach = _Reach()
    kinds = _classes(cls, base)
    seen: set[tuple[type, str]] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        for kind in kinds:
            if name not in vars(kind) or (kind, name) in seen or name in _UNREAD:
                continue
            seen.add((kind, name))
            for code in _codes(_function(vars(kind)[name])):
                used = _examine(code, _function(vars(kind)[name]), f"{kind.__name__}.{name}", base, reach)
                reach.names |= used
                waiting += sorted(used)
    return reach


def _function(attribute: Any) -> Any:
    """The Python function behind a method, a property or a decorated one; None if there is none."""
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    elif isinstance(attribute, functools.cached_property):
        attribute = attribute.func
    attribute = inspect.unwrap(attribute) if callable(attribute) else None
    return attribute if isinstance(attribute, types.FunctionType) else None


def _codes(function: Callable[..., Any] | None) -> list[types.CodeType]:
    return [] if function is None else [function.__code__]


def _examine(code: types.CodeType, function: Any, where: str, base: type, reach: _Reach) -> set[str]:
    """Note calls to local files in ``reach``, and return the names of attributes that are used.

    What follows ``if self.files: return`` is left out: it is for when there are no files yet, to unpack or download.
    """
    used: set[str] = set()
    scope = {**vars(builtins), **function.__globals__, **_imported(code)}
    for chain in _chains(code):
        names = chain.names
        if names[-1] == "files" and chain.tested:
            return used | {"files"}
        used |= set(names[1:])
        found = _resolve(scope, names)
        what = _local_name(found, names, scope)
        if what is not None:
            reach.local.append(f"{where} calls {what}")
        if found is not None and found is getattr(base, names[-1], None) and len(names) > 1:
            reach.bypasses.append(f"{where} calls {base.__name__}.{names[-1]} by name")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            used |= _examine(inner, function, where, base, reach)
    return used


@dataclass(frozen=True)
class _Chain:
    """``a.b.c`` in a function's code."""

    names: tuple[str, ...]
    """``("a", "b", "c")``; the first is empty where it is no name, as after a call."""
    tested: bool
    """Whether its truth decides what comes next."""


_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "IMPORT_NAME"})
_SILENT = frozenset({"CACHE", "PRECALL", "TO_BOOL", "PUSH_NULL", "NOT_TAKEN"})


def _chains(code: types.CodeType) -> Iterator[_Chain]:
    names: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in _SILENT:
            continue
        if step.opname in _ATTRIBUTES:
            names = (*(names or ("",)), str(step.argval))
            continue
        if names:
            yield _Chain(names, step.opname.startswith(("POP_JUMP", "JUMP_IF")))
        names = (str(step.argval),) if step.opname in _NAMES else ()
    if names:
        yield _Chain(names, tested=False)


def _resolve(scope: dict[str, Any], names: tuple[str, ...]) -> Any:
    found = scope.get(names[0])
    for name in names[1:]:
        found = getattr(found, name, None)
    return found


def _imported(code: types.CodeType) -> dict[str, Any]:
    """What a function imports itself, by the names it gives: objects, or dotted names where they are not loaded yet."""
    found: dict[str, Any] = {}
    module = what = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = what = str(step.argval)
        elif step.opname == "IMPORT_FROM":
            what = f"{module}.{step.argval}"
        elif step.opname.startswith("STORE_") and what:
            found[str(step.argval)] = _loaded(what)
            what = ""
        elif step.opname == "POP_TOP":
            module = what = ""
    return found


def _loaded(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, _Unloaded(name))


@dataclass(frozen=True)
class _Unloaded:
    """Something of a module that is not loaded."""

    path: str
    """Where it would be."""

    def __getattr__(self, name: str) -> _Unloaded:
        return _Unloaded(f"{self.path}.{name}")


def _local_name(found: Any, names: tuple[str, ...], scope: dict[str, Any]) -> str | None:
    """What a call that goes to local files is called; None for others."""
    try:
        known = _LOCAL_CALLS.get(found)
    except TypeError:  # cannot be hashed
        known = None
    if known is not None:
        return known
    if names[-1] in _LOCAL_METHODS and len(names) > 1:
        return f"Path.{names[-1]}"
    if isinstance(found, _Unloaded):
        return found.path if found.path in _LOCAL_NAMES else None
    module = scope.get(names[0])
    defined = {f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"}
    if len(names) > 1 and isinstance(module, types.ModuleType):
        defined.add(".".join([module.__name__, *names[1:]]))
    return next(iter(sorted(defined & _LOCAL_NAMES)), None)
