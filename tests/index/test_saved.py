"""Building, saving and opening an index, with the requests that it takes."""

import copy
import json
import math
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import shapely
from affine import Affine

import geostream as gs
from geostream.index import schema
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

NAMES = ("2020/a.tif", "2020/b.tif", "2021/c.tif")
PLACE = slice(600_000, 600_640), slice(5_299_360, 5_300_000)


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


@pytest.fixture
def saved(served, tmp_path):
    gs.build_index(served.s3_url(), storage_options=served.storage_options).save(tmp_path / "index.parquet")
    served.reset()
    return tmp_path / "index.parquet"


def test_a_prefix_takes_one_listing_and_one_get_a_file(served):
    before = set(threading.enumerate())
    index = gs.build_index(served.s3_url(), storage_options=served.storage_options)
    assert index.urls == [served.s3_url(name) for name in NAMES]
    assert (served.counters.get, served.counters.head, served.counters.list) == (3, 0, 1)
    assert set(threading.enumerate()) == before


def test_hundreds_of_files_take_one_get_each_and_none_to_open_again(folder, tmp_path):
    with RangeServer({f"many/{number:03d}.tif": folder / NAMES[number % 3] for number in range(300)}) as server:
        index = gs.build_index(server.s3_url("many/*.tif"), storage_options=server.storage_options)
        assert (server.counters.get, server.counters.list, server.counters.head) == (300, 1, 0)
        index.save(tmp_path / "index.parquet")
        server.reset()
        dataset = gs.RasterDataset(index=gs.load_index(tmp_path / "index.parquet"))
        assert len(dataset) == 300
        assert index.update(storage_options=server.storage_options).changes.kept == 300
        assert (server.counters.get, server.counters.list) == (0, 1)


def test_an_index_opens_without_a_request_and_its_first_chip_costs_only_its_tiles(folder, served, saved):
    index = gs.load_index(saved)
    dataset = gs.RasterDataset(index=index, storage_options=served.storage_options)
    assert served.counters.requests == 0
    assert dataset.files == [served.s3_url(name) for name in NAMES]
    local = gs.RasterDataset(folder)
    assert dataset.index.total_bounds.tolist() == local.index.total_bounds.tolist()
    plan = dataset.plan([PLACE])
    assert (dataset[PLACE]["image"] == local[PLACE]["image"]).all()
    tiles = {(fetch.start, fetch.stop) for fetch in plan.fetches}
    assert [(request.start, request.stop) for request in served.log] == sorted(tiles)


def test_an_index_by_url_takes_one_request(folder, served, saved):
    with RangeServer(saved.parent) as server:
        index = gs.load_index(server.url_for("index.parquet"))
        assert server.counters.requests == 1
    assert len(gs.RasterDataset(index=index, storage_options=served.storage_options)) == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"dtype": "float32", "count": 2, "nodata": math.nan},
        {"data": np.zeros((1, 64, 64), np.uint8), "colormap": {0: (1, 2, 3), 1: (4, 5, 6)}},
        {"count": 1, "crs": None},
        {"count": 4, "alpha": True, "descriptions": ["r", "g", "b", "a"]},
        {"count": 3, "mask": np.tri(512, dtype=bool), "compress": "JPEG", "photometric": "YCBCR", "driver": "GTiff"},
        {"count": 5, "interleave": "band", "driver": "GTiff", "blocksize": (64, 128), "bigtiff": True, "sparse": True},
        {"count": 1, "blocksize": None, "driver": "GTiff", "big_endian": True, "tags": {"a": "ü"}},
    ],
)
def test_every_fact_survives(tmp_path, odd):
    url = str(write_cog(tmp_path / "a.tif", **odd))
    scene = gs.build_index(url).scenes[url]
    assert scene.header is not gs.RasterDataset(url)._scenes[url].header
    same(scene, gs.RasterDataset(url)._scenes[url])


def test_every_real_file_survives(shared_data):
    files = [str(path) for path in sorted((shared_data / "geotiff" / "rio-tiler").rglob("*.tif"))]
    index = gs.build_index(files)
    assert len(index) == len(files) > 40
    again = pickle.loads(pickle.dumps(index))
    for url in index.urls:
        same(again.scenes[url], gs.RasterDataset(url)._scenes[url])


def same(one, other, where=""):
    """Whether two records are equal to the last bit, headers included; what reading them took aside."""
    if hasattr(type(one), "__dataclass_fields__"):
        assert type(one) is type(other), where
        names = set(type(one).__dataclass_fields__) - {"requests", "bytes", "stored"}
        for name in sorted(names | ({"header"} if hasattr(one, "header") else set())):
            same(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        assert np.array_equal(one, other), where
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{i}]")
    else:
        assert one == other or (one != one and other != other), where  # noqa: PLR0124 - NaN
        assert type(one) is type(other) or isinstance(one, int | float), where


def test_headers_are_unpacked_when_they_are_first_looked_at(saved, monkeypatch):
    from geostream.index import packing

    seen = []
    real = packing.unpack_header
    monkeypatch.setattr(packing, "unpack_header", lambda data, crs, name: seen.append(name) or real(data, crs, name))
    index = gs.load_index(saved)
    dataset = gs.RasterDataset(index=index)
    assert seen == []
    dataset.plan([(slice(600_000, 600_010), slice(5_299_990, 5_300_000))])
    assert len(seen) == 1


