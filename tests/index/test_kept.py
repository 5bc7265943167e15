"""Bringing an index up to date, noticing files that changed since, forks, a cluster, and secrets."""

import multiprocessing
import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest

import geostream as gs
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

PLACE = slice(600_000, 600_640), slice(5_299_360, 5_300_000)
NAMES = ("a.tif", "b.tif", "c.tif")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    for seed, name in enumerate((*NAMES, "new.tif")):
        write_cog(root / name, count=1, seed=seed)
    return root


@pytest.fixture
def folder(originals, tmp_path):
    root = tmp_path / "scenes"
    root.mkdir()
    for name in NAMES:
        shutil.copy(originals / name, root / name)
    return root


@pytest.fixture
def served(folder):
    with RangeServer(folder) as server:
        yield server


def replace(folder, originals, name):
    shutil.copy(originals / "new.tif", folder / "draft")
    (folder / "draft").replace(folder / name)


def test_an_update_reads_one_header_after_one_object_was_replaced(served, folder, originals):
    options = {"storage_options": served.storage_options}
    index = gs.build_index(served.s3_url(), **options)
    served.reset()
    again = index.update(served.s3_url(), **options)
    assert (served.counters.get, served.counters.list) == (0, 1)
    assert again.changes == type(again.changes)((), (), (), 3)
    replace(folder, originals, "b.tif")
    served.reset()
    again = index.update(**options)
    assert (served.counters.get, served.counters.list) == (1, 1)
    assert (served.log[-1].path, served.log[-1].start) == ("b.tif", 0)
    assert again.changes.changed == (served.s3_url("b.tif"),)
    old, new = (each.scenes[served.s3_url("b.tif")].header.etag for each in (index, again))
    assert old != new


def test_an_update_finds_what_is_new_and_what_is_gone(served, folder, originals):
    options = {"storage_options": served.storage_options}
    index = gs.build_index(served.s3_url(), **options)
    shutil.copy(originals / "new.tif", folder / "new.tif")
    (folder / "a.tif").unlink()
    served.reset()
    again = index.update(**options)
    assert (served.counters.get, served.counters.list) == (1, 1)
    changes = again.changes
    assert (changes.added, changes.changed, changes.gone, changes.kept) == (
        (served.s3_url("new.tif"),),
        (),
        (served.s3_url("a.tif"),),
        2,
    )
    assert sorted(again.urls) == [served.s3_url(name) for name in ("b.tif", "c.tif", "new.tif")]
    assert index.changes is None


def test_files_that_are_not_listed_are_asked_for_a_byte(served, folder, originals):
    urls = [served.url_for(name) for name in NAMES]
    index = gs.build_index(urls)
    replace(folder, originals, "c.tif")
    served.reset()
    again = index.update(urls)
    assert again.changes.changed == (urls[2],)
    assert sorted(request.range for request in served.log) == ["bytes=0-0"] * 3 + ["bytes=0-32767"]
    served.reset()
    assert gs.load_index(_saved(again, folder)).update().changes.kept == 3
    assert {request.range for request in served.log} == {"bytes=0-0"}


def _saved(index, folder):
    index.save(folder.parent / "index.parquet")
    return folder.parent / "index.parquet"


def test_local_files_are_told_apart_by_their_times(folder, originals):
    index = gs.build_index(folder)
    assert index.update().changes.kept == 3
    os.utime(folder / "a.tif", ns=(0, 10**18))
    (folder / "b.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
    again = index.update()
    assert again.changes.changed == (str(folder / "a.tif"), str(folder / "b.tif"))
    assert again.scenes[str(folder / "b.tif")].sidecars == (str(folder / "b.tif.aux.xml"),)


def test_an_index_of_other_things_must_be_told_what_to_look_at(served):
    frame = pd.DataFrame({"url": [served.url_for("a.tif")]})
    index = gs.build_index(frame)
    with pytest.raises(gs.ConfigError, match="what build_index was given"):
        index.update()
    assert index.update(frame).changes.kept == 1


@pytest.mark.parametrize("way", ["s3", "http", "file"])
def test_a_file_that_changed_since_is_noticed_before_wrong_pixels_are_returned(
    served, folder, originals, way, tmp_path
):
    url = {"s3": served.s3_url, "http": served.url_for, "file": lambda name: str(folder / name)}[way]
    options = {"storage_options": served.storage_options} if way == "s3" else {}
    path = _saved(gs.build_index([url(name) for name in NAMES], **options), folder)
    replace(folder, originals, "a.tif")
    dataset = gs.RasterDataset(index=gs.load_index(path), **options)
    with pytest.raises(gs.ReadError, match=r"a\.tif.*changed"):
        dataset[PLACE]
    renewed = gs.RasterDataset(index=gs.load_index(path).update(**options), **options)
    assert (renewed[PLACE]["image"] == gs.RasterDataset(folder / "a.tif")[PLACE]["image"]).all()


def test_a_running_loader_notices_a_file_that_changes(folder, originals):
    write_cog(folder / "a.tif", count=1, shape=(2048, 2048), seed=1)
    write_cog(originals / "a2.tif", count=1, shape=(2048, 2048), seed=2)
    objects = {"a.tif": (folder / "a.tif").read_bytes()}  # replaced in one step, as in an object store
    with RangeServer(objects) as server:
        index = gs.build_index(server.url_for("a.tif"))
        dataset = gs.RasterDataset(index=index)
        truth = gs.RasterDataset(folder / "a.tif")
        sampler = gs.samplers.GridGeoSampler(dataset, 256)
        queries = list(sampler)
        expected = [truth[query]["image"] for query in queries]
        loader = gs.DataLoader(dataset, batch_size=1, sampler=queries, prefetch_batches=2)
        batches = iter(loader)
        seen = [next(batches)["image"][0] for _ in range(2)]
        objects["a.tif"] = (originals / "a2.tif").read_bytes()
        with pytest.raises(gs.ReadError, match=r"a\.tif.*changed"):
            seen.extend(batch["image"][0] for batch in batches)
        assert 2 <= len(seen) < len(queries)
        assert all((one == other).all() for one, other in zip(seen, expected, strict=False))


def test_forks_share_the_index(served, folder):
    path = _saved(gs.build_index(served.s3_url(), storage_options=served.storage_options), folder)
    index = gs.load_index(path)
    rows = index.find((10, 47, 11, 48))
    _shared["index"] = index
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_look_at_shared) == (rows.tolist(), [1, 1, 1])


