"""What happens to a batch on the device: cast, normalised, augmented, masks along with images."""

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import numpy as np
import pytest
import torch

from geostream.augment import augment, filled, floating, normalise, normalises, seeded
from geostream.errors import ConfigError


def batch(**extra):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 200, (4, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return {
        "image": image,
        "mask": image[:, 0].to(torch.int64) * 3,  # each label says which pixel of the image it belongs to
        "mask_valid": image[:, :1] % 2 == 0,
        "bounds": torch.rand(4, 9, dtype=torch.float64),
        "transform": torch.rand(4, 9, dtype=torch.float64),
        "where": ["a", "b", "c", "d"],
        **extra,
    }


def moves(**kwargs):
    return K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5), K.RandomRotation90((0, 3), p=0.7), **kwargs
    )


def aligned(result):
    image, mask, valid = result["image"], result["mask"], result["mask_valid"]
    same = torch.equal(image[:, 0].round().to(torch.int64) * 3, mask)
    return same and torch.equal(image[:, :1].round().to(torch.int64) % 2 == 0, valid)


@pytest.mark.parametrize("keys", [None, ["input"], ["input", "mask"]])
def test_images_and_masks_move_together(keys):
    before = floating(batch())
    with seeded(1, 2, 3, device=torch.device("cpu")):
        after = augment(before, moves(data_keys=keys))
    assert not torch.equal(after["image"], before["image"])
    assert aligned(after)
    assert {key: (value.dtype, value.shape) for key, value in after.items() if key != "where"} == {
        key: (value.dtype, value.shape) for key, value in before.items() if key != "where"
    }
    assert after["where"] is before["where"]


@pytest.mark.parametrize("left_out", ["mask", "mask_valid"])
def test_the_alignment_test_notices_a_mask_that_stays(left_out):
    before = floating(batch())
    with seeded(1, 2, 3, device=torch.device("cpu")):
        after = augment(before, moves())
    assert not aligned({**after, left_out: before[left_out]})


@pytest.mark.parametrize("single", [K.RandomHorizontalFlip(p=1.0), K.ImageSequential(K.RandomHorizontalFlip(p=1.0))])
def test_a_lone_augmentation_moves_masks_too(single):
    before = floating(batch())
    after = augment(before, single)
    assert torch.equal(after["image"], before["image"].flip(-1))
    assert torch.equal(after["mask"], before["mask"].flip(-1))
    assert torch.equal(after["mask_valid"], before["mask_valid"].flip(-1))


def test_rotations_by_any_angle_keep_labels_whole():
    before = floating(batch())
    with seeded(5, device=torch.device("cpu")):
        after = augment(before, K.AugmentationSequential(K.RandomAffine(degrees=(20, 40), p=1.0)))
    labels = {int(v) for v in before["mask"].unique()} | {0}
    assert {int(v) for v in after["mask"].unique()} <= labels
    corners = after["mask_valid"][:, 0, 0, 0]
    assert not corners.any(), "what was turned in from outside is not valid"


@pytest.mark.parametrize(
    "labels", [[0, 7, 2**24 + 1, 2**40 + 3], [-(2**50) - 1, -1, 0, 2**62 + 1], [2**53 + 1, 5, 6, 9]]
)
def test_large_labels_stay_exact(labels):
    mask = torch.tensor(labels)[torch.arange(64).reshape(1, 8, 8) % 4]
    after = augment({"image": torch.zeros(1, 1, 8, 8), "mask": mask}, K.RandomHorizontalFlip(p=1.0))
    assert torch.equal(after["mask"], mask.flip(-1))
    turned = augment({"image": torch.zeros(1, 1, 8, 8), "mask": mask}, K.RandomAffine(degrees=(45, 45), p=1.0))
    assert set(turned["mask"].unique().tolist()) <= {*labels, 0}
    assert turned["mask"][0, 0, 0] == 0


def test_masks_may_have_channels_or_be_real_numbers():
    heights = torch.rand(4, 8, 8, dtype=torch.float64)
    layers = torch.arange(4 * 2 * 64).reshape(4, 2, 8, 8)
    after = augment(floating(batch(mask=heights, mask_layers=layers)), K.RandomVerticalFlip(p=1.0))
    assert torch.allclose(after["mask"], heights.flip(-2), atol=1e-6)
    assert after["mask"].dtype == torch.float64
    assert torch.equal(after["mask_layers"], layers.flip(-2))


