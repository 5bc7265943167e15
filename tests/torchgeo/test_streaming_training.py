"""Streaming classes at work: TorchGeo's samplers, combinations, splits, data modules and trainers, and geostream's."""

from __future__ import annotations

import multiprocessing

import geopandas
import numpy as np
import pytest
import shapely
import torch
from streams import Prepared, unlike

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import DEFAULT_TRANSFORM, write_cog
from geostream.torchgeo import streaming

SIZE = 256


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    """Images, and labels whose values a class remaps."""
    folder = tmp_path_factory.mktemp("training")
    write_cog(folder / "m_4008501_ne_16_060_20230901.tif", shape=(SIZE, SIZE), count=4, blocksize=128, nodata=0)
    labels = np.random.default_rng(0).choice(np.array([1, 5, 24], np.uint8), (1, SIZE, SIZE))
    write_cog(folder / "2023_30m_cdls.tif", labels, blocksize=128)
    return folder


@pytest.fixture
def server(folder):
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def streams(theirs, server, folder):
    """Images and labels, streaming."""
    urls = [server.url_for(path.name) for path in folder.glob("*.tif")]
    return streaming(theirs.NAIP)(urls), streaming(theirs.CDL)(urls, years=[2023])


def local(theirs, folder):
    return theirs.NAIP(str(folder)), theirs.CDL(str(folder), years=[2023])


def box(dataset):
    x, y, _ = dataset.bounds
    return slice(x.start + 100, x.start + 740), slice(y.start + 100, y.start + 740)


def test_intersections_and_unions(theirs, streams, folder):
    images, labels = streams
    own_images, own_labels = local(theirs, folder)
    for ours, expected in ((images & labels, own_images & own_labels), (images | images, own_images | own_images)):
        assert isinstance(ours, theirs.IntersectionDataset | theirs.UnionDataset)
        query = box(expected)
        assert unlike(expected[query], ours[query]) == []
    assert set((images & labels)[box(images)]["mask"].unique().tolist()) <= {1, 5, 15}
    mixed = images & own_labels
    assert unlike((own_images & own_labels)[box(images)], mixed[box(images)]) == []


def test_geostreams_combinations_read_both_in_one_plan(streams, server):
    images, labels = streams
    both = gs.IntersectionDataset(images, labels)
    queries = [box(images)] * 2
    assert {request.source.url for request in both.requests(queries[0])} == {
        *images.index.filepath,
        *labels.index.filepath,
    }
    server.reset()
    first, second = both.__getitems__(queries)
    assert server.counters.requests == 2  # the tiles of a file lie side by side
    assert torch.equal(first["image"], second["image"])
    assert first["mask"].dtype == torch.int64


def test_splits(theirs, streams):
    from torchgeo.datasets import random_bbox_assignment, roi_split

    images, _ = streams
    x, y, _ = images.bounds
    middle = (x.start + x.stop) / 2
    halves = [shapely.box(x.start, y.start, middle, y.stop), shapely.box(middle, y.start, x.stop, y.stop)]
    for part, roi in zip(roi_split(images, halves), halves, strict=True):
        assert isinstance(part, type(images))
        assert part.index.total_bounds.tolist() == list(roi.bounds)
    assert len(random_bbox_assignment(images, [1.0])) == 1


def test_torchgeos_samplers_in_spawned_workers(theirs, streams, server):
    """The dataset and its class cross into processes that have not seen them."""
    from torchgeo.datasets import stack_samples
    from torchgeo.samplers import GridGeoSampler

    images, labels = streams
    sampler = GridGeoSampler(images, 128, 128)
    loader = torch.utils.data.DataLoader(
        Prepared(images & labels),
        sampler=sampler,
        batch_size=2,
        num_workers=1,
        collate_fn=stack_samples,
        multiprocessing_context=multiprocessing.get_context("spawn"),
    )
    batches = list(loader)
    assert [tuple(batch["image"].shape) for batch in batches] == [(2, 4, 128, 128)] * 2
    whole = torch.cat([batch["image"] for batch in batches])
    here = torch.stack([(images & labels)[query]["image"] for query in sampler])
    assert torch.equal(whole, here)


