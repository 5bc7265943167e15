"""Listing and reading headers, with the requests that it takes."""

import os
import pickle
import shutil
import threading

import numpy as np
import pytest
import rasterio

import geostream as gs
from geostream.scan import basename, basenames, is_sidecar, list_scenes, name_matches, names_matching, scan
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog
from geostream.transport import Access

NAMES = ("2020/a.tif", "2020/b.tif", "2021/c.tif")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    for seed, name in enumerate(NAMES):
        write_cog(root / name, count=1, seed=seed)
    return root


@pytest.fixture
def served(folder):
    with RangeServer(folder) as server:
        yield server


def everything(urls):
    return urls


def test_an_s3_prefix_takes_one_listing_and_one_get_a_file(served):
    with gs.stats.measure() as measured:
        dataset = gs.RasterDataset(served.s3_url(), storage_options=served.storage_options)
    assert dataset.files == [served.s3_url(name) for name in NAMES]
    counters = served.counters
    assert (counters.get, counters.head, counters.list) == (3, 0, 1)
    assert (measured.requests, measured.bytes) == (counters.requests, counters.bytes_sent)


def test_urls_of_files_are_not_listed(served):
    dataset = gs.RasterDataset([served.url_for(name) for name in NAMES])
    assert len(dataset) == 3
    counters = served.counters
    assert (counters.get, counters.head, counters.list) == (3, 0, 0)


def test_headers_are_kept_for_the_reads_and_travel_in_pickles(served):
    dataset = gs.RasterDataset(served.url_for("2020/a.tif"))
    twin = pickle.loads(pickle.dumps(dataset))
    served.reset()
    twin[600_000:600_640, 5_299_360:5_300_000]
    (request,) = served.log
    assert request.start > 0


def test_scanning_leaves_no_thread_or_connection(served):
    before = set(threading.enumerate())
    gs.RasterDataset(served.url_for("2020/a.tif"))
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_globs_and_directories_at_any_depth(folder):
    assert list_scenes(folder, "*", Access()).urls == tuple(str(folder / name) for name in NAMES)
    assert list_scenes(folder / "2020", "b*", Access()).urls == (str(folder / NAMES[1]),)
    assert list_scenes(f"{folder}/20*/a.tif", "*", Access()).urls == (str(folder / NAMES[0]),)
    assert list_scenes(folder, "2021/*.tif", Access()).urls == (str(folder / NAMES[2]),)
    assert list_scenes(folder, "x*", Access()).urls == ()


def test_a_path_without_matches_among_others_is_an_error(folder, tmp_path):
    for other in (tmp_path, tmp_path / "mistyped", tmp_path / "absent.tif"):
        with pytest.raises(gs.NotFoundError, match=f"of 2 paths, 1 do not exist .*{other}"):
            list_scenes([folder, other], "*", Access())


def test_sidecars_are_attached_and_never_scenes(folder, tmp_path):
    shutil.copy(folder / NAMES[0], tmp_path / "a.tif")
    for suffix in (".msk", ".ovr", ".aux.xml", ".msk.ovr"):
        (tmp_path / f"a.tif{suffix}").write_bytes(b"x")
    (tmp_path / "a.tfw").write_text("1")
    expected = tuple(str(tmp_path / f"a.tif{suffix}") for suffix in (".msk", ".ovr", ".aux.xml", ".msk.ovr"))
    expected += (str(tmp_path / "a.tfw"),)
    for path in (tmp_path, tmp_path / "a.tif"):
        listing = list_scenes(path, "*", Access())
        assert listing.urls == (str(tmp_path / "a.tif"),)
        assert listing.sidecars == {str(tmp_path / "a.tif"): expected}


def test_lone_remote_files_are_asked_for_sidecars_only_on_request(folder, tmp_path):
    shutil.copy(folder / NAMES[0], tmp_path / "a.tif")
    (tmp_path / "a.tif.aux.xml").write_text("<PAMDataset></PAMDataset>")
    with RangeServer(tmp_path) as server:
        url = server.url_for("a.tif")
        listing, _ = scan(url, "*", Access(), everything)
        assert not listing.sidecars
        assert server.counters.requests == 1
        listing, scenes = scan(url, "*", Access(), everything, probe_sidecars=True)
        assert listing.sidecars == {url: (f"{url}.aux.xml",)}
        assert scenes[url].sidecars == (f"{url}.aux.xml",)


def test_scenes_hold_what_headers_say(folder):
    url = str(folder / NAMES[0])
    _, scenes = scan(url, "*", Access(), everything)
    scene = scenes[url]
    assert (scene.count, scene.dtype, scene.nodata) == (1, "uint8", (None,))
    assert (scene.grid.width, scene.grid.height, scene.grid.crs.to_epsg()) == (512, 512, 32632)
    assert scene.header is not None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/a/b/c.tif", "c.tif"),
        ("/a/b/", "b"),
        ("s3://bucket/c.tif", "c.tif"),
        ("https://u:p@h/x/c.tif?sig=/y/d.tif#z", "c.tif"),
        ("zip://in/c.tif::s3://bucket/d.zip", "c.tif"),
        ("simplecache::https://h/c.tif", "c.tif"),
        ("/a/what?.tif", "what?.tif"),
    ],
)
def test_basename(url, name):
    assert basename(url) == name


def test_names():
    assert is_sidecar("s3://b/x.tif.aux.xml?versionId=3")
    assert is_sidecar("/x/y.TFW")
    assert not is_sidecar("/x/msk.tif")
    assert name_matches("s3://b/x/m_1.tif", "m_*.tif")
    assert not name_matches("s3://b/m_x/1.tif", "m_*.tif")
    assert name_matches("/b/x/m_1.tif", "x/m_*")
    assert not name_matches("/b/m_1.tif.ovr", "m_*")


def test_vsi_paths_and_path_objects(folder, served):
    assert gs.RasterDataset(f"/vsicurl/{served.url_for('2020/a.tif')}").files == [served.url_for("2020/a.tif")]
    relative = os.path.relpath(folder / NAMES[0])
    assert gs.RasterDataset(relative).files == [str(folder / NAMES[0])]


def test_other_formats_leave_no_thread_either(tmp_path):
    with rasterio.open(tmp_path / "a.png", "w", driver="PNG", width=9, height=9, count=1, dtype="uint8") as dataset:
        dataset.write(np.ones((1, 9, 9), np.uint8))
    before = set(threading.enumerate())
    gs.RasterDataset(tmp_path / "a.png")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("glob", ["*", "*.tif", "b/*.tif", "t?.*", "*.xml"])
@pytest.mark.parametrize(
    "odd",
    [[], ["s3://k/t1.tif?sig=1"], ["s3://k/t1.tif.msk"], ["/a/t1.tif.aux.xml", "/a/t1.xml"], ["zip://t1.tif::/z"]],
)
def test_names_of_many_files_match_as_those_of_each(glob, odd):
    urls = ["s3://k/t1.tif", "/a/b/t2.tif", "/a/b/none", *odd, "t3.TIF"]
    assert basenames(urls) == [basename(url) for url in urls]
    assert names_matching(urls, glob) == [url for url in urls if name_matches(url, glob)]
