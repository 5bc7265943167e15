"""On the device: native dtypes to float, normalisation, and kornia augmentation of images and masks alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import torch
from torch import Tensor, nn

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Augmentation", "augment", "floating", "normalise", "normalises", "seeded"]

Augmentation = Callable[..., Any]
"""A kornia ``AugmentationSequential``, another kornia augmentation, or a function of the whole batch."""
Statistic = float | Sequence[float] | Tensor
"""One number, or one per channel."""

_EXACT = 2**24
"""Integers up to here are exact in float32, in which kornia moves masks."""
_VIDEO = 5
"""Axes of a batch of image series."""
_PLANES = 3
"""Axes of a batch of masks without channels."""


def floating(batch: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The batch with its images in ``dtype``: every tensor whose key starts with ``image``."""
    return {key: value.to(dtype) if _is(key, value, "image") else value for key, value in batch.items()}


def normalise(batch: dict[str, Any], mean: Statistic, std: Statistic) -> dict[str, Any]:
    """The batch with its floating point images brought to ``(image - mean) / std``.

    Args:
        batch: tensors by name; images are (B, C, H, W) or (B, T, C, H, W).
        mean: one number, or one per channel.
        std: the same.

    Raises:
        ConfigError: a standard deviation of zero, or not one number per channel.
    """
    if torch.as_tensor(std).eq(0).any():
        raise ConfigError(
            f"std={std}: a standard deviation of zero cannot be divided by; leave the channel out or pass 1"
        )

    def scaled(key: str, image: Tensor) -> Tensor:
        return (image - _per_channel(key, image, mean, "mean")) / _per_channel(key, image, std, "std")

    return {key: scaled(key, value) if _is(key, value, "image") else value for key, value in batch.items()}


def _per_channel(key: str, image: Tensor, statistic: Statistic, name: str) -> Tensor:
    values = torch.as_tensor(statistic, dtype=image.dtype, device=image.device).reshape(-1)
    channels = image.shape[-3]
    if len(values) not in {1, channels}:
        raise ConfigError(
            f"{name} has {len(values)} values, and {key!r} has {channels} channels: pass one each, or one"
        )
    return values[:, None, None]


def normalises(augmentation: Augmentation | None) -> bool:
    """Whether ``augmentation`` brings its own `kornia.augmentation.Normalize`, as TorchGeo's do."""
    modules = augmentation.modules() if isinstance(augmentation, torch.nn.Module) else ()
    return any(isinstance(module, K.Normalize) for module in modules)


@contextmanager
def seeded(*parts: int, device: torch.device) -> Iterator[None]:
    """Within the block, torch's random numbers are a function of ``parts``; outside, nothing has been drawn."""
    seed = zlib.crc32(",".join(map(str, parts)).encode()) << 32 | zlib.adler32(repr(parts[::-1]).encode())
    devices = [device] if device.type not in {"cpu", "meta", "mps"} else []
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield


def augment(batch: dict[str, Any], augmentation: Augmentation) -> dict[str, Any]:
    """The batch with images and masks augmented alike.

    A kornia augmentation sees tensors whose keys start with ``image`` or ``mask`` (``mask_valid`` too) and nothing
    else: ``bounds`` and ``transform`` keep saying where the chip was read. Masks go through as (B, C, H, W), by nearest
    neighbour, and come back in their own shape and dtype with their labels exact. An image series (B, T, C, H, W) is
    moved as one, its frames and masks alike. Any other callable is given the whole batch.

    Args:
        batch: tensors by name, images in floating point.
        augmentation: what to apply.

    Raises:
        ConfigError: an image series with augmentations that change colours, a batch without an image, or masks with
            more different labels than float32 can tell apart.
    """
    if not _is_kornia(augmentation):
        changed: dict[str, Any] = augmentation(batch)
        return changed
    sequence: Any = augmentation
    if not isinstance(sequence, K.AugmentationSequential):
        parts = sequence if isinstance(sequence, nn.Sequential) else [sequence]
        sequence = K.AugmentationSequential(*parts, data_keys=None)  # alone they would move images only
    images = [key for key, value in batch.items() if _is(key, value, "image")]
    masks = [key for key, value in batch.items() if _is(key, value, "mask")]
    if not images:
        raise ConfigError(f"a batch of {sorted(batch)} holds no image to augment: pass no augmentation for this stage")
    planes, restored = _flat(batch, images, sequence), {key: _Mask(key, batch[key]) for key in masks}
    inputs = [*planes.values(), *(mask.encoded for mask in restored.values())]
    outputs = sequence(*inputs, data_keys=["input"] * len(images) + ["mask"] * len(masks))
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    moved = dict(zip([*images, *masks], outputs, strict=True))
    return {
        **batch,
        **{key: _unflat(moved[key], batch[key]) for key in images},
        **{key: restored[key].decoded(moved[key]) for key in masks},
    }


