import numpy as np
import pytest
import torch

from geostream import ConfigError, concat_samples, merge_samples, stack_samples, unbind_samples

PLACE = {"bounds": torch.arange(9.0, dtype=torch.float64), "transform": torch.arange(9.0, dtype=torch.float64)}


def image(values, **more):
    return {**PLACE, "image": torch.as_tensor(values), **more}


def test_stack_and_unbind_are_each_other_s_inverse():
    samples = [{**PLACE, "image": torch.full((2, 3, 4), float(i)), "name": f"s{i}"} for i in range(3)]
    batch = stack_samples(samples)
    assert batch["image"].shape == (3, 2, 3, 4)
    assert batch["bounds"].shape == (3, 9)
    assert batch["name"] == ["s0", "s1", "s2"]
    for sample, back in zip(samples, unbind_samples(batch), strict=True):
        assert sample.keys() == back.keys()
        assert torch.equal(sample["image"], back["image"])


def test_stacking_different_sizes_says_which_key():
    with pytest.raises(ConfigError, match="'image' has the shapes"):
        stack_samples([{"image": torch.zeros(1, 2, 2)}, {"image": torch.zeros(1, 3, 2)}])


def test_concat_joins_channels_and_keeps_one_place():
    a, b = image(np.ones((2, 4, 4), np.uint16)), image(np.full((3, 4, 4), 2, np.uint16), mask=torch.zeros(4, 4))
    joined = concat_samples([a, b])
    assert joined["image"].shape == (5, 4, 4)
    assert joined["image"].dtype == torch.uint16
    assert joined["bounds"].shape == joined["transform"].shape == (9,)
    assert joined["mask"].shape == (4, 4)


def test_concat_makes_channels_of_masks_and_dates_stay_an_axis():
    masks = concat_samples([{"mask": torch.zeros(4, 5)}, {"mask": torch.ones(4, 5)}, {"mask": torch.ones(2, 4, 5)}])
    assert masks["mask"].shape == (4, 4, 5)
    series = concat_samples([{"image": torch.zeros(6, 2, 4, 5)}, {"image": torch.zeros(6, 3, 4, 5)}])
    assert series["image"].shape == (6, 5, 4, 5)


def test_concat_is_valid_where_all_are_and_skipped_where_any_is():
    a = {"mask_valid": torch.tensor([[[True, True, False]]]), "skipped": torch.tensor(data=False)}
    b = {"mask_valid": torch.tensor([[[True, False, False]]]), "skipped": torch.tensor(data=True)}
    joined = concat_samples([a, b])
    assert joined["mask_valid"].tolist() == [[[True, False, False]]]
    assert joined["skipped"].item() is True


def test_merge_fills_holes_by_validity_not_by_size():
    a = image([[[5.0, 0.0, -1.0]]], mask_valid=torch.tensor([[[True, True, False]]]))
    b = image([[[9.0, 9.0, 3.0]]], mask_valid=torch.tensor([[[True, True, True]]]))
    merged = merge_samples([a, b])
    assert merged["image"].tolist() == [[[5.0, 0.0, 3.0]]]
    assert merged["mask_valid"].all()
    assert merged["bounds"].shape == (9,)


def test_merge_without_validity_takes_zeros_for_holes():
    assert merge_samples([image([[[5.0, 0.0]]]), image([[[9.0, 9.0]]])])["image"].tolist() == [[[5.0, 9.0]]]
    mixed = merge_samples([image([[[5, 0]]]), image([[[9, 9]]], mask_valid=torch.tensor([[[True, False]]]))])
    assert mixed["image"].tolist() == [[[5, 0]]]
    assert mixed["mask_valid"].tolist() == [[[True, False]]]


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (3, 4, 4), (3, 2, 4, 4)])
def test_merge_takes_masks_and_series_of_every_shape(shape):
    valid = torch.rand(1, 4, 4) > 0.5
    if len(shape) == 4:
        valid = valid.expand(3, 1, 4, 4)
    one, two = torch.ones(shape, dtype=torch.int32), torch.full(shape, 2, dtype=torch.int32)
    merged = merge_samples([{"mask": one, "mask_valid": valid}, {"mask": two, "mask_valid": torch.ones_like(valid)}])[
        "mask"
    ]
    expected = torch.where(valid if len(shape) > 2 else valid[0], one, two)
    assert torch.equal(merged, expected)


def test_merge_takes_unsigned_types():
    a = image(np.array([[[1, 0]]], np.uint16), mask_valid=torch.tensor([[[True, False]]]))
    b = image(np.array([[[7, 60000]]], np.uint16), mask_valid=torch.tensor([[[True, True]]]))
    merged = merge_samples([a, b])["image"]
    assert merged.dtype == torch.uint16
    assert merged.tolist() == [[[1, 60000]]]


def test_merge_leaves_its_samples_alone_and_refuses_other_shapes():
    a, b = image([[[0.0, 1.0]]]), image([[[2.0, 2.0]]])
    merge_samples([a, b])
    assert a["image"].tolist() == [[[0.0, 1.0]]]
    with pytest.raises(ConfigError, match="same shape"):
        merge_samples([a, image([[[2.0, 2.0, 2.0]]])])


