"""What goes wrong, and how it is told."""

import os
import shutil

import numpy as np
import pytest
import torch
from affine import Affine

import geostream as gs
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import write_cog

from .conftest import NORTH, RES, WEST, Images, Labels, at


@pytest.fixture
def broken(archive, tmp_path):
    """Scene b's pixels are garbage; its header is whole."""
    for name in ("img_a_20230101.tif", "img_b_20230102.tif"):
        shutil.copy(archive.root / name, tmp_path)
    path = tmp_path / "img_b_20230102.tif"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    return tmp_path


ONLY_A, BOTH, ONLY_B = at(0, 30), at(160, 10), at(380, 150)


def test_no_match_names_the_directory_and_the_glob(tmp_path):
    with pytest.raises(gs.NotFoundError, match=rf"{tmp_path}.*img_\*\.tif.*filename_glob"):
        Images(tmp_path)
    with pytest.raises(FileNotFoundError):
        Images(tmp_path / "missing.tif")


def test_no_name_that_the_expression_takes(archive):
    class Never(Images):
        filename_regex = "nothing"

    with pytest.raises(gs.NotFoundError, match="filename_regex 'nothing'"):
        Never(archive.root)


def test_files_that_are_no_rasters_are_named_together(tmp_path, archive):
    shutil.copy(archive.img_a, tmp_path / "fine.tif")
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / "text.tif").write_text("this is no tiff at all")
    (tmp_path / "empty.tif").write_bytes(b"")
    with pytest.raises(gs.HeaderError) as caught:
        gs.RasterDataset(tmp_path)
    message = str(caught.value)
    assert all(name in message for name in ("readme.txt", "text.tif", "empty.tif", "filename_glob", "3 of 4"))
    assert "fine.tif" not in message
    for name in ("readme.txt", "text.tif", "empty.tif"):
        assert f"{tmp_path / name}: HeaderError: not readable as a raster: " in message


def test_bands_that_nobody_knows(archive):
    with pytest.raises(gs.ConfigError, match=r"unknown bands \['X'\].*\['R', 'G', 'B'\]"):
        Images(archive.root, bands=["R", "X"])
    with pytest.raises(gs.ConfigError, match="all_bands"):
        Labels(archive.root, bands=["R"])
    with pytest.raises(gs.ConfigError, match=r"img_a.*has 3 bands"):
        gs.RasterDataset(archive.img_a, bands=[4])
    for bands in ([], ()):
        with pytest.raises(gs.ConfigError, match="names none"):
            Images(archive.root, bands=bands)
    for bands in ("R", "RGB"):  # text is a sequence, of letters
        with pytest.raises(gs.ConfigError, match="pass a sequence"):
            Images(archive.root, bands=bands)


def test_files_of_differing_band_counts_are_both_named(archive):
    with pytest.raises(gs.ConfigError, match=r"img_a_20230101\.tif has 3, .*lab_a_20230101\.tif has 1"):
        gs.RasterDataset(archive.root)
    assert len(gs.RasterDataset(archive.root, bands=[1])) == 4


def test_a_crs_for_a_file_without_one_names_the_file(tmp_path):
    write_cog(tmp_path / "a.tif", count=1, crs=None, transform=None)
    assert gs.RasterDataset(tmp_path)[:]["image"].shape == (1, 512, 512)
    with pytest.raises(gs.ConfigError, match=r"a\.tif.*without a CRS"):
        gs.RasterDataset(tmp_path, crs="EPSG:4326")


@pytest.mark.parametrize(
    "options",
    [
        {"mosaic": "best"},
        {"on_error": "ignore"},
        {"resampling": "lanczos9"},
        {"dtype": "float32"},
        {"fill": "white"},
        {"fill": 0.5, "dtype": "native"},
        {"res": -1},
        {"res": (1, 2, 3)},
        {"crs": "EPSG:999999"},
        {"paths": 5},
        {"storage_options": {"a": 1}, "fs": object()},
    ],
)
def test_options_that_make_no_sense(archive, options):
    with pytest.raises(gs.ConfigError):
        Images(**{"paths": archive.root, **options})


def test_nothing_there_names_the_query_and_the_bounds(images):
    with pytest.raises(gs.QueryError, match=r"\[0\.0:640\.0:10\.0, .*600000\.0"):
        images[0:640, NORTH - 640 : NORTH]
    with pytest.raises(gs.QueryError):
        images[*at(0, 0), slice("1999", "2000")]
    with pytest.raises(IndexError):
        images.__getitems__([at(0, 30), at(0, 5000)])


