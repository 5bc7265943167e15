"""Pictures of samples: images in natural colours, masks in the files' own, dates side by side. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from geostream.dataset.collate import Sample

__all__ = ["Style", "draw", "style_of"]

_PERCENTILES = (2, 98)
"""Values shown as black and as white, so that a few bright roofs or clouds leave the rest its contrast."""
_INCHES = 4.0
"""Edge of a panel."""
_CLASS_COLORS = 20
"""Classes that matplotlib's ``tab20`` tells apart."""
_RGB = 3
_SERIES = 4


@dataclass(frozen=True)
class Style:
    """How a dataset's samples are shown."""

    rgb: tuple[int, ...] | None = None
    """Channels to show as red, green and blue; None where the dataset names none, or does not read them."""
    bands: tuple[str, ...] = ()
    """Names of the channels."""
    cmap: Any = None
    """Colours of the mask's values: what matplotlib takes as ``cmap``, or (R, G, B, A; 0-255) by value."""


@dataclass(frozen=True)
class _Panel:
    title: str
    pixels: NDArray[Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def style_of(dataset: Any) -> Style:
    """What a dataset's attributes say, TorchGeo's included: of a composition, those of its first images and masks."""
    leaves = _leaves(dataset)
    images = next((leaf for leaf in leaves if getattr(leaf, "is_image", False)), None)
    masks = next((leaf for leaf in leaves if not getattr(leaf, "is_image", False)), leaves[0])
    bands = tuple(getattr(images, "bands", ()))
    wanted = tuple(getattr(images, "rgb_bands", ()))
    rgb = tuple(bands.index(band) for band in wanted) if wanted and set(wanted) <= set(bands) else None
    return Style(rgb, tuple(map(str, bands)), getattr(masks, "cmap", None))


def _leaves(dataset: Any) -> list[Any]:
    parts = getattr(dataset, "datasets", None)
    return [dataset] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


def draw(sample: Sample, style: Style, *, show_titles: bool, suptitle: str | None) -> Figure:
    """Show what a sample holds of ``image``, ``mask`` and ``prediction``; dates of a series in a row for each.

    Raises:
        ConfigError: it holds none of them, or matplotlib is not installed.
    """
    if not isinstance(sample, Mapping):
        raise ConfigError(f"a {type(sample).__name__} is no sample to plot: pass what the dataset returned")
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise ConfigError("plotting needs matplotlib: pip install matplotlib") from error
    rows = _rows(sample, style)
    if not rows:
        raise ConfigError(f"a sample of {sorted(sample)} has nothing to plot: it needs 'image', 'mask' or 'prediction'")
    across = max(map(len, rows))
    height, width = rows[0][0].pixels.shape[:2]
    edge = _INCHES / max(height, width)
    size = (max(1.0, edge * width) * across, (max(1.0, edge * height) + 0.3 * show_titles) * len(rows))
    figure, axes = plt.subplots(len(rows), across, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.axis("off")
    for line, panels in zip(axes, rows, strict=True):
        for axis, panel in zip(line, panels, strict=False):
            axis.imshow(panel.pixels, interpolation="nearest", **panel.options)
            if show_titles:
                axis.set_title(panel.title)
    if suptitle is not None:
        figure.suptitle(suptitle)
    return figure


def _rows(sample: Sample, style: Style) -> list[list[_Panel]]:
    kinds = [key for key in ("image", "mask", "prediction") if isinstance(sample.get(key), Tensor)]
    rows = []
    for key in kinds:
        pixels = _array(sample[key])
        valid = _validity(sample, pixels)
        rows.append(_images(pixels, valid, style) if key == "image" else _masks(key.capitalize(), pixels, valid, style))
    if not any(_is_series(key, sample[key]) for key in kinds):
        return [[panel for row in rows for panel in row]] if rows else []
    dates = sample.get("dates")
    return [_dated(row, dates) if isinstance(dates, Tensor) else row for row in rows]


def _is_series(key: str, pixels: Tensor) -> bool:
    """Whether there are several dates: masks of a series that have one channel come without the channels' axis."""
    return pixels.ndim == _SERIES or (key != "image" and pixels.ndim == _RGB)


def _dated(row: list[_Panel], dates: Tensor) -> list[_Panel]:
    if len(row) != len(dates):
        return row
    days = [f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}" for seconds in dates.tolist()]
    return [_Panel(f"{panel.title} {day}", panel.pixels, panel.options) for panel, day in zip(row, days, strict=True)]


def _array(pixels: Tensor) -> NDArray[Any]:
    """The pixels in a type that NumPy has, complex ones by their magnitude."""
    pixels = pixels.detach().cpu()
    if pixels.dtype == torch.bfloat16:
        pixels = pixels.float()
    return np.abs(pixels.numpy()) if pixels.is_complex() else pixels.numpy()


def _validity(sample: Sample, pixels: NDArray[Any]) -> NDArray[np.bool_]:
    """(1 or T, H, W): where there is something to show."""
    valid = sample.get("mask_valid")
    size = pixels.shape[-2:]
    if not isinstance(valid, Tensor) or tuple(valid.shape[-2:]) != size:
        return np.ones((1, *size), bool)
    return valid.detach().cpu().numpy().reshape(-1, *size).astype(bool)


def _images(pixels: NDArray[Any], valid: NDArray[np.bool_], style: Style) -> list[_Panel]:
    series = pixels if pixels.ndim == _SERIES else pixels[None]
    channels = series.shape[1]
    if style.rgb is not None and max(style.rgb) < channels:
        chosen: tuple[int, ...] = style.rgb
    else:
        chosen = (0, 1, 2) if channels >= _RGB and not style.bands else (0,)
    title = style.bands[chosen[0]] if len(chosen) == 1 and channels > 1 and style.bands else "Image"
    shown = series[:, chosen].astype(np.float64)
    opaque = np.isfinite(shown).all(axis=1) & valid
    colors = _stretched(shown, opaque)
    if len(chosen) != _RGB:
        colors = colors[:, :1].repeat(_RGB, axis=1)
    rgba = np.concatenate([colors, opaque[:, None]], axis=1)
    return [_Panel(title, picture.transpose(1, 2, 0)) for picture in rgba]


def _stretched(pixels: NDArray[np.float64], opaque: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Each channel from 0 to 1 between two percentiles of what is to be seen on all dates, so that dates compare."""
    out = np.zeros_like(pixels)
    for channel in range(pixels.shape[1]):
        band = pixels[:, channel]
        if not opaque.any():
            continue
        low, high = np.percentile(band[opaque], _PERCENTILES)
        if low == high:
            low, high = low - 0.5, high + 0.5
        out[:, channel] = np.clip((np.where(opaque, band, low) - low) / (high - low), 0, 1)
    return out


def _masks(title: str, pixels: NDArray[Any], valid: NDArray[np.bool_], style: Style) -> list[_Panel]:
    """A panel for each date and channel."""
    layers = pixels.reshape(-1, *pixels.shape[-2:])
    holes = ~np.broadcast_to(valid, layers.shape) if len(valid) in (1, len(layers)) else np.zeros(layers.shape, bool)
    options = _mask_options(layers[~holes], style.cmap)
    return [_Panel(title, np.ma.masked_where(hole, layer), options) for layer, hole in zip(layers, holes, strict=True)]


def _mask_options(values: NDArray[Any], cmap: Any) -> dict[str, Any]:
    """Colours, and the values at their ends: a list of colours is indexed by value."""
    if isinstance(cmap, Mapping):
        cmap = _listed(cmap)
    if hasattr(cmap, "colors") and values.dtype.kind in "iub":
        return {"cmap": cmap, "vmin": 0, "vmax": cmap.N - 1}
    if not values.size:
        return {"cmap": cmap}
    low, high = values.min(), values.max()
    if cmap is None and values.dtype.kind in "iub" and low >= 0 and high < _CLASS_COLORS:
        return {"cmap": "tab20", "vmin": 0, "vmax": _CLASS_COLORS - 1}
    return {"cmap": cmap, "vmin": low, "vmax": high}  # the same on all dates


def _listed(colors: Mapping[int, Sequence[int]]) -> Any:
    """Colours by value, as classes of TorchGeo's write them (R, G, B, A; 0-255), for matplotlib; others are clear."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - heavy, and optional

    table = np.zeros((max(colors, default=0) + 1, 4))
    for value, color in colors.items():
        table[value] = [*color[:3], *(color[3:] or (255,))]
    return ListedColormap(table / 255)