def test_a_series_moves_as_one_and_samples_differ():
    frames = torch.randint(0, 1000, (16, 5, 3, 8, 8)).float()
    mask = frames[:, 0, 0].long()
    with seeded(3, device=torch.device("cpu")):
        after = augment({"image": frames, "mask": mask}, moves())
    assert after["image"].shape == frames.shape
    image = after["image"].round()  # kornia turns by interpolation
    assert not torch.equal(after["mask"], mask)
    assert torch.equal(image[:, 0, 0].long(), after["mask"])
    for sample, moved in zip(frames, image, strict=True):
        turns = [torch.rot90(m, k, (-2, -1)) for m in (sample, sample.flip(-1)) for k in range(4)]
        assert sum(torch.equal(moved, turn) for turn in turns) == 1, "all frames turn alike"
    assert len({torch.equal(sample, moved) for sample, moved in zip(frames, image, strict=True)}) == 2


def test_a_series_changes_colours_as_one():
    frames = torch.rand(8, 5, 3, 8, 8)
    valid = frames[:, :, :1] > 0.5
    aug = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.ImageSequential(K.RandomGamma((0.5, 0.9), p=0.5)), K.RandomVerticalFlip(p=0.5)
    )
    with seeded(3, device=torch.device("cpu")):
        after = augment({"image": frames, "mask_valid": valid}, aug)
    assert after["image"].shape == frames.shape
    changed = 0
    for sample, image, moved in zip(frames, after["image"], after["mask_valid"], strict=True):
        assert moved.shape == (5, 1, 8, 8)
        exponents = image.log() / _turned_like(sample, image).log()
        changed += bool((exponents.mean() - 1).abs() > 1e-3)
        assert exponents.std() < 1e-3, "all frames of a sample by one exponent"
        assert torch.equal(moved, _turned_like(sample, image)[:, :1] > 0.5)
    assert 0 < changed < 8, "and not all samples"
    scale = K.Normalize(mean=torch.tensor([0.1, 0.2, 0.3]), std=torch.tensor([1.0, 2.0, 4.0]))
    scaled = augment({"image": frames}, scale)["image"]
    assert torch.allclose(scaled[:, 3, 2], (frames[:, 3, 2] - 0.3) / 4, atol=1e-6)


def _turned_like(sample, image):
    """The flip of ``sample`` whose values are in the order of those of ``image``."""
    flips = [sample, sample.flip(-1), sample.flip(-2), sample.flip(-1, -2)]
    order = image.flatten().argsort()
    return min(flips, key=lambda flip: (flip.flatten().argsort() != order).sum())


@pytest.mark.parametrize(
    "aug",
    [
        K.AugmentationSequential(K.RandomHorizontalFlip(), K.RandomBrightness(), random_apply=1),
        K.AugmentationSequential(K.RandomElasticTransform()),
    ],
)
def test_a_series_refuses_what_it_cannot_take(aug):
    with pytest.raises(ConfigError, match="series"):
        augment({"image": torch.rand(2, 5, 3, 8, 8)}, aug)


def placed(height=8, width=12, **extra):
    """Images that hold each pixel's own coordinates, in a grid of 10 m by 20 m."""
    transform = torch.tensor([10.0, 0.0, 5e5, 0.0, -20.0, 4e6, 0.0, 0.0, 1.0], dtype=torch.float64)
    bounds = torch.tensor([5e5, 5e5 + 10 * width, 10, 4e6 - 20 * height, 4e6, 20, 1.0, 2.0, 1], dtype=torch.float64)
    cols, rows = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    image = torch.stack([10 * cols, -20 * rows])
    return {
        "image": image.expand(6, 2, height, width).clone(),
        "transform": transform.repeat(6, 1),
        "bounds": bounds.repeat(6, 1),
        **extra,
    }


