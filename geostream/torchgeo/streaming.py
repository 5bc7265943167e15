"""``streaming(cls)``: a subclass of a TorchGeo class that reads through geostream."""

from __future__ import annotations

import abc
import copyreg
import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from geostream.errors import ConfigError
from geostream.torchgeo.refusal import why_not
from geostream.transport import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsspec import AbstractFileSystem

    from geostream.scan.index import Index
    from geostream.transport import Transport

__all__ = ["streaming"]

C = TypeVar("C", bound=type)

_ORIGINAL = "_streams"
"""Attribute of a class that `streaming` made: the class it was made of."""
_made: dict[type, type] = {}


def streaming(cls: C) -> C:
    """A subclass of a TorchGeo `RasterDataset` class whose files geostream finds, opens and reads.

    Its constructor takes what ``cls`` takes, ``paths`` being any fsspec URLs, and by keyword ``storage_options``,
    ``fs``, ``index``, ``sign`` and ``transport`` as `geostream.RasterDataset` does. Everything else is the class's own:
    its ``__init__``, regular expressions, bands, ``plot``, ``__getitem__``, and its overrides of TorchGeo's hooks. So
    are the samples, and how scenes that overlap are merged (zeros count as holes where no nodata value is declared).
    On the raster's own grid they are those of ``cls`` itself, pixel by pixel; elsewhere pixels are resampled once,
    where TorchGeo warps by nearest neighbour first.

    Headers are read many at once. Files that match the class's pattern but are no rasters are left out with a warning;
    files that cannot be fetched raise. Datasets pickle, and so does the class.

    Args:
        cls: `RasterDataset` of TorchGeo 0.8 to 0.10, or a subclass, concrete or abstract.

    Returns:
        The subclass, of the same name; the same one each time.

    Raises:
        ConfigError: TorchGeo is not installed; ``cls`` is none of its raster datasets, or one whose files do not come
            from ``files``, or whose pixels do not come through ``_load_warp_file``, ``_merge_files`` or
            ``_merge_or_stack``. The message says which, and where.
    """
    try:
        from torchgeo.datasets import RasterDataset  # noqa: PLC0415 - optional

        from geostream.torchgeo.hooks import StreamedRasters  # noqa: PLC0415 - derives from TorchGeo's class
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"streaming() needs TorchGeo, and {error.name} is not installed: pip install 'geostream[torchgeo]'"
        ) from error
    if not isinstance(cls, type) or not issubclass(cls, RasterDataset):
        raise ConfigError(_not_a_raster_dataset(cls))
    if issubclass(cls, StreamedRasters):
        return cls
    made = _made.get(cls)
    if made is None:
        reason = why_not(cls, RasterDataset)
        if reason is not None:
            raise ConfigError(f"{cls.__name__} cannot be streamed: {reason}")
        made = _made[cls] = _subclass(cls, StreamedRasters, direct=cls is RasterDataset)
    return made  # type: ignore[return-value]  # a subclass of cls, made at run time


def _not_a_raster_dataset(cls: Any) -> str:
    name = getattr(cls, "__name__", None) or repr(cls)
    if isinstance(cls, type) and any(base.__name__ == "IntersectionDataset" for base in cls.__mro__):
        return (
            f"{name} combines datasets itself: combine their streaming classes instead, as in "
            "streaming(A)(urls) & streaming(B)(urls)"
        )
    return f"{name} is no subclass of TorchGeo's RasterDataset, whose files and hooks streaming() takes over"


def _subclass(cls: type, hooks: type, *, direct: bool) -> type:
    """The class itself; ``hooks`` come right before `RasterDataset` in the order in which Python looks methods up.

    So whatever ``cls`` overrides comes first, and where it calls ``super()`` it reaches the hooks.
    """
    bases = (hooks,) if direct else (cls, hooks)
    made: type = _metaclass(type(cls))(
        cls.__name__,  # some classes read their own name
        bases,
        {"__doc__": cls.__doc__, "__module__": __name__, "__qualname__": cls.__qualname__, _ORIGINAL: cls},
    )
    made.__init__ = _constructor(made, cls)  # type: ignore[misc]
    return made


def _constructor(made: Any, cls: type) -> Callable[..., None]:
    @functools.wraps(cls.__init__)  # type: ignore[misc]  # its signature is what is wrapped
    def __init__(  # noqa: N807 - it becomes a method
        self: Any,
        *args: Any,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        index: Index | None = None,
        sign: Callable[[str], str] | None = None,
        transport: Transport = "auto",
        **kwargs: Any,
    ) -> None:
        self._begin(Access(storage_options, fs, transport=transport, sign=sign), index)
        super(made, self).__init__(*args, **kwargs)
        self._check_begun()

    own = inspect.signature(cls.__init__)  # type: ignore[misc]
    words = ("storage_options", "fs", "index", "sign", "transport")
    extra = [p for p in inspect.signature(__init__, follow_wrapped=False).parameters.values() if p.name in words]
    given = list(own.parameters.values())
    rest = [p for p in given if p.kind is p.VAR_KEYWORD]
    __init__.__signature__ = own.replace(parameters=[*(p for p in given if p not in rest), *extra, *rest])  # type: ignore[attr-defined]
    return __init__


class _Streaming(abc.ABCMeta):
    """Metaclass of what `streaming` makes: classes that pickle as "streaming of that class"."""


def _reduce(cls: type) -> str | tuple[Any, ...]:
    """For `copyreg`; a string means "by its global name"."""
    original = vars(cls).get(_ORIGINAL)
    return cls.__qualname__ if original is None else (streaming, (original,))


copyreg.pickle(_Streaming, _reduce)


@functools.cache
def _metaclass(kind: type) -> Any:
    if issubclass(_Streaming, kind):
        return _Streaming
    mixed = type("_Streaming", (_Streaming, kind), {})
    copyreg.pickle(mixed, _reduce)
    return mixed
