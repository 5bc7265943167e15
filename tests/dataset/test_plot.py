"""Pictures of samples."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from affine import Affine

import geostream as gs
from geostream.testing.rasters import CLASS_COLORS, scene, scene_labels, write_cog

from .conftest import Images, Labels

plt = pytest.importorskip("matplotlib.pyplot")
plt.switch_backend("agg")


class Photos(gs.RasterDataset):
    filename_glob = "photo_*.tif"
    filename_regex = r"photo_(?P<date>\d{8})"
    all_bands = ("N", "R", "G", "B")
    rgb_bands = ("R", "G", "B")


class Classes(gs.RasterDataset):
    filename_glob = "classes_*.tif"
    filename_regex = r"classes_(?P<date>\d{8})"
    is_image = False


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four bands of which two are dark but for a few bright pixels, and classes with colours, on two days."""
    root = tmp_path_factory.mktemp("plot")
    for day in (1, 2):
        photo = np.ascontiguousarray(scene(512, 640, 4, seed=day, dtype="uint16")[:, ::4, ::4])
        photo[:, :3, :3] = 60_000
        if day == 2:
            photo[:, 90:, 120:] = 0
        place = {"transform": Affine(10, 0, 600_000, 0, -10, 5_300_000), "overviews": False, "blocksize": 128}
        write_cog(root / f"photo_2023010{day}.tif", photo, nodata=0, **place)
        labels = np.ascontiguousarray(scene_labels(512, 640, seed=day)[::4, ::4])
        colors = {value: (*color[:3], 255) for value, color in enumerate(CLASS_COLORS)}
        write_cog(root / f"classes_2023010{day}.tif", labels, colormap=colors, **place)
    return root


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def pictures(figure):
    return [axis.get_images()[0] for axis in figure.axes if axis.get_images()]


def titles(figure):
    return [axis.get_title() for axis in figure.axes]


def rendered(figure, tmp_path):
    figure.savefig(tmp_path / "figure.png")
    return plt.imread(tmp_path / "figure.png")


def test_an_image_is_shown_in_its_rgb_bands_stretched_by_percentiles(root, tmp_path):
    dataset = Photos(root / "photo_20230101.tif")
    sample = dataset[:]
    figure = dataset.plot(sample, suptitle="Somewhere")
    (picture,) = pictures(figure)
    shown = picture.get_array()
    assert shown.shape == (128, 160, 4)
    for channel, band in enumerate((1, 2, 3)):
        values = sample["image"][band].numpy().astype(float)
        low, high = np.percentile(values, [2, 98])
        assert np.allclose(shown[..., channel], np.clip((values - low) / (high - low), 0, 1))
    assert titles(figure) == ["Image"]
    assert figure.get_suptitle() == "Somewhere"
    assert isinstance(figure, plt.Figure)
    assert rendered(figure, tmp_path).std() > 0.1


def test_titles_may_be_left_out(root):
    dataset = Photos(root)
    assert titles(dataset.plot(dataset[:], show_titles=False)) == [""]


def test_the_order_of_the_bands_read_does_not_matter(root):
    usual, other = Photos(root), Photos(root, bands=("B", "N", "G", "R"))
    one, two = (pictures(dataset.plot(dataset[:]))[0].get_array() for dataset in (usual, other))
    assert np.array_equal(one, two)


def test_a_band_alone_is_grey_and_named(root):
    dataset = Photos(root, bands=("N", "R"))
    figure = dataset.plot(dataset[:])
    shown = pictures(figure)[0].get_array()
    assert np.array_equal(shown[..., 0], shown[..., 2])
    assert titles(figure) == ["N"]
    single = Photos(root, bands=("N",))
    assert titles(single.plot(single[:])) == ["Image"]


def test_files_without_names_of_bands_show_the_first_three(root):
    dataset = gs.RasterDataset(root / "photo_20230101.tif")
    shown = pictures(dataset.plot(dataset[:]))[0].get_array()
    assert not np.array_equal(shown[..., 0], shown[..., 2])