@pytest.mark.parametrize(
    "move",
    [
        K.RandomHorizontalFlip(p=0.5),
        K.RandomVerticalFlip(p=0.5),
        K.RandomRotation90((0, 3), p=0.8),
        K.RandomAffine(degrees=30, translate=(0.1, 0.2), scale=(0.8, 1.2), p=0.9),
        K.RandomCrop((5, 6), p=1.0),
        K.RandomResizedCrop((10, 10), scale=(0.3, 0.8), p=1.0),
        K.ImageSequential(K.RandomHorizontalFlip(p=0.5), K.RandomRotation(20.0, p=0.5)),
        K.AugmentationSequential(K.RandomVerticalFlip(p=1.0), K.RandomHorizontalFlip(p=1.0), random_apply=1),
    ],
    ids=lambda move: type(move).__name__,
)
def test_transform_and_bounds_follow_what_moves(move):
    """An image of coordinates says itself where its pixels lie: `transform` must say the same."""
    before = placed()
    inside = torch.ones(6, 1, 8, 12)
    with seeded(11, device=torch.device("cpu")):
        after = augment({**before, "mask_inside": inside}, move)
    height, width = after["image"].shape[-2:]
    for i in range(6):
        a, b, c, d, e, f, *_ = after["transform"][i].tolist()
        across, down = (torch.arange(side, dtype=torch.float64) + 0.5 for side in (width, height))
        cols, rows = torch.meshgrid(across, down, indexing="xy")
        whole = torch.nn.functional.avg_pool2d(after["mask_inside"][i], 3, stride=1, padding=1)[0] == 1
        assert whole.any()
        x, y = a * cols + b * rows + c - 5e5, d * cols + e * rows + f - 4e6
        assert torch.allclose(x[whole], after["image"][i, 0][whole].double(), atol=0.05)
        assert torch.allclose(y[whole], after["image"][i, 1][whole].double(), atol=0.05)
        xmin, xmax, _, ymin, ymax, _, *times = after["bounds"][i].tolist()
        corners = [(a * p + b * q + c, d * p + e * q + f) for p in (0, width) for q in (0, height)]
        assert (xmin, xmax) == pytest.approx((min(x for x, _ in corners), max(x for x, _ in corners)))
        assert (ymin, ymax) == pytest.approx((min(y for _, y in corners), max(y for _, y in corners)))
        assert times == [1, 2, 1]
    assert not torch.equal(after["transform"], before["transform"])
    assert (after["transform"].dtype, after["transform"].device.type) == (torch.float64, "cpu")


def test_flips_keep_bounds_to_the_last_bit():
    before = placed()
    before["transform"][:, [0, 2, 5]] += 0.1
    before["bounds"][:, [0, 3, 4]] += 0.1
    before["bounds"][:, 1] = before["bounds"][:, 0] + 12 * 10.1
    before["bounds"][:, 2] = 10.1
    after = augment(before, K.AugmentationSequential(K.RandomHorizontalFlip(p=1.0), K.RandomVerticalFlip(p=1.0)))
    assert torch.equal(after["bounds"], before["bounds"])
    assert after["transform"][0, [0, 4]].tolist() == [-10.1, 20]


def test_colours_leave_places_alone_and_deformations_remove_them():
    before = placed()
    bright = augment(before, K.RandomBrightness((0.5, 0.6), p=1.0))
    assert bright["transform"] is before["transform"]
    assert bright["bounds"] is before["bounds"]
    for deformation in (K.RandomElasticTransform(p=1.0), K.RandomPerspective(0.5, p=1.0), K.RandomThinPlateSpline(p=1)):
        assert sorted(augment(before, deformation)) == ["image"]


def test_odd_batches_are_refused():
    with pytest.raises(ConfigError, match="no image"):
        augment({"mask": torch.zeros(2, 8, 8)}, moves())
    with pytest.raises(ConfigError, match="shape"):
        augment({"image": torch.rand(2, 3, 8, 8), "mask": torch.zeros(2, 1, 1, 1, 8, 8)}, moves())


def test_other_callables_get_the_whole_batch():
    def stamp(batch):
        return {**batch, "seen": sorted(batch)}

    assert augment({"image": 1, "bounds": 2}, stamp)["seen"] == ["bounds", "image"]


def test_randomness_is_a_function_of_its_place_and_leaves_no_trace():
    before = floating(batch())
    state = torch.get_rng_state()

    def at(*place):
        with seeded(*place, device=torch.device("cpu")):
            return augment(before, moves())["image"]

    places = [(7, 0, 0), (7, 0, 1), (7, 1, 0), (8, 0, 0), (0, 7, 0), (70, 0)]
    results = [at(*place) for place in places]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert all(torch.equal(at(*place), result) for place, result in zip(places, results, strict=True))
    assert sum(torch.equal(a, b) for a in results for b in results) < 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.float64, torch.float32])
