"""Predictions written as rasters: an identity model gives back the scenes."""

import io
import re

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
import torch

import geostream as gs
from geostream.errors import ConfigError
from geostream.samplers import GridGeoSampler, RandomGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Total length of `list`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]


class Identity(pl.LightningModule):
    """Predicts what it sees."""

    def __init__(self, change=lambda image: image):
        super().__init__()
        self.change = change

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.change(batch["image"])


def predict(tmp_path, data, model=None, **options):
    writer = gs.PredictionWriter(tmp_path / "out", progress=False, **options)
    runner = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[writer],
    )
    runner.predict(model or Identity(), datamodule=data, return_predictions=False)
    assert [p for p in (tmp_path / "out").iterdir() if p.suffix != ".tif"] == [], "nothing is left behind"
    return writer


class Rasters(gs.RasterDataset):
    filename_glob = "*.tif"


def whole(dataset, **options):
    return gs.GeoDataModule(predict=dataset, **{"patch_size": 32, "batch_size": 3, "mean": 0.0, "std": 1.0, **options})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("driver", ["COG", "GTiff"])
def test_an_identity_gives_back_the_scenes(tmp_path, dtype, driver):
    shapes = {"a": (70, 161), "b": (33, 32), "tiny": (20, 9)}
    for i, (name, shape) in enumerate(shapes.items()):
        place = rasterio.Affine(10, 0, 600_000 + 5_000 * i, 0, -10, 5_300_000.5)
        write_cog(tmp_path / "in" / f"{name}.tif", shape=shape, dtype=dtype, seed=i, transform=place, blocksize=64)
    data = whole(Rasters(tmp_path / "in", dtype="native"), predict_stride=(20, 13))
    model = Identity(lambda image: image if dtype == "float32" else image.round().to(getattr(torch, dtype)))
    writer = predict(tmp_path, data, model, driver=driver, blocksize=128)
    assert [path.name for path in writer.written] == ["a.tif", "b.tif", "tiny.tif"]
    for name in shapes:
        paths = [tmp_path / folder / f"{name}.tif" for folder in ("in", "out")]
        with rasterio.open(paths[0]) as source, rasterio.open(paths[1]) as ours:
            assert np.array_equal(ours.read(), source.read())
            assert (ours.crs, ours.transform, ours.dtypes) == (source.crs, source.transform, source.dtypes)
            assert ours.dataset_mask().all()
            assert ours.block_shapes[0] == (128, 128)
            assert (ours.tags(ns="IMAGE_STRUCTURE").get("LAYOUT") == "COG") == (driver == "COG")


def scene(seed, side=(50, 40), corner=(0.0, 0.0), **kwargs):
    data = np.random.default_rng(seed).normal(size=(2, *side)).astype(np.float32)
    return MemoryScene(data, corner, **kwargs)


def read(path):
    with rasterio.open(path) as file:
        return file.read(), file.dataset_mask() > 0


def test_floating_point_is_exact_under_any_overlap(tmp_path):
    dataset = MemoryDataset([scene(0), scene(1, (33, 70), (1000.0, 7.0))])
    predict(tmp_path, whole(dataset, predict_stride=7))
    for i, each in enumerate(dataset.scenes):
        assert np.array_equal(read(tmp_path / f"out/{i}.tif")[0], each.data)


def test_chips_are_blended_from_their_middle(tmp_path):
    """Each chip predicts its own number: the mean runs from one to the other without a step."""
    dataset = MemoryDataset([scene(0, (32, 48))])
    numbers = iter([[0.0], [90.0]])
    model = Identity(lambda image: torch.tensor(next(numbers))[:, None, None, None].expand(1, 1, 32, 32))
    predict(tmp_path, whole(dataset, predict_stride=16, batch_size=1), model)
    (row, *others), _ = read(tmp_path / "out/0.tif")
    assert (row == row[:1]).all()
    assert row[0, 0] == 0
    assert row[0, -1] == 90
    steps = np.diff(row[0])
    assert (steps >= 0).all()
    assert 0 < steps.max() < 10
    assert others == []