def test_forked_workers(theirs, streams):
    from torchgeo.datasets import stack_samples
    from torchgeo.samplers import GridGeoSampler

    images, _ = streams
    loader = torch.utils.data.DataLoader(
        images, sampler=GridGeoSampler(images, 128, 128), batch_size=4, num_workers=1, collate_fn=stack_samples
    )
    (batch,) = loader
    assert torch.equal(batch["image"], stack_samples(images.__getitems__(list(loader.sampler)))["image"])


def test_geostreams_samplers_and_loader_fetch_each_tile_once(streams, server):
    images, labels = streams
    for dataset in (images, labels):
        sampler = gs.samplers.TileBatchGeoSampler(dataset, 64, 4, generator=torch.Generator().manual_seed(0))
        server.reset()
        with gs.stats.measure() as used:
            batches = list(gs.DataLoader(dataset, batch_sampler=sampler))
        assert sum(len(batch["bounds"]) for batch in batches) == (SIZE // 64) ** 2
        assert used.tiles == (SIZE // 128) ** 2
    sampler = gs.samplers.RandomBatchGeoSampler(images, 64, 4, length=8)
    assert [tuple(batch["image"].shape) for batch in gs.DataLoader(images, batch_sampler=sampler)] == [
        (4, 4, 64, 64)
    ] * 2


def test_a_data_module_and_a_trainer_of_torchgeos(theirs, streams, server, folder, tmp_path):
    from lightning.pytorch import Trainer
    from torchgeo.datamodules import GeoDataModule
    from torchgeo.samplers import GridGeoSampler, RandomBatchGeoSampler
    from torchgeo.trainers import SemanticSegmentationTask

    urls = [server.url_for(path.name) for path in folder.glob("*.tif")]

    class Module(GeoDataModule):
        def setup(self, stage):
            labels = streaming(theirs.CDL)(urls, years=[2023], classes=[0, 1, 5, 24])
            self.dataset = self.dataset_class(**self.kwargs) & labels
            self.train_batch_sampler = RandomBatchGeoSampler(self.dataset, 64, 2, 4)
            self.val_sampler = GridGeoSampler(self.dataset, 64, 64)
            self.train_dataset = self.val_dataset = self.dataset

    module = Module(streaming(theirs.NAIP), batch_size=2, patch_size=64, num_workers=0, paths=urls)
    task = SemanticSegmentationTask(model="unet", backbone="resnet18", in_channels=4, num_classes=4, num_filters=8)
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(task, datamodule=module)
    assert trainer.global_step == 2
    assert torch.isfinite(trainer.callback_metrics["val_loss"])


def test_images_of_geostream_with_vector_labels_of_torchgeo(theirs, server, tmp_path):
    """Fields as polygons: their pixels are where the polygons are."""
    left, top = DEFAULT_TRANSFORM.c, DEFAULT_TRANSFORM.f
    field = shapely.box(left + 300, top - 1000, left + 900, top - 500)
    geopandas.GeoDataFrame({"class": [3]}, geometry=[field], crs="EPSG:32632").to_file(tmp_path / "fields.geojson")
    url = server.url_for("m_4008501_ne_16_060_20230901.tif")
    labels = type("Fields", (theirs.VectorDataset,), {"filename_glob": "*.geojson"})(
        str(tmp_path), crs=geopandas.GeoSeries([field], crs=32632).crs, res=(10, 10), label_name="class"
    )
    for images in (gs.RasterDataset(url), streaming(theirs.NAIP)(url)):
        both = images & labels
        sample = both[left + 200 : left + 840, top - 1140 : top - 500]
        assert sample["image"].shape == (4 if images.index.crs else 0, 64, 64)
        mask = sample["mask"].squeeze()
        assert mask[:50, 10:64].float().mean() == 3
        assert mask[51:].sum() == 0
    sampler = gs.samplers.RandomBatchGeoSampler(gs.RasterDataset(url) & labels, 32, 2, length=4)
    batches = list(gs.DataLoader(gs.RasterDataset(url) & labels, batch_sampler=sampler))
    assert [tuple(batch["image"].shape) for batch in batches] == [(2, 4, 32, 32)] * 2
    assert all(set(batch["mask"].unique().tolist()) <= {0, 3} for batch in batches)
