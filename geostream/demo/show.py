"""The demo from start to end: archive, comparison, training, pictures, table."""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import kornia.augmentation as K  # noqa: N812 - kornia's own name for it
import numpy as np
from lightning.pytorch import Trainer, seed_everything
from pyproj import CRS
from rich.console import Console
from rich.table import Table
from shapely import box

import geostream as gs
from geostream.demo import streamed, vsicurl
from geostream.demo.model import Segmenter
from geostream.demo.pictures import View, draw_batch, draw_footprints
from geostream.demo.scenes import open_archive, write_archive
from geostream.testing import RangeServer
from geostream.testing.scenery import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geostream.demo.scenes import Images
    from geostream.testing.process import ServerProcess

__all__ = ["Arm", "run"]

Box = tuple[float, float, float, float]
"""xmin, ymin, xmax, ymax of a chip in the CRS of the first scene."""
CHIP, BATCH = 256, 16
WORKERS = 4
MEAN, STD = (90.0, 90.0, 65.0, 115.0), (55.0, 45.0, 40.0, 65.0)
"""Of each band, about."""


@dataclass(frozen=True)
class Arm:
    """What one way of reading took for the same windows."""

    seconds: float
    """From asking for the first batch until having the last."""
    chips: int
    """Chips read, image and mask each."""
    requests: int
    """Requests the server saw."""
    bytes: int
    """Bytes of bodies the server sent."""

    @property
    def figures(self) -> dict[str, float]:
        """For JSON."""
        return {
            "chips_per_second": round(self.chips / self.seconds, 1),
            "seconds": round(self.seconds, 3),
            "chips": self.chips,
            "requests": self.requests,
            "mb": round(self.bytes / 1e6, 2),
        }


def run(
    out: Path, *, steps: int = 32, latency: float = 0.04, size: int = 3072, progress: bool = True
) -> dict[str, Any]:
    """Run the demo; returns its figures.

    Args:
        out: folder for ``batch.png`` and ``footprints.png``, made if need be.
        steps: training steps; the comparison reads half as many batches.
        latency: seconds the object store waits before each answer.
        size: height and width of a scene in pixels.
        progress: whether training shows a progress bar.
    """
    console = Console(stderr=True)
    out.mkdir(parents=True, exist_ok=True)
    seed_everything(0, verbose=False)
    with TemporaryDirectory(prefix="geostream-demo-") as folder:
        with console.status("writing two scenes and their labels"):
            stored = write_archive(Path(folder), size)
        with RangeServer.spawn(folder, latency=latency) as server:
            place = f"{server.s3_url()}, {latency * 1000:.0f} ms a request"
            console.print(f"{stored / 1e6:.0f} MB of COGs at {place}")
            images, labels = open_archive(server.s3_url(), server.storage_options)
            with console.status("reading the same chips with geostream and with rasterio"):
                batches = draw_chips(images, max(2, steps // 2))
                ours = read_with_geostream(server, batches)
                theirs = read_with_rasterio(server, batches, images)
            model, figures = train(images & labels, steps, progress=progress)
            views = [_look(images, number, server.storage_options) for number in range(len(images.index))]
    pictures = [out / "batch.png", out / "footprints.png"]
    draw_batch(pictures[0], *model.first_batch(MEAN, STD))
    draw_footprints(pictures[1], views, model.boxes(), _name(images.crs))
    Console().print(_table(ours, theirs))
    console.print(
        "trained {steps} steps in {seconds:.0f} s: loss {first_loss:.2f} to {last_loss:.2f}, "
        "pixels right {first_accuracy:.0%} to {last_accuracy:.0%}".format(**figures)
    )
    console.print(f"pictures: {', '.join(map(str, pictures))}", soft_wrap=True)
    return {
        "geostream": ours.figures,
        "vsicurl": theirs.figures | {"workers": WORKERS},
        "speedup": round(theirs.seconds / ours.seconds, 2),
        "training": figures,
        "latency_ms": latency * 1000,
        "pictures": [str(path) for path in pictures],
    }


def draw_chips(images: Images, batches: int) -> list[list[Box]]:
    """Where the comparison reads: ``batches`` batches of random chips, each batch from one scene."""
    sampler = gs.samplers.RandomBatchGeoSampler(images, size=CHIP, batch_size=BATCH, length=batches * BATCH)
    return [[(x.start, y.start, x.stop, y.stop) for x, y, *_ in batch] for batch in sampler]


def read_with_geostream(server: ServerProcess, batches: list[list[Box]]) -> Arm:
    """List the archive, read its headers, then all chips and their masks."""
    server.reset()
    seconds = streamed.read_apart(streamed.Job(server.s3_url(), server.storage_options, batches))
    return _arm(server, seconds, batches)


def read_with_rasterio(server: ServerProcess, batches: list[list[Box]], images: Images) -> Arm:
    """Read the same chips and masks with rasterio over ``/vsicurl``, in torch's workers."""
    job = vsicurl.Job(
        [[_locate(server, images, chip) for chip in batch] for batch in batches], str(images.crs), CHIP, WORKERS
    )
    server.reset()
    return _arm(server, vsicurl.read_apart(job), batches)


def _locate(server: ServerProcess, images: Images, chip: Box) -> tuple[str, str, Box]:
    """URLs of the image and the labels that hold ``chip``, which someone who reads files must find first."""
    overlap = images.index.geometry.intersection(box(*chip)).area.to_numpy()
    name = images.index["filepath"].iloc[int(overlap.argmax())].rpartition("/")[2]
    return server.url_for(name), server.url_for(name.replace("image_", "labels_")), chip


def train(pairs: gs.GeoDataset, steps: int, *, progress: bool) -> tuple[Segmenter, dict[str, float]]:
    """Train a small model on random chips of ``pairs``, augmented; returns it, and how that went."""
    augmentation = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomVerticalFlip(p=0.5),
        K.RandomRotation90((0, 3), p=0.75),
        K.RandomBrightness((0.8, 1.2), clip_output=False, p=0.5),
        data_keys=None,
        keepdim=True,
    )
    data = gs.GeoDataModule(
        train=pairs,
        patch_size=CHIP,
        batch_size=BATCH,
        length=steps * BATCH,
        sampler="batch",
        mean=MEAN,
        std=STD,
        train_aug=augmentation,
    )
    model = Segmenter(4, len(CLASSES))
    started = time.perf_counter()
    with _quiet(), gs.stats.measure() as used:
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress,
        )
        trainer.fit(model, datamodule=data)
    seconds = time.perf_counter() - started
    figures = {
        "steps": len(model.losses),
        "seconds": round(seconds, 2),
        "chips_per_second": round(len(model.losses) * BATCH / seconds, 1),
        "first_loss": round(model.losses[0], 4),
        "last_loss": round(model.losses[-1], 4),
        "first_accuracy": round(model.accuracies[0], 4),
        "last_accuracy": round(model.accuracies[-1], 4),
        "requests": used.requests,
        "mb": round(used.bytes / 1e6, 2),
    }
    return model, figures