def test_labels_come_from_the_most_central_chip(tmp_path):
    dataset = MemoryDataset([scene(0, (32, 48))])
    numbers = iter([[3], [200]])
    model = Identity(lambda image: torch.tensor(next(numbers))[:, None, None].expand(1, 32, 32))
    predict(tmp_path, whole(dataset, predict_stride=16, batch_size=1), model)
    (labels,), _ = read(tmp_path / "out/0.tif")
    assert labels.dtype == np.int64
    assert (labels[16] == np.where(np.arange(48) < 24, 3, 200)).all()


def test_scores_become_classes_after_blending(tmp_path):
    dataset = MemoryDataset([scene(0)])
    data = whole(dataset, predict_stride=16)
    predict(tmp_path, data, finish=lambda scores: scores.argmax(0).astype("uint8"), driver="GTiff", blocksize=16)
    (labels,), valid = read(tmp_path / "out/0.tif")
    assert labels.dtype == np.uint8
    assert np.array_equal(labels, dataset.scenes[0].data.argmax(0))
    assert valid.all()


@pytest.mark.parametrize(
    ("change", "nodata"), [(torch.Tensor.float, None), (torch.Tensor.byte, None), (torch.Tensor.byte, 7)]
)
def test_what_no_chip_covers_is_masked(tmp_path, change, nodata):
    class Left(gs.GeoDataModule):
        def setup(self, stage):
            self.predict_dataset = dataset
            self.predict_sampler = GridGeoSampler(dataset, 16, roi=shapely.box(0, -30, 20, 0))

    dataset = MemoryDataset([scene(0, (100, 40))])
    predict(tmp_path, Left(mean=0.0, std=1.0), Identity(change), nodata=nodata, driver="GTiff", blocksize=16)
    values, valid = read(tmp_path / "out/0.tif")
    assert np.array_equal(valid, np.logical_and.outer(np.arange(100) < 30, np.arange(40) < 20)) or nodata == 7
    assert (values[:, :30, :20] == np.asarray(change(torch.from_numpy(dataset.scenes[0].data[:, :30, :20])))).all()
    missing = values[:, 30:]
    assert np.isnan(missing).all() if values.dtype.kind == "f" else (missing == (nodata or 0)).all()


def test_pixels_without_data_are_masked(tmp_path):
    shape = (60, 50)
    mask = np.arange(60)[:, None] > np.arange(50)
    write_cog(tmp_path / "in" / "a.tif", shape=shape, mask=mask)
    data = whole(Rasters(tmp_path / "in", valid=True), predict_stride=20)
    predict(tmp_path, data, Identity(torch.Tensor.byte))
    values, valid = read(tmp_path / "out/a.tif")
    assert np.array_equal(valid, mask)
    assert np.array_equal(values[:, mask], read(tmp_path / "in/a.tif")[0][:, mask])


def test_scenes_of_one_place_and_names_stay_apart(tmp_path):
    years = [(pd.Timestamp(year, 1, 1), pd.Timestamp(year, 12, 31)) for year in (2020, 2021)]
    dataset = MemoryDataset([scene(i, interval=year) for i, year in enumerate(years)])
    dataset.index["filepath"] = ["s3://a/2020/x.tif", "s3://a/2021/x.tif?sig=1"]
    other = MemoryDataset([scene(5)])
    writer = predict(tmp_path, whole([dataset, other]))
    assert [path.name for path in writer.written] == ["x.tif", "x-1.tif", "0.tif"]
    for path, each in zip(writer.written, [*dataset.scenes, *other.scenes], strict=True):
        assert np.array_equal(read(path)[0], each.data)


def test_overlapping_scenes_get_what_the_dataset_says(tmp_path):
    dataset = MemoryDataset([scene(0, (40, 40)), scene(1, (40, 40), (24.0, -8.0))])
    predict(tmp_path, whole(dataset, patch_size=16))
    assert np.array_equal(read(tmp_path / "out/0.tif")[0], dataset.scenes[0].data)
    second = read(tmp_path / "out/1.tif")[0]
    assert np.array_equal(second[:, 32:, 16:], dataset.scenes[1].data[:, 32:, 16:])


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Identity(lambda image: image[..., ::2, ::2]), "16 x 16 pixels for a chip of 32 x 32"),
        (Identity(lambda image: [image]), "list"),
        (Identity(lambda image: image[0, 0]), "return"),
    ],
)
def test_odd_predictions_are_refused(tmp_path, model, word):
    with pytest.raises(ConfigError, match=word):
        predict(tmp_path, whole(MemoryDataset([scene(0)])), model)
    assert list((tmp_path / "out").iterdir()) == []


