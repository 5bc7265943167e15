"""What a streaming class can do besides giving the same samples."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import warnings
from importlib.metadata import version

import numpy as np
import pytest
import rasterio
import torch
from layouts import layout_of
from streams import unlike, windows

import geostream as gs
from geostream.errors import ConfigError
from geostream.testing import Fault, RangeServer
from geostream.testing.rasters import write_cog
from geostream.torchgeo import streaming

OLD = version("torchgeo").startswith("0.8.") if __import__("importlib.util").util.find_spec("torchgeo") else False


@pytest.fixture(scope="module")
def naip(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("naip")
    layout_of(theirs.NAIP).write(folder)
    (folder / "m_4008501.txt").write_text("metadata, no raster\n")
    return folder


@pytest.fixture
def server(naip):
    with RangeServer(naip) as server:
        yield server


@pytest.fixture
def urls(naip, server):
    return [server.url_for(path.name) for path in sorted(naip.glob("*.tif"))]


def same(theirs, ours):
    """Whether two datasets give the same samples."""
    for query in windows(theirs):
        assert unlike(theirs[query], ours[query]) == []


def test_it_is_a_subclass_made_once(theirs):
    cls = streaming(theirs.NAIP)
    assert cls is streaming(theirs.NAIP)
    assert cls is streaming(cls)
    assert issubclass(cls, theirs.NAIP)
    assert cls.__name__ == "NAIP"
    words = list(inspect.signature(cls).parameters)
    assert words[:2] == ["paths", "crs"]
    assert {"storage_options", "fs", "index", "sign", "transport"} < set(words)


@pytest.mark.parametrize("what", [int, "NAIP", None])
def test_what_is_no_raster_dataset(theirs, what):
    with pytest.raises(ConfigError, match="no subclass of TorchGeo's RasterDataset"):
        streaming(what)


def test_combinations_are_refused_with_what_to_do(theirs):
    with pytest.raises(ConfigError, match=r"streaming\(A\)\(urls\) & streaming\(B\)\(urls\)"):
        streaming(theirs.L8Biome)


def test_one_header_each_and_then_only_tiles(theirs, urls, server, naip):
    dataset = streaming(theirs.NAIP)(urls)
    assert isinstance(dataset, theirs.NAIP)
    assert server.counters.requests == 2
    server.reset()
    x, y, _ = dataset.bounds
    dataset[x.start : x.start + 320, y.stop - 320 : y.stop]  # one of the first scene's 32 x 32 tiles
    assert server.counters.requests == 1


def test_an_index_takes_the_place_of_listing_and_headers(theirs, urls, server, naip):
    pytest.importorskip("pyarrow")
    index = gs.build_index(urls)
    server.reset()
    dataset = streaming(theirs.NAIP)(index=index)
    assert server.counters.requests == 0
    assert dataset.files == urls
    same(theirs.NAIP(str(naip)), dataset)


def test_paths_narrow_an_index(theirs, urls):
    pytest.importorskip("pyarrow")
    index = gs.build_index(urls)
    assert streaming(theirs.NAIP)(urls[0], index=index).files == urls[:1]
    assert streaming(theirs.NAIP)(urls[0].rsplit("/", 1)[0], index=index).files == urls


def test_bands_and_transforms(theirs, urls, naip):
    def double(sample):
        return {**sample, "image": sample["image"] * 2}

    pair = (cls(paths, bands=("NIR", "R"), transforms=double) for cls, paths in _both(theirs.NAIP, naip, urls))
    same(*pair)
    for error in (ConfigError, AssertionError):
        with pytest.raises(error, match="B99"):
            streaming(theirs.NAIP)(urls, bands=("B99",))
    with pytest.raises(AssertionError, match="all_bands"):
        streaming(theirs.RasterDataset)(urls, bands=("R",))


def _both(cls, folder, urls):
    return (cls, str(folder)), (streaming(cls), urls)


def test_local_folders_stream_too(theirs, naip):
    cls = type("All", (theirs.NAIP,), {"filename_regex": "^m_"})
    with pytest.warns(UserWarning, match=r"(?s)1 files that match are no rasters.*m_4008501\.txt"):
        dataset = streaming(cls)(str(naip))
    same(cls(str(naip)), dataset)


def test_another_crs_and_resolution(theirs, urls):
    dataset = streaming(theirs.NAIP)(urls, crs="EPSG:4326", res=1e-4)
    assert dataset.res == (1e-4, 1e-4)
    assert dataset.crs.to_epsg() == 4326
    dataset = streaming(theirs.NAIP)(urls)
    assert dataset.requests(next(windows(dataset)))
    dataset.crs = "EPSG:32633"
    x, y, _ = dataset.bounds
    assert len(dataset.requests((x, y))) == 2
    x, y, _ = dataset.bounds
    image = dataset[x.start + 300 : x.start + 600 : 10, y.stop - 600 : y.stop - 300 : 10]["image"]
    assert image.shape == (4, 30, 30)
    assert len(image.unique()) > 5


def test_nothing_there(theirs, urls, tmp_path):
    with pytest.raises(IndexError):
        streaming(theirs.NAIP)(urls)[0:10, 0:10]
    with pytest.raises(gs.NotFoundError, match=r"no file at http.* matches 'm_\*\.\*'"):
        streaming(theirs.NAIP)(urls[0].replace("m_", "n_"))
    with pytest.raises(theirs.DatasetNotFoundError):
        streaming(theirs.NAIP)(str(tmp_path))
    with pytest.raises(gs.NotFoundError, match=r"m_9999999_ne_16_060_20190901"):
        streaming(theirs.NAIP)([urls[0], urls[0].replace("4008501", "9999999")])


def test_a_file_that_cannot_be_fetched_is_not_left_out(theirs, urls, server):
    server.faults.add(Fault("status", status=403, path="*4008502*"))
    with pytest.raises(gs.ReadError, match="403"):
        streaming(theirs.NAIP)(urls)


class Brighter:
    """Overrides of every hook that leads to pixels, as users write them."""

    def _load_warp_file(self, *args, **kwargs):
        self.opened.append(args)
        return super()._load_warp_file(*args, **kwargs)

    opened: list = []  # noqa: RUF012 - shared on purpose


def test_an_override_of_load_warp_file_gets_a_rasterio_dataset(theirs, urls, naip, server):
    cls = type("Opening", (Brighter, theirs.NAIP), {"opened": []})
    dataset = streaming(cls)(urls, cache=False)
    same(theirs.NAIP(str(naip)), dataset)
    assert len(cls.opened) >= 6
    handle = dataset._load_warp_file(urls[0])
    assert handle.count == 4
    assert handle.crs.to_epsg() == 32632
    handle.close()
    batch = dataset.__getitems__(list(windows(dataset)))
    assert len(batch) == 6
    server.faults.add(Fault("status", status=403))
    with pytest.raises(gs.ReadError, match="403"):
        dataset[next(iter(windows(dataset)))]


def test_an_override_of_load_warp_file_can_warp(theirs, urls):
    """In another CRS the override's handle is a `WarpedVRT` whose file stays open as long as it is needed."""
    cls = type("Opening", (Brighter, theirs.NAIP), {"opened": []})
    dataset = streaming(cls)(urls, crs=rasterio.crs.CRS.from_epsg(32633) if OLD else "EPSG:32633")
    with dataset._load_warp_file(urls[0]) as handle, handle.src_dataset:
        assert isinstance(handle, rasterio.vrt.WarpedVRT)
        assert handle.read(1).any()
    x, y, _ = dataset.bounds
    at = (x.start + x.stop) / 2, (y.start + y.stop) / 2
    assert dataset[at[0] - 150 : at[0] + 150, at[1] - 150 : at[1] + 150]["image"].any()


