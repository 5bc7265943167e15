"""Lightning: datasets, samplers and loaders of each stage, and what happens to a batch on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
import torch

from geostream.arguments import (
    check_counts,
    check_datasets,
    check_indexes,
    check_loader_options,
    check_numbers,
    check_sampler,
    check_sampling,
    check_strides,
)
from geostream.augment import Augmentation, augment, filled, floating, normalise, normalises, seeded
from geostream.dataset.collate import stack_samples
from geostream.deferred import warped
from geostream.errors import ConfigError, GeostreamError
from geostream.loader import BatchPlace, DataLoader
from geostream.samplers import GridGeoSampler, RandomBatchGeoSampler, RandomGeoSampler, TileBatchGeoSampler
from geostream.samplers.regions import leaves_of
from geostream.samplers.repeating import SameEpoch
from geostream.scan import build_index, load_index
from geostream.sealing import Sealing, unsealed
from geostream.statistics import Statistics, estimate_statistics

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
_SPLIT_SEED = 0
"""Fixes splits for good: a checkpoint is read too late to say which seed an earlier run had."""
_MODEL_DTYPES = {
    "64": torch.float64,
    "64-true": torch.float64,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}
"""What models take as input under Lightning's precisions; float32 under all others."""
_SINGLE = 4
"""Bytes of a float32."""


