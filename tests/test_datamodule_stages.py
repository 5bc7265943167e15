"""Splits, several loaders, statistics, holes, indexes and datasets' own transforms, under a real Trainer."""

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import geostream as gs
from geostream.datamodule import GeoDataModule
from geostream.errors import ConfigError, ReadError
from geostream.samplers import GridGeoSampler
from geostream.statistics import Statistics, estimate_statistics
from geostream.testing.memory import MemoryDataset, MemoryScene
from geostream.testing.rasters import write_cog

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Total length of `list`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


class Rasters(gs.RasterDataset):
    filename_glob = "*.tif"


class Watcher(pl.LightningModule):
    """Keeps the batches that each stage and loader shows it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = {}

    def _note(self, stage, batch, dataloader_idx=0):
        self.seen.setdefault((stage, dataloader_idx), []).append(batch)

    def training_step(self, batch, batch_idx):
        self._note("train", batch)
        return self.weight * batch["image"].float().mean()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self._note("val", batch, dataloader_idx)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self._note("test", batch, dataloader_idx)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        self._note("predict", batch, dataloader_idx)
        return batch["image"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(tmp_path, **kwargs):
    options = {"max_epochs": 1, "num_sanity_val_steps": 0, "enable_checkpointing": False, **kwargs}
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )


def memory(value=None, side=32, bands=2, seed=0):
    rng = np.random.default_rng(seed)
    data = rng.integers(1, 80, (bands, side, side)).astype(np.uint8)
    return MemoryDataset([MemoryScene(data if value is None else np.full_like(data, value))])


def module(**options):
    return GeoDataModule(**{"train": memory(), "patch_size": 16, "batch_size": 4, "length": 8, **options})


@pytest.mark.parametrize("stage", ["val", "test", "predict"])
def test_a_list_of_datasets_has_a_loader_each(tmp_path, stage):
    data = module(**{stage: [memory(10), lambda: memory(20, side=48)]}, mean=0.0, std=1.0)
    model, run = Watcher(), trainer(tmp_path)
    {"val": run.validate, "test": run.test, "predict": run.predict}[stage](model, datamodule=data)
    values = {key: {float(v) for b in batches for v in b["image"].unique()} for key, batches in model.seen.items()}
    assert values == {(stage, 0): {10}, (stage, 1): {20}}
    assert [sum(len(b["image"]) for b in model.seen[stage, i]) for i in (0, 1)] == [4, 9]


def test_training_with_several_validation_datasets(tmp_path):
    data = module(val=[memory(10), memory(20)], val_aug=K.RandomHorizontalFlip(p=1.0))
    model = Watcher()
    trainer(tmp_path, max_epochs=2).fit(model, datamodule=data)
    assert {key: len(batches) for key, batches in model.seen.items()} == {("train", 0): 4, ("val", 0): 2, ("val", 1): 2}


def test_attributes_may_be_lists_too(tmp_path):
    class Ported(GeoDataModule):
        def setup(self, stage):
            self.val_dataset = [memory(10), memory(20)]
            self.val_sampler = [GridGeoSampler(dataset, 32) for dataset in self.val_dataset[: self.samplers]]

    data = Ported()
    data.samplers = 2
    model = Watcher()
    trainer(tmp_path).validate(model, datamodule=data, verbose=False)
    assert sorted(model.seen) == [("val", 0), ("val", 1)]
    data.samplers = 1
    with pytest.raises(ConfigError, match="2 val datasets have 1 samplers"):
        trainer(tmp_path).validate(model, datamodule=data, verbose=False)


def test_training_takes_one_dataset():
    with pytest.raises(ConfigError, match="one dataset"):
        module(train=[memory(), memory()])


def boxes(batches):
    return {tuple(place) for batch in batches for place in batch["bounds"][:, [0, 1, 3, 4]].tolist()}


def test_splits_share_no_ground_and_are_the_same_in_every_run(tmp_path):
    write_cog(tmp_path / "a.tif", shape=(192, 192), count=2)

    def split():
        return gs.splits.random_grid_cell_assignment(Rasters(tmp_path), [0.5, 0.25, 0.25], grid_size=4)

    def run(seed):
        torch.manual_seed(seed)
        data = GeoDataModule(splits=split, patch_size=16, batch_size=4, length=80)
        model, runner = Watcher(), trainer(tmp_path, max_epochs=2)
        runner.fit(model, datamodule=data)
        runner.test(model, datamodule=data, verbose=False)
        return {stage: boxes(batches) for (stage, _), batches in model.seen.items()}

    first, second = run(0), run(1)
    assert (first["val"], first["test"]) == (second["val"], second["test"])
    assert first["train"] != second["train"], "chips are random, splits are not"
    assert len(first["val"]) == len(first["test"]) == 4 * 9

    def apart(a, b):
        return a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]

    groups = [first["train"] | second["train"], first["val"], first["test"]]
    assert all(apart(a, b) for i, one in enumerate(groups) for other in groups[i + 1 :] for a in one for b in other), (
        "no chip of one split reaches into another's ground"
    )


def test_odd_splits_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="leave train="):
        GeoDataModule(memory(), splits=list)
    with pytest.raises(ConfigError, match="returned 1"):
        trainer(tmp_path).fit(Watcher(), datamodule=GeoDataModule(splits=lambda: [memory()]))


def test_statistics_come_from_overviews_once(tmp_path, range_server):
    """A scene's overview and windows of it are read, each tile once, and by a resumed run nothing at all."""
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.normal(size=(2, 16, 16)), np.ones((64, 64)))
    pixels = (np.array([1000, 3000])[:, None, None] + 200 * smooth).astype(np.uint16)
    write_cog(tmp_path / "big.tif", pixels, blocksize=256, compress="ZSTD")
    dataset = Rasters(f"{range_server.url}/big.tif", dtype="native")
    before = gs.stats()
    found = estimate_statistics(dataset)
    assert (gs.stats() - before).tiles == 1 + (1024 // 256) ** 2
    assert found.mean == pytest.approx(pixels.mean((1, 2)), rel=0.002)
    assert found.std == pytest.approx(pixels.std((1, 2)), rel=0.02)

    keep = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=1)
    data = module(train=dataset, mean="auto", std="auto")
    model = Watcher()
    trainer(tmp_path, callbacks=[keep], enable_checkpointing=True).fit(model, datamodule=data)
    assert data.state_dict() == {"mean": list(found.mean), "std": list(found.std)}
    query = data.train_dataset.bounds
    whole = dataset[query[0], query[1]]["image"].double()
    x, _, _, _, y, *_ = model.seen["train", 0][0]["bounds"][0].tolist()
    col, row = round((x - 600_000) / 10), round((5_300_000 - y) / 10)
    chip = whole[:, row : row + 16, col : col + 16]
    expected = (chip - torch.tensor(found.mean)[:, None, None]) / torch.tensor(found.std)[:, None, None]
    assert torch.allclose(model.seen["train", 0][0]["image"][0].double(), expected, atol=1e-4)

    other = module(train=memory(), predict=memory(), mean="auto", std="auto")
    trainer(tmp_path).predict(Watcher(), datamodule=other, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert other.state_dict() == data.state_dict(), "the checkpoint's, not estimated again"


@pytest.mark.parametrize(("overviews", "resampling"), [((), "average"), ((2, 4, 8), "average"), ((2, 4, 8), "nearest")])
def test_statistics_of_noise_are_those_of_its_pixels(tmp_path, range_server, overviews, resampling):
    """What a coarse view has lost of the variance is found again, from a few of the tiles."""
    pixels = np.random.default_rng(1).integers(1, 3000, (2, 1500, 1700)).astype(np.uint16)
    pixels[1] //= 10
    pixels[:, :200] = 0
    write_cog(
        tmp_path / "noise.tif", pixels, blocksize=128, nodata=0, overviews=overviews, overview_resampling=resampling
    )
    before = gs.stats()
    found = estimate_statistics(Rasters(f"{range_server.url}/noise.tif", dtype="native"))
    if overviews:
        assert (gs.stats() - before).tiles < 12 * 14 / 2
    assert found.mean == pytest.approx(pixels[:, 200:].mean((1, 2)), rel=0.01)
    assert found.std == pytest.approx(pixels[:, 200:].std((1, 2)), rel=0.03)
    assert found == estimate_statistics(Rasters(tmp_path, dtype="native")), "the same in each run"


def test_statistics_of_large_and_small_scenes(tmp_path):
    rng = np.random.default_rng(2)
    scenes = [rng.normal(5 * i, 2, (1, *shape)) for i, shape in enumerate([(300, 700), (700, 300), (40, 40)])]
    for i, pixels in enumerate(scenes):
        place = gs_place(i)
        write_cog(tmp_path / f"{i}.tif", pixels.astype(np.float32), blocksize=128, overviews=(), transform=place)
    found = estimate_statistics(Rasters(tmp_path), side=128)
    every = np.concatenate([pixels.reshape(-1) for pixels in scenes])
    assert found.mean == pytest.approx([every.mean()], rel=0.02)
    assert found.std == pytest.approx([every.std()], rel=0.04)


def gs_place(number):
    from affine import Affine

    return Affine(10, 0, 600_000 + 20_000 * number, 0, -10, 5_300_000)


def test_statistics_leave_out_what_is_no_data_and_weigh_by_area(tmp_path):
    small, large = np.full((1, 64, 64), 10, np.int16), np.full((1, 192, 128), 20, np.int16)
    large[:, :96] = -1
    write_cog(tmp_path / "a.tif", small, blocksize=128, nodata=-1)
    place = gs.read(str(tmp_path / "a.tif")).transform * gs_shift(1000)
    write_cog(tmp_path / "b.tif", large, blocksize=128, nodata=-1, transform=place)
    found = estimate_statistics(Rasters(tmp_path), side=64)
    shares = np.array([64 * 64, 96 * 128])
    mean = (shares * [10, 20]).sum() / shares.sum()
    assert found.mean == pytest.approx([mean], rel=1e-3)
    assert found.std == pytest.approx(
        [np.sqrt((shares * (np.array([10, 20]) - mean) ** 2).sum() / shares.sum())], rel=0.01
    )


def gs_shift(pixels):
    from affine import Affine

    return Affine.translation(pixels, 0)


def test_constant_channels_and_series_have_statistics(tmp_path):
    write_cog(tmp_path / "a_20200101.tif", np.full((1, 64, 64), 7, np.float32), blocksize=128)
    write_cog(tmp_path / "a_20200201.tif", np.full((1, 64, 64), 7, np.float32), blocksize=128)

    class Dated(Rasters):
        filename_regex = r"a_(?P<date>\d{8})"

    assert estimate_statistics(Dated(tmp_path, time_series=True)) == Statistics((7.0,), (1.0,))
    with pytest.raises(ConfigError, match="no image"):
        estimate_statistics(type("Labels", (Rasters,), {"is_image": False})(tmp_path))


def test_a_failing_estimate_is_an_error_in_words(tmp_path, range_server):
    write_cog(tmp_path / "a.tif", shape=(64, 64), blocksize=128)
    dataset = Rasters(f"{range_server.url}/a.tif")
    (tmp_path / "a.tif").unlink()
    with pytest.raises(ReadError):
        trainer(tmp_path).fit(Watcher(), datamodule=module(train=dataset, mean="auto", std="auto"))
    with pytest.raises(ConfigError, match="'auto'"):
        module(mean="overviews")


@pytest.mark.parametrize(("fill", "expected"), [(None, None), (5.0, (5 - 2) / 4), ("mean", 0.0), ([6.0, 10.0], [1, 2])])
def test_holes_are_filled_before_normalisation(tmp_path, fill, expected):
    data = np.full((2, 32, 32), 9, np.float32)
    data[:, :, 16:] = np.nan
    write_cog(tmp_path / "a.tif", data, nodata=float("nan"), blocksize=128)
    model = Watcher()
    dm = GeoDataModule(
        predict=Rasters(tmp_path, valid=True, fill=float("nan")), patch_size=32, mean=2.0, std=4.0, fill=fill
    )
    trainer(tmp_path).predict(model, datamodule=dm)
    image = model.seen["predict", 0][0]["image"][0]
    assert (image[:, :, :16] == 7 / 4).all()
    holes = image[:, :, 16:]
    if expected is None:
        assert holes.isnan().all()
    else:
        assert torch.equal(holes, torch.as_tensor(expected).float().expand(2)[:, None, None].expand_as(holes))


def test_an_index_is_made_once_and_before_datasets(tmp_path):
    write_cog(tmp_path / "in/a.tif", shape=(64, 64), count=2, blocksize=128)
    saved, made = tmp_path / "index/a.parquet", []

    def build():
        made.append(1)
        return gs.build_index(tmp_path / "in")

    def fit(source):
        data = module(train=lambda: Rasters(index=gs.load_index(saved)), indexes={str(saved): source})
        model = Watcher()
        trainer(tmp_path).fit(model, datamodule=data)
        assert len(model.seen["train", 0]) == 2

    fit(build)
    fit(build)
    assert made == [1]
    assert [path.name for path in saved.parent.iterdir()] == ["a.parquet"]
    elsewhere = tmp_path / "elsewhere.parquet"
    for source in (elsewhere, str(tmp_path / "in" / "*.tif")):
        saved.rename(elsewhere)
        fit(source)


class Owning(MemoryDataset):
    """A dataset that knows how its images are to be prepared."""

    @staticmethod
    def device_transform(batch):
        return {**batch, "image": batch["image"] / 8 - 1, "by": ["dataset"] * len(batch["image"])}


def owning(cls=Owning):
    return cls([MemoryScene(np.full((2, 32, 32), 16, np.uint8))])


def test_a_datasets_own_transform_is_picked_up(tmp_path):
    data = module(train=owning(), val=[memory(51), owning()], test=owning(), test_aug=lambda batch: batch)
    model, run = Watcher(), trainer(tmp_path)
    run.fit(model, datamodule=data)
    run.test(model, datamodule=data, verbose=False)
    found = {key: (float(b[0]["image"].unique()), "by" in b[0]) for key, b in model.seen.items()}
    assert found == {
        ("train", 0): (1.0, True),
        ("val", 0): (pytest.approx(0.2), False),
        ("val", 1): (1.0, True),
        ("test", 0): (pytest.approx(16 / 255), False),
    }


def test_a_stages_own_transform_and_given_statistics(tmp_path):
    class Both(Owning):
        train_device_transform = K.AugmentationSequential(K.RandomHorizontalFlip(p=1.0))

    model = Watcher()
    trainer(tmp_path).fit(model, datamodule=module(train=owning(Both), val=owning(Both), mean=8.0, std=1.0))
    assert float(model.seen["train", 0][0]["image"].unique()) == 8
    assert float(model.seen["val", 0][0]["image"].unique()) == 0


def test_transforms_of_combined_datasets_are_found(tmp_path):
    write_cog(tmp_path / "a.tif", np.full((1, 64, 64), 16, np.uint8), blocksize=128)

    class Images(Rasters):
        @staticmethod
        def device_transform(batch):
            return {**batch, "image": batch["image"] / 8}

    pairs = type("Labels", (Rasters,), {"is_image": False})(tmp_path) & Images(tmp_path)
    model = Watcher()
    trainer(tmp_path).fit(model, datamodule=module(train=pairs))
    assert float(model.seen["train", 0][0]["image"].unique()) == 2


def test_chips_to_predict_on_overlap_and_cover_small_scenes(tmp_path):
    data = module(predict=memory(side=10), predict_stride=8)
    model = Watcher()
    trainer(tmp_path).predict(model, datamodule=data)
    assert sum(len(batch["image"]) for batch in model.seen["predict", 0]) == 1
    data = module(predict=memory(side=40), predict_stride=(8, 12))
    model = Watcher()
    trainer(tmp_path).predict(model, datamodule=data)
    assert len(boxes(model.seen["predict", 0])) == 4 * 3


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "bf16-mixed"])
def test_half_precision_spares_places_and_pixels_until_they_are_normalised(tmp_path, precision):
    """Lightning casts all of a batch before a data module sees it: 3001 would become 3008, and metres kilometres."""
    pixels = (3000 + np.arange(32 * 32).reshape(1, 32, 32)).astype(np.float32)
    write_cog(tmp_path / "a.tif", pixels, blocksize=128)
    data = module(predict=Rasters(tmp_path), patch_size=32, mean=3500.0, std=256.0)
    model = Watcher()
    trainer(tmp_path, precision=precision).predict(model, datamodule=data)
    (batch,) = model.seen["predict", 0]
    assert (batch["bounds"].dtype, batch["transform"].dtype) == (torch.float64, torch.float64)
    assert batch["bounds"][0, :2].tolist() == [600_000, 600_320]
    half = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "bf16-mixed": torch.float32}[precision]
    assert torch.equal(batch["image"][0], ((torch.from_numpy(pixels) - 3500) / 256).to(half))