def test_images_become_floats_and_nothing_else_does(dtype):
    before = batch(image=torch.arange(2 * 3 * 4).reshape(2, 3, 2, 2).to(dtype))
    after = floating(before)
    assert after["image"].dtype == torch.float32
    assert after["image"].flatten().tolist() == list(range(24))
    assert all(after[key] is before[key] for key in before if key != "image")
    assert floating(before, torch.bfloat16)["image"].dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 5, 3, 4, 4)])
@pytest.mark.parametrize(
    ("mean", "std"), [(1.0, 2.0), ([1.0, 2, 3], 4), (torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))]
)
def test_normalisation_is_per_channel(shape, mean, std):
    image = torch.rand(shape)
    means, stds = (torch.as_tensor(v, dtype=torch.float32).expand(3)[:, None, None] for v in (mean, std))
    assert torch.allclose(normalise({"image": image}, mean, std)["image"], (image - means) / stds)


def test_bad_statistics_are_refused():
    image = {"image": torch.rand(2, 3, 4, 4)}
    with pytest.raises(ConfigError, match="2 values"):
        normalise(image, [1.0, 2.0], 1.0)
    with pytest.raises(ConfigError, match="zero"):
        normalise(image, 0.0, [1.0, 0.0, 1.0])


def test_augmentations_that_normalise_are_known():
    own = K.AugmentationSequential(K.Normalize(mean=0.0, std=1.0), K.RandomHorizontalFlip(), data_keys=None)
    assert normalises(own)
    assert not normalises(moves())
    assert not normalises(None)
    assert not normalises(lambda b: b)


def test_a_sequential_of_augmentations_moves_masks_as_well():
    before = floating(batch())
    with seeded(1, 2, 3, device=torch.device("cpu")):
        after = augment(before, torch.nn.Sequential(K.RandomHorizontalFlip(p=1.0), K.RandomVerticalFlip(p=1.0)))
    assert torch.equal(after["image"], before["image"].flip(-1, -2))
    assert aligned(after)


MOVING = ("image", "mask", "mask_valid")


def by_numpy(array, flip_columns=False, flip_rows=False, quarters=0):
    """(…, H, W) turned by NumPy."""
    turned = np.rot90(array, quarters, (-2, -1))
    turned = turned[..., ::-1] if flip_columns else turned
    return np.ascontiguousarray(turned[..., ::-1, :] if flip_rows else turned)


