"""The data module under a real Trainer and a plain LightningModule."""

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint

from geostream.datamodule import GeoDataModule
from geostream.dataset.collate import stack_samples
from geostream.errors import ConfigError
from geostream.loader import DataLoader
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Total length of `list`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


def labelled(count=2, side=64, dtype=np.uint8):
    """Scenes whose mask is three times their first band, so that any pixel that moves alone shows."""
    rng = np.random.default_rng(0)
    scenes = []
    for i in range(count):
        image = rng.integers(0, 80, (2, side, side)).astype(dtype)
        scenes.append(MemoryScene(np.concatenate([image, 3 * image[:1]]), (1000.0 * i, 0.0)))
    return MemoryDataset(scenes, labels=True)


class Segmentation(pl.LightningModule):
    """A model that learns the mask, and remembers what it was shown."""

    def __init__(self, channels=2):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Conv2d(channels, 1, 1)
        self.seen = {"train": [], "val": [], "test": [], "predict": []}
        self.epochs = []

    def _note(self, stage, batch):
        self.seen[stage].append(batch)
        return self.net(batch["image"])

    def training_step(self, batch, _):
        self.epochs.append(self.current_epoch)
        return torch.nn.functional.mse_loss(self._note("train", batch)[:, 0], batch["mask"].float() / 255)

    def validation_step(self, batch, _):
        self._note("val", batch)

    def test_step(self, batch, batch_idx):
        self._note("test", batch)

    def predict_step(self, batch, _):
        return self._note("predict", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(tmp_path, **kwargs):
    options = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False, **kwargs}
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )


def module(**kwargs):
    options = {"patch_size": 16, "batch_size": 4, "length": 20, **kwargs}
    return GeoDataModule(options.pop("train", labelled()), **options)


def places(batches):
    return [batch["bounds"][:, [0, 4]].tolist() for batch in batches]


def flips():
    return K.AugmentationSequential(K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5))


@pytest.mark.parametrize("sampler", ["tile", "batch", "random"])
def test_epochs_see_different_chips_and_lengths_are_right(tmp_path, sampler):
    torch.manual_seed(0)
    model, data = Segmentation(), module(sampler=sampler)
    run = trainer(tmp_path)
    run.fit(model, datamodule=data)
    assert run.num_training_batches == len(data.train_dataloader()) == 5
    assert run.global_step == 10
    assert model.epochs == [0] * 5 + [1] * 5
    first, second = places(model.seen["train"][:5]), places(model.seen["train"][5:])
    assert not [place for batch in first for place in batch if batch in second]
    loader = data.train_dataloader()
    loader.set_epoch(0)
    assert places(loader) == first, "the order is the epoch's own"
    scenes = [{place[0] >= 1000 for place in batch} for batch in first]
    assert sampler != "batch" or all(len(scene) == 1 for scene in scenes)


def test_training_learns(tmp_path):
    torch.manual_seed(0)
    data = module(length=40, train_aug=flips(), mean=0.0, std=80.0)
    model = Segmentation()
    losses = []
    model.on_train_batch_end = lambda outputs, *_: losses.append(float(outputs["loss"]))
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=0.1)
    trainer(tmp_path, max_epochs=4).fit(model, datamodule=data)
    assert len(losses) == 40
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 5


def aligned(batch, key="mask"):
    return torch.equal((batch["image"][:, 0] * 255).round().to(torch.int64) * 3, batch[key])


def test_image_and_mask_move_together(tmp_path):
    torch.manual_seed(0)
    model = Segmentation()
    turns = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5), K.RandomRotation90((0, 3), p=0.5)
    )
    data = module(train_aug=turns)
    trainer(tmp_path).fit(model, datamodule=data)
    moved = 0
    for batch in model.seen["train"]:
        assert aligned(batch)
        assert batch["mask"].dtype == torch.int64
        original = stack_samples([data.train_dataset[query(sample)] for sample in batch["bounds"]])
        assert not torch.equal(original["mask"], batch["mask"]) or not torch.equal(original["image"], batch["image"])
        moved += not torch.equal(original["mask"], batch["mask"])
        # the check above fails where one of them stays behind
        assert not aligned({**batch, "mask": original["mask"]}) or torch.equal(original["mask"], batch["mask"])
        assert torch.equal(batch["bounds"], original["bounds"])
    assert moved >= 9


