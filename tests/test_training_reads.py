"""Samplers, loader and data module over files that are really read, locally and through the range server."""

import threading

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from affine import Affine

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

RES, WEST, NORTH = 10.0, 600_000.0, 5_300_000.0
HEIGHT, WIDTH = 200, 230


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Two scenes and their labels; the second scene's labels lie 3 m off its pixels."""
    root = tmp_path_factory.mktemp("training")
    rng = np.random.default_rng(3)
    for i in range(2):
        corner = Affine(RES, 0, WEST + 5000 * i, 0, -RES, NORTH)
        image = rng.integers(0, 255, (3, HEIGHT, WIDTH), dtype=np.uint8)
        write_cog(root / f"img_{i}.tif", image, transform=corner, blocksize=64)
        shifted = corner @ Affine.translation(0.3 * i, -0.3 * i)
        write_cog(root / f"lab_{i}.tif", image[:1] // 64, transform=shifted, blocksize=64)
    return root


@pytest.fixture(scope="module")
def pixels(archive):
    import rasterio

    found = []
    for path in sorted(archive.glob("img_*.tif")):
        with rasterio.open(path) as dataset:
            found.append(dataset.read())
    return found


@pytest.fixture(scope="module")
def served(archive):
    with RangeServer(archive) as server:
        yield server


def remote(server):
    images = Images([server.url_for(f"img_{i}.tif") for i in range(2)])
    labels = Labels([server.url_for(f"lab_{i}.tif") for i in range(2)])
    return images & labels


def chips(dataset, length=48):
    generator = torch.Generator().manual_seed(4)
    return gs.samplers.RandomBatchGeoSampler(dataset, 32, 8, length=length, generator=generator)


def windows(batch):
    """(scene, row, column) of each chip."""
    for x, y in batch["bounds"][:, [0, 4]].tolist():
        scene = int((x - WEST) // 5000)
        row, col = (NORTH - y) / RES, (x - WEST - 5000 * scene) / RES
        assert (row, col) == pytest.approx((round(row), round(col)), abs=1e-6)
        yield scene, round(row), round(col)


def same(a, b):
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_chips_of_images_and_labels_are_the_images_own_pixels(archive, pixels):
    pairs = Images(archive) & Labels(archive)
    seen = set()
    for batch in gs.DataLoader(pairs, batch_sampler=chips(pairs)):
        assert batch["image"].shape == (8, 3, 32, 32)
        assert batch["mask"].shape == (8, 32, 32)
        for image, (scene, row, col) in zip(batch["image"], windows(batch), strict=True):
            seen.add(scene)
            assert np.array_equal(image.numpy(), pixels[scene][:, row : row + 32, col : col + 32])
    assert seen == {0, 1}


def test_a_grid_puts_scenes_together_again(archive, pixels):
    images = Images(archive)
    out = [np.zeros_like(scene) for scene in pixels]
    sampler = gs.samplers.GridGeoSampler(images, 64, stride=48)
    loader = gs.DataLoader(images, sampler=sampler, batch_size=7)
    for batch in loader:
        for image, (scene, row, col) in zip(batch["image"], windows(batch), strict=True):
            out[scene][:, row : row + 64, col : col + 64] = image.numpy()
    assert all(np.array_equal(a, b) for a, b in zip(out, pixels, strict=True))
    assert len(sampler) == 2 * 4 * 5


def test_whole_scenes(archive, pixels):
    images = Images(archive)
    sampler = gs.samplers.PreChippedGeoSampler(images)
    batches = list(gs.DataLoader(images, sampler=sampler))
    assert all(np.array_equal(b["image"][0].numpy(), scene) for b, scene in zip(batches, pixels, strict=True))


def test_batches_in_flight_equal_torchs_own_loader(served):
    pairs = remote(served)
    theirs = list(torch_data.DataLoader(pairs, batch_sampler=chips(pairs), collate_fn=gs.stack_samples))
    for ahead in (0, 1, "auto"):
        same(list(gs.DataLoader(pairs, batch_sampler=chips(pairs), prefetch_batches=ahead)), theirs)


def test_in_parent_then_workers_then_parent_and_all_is_counted(served):
    pairs = remote(served)
    expected = list(gs.DataLoader(pairs, batch_sampler=chips(pairs, 16)))
    for context in ("fork", "forkserver", "spawn"):
        before = served.counters.requests
        with gs.stats.measure() as counted:
            loader = gs.DataLoader(
                pairs, batch_sampler=chips(pairs, 16), num_workers=1, multiprocessing_context=context
            )
            same(list(loader), expected)
        assert counted.requests == served.counters.requests - before > 0, context
        same(list(gs.DataLoader(pairs, batch_sampler=chips(pairs, 16))), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_keep_their_class_and_name_the_url(archive, tmp_path, workers):
    for path in archive.glob("img_*.tif"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with RangeServer(tmp_path) as server:
        images = Images([server.url_for(f"img_{i}.tif") for i in range(2)])
        for path in tmp_path.glob("img_*.tif"):
            path.unlink()
        loader = gs.DataLoader(images, batch_sampler=chips(images), num_workers=workers)
        iterator = iter(loader)
        with pytest.raises(gs.NotFoundError, match=r"img_\d\.tif"):
            next(iterator)
        if workers:
            iterator._batches._shutdown_workers()  # torch takes five seconds where garbage collection does it


def test_a_loop_that_is_left_early_leaves_no_thread(served):
    pairs = remote(served)
    list(gs.DataLoader(pairs, batch_sampler=chips(pairs, 8)))
    before = threading.active_count()
    for _ in range(3):
        for _ in gs.DataLoader(pairs, batch_sampler=chips(pairs, 400), prefetch_batches=4):
            break
    assert threading.active_count() == before
    assert len(list(gs.DataLoader(pairs, batch_sampler=chips(pairs)))) == 6


@pytest.mark.filterwarnings(
    "ignore:Total length of `list`", "ignore:.*does not have many workers", "ignore:You passed in a `val_dataloader`"
)
def test_a_model_trains_on_what_is_read(served, tmp_path):
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Conv2d(3, 4, 1)
            self.places = []

        def training_step(self, batch, batch_idx):
            self.places.append(batch["bounds"])
            return torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["mask"])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    model = Model()
    data = gs.GeoDataModule(lambda: remote(served), patch_size=32, batch_size=8, length=32)
    pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    ).fit(model, datamodule=data)
    assert len(model.places) == 8
    assert not any(torch.equal(a, b) for a in model.places[:4] for b in model.places[4:])
