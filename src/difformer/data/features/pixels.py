"""Features from pixels alone: no training, no randomness, no GPU. They are not SimCLR's, and are not called so.

**PCA**: the pixels' projection on the leading eigenvectors of their covariance.

**HOG**: gradients ∇I of the luminance are collected, cell by cell, in a histogram over their unsigned direction, each
gradient giving its length ‖∇I‖ to the two nearest bins in proportion; then every block of 2×2 cells is normalised, cut
at 0.2 and normalised again, so that neither lighting nor contrast matters, and no single edge outshouts the rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.data.features.images import check_images

Array = np.ndarray[Any, Any]

BLOCK = 2  # cells along a side of a block
CUT = 0.2
IMAGES_AT_A_TIME = 1000


def pca_features(images: Array, dim: int = 64, *, whiten: bool = False) -> Array:
    """Projections of the pixels on their leading principal directions.

    Args:
        images: ``[N, H, W, 3]`` uint8.
        dim: How many directions.
        whiten: Divide every column by its standard deviation.

    Returns:
        ``[N, dim]`` float32, columns in order of falling variance; of a direction's two signs the one is taken that
        makes its largest coefficient positive, so that the answer is unique.

    Raises:
        ValueError: If there are not ``dim`` directions.
    """
    check_images(images)
    flat = images.reshape(len(images), -1)
    n, pixels = flat.shape
    if not 1 <= dim <= min(n - 1, pixels):
        raise ValueError(
            f"dim must lie between 1 and {min(n - 1, pixels)} for {n} images of {pixels} values, got {dim}"
        )
    mean = flat.mean(axis=0, dtype=np.float64) / 255
    variance, directions = _principal(flat, mean)
    variance, directions = variance[:dim], directions[:, :dim]
    peak = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[peak, np.arange(dim)])
    if whiten:
        directions = directions / np.sqrt(np.maximum(variance, 1e-12))
    projected = [(block / np.float32(255) - mean) @ directions for block in _blocks(flat)]
    return np.concatenate(projected).astype(np.float32)


def _principal(flat: Array, mean: Array) -> tuple[Array, Array]:
    """Variances in falling order, and the direction of each as a column."""
    n, pixels = flat.shape
    if n <= pixels:  # few images: the covariance would be larger than the data, and mostly empty
        _, spread, rows = np.linalg.svd(flat / 255 - mean, full_matrices=False)
        return spread**2 / (n - 1), rows.T
    covariance = np.zeros((pixels, pixels))
    for block in _blocks(flat):
        centred = (block / np.float32(255) - mean).astype(np.float32)
        covariance += centred.T @ centred  # summed in float64: 15,000 squares would cost float32 its last digits
    variance, directions = np.linalg.eigh(covariance / (n - 1))
    return variance[::-1], directions[:, ::-1]


def hog_features(images: Array, *, cell: int = 8, bins: int = 9) -> Array:
    """Histograms of oriented gradients.

    Args:
        images: ``[N, H, W, 3]`` uint8, sides divisible by ``cell``.
        cell: Side of a cell in pixels.
        bins: Directions between 0 and π.

    Returns:
        ``[N, (H/cell - 1) · (W/cell - 1) · 4 · bins]`` float32: block by block (row by row), cell by cell, bin by bin.

    Raises:
        ValueError: If cells do not tile the image, or there are fewer than two a side.
    """
    check_images(images)
    height, width = images.shape[1:3]
    if bins < 2:
        raise ValueError(f"bins must be at least 2, got {bins}")
    if cell < 1 or height % cell or width % cell or min(height, width) < BLOCK * cell:
        raise ValueError(
            f"cells of side {cell} must tile the {height}×{width} images, at least {BLOCK} a side: "
            f"choose a cell that divides both"
        )
    blocks = [_hog(torch.from_numpy(np.ascontiguousarray(part)), cell, bins) for part in _blocks(images)]
    return torch.cat(blocks).numpy()


def _hog(images: Tensor, cell: int, bins: int) -> Tensor:
    luminance = images.float().mean(dim=3, keepdim=True).permute(0, 3, 1, 2) / 255
    padded = F.pad(luminance, (1, 1, 1, 1), mode="replicate")
    dx = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2
    dy = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2
    length = torch.hypot(dx, dy)
    # Bin centres are at 0, π/bins, 2π/bins …: an upright edge then falls into one bin and does not waver between two.
    place = torch.atan2(dy, dx).remainder(math.pi) / math.pi * bins
    lower = place.floor()
    upper_share = place - lower
    index = lower.long() % bins
    votes = luminance.new_zeros(len(images), bins, *luminance.shape[2:])
    votes.scatter_add_(1, index, length * (1 - upper_share))
    votes.scatter_add_(1, (index + 1) % bins, length * upper_share)
    histograms = F.avg_pool2d(votes, cell) * cell**2
    return _normalise_blocks(histograms)


def _normalise_blocks(histograms: Tensor) -> Tensor:
    """``[B, bins, rows, columns]`` cells to overlapping 2×2 blocks, each of norm one (or zero where nothing is)."""
    blocks = histograms.unfold(2, BLOCK, 1).unfold(3, BLOCK, 1)  # [B, bins, rows - 1, columns - 1, 2, 2]
    blocks = blocks.permute(0, 2, 3, 4, 5, 1).flatten(3)
    epsilon = 1e-3  # a gradient of a quarter of a grey level; less than that is noise of the encoding
    blocks = blocks / (blocks.square().sum(-1, keepdim=True) + epsilon**2).sqrt()
    blocks = blocks.clamp(max=CUT)
    blocks = blocks / (blocks.square().sum(-1, keepdim=True) + epsilon**2).sqrt()
    return blocks.flatten(1)


def _blocks(images: Array) -> list[Array]:
    return [images[start : start + IMAGES_AT_A_TIME] for start in range(0, len(images), IMAGES_AT_A_TIME)]
