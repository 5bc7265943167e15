"""What sampling by tiles gives up in mixing, and whether a model notices: the plot and the table of docs/sampling.md.

    python benchmarks/sampling.py

Writes scenes, then (1) plans epochs with every setting of the knobs and plots tiles decoded a chip against mixing, and
(2) trains the same small segmentation model on each sampler's chips, several seeds, and scores it on other scenes.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from affine import Affine
from matplotlib import pyplot as plt
from torch import nn

import geostream as gs
from geostream import reader
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler, TileBatchGeoSampler
from geostream.samplers.shuffling import decoded, quality
from geostream.testing.rasters import CLASSES, scene, scene_labels, write_cog

mpl.use("Agg")

Batches = Iterable[list[Any]]
Point = tuple[str, float, float, float]
"""What was planned, tiles decoded a chip, and shuffle quality within one batch and within ten."""

SIDE, TILE, CHIP, BATCH = 1024, 128, 64, 16
TRAIN, VAL, STEPS = 12, 3, 600
APART = 2 * SIDE
CACHE = 64 * TILE * TILE * 5
"""Bytes of decoded tiles: 64 of 768 with their labels, as small a part as the default is of a small archive."""


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"
    all_bands = ("R", "G", "B", "N")


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


def write(root: Path, count: int, first_seed: int) -> None:
    """Scenes of different landscapes, lights and mixtures of land cover, side by side."""
    root.mkdir(parents=True)
    for number in range(count):
        seed = first_seed + number
        rng = np.random.default_rng([seed, 9])
        image = scene(SIDE, SIDE, 4, seed=seed).astype(np.float32)
        light = rng.uniform(0.6, 1.3, (4, 1, 1)).astype(np.float32)
        place = Affine(1, 0, 600_000 + APART * number, 0, -1, 5_300_000)
        options = {"transform": place, "blocksize": TILE, "overviews": False, "compress": "ZSTD"}
        write_cog(root / f"img_{number}.tif", np.clip(image * light, 0, 255).astype(np.uint8), **options)
        write_cog(root / f"lab_{number}.tif", scene_labels(SIDE, SIDE, seed=seed), **options)


def dataset(root: Path) -> Any:
    return Images(root) & Labels(root)


def samplers(pairs: Any, seed: int, length: int) -> dict[str, Batches]:
    """The batches of every arm."""
    generator = torch.Generator().manual_seed(seed)
    arms: dict[str, Batches] = {
        "random": torch.utils.data.BatchSampler(
            RandomGeoSampler(pairs, CHIP, length, generator=generator), BATCH, True
        ),
        "one scene a batch": RandomBatchGeoSampler(pairs, CHIP, BATCH, length, generator=generator),
    }
    for name, knobs in {
        "tiles, 32 open in 4 lanes": {"buffer": 32},
        "tiles, 32 open in 1 lane": {"buffer": 32, "lanes": 1},
        "tiles, 4 a batch": {"tiles_per_batch": 4, "buffer": 16},
    }.items():
        arms[name] = TileBatchGeoSampler(pairs, CHIP, BATCH, length, generator=generator, **knobs)
    return arms


def planned(batches: Batches) -> tuple[float, float, float]:
    """The figures of a `Point`, of any sampler's batches, by their chips' places."""
    tiles, centres = [], []
    for batch in batches:
        under = {}
        for x, y, _ in batch:
            col, row = round(x.start - 600_000), round(5_300_000 - y.stop)
            ends = [(v // TILE, (v + CHIP - 1) // TILE) for v in (row, col)]
            under |= {
                (r << 20) + c: 1 for r in range(ends[0][0], ends[0][1] + 1) for c in range(ends[1][0], ends[1][1] + 1)
            }
            centres.append(((row + CHIP // 2) // TILE << 20) + (col + CHIP // 2) // TILE)
        tiles.append(np.array(list(under)))
    found = np.array(centres)
    count = len(decoded(tiles, CACHE // (TILE * TILE * 5)))
    return count / len(found), quality(found, BATCH), quality(found, 10 * BATCH)


def tradeoff(pairs: Any) -> list[Point]:
    """Points of every arm, and of tile batches with every buffer, over an epoch of as many chips as fit."""
    length = TRAIN * (SIDE // CHIP) ** 2
    points = []
    for name, sampler in samplers(pairs, 0, length).items():
        points.append((name, *planned(list(sampler))))
    for lanes in (1, 4):
        for buffer in (8, 16, 32, 64, 128, 256)[lanes // 4 :]:
            sampler = TileBatchGeoSampler(
                pairs, CHIP, BATCH, length, generator=torch.Generator().manual_seed(0), lanes=lanes, buffer=buffer
            )
            points.append((f"buffer {buffer}, lanes {lanes}", *planned(list(sampler))))
    return points


def model() -> nn.Module:
    def layer(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    up = nn.Upsample(scale_factor=2, mode="bilinear")
    return nn.Sequential(
        layer(4, 16), nn.MaxPool2d(2), layer(16, 24), layer(24, 24), nn.Conv2d(24, len(CLASSES), 1), up
    )


def score(net: nn.Module, pairs: Any) -> tuple[float, float]:
    """Mean intersection over union on whole validation scenes, and the share of right pixels."""
    table = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.long)
    net.eval()
    with torch.no_grad():
        for batch in gs.DataLoader(pairs, sampler=GridGeoSampler(pairs, 256), batch_size=4):
            predicted = net(batch["image"] / 128 - 1).argmax(1)
            pair = (batch["mask"] * len(CLASSES) + predicted).ravel()
            table += torch.bincount(pair, minlength=len(CLASSES) ** 2).reshape(table.shape)
    union = table.sum(0) + table.sum(1) - table.diag()
    return (table.diag() / union.clamp(min=1)).mean().item(), (table.diag().sum() / table.sum()).item()


def train(batches: Batches, pairs: Any, seed: int) -> tuple[nn.Module, float]:
    """A model after `STEPS` batches at a falling rate, and the seconds that took."""
    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    began = time.perf_counter()
    for batch in gs.DataLoader(pairs, batch_sampler=batches):
        loss = nn.functional.cross_entropy(net(batch["image"] / 128 - 1), batch["mask"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net, time.perf_counter() - began


def trained(train_pairs: Any, val_pairs: Any, seeds: int) -> dict[str, list[dict[str, float]]]:
    """For each arm the scores of every seed, and tiles decoded a chip as counted while reading."""
    results: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        for name, sampler in samplers(train_pairs, seed, STEPS * BATCH).items():
            with gs.stats.measure() as used:
                net, seconds = train(sampler, train_pairs, seed)
            miou, accuracy = score(net, val_pairs)
            row = {"miou": miou, "accuracy": accuracy, "tiles": used.tiles / (STEPS * BATCH), "seconds": seconds}
            results.setdefault(name, []).append(row)
            print(seed, name, {key: round(value, 3) for key, value in row.items()}, flush=True)
    return results


def plot(points: list[Point], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), sharey=True, layout="constrained")
    for axes, column, title in zip(panels, (2, 3), ("within a batch", "within ten batches"), strict=True):
        for lanes, mark, beside in ((1, "o-", (6, 5)), (4, "s-", (-20, -3))):
            line = [point for point in points if point[0].endswith(f"lanes {lanes}")]
            axes.plot([p[1] for p in line], [p[column] for p in line], mark, label=f"tile batches, lanes={lanes}", ms=5)
            for point in line:
                label = point[0].split()[1].rstrip(",")
                place = {"xytext": beside, "textcoords": "offset points"}
                axes.annotate(label, (point[1], point[column]), fontsize=7, color="0.3", **place)
        for name, mark in (("random", "*"), ("one scene a batch", "D")):
            point = next(point for point in points if point[0] == name)
            axes.plot([point[1]], [point[column]], mark, label=name, ms=9)
        axes.axhline(1, color="0.7", lw=0.8)
        axes.set_xscale("log")
        axes.set_xticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
        axes.minorticks_off()
        axes.set(xlabel="tiles decoded a chip", title=title, ylim=(0, 1.2), xlim=(0.2, 2.6))
    panels[0].set_ylabel("shuffle quality (full shuffle = 1)")
    panels[1].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, default=Path("docs/sampling.png"), help="where to draw")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each arm")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reader.CACHE_BYTES = CACHE
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "train", TRAIN, 0)
        write(root / "val", VAL, 100)
        pairs, val_pairs = dataset(root / "train"), dataset(root / "val")
        points = tradeoff(pairs)
        for name, tiles, mixing, drift in points:
            print(f"{name:28} tiles a chip {tiles:.2f}  quality {mixing:.2f}  drift {drift:.2f}", flush=True)
        plot(points, arguments.plot)
        results = trained(pairs, val_pairs, arguments.seeds) if arguments.seeds else {}
    for name, rows in results.items():
        mean = {key: statistics.mean(row[key] for row in rows) for key in rows[0]}
        spread = max(row["miou"] for row in rows) - min(row["miou"] for row in rows)
        print(f"| {name} | {mean['tiles']:.2f} | {mean['miou']:.3f} | {spread:.3f} | {mean['accuracy']:.3f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"tradeoff": points, "training": results}, indent=1))


if __name__ == "__main__":
    main()