def test_an_override_may_make_another_dataset_but_not_keep_it(theirs, urls, naip):
    class Warping(theirs.NAIP):
        def _load_warp_file(self, filepath, *args, **kwargs):
            source = super()._load_warp_file(filepath, *args, **kwargs)
            return rasterio.vrt.WarpedVRT(source, crs=source.crs)

    class Keeping(theirs.NAIP):
        kept: dict = {}  # noqa: RUF012 - shared on purpose

        def _load_warp_file(self, filepath, *args, **kwargs):
            if filepath not in self.kept:
                self.kept[filepath] = super()._load_warp_file(filepath, *args, **kwargs)
            return self.kept[filepath]

    same(theirs.NAIP(str(naip)), streaming(Warping)(urls))
    dataset = streaming(Keeping)(urls)
    dataset[next(windows(dataset))]
    with pytest.raises(ConfigError, match="must not keep one from sample to sample"):
        dataset[next(windows(dataset))]


def test_overrides_of_the_merging_hook_and_getitem(theirs, urls, naip):
    hook = "_merge_files" if OLD else "_merge_or_stack"

    class Doubled(theirs.NAIP):
        def __init__(self, *args, gain, **kwargs):
            self.gain = gain
            super().__init__(*args, **kwargs)

        def __getitem__(self, query):
            return {**super().__getitem__(query), "note": self.gain}

    def merge(self, *args, **kwargs):
        return getattr(super(Doubled, self), hook)(*args, **kwargs) * self.gain

    setattr(Doubled, hook, merge)
    ours = streaming(Doubled)(urls, gain=3)
    theirs_ = Doubled(str(naip), gain=3)
    same(theirs_, ours)
    queries = list(windows(theirs_))
    for expected, sample in zip([theirs_[query] for query in queries], ours.__getitems__(queries), strict=True):
        assert unlike(expected, sample) == []