def test_stages_can_be_limited(tmp_path):
    data = module(length=40, val=memory(side=64), test=memory(side=64), predict=memory(side=64))
    limits = {f"limit_{stage}_batches": 2 for stage in ("train", "val", "test", "predict")}
    model, run = Watcher(), trainer(tmp_path, max_epochs=2, reload_dataloaders_every_n_epochs=1, **limits)
    run.fit(model, datamodule=data)
    run.test(model, datamodule=data, verbose=False)
    run.predict(model, datamodule=data)
    assert {stage: len(batches) for (stage, _), batches in model.seen.items()} == {
        "train": 4, "val": 4, "test": 2, "predict": 2,
    }  # fmt: skip
    assert not boxes(model.seen["train", 0][:2]) & boxes(model.seen["train", 0][2:]), "the epoch counts on"


def test_a_series_is_trained_on_from_end_to_end(tmp_path):
    """Frames, their mask and their validity turn alike, samples differ, statistics and colours go per channel."""
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 200, (1, 64, 64)).astype(np.uint8)
    for month in (1, 2, 3):
        write_cog(tmp_path / f"images/x_2020{month:02}01.tif", np.concatenate([mask, mask + month]), blocksize=128)
    write_cog(tmp_path / "labels/x.tif", mask, blocksize=128)

    class Series(Rasters):
        filename_regex = r"x_(?P<date>\d{8})"

    labels = type("Labels", (Rasters,), {"is_image": False})(tmp_path / "labels")
    series = Series(tmp_path / "images", time_series=True, valid=True, dtype="native")
    pairs = gs.IntersectionDataset(labels, series, spatial_only=True)
    turns = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.RandomBrightness((1.5, 1.5), p=1.0, clip_output=False), data_keys=None
    )
    torch.manual_seed(0)
    data = module(train=pairs, train_aug=turns, mean=[100.0, 0.0], std=[2.0, 1.0], length=32, batch_size=8)
    model = Watcher()
    trainer(tmp_path).fit(model, datamodule=data)
    flipped = []
    for batch in model.seen["train", 0]:
        image, mask_ = batch["image"], batch["mask"].squeeze(1) if batch["mask"].ndim == 4 else batch["mask"]
        assert image.shape == (8, 3, 2, 16, 16)
        assert batch["mask_valid"].all()
        assert batch["mask_valid"].shape[-2:] == (16, 16)
        for month in range(3):
            assert torch.allclose(image[:, month, 0], (mask_ - 100) / 2 + 0.5)
            assert torch.allclose(image[:, month, 1], mask_ + month + 1 + 0.5)
        flipped += (batch["transform"][:, 0] < 0).tolist()
    assert 0 < sum(flipped) < len(flipped)
