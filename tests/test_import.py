"""What `import geostream` does, and does not do."""

import json
import subprocess
import sys

import geostream as gs

PROBE = """
import json, sys, threading, warnings
warnings.simplefilter("error")
import geostream
print(json.dumps({
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "threads": [thread.name for thread in threading.enumerate()],
}))
"""


def probe(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def test_import_is_light_and_starts_nothing():
    seen = probe(PROBE)
    assert not {"lightning", "pytorch_lightning", "kornia", "matplotlib", "typer"} & set(seen["modules"])
    assert seen["threads"] == ["MainThread"]


def test_reading_and_datasets_need_neither_lightning_nor_kornia_nor_matplotlib():
    seen = probe(
        PROBE.replace(
            "import geostream\n",
            "import geostream\ngeostream.read, geostream.RasterDataset\n"
            "geostream.DataLoader, geostream.samplers.RandomGeoSampler\n",
        )
    )
    assert not {"lightning", "pytorch_lightning", "kornia", "matplotlib"} & set(seen["modules"])
    assert seen["threads"] == ["MainThread"]


def test_every_public_name_is_there():
    for name in gs.__all__:
        assert getattr(gs, name) is not None, name
    assert set(gs.__all__) <= set(dir(gs))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(gs, "no_such_thing")


def test_stats_is_the_registry_and_stays_so():
    before = gs.stats
    gs.DataLoader, gs.read, gs.RasterDataset  # noqa: B018 - imports everything that could rebind the name
    assert gs.stats is before
    assert gs.stats().requests >= 0