def _arm(server: ServerProcess, seconds: float, batches: list[list[Box]]) -> Arm:
    counters = server.counters
    return Arm(seconds, sum(map(len, batches)), counters.requests, counters.bytes_sent)


def _look(images: Images, number: int, options: dict[str, Any]) -> View:
    """Scene ``number`` on the dataset's CRS, at an overview's resolution."""
    scene = images.index.iloc[number]
    patch = gs.read(scene["filepath"], crs=images.crs, res=16.0, storage_options=options)
    _, height, width = patch.data.shape
    left, top = patch.transform @ (0, 0)
    right, bottom = patch.transform @ (width, height)
    opacity = patch.valid[..., None] * np.uint8(255)
    colours = np.concatenate([patch.data[:3].transpose(1, 2, 0), opacity], axis=2)
    zone = gs.info(scene["filepath"], storage_options=options)["crs"]
    return View(_name(zone), colours, (left, right, bottom, top), list(scene.geometry.exterior.coords))


def _name(crs: Any) -> str:
    return ":".join(CRS.from_user_input(crs).to_authority() or ("", "local"))


def _table(ours: Arm, theirs: Arm) -> Table:
    chips = f"{ours.chips} chips of {CHIP} x {CHIP} with masks, the same windows"
    tuned = ", ".join(f"{name}={value}" for name, value in vsicurl.GDAL_OPTIONS.items())
    table = Table(title=chips, caption=f"GDAL: {tuned}", title_justify="left", caption_justify="left")
    table.add_column("")
    for heading in ("chips/s", "seconds", "requests", "MB"):
        table.add_column(heading, justify="right")
    for name, arm in (("geostream, one process", ours), (f"rasterio /vsicurl, {WORKERS} workers", theirs)):
        speed, seconds = f"{arm.chips / arm.seconds:.0f}", f"{arm.seconds:.1f}"
        table.add_row(name, speed, seconds, str(arm.requests), f"{arm.bytes / 1e6:.1f}")
    return table


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's advice on hardware and workers out of the demo."""
    loggers = [logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec).*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
