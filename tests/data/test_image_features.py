"""The linear probe, and features from pixels."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from pictures import blobs

from difformer.data.features import (
    hog_features,
    linear_probe,
    load_features,
    pca_features,
    probe_table,
    shrink_images,
)

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
