"""The benchmark, run as a person runs it, on small scenes."""

import json
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from geostream.bench.gdal import pick_workers
from geostream.bench.measure import Figures
from geostream.bench.profiling import Sampler
from geostream.bench.report import summarize
from geostream.cli import app

TINY = ["--rounds", "1", "--batches", "2", "--skip", "1", "--latency", "1", "--workers", "0", "--scenes", "1"]
TINY += ["--size", "1024", "--small", "16"]


def bench(folder, *options):
    command = [sys.executable, "-c", "from geostream.cli import main; main()", "bench", "--data", str(folder / "data")]
    return subprocess.run([*command, *TINY, *options], capture_output=True, text=True, timeout=170, check=False)


def test_a_case_from_scenes_to_table_and_json(tmp_path):
    done = bench(tmp_path, "--case", "e", "--arms", "random,gdal,fetch", "--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(list((tmp_path / "data" / "labels").iterdir())) == 4
    (run,) = results["runs"]
    assert set(run["arms"]) == {"random", "gdal", "fetch"}
    for name, arm in run["arms"].items():
        assert name in done.stdout
        assert [one["chips"] for one in arm["rounds"]] == [32]
        assert arm["slowest"] <= arm["chips_per_second"] <= arm["fastest"]
        assert arm["first_batch_seconds"] > 0
    assert results["machine"]["gdal_options"]["GDAL_CACHEMAX"] == "128"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--case", "z"], "--case z: there are a, b, c, d, e, f"),
        (["--case", "a", "--arms", "magic"], "--arms magic: there are random"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path, options, why):
    done = CliRunner().invoke(app, ["bench", "--data", str(tmp_path), *TINY, *options])
    assert done.exit_code == 1
    assert why in done.stderr


def test_the_profile_says_which_threads_and_functions_use_the_processor():
    def burn():
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            sum(range(1000))

    sampler = Sampler()
    sampler.start()
    thread = threading.Thread(target=burn, name="burner_0")
    thread.start()
    thread.join()
    sampler.stop()
    assert sampler.threads["burner"] > 0.1
    assert any("burn" in function for function in sampler.functions)


def test_figures_become_medians_and_spreads():
    rounds = [
        Figures(chips=10, seconds=s, first=s / 10, opened=1.0, requests=20, bytes=10_000, cpu=None, memory=m)
        for s, m in ((1.0, 5), (2.0, 7), (0.5, 6))
    ]
    summary = summarize(rounds)
    assert (summary["slowest"], summary["chips_per_second"], summary["fastest"]) == (5.0, 10.0, 20.0)
    assert summary["requests_per_chip"] == 2.0
    assert summary["bytes_per_chip"] == 1000
    assert summary["cpu_seconds_per_chip"] is None
    assert summary["memory_bytes"] == 6
    assert pick_workers({0: 5.0, 4: 9.0, 8: 7.0}) == 4
