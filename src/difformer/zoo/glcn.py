r"""GLCN, graph learning-convolutional networks (Jiang et al., CVPR 2019): edges weighted by a learned distance.

The distances of all pairs, :math:`s_{ij} = \sum_c a_c |p_{ic} - p_{jc}|`, are computed for a block of rows at a time,
forward and backward, so that N² c numbers never exist:

.. math::
    ∂p_{ic} = a_c \sum_j (G_{ij} + G_{ji}) \, \mathrm{sign}(p_{ic} - p_{jc}), \qquad
    ∂a_c = \sum_{ij} G_{ij} |p_{ic} - p_{jc}|.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.diffusion.coupling.matrix import chunks
from difformer.graph import Graph
from difformer.nn.protocol import Features
from difformer.zoo.classic import GCN
from difformer.zoo.edge_operators import edge_softmax, edge_sum
from difformer.zoo.encoder import Observed, Penalised, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear

PAIR_COPIES = 6  # of S: scores, weights, their gradients, and those of propagation


class GLCN(Penalised, GCN, only=()):
    r"""Graph convolutions on a graph learned from projected features p = x P.

    .. math::
        S_{ij} = \frac{A_{ij} \exp(\mathrm{ReLU}(a^\top |p_i - p_j|))}{\sum_l A_{il} \exp(\mathrm{ReLU}(a^\top
        |p_i - p_l|))}, \qquad Z^{(k+1)} = \mathrm{ReLU}(S Z^{(k)} W_k + b_k).

    A holds the observed edges and self-loops; without edges it is one for all pairs, which needs memory for N² numbers.
    The loss of the graph is the penalty

    .. math::
        \frac{λ}{N} \sum_{ij} S_{ij} ‖p_i - p_j‖^2 + \frac{λγ}{N} ‖S‖_F^2.
    """

    num_layers: int = option(2, "Convolutions, including the output layer.")
    dropout: float = option(0.6, "Before every convolution, including on the features.")
    graph_channels: int = option(70, "Length of p.")
    graph_loss: float = option(0.01, "λ, weight of the loss of the graph.")
    sparsity: float = option(0.1, "γ, penalty of large weights, relative to `graph_loss`.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.input_dropout = None
        super().make(in_channels, hidden_channels, out_channels)
        self.project = nn.Linear(in_channels, self.graph_channels, bias=False)
        self.metric = nn.Parameter(torch.empty(self.graph_channels, 1))
        for weight in (self.project.weight, self.metric):
            nn.init.xavier_uniform_(weight)

    def surroundings(self, x: Features, observed: Observed) -> _OnEdges | _OnPairs:
        p = linear(self.project, x)
        learned = _OnEdges(p, self.metric, observed.looped) if observed.given else _OnPairs(p, self.metric, observed)
        # Σ S_ij ‖p_i - p_j‖² = Σ_i ‖p_i‖² (1 + Σ_j S_ji) - 2 Σ_i p_iᵀ(S p)_i, as rows of S sum to one.
        smoothness = (p.square().sum(1) * (1 + learned.given)).sum() - 2 * (p * learned.propagate(p)).sum()
        self._penalty = self.graph_loss * ((smoothness + self.sparsity * learned.squares) / p.shape[0])
        return learned


class _OnEdges:
    """S on edges, ``[E, 1]``, with its column sums and its sum of squares."""

    def __init__(self, p: Tensor, metric: Tensor, graph: Graph) -> None:
        (source, target), edges, remedy = graph.edge_index, graph.num_edges, "take fewer graph_channels"
        refuse_beyond_memory(16.0 * edges * p.shape[1], p.device, "glcn on {:,} edges", remedy, count=edges)
        distance = (p.index_select(0, target) - p.index_select(0, source)).abs() @ metric
        self.weight, self.graph = edge_softmax(functional.relu(distance), graph), graph
        self.given = p.new_zeros(p.shape[0]).index_add(0, source, self.weight.squeeze(1).to(p.dtype))
        self.squares = self.weight.square().sum()

    def propagate(self, z: Tensor) -> Tensor:
        return edge_sum(self.weight, z.unsqueeze(1), self.graph).squeeze(1)


class _OnPairs:
    """S on all pairs: a tensor ``[graphs, n, n]`` per block of `segments`, or a single one for one graph."""

    def __init__(self, p: Tensor, metric: Tensor, observed: Observed) -> None:
        self.segments, copies = observed.segments, PAIR_COPIES if torch.is_grad_enabled() else 2
        what, remedy = f"glcn on all {observed.pairs:,} pairs", "give it edges, for example with graph=knn:5"
        refuse_beyond_memory(4.0 * observed.pairs * copies, p.device, what, remedy)
        blocks: list[Any] = [None] if self.segments is None else list(self.segments.blocks)
        self.parts = []
        for block in blocks:
            mask, rows = (None, p.unsqueeze(0)) if block is None else (block.mask, block.pad(p))
            scores = functional.relu(weighted_distance(rows, metric.squeeze(1)))
            if mask is not None:
                scores = scores.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)), -torch.inf)
            self.parts.append(torch.softmax(scores, -1).nan_to_num(0.0))  # rows of padding are NaN
        self.squares = torch.stack([part.square().sum() for part in self.parts]).sum()
        self.given = self._gather([part.sum(1) for part in self.parts])

    def propagate(self, z: Tensor) -> Tensor:
        if self.segments is None:
            return self.parts[0].squeeze(0) @ z
        blocks = zip(self.parts, self.segments.blocks, strict=True)
        return self._gather([part @ block.pad(z) for part, block in blocks])

    def _gather(self, parts: list[Tensor]) -> Tensor:
        return parts[0].squeeze(0) if self.segments is None else self.segments.gather(parts)


class _Distance(torch.autograd.Function):
    """s of the module's formula for a block of graphs: ``p [G, n, c]``, ``a [c]`` → ``[G, n, n]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, a: Tensor) -> Tensor:
        parts = [(p[:, rows, None] - p[:, None]).abs() @ a for rows in chunks(p.shape[1], p.numel())]
        return torch.cat(parts, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        p, a = ctx.saved_tensors
        both = grad + grad.mT
        to_p, to_a = [], torch.zeros_like(a)
        for rows in chunks(p.shape[1], p.numel()):
            difference = p[:, rows, None] - p[:, None]
            to_p.append(torch.einsum("gij,gijc->gic", both[:, rows], difference.sign()) * a)
            to_a = to_a + torch.einsum("gij,gijc->c", grad[:, rows], difference.abs())
        return torch.cat(to_p, 1), to_a


weighted_distance = _Distance.apply
