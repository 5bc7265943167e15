"""What the data module refuses when it is made, in words that name the argument."""

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import numpy as np
import pytest
import torch

import geostream as gs
from geostream.errors import ConfigError
from geostream.samplers import GridGeoSampler, RandomGeoSampler
from geostream.testing.memory import MemoryDataset, MemoryScene

NAN = float("nan")


def dataset():
    return MemoryDataset([MemoryScene(np.ones((1, 32, 32), np.uint8), (0.0, 0.0))])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"predict_stride": 65}, r"predict_stride=65 is larger than patch_size=64"),
        ({"predict_stride": (64, 65)}, r"predict_stride=\(64, 65\) is larger than patch_size=64"),
        ({"patch_size": (64, 32), "predict_stride": 64}, r"predict_stride=64 is larger"),
        ({"predict_stride": 0}, r"^predict_stride=0"),
        ({"predict_stride": -3}, r"^predict_stride=-3"),
        ({"predict_stride": NAN}, r"^predict_stride=nan"),
        ({"patch_size": 0}, r"^patch_size=0"),
        ({"patch_size": 2.5}, r"^patch_size=2\.5"),
        ({"patch_size": "64"}, r"^patch_size='64'"),
        ({"patch_size": None}, r"^patch_size=None"),
        ({"batch_size": 0}, r"^batch_size=0"),
        ({"mean": NAN}, r"^mean=nan: pass a finite"),
        ({"mean": [1, 2, NAN]}, r"^mean=\[1, 2, nan\]"),
        ({"mean": True}, r"^mean=True"),
        ({"mean": [1.0, True]}, r"^mean=\[1\.0, True\]"),
        ({"mean": "x"}, r"^mean='x'.*'auto'"),
        ({"mean": ["x"]}, r"^mean=\['x'\]"),
        ({"mean": []}, r"^mean=\[\]"),
        ({"mean": torch.tensor([1.0, NAN])}, r"^mean=tensor"),
        ({"std": -1}, r"^std=-1: pass numbers above 0"),
        ({"std": 0.0}, r"^std=0\.0: pass numbers above 0"),
        ({"std": [1, NAN]}, r"^std="),
        ({"std": float("inf")}, r"^std=inf"),
        ({"fill": NAN}, r"^fill=nan.*'mean'"),
        ({"val": []}, r"^val=\[\] holds no dataset"),
        ({"predict": ()}, r"^predict=\(\) holds no dataset"),
        ({"splits": 3}, r"^splits=3: pass a function"),
        ({"indexes": 3}, r"^indexes=3: pass a dict"),
        ({"num_workers": "x"}, r"^num_workers='x'"),
        ({"num_workers": -1}, r"^num_workers=-1"),
        ({"foo": 3}, r"^foo= is no argument of GeoDataModule.*geostream.DataLoader.*pin_memory"),
        ({"shuffle": True}, r"^shuffle= is no argument of GeoDataModule: it sets"),
        ({"sampler": RandomGeoSampler}, r"^sampler=RandomGeoSampler cannot.*size.*lambda dataset"),
        ({"sampler": lambda: 3}, r"^sampler=<lambda> cannot"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),  # no addresses: workers must agree
)
def test_bad_arguments_are_refused_by_name(arguments, words):
    with pytest.raises(ConfigError, match=words):
        gs.GeoDataModule(**arguments)


def test_good_arguments_are_taken():
    for mean in (0, 1.5, np.float32(2), [1, 2], (1.0, 2.0), np.ones(3), torch.zeros(2), "auto", None):
        gs.GeoDataModule(mean=mean, fill=0 if mean is None else None)
    for std in (1, [1, 2], torch.ones(2), "auto"):
        gs.GeoDataModule(std=std)
    for stride in (64, 1, (64, 32), np.int64(32)):
        gs.GeoDataModule(predict_stride=stride)
    data = gs.GeoDataModule(cache_bytes=1, prefetch_bytes=2, pin_memory=False, timeout=0, in_order=True)
    assert data.loader_options["cache_bytes"] == 1


def test_a_sampler_function_must_return_a_sampler():
    data = gs.GeoDataModule(dataset(), sampler=lambda _: 3, patch_size=16)
    with pytest.raises(ConfigError, match=r"sampler= returned 3"):
        data.setup("fit")
    data = gs.GeoDataModule(dataset(), sampler=lambda places: GridGeoSampler(places, 16), patch_size=16)
    data.setup("fit")
    assert len(data.train_sampler) == 4


def test_policies_of_kornia_are_augmentations():
    gs.GeoDataModule(train_aug=K.auto.TrivialAugment())
