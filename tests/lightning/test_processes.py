"""Real processes with gloo: what ranks share, what a killed run goes on with, what they write together."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio

SCRIPT = Path(__file__).with_name("processes.py")
BATCHES, EPOCHS = 13, 3


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The results of all jobs by name, a list of each rank's; and the folder they ran in."""
    folder = tmp_path_factory.mktemp("processes")
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "results.json").read_text()), folder


def epochs(ranks, epoch):
    """Each rank's batches of an epoch."""
    return [[tuple(map(tuple, b["places"])) for b in rank["seen"] if b["epoch"] == epoch] for rank in ranks]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_ranks_share_an_epoch(outcome, ranks, epoch):
    results, _ = outcome
    (whole,) = epochs(results["train-1"], epoch)
    shares = epochs(results[f"train-{ranks}"], epoch)
    each = -(-BATCHES // ranks)
    assert [len(share) for share in shares] == [each] * ranks, "as many each"
    order = [batch for step in zip(*shares, strict=True) for batch in step]
    assert order[:BATCHES] == whole, "the same order whatever the number of ranks"
    assert order[BATCHES:] == whole[: each * ranks - BATCHES], "the first again, so that all have as many"
    seen = {batch for share in shares for batch in share}
    assert seen == set(whole), "together they see all of it"
    assert len(set(whole)) == BATCHES


def test_epochs_differ(outcome):
    results, _ = outcome
    seen = [set(epochs(results["train-1"], epoch)[0]) for epoch in range(EPOCHS)]
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]


@pytest.mark.parametrize("ranks", [2, 4])
def test_augmentation_does_not_depend_on_the_number_of_ranks(outcome, ranks):
    results, _ = outcome
    alone = {json.dumps(b["places"]): (b["pixels"], b["transform"]) for b in results["train-1"][0]["seen"]}
    shared = [b for rank in results[f"train-{ranks}"] for b in rank["seen"]]
    padding = EPOCHS * (-(-BATCHES // ranks) * ranks - BATCHES)
    differing = [b for b in shared if alone[json.dumps(b["places"])] != (b["pixels"], b["transform"])]
    assert len(differing) <= padding, "only a batch that is dealt again may be turned another way"


def test_tile_batches_are_dealt_by_whole_groups(outcome):
    results, _ = outcome
    for epoch in range(EPOCHS):
        (whole,) = epochs(results["tile-1"], epoch)
        shares = epochs(results["tile-2"], epoch)
        assert len(shares[0]) == len(shares[1])
        chips = [{chip for batch in share for chip in batch} for share in shares]
        assert chips[0] | chips[1] == {chip for batch in whole for chip in batch}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(outcome, ranks):
    results, _ = outcome
    assert results[f"codes-{ranks}"] == [-9] * ranks
    for whole, resumed in zip(results[f"train-{ranks}"], results[f"resumed-{ranks}"], strict=True):
        assert 9 % -(-BATCHES // ranks) > 0, "the checkpoint lies within an epoch"
        assert resumed["seen"] == whole["seen"][9:], "places, pixels and augmentations"
        assert resumed["weights"] == whole["weights"]
        assert resumed["steps"] == whole["steps"] == EPOCHS * -(-BATCHES // ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_identity_gives_back_every_scene(outcome, ranks):
    results, folder = outcome
    written = [rank["written"] for rank in results[f"predict-{ranks}"]]
    assert written == ([["a.tif", "b.tif", "c.tif"]] if ranks == 1 else [["a.tif", "c.tif"], ["b.tif"]])
    out = folder / f"p{ranks}" / f"written-{ranks}"
    assert sorted(path.name for path in out.iterdir()) == ["a.tif", "b.tif", "c.tif"]
    for name in ("a", "b", "c"):
        with rasterio.open(folder / "images" / f"{name}.tif") as source, rasterio.open(out / f"{name}.tif") as ours:
            assert np.array_equal(ours.read(), source.read())
            assert (ours.crs, ours.transform) == (source.crs, source.transform)
            assert ours.dataset_mask().all()


def test_a_trainer_that_injects_its_sampler_is_refused(outcome):
    results, _ = outcome
    for rank in results["refused-2"]:
        assert len(rank["messages"]) == 3
        assert all("use_distributed_sampler=False" in message for message in rank["messages"])


def test_one_rank_estimates_for_all(outcome):
    results, _ = outcome
    first, second = results["estimate-2"]
    assert first["state"] == second["state"]
    assert len(first["state"]["mean"]) == 2
