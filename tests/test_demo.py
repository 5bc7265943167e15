"""The demo, run as a person runs it, with fewer steps."""

import json
import subprocess
import sys
import warnings

import pytest
import rasterio


@pytest.mark.timeout(400)  # four processes that import torch, on two cores with others
def test_the_demo_trains_compares_and_draws(tmp_path):
    out = tmp_path / "pictures"
    command = [sys.executable, "-c", "from geostream.cli import main; main()", "demo"]
    command += ["--out", str(out), "--steps", "12", "--size", "1024", "--latency", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = figures["geostream"], figures["vsicurl"]
    assert ours["chips"] == theirs["chips"] == 6 * 16
    assert ours["chips_per_second"] > 0
    assert theirs["chips_per_second"] > 0
    # How many GDAL needs depends on its workers; that a batch is one plan is what makes ours few.
    assert ours["requests"] < theirs["requests"]
    assert ours["mb"] < theirs["mb"]
    assert figures["training"]["steps"] == 12
    assert figures["training"]["last_loss"] < figures["training"]["first_loss"]
    assert "geostream" in done.stdout
    for name in ("batch.png", "footprints.png"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            picture = rasterio.open(out / name)
        with picture:
            assert min(picture.shape) > 500
            assert picture.read(1).std() > 10
