"""Small images for tests."""

import numpy as np
import torch

from benchmarks.simclr import ViewConfig

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