@pytest.mark.parametrize(
    ("transform", "reference"),
    [
        (K.RandomHorizontalFlip(p=1.0), {"flip_columns": True}),
        (K.RandomVerticalFlip(p=1.0), {"flip_rows": True}),
        *((K.RandomRotation90((k, k), p=1.0), {"quarters": k}) for k in (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("series", [False, True])
def test_the_augmented_batch_equals_numpys(transform, reference, series):
    """Every moving transform that the docs use, on images, labels and validity, of single images and of series."""
    before = floating(batch())
    if series:
        frames = torch.stack([before["image"], before["image"] + 1], 1)
        before |= {"image": frames, "mask_valid": torch.stack([before["mask_valid"], ~before["mask_valid"]], 1)}
    after = augment(before, K.AugmentationSequential(transform, data_keys=None, keepdim=True))
    for key in ("image", "mask", "mask_valid"):
        expected = by_numpy(before[key].numpy(), **reference)
        found = after[key].numpy()
        assert np.array_equal(found.round() if key == "image" else found, expected), key
        assert np.allclose(found, expected, atol=1e-3)
        assert after[key].dtype == before[key].dtype


def test_samples_flip_each_for_itself_and_wholly():
    before = floating(batch(image=torch.randint(0, 200, (32, 3, 8, 8)), mask_valid=torch.rand(32, 1, 8, 8) > 0.5))
    before["mask"] = before["image"][:, 0].long() * 3
    with seeded(1, device=torch.device("cpu")):
        after = augment(before, K.AugmentationSequential(K.RandomHorizontalFlip(p=0.5), data_keys=None))
    flipped = [
        all(np.array_equal(after[k][i], by_numpy(before[k][i].numpy(), flip_columns=True)) for k in MOVING)
        for i in range(32)
    ]
    kept = [all(torch.equal(after[k][i], before[k][i]) for k in MOVING) for i in range(32)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True)), "each either flipped in all or in nothing"
    assert 8 < sum(flipped) < 24


def test_noise_and_scales_equal_a_reference():
    """Every value-changing transform that the docs use: masks are left alone, and randomness is the place's."""
    before = floating(batch())
    noise = K.RandomGaussianNoise(std=0.05, p=1.0)
    with seeded(4, device=torch.device("cpu")):
        after = augment(before, noise)
    with seeded(4, device=torch.device("cpu")):
        expected = noise(before["image"])
    assert torch.equal(after["image"], expected)
    assert all(torch.equal(after[key], before[key]) for key in MOVING[1:])
    scaled = augment(before, K.AugmentationSequential(K.Normalize(0.0, 10_000.0), K.RandomHorizontalFlip(p=1.0)))
    assert np.allclose(scaled["image"], before["image"].numpy()[..., ::-1] / 10_000)


def test_holes_are_filled_by_validity_and_nan():
    image = torch.tensor([1.0, float("nan"), 3.0, 4.0]).reshape(1, 1, 2, 2).repeat(1, 2, 1, 1)
    valid = torch.tensor([True, True, False, True]).reshape(1, 1, 2, 2)
    found = filled({"image": image, "mask_valid": valid, "mask": image}, [7.0, 8.0])
    assert found["image"].flatten().tolist() == [1, 7, 7, 4, 1, 8, 8, 4]
    assert found["mask"] is image
    series = filled({"image": image[:, None], "mask_valid": valid[:, None]}, 0.0)
    assert series["image"].flatten().tolist() == [1, 0, 0, 4, 1, 0, 0, 4]
    assert filled({"image": image}, 0.0)["image"].flatten().tolist() == [1, 0, 3, 4, 1, 0, 3, 4]


@pytest.mark.parametrize(
    "mixture",
    [
        K.RandomMixUpV2(p=1.0),
        K.RandomCutMixV2(p=1.0, use_correct_lambda=True),
        K.RandomMosaic((8, 8), p=1.0),
        K.RandomJigsaw((2, 2), p=1.0),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_mixtures_take_images_alone_and_refuse_masks_by_name(mixture, wrapped):
    aug = K.AugmentationSequential(K.RandomHorizontalFlip(), mixture, data_keys=None) if wrapped else mixture
    for left_out in ("mask", "mask_valid"):
        before = {key: value for key, value in floating(batch()).items() if key != left_out}
        with pytest.raises(ConfigError, match=rf"{type(mixture).__name__} mixes images only.*mask.*whole batch"):
            augment(before, aug)
    before = {key: value for key, value in floating(batch()).items() if not key.startswith("mask")}
    after = augment(before, aug)
    assert after["image"].shape == before["image"].shape
    assert not torch.equal(after["image"], before["image"])
    assert not {"transform", "bounds"} & set(after)


def test_a_mixture_that_takes_masks_is_let_through():
    before = {"image": torch.rand(4, 3, 8, 8), "mask": torch.arange(4)[:, None, None].expand(4, 8, 8)}
    after = augment(before, K.RandomTransplantation(p=1.0))
    assert after["mask"].dtype == torch.int64
    assert after["mask"].unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [None, torch.zeros(1)])
def test_a_function_that_returns_no_batch_is_named(wrong):
    def mine(_):
        return wrong

    with pytest.raises(ConfigError, match=rf"mine returned a {type(wrong).__name__}.*whole batch"):
        augment(floating(batch()), mine)


@pytest.mark.parametrize("policy", [K.auto.TrivialAugment, lambda: K.auto.RandAugment(2, 5), K.auto.AutoAugment])
def test_policies_move_images_and_masks_together(policy):
    ramp = torch.arange(16.0)[None, None, :, None].expand(4, 3, 16, 16) / 16
    before = {"image": ramp.clone(), "mask": (ramp[:, 0] * 16).long(), "bounds": torch.rand(4, 9).double()}
    changed = 0
    for seed in range(8):
        with seeded(seed, device=torch.device("cpu")):
            after = augment(before, policy())
        assert (after["image"].shape, after["mask"].dtype) == (before["image"].shape, torch.int64)
        assert "bounds" not in after
        changed += not torch.equal(after["image"], before["image"])
    assert changed