class GeoDataModule(pl.LightningDataModule):
    """Datasets of places for a `lightning.pytorch.Trainer`.

    Batches cross to the device in the files' own dtypes. There, by the trainer's stage, images become floating point,
    holes are filled, and the batch is normalised and augmented, masks alike. The randomness of augmentation is a
    function of the sampler's seed, the epoch and the batch.

    A dataset may bring its own: where it, or one of those it is made of, has ``device_transform``, a function of the
    batch or a kornia augmentation, and the module was given no augmentation for the stage, the batch goes through it,
    images in floating point. It then normalises as well, unless the module was given ``mean`` or ``std``.
    ``train_device_transform``, ``val_device_transform`` and so on are those of one stage.

    A subclass may instead set, in its own ``setup(stage)``, the attributes that TorchGeo's GeoDataModule uses:
    ``train_dataset`` (or ``dataset`` for all splits), ``train_sampler`` or ``train_batch_sampler``,
    ``train_batch_size``, ``train_aug``, ``mean``, ``std`` and so on.

    Under several ranks pass ``Trainer(use_distributed_sampler=False)``: the samplers deal to ranks themselves.

    Args:
        train: dataset to train on, or a function without arguments that makes it, called in `setup` in each process.
        val: dataset to validate on, likewise, or a list of them: each then has its loader, in this order.
        test: datasets to test on, likewise.
        predict: datasets to predict on, likewise.
        splits: a function without arguments that returns two or three datasets, to train, validate and test on, as
            those of `geostream.splits` do. It is called in each process, and draws the same random numbers in each, so
            that ranks agree, and a run that is taken up again does not train on what it validated on.
        patch_size: side of a chip in pixels, or (height, width).
        batch_size: chips in a batch.
        length: chips in a training epoch, over all ranks; by default about as many as fit side by side.
        sampler: how to train: ``"tile"`` uses up every tile that it reads, ``"batch"`` takes each batch from one scene,
            ``"random"`` each chip from any; or a sampler, or a function that makes one of the dataset. The other stages
            go over a grid.
        predict_stride: distance in pixels between chips to predict on, or (down, across); by default ``patch_size``.
            A smaller one makes them overlap, for `geostream.PredictionWriter` to blend.
        mean: subtracted from images: one number, or one per channel. By default 0. ``"auto"`` estimates it from
            overviews and some windows of the training dataset, once: the checkpoint keeps it.
        std: by which images are then divided, likewise. By default 255, as in TorchGeo. An augmentation with its own
            `kornia.augmentation.Normalize` replaces both.
        fill: what images hold, before they are normalised, where ``mask_valid`` is False or they are NaN: one number,
            one per channel, or ``"mean"``. By default they keep what the files say.
        train_aug: augmentation in training: a kornia ``AugmentationSequential``, or a function of the whole batch.
        val_aug: the same in validation.
        test_aug: the same in testing.
        predict_aug: the same in prediction.
        aug: augmentation of the stages that have none of their own.
        num_workers: worker processes; 0 keeps reads in flight inside this process.
        prefetch_batches: batches in flight with ``num_workers=0``; see `geostream.DataLoader`.
        indexes: indexes that datasets are made from, by the local file that holds each. One that is not there is made
            once per node before any dataset is: from the paths or URLs that `geostream.build_index` takes, from a saved
            index elsewhere (``….parquet``), or by a function without arguments.
        loader_options: other arguments of `geostream.DataLoader`, such as ``pin_memory``.

    Raises:
        ConfigError: an argument that is none of these, or a ``predict_stride`` that would leave holes.
    """

    mean: float | Sequence[float] | Tensor | Literal["auto"] = 0.0
    """Subtracted from images; a subclass may set its own."""
    std: float | Sequence[float] | Tensor | Literal["auto"] = 255.0
    """By which images are divided; a subclass may set its own."""

    def __init__(
        self,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        *,
        splits: Callable[[], Sequence[Any]] | None = None,
        patch_size: int | tuple[int, int] = 64,
        batch_size: int = 1,
        length: int | None = None,
        sampler: str | Iterable[Any] | Callable[[Any], Iterable[Any]] = "batch",
        predict_stride: int | tuple[int, int] | None = None,
        mean: float | Sequence[float] | Tensor | Literal["auto"] | None = None,
        std: float | Sequence[float] | Tensor | Literal["auto"] | None = None,
        fill: float | Sequence[float] | Tensor | Literal["mean"] | None = None,
        train_aug: Augmentation | None = None,
        val_aug: Augmentation | None = None,
        test_aug: Augmentation | None = None,
        predict_aug: Augmentation | None = None,
        aug: Augmentation | None = None,
        num_workers: int = 0,
        prefetch_batches: int | Literal["auto"] = "auto",
        indexes: Mapping[str, Any] | None = None,
        **loader_options: Any,
    ) -> None:
        super().__init__()
        self._given = {"train": train, "val": val, "test": test, "predict": predict}
        check_datasets(splits, self._given)
        check_strides(patch_size, predict_stride)
        check_counts(batch_size=(batch_size, 1), num_workers=(num_workers, 0))
        check_numbers("mean", mean, "auto")
        check_numbers("std", std, "auto", above=0)
        check_numbers("fill", fill, "mean")
        check_loader_options(loader_options)
        self._splits = splits
        self._sampling = check_sampling(sampler)
        self.patch_size = patch_size
        self.batch_size = batch_size
        self.length = length
        self.predict_stride = predict_stride
        self.fill = fill
        self._indexes = check_indexes(indexes)
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
        self._estimated: Statistics | None = None

    def prepare_data(self) -> None:
        """Make those of ``indexes`` that are not there yet. Lightning calls this in one process of each node."""
        for name, source in self._indexes.items():
            path = Path(name)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{path.name}.{os.getpid()}")  # nodes that share a disk do not meet
                _made_index(source).save(part)
                part.replace(path)

    def setup(self, stage: str) -> None:
        """Make the datasets and samplers of a stage (``fit``, ``validate``, ``test``, ``predict``), once.

        Raises:
            ConfigError: the trainer has several ranks and would inject a sampler of its own.
        """
        self._refuse_injection()
        self._split_once()
        for split in _STAGES.get(str(getattr(stage, "value", stage)), ()):
            given = self._given[split]
            if given is None or getattr(self, f"{split}_dataset") is not None:
                continue
            datasets = [_made(part) for part in _as_list(given)]
            samplers = [self._make_sampler(split, dataset) for dataset in datasets]
            several = isinstance(given, list | tuple)
            setattr(self, f"{split}_dataset", datasets if several else datasets[0])
            kind = "batch_sampler" if hasattr(samplers[0], "batch_size") else "sampler"
            setattr(self, f"{split}_{kind}", samplers if several else samplers[0])

    def _split_once(self) -> None:
        if self._splits is None:
            return
        with seeded(_SPLIT_SEED, device=torch.device("cpu")):
            parts = list(self._splits())
        if len(parts) not in {2, 3}:
            raise ConfigError(f"splits= returned {len(parts)} datasets: return those to train, validate and test on")
        self._given |= dict(zip(("train", "val", "test"), parts, strict=False))
        self._splits = None

    def train_dataloader(self) -> DataLoader:
        """Loader of the training chips."""
        (loader,) = self._loaders("train")
        return loader

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Loader of the validation chips, or one of each dataset; none where no validation dataset is set."""
        return self._one_or_more("val") if self._attribute("val", "dataset") is not None else []

    def test_dataloader(self) -> DataLoader | list[DataLoader]:
        """Loader of the test chips, or one of each dataset."""
        return self._one_or_more("test")

    def predict_dataloader(self) -> DataLoader | list[DataLoader]:
        """Loader of the chips to predict on, or one of each dataset."""
        return self._one_or_more("predict")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002 - Lightning's signature
        """The batch as it was read."""
        return unsealed(batch)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch on ``device`` in its own dtypes; ``bounds``, ``transform`` and ``crs`` stay on the CPU."""
        if not isinstance(batch, dict):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        staying = {key: value for key, value in batch.items() if key in _ON_CPU}
        moving = {key: value for key, value in batch.items() if key not in _ON_CPU}
        moved: dict[str, Any] = super().transfer_batch_to_device(moving, device, dataloader_idx)
        return {key: staying[key] if key in staying else moved[key] for key in batch}

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch cast to floating point, filled, normalised and augmented, by the trainer's stage."""
        split = self._split()
        if not isinstance(batch, dict):
            return batch
        batch = warped(batch)
        if split is None:
            return batch
        model_dtype = self._model_dtype()
        batch = floating(batch, torch.float64 if model_dtype == torch.float64 else torch.float32)
        augmentation, owned = self._attribute(split, "aug"), False
        if augmentation is None:
            augmentation = self._device_transform(split, dataloader_idx)
            owned = augmentation is not None
        if self.fill is not None:
            batch = filled(batch, self._statistic("mean") if isinstance(self.fill, str) else self.fill)
        if not normalises(augmentation) and (self._normalises() or not owned):
            batch = normalise(batch, self._statistic("mean"), self._statistic("std"))
        if augmentation is not None:
            place, device = self._place(split, dataloader_idx), _device(batch)
            with seeded(place.seed, place.epoch, place.batch, _SPLITS[split], dataloader_idx, device=device):
                batch = augment(batch, augmentation)
        return floating(batch, model_dtype)

    def state_dict(self) -> dict[str, Any]:
        """The estimated statistics, and the seed of augmentation for loaders that have none of their own."""
        estimated = self._estimated
        numbers = {} if estimated is None else {"mean": list(estimated.mean), "std": list(estimated.std)}
        return numbers if self._seed is None else {**numbers, "seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._seed = state_dict.get("seed", self._seed)
        if "mean" in state_dict and "std" in state_dict:
            self._estimated = Statistics(tuple(state_dict["mean"]), tuple(state_dict["std"]))

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """What the dataset's own ``plot`` returns, or None where it has none."""
        dataset: Any = _as_list(self._attribute("val", "dataset"))[0]
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
        if split == "predict":
            return GridGeoSampler(dataset, self.patch_size, self.predict_stride, pad=True)
        if split != "train":
            return GridGeoSampler(dataset, self.patch_size)
        if self._sampling == "tile":
            return TileBatchGeoSampler(dataset, self.patch_size, self.batch_size, self.length)
        if self._sampling == "batch":
            return RandomBatchGeoSampler(dataset, self.patch_size, self.batch_size, self.length)
        if self._sampling == "random":
            return RandomGeoSampler(dataset, self.patch_size, self.length)
        sampling: Any = self._sampling
        return sampling if isinstance(sampling, Iterable) else check_sampler(sampling(dataset))

    def _one_or_more(self, split: Split) -> DataLoader | list[DataLoader]:
        loaders = self._loaders(split)
        return loaders if isinstance(self._attribute(split, "dataset"), list | tuple) else loaders[0]

    def _loaders(self, split: Split) -> list[DataLoader]:
        self._refuse_injection()
        if self._attribute(split, "dataset") is None:
            raise ConfigError(f"no {split} dataset: pass {split}= or set self.{split}_dataset in setup()")
        datasets, samplers = _as_list(self._attribute(split, "dataset")), _as_list(self._sampler(split))
        if len(datasets) != len(samplers):
            raise ConfigError(f"{len(datasets)} {split} datasets have {len(samplers)} samplers: set one for each")
        if self._estimated is None and any(isinstance(value, str) for value in (self.mean, self.std)):
            self._estimated = self._estimate(split)
        return [self._loader(split, *pair) for pair in zip(datasets, samplers, strict=True)]

    def _loader(self, split: Split, dataset: Any, sampler: Any) -> DataLoader:
        options: dict[str, Any] = {}
        if hasattr(sampler, "batch_size"):
            options["batch_sampler"] = sampler
        else:
            size = self._attribute(split, "batch_size")
            drop_last = split == "train" and len(sampler) >= size
            options |= {"sampler": sampler, "batch_size": size, "drop_last": drop_last}
        if getattr(self._trainer, "overfit_batches", 0) and split in {"train", "val"}:
            options = {"batch_sampler": SameEpoch.of(**options)}
        device = getattr(getattr(self._trainer, "strategy", None), "root_device", torch.device("cpu"))
        defaults = {"persistent_workers": self.num_workers > 0, "pin_memory": device.type == "cuda"}
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            collate_fn=Sealing(self.collate_fn) if self._model_dtype().itemsize < _SINGLE else self.collate_fn,
            prefetch_batches=self.prefetch_batches,
            **options,
            **{**defaults, **self.loader_options},
        )

    def _sampler(self, split: Split) -> Any:
        """The split's sampler, or those of its datasets, in TorchGeo's order of precedence."""
        for prefix in (f"{split}_", ""):
            for name in ("batch_sampler", "sampler"):
                sampler = getattr(self, prefix + name, None)
                if sampler is not None:
                    return sampler
        raise ConfigError(
            f"no sampler for {split}: set self.{split}_sampler or self.{split}_batch_sampler in setup(), as "
            f"GridGeoSampler(self.{split}_dataset, self.patch_size)"
        )

    def _device_transform(self, split: Split, dataloader_idx: int) -> Any:
        """The transform that the batch's dataset, or the first of those it is made of, has for the device."""
        datasets = _as_list(self._attribute(split, "dataset"))
        dataset = datasets[min(dataloader_idx, len(datasets) - 1)]
        parts = [dataset, *leaves_of(dataset)]
        for part in (*parts, *(getattr(part, "dataset", None) for part in parts)):
            for name in (f"{split}_device_transform", "device_transform"):
                transform = getattr(part, name, None)
                if transform is not None:
                    return transform
        return None

    def _normalises(self) -> bool:
        """Whether the user said what to normalise with."""
        return any(
            name in vars(self) or getattr(type(self), name) is not getattr(GeoDataModule, name)
            for name in ("mean", "std")
        )

    def _statistic(self, name: Literal["mean", "std"]) -> Any:
        given = getattr(self, name)
        if not isinstance(given, str):
            return given
        if self._estimated is None:  # a subclass makes its loaders itself
            self._estimated = self._estimate(self._split() or "train")
        return getattr(self._estimated, name)

    def _estimate(self, split: Split) -> Statistics:
        """Statistics of the training dataset, else of the split's, by one rank for all."""
        dataset = self._attribute("train", "dataset")
        if dataset is None:
            given = self._given["train"]
            dataset = _made(given) if given is not None else _as_list(self._attribute(split, "dataset"))[0]
        strategy = getattr(self._trainer, "strategy", None)
        outcome: Statistics | GeostreamError | None = None
        if strategy is None or strategy.is_global_zero:
            try:
                outcome = estimate_statistics(dataset)
            except GeostreamError as error:
                outcome = error  # the other ranks wait for an answer
        if strategy is not None:
            outcome = strategy.broadcast(outcome)
        if not isinstance(outcome, Statistics):
            raise outcome or ConfigError("rank 0 sent no statistics: pass mean= and std=")
        return outcome

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

    def _model_dtype(self) -> torch.dtype:
        return _MODEL_DTYPES.get(str(getattr(self._trainer, "precision", None)), torch.float32)

    def _refuse_injection(self) -> None:
        trainer = self._trainer
        connector = getattr(trainer, "_accelerator_connector", None)
        if trainer is not None and trainer.world_size > 1 and getattr(connector, "use_distributed_sampler", False):
            raise ConfigError(
                f"the trainer has {trainer.world_size} ranks and would wrap the samplers in its own, which deals each "
                "chip out twice: pass Trainer(use_distributed_sampler=False); geostream's samplers deal to ranks "
                "themselves"
            )


def _made(given: Any) -> Any:
    """The dataset itself, or what the function makes."""
    return given if hasattr(given, "__getitem__") or not callable(given) else given()


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _made_index(source: Any) -> Any:
    if callable(source):
        return source()
    saved = isinstance(source, str | os.PathLike) and str(source).endswith(".parquet")
    return load_index(source) if saved else build_index(source)


def _device(batch: dict[str, Any]) -> torch.device:
    images = (value for key, value in batch.items() if key.startswith("image") and isinstance(value, torch.Tensor))
    return next((image.device for image in images), torch.device("cpu"))