def query(bounds):
    import pandas as pd

    x0, x1, xres, y0, y1, yres, t0, t1, _ = bounds.tolist()
    stamps = (pd.Timestamp(t, unit="s") for t in (t0, t1))
    return slice(x0, x1, xres), slice(y0, y1, yres), slice(*stamps)


def test_augmentation_is_a_function_of_seed_epoch_and_batch(tmp_path):
    def run():
        torch.manual_seed(0)
        model = Segmentation()
        trainer(tmp_path).fit(model, datamodule=module(train_aug=flips()))
        return [batch["image"] for batch in model.seen["train"]]

    first, second = run(), run()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_batches_cross_in_native_dtype_and_become_floats_there(tmp_path, dtype):
    crossing = []

    class Watching(GeoDataModule):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
            crossing.append({key: value.dtype for key, value in moved.items()})
            return moved

    model = Segmentation()
    data = Watching(labelled(dtype=dtype), patch_size=16, batch_size=4, length=8, mean=[10.0, 20.0], std=[2.0, 4.0])
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)
    assert crossing[0]["image"] == (torch.uint8 if dtype == np.uint8 else torch.uint16)
    batch = model.seen["train"][0]
    assert batch["image"].dtype == torch.float32
    original = stack_samples([data.train_dataset[query(sample)] for sample in batch["bounds"]])["image"].float()
    assert torch.allclose(batch["image"][:, 0], (original[:, 0] - 10) / 2)
    assert torch.allclose(batch["image"][:, 1], (original[:, 1] - 20) / 4)


def test_bounds_and_transform_stay_on_the_cpu():
    batch = {"image": torch.zeros(1, 2, 4, 4, dtype=torch.uint8), "bounds": torch.zeros(1, 9), "transform": 1, "crs": 2}
    moved = module().transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert (moved["image"].device.type, moved["image"].dtype) == ("meta", torch.uint8)
    assert moved["bounds"] is batch["bounds"]
    assert list(moved) == list(batch)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16), ("32-true", torch.float32)]
)
def test_images_have_the_models_precision_and_labels_are_exact(tmp_path, precision, dtype):
    model = Segmentation()
    data = module(length=4, train_aug=flips())
    trainer(tmp_path, precision=precision, max_epochs=1).fit(model, datamodule=data)
    batch = model.seen["train"][0]
    assert batch["image"].dtype == dtype
    original = {int(v) for scene in data.train_dataset.scenes for v in np.unique(scene.data[-1])}
    assert {int(v) for v in batch["mask"].unique()} <= original


class Mark:
    """Adds a number to images, to show which stage's augmentation ran."""

    def __init__(self, value):
        self.value = value

    def __call__(self, batch):
        return {**batch, "mark": self.value}


def test_each_stage_has_its_own_augmentation_and_grid(tmp_path):
    data = module(
        val=lambda: labelled(1, 40),
        test=labelled(1, 32),
        predict=labelled(1, 32),
        train_aug=Mark(1),
        val_aug=Mark(2),
        test_aug=Mark(3),
        aug=Mark(9),
    )
    model = Segmentation()
    run = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=1)
    run.fit(model, datamodule=data)
    run.validate(model, datamodule=data, verbose=False)
    run.test(model, datamodule=data, verbose=False)
    predictions = run.predict(model, datamodule=data)
    marks = {stage: {batch["mark"] for batch in batches} for stage, batches in model.seen.items()}
    assert marks == {"train": {1}, "val": {2}, "test": {3}, "predict": {9}}
    assert len(model.seen["val"]) == 1 + 3 + 3  # 9 chips, the sanity check's first batch, twice all
    assert torch.cat(predictions).shape == (4, 1, 16, 16)
    chips = {tuple(place) for batch in places(model.seen["val"]) for place in batch}
    assert chips == {(x, -y) for x in (0.0, 16.0, 24.0) for y in (0.0, 16.0, 24.0)}


