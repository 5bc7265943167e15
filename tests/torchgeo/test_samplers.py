"""TorchGeo's samplers on datasets of this library, and this library's on TorchGeo's."""

import importlib

import numpy as np
import pandas as pd
import pytest
from affine import Affine

import geostream as gs
from geostream.testing.rasters import write_cog


class Images(gs.RasterDataset):
    filename_glob = "img_*.tif"
    filename_regex = r"^img_\d_(?P<date>\d{8})"


class Labels(gs.RasterDataset):
    filename_glob = "lab_*.tif"
    is_image = False


@pytest.fixture
def root(tmp_path):
    for number, date in enumerate(["20240101", "20240102", "20240301"]):
        corner = Affine(10, 0, 600_000 + 1280 * (number % 2), 0, -10, 5_300_000)
        write_cog(tmp_path / f"img_{number}_{date}.tif", np.full((2, 256, 256), number, np.uint8), transform=corner)
    corner = Affine(10, 0, 600_000, 0, -10, 5_300_000)
    write_cog(tmp_path / "lab_0.tif", np.ones((1, 300, 400), np.uint8), transform=corner)
    return tmp_path


@pytest.fixture
def samplers(theirs):
    return importlib.import_module("torchgeo.samplers")


@pytest.fixture(params=["images", "pairs", "union"])
def dataset(request, root):
    images = Images(root)
    return {"images": images, "pairs": images & Labels(root), "union": images | Images(root)}[request.param]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_their_samplers_of_all_versions(samplers, dataset):
    for sampler in (
        samplers.RandomGeoSampler(dataset, 64, length=9),
        samplers.GridGeoSampler(dataset, 64, stride=64),
    ):
        batches = list(gs.DataLoader(dataset, sampler=sampler, batch_size=4))
        assert sum(len(batch["image"]) for batch in batches) == len(sampler)
        assert {tuple(batch["image"].shape[1:]) for batch in batches} == {(2, 64, 64)}
    batched = samplers.RandomBatchGeoSampler(dataset, 64, batch_size=4, length=8)
    assert [len(batch["image"]) for batch in gs.DataLoader(dataset, batch_sampler=batched)] == [4, 4]
    whole = list(gs.DataLoader(dataset, sampler=samplers.PreChippedGeoSampler(dataset), batch_size=1))
    assert len(whole) == len(dataset)


def test_their_products_of_space_and_time(samplers, dataset):
    if not hasattr(samplers, "RandomPatchSampler"):
        pytest.skip("TorchGeo has had them since 0.10")
    spatial = [
        samplers.RandomPatchSampler(dataset, size=64, length=6, generator=1),
        samplers.GriddedPatchSampler(dataset, size=64, stride=48),
    ]
    temporal = [
        samplers.RandomTimestampSampler(dataset, generator=1),
        samplers.SequentialTimestampSampler(dataset),
        samplers.SequentialTimedeltaSampler(dataset, delta=pd.Timedelta(days=20)),
        samplers.RandomPeriodSampler(dataset, freq="M", length=3, generator=1),
        samplers.SequentialPeriodSampler(dataset, freq="M"),
    ]
    for sampler in [*spatial, *(one @ other for one in spatial for other in temporal)]:
        shapes = [tuple(batch["image"].shape) for batch in gs.DataLoader(dataset, sampler=sampler, batch_size=3)]
        assert shapes
        assert {shape[1:] for shape in shapes} == {(2, 64, 64)}


def test_ours_on_their_dataset(theirs, root):
    class Theirs(theirs.RasterDataset):
        filename_glob = "img_*.tif"
        filename_regex = r"^img_\d_(?P<date>\d{8})"
        all_bands = ("a", "b")

    dataset = Theirs(root)
    for sampler in (
        gs.samplers.RandomGeoSampler(dataset, 64, length=5),
        gs.samplers.GridGeoSampler(dataset, 64),
    ):
        assert {tuple(dataset[query]["image"].shape) for query in sampler} == {(2, 64, 64)}
    for part in gs.splits.random_grid_cell_assignment(dataset, [0.5, 0.5], 2):
        for batch in gs.samplers.TileBatchGeoSampler(part, 32, 4):
            assert {tuple(part[query]["image"].shape) for query in batch} == {(2, 32, 32)}
