import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from difformer.data.features import (
    ResNet18,
    SimCLRConfig,
    ViewConfig,
    encode,
    hog_features,
    linear_probe,
    load_encoder,
    load_features,
    nt_xent,
    pca_features,
    probe_table,
    random_views,
    save_encoder,
    save_features,
    shrink_images,
    train_simclr,
)
from difformer.data.features.augment import LUMA, crop_and_flip, hue_rotation, recolour
from difformer.data.features.config import learning_rate_at

STILL = ViewConfig(scale=(1, 1), aspect=(1, 1), flip=0, jitter=0, grayscale=0)


def blobs(n=64, side=16, seed=0):
    """Two classes of noisy images: red above, or blue above."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images = rng.integers(60, 120, size=(n, side, side, 3))
    images[labels == 0, : side // 2, :, 0] += 100
    images[labels == 1, : side // 2, :, 2] += 100
    return images.astype(np.uint8), labels


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n=8, side=12, seed=0):
    return torch.rand(n, 3, side, side, generator=generator(seed), dtype=torch.float64)


# --- the network -----------------------------------------------------------------------------------------------------


def test_resnet18_is_the_one_of_the_literature():
    network = ResNet18()
    assert network.feature_dim == 512
    # 11,173,962 parameters are those of the CIFAR ResNet-18 with a ten-class layer of 5,130.
    assert sum(p.numel() for p in network.parameters()) == 11_173_962 - 5_130
    assert sum(isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3) for m in network.modules()) == 17


def test_resolution_falls_by_eight_and_features_are_the_mean_over_positions():
    network = ResNet18(width=4).eval()
    x = pictures(2, 32).float()
    maps = network.blocks(F.relu(network.norm(network.stem(x))))
    assert maps.shape == (2, 32, 4, 4)
    torch.testing.assert_close(network(x), maps.flatten(2).mean(2))


def test_width_must_be_positive():
    with pytest.raises(ValueError, match="width must be at least 1"):
        ResNet18(width=0)


# --- the loss --------------------------------------------------------------------------------------------------------


def test_nt_xent_is_its_equation():
    z = torch.randn(10, 3, generator=generator(), dtype=torch.float64)
    unit = z / z.norm(dim=1, keepdim=True)
    expected = 0.0
    for i in range(10):
        scores = [math.exp(float(unit[i] @ unit[j]) / 0.3) if j != i else 0.0 for j in range(10)]
        expected -= math.log(scores[(i + 5) % 10] / sum(scores)) / 10
    assert float(nt_xent(z, temperature=0.3)) == pytest.approx(expected, rel=1e-5)


def test_nt_xent_does_not_change_with_the_length_of_projections():
    z = torch.randn(8, 4, generator=generator())
    torch.testing.assert_close(nt_xent(z), nt_xent(z * torch.linspace(0.1, 9, 8)[:, None]))


@pytest.mark.parametrize("rows", [3, 2])
def test_nt_xent_needs_two_views_of_two_images(rows):
    with pytest.raises(ValueError, match="two views of at least two images"):
        nt_xent(torch.zeros(rows, 4))


# --- views -----------------------------------------------------------------------------------------------------------


def test_a_view_without_change_is_the_image():
    images = pictures()
    torch.testing.assert_close(random_views(images, STILL, generator=generator()), images)


def test_views_depend_on_the_generator_alone():
    images = pictures().float()
    first = random_views(images, ViewConfig(), generator=generator(3))
    torch.manual_seed(99)
    torch.testing.assert_close(first, random_views(images, ViewConfig(), generator=generator(3)), rtol=0, atol=0)
    assert (first - random_views(images, ViewConfig(), generator=generator(4))).abs().max() > 0.1
    assert first.min() >= 0
    assert first.max() <= 1


def test_images_of_a_batch_get_views_of_their_own():
    views = random_views(pictures(1).expand(6, -1, -1, -1), ViewConfig(), generator=generator())
    assert torch.cdist(views.flatten(1), views.flatten(1)).add(torch.eye(6)).min() > 0.1


def test_flip_mirrors_left_and_right():
    images = pictures()
    config = ViewConfig(scale=(1, 1), aspect=(1, 1), flip=1, jitter=0, grayscale=0)
    torch.testing.assert_close(crop_and_flip(images, config, generator=generator()), images.flip(3))


def test_a_crop_reads_its_rectangle():
    """On images whose red is the column and whose green is the row, a crop shows where it was taken from."""
    side = 32
    line = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    ramp = torch.stack([line.expand(side, side), line[:, None].expand(side, side), torch.zeros(side, side)])
    config = ViewConfig(scale=(0.25, 0.25), aspect=(1, 1), flip=0)
    views = crop_and_flip(ramp.expand(200, -1, -1, -1), config, generator=generator())
    # A quarter of the area is half a side: neighbouring pixels of the view are half a pixel of the image apart.
    inner = views[:, :, 4:-4, 4:-4]  # the outermost may lie beyond the last pixel's centre, where the border repeats
    torch.testing.assert_close(inner[:, 0].diff(dim=2), torch.full_like(inner[:, 0, :, 1:], 0.5 / side))
    torch.testing.assert_close(inner[:, 1].diff(dim=1), torch.full_like(inner[:, 1, 1:], 0.5 / side))
    centre = views[:, :2, side // 2 - 1 : side // 2 + 1, side // 2 - 1 : side // 2 + 1].mean(dim=(2, 3))
    assert 0.25 <= centre.min() < 0.3  # centres fill all that leaves the crop inside
    assert 0.7 < centre.max() <= 0.75


def test_colour_jitter_is_its_four_steps():
    """The one affine map against brightness, contrast, saturation and hue made one after the other."""
    images = 0.3 + 0.2 * pictures(5)
    config = ViewConfig(brightness=0.2, contrast=0.3, saturation=0.4, hue=0.05, jitter=1, grayscale=0)
    got = recolour(images, config, generator=generator(7))
    source = generator(7)

    def draw(extent):
        return extent * (2 * torch.rand(5, generator=source, dtype=torch.float64) - 1).view(5, 1, 1, 1)

    torch.rand(5, generator=source, dtype=torch.float64)  # whether there is jitter at all
    b, c, s, turn = 1 + draw(0.2), 1 + draw(0.3), 1 + draw(0.4), 2 * math.pi * draw(0.05)
    luma = torch.tensor(LUMA, dtype=torch.float64).view(1, 3, 1, 1)
    x = b * images
    x = c * x + (1 - c) * (luma * x).sum(1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    x = s * x + (1 - s) * (luma * x).sum(1, keepdim=True)
    x = torch.einsum("bij,bjhw->bihw", hue_rotation(turn.flatten()), x)
    assert 0 < x.min() < x.max() < 1  # nothing cut, so that the comparison is of the whole map
    torch.testing.assert_close(got, x)


def test_hue_rotation_turns_red_to_green_and_leaves_grey():
    third = hue_rotation(torch.tensor([2 * math.pi / 3, 0.7], dtype=torch.float64))
    red, green, grey = (
        torch.eye(3, dtype=torch.float64)[0],
        torch.eye(3, dtype=torch.float64)[1],
        torch.ones(3).double(),
    )
    torch.testing.assert_close(third[0] @ red, green)
    torch.testing.assert_close(third @ grey, grey.expand(2, 3))
    torch.testing.assert_close(third @ third.mT, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))


def test_grayscale_gives_three_equal_channels():
    images = pictures()
    views = recolour(images, ViewConfig(jitter=0, grayscale=1), generator=generator())
    torch.testing.assert_close(views, views[:, :1].expand_as(views))
    torch.testing.assert_close(views[:, 0], torch.einsum("c,bchw->bhw", torch.tensor(LUMA).double(), images))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"scale": (0.0, 1.0)}, "scale must be an area range"),
        ({"scale": (0.5, 1.1)}, "scale must be an area range"),
        ({"aspect": (2.0, 1.0)}, "aspect must be a range"),
        ({"hue": 0.6}, r"hue must lie in \[0, 0.5\]"),
        ({"flip": 1.5}, "flip is a probability"),
    ],
)
def test_views_that_cannot_be_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        ViewConfig(**options)


# --- training --------------------------------------------------------------------------------------------------------

TINY = {"epochs": 4, "batch_size": 16, "width": 4, "warmup_epochs": 1, "device": "cpu", "progress": False}


def test_schedule_rises_then_falls_to_zero():
    config = SimCLRConfig(epochs=20, warmup_epochs=2, learning_rate=0.4)
    rates = [learning_rate_at(t, 5, config) for t in range(100)]
    assert rates[0] == pytest.approx(0.04)
    assert rates[9] == pytest.approx(0.4)
    assert rates[10] == pytest.approx(0.4)
    assert rates[55] == pytest.approx(0.2)
    assert rates[-1] < 1e-3
    assert np.all(np.diff(rates[10:]) < 0)


def test_training_lowers_the_loss_and_separates_classes():
    images, labels = blobs(64, side=8)
    result = train_simclr(images, **{**TINY, "epochs": 12, "views": ViewConfig(hue=0, grayscale=0)})
    assert len(result.losses) == 12
    assert result.losses[-1] < result.losses[0] - 0.3
    features = encode(result.encoder, images)
    assert features.shape == (64, 32)
    assert linear_probe(features, labels, per_class=4).mean > 0.9


class Interrupted(Exception):
    pass


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    images, _ = blobs(40, side=8)
    path = tmp_path / "run" / "simclr.pt"
    whole = train_simclr(images, **TINY)

    def interrupt(epoch, loss):
        if epoch == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_simclr(images, **TINY, checkpoint=path, checkpoint_every=2, on_epoch=interrupt)
    torch.rand(17)  # what else the process draws must not matter
    epochs = []
    resumed = train_simclr(
        images, **TINY, checkpoint=path, checkpoint_every=2, on_epoch=lambda epoch, _: epochs.append(epoch)
    )
    assert epochs == [3, 4]
    assert resumed.losses == whole.losses
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(tensor, resumed.encoder.state_dict()[name]), name
    assert [file.name for file in path.parent.iterdir()] == ["simclr.pt"]

    again = train_simclr(images, **TINY, checkpoint=path, on_epoch=lambda *_: pytest.fail("nothing is left to train"))
    assert again.losses == whole.losses
    assert again.images_per_second == 0


def test_the_seed_decides_and_the_global_state_does_not():
    images, _ = blobs(32, side=8)
    options = {**TINY, "epochs": 1}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train_simclr(images, **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert train_simclr(images, **options).losses == first.losses
    assert train_simclr(images, **options, seed=1).losses != first.losses


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"temperature": 0.5}, "temperature is 0.2 there and 0.5 here"),
        ({"views": ViewConfig(flip=0)}, "views is"),
        ({"epochs": 2}, "epochs is 1 there and 2 here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, complaint):
    images, _ = blobs(16, side=8)
    path = tmp_path / "simclr.pt"
    train_simclr(images, **{**TINY, "epochs": 1}, checkpoint=path)
    with pytest.raises(ValueError, match=complaint):
        train_simclr(images, **{**TINY, "epochs": 1, **change}, checkpoint=path)


def test_a_checkpoint_of_other_images_or_a_broken_one_is_refused(tmp_path):
    images, _ = blobs(16, side=8)
    path = tmp_path / "simclr.pt"
    options = {**TINY, "epochs": 1, "checkpoint": path}
    train_simclr(images, **options)
    with pytest.raises(ValueError, match="other images"):
        train_simclr(255 - images, **options)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"simclr\.pt cannot be read .* delete it"):
        train_simclr(images, **options)


def test_mixed_precision_stays_near_and_keeps_weights_in_float32():
    images, _ = blobs(32, side=8)
    options = {**TINY, "epochs": 1}
    exact, mixed = train_simclr(images, **options), train_simclr(images, **options, precision="bfloat16")
    assert {p.dtype for p in mixed.encoder.parameters()} == {torch.float32}
    assert mixed.losses != exact.losses
    assert mixed.losses == pytest.approx(exact.losses, rel=0.05)


def test_a_loss_that_is_lost_is_an_error():
    images, _ = blobs(32, side=8)
    with pytest.raises(FloatingPointError, match=r"lower learning_rate \(now 1e\+30\)"):
        train_simclr(images, **TINY, learning_rate=1e30)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"precision": "int8"}, "precision must be"),
    ],
)
def test_options_out_of_range_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        train_simclr(blobs(16, side=8)[0], **{**TINY, **options})


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (np.zeros((4, 3, 8, 8), np.uint8), r"transpose\(0, 2, 3, 1\)"),
        (np.zeros((4, 8, 8, 3), np.float32), "must be uint8 with values 0 to 255, got float32"),
        (np.zeros((0, 8, 8, 3), np.uint8), "empty"),
        (np.zeros((4, 8, 8), np.uint8), r"shape \[N, H, W, 3\], got \(4, 8, 8\)"),
        ([[1]], "numpy array"),
    ],
)
@pytest.mark.parametrize("function", [train_simclr, hog_features, pca_features])
def test_what_is_not_images_is_refused(function, images, complaint):
    with pytest.raises(ValueError, match=complaint):
        function(images)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_the_gpu(tmp_path):
    images, labels = blobs(256, side=32)
    options = {**TINY, "device": "cuda", "width": 16, "epochs": 20, "batch_size": 64}
    result = train_simclr(images, **options, views=ViewConfig(hue=0, grayscale=0), checkpoint=tmp_path / "c.pt")
    assert linear_probe(encode(result.encoder, images), labels, per_class=8).mean > 0.9
    on_cpu = encode(result.encoder, images, device="cpu", precision="float32")
    on_gpu = encode(result.encoder, images, device="cuda", precision="float32")
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


# --- encoding and files ----------------------------------------------------------------------------------------------


def test_encoding_does_not_depend_on_the_batch():
    encoder = ResNet18(width=4).train()
    images, _ = blobs(10)
    whole = encode(encoder, images)
    np.testing.assert_allclose(encode(encoder, images, batch_size=3), whole, rtol=1e-4, atol=1e-5)
    half = encode(encoder, images, dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, whole, rtol=1e-3, atol=1e-3)


def test_features_come_back_with_how_they_were_made(tmp_path):
    features = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float16)
    path = save_features(tmp_path / "deep" / "f.npz", features, method="pca", labels=np.arange(5), metadata={"dim": 3})
    back, metadata = load_features(path)
    np.testing.assert_array_equal(back, features)
    assert back.dtype == np.float16
    assert metadata == {"method": "pca", "dim": 3}
    assert np.load(path, allow_pickle=False)["labels"].tolist() == [0, 1, 2, 3, 4]


def test_metadata_of_a_run_can_be_kept(tmp_path):
    images, _ = blobs(16, side=8)
    result = train_simclr(images, **{**TINY, "epochs": 1})
    features = encode(result.encoder, images)
    path = save_features(tmp_path / "f.npz", features, method="simclr", metadata=result.metadata())
    assert load_features(path)[1]["config"]["temperature"] == 0.2
    twin = load_encoder(save_encoder(tmp_path / "e.safetensors", result.encoder, metadata=result.metadata()))
    np.testing.assert_array_equal(encode(twin, images), features)


@pytest.mark.parametrize(
    ("features", "options", "complaint"),
    [
        (np.zeros(3), {}, r"shape \[N, D\]"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), {}, "NaN or infinity in 1 of 2 rows"),
        (np.zeros((3, 2)), {"labels": np.zeros(4)}, "labels has 4 entries but features has 3 rows"),
    ],
)
def test_features_that_make_no_sense_are_not_written(tmp_path, features, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        save_features(tmp_path / "f.npz", features, method="own", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_features(tmp_path / "f.npz", np.ones((2, 2)), method="own")
    old = path.read_bytes()

    def half(file, **arrays):
        file.write(b"half")
        raise Interrupted

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(Interrupted):
        save_features(path, np.zeros((2, 2)), method="own")
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


# --- the probe -------------------------------------------------------------------------------------------------------


def test_the_probe_tells_separable_classes_and_guesses_at_noise():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 100)
    noise = rng.normal(size=(400, 8))
    table = probe_table(noise + 8 * np.eye(4, 8)[labels], labels, per_class=(2, 20), draws=3)
    assert table[20].mean > 0.98
    assert table[20].mean >= table[2].mean
    assert linear_probe(noise, labels, per_class=20).mean == pytest.approx(0.25, abs=0.08)
    assert linear_probe(noise, labels, per_class=20) == linear_probe(noise, labels, per_class=20)
    assert linear_probe(noise, labels, per_class=20) != linear_probe(noise, labels, per_class=20, seed=1)


def test_the_probe_never_tests_on_what_it_was_given():
    """Features that are the instance's number, one-hot: all that can be learned is useless elsewhere."""
    labels = np.arange(40) % 2
    result = linear_probe(np.eye(40), labels, per_class=10, draws=4)
    assert result.mean == pytest.approx(0.5, abs=0.05)