def test_batches_are_read_ahead_where_getitem_is_overridden(theirs, tmp_path):
    """GlobBiomass reads a second file for each, whose name only its `__getitem__` knows: one plan for all of them."""
    layout = layout_of(theirs.GlobBiomass)
    names = layout.write(tmp_path)
    with RangeServer(tmp_path) as server:
        dataset = streaming(theirs.GlobBiomass)([server.url_for(name) for name in names], **layout.options)
        query = next(windows(dataset))
        files = {request.source.url.rsplit("/", 1)[-1] for request in dataset.requests(query)}
        assert files == set(names)
        same(theirs.GlobBiomass(str(tmp_path), **layout.options), dataset)


def refused(theirs, words, **methods):
    cls = type("Mine", (theirs.NAIP,), methods)
    with pytest.raises(ConfigError, match=f"Mine cannot be streamed: .*{re.escape(words)}"):
        streaming(cls)


def test_classes_past_the_hooks_are_refused_with_the_reason(theirs):
    def opens(self, query):
        with rasterio.open(self.index.filepath.iloc[0]) as source:
            return {"image": source.read()}

    def helper(self, query):
        return self.load(query)

    def load(self, query):
        import rasterio as rio

        return {**super(theirs.NAIP, self).__getitem__(query), "again": rio.open(self.files[0]).read()}

    def constant(self, query):
        return {"image": torch.zeros(1)}

    def numpy_load(self, query):
        return {**super(theirs.NAIP, self).__getitem__(query), "extra": np.load("x.npy")}

    def unloaded(self, query):
        from rioxarray import open_rasterio as reader

        return {**super(theirs.NAIP, self).__getitem__(query), "extra": reader(self.files[0])}

    def init(self, paths):
        self.paths = paths

    refused(theirs, "Mine.__getitem__ calls rasterio.open", __getitem__=opens)
    refused(theirs, "Mine.load calls rasterio.open", __getitem__=helper, load=load)
    refused(theirs, "Mine.__getitem__ calls none of them", __getitem__=constant)
    refused(theirs, "Mine.__getitem__ calls numpy.load", __getitem__=numpy_load)
    refused(theirs, "Mine.__getitem__ calls rioxarray.open_rasterio", __getitem__=unloaded)
    refused(theirs, "Mine.__init__ does not call super().__init__", __init__=init)
    refused(theirs, "Mine.files calls open", files=property(lambda self: open("list.txt").read().split()))  # noqa: PTH123, SIM115


def test_files_of_its_own(theirs, urls, naip):
    """A class may say itself where its files are."""
    cls = type("Mine", (theirs.NAIP,), {"files": property(lambda self: urls[:1])})
    assert list(streaming(cls)("nowhere").index.filepath) == urls[:1]


def test_it_pickles_and_copies(theirs, urls, naip):
    cls = streaming(theirs.NAIP)
    assert pickle.loads(pickle.dumps(cls)) is cls
    dataset = cls(urls)
    for twin in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert type(twin) is cls
        same(theirs.NAIP(str(naip)), twin)


