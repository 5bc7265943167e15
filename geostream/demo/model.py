"""A segmentation model small enough to train on two cores while one looks on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Segmenter"]

_NOWHERE = -1
"""Stands in masks for what holds no data."""
_STRIDE = 4
"""Pixels of a chip to one score, along each axis."""

Array = np.ndarray[Any, Any]


class Segmenter(LightningModule):
    """A few convolutions at a quarter of the resolution, and what it saw and learnt, for the pictures.

    It is trained on every fourth pixel, which a processor does in a fraction of a second.

    Args:
        bands: channels of the images.
        classes: number of labels.
    """

    def __init__(self, bands: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            _block(bands, 16, stride=2),
            _block(16, 32, stride=2),
            _block(32, 32),
            nn.Conv2d(32, classes, 3, padding=1),
        )
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.chips: list[Tensor] = []
        """Bounds of every chip trained on, (9,) each."""
        self.batch: dict[str, Any] = {}
        """The first batch as the model got it: normalised and augmented."""

    def training_step(self, batch: dict[str, Any], index: int) -> Tensor:
        """Cross entropy of one batch: image float32 (B, C, H, W), mask int64 (B, H, W), mask_valid (B, 1, H, W)."""
        # A chip may reach beyond a scene that lies askew: what is not there is not learnt.
        image, mask = batch["image"], batch["mask"].masked_fill(~batch["mask_valid"].squeeze(1).bool(), _NOWHERE)
        scores, sparse = self.net(image), mask[:, ::_STRIDE, ::_STRIDE]
        loss = cross_entropy(scores, sparse, ignore_index=_NOWHERE)
        if index == 0:
            self.batch = {"image": image.detach().clone(), "mask": mask.clone()}
        self.chips.extend(batch["bounds"])
        self.losses.append(float(loss.detach()))
        self.accuracies.append(float((scores.argmax(1) == sparse)[sparse != _NOWHERE].float().mean()))
        self.log("loss", loss.detach(), prog_bar=True)
        self.log("accuracy", self.accuracies[-1], prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, at a rate that shows progress within some dozens of steps."""
        return torch.optim.Adam(self.parameters(), lr=4e-3)

    def first_batch(self, mean: Sequence[float], std: Sequence[float]) -> tuple[Array, Array, Array]:
        """Colours (B, H, W, 3) from 0 to 1, masks and final guesses (B, H, W), of the first batch, augmented.

        ``mean`` and ``std`` undo the normalisation.
        """
        image, mask = self.batch["image"], self.batch["mask"]
        with torch.no_grad():
            scores = interpolate(self.eval().net(image), size=mask.shape[1:], mode="bilinear")
        colours = image * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        return (colours[:, :3] / 255).clamp(0, 1).permute(0, 2, 3, 1).numpy(), mask.numpy(), scores.argmax(1).numpy()

    def boxes(self) -> Array:
        """Where the chips trained on lie: (N, 4), each xmin, xmax, ymin, ymax."""
        bounds: Array = torch.stack(self.chips).numpy()
        return bounds[:, [0, 1, 3, 4]]


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