def test_the_file_is_geoparquet_for_others(saved):
    import geopandas

    frame = geopandas.read_parquet(saved)
    assert frame.crs.to_epsg() == 4326
    assert {*frame.columns, "bbox"} == set(schema.SCHEMA.names)
    xmin, ymin, xmax, ymax = frame.geometry.iloc[0].bounds
    ground = geopandas.GeoSeries([shapely.box(600_000, 5_294_880, 605_120, 5_300_000)], crs=32632).to_crs(4326)
    assert (xmin, ymin, xmax, ymax) == pytest.approx(tuple(ground.total_bounds), abs=3e-5)
    near = geopandas.read_parquet(saved, bbox=(xmin, ymin, xmax, ymax))
    assert len(near) == 3
    assert len(geopandas.read_parquet(saved, bbox=(0, 0, 1, 1))) == 0
    geo = json.loads(pq.read_metadata(saved).metadata[b"geo"])
    assert geo["version"] == "1.1.0"
    assert geo["columns"]["geometry"]["covering"]["bbox"]["xmin"] == ["bbox", "xmin"]


def test_the_frame_is_geopandas_own(saved):
    frame = gs.load_index(saved).gdf
    assert frame.crs.to_epsg() == 4326
    assert list(frame["width"]) == [512, 512, 512]
    assert "header" not in frame


def test_a_newer_version_is_refused_in_words(saved, tmp_path):
    table = pq.read_table(saved)
    own = json.loads(table.schema.metadata[b"geostream"]) | {"version": schema.VERSION + 1}
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"geostream": json.dumps(own).encode()}),
        tmp_path / "newer.parquet",
    )
    with pytest.raises(gs.ConfigError, match=r"newer\.parquet: this index has version 2, .* up to version 1: upgrade"):
        gs.load_index(tmp_path / "newer.parquet")


