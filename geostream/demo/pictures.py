"""What the demo saw: a batch as the model got it, and where in the scenes its chips came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from geostream.testing.scenery import CLASSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

__all__ = ["View", "draw_batch", "draw_footprints"]

_COLOURS = ("#2f7fc1", "#1f6b3a", "#9fce6a", "#e0a030", "#c8403a")
"""One for each class, further apart than the classes look from the air."""
_ACROSS, _DOWN = 8, 2
"""Chips a row, and rows of chips, in the picture of a batch."""
_INK = "#26323a"
_CHIP = "#ff5a1f"


@dataclass(frozen=True)
class View:
    """A scene seen from afar."""

    name: str
    """What to write beside it."""
    colours: np.ndarray[Any, np.dtype[np.uint8]]
    """Red, green, blue and opacity: (H, W, 4)."""
    extent: tuple[float, float, float, float]
    """Left, right, bottom and top of ``colours``, in the map's CRS."""
    outline: Sequence[tuple[float, float]]
    """Corners of the scene in the map's CRS."""


def draw_batch(
    path: Path, images: np.ndarray[Any, Any], masks: np.ndarray[Any, Any], guesses: np.ndarray[Any, Any]
) -> None:
    """Draw up to 16 chips, each above its mask and the model's guess.

    Args:
        path: PNG to write.
        images: colours (B, H, W, 3) from 0 to 1.
        masks: classes (B, H, W), negative where there is no data.
        guesses: classes (B, H, W).
    """
    figure = _figure(14.4, 11.3)
    axes = figure.subplots(3 * _DOWN, _ACROSS, gridspec_kw={"wspace": 0.03, "hspace": 0.03})
    for axis in axes.flat:
        axis.axis("off")
    for number in range(min(len(images), _ACROSS * _DOWN)):
        row, column = divmod(number, _ACROSS)
        photo, truth, guess = axes[3 * row : 3 * row + 3, column]
        image = _brighter(images[number])
        photo.imshow(image)
        for axis, classes in ((truth, masks[number]), (guess, guesses[number])):
            axis.imshow(image)
            axis.imshow(
                np.ma.masked_where(masks[number] < 0, classes),
                cmap=ListedColormap(_COLOURS),
                vmin=0,
                vmax=len(CLASSES) - 1,
                alpha=0.6,
                interpolation="nearest",
            )
    for row, label in enumerate(("chip", "mask", "model") * _DOWN):
        _beside(axes[row, 0], label)
    figure.suptitle(
        "One augmented batch, as the model got it", x=0.06, y=0.975, ha="left", size=17, color=_INK, weight="bold"
    )
    figure.legend(
        handles=_legend(), loc="lower center", ncols=len(CLASSES), frameon=False, fontsize=12, labelcolor=_INK
    )
    figure.subplots_adjust(left=0.06, right=0.99, top=0.945, bottom=0.05)
    figure.savefig(path)


def draw_footprints(path: Path, views: Sequence[View], chips: np.ndarray[Any, Any], crs: str) -> None:
    """Draw the scenes, their outlines and the chips read from them.

    Args:
        path: PNG to write.
        views: the scenes.
        chips: (N, 4), each xmin, xmax, ymin, ymax in the map's CRS.
        crs: the map's CRS, to be named.
    """
    figure = _figure(14.4, 8.2)
    axis = figure.subplots()
    for view in views:
        axis.imshow(_brighter(view.colours / np.float32(255)), extent=view.extent, interpolation="bilinear", zorder=1)
        axis.add_patch(Polygon(list(view.outline), closed=True, fill=False, edgecolor=_INK, linewidth=1.6, zorder=2))
        corner = max(view.outline, key=lambda corner: corner[1] - corner[0])
        axis.annotate(
            view.name, corner, (0, 7), textcoords="offset points", color=_INK, size=12, weight="bold", zorder=5
        )
    for xmin, xmax, ymin, ymax in chips:
        box = {"xy": (xmin, ymin), "width": xmax - xmin, "height": ymax - ymin}
        axis.add_patch(Rectangle(**box, facecolor=(1, 1, 1, 0.04), edgecolor=_CHIP, linewidth=0.6, zorder=3))
    xs, ys = np.array([corner for view in views for corner in view.outline]).T
    margin = 0.04 * np.ptp(ys)
    axis.set(
        xlim=(xs.min() - margin, xs.max() + margin), ylim=(ys.min() - margin, ys.max() + 2.2 * margin), aspect="equal"
    )
    axis.ticklabel_format(style="plain", useOffset=False)
    axis.tick_params(colors=_INK, labelsize=9, length=3)
    axis.set_xlabel(f"{crs}, metres", color=_INK)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_facecolor("#eef1f2")
    axis.set_title(
        f"{len(views)} scenes, {len(chips)} chips read from them while training",
        loc="left",
        size=17,
        color=_INK,
        weight="bold",
        pad=12,
    )
    figure.tight_layout()
    figure.savefig(path)


def _brighter(colours: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``colours`` (H, W, 3 or 4) from 0 to 1 as a screen should show them: aerial photographs are dark."""
    bright = colours.copy()
    bright[..., :3] **= 0.8
    return bright


def _figure(width: float, height: float) -> Figure:
    """A figure without a window system: pyplot, and the state it keeps for the user's own plots, stay out of it."""
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _beside(axis: Axes, label: str) -> None:
    axis.text(-0.06, 0.5, label, transform=axis.transAxes, rotation=90, ha="right", va="center", size=12, color=_INK)


def _legend() -> list[Patch]:
    return [Patch(facecolor=colour, label=name) for name, colour in zip(CLASSES, _COLOURS, strict=True)]