def test_samples_of_a_batch_are_parts_of_one_tensor_and_stack_without_a_copy(tmp_path):
    from geostream.dataset import RasterDataset
    from geostream.testing.rasters import write_cog

    dataset = RasterDataset(write_cog(tmp_path / "a.tif", shape=(256, 256), count=3, blocksize=64, overviews=False))
    x, y, _ = dataset.bounds
    step = x.step * 64
    queries = [(slice(x.start + i * step, x.start + (i + 1) * step), slice(y.stop - step, y.stop)) for i in range(4)]
    samples = dataset.__getitems__(queries)
    batch = stack_samples(samples)
    assert batch["image"].data_ptr() == samples[0]["image"].data_ptr()
    assert batch["image"].shape == (4, 3, 64, 64)
    for sample, query in zip(batch["image"], queries, strict=True):
        assert torch.equal(sample, dataset[query]["image"])
    assert torch.equal(stack_samples(samples[1:])["image"], batch["image"][1:])
    assert torch.equal(stack_samples(samples[::-1])["image"], batch["image"].flip(0))


def test_memory_of_a_batch_is_used_again_only_once_nobody_holds_it():
    from geostream.buffers import BufferPool

    pool = BufferPool(limit=3000)
    first = pool.take(1000)
    address = first.ctypes.data
    view = torch.from_numpy(first.view(np.float32).reshape(10, 25))[3]
    del first
    assert pool.take(1000).ctypes.data != address
    del view
    assert pool.take(1000).ctypes.data == address
    big = pool.take(5000)
    del big  # beyond the limit: not kept
    assert pool.take(1000).ctypes.data == address


def series(days, value, valid=True):
    return {
        "image": torch.full((len(days), 1, 2, 2), value, dtype=torch.float32),
        "mask_valid": torch.full((len(days), 1, 2, 2), valid),
        "dates": torch.tensor(days, dtype=torch.float64),
        "bounds": torch.zeros(9),
    }


def test_series_are_merged_date_by_date():
    first, second = series([1, 3], 5), series([1, 2], 8)
    first["mask_valid"][0, 0, 0] = False
    merged = merge_samples([first, second])
    assert merged["dates"].tolist() == [1, 2, 3]
    assert merged["image"][:, 0].tolist() == [[[8, 8], [5, 5]], [[8, 8], [8, 8]], [[5, 5], [5, 5]]]
    assert merged["mask_valid"].all()
    assert merged["bounds"].shape == (9,)
    only = merge_samples([first])
    assert torch.equal(only["image"], first["image"])


def test_a_series_and_a_lone_mask_keep_their_shapes():
    merged = merge_samples([series([1, 3], 5), {"mask": torch.ones(2, 2)}])
    assert merged["image"].shape == (2, 1, 2, 2)
    assert merged["mask"].shape == (2, 2)
    assert merged["dates"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (torch.uint16, torch.uint8, torch.uint16),
        (torch.uint16, torch.int16, torch.int32),
        (torch.uint32, torch.uint8, torch.uint32),
        (torch.float16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.uint16, torch.float32, torch.float32),
    ],
)
def test_merged_types_hold_both(ours, theirs, both):
    one = {"image": torch.ones(1, 2, 2).to(ours), "mask_valid": torch.tensor([[[True, False], [True, False]]])}
    other = {"image": torch.full((1, 2, 2), 7).to(theirs), "mask_valid": torch.ones(1, 2, 2, dtype=torch.bool)}
    merged = merge_samples([one, other])["image"]
    assert merged.dtype == both
    assert merged.float().tolist() == [[[1, 7], [1, 7]]]


def test_one_validity_stands_for_all_dates_of_a_series():
    plane, dates = torch.rand(1, 4, 4) > 0.3, torch.rand(3, 1, 4, 4) > 0.3
    for pair in ((plane, dates), (dates, plane)):
        found = concat_samples([{"mask_valid": valid} for valid in pair])["mask_valid"]
        assert torch.equal(found, plane & dates)
    with pytest.raises(ConfigError, match="shapes"):
        concat_samples([{"mask_valid": dates}, {"mask_valid": dates[:2]}])


def test_what_transforms_add_is_filled_too():
    left = torch.tensor([[[True, False], [True, False]]])
    one = {"image": torch.ones(1, 2, 2), "depth": torch.ones(2, 2), "n": torch.tensor(3), "mask_valid": left}
    other = {
        "image": torch.full((1, 2, 2), 7),
        "depth": torch.full((2, 2), 9),
        "n": torch.tensor(4),
        "mask_valid": ~left,
    }
    merged = merge_samples([one, other])
    assert merged["depth"].tolist() == [[1, 9], [1, 9]]
    assert merged["n"] == 3
    series_ = [
        {key: part[key][None] for key in part if key != "n"} | {"dates": torch.zeros(1, dtype=torch.float64)}
        for part in (one, other)
    ]
    assert merge_samples(series_)["depth"].tolist() == [[[1, 9], [1, 9]]]
