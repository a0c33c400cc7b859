"""Features from pixels alone: images made smaller, and their principal components. No training, no randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from difformer.errors import UserError

Array = np.ndarray[Any, Any]

IMAGES_AT_A_TIME = 1000


def check_images(images: Array) -> None:
    """Refuses what is not ``[N, H, W, 3]`` uint8.

    Raises:
        ValueError: With the shape and type that came, and how to get to the right one.
    """
    if not isinstance(images, np.ndarray):
        raise UserError(f"images must be a numpy array of shape [N, H, W, 3], got {type(images).__name__}")
    if images.ndim != 4 or images.shape[3] != 3:
        hint = "; channels come last: transpose with images.transpose(0, 2, 3, 1)" if images.shape[1:2] == (3,) else ""
        raise UserError(f"images must have shape [N, H, W, 3], got {images.shape}{hint}")
    if images.dtype != np.uint8:
        raise UserError(
            f"images must be uint8 with values 0 to 255, got {images.dtype}; "
            f"floats in [0, 1] become so by (255 * images).round().astype('uint8')"
        )
    if len(images) == 0:
        raise UserError("images is empty: there is nothing to make features from")


def shrink_images(images: Array, side: int) -> Array:
    """Square images of a smaller side, every new pixel the mean of the area it covers.

    Args:
        images: ``[N, H, W, 3]`` uint8, for example STL-10's 96×96.
        side: New height and width, at most the old.

    Returns:
        ``[N, side, side, 3]`` uint8.
    """
    check_images(images)
    if not 1 <= side <= min(images.shape[1:3]):
        raise UserError(f"side must lie between 1 and {min(images.shape[1:3])}, the images' own, got {side}")
    small = np.empty((len(images), side, side, 3), dtype=np.uint8)
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        chosen = slice(start, start + IMAGES_AT_A_TIME)
        part = torch.from_numpy(np.ascontiguousarray(images[chosen])).permute(0, 3, 1, 2).float()
        small[chosen] = F.adaptive_avg_pool2d(part, side).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return small


def pca_features(images: Array, dim: int = 64) -> Array:
    """Projections of the pixels on their leading principal directions.

    Args:
        images: ``[N, H, W, 3]`` uint8.
        dim: How many directions.

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
        raise UserError(f"dim must lie between 1 and {min(n - 1, pixels)} for {n} images of {pixels} values, got {dim}")
    from sklearn.decomposition import PCA

    # Of few images the covariance would be larger than the data, and mostly empty.
    solver = "full" if n <= pixels else "covariance_eigh"
    features: Array = PCA(dim, svd_solver=solver).fit_transform(flat / 255).astype(np.float32)
    return features