def test_the_probe_says_when_labels_run_out():
    with pytest.raises(ValueError, match="leaves no instance of class 1 to test on: it has 3 in all"):
        linear_probe(np.zeros((10, 2)), np.array([0] * 7 + [1] * 3), per_class=3)


# --- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("n", [90, 120])  # fewer and more images than the 108 values of each
def test_pca_is_that_of_scikit_learn(n, whiten):
    from sklearn.decomposition import PCA

    images, _ = blobs(n, side=6)
    expected = PCA(5, whiten=whiten, svd_solver="full").fit_transform(images.reshape(n, -1) / 255.0)
    got = pca_features(images, 5, whiten=whiten)
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got, expected * signs, atol=1e-4)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, pca_features(images, 5, whiten=whiten))


def test_pca_refuses_more_directions_than_there_are():
    with pytest.raises(ValueError, match="dim must lie between 1 and 9"):
        pca_features(blobs(10, side=6)[0], 10)


def hog_by_hand(image, cell, bins):
    """One image, pixel by pixel."""
    grey = image.astype(np.float64).mean(-1) / 255
    height, width = grey.shape
    cells = np.zeros((height // cell, width // cell, bins))
    for i in range(height):
        for j in range(width):
            dx = (grey[i, min(j + 1, width - 1)] - grey[i, max(j - 1, 0)]) / 2
            dy = (grey[min(i + 1, height - 1), j] - grey[max(i - 1, 0), j]) / 2
            place = math.atan2(dy, dx) % math.pi / math.pi * bins
            low = math.floor(place)
            cells[i // cell, j // cell, low % bins] += math.hypot(dx, dy) * (1 - place + low)
            cells[i // cell, j // cell, (low + 1) % bins] += math.hypot(dx, dy) * (place - low)
    out = []
    for i in range(height // cell - 1):
        for j in range(width // cell - 1):
            block = cells[i : i + 2, j : j + 2].ravel()
            block = np.minimum(block / math.sqrt(block @ block + 1e-6), 0.2)
            out.append(block / math.sqrt(block @ block + 1e-6))
    return np.concatenate(out)


@pytest.mark.parametrize(("cell", "bins"), [(4, 9), (6, 8)])
def test_hog_is_its_definition(cell, bins):
    images, _ = blobs(3, side=24)
    got = hog_features(images, cell=cell, bins=bins)
    np.testing.assert_allclose(got, np.stack([hog_by_hand(i, cell, bins) for i in images]), atol=2e-5)


def test_hog_does_not_see_lighting():
    images, _ = blobs(4, side=16)
    features = hog_features(images // 2, cell=4)
    np.testing.assert_allclose(hog_features(images // 2 + 40, cell=4), features, atol=1e-5)
    np.testing.assert_allclose(hog_features(images // 2 * 2, cell=4), features, atol=1e-3)


def test_hog_cells_must_tile_the_image():
    with pytest.raises(ValueError, match="cells of side 5 must tile the 16×16 images"):
        hog_features(blobs(2)[0], cell=5)


def test_shrinking_takes_the_mean_of_areas():
    images, _ = blobs(3, side=12)
    small = shrink_images(images, 4)
    expected = images.reshape(3, 4, 3, 4, 3, 3).astype(float).mean(axis=(2, 4))
    np.testing.assert_allclose(small, expected, atol=0.51)
    with pytest.raises(ValueError, match="side must lie between 1 and 12"):
        shrink_images(images, 13)


# --- real images -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar10():
    path = Path(os.environ.get("DIFFORMER_DATA", "")) / "cifar10" / "cifar10_15000.npz"
    if not os.environ.get("DIFFORMER_DATA") or not path.exists():
        pytest.skip("set DIFFORMER_DATA to a folder with cifar10/cifar10_15000.npz")
    with np.load(path, allow_pickle=False) as file:
        return path.parent, file["images"], file["labels"]


def test_published_features_reach_their_published_accuracy(cifar10):
    folder, _, labels = cifar10
    features, _ = load_features(folder / "cifar10_simclr.npz")
    assert linear_probe(features, labels, per_class=100, draws=1).mean == pytest.approx(0.767, abs=0.015)


def test_pixel_features_of_real_images_beat_chance_and_not_simclr(cifar10):
    _, images, labels = cifar10
    images, labels = images[:1500], labels[:1500]
    hog = linear_probe(hog_features(images), labels, per_class=50, draws=1).mean
    pca = linear_probe(pca_features(images[:, ::4, ::4], 32), labels, per_class=50, draws=1).mean
    assert 0.3 < hog < 0.5
    assert 0.2 < pca < 0.4