def test_a_damaged_tile_raises(broken):
    images = Images(broken)
    assert images[ONLY_A]["image"].shape == (3, 64, 64)
    with pytest.raises(gs.DecodeError, match=r"img_b_20230102\.tif"):
        images[ONLY_B]
    with pytest.raises(gs.DecodeError):
        images.__getitems__([ONLY_A, ONLY_B])


def test_skip_leaves_the_scene_out_and_lets_another_chip_stand_in(broken, archive):
    images = Images(broken, on_error="skip")
    with gs.stats.measure() as counts:
        a, both, b = images.__getitems__([ONLY_A, BOTH, ONLY_B])
    assert counts.skipped == 2
    assert [bool(sample["skipped"]) for sample in (a, both, b)] == [False, False, True]
    assert np.array_equal(both["image"], archive.pixels["img_a"][:, 10:74, 160:224])
    assert any(torch.equal(b["image"], sample["image"]) for sample in (a, both))
    batch = gs.stack_samples([a, both, b])
    assert batch["image"].shape == (3, 3, 64, 64)
    b["image"].zero_()
    assert a["image"].any()
    assert both["image"].any()


def test_skip_raises_when_nothing_is_left(broken):
    images = Images(broken, on_error="skip")
    with pytest.raises(gs.DecodeError):
        images[ONLY_B]
    with pytest.raises(gs.DecodeError):
        images.__getitems__([ONLY_B, ONLY_B])


def test_skip_works_through_compositions(broken, archive):
    images, labels = Images(broken, on_error="skip"), Labels(archive.root)
    a, b = (images & labels).__getitems__([ONLY_A, ONLY_B])
    assert [bool(a["skipped"]), bool(b["skipped"])] == [False, True]
    assert torch.equal(a["mask"], b["mask"])
    union = Images(broken / "img_b_20230102.tif", on_error="skip") | Images(archive.img_b)
    assert np.array_equal(union[ONLY_B]["image"], archive.pixels["img_b"][:, 150:214, 220:284])


def test_an_error_skipped_by_one_dataset_still_raises_in_another(broken):
    skipping, strict = Images(broken, on_error="skip"), Images(broken)
    with pytest.raises(gs.DecodeError):
        (strict & skipping).__getitems__([ONLY_A, ONLY_B])


def test_fill_gives_fill_and_says_where(broken):
    images = Images(broken, on_error="fill", fill=-7)
    with gs.stats.measure() as counts:
        both, b = images.__getitems__([BOTH, ONLY_B])
    assert counts.filled == 2
    assert b["image"].shape == (3, 64, 64)
    assert (b["image"] == -7).all()
    assert not b["mask_valid"].any()
    assert both["mask_valid"].any()
    assert images[ONLY_A]["mask_valid"].shape == (1, 64, 64)


def test_an_object_that_vanished(archive, tmp_path):
    path = tmp_path / "img_a_20230101.tif"
    shutil.copy(archive.img_a, path)
    images = Images(tmp_path)
    path.unlink()
    with pytest.raises(gs.NotFoundError, match=r"img_a_20230101\.tif"):
        images[at(0, 30)]


def test_a_worker_s_error_keeps_its_class(broken):
    loader = torch.utils.data.DataLoader(
        Images(broken), sampler=[ONLY_B], batch_size=1, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(gs.DecodeError, match=r"img_b_20230102\.tif"):
        next(iter(loader))


def test_a_url_that_is_not_there_and_secrets_stay_secret(archive):
    with RangeServer(archive.root) as server, pytest.raises(gs.NotFoundError) as caught:
        gs.RasterDataset([server.url_for("nothing.tif") + "?sig=hush", server.url_for("img_a_20230101.tif")])
    assert "nothing.tif" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_access_denied_is_a_read_error(archive):
    with RangeServer(archive.root) as server:
        server.faults.add(Fault("status", path="img_b*", status=403))
        with pytest.raises(gs.ReadError, match=r"img_b_20230102\.tif"):
            Images([server.url_for(f"img_{n}.tif") for n in ("a_20230101", "b_20230102")])


def test_scenes_far_off_the_crs_are_named(tmp_path):
    write_cog(tmp_path / "a.tif", count=1, transform=Affine(RES, 0, WEST, 0, -RES, NORTH))
    with pytest.raises(gs.ConfigError):
        gs.RasterDataset(tmp_path, crs="+proj=gnom +lat_0=-48 +lon_0=-171")
