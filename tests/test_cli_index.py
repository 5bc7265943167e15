"""``geostream index`` and ``geostream info`` of an index, run as a person runs them."""

import json
import sys

import pytest

import geostream as gs
from geostream.cli import main
from geostream.testing import RangeServer
from geostream.testing.rasters import write_cog


@pytest.fixture
def geostream(monkeypatch, capsys):
    """Run the command in this process; returns what it wrote."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["geostream", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        done = capsys.readouterr()
        assert (stop.value.code or 0) == code, done.err
        return done

    return run


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        write_cog(tmp_path / "scenes" / f"a{number}.tif", shape=(128, 128), count=1, seed=number)
    return tmp_path / "scenes"


@pytest.fixture
def server(folder):
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def s3(server):
    return server.s3_url(), "--storage-options", json.dumps(server.storage_options)


def test_a_scan_its_update_and_what_it_holds(geostream, server, s3, folder, tmp_path):
    out = tmp_path / "a.parquet"
    made = json.loads(geostream("index", *s3, "-o", out, "--json").out)
    assert (made["files"], made["left_out"], made["requests"]) == (
        3,
        0,
        server.counters.requests,
    )
    assert len(gs.load_index(out)) == 3

    write_cog(folder / "a1.tif", shape=(128, 128), count=1, seed=9)
    (folder / "a2.tif").unlink()
    write_cog(folder / "a3.tif", shape=(128, 128), count=1, seed=3)
    server.reset()
    changed = json.loads(geostream("index", "-o", out, "--update", *s3[1:], "--json").out)
    assert (server.counters.get, changed["requests"]) == (2, server.counters.requests)
    assert [changed[name] for name in ("files", "added", "changed", "gone", "kept")] == [3, 1, 1, 1, 1]

    facts = json.loads(geostream("info", out, "--json").out)
    assert (facts["files"], facts["dtypes"], facts["bands"], facts["crs"]) == (
        3,
        {"uint8": 3},
        {"1": 3},
        {"EPSG:32632": 3},
    )
    assert facts["headers"] == 3
    assert facts["requests"] == 0
    assert facts["bounds"][0] == pytest.approx(10.33, abs=0.05)
    assert "EPSG:32632: 3" in geostream("info", out).out


def test_files_that_cannot_be_read(geostream, server, s3, folder, tmp_path):
    (folder / "text.tif").write_text("no raster")
    out = tmp_path / "a.parquet"
    done = geostream("index", *s3, "-o", out, code=1)
    assert "text.tif" in done.err
    assert not out.exists()
    done = geostream("index", *s3, "-o", out, "--skip-errors", "--json", code=3)
    assert json.loads(done.out)["left_out"] == 1
    assert done.err.count("text.tif") >= 1
    assert len(gs.load_index(out)) == 3
    geostream("index", *s3, "--glob", "a*.tif", "-o", out)


def test_stac_of_any_name(geostream, server, folder, tmp_path):
    facts = {
        "proj:code": "EPSG:32632",
        "proj:shape": [128, 128],
        "proj:transform": [10, 0, 600_000, 0, -10, 5_300_000],
        "raster:bands": [{"data_type": "uint8"}],
    }
    assets = {"visual": {"href": server.url_for("a0.tif"), "type": "image/tiff; application=geotiff", **facts}}
    item = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": "one",
        "geometry": None,
        "properties": {"datetime": "2023-04-01T10:00:00Z"},
        "assets": assets,
        "links": [],
    }
    (folder / "items").write_text(json.dumps({"type": "FeatureCollection", "features": [item]}))
    out = tmp_path / "a.parquet"
    made = json.loads(geostream("index", server.url_for("items"), "--stac", "-o", out, "--json").out)
    assert made["files"] == 1
    facts = json.loads(geostream("info", out, "--json").out)
    assert (facts["first"], facts["headers"]) == ("2023-04-01T10:00:00Z", 1)
    geostream("index", server.url_for("items"), "--stac", "--lazy", "-o", out)
    assert json.loads(geostream("info", out, "--json").out)["headers"] == 0
    done = geostream("index", server.url_for("items"), "--stac", "--asset", "nir", "-o", out, code=1)
    assert "visual" in done.err
    done = geostream("index", server.url_for("a0.tif"), "--stac", "-o", out, code=1)
    assert "no STAC document" in done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["index", "x.tif"], 2),
        (["index", "-o", "a.parquet"], 2),
        (["index", "no/such/folder", "-o", "a.parquet"], 1),
        (["index", "--update", "-o", "no-such.parquet"], 1),
        (["info", "no-such.parquet"], 1),
    ],
)
def test_mistakes(geostream, tmp_path, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    done = geostream(*arguments, code=code)
    assert "Traceback" not in done.err
    assert done.err.strip()
    assert done.out == ""


def test_help_teaches(geostream):
    said = " ".join(geostream("index", "--help").out.split())
    assert "load_index" in said
    assert "geostream index" in said
