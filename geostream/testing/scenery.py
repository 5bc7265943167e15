"""Made-up landscapes: imagery that compresses like aerial photographs, and the land cover that explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["CLASSES", "CLASS_COLORS", "scene", "scene_labels"]

CLASSES = ("water", "forest", "grass", "field", "built")
"""Names of the classes of `scene_labels`, by value."""

CLASS_COLORS = ((38, 84, 150), (28, 94, 46), (138, 178, 92), (206, 178, 102), (170, 164, 160))
"""An RGB colour for each of `CLASSES`."""

_SPECTRA = np.array(
    [  # red, green, blue, near infrared; reflectance
        [0.09, 0.16, 0.20, 0.04],
        [0.13, 0.22, 0.13, 0.48],
        [0.34, 0.44, 0.24, 0.66],
        [0.52, 0.45, 0.31, 0.50],
        [0.62, 0.60, 0.58, 0.54],
    ],
    dtype=np.float32,
)
_ROUGHNESS = np.array([0.01, 0.10, 0.03, 0.03, 0.12], dtype=np.float32)
_GRAIN = 0.003
_PLOT = 96
_PLOTS_IN_USE = 0.55
_FLAT, _LOW, _HIGH = 0.9, -0.85, 0.2  # relief, in standard deviations
_WOODED, _DRY = 0.35, -0.7  # moisture


def scene_labels(height: int, width: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Land cover of the made-up landscape ``seed``: values of `CLASSES`, uint8 (height, width)."""
    labels: NDArray[np.uint8] = _land(height, width, seed)[0]
    return labels


def scene(height: int, width: int, bands: int = 4, *, seed: int = 0, dtype: DTypeLike = "uint8") -> NDArray[Any]:
    """Imagery of the made-up landscape ``seed``, the one `scene_labels` maps.

    Args:
        height: rows.
        width: columns.
        bands: number of bands: red, green, blue, near infrared, and mixtures of these from the fifth on.
        seed: which landscape.
        dtype: reflectance from 0 to 1 becomes 0 to 255 in 8-bit integers (127 if signed), 0 to 10,000 in wider ones.

    Returns:
        ``dtype`` (bands, height, width).
    """
    labels, tone, texture = _land(height, width, seed)
    rng = np.random.default_rng([seed, 1])
    shade = 1 + tone + _ROUGHNESS[labels] * texture
    out = np.empty((bands, height, width), dtype=dtype)
    for band in range(bands):
        spectrum = _SPECTRA[:, band] if band < 4 else _SPECTRA @ rng.dirichlet(np.ones(4)).astype(np.float32)  # noqa: PLR2004 - bands named above
        grain = rng.standard_normal((height, width), dtype=np.float32) * np.float32(_GRAIN)
        out[band] = _quantized(spectrum[labels] * shade + grain, out.dtype)
    return out


def _quantized(reflectance: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind not in "iu":
        return reflectance.astype(dtype)
    top = min(10_000, np.iinfo(dtype).max)
    return np.clip(np.rint(reflectance * top), 0, top).astype(dtype)


def _land(height: int, width: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Labels, the slowly varying tone of the ground and its fine texture, (height, width) each."""
    rng = np.random.default_rng([seed, 0])
    relief = _fractal(rng, height, width, coarsest=512, finest=8)
    moisture = _fractal(rng, height, width, coarsest=256, finest=4)
    texture = _fractal(rng, height, width, coarsest=8, finest=1)
    tone = np.float32(0.15) * _fractal(rng, height, width, coarsest=1024, finest=256)
    labels = np.full((height, width), CLASSES.index("grass"), dtype=np.uint8)
    plots, plot_tone = _plots(rng, height, width)
    labels[plots & (np.abs(relief) < _FLAT)] = CLASSES.index("field")
    labels[moisture > _WOODED] = CLASSES.index("forest")
    labels[(relief > _HIGH) & (moisture < _DRY)] = CLASSES.index("built")
    labels[relief < _LOW] = CLASSES.index("water")
    tone += np.where(labels == CLASSES.index("field"), plot_tone, np.float32(0))
    return labels, tone, texture


def _fractal(rng: np.random.Generator, height: int, width: int, *, coarsest: int, finest: int) -> NDArray[np.float32]:
    """Noise of unit variance with features of ``coarsest`` pixels, and halves thereof ever weaker, to ``finest``."""
    cell, weight = coarsest, 1.0
    field = rng.standard_normal((height // cell + 2, width // cell + 2), dtype=np.float32)
    while cell > 1:
        cell, weight = cell // 2, weight * 0.6
        field = _doubled(_doubled(field, height // cell + 2).T, width // cell + 2).T
        if cell >= finest:
            field += np.float32(weight) * rng.standard_normal(field.shape, dtype=np.float32)
    field = field[:height, :width]
    return np.ascontiguousarray(field / max(float(field.std()), 1e-6), dtype=np.float32)


def _doubled(field: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """``size`` rows at half the distance, every other one the mean of its neighbours."""
    out = np.empty((2 * len(field) - 1, field.shape[1]), dtype=np.float32)
    out[::2] = field
    out[1::2] = (field[1:] + field[:-1]) * np.float32(0.5)
    return out[:size]


def _plots(rng: np.random.Generator, height: int, width: int) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Where fields lie, in a tilted pattern of plots, and how bright each is."""
    angle = rng.uniform(0.1, 0.6)
    rows, cols = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)[None, :]
    cos, sin = np.float32(np.cos(angle) / _PLOT), np.float32(np.sin(angle) / _PLOT)
    across = np.floor(cols * cos + rows * sin).astype(np.int32)
    along = np.floor((rows * cos - cols * sin) / np.float32(1.5)).astype(np.int32)
    table = rng.random(4096, dtype=np.float32)
    tone = table[(across * 61 + along * 389) % len(table)]
    return tone < _PLOTS_IN_USE, (tone - np.float32(_PLOTS_IN_USE / 2)) * np.float32(0.9)
