"""A segmentation model small enough to train on two cores while one looks on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Segmenter"]

Array = np.ndarray[Any, Any]


class Segmenter(LightningModule):
    """A few convolutions at a quarter of the resolution, and what it saw and learnt, for the pictures.

    Args:
        bands: channels of the images.
        classes: number of labels.
    """

    def __init__(self, bands: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            _block(bands, 24, stride=2),
            _block(24, 40, stride=2),
            _block(40, 40),
            _block(40, 40),
            nn.Conv2d(40, classes, 1),
            nn.Upsample(scale_factor=4, mode="bilinear"),
        )
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.chips: list[Tensor] = []
        """Bounds of every chip trained on, (9,) each."""
        self.batch: dict[str, Any] = {}
        """The first batch as the model got it: normalised and augmented."""

    def training_step(self, batch: dict[str, Any], index: int) -> Tensor:
        """Cross entropy of one batch: image float32 (B, C, H, W), mask int64 (B, H, W)."""
        image, mask = batch["image"], batch["mask"].squeeze(1) if batch["mask"].ndim == 4 else batch["mask"]  # noqa: PLR2004
        scores = self.net(image)
        loss = cross_entropy(scores, mask)
        if index == 0:
            self.batch = {"image": image.detach().clone(), "mask": mask.clone()}
        self.chips.extend(batch["bounds"])
        self.losses.append(float(loss.detach()))
        self.accuracies.append(float((scores.argmax(1) == mask).float().mean()))
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
            guess = self.eval().net(image).argmax(1)
        colours = image * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        return (colours[:, :3] / 255).clamp(0, 1).permute(0, 2, 3, 1).numpy(), mask.numpy(), guess.numpy()

    def boxes(self) -> Array:
        """Where the chips trained on lie: (N, 4), each xmin, xmax, ymin, ymax."""
        bounds: Array = torch.stack(self.chips).numpy()
        return bounds[:, [0, 1, 3, 4]]


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
