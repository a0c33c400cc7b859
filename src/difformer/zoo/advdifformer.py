r"""AdvDIFFormer (Wu et al., ICML 2025): diffusion over all pairs and advection along edges, in closed form.

.. math::
    \frac{\partial Z}{\partial t} = (C + β V - I) \, Z, \qquad Z(t) = e^{-(I - C - βV) t} Z(0),

C is row-normalised all-pair attention at Z(0), one per head, and V = D^{-1/2} A D^{-1/2} is the observed graph with
self-loops. A rational function or a series replaces the exponential:

.. math::
    Z = \sum_h \big( (1 + θ) I - C_h - βV \big)^{-1} Z(0) \, W_h \;\; \text{(inverse)}, \qquad
    Z = \sum_h \big[ Z(0) \,\Vert\, P_h Z(0) \,\Vert \cdots \Vert\, P_h^K Z(0) \big] W_h, \; P_h = C_h + βV
    \;\; \text{(series)}.

The series is linear in the number of nodes, since C with scores 1 + qᵀk is never formed. The inverse solves an N × N
system per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import propagate
from difformer.errors import UserError
from difformer.kernels.rows import unit_rows
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.zoo.encoder import Encoder, Observed, one_of, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear, make_norm
from difformer.zoo.node_pairs import by_graph


class AdvDIFFormer(Encoder):
    r"""A linear input layer with ReLU, one advective diffusion in closed form, and a linear output layer."""

    solver: str = one_of("series", "inverse", about='``"series"`` or ``"inverse"``.')
    num_layers: int = option(4, "K, terms of the series beside Z(0).", least=0)
    num_heads: int = option(1, "Heads.")
    diffusivity: str = one_of("simple", "sigmoid", about="Scores of C: 1 + qᵀk (linear in N), or σ(qᵀk).")
    beta: float = option(0.5, "β, weight of the observed graph.")
    theta: float = option(1.0, "θ of the inverse; must exceed β for the system to be solvable.")
    dropout: float = option(0.2, "After the input layer and after the diffusion.")
    norm: Any = option("layer", 'After the input layer: ``"batch"``, ``"layer"`` or ``"none"``.')  # becomes a module
    residual: bool = option(True, "Whether Z(0) is added to the diffused states.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        if self.solver == "inverse" and self.theta <= self.beta:
            problem = f"theta must be above beta = {self.beta!r} for the system to be solvable, got {self.theta!r}"
            raise UserError(problem)
        self.input, self.norm = nn.Linear(in_channels, hidden_channels), make_norm(self.norm, hidden_channels)
        self.query, self.key = (nn.Linear(hidden_channels, self.num_heads * hidden_channels) for _ in range(2))
        terms = self.num_layers + 1 if self.solver == "series" else 1
        self.join = nn.Linear(self.num_heads * terms * hidden_channels, hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        z = dropout(functional.relu(self.norm(linear(self.input, x))), self.dropout, self.training)
        q, k = (unit_rows(layer(z).unflatten(1, (self.num_heads, -1))) for layer in (self.query, self.key))
        solve = self._series if self.solver == "series" else self._inverse
        spread = functional.relu(self.join(solve(q, k, z, observed)))
        return dropout(z + spread if self.residual else spread, self.dropout, self.training)

    def _series(self, q: Tensor, k: Tensor, z: Tensor, observed: Observed) -> Tensor:
        """``[N, H (K + 1) d]``: the concatenated terms P^k Z(0)."""
        term = z.unsqueeze(1).expand(-1, self.num_heads, -1)
        terms = [term]
        for _ in range(self.num_layers):
            latent = propagate(q, k, term, self.diffusivity, batch=observed.segments)
            term = torch.add(latent, observed.looped.propagate(term), alpha=self.beta) if observed.given else latent
            terms.append(term)
        return torch.cat(terms, 2).flatten(1)

    def _inverse(self, q: Tensor, k: Tensor, z: Tensor, observed: Observed) -> Tensor:
        """``[N, H d]``: the solutions of one dense system per head."""
        count = observed.pairs
        what, remedy = f"advdifformer, which solves systems of {count:,} pairs,", "take solver=series, which is linear"
        refuse_beyond_memory(16.0 * self.num_heads * count, observed.device, what, remedy)
        advection = []
        if observed.given:  # V as a table [N, largest graph] with columns for the nodes of the row's graph
            place, width = observed.places()
            advection = [observed.looped.propagate(functional.one_hot(place, width).to(z.dtype))]

        def solved(mask: Tensor | None, q: Tensor, k: Tensor, z: Tensor, *rows: Tensor) -> Tensor:
            products = torch.einsum("gnhd,gmhd->ghnm", q, k)
            scores = 1 + products if self.diffusivity == "simple" else torch.sigmoid(products)
            if mask is not None:
                scores = scores * mask[:, None, None, :]
            coupling = scores / scores.sum(-1, keepdim=True)
            for part in rows:
                coupling = coupling + self.beta * part[:, None, :, : z.shape[1]]
            eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
            found = torch.linalg.solve((1 + self.theta) * eye - coupling, z.unsqueeze(1).expand(-1, q.shape[2], -1, -1))
            return found.transpose(1, 2)

        return by_graph(solved, observed.segments, q, k, z, *advection).flatten(1)
