"""On the device: native dtypes to float, normalisation, and kornia augmentation of images and masks alike."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import torch
from kornia.augmentation.auto.base import PolicyAugmentBase
from torch import Tensor, nn

from geostream.errors import ConfigError
from geostream.placement import Corners, is_placed, unplaced

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Augmentation", "augment", "filled", "floating", "normalise", "normalises", "seeded"]

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
_MOVES = K.GeometricAugmentationBase2D
_FOLLOWED = (_MOVES, K.IntensityAugmentationBase2D, K.ImageSequential)
"""Augmentations under which kornia says where points go."""
_PATCHY = (K.PatchSequential, K.VideoSequential)
"""Containers that do not."""
_MIXES = K.MixAugmentationBaseV2
_KORNIA = (K.AugmentationBase2D, K.AugmentationBase3D, K.ImageSequential, _MIXES, PolicyAugmentBase)


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
        ConfigError: a standard deviation that is not above zero, or not one number per channel.
    """
    if not torch.as_tensor(std).gt(0).all():
        raise ConfigError(
            f"std={std}: a standard deviation of zero cannot be divided by, and none is negative or NaN; leave the "
            "channel out or pass 1"
        )

    def scaled(key: str, image: Tensor) -> Tensor:
        return (image - _per_channel(key, image, mean, "mean")) / _per_channel(key, image, std, "std")

    return {key: scaled(key, value) if _is(key, value, "image") else value for key, value in batch.items()}


def filled(batch: dict[str, Any], value: Statistic) -> dict[str, Any]:
    """The batch with ``value`` in its images where there is no data: where ``mask_valid`` is False, and where NaN is.

    Args:
        batch: tensors by name; images in floating point, ``mask_valid`` bool (B, 1, H, W) or (B, T, 1, H, W).
        value: one number, or one per channel.
    """
    valid = batch.get("mask_valid")

    def whole(key: str, image: Tensor) -> Tensor:
        missing = image.isnan()
        if isinstance(valid, Tensor):
            missing = missing | ~(valid if valid.ndim == image.ndim else valid[:, None])
        return torch.where(missing, _per_channel(key, image, value, "fill"), image)

    return {key: whole(key, item) if _is(key, item, "image") else item for key, item in batch.items()}


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

    A kornia augmentation sees tensors whose keys start with ``image`` or ``mask`` (``mask_valid`` too). Masks go
    through by nearest neighbour and come back in their own shape and dtype with their labels exact. An image series
    (B, T, C, H, W) is moved as one, its frames and masks alike, and its frames change colours alike.

    ``transform`` and ``bounds`` follow flips, turns, crops and all that an affine map describes: ``transform`` places
    the augmented pixels, ``bounds`` is the box around them. What none describes (perspectives, elastic deformations,
    mixtures of samples) takes both keys out of the batch: they would be wrong.

    Any other callable is given the whole batch, and answers for all of it.

    Args:
        batch: tensors by name, images in floating point.
        augmentation: what to apply.

    Raises:
        ConfigError: a batch without an image, masks without a height and width or with more different labels than
            float32 can tell apart, masks with an augmentation that mixes images alone (`RandomMixUpV2`,
            `RandomCutMixV2`, `RandomMosaic`, `RandomJigsaw`), an image series with value-changing augmentations that
            are drawn by lot (``random_apply``) or mix samples, or a callable that does not return a batch.
    """
    if not _is_kornia(augmentation):
        return _checked(augmentation(batch), augmentation)
    sequence = _sequence(augmentation)
    images = [key for key, value in batch.items() if _is(key, value, "image")]
    if not images:
        raise ConfigError(f"a batch of {sorted(batch)} holds no image to augment: pass no augmentation for this stage")
    masks = {key: _Mask(key, value) for key, value in batch.items() if _is(key, value, "mask")}
    _refuse_unmixed(sequence, list(masks))
    planes = {key: batch[key] for key in images} | {key: mask.encoded for key, mask in masks.items()}
    corners = _followed_corners(batch, images[0], sequence)
    points = None if corners is None else corners.points.to(batch[images[0]].device)
    for step in _steps(sequence, series=any(batch[key].ndim == _VIDEO for key in images)):
        if isinstance(step, K.AugmentationSequential):
            planes, points = _moved(step, planes, images, points)
        else:
            planes |= _recoloured(step, {key: planes[key] for key in images})
    moved = {**batch, **planes, **{key: mask.decoded(planes[key]) for key, mask in masks.items()}}
    if corners is None or points is None:
        return moved if _stays(sequence) else unplaced(moved)
    return corners.carry(moved, points, moved[images[0]].shape[-2:])


def _checked(changed: Any, augmentation: Augmentation) -> dict[str, Any]:
    if not isinstance(changed, dict):
        name = getattr(augmentation, "__name__", type(augmentation).__name__)
        raise ConfigError(
            f"the augmentation {name} returned a {type(changed).__name__}: a function is given the whole batch, a dict "
            "such as {'image': …, 'mask': …}, and returns one"
        )
    return changed


def _refuse_unmixed(sequence: Any, masks: Sequence[str]) -> None:
    """Masks must not stay behind where kornia mixes the samples' images and leaves the masks to others."""
    for part in sequence.modules():
        if isinstance(part, _MIXES) and masks and not _mixes_masks(type(part)):
            raise ConfigError(
                f"{type(part).__name__} mixes images only, and kornia does not say what becomes of {sorted(masks)}: "
                "use it on batches without masks or mask_valid, or pass a function of the whole batch that mixes both"
            )