def test_chips_between_pixels_are_refused(tmp_path):
    class Shifted(RandomGeoSampler):
        def _order(self, rng):
            x, y, t = super()._order(rng)[0]
            return [(slice(x.start + 0.5, x.stop + 0.5, 1.0), y, t)]

    class Between(gs.GeoDataModule):
        def setup(self, stage):
            self.predict_dataset = MemoryDataset([scene(0)])
            self.predict_sampler = Shifted(self.predict_dataset, 16, length=1)

    with pytest.raises(ConfigError, match="GridGeoSampler"):
        predict(tmp_path, Between())


class Terminal(io.StringIO):
    """Standard error of somebody who looks on."""

    def isatty(self):
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_shows_how_far_writing_is(tmp_path, monkeypatch, progress):
    seen = Terminal()
    data = whole(MemoryDataset([scene(0), scene(1, corner=(1000.0, 0.0))]))
    writer = gs.PredictionWriter(tmp_path / "out", progress=progress, driver="GTiff", blocksize=16)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    runner = pl.Trainer(accelerator="cpu", callbacks=[writer], default_root_dir=tmp_path, **quiet)
    monkeypatch.setattr("sys.stderr", seen)
    runner.predict(Identity(), datamodule=data, return_predictions=False)
    assert ("Writing predictions: 100%" in seen.getvalue()) == progress
    assert ("8/8" in seen.getvalue()) == progress, "four strips of each scene"


@pytest.mark.parametrize("options", [{"driver": "PNG"}, {"blocksize": 100}, {"blocksize": 64}])
def test_unknown_layouts_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        gs.PredictionWriter(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"finish": 3}, r"^finish=3: pass a function"),
        ({"nodata": "x"}, r"^nodata='x': pass a number"),
        ({"nodata": True}, r"^nodata=True: pass a number"),
        ({"blocksize": "x"}, r"^blocksize='x'"),
        ({"compres": "zstd"}, r"^compres= is no argument of PredictionWriter.*COG.* compress,"),
        ({"zlevel": 9}, r"^zlevel= is no.*COG driver.*level"),
        ({"driver": "GTiff", "level": 9}, r"^level= is no.*GTiff driver.*zlevel"),
        ({"driver": "GTiff", "blockxsize": 64}, r"^blockxsize= is no"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_when_the_writer_is_made(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        gs.PredictionWriter(tmp_path, **options)


def test_gdals_options_are_passed_on(tmp_path):
    write_cog(tmp_path / "in" / "a.tif", shape=(40, 40), blocksize=64)
    for driver, options in (
        ("COG", {"COMPRESS": "zstd", "level": 9}),
        ("GTiff", {"compress": "zstd", "zstd_level": 9}),
    ):
        predict(tmp_path, whole(Rasters(tmp_path / "in")), driver=driver, **options)
        with rasterio.open(tmp_path / "out" / "a.tif") as written:
            assert written.compression.name == "zstd"


@pytest.mark.parametrize(
    ("nodata", "dtype", "fits"),
    [
        (-1, "uint8", False),
        (256, "uint8", False),
        (0.5, "int16", False),
        (float("nan"), "int32", False),
        (1e300, "float32", False),
        (255, "uint8", True),
        (-1, "int16", True),
        (float("-inf"), "float32", True),
    ],
)
def test_nodata_must_fit_what_is_written(tmp_path, nodata, dtype, fits):
    write_cog(tmp_path / "in" / "hills.tif", shape=(40, 40), blocksize=64)

    def finish(values):
        return values[0].astype(dtype)

    if fits:
        predict(tmp_path, whole(Rasters(tmp_path / "in")), finish=finish, nodata=nodata)
        with rasterio.open(tmp_path / "out" / "hills.tif") as written:
            assert (written.nodata, written.dtypes[0]) == (nodata, dtype)
        return
    with pytest.raises(
        ConfigError, match=rf"nodata={re.escape(str(nodata))} cannot be held by {dtype}.*'hills'.*nodata="
    ):
        predict(tmp_path, whole(Rasters(tmp_path / "in")), finish=finish, nodata=nodata)
    assert list((tmp_path / "out").iterdir()) == [], "nothing is left behind"
