"""STAC: items, collections, searches, files, stac-geoparquet; which assets, and what is known without headers."""

import copy
import json
from datetime import UTC, datetime
from pathlib import Path

import geopandas
import pandas as pd
import pytest
import shapely
from affine import Affine

import geostream as gs
from geostream.stac import Assets, items_of
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog

WHERE = {"proj:code": "EPSG:32632", "proj:shape": [512, 512], "proj:transform": [10, 0, 600_000, 0, -10, 5_300_000]}
PIXELS = {"raster:bands": [{"data_type": "uint8", "nodata": 0}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    for seed, name in enumerate(("red", "nir", "preview")):
        write_cog(root / f"{name}.tif", count=1, seed=seed, nodata=0)
    return root


@pytest.fixture
def served(folder):
    with RangeServer(folder) as server:
        yield server


def item(server, **properties):
    tiff = "image/tiff; application=geotiff; profile=cloud-optimized"
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": "scene-1",
        "geometry": None,
        "links": [],
        "properties": {"datetime": "2024-04-19T09:55:49.024000Z", **properties},
        "assets": {
            "red": {"href": server.url_for("red.tif"), "type": tiff, "roles": ["data"]},
            "nir": {"href": server.url_for("nir.tif"), "type": tiff, "roles": ["data", "reflectance"]},
            "preview": {"href": server.url_for("preview.tif"), "type": tiff, "roles": ["overview"]},
            "info": {"href": server.url_for("info.json"), "type": "application/json", "roles": ["metadata"]},
        },
    }


def names(index):
    return [Path(url).name for url in index.urls]


def test_assets_are_chosen_by_name_or_role(served):
    one = item(served)
    assert names(gs.build_index(one)) == ["nir.tif", "red.tif"]
    assert names(gs.build_index([one], assets="red")) == ["red.tif"]
    assert names(gs.build_index({"type": "FeatureCollection", "features": [one]}, assets="data")) == [
        "nir.tif",
        "red.tif",
    ]
    assert names(gs.build_index(one, assets=["reflectance", "preview"])) == ["nir.tif", "preview.tif"]
    index = gs.build_index(one, assets="nir")
    assert served.counters.get == 8
    row = index.gdf.iloc[0]
    assert (row["item"], row["asset"]) == ("scene-1", "nir")
    assert row["datetime_start"] == row["datetime_end"] == pd.Timestamp("2024-04-19T09:55:49.024Z")


def test_an_item_without_the_asset_names_those_there_are(served):
    with pytest.raises(
        gs.ConfigError, match=r"'scene-1' has no 'swir'; its assets are: red \(data\), nir \(data, refl"
    ):
        gs.build_index([item(served)], assets=["red", "swir"])
    bare = item(served) | {"assets": {"info": item(served)["assets"]["info"]}}
    with pytest.raises(gs.ConfigError, match=r"'scene-1' has no a raster; its assets are: info \(metadata\)"):
        gs.build_index(bare)
    assert served.counters.requests == 0


def test_items_without_the_asset_are_left_out_if_told_so(served):
    bare = item(served) | {"id": "scene-2", "assets": {"nir": item(served)["assets"]["nir"]}}
    with pytest.raises(gs.ConfigError, match=r"'scene-2' has no 'red'; its assets are: nir"):
        gs.build_index([item(served), bare], assets="red")
    with pytest.warns(UserWarning, match="1 STAC items lack .* such as scene-2"):
        index = gs.build_index([item(served), bare], assets="red", on_error="skip")
    assert names(index) == ["red.tif"]
    assert list(index.failures) == ["scene-2"]
    assert "its assets are: nir" in str(index.failures["scene-2"])
    with pytest.raises(gs.ConfigError, match="'scene-2' has no 'red'"):
        gs.build_index([bare], assets="red", on_error="skip")


def test_headers_wait_where_the_item_tells_enough(served):
    told = item(served, **WHERE)
    told["assets"]["red"] |= PIXELS
    index = gs.build_index(told, headers="lazy", assets=["red", "nir"])
    assert [request.path for request in served.log] == ["nir.tif"]
    scene = index.scenes[served.url_for("red.tif")]
    assert (scene.header, scene.count, scene.dtype, scene.nodata) == (None, 1, "uint8", (0.0,))
    assert scene.grid == index.scenes[served.url_for("nir.tif")].grid
    served.reset()
    dataset = type("Red", (gs.RasterDataset,), {"filename_glob": "red.tif"})(index=index)
    assert served.counters.requests == 0
    place = slice(600_000, 600_640), slice(5_299_360, 5_300_000)
    sample = dataset[place]
    assert served.log[0].start == 0
    assert served.counters.get == 2
    assert (sample["image"] == gs.RasterDataset(served.url_for("red.tif"))[place]["image"]).all()


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ({"proj:epsg": 32632, "proj:code": None}, PIXELS),
        ({"proj:transform": [*WHERE["proj:transform"], 0, 0, 1]}, PIXELS),
        ({}, {"bands": [{"name": "a"}], "data_type": "uint8", "nodata": 0, "raster:spatial_resolution": 10}),
        ({}, {"data_type": "uint8", "nodata": 0}),
    ],
)
def test_every_version_of_the_extensions_is_read(served, said, about):
    told = item(served, **WHERE, **said) if not said else item(served, **(WHERE | said))
    told["assets"]["red"] |= about
    index = gs.build_index(told, headers="lazy", assets="red")
    assert served.counters.requests == 0
    assert index.scenes[index.urls[0]].grid.crs.to_epsg() == 32632


