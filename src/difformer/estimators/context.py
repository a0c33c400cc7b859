r"""A trained model together with what it remembers of its population: predictions for rows it has never seen.

Layer by layer a row x (new, or one of the population) takes

.. math::
    z^{(k+1)} = σ'(\mathrm{LayerNorm}((1 - τ) z^{(k)} + τ (P^{(k)} + \sum_j s_j \bar v_j^{(k)}) + τ β z^{(0)})),

where P is what the layer's memory answers to the row's query and :math:`\bar v_j` the values that the fitted rows j,
joined to it by observed edges, have at this very layer. The fitted rows themselves do not feel new ones. The population
is passed through the same code when it is remembered, so that a fitted row asked about again gets the same answer.

Weights continue those of `difformer.graph`: with a_j the weights of a row's edges from fitted rows, d = Σ_j a_j its own
degree and d_j the degrees that the fitted rows had among themselves, s_j = a_j / √(d d_j).

All of it in double precision: whether rows come one by one or by the million changes nothing that anyone could see.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.linear import LINEAR
from difformer.attention.scores import form_of
from difformer.estimators.memory import Keys, Mean, Memory, Moments, Sums
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.sparse import SparseMatrix

ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Edges:
    """Observed edges from fitted rows to some rows, normalised.

    Args:
        row: ``[E]`` which of the rows receives.
        source: ``[E]`` the fitted row that sends.
        weight: ``[E]`` s_j.
    """

    row: Tensor
    source: Tensor
    weight: Tensor

    @staticmethod
    def nearest(index: Tensor) -> Edges:
        """Of ``[M, k]`` neighbours, each with weight 1/k."""
        count, k = index.shape
        row = torch.arange(count, device=index.device).repeat_interleave(k)
        return Edges(row, index.reshape(-1), torch.full_like(row, 1.0 / k, dtype=torch.float64))

    @staticmethod
    def normalised(row: Tensor, source: Tensor, weight: Tensor, count: int, degree: Tensor) -> Edges:
        """Of weights a_j, with the fitted rows' own degrees ``[n]``."""
        own = weight.new_zeros(count).index_add(0, row, weight)
        square = own[row] * degree[source]
        return Edges(row, source, torch.where(square > 0, weight * torch.where(square > 0, square, 1.0).rsqrt(), 0.0))

    def receive(self, sent: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Σ_j s_j v̄_j for each of `count` rows."""
        messages = self.weight.to(dtype).unsqueeze(1) * sent[self.source].to(dtype)
        return messages.new_zeros(count, sent.shape[1]).index_add(0, self.row, messages)


class ContextConv(nn.Module):
    """A trained layer whose latent exchange is with the remembered population.

    Args:
        layer: The layer.
        memory: What it remembers; None where rows exchange with themselves alone.
        sent: ``[n, c]`` values of the population, mean over heads, where there are observed edges.
    """

    def __init__(self, layer: DIFFormerConv, memory: Memory | None, sent: Tensor | None) -> None:
        super().__init__()
        self.layer, self.memory = layer, memory
        self.register_buffer("sent", None if sent is None else sent.float())
        self.sent: Tensor | None

    def propagated(self, z: Tensor, edges: Edges | None) -> Tensor:
        """P and the observed values together, ``[M, c]``."""
        layer = self.layer
        if self.memory is None:
            latent = values_of(layer, z).mean(1)
        elif layer.query is None:
            latent = self.memory(z.unsqueeze(1)).mean(1)
        else:
            latent = self.memory(unit(layer.query(z).view(z.shape[0], layer.num_heads, -1))).mean(1)
        if self.sent is None:
            return latent
        observed = torch.zeros_like(latent) if edges is None else edges.receive(self.sent, z.shape[0], z.dtype)
        return latent + observed if layer.graph_weight is None else torch.lerp(latent, observed, layer.graph_weight)

    def forward(self, z: Tensor, edges: Edges | None, *_: Any, source: Tensor) -> Tensor:
        """z⁺ before the norm, as `DIFFormerConv` makes it; `edges` take the place of a graph."""
        layer = self.layer
        p = self.propagated(z, edges)
        if layer.residual:
            p = torch.lerp(z, p, layer.step_size)
        return p + layer.step_size * layer.source_weight * source if layer.source_weight else p


def unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


class Member(nn.Module):
    """One trained model in the context of its population."""

    def __init__(self, model: DIFFormer) -> None:
        super().__init__()
        self.model = model

    def states(self, x: Tensor | SparseMatrix, edges: Edges | None) -> Tensor:
        """Final states of some rows, from their scaled features."""
        z = source = self.model.encode(x)
        for k in range(len(self.model.layers)):
            z = self.model.advance(k, z, source, edges)  # type: ignore[arg-type]
        return z

    def decode(self, states: Tensor) -> Tensor:
        return self.model.decode(states)


Part = tuple[Tensor | SparseMatrix, Edges | None]


@torch.no_grad()
def remember(
    model: DIFFormer, parts: list[Part], mass: Tensor, *, polynomial: bool = False, landmarks: Tensor | None = None
) -> tuple[Member, Tensor]:
    """The model with its memory of a population, and the population's final states ``[n, hidden]``.

    Args:
        model: Trained; a copy of it is taken.
        parts: The population's scaled features, and the edges by which its rows reach each other, part by part.
        mass: ``[n]``.
        polynomial: Whether other diffusivities than sums are remembered as polynomials.
        landmarks: Rows that stand for the population where the keys themselves are remembered; None for all.
    """
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    z = source = torch.cat([model.encode(x) for x, _ in parts])
    # A graph without edges is none, as it was in training: with a graph weight the two differ.
    joined = any(edges is not None and edges.row.numel() for _, edges in parts)
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        sent = values_of(layer, z).mean(1) if joined else None
        model.layers[k] = ContextConv(layer, make_memory(layer, z, mass, polynomial, landmarks), sent)
        before, start, z = z, 0, torch.empty_like(z)
        for x, edges in parts:
            rows = slice(start, start + x.shape[0])
            z[rows] = model.advance(k, before[rows], source[rows], edges)  # type: ignore[arg-type]
            start = rows.stop
    return Member(model), z


def values_of(layer: DIFFormerConv, z: Tensor) -> Tensor:
    """``[n, H or 1, c]``."""
    return z.unsqueeze(1) if layer.value is None else layer.value(z).view(z.shape[0], layer.num_heads, -1)


def make_memory(
    layer: DIFFormerConv, z: Tensor, mass: Tensor, polynomial: bool, landmarks: Tensor | None
) -> Memory | None:
    """What a layer has to remember of states ``[n, hidden]``."""
    diffusivity = layer.diffusivity
    if diffusivity is None or diffusivity.name == "identity":
        return None
    form = form_of(diffusivity)
    if form not in LINEAR and not polynomial and landmarks is not None:
        z, mass = z[landmarks], mass[landmarks]
    heads = layer.num_heads
    values = values_of(layer, z).expand(-1, heads, -1)
    if form == "constant" or layer.query is None:
        return Mean.of(values, values, mass)
    keys = unit((layer.query if layer.key is None else layer.key)(z).view(z.shape[0], heads, -1))
    if form in LINEAR:
        return Sums.of(keys, values, mass)
    return Moments.of(keys, values, mass, diffusivity) if polynomial else Keys(keys, values, mass, diffusivity)
