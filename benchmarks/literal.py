"""The formulas as one writes them down first: what every fast path is compared with.

Heads are kept, scores are stored, autograd keeps what it wants, and a graph is normalised whenever it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def simple(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """P_i = Σ_j (1 + q_iᵀk_j) v_j / Σ_l (1 + q_iᵀk_l) with its sums, for ``[N, H, d]`` each."""
    n = q.shape[0]
    outer = torch.einsum("mhd,mhc->hdc", k, v)
    weighted = torch.einsum("nhd,hdc->nhc", q, outer)
    values = torch.einsum("m,mhc->hc", torch.ones(n, device=v.device, dtype=v.dtype), v)
    weighted = weighted + values.unsqueeze(0).repeat(n, 1, 1)
    keys = torch.einsum("mhd,m->hd", k, torch.ones(n, device=k.device, dtype=k.dtype))
    total = torch.einsum("nhd,hd->nh", q, keys).unsqueeze(-1)
    return weighted / (total + torch.ones_like(total) * n)


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """P_i = Σ_j σ(q_iᵀk_j) v_j / Σ_l σ(q_iᵀk_l), for ``[N, H, d]`` each; all pairs are stored."""
    scores = torch.sigmoid(torch.einsum("nhd,mhd->nmh", q, k))
    total = torch.einsum("nmh,m->nh", scores, torch.ones(k.shape[0], device=k.device, dtype=k.dtype))
    return torch.einsum("nmh,mhc->nhc", scores / total.unsqueeze(1).repeat(1, k.shape[0], 1), v)


def sigmoid_padded(q: Tensor, k: Tensor, v: Tensor, batch: Tensor) -> Tensor:
    """The same in a batch, graphs padded to the longest one."""
    sizes = torch.bincount(batch)
    place = torch.arange(len(batch)) - (sizes.cumsum(0) - sizes)[batch]
    shape = (len(sizes), int(sizes.max()))
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[batch, place] = True

    def padded(x: Tensor) -> Tensor:
        full = x.new_zeros(*shape, x.shape[-1])
        full[batch, place] = x.squeeze(1)
        return full

    weights = torch.sigmoid(padded(q) @ padded(k).mT) * mask.unsqueeze(1)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ padded(v))[batch, place].unsqueeze(1)


class Model(nn.Module):
    """Input layer, `layers` of attention and graph term added, output layer: heads 1, step size ½, LayerNorm."""

    def __init__(self, channels: int, hidden: int, classes: int, *, layers: int, kernel: str) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(channels, hidden), nn.Linear(hidden, classes)
        self.project = nn.ModuleList(nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers + 1))
        self.attention = simple if kernel == "simple" else sigmoid

    @staticmethod
    def propagate(z: Tensor, edge_index: Tensor) -> Tensor:
        """D^(-1/2) A D^(-1/2) z, normalised anew, as a product with a sparse matrix."""
        source, target = edge_index
        degree = z.new_zeros(z.shape[0]).index_add_(0, target, z.new_ones(target.shape[0]))
        weight = (1 / degree[target]).sqrt() * (1 / degree[source]).sqrt()
        weight = torch.nan_to_num(weight, nan=0.0, posinf=0.0, neginf=0.0)
        matrix = torch.sparse_coo_tensor(torch.stack([target, source]), weight, (z.shape[0], z.shape[0]))
        return torch.stack([torch.sparse.mm(matrix, z[:, head]) for head in range(z.shape[1])], 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = functional.relu(self.norms[0](self.input(x)))
        for layers, norm in zip(self.project, self.norms[1:], strict=True):
            q, k, v = (layer(z).reshape(-1, 1, z.shape[-1]) for layer in layers)
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
            received = (self.attention(q, k, v) + self.propagate(v, edge_index)).mean(1)
            z = norm(0.5 * received + 0.5 * z)
        return self.output(z)
