"""Features from pixels."""

import numpy as np
import pytest

from difformer.data.datasets.instances import pca_features, shrink_images


def blobs(n, side, seed=0):
    """Images of noise around a few colours."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (n, side, side, 3), dtype=np.uint8), np.arange(n) % 2


@pytest.mark.parametrize("n", [90, 120])  # fewer and more images than the 108 values of each
def test_pca_is_that_of_scikit_learn(n):
    from sklearn.decomposition import PCA

    images, _ = blobs(n, side=6)
    expected = PCA(5, svd_solver="full").fit_transform(images.reshape(n, -1) / 255.0)
    got = pca_features(images, 5)
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got, expected * signs, atol=1e-4)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, pca_features(images, 5))


def test_pca_refuses_more_directions_than_there_are():
    with pytest.raises(ValueError, match="dim must lie between 1 and 9"):
        pca_features(blobs(10, side=6)[0], 10)


def test_shrinking_takes_the_mean_of_areas():
    images, _ = blobs(3, side=12)
    small = shrink_images(images, 4)
    expected = images.reshape(3, 4, 3, 4, 3, 3).astype(float).mean(axis=(2, 4))
    np.testing.assert_allclose(small, expected, atol=0.51)
