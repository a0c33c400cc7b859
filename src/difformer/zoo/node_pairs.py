r"""Functions of whole graphs in a batch, and softmax attention over all pairs in linear time.

Attention is estimated by positive random features (Choromanski et al., ICLR 2021): with ω_1 … ω_m drawn from N(0, I),
orthogonal in blocks,

.. math::
    e^{q^\top k} = \mathbb{E} \, φ(q)^\top φ(k), \qquad
    φ(x) = \frac{1}{\sqrt m} \left[ e^{ω_r^\top x - ‖x‖^2 / 2} \right]_r,

so that Σ_j e^{q_iᵀk_j} v_j ≈ φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ costs O(N m d). Before the division by row sums the estimate is
unbiased; its error falls with √m. Features are divided by their maximum, of each query and over the keys of a graph;
both factors cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.nn.dropout import keyed_uniform


def by_graph(function: Callable[..., Tensor], segments: Segments | None, *tensors: Tensor) -> Tensor:
    """Applies a function ``(mask, *blocks) -> block`` to tensors ``[N, …]``, graph by graph.

    Blocks are ``[graphs, nodes, …]``, zero at padding; ``mask [graphs, nodes]`` is False at padding, or None without
    padding. Results at padding are ignored.
    """
    if segments is None:
        return function(None, *(tensor.unsqueeze(0) for tensor in tensors)).squeeze(0)
    parts = []
    for block in segments.blocks:
        mask = None if block.place is None else block.mask
        parts.append(function(mask, *(block.pad(tensor) for tensor in tensors)))
    return segments.gather(parts)


def graph_sum(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: for each row, the sum over the rows of its graph."""
    if segments is None:
        return values.sum(0, keepdim=True).expand_as(values)
    return segments.sums(values)[segments.batch]


def graph_max(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: for each row, the maximum over the rows of its graph; without gradients."""
    values = values.detach()
    if segments is None:
        return values.amax(0, keepdim=True).expand_as(values)
    start = values.new_full((segments.num_graphs, *values.shape[1:]), -torch.inf)
    index = segments.batch.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return start.scatter_reduce(0, index, values, "amax")[segments.batch]


FLOOR = 1e-6  # added to features, whose maximum is 1, so that sums over keys are positive
FEW_HEADS = 8  # up to which products between heads are cheap
SMALLEST = 1e-30  # below any sum over keys, except for the zero queries of padding


def draw_projection(features: int, channels: int, device: torch.device | None = None) -> Tensor:
    """ω ``[features, channels]``: rows with the lengths of Gaussian vectors, orthogonal in blocks of `channels`.

    Drawn by `dropout_key`, the same on every device, or without a key from torch's generator.
    """
    blocks = -(-features // channels)
    shape, device = (blocks * channels + features, channels), torch.device("cpu") if device is None else device
    u = keyed_uniform(shape, device, dtype=_wide(device), nodes=False)
    normal = torch.randn(shape, device=device) if u is None else math.sqrt(2) * torch.erfinv(2 * u - 1)
    squares, others = normal.split([blocks * channels, features])
    # Fewer rows are better conditioned, so no more than needed.
    rows = squares.unflatten(0, (blocks, channels)).mT[:, : min(features, channels)]
    directions = orthonormal(rows).flatten(0, 1)[:features]
    return (others.norm(dim=1, keepdim=True) * directions).to(torch.get_default_dtype())


def orthonormal(rows: Tensor) -> Tensor:
    r"""Gram-Schmidt of the rows of ``[…, m, d]``, m ≤ d, by Cholesky factors.

    With :math:`A A^\top = L L^\top` these are the rows of :math:`L^{-1} A`, uniformly distributed for Gaussian A. No
    step depends on values, so a CUDA graph can record it and torch.vmap can stack it.
    """
    a = rows.to(_wide(rows.device))
    # Rounding grows with the squared condition number of A. The shift keeps the first factor real and leaves nearly
    # orthogonal rows, for which two more rounds without a shift are exact.
    tiny = 8 * rows.shape[-1] * torch.finfo(a.dtype).eps
    for shift in (tiny, 0.0, 0.0):
        products = a @ a.mT
        diagonal = products.diagonal(dim1=-2, dim2=-1)
        shifted = products + torch.diag_embed(shift * diagonal.sum(-1, keepdim=True).expand_as(diagonal))
        a = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(shifted).L, a, upper=False)
    return a


def _wide(device: torch.device) -> torch.dtype:
    """float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def relative_features(products: Tensor) -> Tensor:
    """φ(q) from products ωᵀq ``[…, m]``, up to a factor per query (so ‖q‖² is not needed)."""
    return (products - products.detach().amax(-1, keepdim=True)).exp() + FLOOR


def key_features(k: Tensor, projection: Tensor, segments: Segments | None) -> Tensor:
    """φ(k) up to a factor per graph and head; ``k [N, H, d]`` → ``[N, H, m]``."""
    logs = k @ projection.T - k.square().sum(-1, keepdim=True) / 2  # log φ(k) less log(1/√m)
    return (logs - graph_max(logs.amax(-1), segments).unsqueeze(-1)).exp() + FLOOR


def linear_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
    r"""Rows :math:`\sum_j (q_i^\top k_j) v_j / \sum_j q_i^\top k_j` within each graph, for positive q and k."""

    def attend(mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Padding of a block is zero and adds nothing to sums over keys.
        outer = torch.einsum("gnhm,gnhc->ghmc", k, v)
        total = torch.einsum("gnhm,ghm->gnh", q, k.sum(1))
        return torch.einsum("gnhm,ghmc->gnhc", q, outer) / total.clamp_min(SMALLEST).unsqueeze(-1)

    heads = q.shape[1]
    if segments is not None or heads > FEW_HEADS:
        return by_graph(attend, segments, q, k, v)
    # A block-diagonal product over all heads is cheaper than moving heads to the front.
    own = torch.eye(heads, dtype=q.dtype, device=q.device)
    outer = (k.flatten(1).T @ v.flatten(1)).view(heads, k.shape[2], heads, v.shape[2]) * own.view(heads, 1, heads, 1)
    total = q.flatten(1) @ (k.sum(0).unsqueeze(-1) * own.unsqueeze(1)).flatten(0, 1)
    found = q.flatten(1) @ outer.flatten(2).flatten(0, 1)
    return found.view_as(v) * total.clamp_min(SMALLEST).reciprocal().unsqueeze(-1)