def add_token(url):
    return f"{url}?sig=TOPSECRET"


def test_urls_are_signed_and_nothing_secret_is_kept(theirs, urls, server):
    dataset = streaming(theirs.NAIP)(urls, sign=add_token)
    dataset[next(windows(dataset))]
    assert dataset.files == urls
    assert b"TOPSECRET" not in pickle.dumps(dataset)
    assert "TOPSECRET" not in f"{dataset!r} {dataset} {vars(dataset)}"


def test_plot(theirs, urls):
    dataset = streaming(theirs.NAIP)(urls)
    import matplotlib as mpl

    mpl.use("agg")
    assert len(dataset.plot(dataset[next(windows(dataset))]).axes) == 1


def test_the_colours_of_the_file(theirs, tmp_path):
    colors = {i: (i, 2 * i, 255 - i, 255) for i in range(256)}
    write_cog(
        tmp_path / "a.tif", shape=(64, 64), count=1, driver="GTiff", overviews=False, blocksize=32, colormap=colors
    )
    pair = [cls(str(tmp_path)) for cls in (theirs.RasterDataset, streaming(theirs.RasterDataset))]
    first, second = (dataset.cmap if OLD else dataset.cmap.colors for dataset in pair)
    assert first == second if OLD else np.array_equal(first, second)
    assert len(first) == 256


@pytest.mark.skipif(OLD, reason="0.9 and later")
def test_time_series(theirs, tmp_path):
    layout = layout_of(theirs.Sentinel2)
    names = layout.write(tmp_path)
    with RangeServer(tmp_path) as server:
        ours = streaming(theirs.Sentinel2)([server.url_for(name) for name in names], time_series=True, **layout.options)
        expected = theirs.Sentinel2(str(tmp_path), time_series=True, **layout.options)
        x, y, _ = expected.bounds
        both = x.start + 400 + 30, y.stop - 240 - 30
        query = slice(both[0], both[0] + 200), slice(both[1] - 200, both[1])
        assert ours[query]["image"].shape == (2, 4, 20, 20)
        assert unlike(expected[query], ours[query]) == []


@pytest.mark.skipif(OLD, reason="0.10 and later")
def test_nodata_of_the_class(theirs, urls, naip):
    same(*(cls(where) for cls, where in _both(type("Mine", (theirs.NAIP,), {"nodata": 5}), naip, urls)))


def test_sentinel_2_in_three_resolutions_and_jpeg_2000(theirs, tmp_path):
    """The hook that finds other bands' files changes folder and name."""
    for band, res, size in (("B02", 10, 120), ("B05", 20, 60), ("B01", 60, 20)):
        folder = tmp_path / "S2.SAFE" / "GRANULE" / "IMG_DATA" / f"R{res}m"
        folder.mkdir(parents=True)
        data = np.random.default_rng(res).integers(1, 4000, (1, size, size), np.uint16)
        place = rasterio.transform.from_origin(600_000, 5_300_000, res, res)
        profile = {"driver": "JP2OpenJPEG", "count": 1, "dtype": "uint16", "crs": "EPSG:32632", "transform": place}
        lossless = {"QUALITY": "100", "REVERSIBLE": "YES", "BLOCKXSIZE": 64, "BLOCKYSIZE": 64}
        path = folder / f"T26EMU_20220414T110751_{band}_{res}m.jp2"
        with rasterio.open(path, "w", width=size, height=size, **profile, **lossless) as file:
            file.write(data)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jp2")]
    with RangeServer(tmp_path) as server:
        where = [server.url_for(name) for name in names]
        ours = streaming(theirs.Sentinel2)(where, bands=("B02", "B05", "B01"))
        expected = theirs.Sentinel2(str(tmp_path), bands=("B02", "B05", "B01"))
        same_bands = [dataset[600_000:600_600, 5_299_400:5_300_000]["image"][0] for dataset in (expected, ours)]
        assert torch.equal(*same_bands)
        assert ours[:, :]["image"].shape == (3, 120, 120)


def test_warnings_are_of_use_only(theirs, urls):
    """A list of all files of all bands is the usual way to name them: no warning about those of other bands."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streaming(theirs.NAIP)([*urls, urls[0].replace("m_", "other_")])