def test_what_is_no_index_is_refused(tmp_path, saved):
    (tmp_path / "x.parquet").write_text("no")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "cut.parquet").write_bytes(saved.read_bytes()[:-100])
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    for name in ("x", "empty", "cut", "other"):
        with pytest.raises(gs.ConfigError, match=rf"{name}\.parquet: not an index"):
            gs.load_index(tmp_path / f"{name}.parquet")
    with pytest.raises(gs.NotFoundError, match="build_index"):
        gs.load_index(tmp_path / "y.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(gs.ConfigError, match="folder"):
        gs.load_index(tmp_path / "folder")
    with pytest.raises(gs.ConfigError, match="contradict"):
        gs.RasterDataset("somewhere", index=gs.load_index(saved))


def test_a_damaged_header_is_named(saved, tmp_path):
    table = pq.read_table(saved)
    broken = [b"\0" + data.as_py()[1:] for data in table.column("header")]
    place = table.schema.get_field_index("header")
    pq.write_table(table.set_column(place, table.schema.field("header"), [broken]), tmp_path / "broken.parquet")
    index = gs.load_index(tmp_path / "broken.parquet")
    with pytest.raises(gs.ConfigError, match=r"a\.tif: its header in the index is damaged"):
        _ = index.scenes[index.urls[0]].header


def test_saving_replaces_a_file_in_one_step_and_leaves_open_ones_be(saved, folder, tmp_path):
    index = gs.load_index(saved)
    gs.build_index(str(folder / NAMES[0])).save(saved)
    assert len(gs.load_index(saved)) == 1
    assert [index.scenes[url].header.count for url in index.urls] == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["index.parquet"]
    with pytest.raises(gs.ConfigError, match="replaced by another"):
        pickle.loads(pickle.dumps(index))
    with pytest.raises(gs.ConfigError, match="cannot be written"):
        index.save(tmp_path / "nowhere" / "index.parquet")
    with pytest.raises(gs.ConfigError, match="local path"):
        index.save("s3://bucket/index.parquet")


def test_a_loaded_index_pickles_as_its_path_and_copies_as_itself(saved):
    index = gs.load_index(saved)
    data = pickle.dumps(index)
    assert len(data) < 1000
    assert pickle.loads(data).urls == index.urls
    assert copy.deepcopy(index) is index
    dataset = pickle.loads(pickle.dumps(gs.RasterDataset(index=index)))
    assert len(dataset) == 3


def test_two_files_that_differ_in_their_query_string_alone_are_refused(served):
    url = served.url_for(NAMES[0])
    with pytest.raises(gs.ConfigError, match="query strings alone"):
        gs.build_index([f"{url}?v=1", f"{url}?v=2"])


def test_parts_are_merged_and_the_last_one_counts(folder, tmp_path):
    one, two = (gs.build_index([str(folder / n) for n in names]) for names in (NAMES[:2], NAMES[1:]))
    both = one.merge(two)
    assert sorted(both.urls) == sorted(str(folder / name) for name in NAMES)
    assert gs.Index.merge(one, two).urls == both.urls
    one.save(tmp_path / "part-0.parquet")
    two.save(tmp_path / "part-1.parquet")
    assert sorted(gs.load_index(tmp_path).urls) == sorted(both.urls)
    shutil.rmtree(tmp_path)
    for url in both.urls:
        same(both.scenes[url], gs.RasterDataset(url)._scenes[url])


def test_many_rows_are_kept_in_groups_and_found_again(folder, monkeypatch):
    from geostream.index import rows

    monkeypatch.setattr(rows, "_GROUP_BYTES", 1000)
    index = gs.build_index(str(folder))
    assert index._table._metadata.num_row_groups == 2
    both = index.merge(gs.build_index(str(folder / NAMES[1])))
    assert len(both) == 3
    for url in index.urls:
        same(both.scenes[url], gs.RasterDataset(url)._scenes[url])


def test_errors_name_every_file_or_are_listed(served, folder, tmp_path):
    for name in NAMES:
        shutil.copy(folder / name, tmp_path / name.replace("/", "_"))
    (tmp_path / "bad.tif").write_text("no raster")
    (tmp_path / "worse.tif").write_bytes(b"")
    with pytest.raises(gs.HeaderError, match=r"2 of 5 files cannot be read(.|\n)*bad\.tif(.|\n)*worse\.tif"):
        gs.build_index(tmp_path)
    with pytest.warns(UserWarning, match="2 of 5 files"):
        index = gs.build_index(tmp_path, on_error="skip", progress=True)
    assert len(index) == 3
    assert {Path(url).name: type(error) for url, error in index.failures.items()} == {
        "bad.tif": gs.HeaderError,
        "worse.tif": gs.HeaderError,
    }
    assert repr(index) == "<Index of 3 files, 2 left out>"
    with pytest.raises(gs.HeaderError, match="bad"):
        gs.build_index(tmp_path / "bad.tif", on_error="skip")
    with pytest.raises(gs.NotFoundError, match="matches"):
        gs.build_index(tmp_path, filename_glob="*.jp2")
    for nothing in ([], pd.DataFrame({"url": []}), {"type": "FeatureCollection", "features": []}):
        with pytest.raises(gs.NotFoundError, match="nothing to index"):
            gs.build_index(nothing)
    for unlike in (3, [None]):
        with pytest.raises(gs.ConfigError, match="is nothing to index"):
            gs.build_index(unlike)
    with pytest.raises(gs.ConfigError, match="on_error"):
        gs.build_index(tmp_path, on_error="ignore")


def test_a_progress_bar_is_shown_when_asked_for(folder, capfd):
    gs.build_index(str(folder), progress=True)
    assert "3/3" in capfd.readouterr().err
    gs.build_index(str(folder))
    assert capfd.readouterr().err == ""


def test_datasets_take_their_times_from_the_index_unless_names_tell_them(folder):
    frame = pd.DataFrame(
        {"url": [str(folder / name) for name in NAMES], "datetime": ["2020-05-01", None, "2021-05-01"]}
    )
    index = gs.build_index(frame)
    dataset = gs.RasterDataset(index=index)
    assert dataset.index.index.left.tolist() == [
        pd.Timestamp("2020-05-01"),
        pd.Timestamp.min,
        pd.Timestamp("2021-05-01"),
    ]
    assert dataset.index.index.right[1] == pd.Timestamp.max
    named = type("Named", (gs.RasterDataset,), {"filename_regex": r"(?P<date>[ab])", "date_format": "%Y"})
    with pytest.raises(gs.ConfigError, match="does not follow date_format"):
        named(index=index)


def test_datasets_of_an_index_are_those_of_a_scan(tmp_path):
    write_cog(tmp_path / "utm.tif", count=1, dtype="float32")
    write_cog(
        tmp_path / "turned.tif",
        count=1,
        transform=Affine.translation(6e5, 5.3e6) @ Affine.rotation(20) @ Affine.scale(10),
    )
    write_cog(tmp_path / "degrees.tif", count=1, crs="EPSG:4326", transform=Affine(1e-4, 0, 10.35, 0, -1e-4, 47.84))
    write_cog(tmp_path / "south_up.tif", count=1, transform=Affine(10, 0, 6e5, 0, 10, 5.29e6))
    index = gs.build_index(tmp_path)
    for crs in (None, "EPSG:4326", 3857):
        scanned, saved = gs.RasterDataset(tmp_path, crs=crs), gs.RasterDataset(index=index, crs=crs)
        assert saved.crs == scanned.crs
        assert saved.res == scanned.res
        assert saved.index.equals(scanned.index)
    declared = type("Declared", (gs.RasterDataset,), {"nodata": 7.0})
    assert declared(index=index)._scenes[str(tmp_path / "utm.tif")].header.nodata == (7.0,)
    write_cog(tmp_path / "other.tif", count=2)
    with pytest.raises(gs.ConfigError, match="differ in their number of bands"):
        gs.RasterDataset(index=index.update())
    write_cog(tmp_path / "other.tif", count=1, crs=None)
    with pytest.raises(gs.ConfigError, match=r"other\.tif: a raster without a CRS"):
        gs.RasterDataset(index=index.update())
