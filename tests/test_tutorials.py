"""The tutorials run, word for word."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from affine import Affine

from geostream.testing.rasters import write_cog

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
BLOCK = re.compile(r"^```python.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code(name):
    blocks = BLOCK.findall((TUTORIALS / f"{name}.md").read_text())
    assert blocks
    return "\n\n".join(blocks)


def run(name, tmp_path, monkeypatch):
    """What the page's code has left in its names."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": name}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(code(name), f"{name}.md", "exec"), names)
    return names


def test_no_tutorial_is_left_out():
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {
        "ddp", "segmentation", "single_image_batches", "time_series",
    }  # fmt: skip


pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


def test_segmentation(tmp_path, monkeypatch):
    names = run("segmentation", tmp_path, monkeypatch)
    assert names["trainer"].predict_loop is not None
    for i in range(2):
        with rasterio.open(f"maps/scene_{i}.tif") as found, rasterio.open(f"images/scene_{i}.tif") as scene:
            assert (found.crs, found.transform, found.shape) == (scene.crs, scene.transform, scene.shape)
            assert found.dtypes == ("uint8",)
            labels = found.read(1)
        with rasterio.open(f"labels/scene_{i}.tif") as truth:
            assert np.mean(labels == truth.read(1)) > 0.5, "it has learnt something"


def test_time_series(tmp_path, monkeypatch):
    names = run("time_series", tmp_path, monkeypatch)
    assert names["sample"]["image"].shape == (3, 2, 256, 256)
    batch = next(iter(names["data"].train_dataloader()))
    assert batch["image"].shape == (4, 3, 2, 64, 64)


def test_single_image_batches(tmp_path, monkeypatch):
    names = run("single_image_batches", tmp_path, monkeypatch)
    assert names["by_tile"].tiles <= 4 * 16
    assert names["by_tile"].tiles <= names["by_scene"].tiles


def test_ddp_with_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(code("ddp"))
    sources = []
    for i, shape in enumerate([(150, 200), (64, 100), (90, 70)]):
        place = Affine(10, 0, 600_000 + 10_000 * i, 0, -10, 5_300_000)
        sources.append(
            write_cog(tmp_path / f"scenes/{i}.tif", shape=shape, count=3, seed=i, blocksize=128, transform=place)
        )
    page = (TUTORIALS / "ddp.md").read_text()
    assert "torchrun --nproc-per-node 2 train.py" in page
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    for source in sources:
        with rasterio.open(source) as scene, rasterio.open(tmp_path / "reconstructed" / source.name) as found:
            assert (found.crs, found.transform, found.shape) == (scene.crs, scene.transform, scene.shape)
            assert not np.isnan(found.read()).any()
    state = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert state["global_step"] == 20, "of 24 the last that five divides"
