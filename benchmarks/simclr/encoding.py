"""From images to features: the encoder's forward pass, and what training shares with it."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.simclr.resnet import ResNet18
from difformer.errors import UserError

Array = np.ndarray[Any, Any]
Precision = Literal["auto", "bfloat16", "float32"]


def encode(
    encoder: ResNet18,
    images: Array,
    *,
    batch_size: int = 2000,
    device: str | torch.device | None = None,
    precision: Precision = "auto",
    dtype: Literal["float16", "float32"] = "float32",
) -> Array:
    """Features of images.

    Args:
        encoder: From ``train_simclr`` or ``load_encoder``; it is left in evaluation mode.
        images: ``[N, H, W, 3]`` uint8.
        batch_size: Images at a time; has no influence on the result but for rounding.
        device: Where to compute; by default where the encoder is.
        precision: As in ``train_simclr``.
        dtype: Of the result; float16 halves the file and is exact enough for features of order one.

    Returns:
        ``[N, encoder.feature_dim]``.
    """
    check_images(images)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    place = next(encoder.parameters()).device if device is None else resolve_device(device)
    cast = autocast_type(precision, place)
    encoder = encoder.to(place, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    features = np.empty((len(images), encoder.feature_dim), dtype=dtype)
    with torch.inference_mode(), autocast(place, cast):
        for start in range(0, len(images), batch_size):
            part = normalise(to_device(images[start : start + batch_size], place).float().div_(255))
            part = part.contiguous(memory_format=torch.channels_last)
            features[start : start + batch_size] = encoder(part).float().cpu().numpy()
    return features


def check_images(images: Array) -> None:
    """Refuses what is not ``[N, H, W, 3]`` uint8, and says how to get there."""
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


def normalise(images: Tensor) -> Tensor:
    """[0, 1] to [-2, 2], the same for every data set, so that an encoder needs no statistics beside its weights."""
    return (images - 0.5) * 4.0


def to_device(images: Array, device: torch.device) -> Tensor:
    """``[N, H, W, 3]`` on the host to ``[N, 3, H, W]`` uint8 on the device."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(device)


def resolve_device(device: str | torch.device) -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def autocast_type(precision: Precision, device: torch.device) -> torch.dtype | None:
    """What to compute in: bfloat16, or None for float32 throughout."""
    if precision not in ("auto", "bfloat16", "float32"):
        raise ValueError(f"precision must be 'auto', 'bfloat16' or 'float32', got {precision!r}")
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.bfloat16
    return None


def autocast(device: torch.device, cast: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Mixed precision, or nothing."""
    return contextlib.nullcontext() if cast is None else torch.autocast(device.type, dtype=cast)
