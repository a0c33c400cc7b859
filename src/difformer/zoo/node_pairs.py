r"""Graphs of a batch one by one, their pairs of nodes, and softmax attention over all pairs in linear time.

No graph sees another graph or its own padding. Attention is estimated by positive random features (Choromanski et al.,
ICLR 2021): with ω_1 … ω_m drawn from N(0, I), blocks of them orthogonal,

.. math::
    e^{q^\top k} = \mathbb{E} \, φ(q)^\top φ(k), \qquad
    φ(x) = \frac{1}{\sqrt m} \left[ e^{ω_r^\top x - ‖x‖^2 / 2} \right]_r,

so that Σ_j e^{q_iᵀk_j} v_j ≈ φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ costs O(N m d). The estimate has no bias before it is divided by
its row sum, and its error falls with √m. Features are kept relative to their largest: of a query over its own
features, of keys over those of the graph. Both factors cancel in the division.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.nn.dropout import keyed_uniform


def by_graph(function: Callable[..., Tensor], segments: Segments | None, *tensors: Tensor) -> Tensor:
    """A function ``(mask, *blocks) -> block`` of whole graphs, applied to tensors ``[N, …]`` of every graph of a batch.

    Blocks are ``[graphs, nodes, …]``, zero at padding; ``mask [graphs, nodes]`` is True at rows, or None where there is
    no padding. What the function gives at padding is ignored.
    """
    if segments is None:
        return function(None, *(tensor.unsqueeze(0) for tensor in tensors)).squeeze(0)
    parts = [
        function(None if block.full else block.mask, *(block.pad(tensor) for tensor in tensors))
        for block in segments.blocks
    ]
    return segments.gather(parts)


def graph_sum(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: at every row the sum over the rows of its graph."""
    if segments is None:
        return values.sum(0, keepdim=True).expand_as(values)
    total = values.new_zeros(segments.num_graphs, *values.shape[1:]).index_add(0, segments.batch, values)
    return total[segments.batch]


def graph_max(values: Tensor, segments: Segments | None) -> Tensor:
    """``[N, …]``: at every row the largest of the rows of its graph; no gradients."""
    values = values.detach()
    if segments is None:
        return values.amax(0, keepdim=True).expand_as(values)
    start = values.new_full((segments.num_graphs, *values.shape[1:]), -torch.inf)
    index = segments.batch.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return start.scatter_reduce(0, index, values, "amax")[segments.batch]


def graph_sizes(num_nodes: int, segments: Segments | None, like: Tensor) -> Tensor:
    """``[N]``: how many rows the graph of each row has."""
    if segments is None:
        return like.new_full((num_nodes,), num_nodes)
    return segments.sizes.to(like.dtype)[segments.batch]


FLOOR = 1e-6  # of a feature, whose largest is 1: a query and keys that share none still have a sum to divide by
FEW_HEADS = 8  # for which products between heads are cheap
SMALLEST = 1e-30  # a sum over keys is far above, but for queries of padding, which are zero


def draw_projection(features: int, channels: int, device: torch.device | None = None) -> Tensor:
    """ω ``[features, channels]``: rows as long as Gaussian ones, orthogonal in blocks of `channels`.

    Drawn by the key of `dropout_key`, the same on every device; from torch's generator without one.
    """
    blocks = -(-features // channels)
    shape, device = (blocks * channels + features, channels), torch.device("cpu") if device is None else device
    u = keyed_uniform(shape, device, dtype=_wide(device), nodes=False)
    normal = torch.randn(shape, device=device) if u is None else math.sqrt(2) * torch.erfinv(2 * u - 1)
    squares, others = normal.split([blocks * channels, features])
    # Orthogonal rows are the better conditioned the fewer they are: no more than are needed.
    rows = squares.unflatten(0, (blocks, channels)).mT[:, : min(features, channels)]
    directions = orthonormal(rows).flatten(0, 1)[:features]
    return (others.norm(dim=1, keepdim=True) * directions).to(torch.get_default_dtype())


def orthonormal(rows: Tensor) -> Tensor:
    r"""Orthonormal rows that span what the first 1, 2, … rows of ``[…, m, d]`` span, m ≤ d, by products alone.

    With :math:`A A^\top = L L^\top`, L lower triangular with a diagonal above zero, the rows of :math:`L^{-1} A` are
    those of Gram and Schmidt: of Gaussian rows all directions and signs are equally likely. Nothing has to be looked
    at on the way, so that it can be recorded on a GPU and stacked.
    """
    a = rows.to(_wide(rows.device))
    # Rounding grows with the square of A's condition. A shift keeps the first factor real however bad that is, and
    # leaves rows near to orthogonal; since L⁻¹A has the same answer for every L, two more rounds are exact.
    tiny = 8 * rows.shape[-1] * torch.finfo(a.dtype).eps
    for shift in (tiny, 0.0, 0.0):
        products = a @ a.mT
        diagonal = products.diagonal(dim1=-2, dim2=-1)
        shifted = products + torch.diag_embed(shift * diagonal.sum(-1, keepdim=True).expand_as(diagonal))
        a = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(shifted).L, a, upper=False)
    return a


def _wide(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def relative_features(products: Tensor) -> Tensor:
    """φ(q) from products ωᵀq ``[…, m]``, up to a factor of each query, so that ‖q‖² does not matter."""
    return (products - products.detach().amax(-1, keepdim=True)).exp() + FLOOR


def key_features(k: Tensor, projection: Tensor, segments: Segments | None) -> Tensor:
    """φ(k) up to a factor of each graph and head; ``k [N, H, d]`` → ``[N, H, m]``."""
    logs = k @ projection.T - k.square().sum(-1, keepdim=True) / 2  # log φ(k) less log(1/√m)
    return (logs - graph_max(logs.amax(-1), segments).unsqueeze(-1)).exp() + FLOOR


def linear_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
    r"""Rows :math:`\sum_j (q_i^\top k_j) v_j / \sum_j q_i^\top k_j` within each graph, q and k above zero."""
    heads = q.shape[1]
    if segments is not None or heads > FEW_HEADS:
        return by_graph(_attend, segments, q, k, v)
    # Products of all heads with all others, and zeros but for their own: cheaper than bringing heads to the front.
    own = torch.eye(heads, dtype=q.dtype, device=q.device)
    outer = (k.flatten(1).T @ v.flatten(1)).view(heads, k.shape[2], heads, v.shape[2]) * own.view(heads, 1, heads, 1)
    total = q.flatten(1) @ (k.sum(0).unsqueeze(-1) * own.unsqueeze(1)).flatten(0, 1)
    found = q.flatten(1) @ outer.flatten(2).flatten(0, 1)
    return found.view_as(v) * total.clamp_min(SMALLEST).reciprocal().unsqueeze(-1)


def _attend(mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Padding of a block is zero, so it adds nothing to sums over keys.
    outer = torch.einsum("gnhm,gnhc->ghmc", k, v)
    total = torch.einsum("gnhm,ghm->gnh", q, k.sum(1))
    return torch.einsum("gnhm,ghmc->gnhc", q, outer) / total.clamp_min(SMALLEST).unsqueeze(-1)