def test_prediction_writers_learn_which_chips_they_got(tmp_path):
    written = []

    class Writer(BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, batch, *_):
            written.append((len(prediction), [index[0].start for index in batch_indices], batch["bounds"][:, 0]))

    data = module(predict=labelled(1, 40))
    trainer(tmp_path, callbacks=[Writer("batch")]).predict(Segmentation(), datamodule=data)
    assert [count for count, *_ in written] == [4, 4, 1]
    for _, starts, bounds in written:
        assert starts == bounds.tolist()


def test_training_needs_no_validation_data(tmp_path):
    model = Segmentation()
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=module())
    assert model.seen["val"] == []


def test_torchgeos_attributes_are_honoured(tmp_path):
    class Ported(GeoDataModule):
        mean = torch.tensor([1.0, 1.0])
        std = torch.tensor([2.0, 2.0])

        def __init__(self):
            super().__init__(batch_size=3, patch_size=16, length=9)
            self.train_aug = K.AugmentationSequential(
                K.Normalize(mean=self.mean, std=self.std), K.RandomHorizontalFlip(p=1.0), data_keys=None, keepdim=True
            )

        def setup(self, stage):
            self.dataset = labelled()
            if stage == "fit":
                self.train_batch_sampler = RandomBatchGeoSampler(self.dataset, self.patch_size, 3, self.length)
                self.val_sampler = GridGeoSampler(self.dataset, 32)
                self.val_batch_size = 4

    model = Segmentation()
    data = Ported()
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)
    assert [len(batch["image"]) for batch in model.seen["train"]] == [3, 3, 3]
    assert [batch["image"].shape for batch in model.seen["val"]] == [(4, 2, 32, 32)] * 2
    batch = model.seen["train"][0]
    original = stack_samples([data.dataset[query(sample)] for sample in batch["bounds"]])
    assert torch.allclose(batch["image"], (original["image"].float().flip(-1) - 1) / 2), "normalised once"
    assert torch.equal(batch["mask"], original["mask"].flip(-1))
    val = model.seen["val"][0]
    original = stack_samples([data.dataset[query(sample)] for sample in val["bounds"]])
    assert torch.allclose(val["image"], (original["image"].float() - 1) / 2)


@pytest.mark.parametrize("given", ["sampler", "function"])
def test_a_sampler_of_ones_own(tmp_path, given):
    dataset = labelled()
    sampler = RandomGeoSampler(dataset, 8, length=12)
    model = Segmentation()
    data = module(train=dataset, sampler=sampler if given == "sampler" else lambda ds: RandomGeoSampler(ds, 8, 12))
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)
    assert [batch["image"].shape for batch in model.seen["train"]] == [(4, 2, 8, 8)] * 3


@pytest.mark.parametrize(("sampler", "word"), [("grid", "'batch'"), (3, "neither")])
def test_unknown_samplers_are_refused(sampler, word):
    with pytest.raises(ConfigError, match=word):
        module(sampler=sampler)


def test_missing_datasets_and_samplers_are_named():
    with pytest.raises(ConfigError, match="test="):
        module().test_dataloader()
    data = module()
    data.test_dataset = labelled()
    with pytest.raises(ConfigError, match="test_sampler"):
        data.test_dataloader()


def test_several_ranks_refuse_an_injected_sampler(tmp_path):
    data = module()
    data.trainer = trainer(tmp_path, strategy="ddp", devices=2)
    with pytest.raises(ConfigError, match="use_distributed_sampler=False"):
        data.setup("fit")
    with pytest.raises(ConfigError, match="use_distributed_sampler=False"):
        data.train_dataloader()
    data.trainer = trainer(tmp_path, strategy="ddp", devices=2, use_distributed_sampler=False)
    data.setup("fit")
    assert len(data.train_dataloader()) == 5


