"""Chips that are resampled on the device equal those that the CPU resamples."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

import geostream as gs
from geostream.dataset.collate import stack_samples
from geostream.deferred import DeferredPixels, warped
from geostream.samplers import GridGeoSampler
from geostream.testing.rasters import write_cog

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]


class Rasters(gs.RasterDataset):
    filename_glob = "*.tif"


class Labels(Rasters):
    is_image = False


@pytest.fixture
def scenes(tmp_path):
    """Makes two scenes that overlap, with holes, in one zone, and a dataset of them in another projection."""

    def make(cls=Rasters, dtype="uint8", nodata=0, kind=None, **options):
        for i in range(2):
            data = np.random.default_rng(i).integers(1, 200, (1 if cls is Labels else 2, 90, 110)).astype(dtype)
            data[:, 20 + i : 30, 10:60] = nodata
            place = gs_place(i)
            write_cog(tmp_path / cls.__name__ / f"{i}.tif", data, nodata=nodata, transform=place, blocksize=128)
        return cls(tmp_path / cls.__name__, crs="EPSG:3857", res=12.0, dtype=kind, **options)

    return make


def gs_place(i):
    from affine import Affine

    return Affine(10, 0, 600_000 + 700 * i, 0, -10, 5_300_000 - 300 * i)


def queries(dataset):
    return list(GridGeoSampler(dataset, 24, pad=True))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32"])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_the_devices_pixels_are_the_cpus(scenes, dtype, native, resampling):
    nodata = float("nan") if dtype == "float32" else 0
    kind = {"kind": "native", "fill": 7} if native else {}
    dataset = scenes(dtype=dtype, nodata=nodata, resampling=resampling, valid=True, **kind)
    wanted = queries(dataset)
    deferred = gs.DeviceWarp(dataset)
    batch = stack_samples(deferred.__getitems__(wanted))
    assert all(isinstance(value, DeferredPixels) and value._ready is None for value in batch["image"])
    found, expected = warped(batch), stack_samples(dataset.__getitems__(wanted))
    assert list(found) == ["bounds", "transform", "image", "mask_valid"]
    assert sorted(found) == sorted(expected)
    for key in ("bounds", "transform", "mask_valid"):
        assert torch.equal(found[key], expected[key]), key
    assert found["image"].dtype == expected["image"].dtype
    assert found["image"].shape == expected["image"].shape
    valid = expected["mask_valid"].expand_as(expected["image"])
    assert not valid.all()
    apart = (found["image"].double() - expected["image"].double())[valid].abs()
    assert (apart > 1e-3).double().mean() < 1e-4, "rounding of positions may decide between two neighbours"
    holes = found["image"][~valid], expected["image"][~valid]
    assert torch.equal(*(part.nan_to_num(-9.0) for part in holes))
    assert len(wanted) > 10


def test_labels_are_planes(scenes):
    for dataset in (scenes(kind="native"), scenes(Labels)):
        deferred = gs.DeviceWarp(dataset)
        wanted = queries(dataset)
        found = warped(stack_samples([deferred[query] for query in wanted]))
        expected = stack_samples([dataset[query] for query in wanted])
        key = "image" if dataset.is_image else "mask"
        assert found[key].dtype == expected[key].dtype
        assert (found[key] != expected[key]).double().mean() < 1e-4
        assert "mask_valid" not in found


@pytest.mark.parametrize("options", [{"resampling": "cubic"}, {"res": 60.0}, {"crs": "EPSG:32632"}])
def test_what_the_device_cannot_do_the_cpu_does(scenes, tmp_path, options):
    scenes()
    dataset = Rasters(tmp_path / "Rasters", **{"crs": "EPSG:3857", "res": 12.0, "valid": True, **options})
    deferred = gs.DeviceWarp(dataset)
    query = dataset.bounds[0], dataset.bounds[1]
    sample = deferred[query]
    assert sample["image"]._ready is not None
    found = warped(stack_samples([sample]))
    expected = stack_samples([dataset[query]])
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert sorted(found) == sorted(expected)


def test_a_module_warps_before_it_normalises(scenes, tmp_path):
    class Watcher(pl.LightningModule):
        def predict_step(self, batch, _):
            return batch

    images, labels = scenes(valid=True), scenes(Labels)

    def predict(first, second, **options):
        data = gs.GeoDataModule(predict=first & second, patch_size=24, batch_size=5, mean=3.0, std=2.0, **options)
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        runner = pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet)
        return runner.predict(Watcher(), datamodule=data)

    expected = predict(images, labels)
    for workers in (0, 1):
        found = predict(gs.DeviceWarp(images), gs.DeviceWarp(labels), num_workers=workers)
        for ours, theirs in zip(found, expected, strict=True):
            assert sorted(ours) == sorted(theirs)
            for key in ("image", "mask", "mask_valid"):
                assert ours[key].shape == theirs[key].shape
                apart = (ours[key].double() - theirs[key].double()).abs()
                assert (apart > 1e-3).double().mean() < 1e-3, key


def test_a_wrapped_datasets_own_transform_is_found(scenes, tmp_path):
    class Owning(Rasters):
        @staticmethod
        def device_transform(batch):
            return {**batch, "image": torch.zeros_like(batch["image"])}

    dataset = gs.DeviceWarp(scenes(Owning))
    data = gs.GeoDataModule(train=dataset, patch_size=16, batch_size=2, length=2)
    data.setup("fit")
    assert data._device_transform("train", 0) is Owning.device_transform


def test_statistics_and_maps_are_the_cpus(scenes, tmp_path):
    class Identity(pl.LightningModule):
        def predict_step(self, batch, _):
            return batch["image"]

    dataset, maps = scenes(valid=True), []
    for each in (dataset, gs.DeviceWarp(dataset)):
        found = gs.estimate_statistics(each, side=40)
        assert found.mean == pytest.approx(gs.estimate_statistics(dataset, side=40).mean)
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        writer = gs.PredictionWriter(tmp_path / f"maps{len(maps)}")
        data = gs.GeoDataModule(predict=each, patch_size=32, batch_size=4)
        pl.Trainer(accelerator="cpu", callbacks=[writer], default_root_dir=tmp_path, **quiet).predict(
            Identity(), datamodule=data, return_predictions=False
        )
        maps.append([gs.read(str(path)).data for path in writer.written])
    for one, other in zip(*maps, strict=True):
        assert np.array_equal(np.isnan(one), np.isnan(other))
        assert np.mean(np.abs(np.nan_to_num(one - other)) > 1e-5) < 1e-3


def test_places_follow_a_new_grid(scenes):
    dataset = scenes()
    deferred = gs.DeviceWarp(dataset)
    deferred.res = 11.0
    assert (deferred.res, dataset.res) == ((11.0, 11.0), (12.0, 12.0))
    deferred.crs = "EPSG:32633"
    assert deferred.crs.to_epsg() == 32633
    assert dataset.crs.to_epsg() == 3857
    x, y, _ = deferred.bounds
    middle = [slice((axis.start + axis.stop) / 2, (axis.start + axis.stop) / 2 + 110) for axis in (x, y)]
    deferred.res = 11.0
    assert deferred[tuple(middle)]["image"].resampled()[0].shape == (2, 10, 10)


def test_datasets_that_cannot_be_deferred_are_refused(scenes):
    dataset = scenes()
    for options, word in (
        ({"time_series": True}, "time_series"),
        ({"mosaic": "mean"}, "mean"),
        ({"on_error": "skip"}, "skip"),
        ({"transforms": dict}, "transforms"),
    ):
        with pytest.raises(gs.ConfigError, match=word):
            gs.DeviceWarp(Rasters(dataset.paths, **options))
    with pytest.raises(gs.ConfigError, match="each RasterDataset"):
        gs.DeviceWarp(dataset & scenes(Labels))
