"""What every function here takes for images, and the one way to make large ones small."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Array = np.ndarray[Any, Any]


def check_images(images: Array) -> None:
    """Refuses what is not ``[N, H, W, 3]`` uint8.

    Raises:
        ValueError: With the shape and type that came, and how to get to the right one.
    """
    if not isinstance(images, np.ndarray):
        raise ValueError(f"images must be a numpy array of shape [N, H, W, 3], got {type(images).__name__}")
    if images.ndim != 4 or images.shape[3] != 3:
        hint = "; channels come last: transpose with images.transpose(0, 2, 3, 1)" if images.shape[1:2] == (3,) else ""
        raise ValueError(f"images must have shape [N, H, W, 3], got {images.shape}{hint}")
    if images.dtype != np.uint8:
        raise ValueError(
            f"images must be uint8 with values 0 to 255, got {images.dtype}; "
            f"floats in [0, 1] become so by (255 * images).round().astype('uint8')"
        )
    if len(images) == 0:
        raise ValueError("images is empty: there is nothing to make features from")


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
        raise ValueError(f"side must lie between 1 and {min(images.shape[1:3])}, the images' own, got {side}")
    small = np.empty((len(images), side, side, 3), dtype=np.uint8)
    for start in range(0, len(images), 1000):
        part = torch.from_numpy(np.ascontiguousarray(images[start : start + 1000])).permute(0, 3, 1, 2).float()
        mean = F.adaptive_avg_pool2d(part, side).round().to(torch.uint8)
        small[start : start + 1000] = mean.permute(0, 2, 3, 1).numpy()
    return small