_shared = {}


def _look_at_shared():
    index = _shared["index"]
    return index.find((10, 47, 11, 48)).tolist(), [index.scenes[url].header.count for url in index.urls]


def test_look_ups_by_place_and_time(folder, tmp_path):
    frame = pd.DataFrame(
        {"url": [str(folder / name) for name in NAMES], "datetime": ["2020-01-01", "2020-06-01", None]}
    )
    index = gs.build_index(frame)
    here = (10.34, 47.8, 10.35, 47.81)
    assert index.find().tolist() == [0, 1, 2]
    assert index.find(here).tolist() == [0, 1, 2]
    assert index.find((0, 0, 10, 40)).tolist() == []
    assert index.find(here, "2020-01-01").tolist() == [0, 2]
    assert index.find(time=("2020-01-01", "2020-06-01")).tolist() == [0, 1, 2]
    assert index.find(time=slice("2020-02-01", None)).tolist() == [1, 2]
    assert index.find(time=pd.Interval(pd.Timestamp("2019"), pd.Timestamp("2020-05-31"))).tolist() == [0, 2]
    assert index.find((600_000, 5_294_880, 600_100, 5_300_000), crs="EPSG:32632").tolist() == [0, 1, 2]
    assert index.find((610_000, 5_294_880, 620_100, 5_300_000), crs=32632).tolist() == []
    for wrong in ((1, 2, 3), (3, 2, 1, 0), "abcd"):
        with pytest.raises(gs.ConfigError, match="bounds="):
            index.find(wrong)
    with pytest.raises(gs.ConfigError, match="is no time"):
        index.find(time="yesterday")


def test_a_scene_without_a_place_on_the_earth_is_kept_and_not_found_by_place(folder):
    write_cog(folder / "nowhere.tif", count=1, crs=None)
    write_cog(folder / "mars.tif", count=1, crs="IAU_2015:49910")
    index = gs.build_index(folder)
    assert len(index) == 5
    assert len(index.find((-180, -90, 180, 90))) == 3
    assert index.gdf.geometry.isna().sum() == 2


SECRETS = ("sig=abc", "hunter2", "AKIASECRET", "SecretKey99", "t0ken")


def test_nothing_secret_is_kept(served, folder):
    url = served.url_for("a.tif").replace("http://", "http://me:hunter2@") + "?sig=abc&token=t0ken"
    options = {"headers": {"X-Token": "t0ken"}}
    index = gs.build_index([url], storage_options=options)
    s3 = {**served.storage_options, "anon": False, "key": "AKIASECRET", "secret": "SecretKey99"}
    both = index.merge(gs.build_index(served.s3_url("b.tif"), storage_options=s3))
    path = _saved(both, folder)
    texts = (repr(both), both.gdf.to_csv(), repr(both.sources))
    for where in (path.read_bytes(), pickle.dumps(both), *map(str.encode, texts)):
        for secret in SECRETS:
            assert secret.encode() not in where
    assert both.urls == [served.url_for("a.tif"), served.s3_url("b.tif")]
    with pytest.raises(gs.NotFoundError) as caught:
        gs.build_index([url.replace("a.tif", "absent.tif")], storage_options=options)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_cluster_makes_the_same_index(cluster, served, folder, tmp_path, capfd):
    (folder / "bad.tif").write_text("no raster")
    options = {"storage_options": served.storage_options, "on_error": "skip"}
    with pytest.warns(UserWarning, match="1 of 4 files"):
        alone = gs.build_index(served.s3_url(), **options)
    served.reset()
    with pytest.warns(UserWarning, match="1 of 4 files"):
        spread = gs.build_index(served.s3_url(), client=cluster, progress=True, **options)
    assert "4/4" in capfd.readouterr().err
    assert (served.counters.get, served.counters.list) == (4, 1)
    assert spread.urls == alone.urls
    assert list(spread.failures) == [served.s3_url("bad.tif")]
    for url in alone.urls:
        one, other = (index.scenes[url].header.levels[0].image for index in (alone, spread))
        assert np.array_equal(one.offsets, other.offsets)
    with pytest.warns(UserWarning, match="1 of 4 files"):
        gs.build_index(served.s3_url(), client=cluster, parts=tmp_path / "parts", **options)
    assert [path.name for path in sorted((tmp_path / "parts").iterdir())] == [f"part-0000{i}.parquet" for i in range(4)]
    assert gs.load_index(tmp_path / "parts").urls == alone.urls
    with pytest.raises(gs.HeaderError, match=r"1 of 4 files(.|\n)*bad\.tif"):
        gs.build_index(served.s3_url(), client=cluster, storage_options=served.storage_options)
    with pytest.raises(gs.ConfigError, match=r"pass a dask\.distributed\.Client"):
        gs.build_index(served.s3_url(), client="tcp://…", storage_options=served.storage_options)
    with pytest.raises(gs.ConfigError, match="pass client="):
        gs.build_index(served.s3_url(), parts=tmp_path)
