"""What a loader holds stays within its budget, however large the scenes are and however long it runs."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

MB = 2**20
BUDGET = {"cache_bytes": 16 * MB, "prefetch_bytes": 64 * MB}
CHILD = """
import gc, json, sys
import torch
import geostream as gs

folder, size, chips, batches, budget = sys.argv[1], *map(json.loads, sys.argv[2:])
dataset = gs.RasterDataset(folder)

def loader(batches):
    generator = torch.Generator().manual_seed(0)
    sampler = gs.samplers.RandomBatchGeoSampler(dataset, size, chips, length=chips * batches, generator=generator)
    return gs.DataLoader(dataset, batch_sampler=sampler, **budget)

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

for batch in loader(1):  # imports, threads, codecs
    pass
del batch
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
base, peaks = resident("VmRSS"), []
for number, batch in enumerate(loader(batches), 1):
    if number in (batches // 2, batches):
        peaks.append(resident("VmHWM") - base)
held = sum(value.nbytes for value in batch.values())
print(json.dumps([*peaks, held, gs.stats().bytes]))
"""


def sparse_scene(path, side, tile, west):
    """An uncompressed scene of 16-bit zeros that takes no room on the disk."""
    tiles, size = (-(-side // tile)) ** 2, 2 * tile**2
    keys = struct.pack("<16H", 1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32632)
    first = 2**16 + 12 * tiles
    blobs = {
        324: (16, struct.pack(f"<{tiles}Q", *range(first, first + tiles * size, size))),
        325: (4, struct.pack(f"<{tiles}L", *[size] * tiles)),
        33550: (12, struct.pack("<3d", 10, 10, 0)),
        33922: (12, struct.pack("<6d", 0, 0, 0, west, 5_300_000, 0)),
        34735: (3, keys),
    }
    numbers = {256: side, 257: side, 258: 16, 259: 1, 262: 1, 277: 1, 284: 1, 322: tile, 323: tile}
    at = 16 + 8 + 20 * (len(numbers) + len(blobs)) + 8
    width = {3: 2, 4: 4, 12: 8, 16: 8}
    with path.open("wb") as file:
        file.write(struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, len(numbers) + len(blobs)))
        for tag, value in numbers.items():
            file.write(struct.pack("<HHQQ", tag, 4, 1, value))
        for tag, (kind, blob) in blobs.items():
            file.write(struct.pack("<HHQQ", tag, kind, len(blob) // width[kind], at))
            at += len(blob)
        file.write(bytes(8) + b"".join(blob for _, blob in blobs.values()))
        file.truncate(first + tiles * size)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("side", "tile", "size", "chips", "batches"),
    [(4096, 256, 128, 4, 500), (8192, 1024, 512, 12, 16)],
    ids=["500 batches of many scenes", "batches that each exceed the budget"],
)
def test_peak_memory_is_the_budgets(tmp_path, side, tile, size, chips, batches):
    for number in range(40):
        sparse_scene(tmp_path / f"{number}.tif", side, tile, 600_000 + 20.0 * side * number)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), *map(json.dumps, (size, chips, batches, BUDGET))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    half, peak, held, read = json.loads(done.stdout)
    budget = sum(BUDGET.values()) + 2 * held  # the batch in use, and the one that is due
    assert read > 3 * budget
    assert peak < 1.2 * budget
    assert peak - half < 0.1 * budget
