"""Fixtures that tests of several parts share."""

import os
import sys
from pathlib import Path

import pytest

import geostream
from geostream.testing import RangeServer

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("GEOSTREAM_TEST_DATA", ROOT.parent / "shared" / "data"))

# Spawned workers import the test modules whose classes they are sent. Last, so that geostream itself stays the one that
# is installed.
sys.path.append(str(ROOT))


def pytest_report_header():
    """Say which geostream is tested."""
    return f"geostream: {Path(geostream.__file__).parent}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files, with `geotiff` and `stac` in it."""
    if not DATA.is_dir():
        pytest.skip(f"no real files at {DATA} (GEOSTREAM_TEST_DATA says where else)")
    return DATA


@pytest.fixture
def range_server(tmp_path):
    """A range server over `tmp_path`, without latency."""
    with RangeServer(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True, scope="session")
def _no_cloud_accounts():
    """Keep the developer's own credentials, profiles and proxies out of the tests, and metadata services unasked."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.upper().startswith("AWS_") or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}:
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("NO_PROXY", "*")
        yield
