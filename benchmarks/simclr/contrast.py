"""The contrastive loss: two views of one image shall agree, views of different images shall not.

For unit projections z_1 … z_2B, rows i and i + B the two views of image i, and temperature τ,

    L = 1/2B Σ_i -log [ exp(z_iᵀz_p(i) / τ) / Σ_{j ≠ i} exp(z_iᵀz_j / τ) ],      p(i) = (i + B) mod 2B:

a classification of every view's partner among the 2B - 1 other views of the batch (NT-Xent).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def nt_xent(projections: Tensor, *, temperature: float = 0.2) -> Tensor:
    """NT-Xent of a batch.

    Args:
        projections: ``[2B, D]``; rows i and i + B belong to one image. They need not be of unit length.
        temperature: τ; the smaller, the more only the nearest wrong views count.

    Returns:
        The mean loss, computed in float32 whatever comes in: 2B exponentials are summed.

    Raises:
        ValueError: If the rows are odd in number or the temperature is not positive.
    """
    rows = projections.shape[0]
    if projections.dim() != 2 or rows % 2 or rows < 4:
        raise ValueError(
            f"projections must have shape [2B, D] with two views of at least two images, got {tuple(projections.shape)}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    # Mixed precision would round the similarities to 8 bits, and 1/τ then multiplies that error.
    with torch.autocast(projections.device.type, enabled=False):
        z = F.normalize(projections.float(), dim=1)
        similarity = z @ z.T / temperature
        itself = torch.eye(rows, dtype=torch.bool, device=z.device)
        similarity = similarity.masked_fill(itself, float("-inf"))
        partner = torch.arange(rows, device=z.device).roll(rows // 2)
        return F.cross_entropy(similarity, partner)


class Contrast(nn.Module):
    """An encoder with the head whose output the loss compares; the head is thrown away afterwards.

    Args:
        encoder: Images to features.
        feature_dim: Columns of the features.
        projection_dim: Columns of the projections.
    """

    def __init__(self, encoder: nn.Module, feature_dim: int, *, projection_dim: int = 128) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(feature_dim, feature_dim, bias=False),
            nn.BatchNorm1d(feature_dim),
            nn.ReLU(inplace=True),
            nn.Linear(feature_dim, projection_dim),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))
