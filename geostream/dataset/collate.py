"""Samples put together: side by side into a batch, one on another's channels, or one in another's holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Sample", "concat_samples", "merge_samples", "stack_samples", "unbind_samples"]

Sample = dict[str, Any]
"""What a dataset returns: tensors by name, such as ``image`` (C, H, W) and ``mask`` (H, W)."""

_PLACE = frozenset({"bounds", "transform", "crs", "dates"})
"""Keys that say where and when a sample lies: the same in all samples of one query, so one of them is kept."""
_PIXELS = ("image", "mask")
"""Keys whose holes can be filled."""
_NUMPY_KNOWS_BETTER = {torch.uint16, torch.uint32, torch.uint64}
"""Types for which torch lacks most operations, and types that hold them and others."""
_PLANE = 2
_SAME_SHAPE = "datasets that are combined must answer a query with the same shape"


def stack_samples(samples: Iterable[Sample]) -> Sample:
    """Stack samples into a batch, for `torch.utils.data.DataLoader`'s ``collate_fn``.

    Args:
        samples: samples with the same keys; a key's tensors have one shape and dtype.

    Returns:
        One sample whose tensors have a new first axis, the batch. What is no tensor becomes a list.

    Raises:
        ConfigError: a key's tensors differ in shape.
    """
    return {key: _stack(key, values) for key, values in _by_key(samples).items()}


def unbind_samples(sample: Sample) -> list[Sample]:
    """Take a batch apart: the reverse of `stack_samples`.

    Args:
        sample: a batch, whose values have the batch as their first axis.

    Returns:
        Its samples, each with all keys.
    """
    parts = {key: torch.unbind(value) if isinstance(value, Tensor) else list(value) for key, value in sample.items()}
    size = max(map(len, parts.values()), default=0)
    return [{key: values[i] for key, values in parts.items() if i < len(values)} for i in range(size)]


def concat_samples(samples: Iterable[Sample]) -> Sample:
    """Join samples of one place along their channels, for `IntersectionDataset`.

    Args:
        samples: samples of one query.

    Returns:
        One sample. Keys that only one sample has are taken over. Images (…, C, H, W) are joined on their channels, and
        masks (H, W) become the channels (C, H, W) of one. ``bounds``, ``transform``, ``crs`` and ``dates`` are those of
        the first; ``mask_valid`` is True where all are, ``skipped`` where any is.

    Raises:
        ConfigError: a key's tensors differ in height, width or another axis that is not the channels.
    """
    return {key: _concat(key, values) for key, values in _by_key(samples).items()}


def merge_samples(samples: Iterable[Sample]) -> Sample:
    """Merge samples of one place into one, each filling the holes of those before it, for `UnionDataset`.

    Args:
        samples: samples of one query, the preferred one first. A sample's ``mask_valid`` (1, H, W) says where it has
            data; one without it has data where any of its channels differs from zero.

    Returns:
        One sample. Of images, masks and what else is of their height and width, each pixel comes from the first sample
        that is valid there, or from the first of all where none is; every other key comes from the first sample that
        has it. Series (T, C, H, W) are merged
        date by date, and have the dates of all.

    Raises:
        ConfigError: images or masks differ in shape.
    """
    parts = list(samples)
    if any("mask_valid" in part for part in parts):
        parts = [part if "mask_valid" in part else {**part, **_guessed_validity(part)} for part in parts]
    series = [_by_date(part) for part in parts]
    if len(parts) > 1 and all(series) and len({frozenset(layer) for dates in series for layer in dates.values()}) == 1:
        return {**_first_of_each_key(parts), **_merged_by_date(series)}
    merged: Sample = {}
    for part in parts:
        holes = {key: ~_validity(merged, key) for key, value in part.items() if _is_raster(key, value, merged)}
        for key, value in part.items():
            if key not in merged:
                merged[key] = value
            elif key in holes:
                _check_shapes(key, [merged[key], value], _SAME_SHAPE)
                merged[key] = _where(holes[key] & _validity(part, key), value, merged[key])
            elif key == "mask_valid":
                merged[key] = merged[key] | value
    return merged


def _by_key(samples: Iterable[Sample]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for sample in samples:
        for key, value in sample.items():
            values.setdefault(key, []).append(value)
    return values


def _stack(key: str, values: list[Any]) -> Any:
    if not all(isinstance(value, Tensor) for value in values):
        return values
    _check_shapes(key, values, "a batch's samples must be of one size")
    whole = _common_tensor(values)
    return torch.stack(values) if whole is None else whole


def _common_tensor(values: Sequence[Tensor]) -> Tensor | None:
    """The tensor whose parts ``values`` are, one after the other, if there is one: it need not be copied together."""
    first = values[0]
    size = first.numel()
    for i, value in enumerate(values):
        if (
            value.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or value.storage_offset() != first.storage_offset() + i * size
            or value.dtype != first.dtype
            or not value.is_contiguous()
            or value.requires_grad
        ):
            return None
    if len(values) == 1 and first.untyped_storage().nbytes() != first.nbytes:
        return None
    return first.as_strided((len(values), *first.shape), (size, *first.stride()), first.storage_offset())


def _concat(key: str, values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or key in _PLACE or not all(isinstance(value, Tensor) for value in values):
        return first
    if key == "mask_valid":
        shape = max((value.shape for value in values), key=len)  # one plane stands for all dates of a series
        planes = [value.expand(shape) if value.shape == shape[-value.ndim :] else value for value in values]
        _check_shapes(key, planes, _SAME_SHAPE)
        return torch.stack(planes).all(dim=0)
    if key == "skipped":
        return torch.stack(values).any(dim=0)
    if first.ndim < _PLANE:
        return torch.cat([value.reshape(-1) for value in values])
    layers = [value[None] if value.ndim == _PLANE else value for value in values]
    others = [layer.movedim(-3, 0)[0] for layer in layers]
    _check_shapes(key, others, _SAME_SHAPE)
    return torch.cat(layers, dim=-3)


def _check_shapes(key: str, values: Sequence[Tensor], advice: str) -> None:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        raise ConfigError(f"{key!r} has the shapes {sorted(shapes)}: {advice}")


def _by_date(sample: Sample) -> dict[float, Sample]:
    """The pixels of a series, date by date; nothing of a sample that is none."""
    dates = sample.get("dates")
    if not isinstance(dates, Tensor):
        return {}
    valid = sample.get("mask_valid")
    pixels = {
        key: value
        for key, value in sample.items()
        if isinstance(value, Tensor) and (key in _PIXELS or (isinstance(valid, Tensor) and _covers(valid, value)))
    }
    if any(len(value) != len(dates) for value in pixels.values()):
        return {}
    return {date: {key: value[i] for key, value in pixels.items()} for i, date in enumerate(dates.tolist())}


def _merged_by_date(series: Sequence[dict[float, Sample]]) -> Sample:
    dates = sorted({date for layers in series for date in layers})
    layers = [merge_samples([layers[date] for layers in series if date in layers]) for date in dates]
    merged = {key: torch.stack([layer[key] for layer in layers]) for key in layers[0]}
    return {**merged, "dates": torch.tensor(dates, dtype=torch.float64)}


def _first_of_each_key(samples: Sequence[Sample]) -> Sample:
    return {key: value for sample in reversed(samples) for key, value in sample.items()}


def _is_raster(key: str, value: Any, merged: Sample) -> bool:
    """Whether ``key`` holds pixels in both samples, so that holes can be filled."""
    other, valid = merged.get(key), merged.get("mask_valid")
    if not isinstance(value, Tensor) or not isinstance(other, Tensor) or key in {*_PLACE, "mask_valid", "skipped"}:
        return False
    return key in _PIXELS or (isinstance(valid, Tensor) and value.shape == other.shape and _covers(valid, value))


def _covers(valid: Tensor, pixels: Tensor) -> bool:
    """Whether ``valid``, (…, 1, H, W), tells which of these pixels hold data."""
    return pixels.ndim in (valid.ndim, valid.ndim - 1) and pixels.shape[-2:] == valid.shape[-2:]


def _validity(sample: Sample, key: str) -> Tensor:
    """Where ``key`` has data, broadcastable to it."""
    pixels: Tensor = sample[key]
    valid = sample.get("mask_valid")
    if isinstance(valid, Tensor):
        return valid[..., 0, :, :] if pixels.ndim < valid.ndim else valid
    return (pixels != 0).any(dim=-3, keepdim=True) if pixels.ndim > _PLANE else pixels != 0


def _guessed_validity(sample: Sample) -> Sample:
    """``mask_valid`` of a sample that lacks it, by TorchGeo's rule that zeros are holes."""
    key = next((key for key in _PIXELS if isinstance(sample.get(key), Tensor)), None)
    if key is None:
        return {}
    valid = _validity(sample, key)
    return {"mask_valid": valid if valid.ndim > _PLANE else valid[None]}


def _where(condition: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    types = {ours.dtype, theirs.dtype}
    if torch.bfloat16 not in types and (len(types) == 1 or types & _NUMPY_KNOWS_BETTER):
        return torch.from_numpy(np.where(condition.numpy(), ours.numpy(), theirs.numpy()))
    return torch.where(condition, ours, theirs)
