"""Arguments of the data module, checked before anything is made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data as torch_data

from geostream.errors import ConfigError
from geostream.loader import DataLoader
from geostream.samplers.checks import check_count
from geostream.samplers.units import Units, pixel_size

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "check_counts",
    "check_datasets",
    "check_indexes",
    "check_loader_options",
    "check_numbers",
    "check_sampler",
    "check_sampling",
    "check_strides",
]

_OWN = frozenset({"dataset", "batch_sampler", "collate_fn", "drop_last", "shuffle"})
"""Parameters of loaders that the module sets by itself, and are none of its own."""
_LOADERS = frozenset(
    name
    for loader in (DataLoader, torch_data.DataLoader)
    for name, parameter in inspect.signature(loader).parameters.items()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
)
_PASSED = _LOADERS - _OWN - {"batch_size", "sampler", "num_workers", "prefetch_batches"}
"""Those that it passes on."""


def check_datasets(splits: Any, given: Mapping[str, Any]) -> None:
    """Refuse what cannot be a stage's dataset, or datasets.

    Raises:
        ConfigError: several datasets to train on, an empty list, or ``splits`` beside datasets or without a call.
    """
    if isinstance(given["train"], list | tuple):
        raise ConfigError("train= takes one dataset: join several with | or &")
    for name, datasets in given.items():
        if isinstance(datasets, list | tuple) and not datasets:
            raise ConfigError(f"{name}={datasets!r} holds no dataset: leave {name}= out if there is none")
    if splits is None:
        return
    if not callable(splits):
        raise ConfigError(f"splits={splits!r}: pass a function without arguments that returns two or three datasets")
    if any(given[name] is not None for name in ("train", "val", "test")):
        raise ConfigError("splits= makes the datasets to train, validate and test on: leave train=, val=, test= out")


def check_strides(patch_size: Any, predict_stride: Any) -> None:
    """Refuse chips of no size, and steps that would leave holes between chips to predict on.

    Raises:
        ConfigError: either is not one or two positive whole numbers, or the second exceeds the first.
    """
    size = pixel_size(patch_size, Units.PIXELS, (1.0, 1.0), "patch_size")
    if predict_stride is None:
        return
    stride = pixel_size(predict_stride, Units.PIXELS, (1.0, 1.0), "predict_stride")
    if stride[0] > size[0] or stride[1] > size[1]:
        raise ConfigError(
            f"predict_stride={predict_stride!r} is larger than patch_size={patch_size!r}: pixels between the chips "
            "would get no prediction; pass as much or less"
        )


def check_counts(**counts: tuple[Any, int]) -> None:
    """Refuse arguments, each given with the least it may be, that are no whole numbers.

    Raises:
        ConfigError: one is none, or too small.
    """
    for name, (value, least) in counts.items():
        check_count(name, value, least)


def check_numbers(name: str, given: Any, word: str, *, above: float | None = None) -> None:
    """Refuse what is neither one finite number, nor several, nor ``word``.

    Args:
        name: what to call the argument in a message.
        given: what was passed; None, where nothing was.
        word: the one string that may be passed instead.
        above: what the numbers must exceed.

    Raises:
        ConfigError: it is none of these.
    """
    if given is None or (isinstance(given, str) and given == word):
        return
    numbers = _numbers(given)
    if numbers is None or not numbers.isfinite().all():
        raise ConfigError(f"{name}={given!r}: pass a finite number, or one for each channel, or {word!r}")
    if above is not None and not numbers.gt(above).all():
        raise ConfigError(f"{name}={given!r}: pass numbers above {above:g}, or {word!r}")


def _numbers(given: Any) -> torch.Tensor | None:
    parts = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, str) or any(isinstance(part, bool) for part in parts):
        return None
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if numbers.dtype == torch.bool or numbers.is_complex() or not numbers.numel() else numbers


def check_sampling(sampler: Any) -> Any:
    """``sampler``, if it is a known word, a sampler, or can be called with a dataset alone.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(sampler, str):
        if sampler not in {"tile", "batch", "random"}:
            raise ConfigError(
                f"sampler={sampler!r}: pass 'tile', 'batch', 'random', a sampler, or a function of the dataset"
            )
        return sampler
    if isinstance(sampler, Iterable):
        return sampler
    if not callable(sampler):
        raise ConfigError(f"sampler={sampler!r} is neither a sampler nor a function that makes one of the dataset")
    _check_callable_with_dataset(sampler)
    return sampler


def check_sampler(made: Any) -> Any:
    """``made``, what a function of the dataset returned, if it is a sampler.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(made, Iterable):
        raise ConfigError(f"the function passed as sampler= returned {made!r}, which is no sampler")
    return made


def _check_callable_with_dataset(sampler: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(sampler)
    except (TypeError, ValueError):  # built in, and says nothing of its arguments
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(sampler, "__name__", repr(sampler))
        raise ConfigError(
            f"sampler={name} cannot be called with the dataset alone ({error}): pass a function of the dataset, such "
            f"as lambda dataset: {name}(dataset, …)"
        ) from error


def check_indexes(indexes: Any) -> dict[str, Any]:
    """``indexes`` as a dict of sources by the local file that holds each.

    Raises:
        ConfigError: it is no mapping.
    """
    if indexes is None:
        return {}
    if not isinstance(indexes, Mapping):
        raise ConfigError(f"indexes={indexes!r}: pass a dict such as {{'train.parquet': 's3://bucket/images/'}}")
    return dict(indexes)


def check_loader_options(options: Collection[str]) -> None:
    """Refuse keyword arguments that neither the module nor a loader knows.

    Raises:
        ConfigError: there is one.
    """
    for name in options:
        if name in _OWN:
            raise ConfigError(f"{name}= is no argument of GeoDataModule: it sets its loaders' {name} by itself")
        if name not in _PASSED:
            raise ConfigError(
                f"{name}= is no argument of GeoDataModule, nor one that it passes on to geostream.DataLoader "
                f"({', '.join(sorted(_PASSED))})"
            )