def _mixes_masks(kind: type) -> bool:
    names = ("apply_transform_mask", "apply_non_transform_mask")
    return any(getattr(kind, name) is not getattr(_MIXES, name) for name in names)


def _followed_corners(batch: dict[str, Any], image: str, sequence: Any) -> Corners | None:
    """The image's corners, if the batch says where they lie and kornia will say where they go."""
    if _stays(sequence) or not _is_followed(sequence) or not is_placed(batch, len(batch[image])):
        return None
    return Corners(batch[image].shape[-2:], len(batch[image]))


def _sequence(augmentation: Any) -> Any:
    if isinstance(augmentation, K.AugmentationSequential):
        return augmentation
    parts = augmentation if type(augmentation) is nn.Sequential else [augmentation]
    return K.AugmentationSequential(*parts, data_keys=None)  # alone they would move images only


def _moved(
    sequence: Any, planes: dict[str, Tensor], images: list[str], points: Tensor | None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """What ``sequence`` makes of images and masks, the frames of a series as channels, and of points (B, N, 2)."""
    inputs = [value.flatten(1, -3) if value.ndim == _VIDEO else value for value in planes.values()]
    keys = ["input" if key in images else "mask" for key in planes]
    if points is not None:
        inputs, keys = [*inputs, points.to(inputs[0].dtype)], [*keys, "keypoints"]
    outputs = sequence(*inputs, data_keys=keys)
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    where = None if points is None else outputs.pop()
    moved = {
        key: output.reshape(*before.shape[:-2], *output.shape[-2:])
        for (key, before), output in zip(planes.items(), outputs, strict=True)
    }
    return moved, where


def _recoloured(leaf: Any, images: dict[str, Tensor]) -> dict[str, Tensor]:
    """Images changed by one augmentation of values, all frames of a sample's series alike."""
    first = next(iter(images.values()))
    drawn = leaf.forward_parameters(torch.Size((len(first), *first.shape[-3:])))
    return {
        key: torch.stack([leaf(frame, params=drawn) for frame in image.unbind(1)], dim=1)
        if image.ndim == _VIDEO
        else leaf(image, params=drawn)
        for key, image in images.items()
    }


def _steps(sequence: Any, *, series: bool) -> list[Any]:
    """What is applied one after the other: the sequence as a whole, or, to a series, moves and changes apart.

    Moves see a series' frames as channels of one image, in which changes of values would find the wrong colours.
    """
    if not series or _moves_only(sequence):
        return [sequence]
    steps: list[Any] = []
    for moves, leaves in itertools.groupby(_leaves(sequence), lambda leaf: isinstance(leaf, _MOVES)):
        parts = list(leaves)
        steps += [K.AugmentationSequential(*parts, extra_args=sequence.extra_args)] if moves else parts
    return steps


def _leaves(sequence: Any) -> Iterator[Any]:
    if getattr(sequence, "random_apply", False):
        raise ConfigError(
            "an image series (B, T, C, H, W) cannot take augmentations of values that are drawn by lot: leave "
            "random_apply out and give each augmentation its own p="
        )
    for part in sequence.children():
        if isinstance(part, K.ImageSequential):
            yield from _leaves(part)
        elif isinstance(part, _MOVES | K.IntensityAugmentationBase2D):
            yield part
        else:
            raise ConfigError(
                f"an image series (B, T, C, H, W) cannot take {type(part).__name__}: use augmentations that move "
                "pixels or change values of one sample, or a function of the whole batch"
            )


class _Mask:
    """A mask with channels and in floating point, as kornia takes it, and the way back."""

    def __init__(self, key: str, mask: Tensor) -> None:
        if not _PLANES <= mask.ndim <= _VIDEO:
            raise ConfigError(
                f"{key!r} has the shape {tuple(mask.shape)}: a batch's masks are (B, H, W), (B, C, H, W) or "
                "(B, T, C, H, W)"
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


def _moves_only(sequence: Any) -> bool:
    leaves = [module for module in sequence.modules() if isinstance(module, K.AugmentationBase2D)]
    return all(isinstance(leaf, _MOVES) for leaf in leaves)


def _stays(sequence: Any) -> bool:
    """Whether nothing in it moves a pixel."""
    parts = [module for module in sequence.modules() if isinstance(module, _KORNIA)]
    return all(isinstance(part, K.IntensityAugmentationBase2D | K.ImageSequential) for part in parts)


def _is_followed(sequence: Any) -> bool:
    """Whether kornia says where points go under all of it."""
    parts = [module for module in sequence.modules() if isinstance(module, _KORNIA)]
    return all(isinstance(part, _FOLLOWED) and not isinstance(part, _PATCHY) for part in parts)


def _is_kornia(augmentation: Any) -> bool:
    if type(augmentation) is nn.Sequential:
        return len(augmentation) > 0 and all(isinstance(part, _KORNIA) for part in augmentation)
    return isinstance(augmentation, _KORNIA)


def _is(key: str, value: Any, prefix: str) -> bool:
    return key.startswith(prefix) and isinstance(value, Tensor)
