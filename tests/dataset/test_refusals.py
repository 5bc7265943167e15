"""What a dataset is not made of is refused in words that say which file or argument is to blame."""

import pytest
import rasterio

import geostream as gs
from geostream.testing.rasters import write_cog


class Bands(gs.RasterDataset):
    filename_regex = r"s(?P<date>\d{8})_(?P<band>B\d)"
    all_bands = ("B1", "B2")
    separate_files = True


@pytest.fixture
def file(tmp_path):
    return write_cog(tmp_path / "a.tif", shape=(64, 64), count=1, blocksize=64, overviews=False)


def test_a_scene_that_lacks_the_file_of_a_band(tmp_path, file):
    for name in ("s20230101_B1", "s20230101_B2", "s20230102_B1"):
        (tmp_path / f"{name}.tif").write_bytes(file.read_bytes())
    file.unlink()
    with pytest.raises(gs.NotFoundError, match="scenes lack files of bands") as caught:
        Bands(tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[1:] == [f"  {tmp_path / 's20230102_B2.tif'}"]
    assert "filename_glob" not in lines[0]
    assert len(Bands(tmp_path, bands=["B1"])) == 2


@pytest.mark.parametrize("without", ["a.tif", "b.tif"])
def test_a_file_without_a_crs_among_others_is_named(tmp_path, file, without):
    (tmp_path / "b.tif").write_bytes(file.read_bytes())
    with rasterio.open(file) as source:
        profile, pixels = source.profile, source.read()
    with rasterio.open(tmp_path / without, "w", **{**profile, "crs": None}) as sink:
        sink.write(pixels)
    with pytest.raises(gs.ConfigError) as caught:
        gs.RasterDataset(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / without))


@pytest.mark.parametrize("valid", ["yes", 1, None])
def test_valid_is_a_bool(file, valid):
    with pytest.raises(gs.ConfigError, match="valid="):
        gs.RasterDataset(file, valid=valid)


def test_filename_glob_is_a_str(file):
    kind = type("Odd", (gs.RasterDataset,), {"filename_glob": 5})
    with pytest.raises(gs.ConfigError, match="filename_glob is 5"):
        kind(file)


@pytest.mark.parametrize("sample", [None, 3, [1]])
def test_what_is_no_sample_is_not_plotted(file, sample):
    with pytest.raises(gs.ConfigError, match="no sample to plot"):
        gs.RasterDataset(file).plot(sample)


@pytest.mark.parametrize("text", ["2023", "20231399", "x"])
def test_a_date_that_is_none_without_pandas_advice(tmp_path, file, text):
    kind = type("Dated", (gs.RasterDataset,), {"filename_regex": r"d(?P<date>\w+)\."})
    file = file.rename(tmp_path / f"d{text}.tif")
    with pytest.raises(gs.ConfigError, match=text) as caught:
        kind(file)
    assert "might want" not in str(caught.value)
    assert not str(caught.value).endswith(":")
