"""The command line, run as a person runs it."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import rasterio

from geostream.cli import join_numbers, main
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    write_cog(folder / "scene.tif", shape=(600, 700), count=4, dtype="uint16", crs="EPSG:32632", nodata=0)
    (folder / "text.tif").write_text("this is no raster\n")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def bounds(folder):
    with rasterio.open(folder / "scene.tif") as source:
        return rasterio.windows.bounds(rasterio.windows.Window(100, 200, 300, 150), source.transform)


def test_it_says_its_version(geostream):
    from importlib.metadata import version

    assert geostream("--version").out == f"geostream {version('geostream')}\n"


def test_several_numbers_after_an_option_are_one_value():
    assert join_numbers(["read", "u", "--bounds", "-1", "2.5", "3e2", "4", "-o", "x.tif"]) == [
        "read",
        "u",
        "--bounds",
        "-1,2.5,3e2,4",
        "-o",
        "x.tif",
    ]
    assert join_numbers(["--bounds", "1,2,3,4", "--res", "10", "u"]) == ["--bounds", "1,2,3,4", "--res", "10", "u"]
    assert join_numbers(["--bands", "3", "2", "1"]) == ["--bands", "3,2,1"]


def test_help_names_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys, geostream.cli; sys.argv = ['geostream', '--help']\n"
        "try: geostream.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'rasterio', 'lightning', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {"bench", "demo", "index", "info", "read"} <= set(done.stdout.split())


def test_info_in_json_and_as_a_table(geostream, server):
    done = geostream("info", server.url_for("scene.tif"), "--json")
    facts = json.loads(done.out)
    assert facts["dtype"] == "uint16"
    assert facts["crs"] == "EPSG:32632"
    assert facts["requests"] == 1
    assert "uint16" in geostream("info", server.url_for("scene.tif")).out


def test_read_writes_the_pixels_of_the_bounds(geostream, server, folder, bounds, tmp_path):
    out = tmp_path / "out.tif"
    done = geostream("read", server.url_for("scene.tif"), "--bounds", *bounds, "-o", out, "--json")
    figures = json.loads(done.out)
    assert figures["shape"] == [4, 150, 300]
    assert figures["requests"] >= 1
    window = rasterio.windows.Window(100, 200, 300, 150)
    with rasterio.open(folder / "scene.tif") as source, rasterio.open(out) as written:
        np.testing.assert_array_equal(written.read(), source.read(window=window))
        assert written.crs == source.crs
        assert written.transform == source.window_transform(window)


def test_read_reprojects_and_chooses_bands(geostream, server, tmp_path, bounds):
    from pyproj import Transformer

    degrees = Transformer.from_crs(32632, 4326, always_xy=True).transform_bounds(*bounds)
    out = tmp_path / "out.tif"
    where = ["--bounds", *degrees, "--bounds-crs", "EPSG:4326", "--crs", "EPSG:3857", "--res", 20]
    geostream("read", server.url_for("scene.tif"), *where, "--bands", 3, 1, "--resampling", "bilinear", "-o", out)
    with rasterio.open(out) as written:
        assert written.crs.to_epsg() == 3857
        assert written.count == 2
        assert written.res == (20, 20)


def test_read_keeps_what_is_invalid_as_a_mask(geostream, server, tmp_path):
    out = tmp_path / "out.tif"
    geostream("read", server.url_for("scene.tif"), "--window", -50, -50, 100, 100, "-o", out)
    with rasterio.open(out) as written:
        mask = written.dataset_mask()
    assert not mask[:50].any()
    assert not mask[:, :50].any()
    assert mask[50:, 50:].any()


def test_read_draws_a_picture(geostream, server, tmp_path, bounds):
    out = tmp_path / "out.png"
    geostream("read", server.url_for("scene.tif"), "--bounds", ",".join(map(str, bounds)), "-o", out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        picture = rasterio.open(out)
    with picture:
        assert (picture.driver, picture.count, picture.dtypes[0]) == ("PNG", 4, "uint8")
        assert np.ptp(picture.read(1)) > 200
        assert (picture.read(4) == 255).any()


def test_storage_options_reach_the_filesystem(geostream, server):
    options = json.dumps(server.storage_options)
    done = geostream("info", server.s3_url("scene.tif"), "--storage-options", options, "--json")
    assert json.loads(done.out)["requests"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["info", "{url}/missing.tif"], "missing.tif"),
        (["info", "{url}/text.tif"], "text.tif"),
        (["read", "{url}/scene.tif", "--bands", "9"], "9"),
        (["read", "{url}/scene.tif", "--crs", "EPSG:999999"], "999999"),
        (["read", "{url}/scene.tif", "-o", "out.jpg"], ".png"),
        (["read", "{url}/scene.tif", "-o", "no/such/folder/out.tif"], "folder"),
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(geostream, server, arguments, said):
    done = geostream(*[argument.format(url=server.url) for argument in arguments], code=1)
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("geostream: ")
    assert said in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "x.tif", "--bounds", "1", "2", "3"],
        ["read", "x.tif", "--bounds", "a,b,c,d"],
        ["read", "x.tif", "--window", "0.5", "0", "1", "1"],
        ["read", "x.tif", "--storage-options", "{"],
        ["read"],
        ["demo", "--steps", "0"],
        ["no-such-command"],
    ],
)
def test_a_usage_error_is_exit_code_2(geostream, arguments):
    done = geostream(*arguments, code=2)
    assert "Traceback" not in done.err
