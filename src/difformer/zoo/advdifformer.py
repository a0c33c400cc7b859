r"""AdvDIFFormer of Wu et al. (ICML 2025): diffusion over all pairs and advection along edges, in closed form.

.. math::
    \frac{\partial Z}{\partial t} = (C + β V - I) \, Z, \qquad Z(t) = e^{-(I - C - βV) t} Z(0),

C is all-pair attention at Z(0), one per head, whose rows sum to one, and V = D^{-1/2} A D^{-1/2} is the observed graph
with self-loops. The exponential is replaced by a rational function or by a series:

.. math::
    Z = \sum_h \big( (1 + θ) I - C_h - βV \big)^{-1} Z(0) \, W_h \;\; \text{(inverse)}, \qquad
    Z = \sum_h \big[ Z(0) \,\Vert\, P_h Z(0) \,\Vert \cdots \Vert\, P_h^K Z(0) \big] W_h, \; P_h = C_h + βV
    \;\; \text{(series)}.

The series is linear in the nodes, since C with scores 1 + qᵀk is never formed. The inverse solves one N × N system per
head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention import propagate
from difformer.errors import UserError
from difformer.zoo.encoder import (
    Encoder,
    Features,
    Observed,
    check_choice,
    dropout,
    linear,
    make_norm,
    refuse_beyond_memory,
    unit_rows,
)
from difformer.zoo.node_pairs import by_graph, pairs, place_in_graph

SOLVERS = ("series", "inverse")
DIFFUSIVITIES = ("simple", "sigmoid")


class AdvDIFFormer(Encoder):
    r"""A linear input with ReLU, one advective diffusion in closed form, and a linear output.

    Args:
        solver: ``"series"`` or ``"inverse"``.
        num_layers: K, terms of the series beside Z(0).
        num_heads: Heads.
        diffusivity: Scores of C: ``"simple"`` (1 + qᵀk, linear in the nodes) or ``"sigmoid"``.
        beta: β, weight of the observed graph.
        theta: θ of the inverse; above β it keeps the system solvable.
        dropout: After the input, and after the diffusion.
        norm: After the input: ``"batch"``, ``"layer"`` or ``"none"``.
        residual: Whether Z(0) is added to the diffused states.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        solver: str = "series",
        num_layers: int = 4,
        num_heads: int = 1,
        diffusivity: str = "simple",
        beta: float = 0.5,
        theta: float = 1.0,
        dropout: float = 0.2,
        norm: str = "layer",
        residual: bool = True,
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, num_heads=num_heads, dropout=dropout)
        check_choice("solver", solver, SOLVERS)
        check_choice("diffusivity", diffusivity, DIFFUSIVITIES)
        if beta < 0:
            raise UserError(f"beta must not be negative, got {beta!r}", argument="beta")
        if solver == "inverse" and theta <= beta:
            raise UserError(f"theta must be above beta = {beta!r} for the system to be solvable, got {theta!r}")
        self.input, self.norm = nn.Linear(in_channels, hidden_channels), make_norm(norm, hidden_channels)
        self.query, self.key = (nn.Linear(hidden_channels, num_heads * hidden_channels) for _ in range(2))
        terms = num_layers + 1 if solver == "series" else 1
        self.join = nn.Linear(num_heads * terms * hidden_channels, hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)
        self.solver, self.diffusivity, self.beta, self.theta, self.residual = solver, diffusivity, beta, theta, residual

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Diffused states."""
        z = dropout(functional.relu(self.norm(linear(self.input, x))), self.dropout, self.training)
        q, k = (unit_rows(layer(z).unflatten(1, (self.num_heads, -1))) for layer in (self.query, self.key))
        solve = self._series if self.solver == "series" else self._inverse
        spread = functional.relu(self.join(solve(q, k, z, observed)))
        return dropout(z + spread if self.residual else spread, self.dropout, self.training)

    def _series(self, q: Tensor, k: Tensor, z: Tensor, observed: Observed) -> Tensor:
        """``[N, H (K + 1) d]``: powers of P side by side."""
        term = z.unsqueeze(1).expand(-1, self.num_heads, -1)
        terms = [term]
        for _ in range(self.num_layers):
            latent = propagate(q, k, term, self.diffusivity, batch=observed.segments)
            term = torch.add(latent, observed.looped.propagate(term), alpha=self.beta) if observed.given else latent
            terms.append(term)
        return torch.cat(terms, 2).flatten(1)

    def _inverse(self, q: Tensor, k: Tensor, z: Tensor, observed: Observed) -> Tensor:
        """``[N, H d]``: one dense system per head."""
        count = pairs(observed.rows, observed.segments)
        refuse_beyond_memory(
            16.0 * self.num_heads * count,
            observed.device,
            f"advdifformer, which solves systems of {count:,} pairs,",
            "take solver=series, which is linear in the nodes",
        )
        advection = self._advection(z, observed)

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

    def _advection(self, z: Tensor, observed: Observed) -> list[Tensor]:
        """V as a table whose columns count the nodes of a row's own graph, ``[N, largest graph]``."""
        if not observed.given:
            return []
        place, width = place_in_graph(observed.rows, observed.segments, observed.device)
        unit = functional.one_hot(place, width).to(z.dtype)
        return [observed.looped.propagate(unit)]
