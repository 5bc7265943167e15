"""What an index keeps comes back as it was, and its look-ups find what comparing every row finds."""

import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import geostream as gs
from geostream.index.packing import pack_header, unpack_header
from geostream.index.rows import write_rows
from geostream.index.schema import SCHEMA
from geostream.index.table import SceneTable
from geostream.scan.index import Index
from geostream.testing.rasters import write_cog

pa = pytest.importorskip("pyarrow")

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TILES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=4, max_size=40)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return gs.build_index(write_cog(tmp_path_factory.mktemp("one") / "a.tif", count=1))


@QUICK
@given(tiles=TILES)
def test_any_tile_table_survives_packing(index, tiles):
    header = index.scenes[index.urls[0]].header
    offsets, counts = np.array(tiles, dtype=np.uint64).T
    level = header.levels[0]
    table = replace(level.image, offsets=offsets, counts=counts)
    packed = pack_header(replace(header, levels=(replace(level, image=table, mask=table),)))
    again = unpack_header(packed, header.grid.crs, "a.tif").levels[0]
    for image in (again.image, again.mask):
        assert np.array_equal(image.offsets, offsets)
        assert np.array_equal(image.counts, counts)


@QUICK
@given(data=st.data())
def test_damaged_headers_are_config_errors_or_headers(index, data):
    packed = pack_header(index.scenes[index.urls[0]].header)
    raw = bytearray(zlib.decompress(packed))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(list(b'0-9",[]{}en\0\xff')))
    damaged = data.draw(st.sampled_from([zlib.compress(raw), packed[: data.draw(st.integers(0, len(packed) - 1))]]))
    try:
        unpack_header(damaged, None, "a.tif")
    except gs.ConfigError as error:
        assert str(error).startswith("a.tif: its header in the index")  # noqa: PT017 - some changes damage nothing


BOXES = st.tuples(st.integers(-170, 160), st.integers(-80, 70), st.integers(1, 9), st.integers(1, 9))
DAYS = st.none() | st.tuples(st.integers(0, 100), st.integers(0, 20))
ROWS = st.lists(st.tuples(BOXES, DAYS), min_size=1, max_size=12)


@QUICK
@given(
    rows=st.lists(st.tuples(BOXES, DAYS), min_size=1, max_size=12),
    box=BOXES,
    days=st.tuples(*[st.integers(0, 120)] * 2),
)
def test_look_ups_agree_with_comparing_everything(index, rows, box, days):
    table = _rows(index, rows)
    west, south, width, height = box
    area = shapely.box(west + 0.5, south + 0.5, west + width - 0.25, south + height - 0.25)
    first, last = sorted(days)
    expected = [
        number
        for number, ((x, y, w, h), when) in enumerate(rows)
        if shapely.box(x, y, x + w, y + h).intersects(area)
        and (when is None or (when[0] <= last and when[0] + when[1] >= first))
    ]
    assert table.find(area.bounds, (_day(first), _day(last))).tolist() == expected


def _day(number):
    return pd.Timestamp("2020-01-01", tz="UTC") + pd.Timedelta(days=number)


def _rows(index, rows):
    """An index of rows at these places and times."""
    one = index._table.read()
    boxes = [(x, y, x + w, y + h) for (x, y, w, h), _ in rows]
    columns = {
        "url": [f"{number}.tif" for number in range(len(rows))],
        "geometry": [shapely.to_wkb(shapely.box(*box)) for box in boxes],
        "bbox": [dict(zip(("xmin", "ymin", "xmax", "ymax"), map(float, box), strict=True)) for box in boxes],
        "datetime_start": [None if when is None else _day(when[0]) for _, when in rows],
        "datetime_end": [None if when is None else _day(sum(when)) for _, when in rows],
    }
    table = one.take(np.zeros(len(rows), dtype=np.int64))
    for name, values in columns.items():
        field = SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return Index(SceneTable(write_rows([table], {})))
