"""Lightning: datasets, samplers and loaders of each stage, and what happens to a batch on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
import torch

from geostream.augment import Augmentation, augment, floating, normalise, normalises, seeded
from geostream.dataset.collate import stack_samples
from geostream.errors import ConfigError
from geostream.loader import BatchPlace, DataLoader
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler, TileBatchGeoSampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["GeoDataModule"]

Split = Literal["train", "val", "test", "predict"]

_ON_CPU = frozenset({"bounds", "transform", "crs"})
"""Keys of a batch that say where its chips lie: they stay on the CPU, in float64."""
_STAGES: Mapping[str, tuple[Split, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}
_SPLITS: Mapping[Split, int] = {"train": 0, "val": 1, "test": 2, "predict": 3}
"""Numbers that keep the stages' random numbers apart."""
_MODEL_DTYPES = {
    "64": torch.float64,
    "64-true": torch.float64,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}
"""What models take as input under Lightning's precisions; float32 under all others."""


class GeoDataModule(pl.LightningDataModule):
    """Datasets of places for a `lightning.pytorch.Trainer`.

    Batches cross to the device in the files' own dtypes. There, by the trainer's stage, images become floating point,
    are normalised and augmented, masks alike. The randomness of augmentation is a function of the sampler's seed, the
    epoch and the batch.

    A subclass may instead set, in its own ``setup(stage)``, the attributes that TorchGeo's GeoDataModule uses:
    ``train_dataset`` (or ``dataset`` for all splits), ``train_sampler`` or ``train_batch_sampler``,
    ``train_batch_size``, ``train_aug``, ``mean``, ``std`` and so on.

    Under several ranks pass ``Trainer(use_distributed_sampler=False)``: the samplers deal to ranks themselves.

    Args:
        train: dataset to train on, or a function without arguments that makes it, called in `setup` in each process.
        val: dataset to validate on, likewise.
        test: dataset to test on, likewise.
        predict: dataset to predict on, likewise.
        patch_size: side of a chip in pixels, or (height, width).
        batch_size: chips in a batch.
        length: chips in a training epoch, over all ranks; by default about as many as fit side by side.
        sampler: how to train: ``"tile"`` uses up every tile that it reads, ``"batch"`` takes each batch from one scene,
            ``"random"`` each chip from any; or a sampler, or a function that makes one of the dataset. The other stages
            go over a grid.
        mean: subtracted from images: one number, or one per channel. By default 0.
        std: by which images are then divided, likewise. By default 255, as in TorchGeo. An augmentation with its own
            `kornia.augmentation.Normalize` replaces both.
        train_aug: augmentation in training: a kornia ``AugmentationSequential``, or a function of the whole batch.
        val_aug: the same in validation.
        test_aug: the same in testing.
        predict_aug: the same in prediction.
        aug: augmentation of the stages that have none of their own.
        num_workers: worker processes; 0 keeps reads in flight inside this process.
        prefetch_batches: batches in flight with ``num_workers=0``; see `geostream.DataLoader`.
        loader_options: other arguments of `geostream.DataLoader`, such as ``pin_memory``.
    """

    mean: float | Sequence[float] | Tensor = 0.0
    """Subtracted from images; a subclass may set its own."""
    std: float | Sequence[float] | Tensor = 255.0
    """By which images are divided; a subclass may set its own."""

    def __init__(
        self,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        *,
        patch_size: int | tuple[int, int] = 64,
        batch_size: int = 1,
        length: int | None = None,
        sampler: str | Iterable[Any] | Callable[[Any], Iterable[Any]] = "batch",
        mean: float | Sequence[float] | Tensor | None = None,
        std: float | Sequence[float] | Tensor | None = None,
        train_aug: Augmentation | None = None,
        val_aug: Augmentation | None = None,
        test_aug: Augmentation | None = None,
        predict_aug: Augmentation | None = None,
        aug: Augmentation | None = None,
        num_workers: int = 0,
        prefetch_batches: int | Literal["auto"] = "auto",
        **loader_options: Any,
    ) -> None:
        super().__init__()
        self._given = {"train": train, "val": val, "test": test, "predict": predict}
        self._sampling = _check_sampling(sampler)
        self.patch_size = patch_size
        self.batch_size = batch_size
        self.length = length
        self._offer(mean=mean, std=std)
        augmentations = {
            "train_aug": train_aug,
            "val_aug": val_aug,
            "test_aug": test_aug,
            "predict_aug": predict_aug,
            "aug": aug,
        }
        for name, augmentation in augmentations.items():
            if augmentation is not None and not callable(augmentation):
                raise ConfigError(
                    f"{name}={augmentation!r} is no augmentation: pass kornia's, or a function of the batch"
                )
        self._offer(**augmentations)
        self.num_workers = num_workers
        self.prefetch_batches: int | Literal["auto"] = prefetch_batches
        self.loader_options = loader_options
        self.collate_fn: Callable[[list[Any]], Any] = stack_samples
        for split in ("", "train_", "val_", "test_", "predict_"):
            self._offer(**{split + name: None for name in ("dataset", "sampler", "batch_sampler", "batch_size")})
        self._seed: int | None = None

    def setup(self, stage: str) -> None:
        """Make the datasets and samplers of a stage (``fit``, ``validate``, ``test``, ``predict``), once.

        Raises:
            ConfigError: the trainer has several ranks and would inject a sampler of its own.
        """
        self._refuse_injection()
        for split in _STAGES.get(str(getattr(stage, "value", stage)), ()):
            given = self._given[split]
            if given is None or getattr(self, f"{split}_dataset") is not None:
                continue
            dataset = given if _is_dataset(given) else given()
            sampler = self._make_sampler(split, dataset)
            setattr(self, f"{split}_dataset", dataset)
            setattr(self, f"{split}_{'batch_' if hasattr(sampler, 'batch_size') else ''}sampler", sampler)

    def train_dataloader(self) -> DataLoader:
        """Loader of the training chips."""
        return self._loader("train")

    def val_dataloader(self) -> DataLoader | list[Any]:
        """Loader of the validation chips; none where no validation dataset is set."""
        return self._loader("val") if self._attribute("val", "dataset") is not None else []

    def test_dataloader(self) -> DataLoader:
        """Loader of the test chips."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader:
        """Loader of the chips to predict on."""
        return self._loader("predict")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch on ``device`` in its own dtypes; ``bounds``, ``transform`` and ``crs`` stay on the CPU."""
        if not isinstance(batch, dict):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        staying = {key: value for key, value in batch.items() if key in _ON_CPU}
        moving = {key: value for key, value in batch.items() if key not in _ON_CPU}
        moved: dict[str, Any] = super().transfer_batch_to_device(moving, device, dataloader_idx)
        return {key: staying[key] if key in staying else moved[key] for key in batch}

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch cast to floating point, normalised and augmented, by the trainer's stage."""
        split = self._split()
        if split is None or not isinstance(batch, dict):
            return batch
        model_dtype = _MODEL_DTYPES.get(str(self._trainer.precision), torch.float32)
        batch = floating(batch, torch.float64 if model_dtype == torch.float64 else torch.float32)
        augmentation = self._attribute(split, "aug")
        if not normalises(augmentation):
            batch = normalise(batch, self.mean, self.std)
        if augmentation is not None:
            place, device = self._place(split, dataloader_idx), _device(batch)
            with seeded(place.seed, place.epoch, place.batch, _SPLITS[split], dataloader_idx, device=device):
                batch = augment(batch, augmentation)
        return floating(batch, model_dtype)

    def state_dict(self) -> dict[str, int]:
        """The seed of augmentation for loaders that have none of their own."""
        return {} if self._seed is None else {"seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take over the seed of `state_dict`."""
        self._seed = state_dict.get("seed", self._seed)

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """What the dataset's own ``plot`` returns, or None where it has none."""
        dataset: Any = self._attribute("val", "dataset")
        return dataset.plot(*args, **kwargs) if hasattr(dataset, "plot") else None

    @property
    def _trainer(self) -> Any:
        return self.trainer

    def _offer(self, **attributes: Any) -> None:
        """Set attributes, except where nothing was given and the class has its own."""
        for name, value in attributes.items():
            if value is not None or not hasattr(self, name):
                setattr(self, name, value)

    def _attribute(self, split: Split, name: str) -> Any:
        """The split's own attribute, else the one for all splits."""
        own = getattr(self, f"{split}_{name}", None)
        return getattr(self, name, None) if own is None else own

    def _make_sampler(self, split: Split, dataset: Any) -> Any:
        if split != "train":
            return GridGeoSampler(dataset, self.patch_size)
        if self._sampling == "tile":
            return TileBatchGeoSampler(dataset, self.patch_size, self.batch_size, self.length)
        if self._sampling == "batch":
            return RandomBatchGeoSampler(dataset, self.patch_size, self.batch_size, self.length)
        if self._sampling == "random":
            return RandomGeoSampler(dataset, self.patch_size, self.length)
        sampling: Any = self._sampling
        return sampling if isinstance(sampling, Iterable) else sampling(dataset)

    def _loader(self, split: Split) -> DataLoader:
        self._refuse_injection()
        dataset = self._attribute(split, "dataset")
        if dataset is None:
            raise ConfigError(f"no {split} dataset: pass {split}= or set self.{split}_dataset in setup()")
        samplers = self._samplers(split)
        sampler = samplers.get("sampler")
        if sampler is not None:
            samplers["batch_size"] = self._attribute(split, "batch_size")
            samplers["drop_last"] = split == "train" and len(sampler) >= samplers["batch_size"]
        device = getattr(getattr(self._trainer, "strategy", None), "root_device", torch.device("cpu"))
        defaults = {"persistent_workers": self.num_workers > 0, "pin_memory": device.type == "cuda"}
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
            prefetch_batches=self.prefetch_batches,
            **samplers,
            **{**defaults, **self.loader_options},
        )

    def _samplers(self, split: Split) -> dict[str, Any]:
        """The split's sampler as an argument of the loader, in TorchGeo's order of precedence."""
        for prefix in (f"{split}_", ""):
            for name in ("batch_sampler", "sampler"):
                sampler = getattr(self, prefix + name, None)
                if sampler is not None:
                    return {"batch_sampler" if hasattr(sampler, "batch_size") else "sampler": sampler}
        raise ConfigError(
            f"no sampler for {split}: set self.{split}_sampler or self.{split}_batch_sampler in setup(), as "
            f"GridGeoSampler(self.{split}_dataset, self.patch_size)"
        )

    def _split(self) -> Split | None:
        trainer = self._trainer
        if trainer is None:
            return None
        if trainer.training:
            return "train"
        if trainer.validating or trainer.sanity_checking:
            return "val"
        if trainer.testing:
            return "test"
        return "predict" if trainer.predicting else None

    def _place(self, split: Split, dataloader_idx: int) -> BatchPlace:
        """Place in the run of the batch that is on its way, from its loader, else from the trainer's count."""
        trainer = self._trainer
        name = "train_dataloader" if split == "train" else f"{split}_dataloaders"
        loaders = getattr(trainer, name, None)
        loader = loaders[dataloader_idx] if isinstance(loaders, list | tuple) else loaders
        place = loader.place if isinstance(loader, DataLoader) else None
        if place is not None:
            return place
        if self._seed is None:
            self._seed = torch.initial_seed()
        loop = trainer.fit_loop.epoch_loop if split == "train" else trainer._active_loop  # noqa: SLF001 - no public way
        local = loop.batch_progress.current.ready
        return BatchPlace(self._seed, trainer.current_epoch, local * trainer.world_size + trainer.global_rank)

    def _refuse_injection(self) -> None:
        trainer = self._trainer
        connector = getattr(trainer, "_accelerator_connector", None)
        if trainer is not None and trainer.world_size > 1 and getattr(connector, "use_distributed_sampler", False):
            raise ConfigError(
                f"the trainer has {trainer.world_size} ranks and would wrap the samplers in its own, which deals each "
                "chip out twice: pass Trainer(use_distributed_sampler=False); geostream's samplers deal to ranks "
                "themselves"
            )


def _is_dataset(given: Any) -> bool:
    return hasattr(given, "__getitem__") or not callable(given)


def _check_sampling(sampler: Any) -> Any:
    if isinstance(sampler, str) and sampler not in {"tile", "batch", "random"}:
        raise ConfigError(
            f"sampler={sampler!r}: pass 'tile', 'batch', 'random', a sampler, or a function of the dataset"
        )
    if not (isinstance(sampler, Iterable) or callable(sampler)):
        raise ConfigError(f"sampler={sampler!r} is neither a sampler nor a function that makes one of the dataset")
    return sampler


def _device(batch: dict[str, Any]) -> torch.device:
    images = (value for key, value in batch.items() if key.startswith("image") and isinstance(value, torch.Tensor))
    return next((image.device for image in images), torch.device("cpu"))