def test_a_mask_has_the_file_s_colours(root, tmp_path):
    dataset = Classes(root)
    sample = dataset[:]
    (picture,) = pictures(dataset.plot(sample))
    colors = (picture.to_rgba(picture.get_array())[..., :3] * 255).round().astype(int)
    assert np.array_equal(colors, np.asarray(CLASS_COLORS)[:, :3][sample["mask"]])


def test_a_mask_without_colours_still_tells_classes_apart(archive):
    dataset = Labels(archive.root)
    (picture,) = pictures(dataset.plot(dataset[:]))
    assert len(np.unique(picture.to_rgba(picture.get_array()).reshape(-1, 4), axis=0)) == 5


def test_an_intersection_shows_image_mask_and_prediction(root, tmp_path):
    pairs = Photos(root) & Classes(root)
    sample = pairs[:]
    sample["prediction"] = sample["mask"].flip(0)
    figure = pairs.plot(sample)
    assert titles(figure) == ["Image", "Mask", "Prediction"]
    assert pictures(figure)[1].get_cmap().N == 256
    reversed_ = Classes(root) & Photos(root)
    assert np.array_equal(
        pictures(reversed_.plot(reversed_[:]))[0].get_array(), pictures(pairs.plot(sample))[0].get_array()
    )
    assert rendered(figure, tmp_path).std() > 0.1
    union = Photos(root) | Photos(root)
    assert len(pictures(union.plot(union[:]))) == 1


def test_a_time_series_stands_in_a_row(root, tmp_path):
    images = Photos(root, time_series=True, valid=True)
    pairs = images & Classes(root, time_series=True)
    figure = pairs.plot(pairs[:])
    assert titles(figure) == [f"{kind} 2023-01-0{day}" for kind in ("Image", "Mask") for day in (1, 2)]
    assert rendered(figure, tmp_path).std() > 0.1
    mixed = gs.IntersectionDataset(images, Classes(root))
    assert titles(mixed.plot(mixed[:])) == ["Image 2023-01-01", "Image 2023-01-02", "Mask", ""]
    classes = Classes(root, time_series=True)
    assert titles(classes.plot(classes[:])) == ["Mask 2023-01-01", "Mask 2023-01-02"]


def test_what_is_not_valid_is_blank(root):
    dataset = Photos(root / "photo_20230102.tif", valid=True)
    sample = dataset[:]
    alpha = pictures(dataset.plot(sample))[0].get_array()[..., 3]
    assert np.array_equal(alpha, sample["mask_valid"][0])
    assert alpha.min() == 0


@pytest.mark.parametrize("value", [7.0, float("nan")])
def test_a_flat_or_empty_image_is_no_error(archive, tmp_path, value):
    dataset = Images(archive.root)
    figure = dataset.plot({"image": torch.full((3, 16, 16), value)})
    rendered(figure, tmp_path)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int16, torch.bfloat16, torch.complex64, torch.float64])
def test_all_types_are_shown(archive, dtype):
    image = torch.arange(64, dtype=torch.float32).reshape(1, 8, 8).to(dtype)
    assert pictures(Images(archive.root).plot({"image": image}))[0].get_array().max() == 1


def test_nothing_to_show(archive):
    with pytest.raises(gs.ConfigError, match="nothing to plot"):
        Images(archive.root).plot({"bounds": torch.zeros(9)})


def test_matplotlib_is_imported_only_when_called():
    code = (
        "import sys, geostream as gs; gs.RasterDataset; gs.IntersectionDataset; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_advice_is_to_install_it(archive, monkeypatch):
    dataset = Images(archive.root)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(gs.ConfigError, match="pip install matplotlib"):
        dataset.plot({"image": torch.zeros(3, 4, 4)})


def test_colours_by_value_as_torchgeo_s_classes_write_them(archive):
    colors = {0: (0, 0, 0, 255), 1: (255, 0, 0), 4: (0, 0, 255, 255)}
    dataset = type("Coloured", (Labels,), {"cmap": colors})(archive.root)
    sample = dataset[:]
    (picture,) = pictures(dataset.plot(sample))
    shown = (picture.to_rgba(picture.get_array()) * 255).round().astype(int)
    for value, color in colors.items():
        assert (shown[sample["mask"].numpy() == value] == [*color[:3], 255]).all()
    assert (shown[sample["mask"].numpy() == 2] == 0).all()