def test_a_foreign_loader_is_augmented_by_the_trainers_count(tmp_path):
    class Foreign(GeoDataModule):
        def train_dataloader(self):
            return torch_data.DataLoader(
                self.train_dataset, batch_sampler=self.train_batch_sampler, collate_fn=stack_samples
            )

    def run():
        torch.manual_seed(0)
        model = Segmentation()
        data = Foreign(labelled(), patch_size=16, batch_size=4, length=12, train_aug=flips())
        trainer(tmp_path).fit(model, datamodule=data)
        assert all(aligned(batch) for batch in model.seen["train"])
        assert data.state_dict() == {"seed": torch.initial_seed()}
        return [batch["image"] for batch in model.seen["train"]]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_a_run_goes_on_with_the_very_next_batch(tmp_path):
    def fresh():
        torch.manual_seed(0)
        return Segmentation(), module(train_aug=flips(), val=labelled(1, 32))

    model, data = fresh()
    trainer(tmp_path).fit(model, datamodule=data)
    whole, weights = model.seen["train"], model.net.weight.detach().clone()

    class Killed(Exception):  # noqa: N818 - nobody's error
        pass

    model, data = fresh()
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=7, save_top_k=-1, filename="mid")
    step = model.training_step

    def training_step(batch, batch_idx):
        if model.global_step == 8:
            raise Killed
        return step(batch, batch_idx)

    model.training_step = training_step
    with pytest.raises(Killed):
        trainer(tmp_path, enable_checkpointing=True, callbacks=[keep]).fit(model, datamodule=data)

    torch.manual_seed(12345)  # another process has other random numbers
    model, data = Segmentation(), module(train_aug=flips(), val=labelled(1, 32))
    run = trainer(tmp_path)
    run.fit(model, datamodule=data, ckpt_path=tmp_path / "mid.ckpt", weights_only=True)
    rest = whole[7:]
    assert places(model.seen["train"]) == places(rest)
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(model.seen["train"], rest, strict=True))
    assert torch.equal(model.net.weight, weights)
    assert run.global_step == 10


@pytest.mark.parametrize("limit", [{"limit_train_batches": 2}, {"reload": True}])
def test_lightnings_limits_work(tmp_path, limit):
    reload = {"reload_dataloaders_every_n_epochs": 1} if limit.pop("reload", None) else limit
    model = Segmentation()
    data = module()
    trainer(tmp_path, **reload).fit(model, datamodule=data)
    batches = 5 if reload is not limit else 2
    assert model.epochs == [0] * batches + [1] * batches
    seen = places(model.seen["train"])
    assert seen[:batches] != seen[batches:]


@pytest.mark.parametrize("sampler", ["tile", "batch", "random"])
def test_overfitting_sees_the_same_batches_again(tmp_path, sampler):
    model = Segmentation()
    data = module(sampler=sampler, val=labelled(1, 40), train_aug=flips())
    trainer(tmp_path, overfit_batches=2, max_epochs=3).fit(model, datamodule=data)
    assert model.epochs == [0, 0, 1, 1, 2, 2]
    seen = places(model.seen["train"])
    assert seen[:2] == seen[2:4] == seen[4:]
    assert len(model.seen["val"]) == 6
    images = [batch["image"] for batch in model.seen["train"]]
    assert all(torch.equal(a, b) for a, b in zip(images[:2], images[2:4], strict=True)), "augmented alike"


def test_a_loader_made_outside_predicts(tmp_path):
    dataset = labelled(1, 40)
    loader = DataLoader(dataset, sampler=GridGeoSampler(dataset, 16), batch_size=4, prefetch_batches=2)

    class Floats(Segmentation):
        def predict_step(self, batch, _):
            return batch["bounds"]

    predicted = trainer(tmp_path).predict(Floats(), dataloaders=loader)
    assert torch.cat(predicted).shape == (9, 9)


def test_workers_train_too(tmp_path):
    torch.manual_seed(0)
    alone = Segmentation()
    trainer(tmp_path).fit(alone, datamodule=module())
    torch.manual_seed(0)
    model = Segmentation()
    trainer(tmp_path).fit(model, datamodule=module(num_workers=1))
    assert places(model.seen["train"]) == places(alone.seen["train"])


@pytest.mark.parametrize("stage", ["train_aug", "val_aug", "test_aug", "predict_aug", "aug"])
def test_what_is_no_augmentation_is_refused_at_once(stage):
    with pytest.raises(ConfigError, match=f"{stage}=5 is no augmentation"):
        GeoDataModule(**{stage: 5})