class _Mask:
    """A mask as kornia takes it, (B, C, H, W) in floating point, and the way back."""

    def __init__(self, key: str, mask: Tensor) -> None:
        if mask.ndim not in {_PLANES, _PLANES + 1}:
            raise ConfigError(
                f"{key!r} has the shape {tuple(mask.shape)}: a batch's masks are (B, H, W) or (B, C, H, W)"
            )
        self._mask = mask
        self._labels: Tensor | None = None
        planes = mask if mask.ndim > _PLANES else mask[:, None]
        if not mask.is_floating_point() and mask.dtype != torch.bool and _largest(planes) > _EXACT:
            planes = self._numbered(key, planes)
        self.encoded = planes if mask.is_floating_point() else planes.to(torch.float32)

    def _numbered(self, key: str, planes: Tensor) -> Tensor:
        # 0 stays 0, which is what augmentations fill with.
        self._labels, numbers = torch.unique(torch.cat([planes.new_zeros(1), planes.reshape(-1)]), return_inverse=True)
        zero = numbers[0].clone()
        self._labels[zero], self._labels[0] = self._labels[0].clone(), self._labels[zero].clone()
        if len(self._labels) > _EXACT:
            raise ConfigError(f"{key!r} has {len(self._labels)} different labels: more than float32 can tell apart")
        swapped = torch.where(numbers == 0, zero, torch.where(numbers == zero, 0, numbers))
        return swapped[1:].reshape(planes.shape)

    def decoded(self, planes: Tensor) -> Tensor:
        """The augmented ``planes`` in the mask's own shape, dtype and labels."""
        if not self._mask.is_floating_point():
            planes = planes > 0.5 if self._mask.dtype == torch.bool else planes.round().to(torch.int64)  # noqa: PLR2004
            planes = planes if self._labels is None else self._labels[planes]
        planes = planes.to(self._mask.dtype)
        return planes if self._mask.ndim > _PLANES else planes[:, 0]


def _largest(planes: Tensor) -> int:
    return int(max(abs(int(planes.max())), abs(int(planes.min())))) if planes.numel() else 0


def _flat(batch: dict[str, Any], images: list[str], sequence: Any) -> dict[str, Tensor]:
    """Images as (B, C, H, W): a series' frames become channels, so that all are moved alike."""
    if any(batch[key].ndim == _VIDEO for key in images) and not _moves_only(sequence):
        raise ConfigError(
            "an image series (B, T, C, H, W) takes augmentations that move pixels (flips, rotations, crops), not ones "
            "that change values: pass those as transforms= of the dataset, or as a function of the whole batch"
        )
    return {key: batch[key].flatten(1, 2) if batch[key].ndim == _VIDEO else batch[key] for key in images}


def _unflat(moved: Tensor, image: Tensor) -> Tensor:
    return moved.reshape(*image.shape[:3], *moved.shape[-2:]) if image.ndim == _VIDEO else moved


def _moves_only(sequence: Any) -> bool:
    leaves = [module for module in sequence.modules() if isinstance(module, K.AugmentationBase2D)]
    return all(isinstance(leaf, K.GeometricAugmentationBase2D) for leaf in leaves)


def _is_kornia(augmentation: Any) -> bool:
    bases = (K.AugmentationBase2D, K.AugmentationBase3D, K.ImageSequential, K.MixAugmentationBaseV2)
    if isinstance(augmentation, nn.Sequential):
        return len(augmentation) > 0 and all(isinstance(part, bases) for part in augmentation)
    return isinstance(augmentation, bases)


def _is(key: str, value: Any, prefix: str) -> bool:
    return key.startswith(prefix) and isinstance(value, Tensor)
