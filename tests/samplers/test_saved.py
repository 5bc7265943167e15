"""Windows worked out before: exact in a file, filtered, shuffled, dealt to ranks."""

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import torch

import geostream as gs
from geostream.errors import ConfigError, NotFoundError
from geostream.samplers import (
    GridGeoSampler,
    PreChippedGeoSampler,
    RandomBatchGeoSampler,
    RandomGeoSampler,
    SavedBatchGeoSampler,
    SavedGeoSampler,
    TileBatchGeoSampler,
    windows,
)
from geostream.testing.memory import MemoryDataset, MemoryScene


def dataset(crs="EPSG:32632", **kw):
    scenes = [
        MemoryScene(np.full((1, 70, 90), i, np.uint8), (1000.1 * i, 5000.3), (1 / 3, 0.7), **kw) for i in range(3)
    ]
    return MemoryDataset(scenes, crs=crs)


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


SINGLE = {
    "random": lambda ds: RandomGeoSampler(ds, 16, length=23, generator=seeded()),
    "grid": lambda ds: GridGeoSampler(ds, 16),
    "prechipped": lambda ds: PreChippedGeoSampler(ds, shuffle=True, generator=seeded()),
}
BATCHED = {
    "batch": lambda ds: RandomBatchGeoSampler(ds, 16, 4, length=40, generator=seeded()),
    "tile": lambda ds: TileBatchGeoSampler(ds, 16, 4, generator=seeded()),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_single_chips_come_back_from_a_file_exactly(kind, tmp_path):
    place = dataset()
    sampler = SINGLE[kind](place)
    table = windows(sampler, epoch=2)
    table.to_parquet(tmp_path / "windows.parquet")
    sampler.set_epoch(2)
    expected = list(sampler)
    assert list(SavedGeoSampler(place, tmp_path / "windows.parquet")) == expected
    assert list(SavedGeoSampler(place, str(tmp_path / "windows.parquet"))) == expected
    assert list(SavedGeoSampler(place, table)) == expected
    assert table.crs == place.index.crs
    assert table.total_bounds.tolist() == gpd.GeoSeries(table.geometry).total_bounds.tolist()


@pytest.mark.parametrize("kind", BATCHED)
def test_batches_come_back_as_they_were(kind, tmp_path):
    place = dataset()
    sampler = BATCHED[kind](place)
    windows(sampler).to_parquet(tmp_path / "windows.parquet")
    saved = SavedBatchGeoSampler(place, tmp_path / "windows.parquet")
    expected = list(sampler)
    assert list(saved) == list(saved) == expected
    assert len(saved) == len(expected)
    assert saved.batch_size == 4
    assert saved.sampler is saved
    shuffled = SavedBatchGeoSampler(place, tmp_path / "windows.parquet", shuffle=True, generator=seeded())
    first, second = list(shuffled), list(shuffled)
    assert first != second != expected
    key = lambda batch: [(x.start, y.start) for x, y, _ in batch]  # noqa: E731
    assert sorted(first, key=key) == sorted(second, key=key) == sorted(expected, key=key)


def test_chips_are_put_together_anew():
    place = dataset()
    table = windows(SINGLE["random"](place))
    saved = SavedBatchGeoSampler(place, table, batch_size=5)
    assert [len(batch) for batch in saved] == [5, 5, 5, 5, 3]
    assert [chip for batch in saved for chip in batch] == list(SavedGeoSampler(place, table))
    shuffled = SavedBatchGeoSampler(place, table, batch_size=5, shuffle=True, generator=seeded())
    assert len(shuffled) == 5
    starts = [{x.start for batch in sampler for x, *_ in batch} for sampler in (saved, shuffled)]
    assert starts[0] == starts[1]
    with pytest.raises(ConfigError, match="batch_size"):
        SavedBatchGeoSampler(place, table)


def test_rows_may_be_dropped_and_the_rest_is_loaded():
    place = dataset()
    table = windows(BATCHED["batch"](place))
    kept = table[table.xmin > 500]
    saved = SavedBatchGeoSampler(place, kept)
    batches = list(gs.DataLoader(place, batch_sampler=saved))
    assert 0 < len(batches) < 10
    assert {int(batch["image"].min()) for batch in batches} <= {1, 2}
    assert sum(len(batch["image"]) for batch in batches) == len(kept)


def test_ranks_share_and_states_go_on():
    place = dataset()
    table = windows(SINGLE["random"](place))
    whole = list(SavedGeoSampler(place, table))
    shares = [list(SavedGeoSampler(place, table, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [chip for pair in zip(*shares, strict=True) for chip in pair][:23] == whole
    sampler = SavedGeoSampler(place, table)
    iterator = iter(sampler)
    for _ in range(5):
        next(iterator)
    resumed = SavedGeoSampler(place, table)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == whole[5:]


def test_making_a_table_leaves_the_sampler_where_it_stands():
    sampler = SINGLE["random"](dataset())
    iterator = iter(sampler)
    next(iterator)
    before = sampler.state_dict()
    windows(sampler, epoch=5)
    assert sampler.state_dict() == before
    assert len(list(iterator)) == 22


def test_undated_scenes_keep_their_times(tmp_path):
    place = dataset(interval=(pd.Timestamp.min, pd.Timestamp.max))
    sampler = SINGLE["grid"](place)
    windows(sampler).to_parquet(tmp_path / "windows.parquet")
    assert list(SavedGeoSampler(place, tmp_path / "windows.parquet")) == list(sampler)


def test_what_is_no_table_is_refused(tmp_path):
    place = dataset()
    table = windows(SINGLE["random"](place))
    with pytest.raises(ConfigError, match="xmin"):
        SavedGeoSampler(place, table.drop(columns="xmin"))
    with pytest.raises(ConfigError, match="rows"):
        SavedGeoSampler(place, table.iloc[:0])
    with pytest.raises(ConfigError, match="dataset in WGS 84"):
        SavedGeoSampler(dataset("EPSG:4326"), table)
    with pytest.raises(NotFoundError, match=r"none\.parquet"):
        SavedGeoSampler(place, tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(ConfigError, match="to_parquet"):
        SavedGeoSampler(place, tmp_path / "text.parquet")
    with pytest.raises(ConfigError, match="MemoryDataset is no sampler"):
        windows(place)
    with pytest.raises(ConfigError, match="windows="):
        SavedGeoSampler(place, 3)


@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        ("xmin", "a", "column xmin"),
        ("tmin", "a", "column tmin"),
        ("yres", None, "row 2 .*yres"),
        ("xres", 0.0, "row 2 .*xres"),
        ("xmin", np.inf, "row 2 .*xmin"),
        ("xmin", -1e9, "row 2 .*pixels"),
        ("ymax", -1e9, "row 2 .*ymin"),
        ("tmax", pd.NaT, "row 2 .*tmax"),
        ("tmax", pd.Timestamp(1700, 1, 1), "row 2 .*before"),
        ("batch", None, "row 2 .*batch"),
    ],
)
def test_a_wrong_value_is_refused_by_row_or_column(column, value, word):
    place = dataset()
    table = windows(BATCHED["batch"](place))
    table[column] = table[column].astype(object if isinstance(value, str) or column == "batch" else table[column].dtype)
    table.iloc[2, table.columns.get_loc(column)] = value
    with pytest.raises(ConfigError, match=word):
        SavedBatchGeoSampler(place, table)
