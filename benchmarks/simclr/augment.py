"""Random views of images, a whole batch at once and on the device that holds it.

**Where.** A random resized crop of relative size (w, h) about the centre p, mirrored or not (s = ±1), reads the source
at

    (u, v) ↦ (p_x + s·w·u, p_y + h·v),      u, v ∈ [-1, 1],

one affine map an image, so the batch is one ``grid_sample``. The crop's area is uniform in ``scale`` and its aspect
log-uniform in ``aspect``; a side that would pass the image's own is cut to it, and p is uniform where the crop fits.

**Colour.** With ℓ the luma weights (ℓᵀ1 = 1) and m the image's mean luma, brightness b, contrast c, saturation s and a
turn of the hue by θ take a pixel x through

    b·x,    c·x + (1-c)·m·1,    s·x + (1-s)·1ℓᵀx,    R_θ x,

R_θ the rotation about the grey axis 1. Saturation and hue leave 1 in place, so all four are one affine map a pixel:

    x ↦ M x + (1-c)·b·m·1,      M = b·c·R_θ (s·I + (1-s)·1ℓᵀ),

and greyscale is a further factor 1ℓᵀ on the left. The result is cut to [0, 1] once, at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class ViewConfig:
    """How far a view may stray from its image.

    Args:
        scale: Least and largest area of a crop, as a part of the image.
        aspect: Least and largest width over height of a crop, before it is cut to the image.
        flip: Probability of mirroring left and right.
        brightness: Brightness is uniform in [1 - this, 1 + this]; contrast and saturation likewise.
        contrast: See brightness.
        saturation: See brightness.
        hue: Hue turns by up to this part of the full circle, either way.
        jitter: Probability that colours change at all.
        grayscale: Probability that they vanish.

    Raises:
        ValueError: If a range is empty or a probability is none.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    grayscale: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be an area range with 0 < low ≤ high ≤ 1, got {self.scale}")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"aspect must be a range with 0 < low ≤ high, got {self.aspect}")
        for name, most in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must lie in [0, {most}], got {getattr(self, name)}")
        for name in ("flip", "jitter", "grayscale"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability and must lie in [0, 1], got {getattr(self, name)}")


def random_views(images: Tensor, config: ViewConfig, *, generator: torch.Generator) -> Tensor:
    """One random view of every image.

    Args:
        images: ``[B, 3, H, W]`` floats in [0, 1].
        config: How far views may stray.
        generator: Source of all randomness, on the images' device: the same state gives the same views.

    Returns:
        ``[B, 3, H, W]`` floats in [0, 1].
    """
    return recolour(crop_and_flip(images, config, generator=generator), config, generator=generator)


def crop_and_flip(images: Tensor, config: ViewConfig, *, generator: torch.Generator) -> Tensor:
    """Random resized crops, mirrored or not: one affine map an image."""
    draw = _Draw(images, generator)
    area = draw.between(*config.scale)
    aspect = draw.between(math.log(config.aspect[0]), math.log(config.aspect[1])).exp()
    width = (area * aspect).sqrt().clamp(max=1.0)
    height = (area / aspect).sqrt().clamp(max=1.0)
    side = 1.0 - 2.0 * draw.happens(config.flip)
    theta = images.new_zeros(len(images), 2, 3)
    theta[:, 0, 0] = side * width
    theta[:, 0, 2] = draw.between(-1.0, 1.0) * (1.0 - width)
    theta[:, 1, 1] = height
    theta[:, 1, 2] = draw.between(-1.0, 1.0) * (1.0 - height)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def recolour(images: Tensor, config: ViewConfig, *, generator: torch.Generator) -> Tensor:
    """Colour jitter and greyscale: one affine map of colour space an image."""
    draw = _Draw(images, generator)
    jitter = draw.happens(config.jitter)
    brightness = 1 + jitter * draw.between(-config.brightness, config.brightness)
    contrast = 1 + jitter * draw.between(-config.contrast, config.contrast)
    saturation = 1 + jitter * draw.between(-config.saturation, config.saturation)
    turn = 2 * math.pi * jitter * draw.between(-config.hue, config.hue)
    gray = draw.happens(config.grayscale)

    space = _colour_space(images.device, images.dtype)
    to_gray = space.luma.expand(3, 3)  # 1ℓᵀ
    saturate = torch.lerp(to_gray, space.identity, saturation[:, None, None])
    matrix = (brightness * contrast)[:, None, None] * hue_rotation(turn) @ saturate
    matrix = torch.where(gray[:, None, None] > 0, to_gray @ matrix, matrix)
    mean_luma = images.mean(dim=(2, 3)) @ space.luma
    offset = ((1 - contrast) * brightness * mean_luma)[:, None, None].expand(-1, 3, 1)
    return torch.baddbmm(offset, matrix, images.flatten(2)).view_as(images).clamp_(0.0, 1.0)


def hue_rotation(angle: Tensor) -> Tensor:
    """Rotations of colour space about the grey axis: angles ``[B]`` in radians to matrices ``[B, 3, 3]``.

    By Rodrigues, with k = 1/√3 and K the cross product with k:  R = cos θ·I + sin θ·K + (1 - cos θ)·kkᵀ.
    """
    space = _colour_space(angle.device, angle.dtype)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return cos * space.identity + sin * space.cross + (1 - cos) / 3


class _ColourSpace(NamedTuple):
    luma: Tensor
    identity: Tensor
    cross: Tensor


@lru_cache(maxsize=8)
def _colour_space(device: torch.device, dtype: torch.dtype) -> _ColourSpace:
    """Constants, kept on the device: copying them anew for each batch would make the host wait for the device."""
    k = 1 / math.sqrt(3)
    return _ColourSpace(
        luma=torch.tensor(LUMA, dtype=dtype, device=device),
        identity=torch.eye(3, dtype=dtype, device=device),
        cross=torch.tensor([[0, -k, k], [k, 0, -k], [-k, k, 0]], dtype=dtype, device=device),
    )


class _Draw:
    """Random numbers, one an image, of the images' type and on their device."""

    def __init__(self, images: Tensor, generator: torch.Generator) -> None:
        self.images, self.generator = images, generator

    def between(self, low: float, high: float) -> Tensor:
        images = self.images
        unit = torch.rand(len(images), generator=self.generator, device=images.device, dtype=images.dtype)
        return low + (high - low) * unit

    def happens(self, probability: float) -> Tensor:
        return (self.between(0.0, 1.0) < probability).to(self.images.dtype)