@pytest.mark.parametrize(
    "wrong",
    [
        {"proj:shape": None},
        {"proj:code": None},
        {"proj:code": "nonsense"},
        {"proj:transform": [1, 2]},
        {"proj:transform": [20, 0, 600_000, 0, -20, 5_300_000]},  # the asset says 10 m
    ],
)
def test_headers_are_read_where_the_item_does_not_tell_enough(served, wrong):
    told = item(served, **(WHERE | wrong))
    told["assets"]["red"] |= {"raster:bands": [{"data_type": "uint8", "spatial_resolution": 10}]}
    index = gs.build_index(told, headers="lazy", assets="red")
    assert served.counters.get == 1
    assert index.scenes[index.urls[0]].header is not None


def test_files_of_items_and_relative_places(served, folder, tmp_path):
    near = item(served)
    near["assets"]["red"]["href"] = "./red.tif"
    with pytest.raises(gs.ConfigError, match=r"names '\./red\.tif' relative to itself"):
        gs.build_index(near, assets="red")
    (folder / "items.json").write_text(json.dumps({"type": "FeatureCollection", "features": [near]}))
    try:
        assert gs.build_index(folder / "items.json", assets="red").urls == [str(folder / "red.tif")]
        assert gs.build_index(served.url_for("items.json"), assets="red").urls == [served.url_for("red.tif")]
        told = gs.build_index([served.s3_url("items.json")], assets="red", storage_options=served.storage_options)
        assert told.urls == [served.s3_url("red.tif")]
    finally:
        (folder / "items.json").unlink()
    placed = copy.deepcopy(near)
    placed["links"] = [{"rel": "self", "href": served.url_for("items/one.json")}]
    placed["assets"]["red"]["href"] = "../red.tif"
    assert gs.build_index(placed, assets="red").urls == [served.url_for("red.tif")]
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(gs.ConfigError, match=r"broken\.json: not JSON"):
        gs.build_index(tmp_path / "broken.json")
    (tmp_path / "catalog.json").write_text(json.dumps({"type": "Catalog", "id": "c", "links": []}))
    with pytest.raises(gs.ConfigError, match=r"catalog\.json: 'Catalog' 'c' is no STAC item"):
        gs.build_index(tmp_path / "catalog.json")


def test_tables_of_files(served, tmp_path):
    shape = shapely.box(0, 0, 1, 1)
    for column in ("filepath", "url", "location", "href"):
        frame = geopandas.GeoDataFrame(
            {column: [served.url_for("red.tif")], "datetime": ["2020-05-01"]}, geometry=[shape], crs=4326
        )
        index = gs.build_index(frame)
        assert names(index) == ["red.tif"]
        assert index.gdf["datetime_start"][0] == pd.Timestamp("2020-05-01", tz="UTC")
    frame.to_parquet(tmp_path / "files.parquet")
    assert names(gs.build_index(tmp_path / "files.parquet")) == ["red.tif"]
    dataset = gs.RasterDataset(served.url_for("red.tif"))
    assert names(gs.build_index(dataset.index)) == ["red.tif"]
    with pytest.raises(gs.ConfigError, match="filepath or url"):
        gs.build_index(frame.rename(columns={"href": "place"}))
    index.save(tmp_path / "index.parquet")
    with pytest.raises(gs.ConfigError, match="open it with load_index"):
        gs.build_index(tmp_path / "index.parquet")


def test_assets_of_an_item_are_the_bands_of_a_scene(served, folder):
    write_cog(folder / "coarse.tif", count=1, shape=(256, 256), transform=Affine(20, 0, 6e5, 0, -20, 5.3e6), seed=9)
    one = item(served)
    one["assets"]["coarse"] = one["assets"]["red"] | {"href": served.url_for("coarse.tif")}
    index = gs.build_index(one)
    kind = type("Stac", (gs.RasterDataset,), {"separate_files": True, "all_bands": ("nir", "red", "coarse")})
    place = slice(600_000, 600_640), slice(5_299_360, 5_300_000)
    dataset = kind(index=index, bands=("red", "coarse"))
    assert len(dataset) == 1
    assert dataset.index.index[0].left == pd.Timestamp("2024-04-19T09:55:49.024")
    image = dataset[place]["image"]
    assert (image[0] == gs.RasterDataset(served.url_for("red.tif"))[place]["image"][0]).all()
    coarse = gs.RasterDataset(served.url_for("coarse.tif"), res=10)[place]["image"][0]
    assert (image[1] == coarse).all()
    with pytest.raises(gs.ConfigError, match=r"no asset 'red' in the index, only \['nir'\]"):
        kind(index=gs.build_index(one, assets="nir"), bands=("nir", "red"))


EVERY_FILE = {
    "cop-dem-glo-30-pc.json": (4, 4),
    "io-lulc-annual-v02-pc.json": (4, 4),
    "landsat-c2-l2-pc.json": (4, 4 * 19),
    "naip-pc.json": (4, 4),
    "sentinel-2-l2a-pc.json": (4, 4 * 16),
    "stac_proj_2_0.json": (1, 4),
    "stac_raster_v1.json": (1, 3),
    "stac_relative.json": (1, 5),
}


@pytest.mark.parametrize("name", EVERY_FILE)
def test_every_file_is_understood(shared_data, name):
    path = shared_data / "stac" / name
    items = items_of(json.loads(path.read_text()))
    entries, lacking = Assets().entries(items, str(path))
    assert (len(items), len(entries), lacking) == (*EVERY_FILE[name], {})
    for entry in entries:
        assert entry.times is not None
        assert entry.times[0].tzinfo is UTC
        assert entry.times[0] <= entry.times[1]
        assert "://" in entry.url or entry.url.startswith("/")
    with pytest.raises(gs.ConfigError, match=f"has no 'absent'; its assets are: {next(iter(items[0]['assets']))}"):
        gs.build_index(path, assets="absent")


def test_a_stac_geoparquet_file_says_what_its_items_say(shared_data, served, folder, monkeypatch):
    path = shared_data / "stac" / "naip.parquet"
    frame = geopandas.read_parquet(path)
    entries, lacking = Assets(("image",)).entries(items_of([_item(row) for row in frame.to_dict("records")]), None)
    assert (len(entries), lacking) == (5, {})
    assert entries[0].times == (datetime(2010, 4, 25, tzinfo=UTC),) * 2
    # Its files are out of reach here: the same table, of files that are.
    for number in range(len(frame)):
        frame.loc[number, "assets"]["image"]["href"] = f"{served.url_for('red.tif')}?item={number}"
    frame = frame.iloc[:1]
    (row,) = gs.build_index(frame, assets="image").gdf.to_dict("records")
    assert (row["item"], row["asset"], row["url"]) == (frame["id"][0], "image", served.url_for("red.tif"))
    frame.to_parquet(folder / "items.parquet")
    try:
        assert names(gs.build_index(served.url_for("items.parquet"), assets="image")) == ["red.tif"]
    finally:
        (folder / "items.parquet").unlink()


def _item(row):
    properties = {key: value for key, value in row.items() if key not in {"id", "assets", "links", "type"}}
    return {**row, "properties": properties}


def test_objects_of_pystac(served):
    pystac = pytest.importorskip("pystac")
    one = pystac.Item.from_dict(item(served))
    for given in (one, [one], pystac.ItemCollection([one]), iter([one])):
        assert names(gs.build_index(given, assets="red")) == ["red.tif"]


def test_what_is_unlike_stac_is_refused(served):
    with pytest.raises(gs.ConfigError, match="int is no STAC item"):
        gs.build_index([item(served), 3])
    with pytest.raises(gs.ConfigError, match="headers="):
        gs.build_index(item(served), headers="never")
