"""Diffusion with attention on observed edges: the paper's extension of graph attention networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.diffusion.coupling import EdgeAttention
from difformer.diffusion.dynamics import flow
from difformer.diffusivity import Diffusivity
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
    self_loops,
)


class EdgeDiffusion(Encoder):
    r"""Steps of energy-constrained diffusion over observed edges,

    .. math::
        Z^{(k+1)} = (1 - τ) h(Z^{(k)}) + τ S^{(k)} h(Z^{(k)}) + τ β Z^{(0)}, \qquad
        s_{ij} = \frac{a_{ij} \, g(\tilde z_i^\top \tilde z_j)}
        {\sum_{l \in N(i)} a_{il} \, g(\tilde z_i^\top \tilde z_l)},

    between the input and output layers of `difformer.nn.DIFFormer`. A node is a neighbour of itself, so that every row
    of S sums to one. S is taken at h(Z), from the states alone: there are no queries and keys.

    Args:
        num_layers: Steps.
        diffusivity: g: a name, or a `Diffusivity`.
        similarity: ``"cosine"`` as above, or ``"distance"`` for f(‖z_i - z_j‖²).
        step_size: τ.
        source_weight: β; above 0 each step adds τβZ⁰.
        transform: Whether h is a linear map, one per step, or the identity.
        norm: Whether there are LayerNorms, after the input layer and after each step.
        dropout: After the input layer and after each step.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        diffusivity: str | Diffusivity = "simple",
        similarity: str = "cosine",
        step_size: float = 0.5,
        source_weight: float = 0.0,
        transform: bool = True,
        norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, dropout=dropout, source_weight=source_weight)
        if not 0 < step_size <= 1:
            raise UserError(f"step_size must lie in (0, 1], got {step_size!r}")
        # What is wrong with these two is said by the coupling itself, before anything is trained.
        check_choice("similarity", similarity, ("distance", "cosine"))
        EdgeAttention(self_loops(1), diffusivity, similarity)
        self.diffusivity, self.similarity, self.step_size = diffusivity, similarity, step_size
        self.input = nn.Linear(in_channels, hidden_channels)
        self.norms = nn.ModuleList(make_norm(norm, hidden_channels) for _ in range(num_layers + 1))
        self.maps = nn.ModuleList(
            nn.Linear(hidden_channels, hidden_channels) if transform else nn.Identity() for _ in range(num_layers)
        )
        self.output = nn.Linear(hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """States after the last step."""
        graph = observed.looped
        if torch.is_grad_enabled():
            needed = 4.0 * 4 * graph.num_edges * self.output.in_features * len(self.maps)
            what = f"{len(self.maps)} steps of edge attention on {graph.num_edges:,} edges"
            refuse_beyond_memory(needed, graph.device, what, "train with batch_size=…, or fewer layers")
        coupling = EdgeAttention(graph, self.diffusivity, self.similarity)
        z = functional.relu(self.norms[0](linear(self.input, x)))
        z = initial = dropout(z, self.dropout, self.training)
        has_source = isinstance(self.source_weight, Tensor) or self.source_weight != 0
        source = self.source_weight * initial if has_source else None
        for h, norm in zip(self.maps, self.norms[1:], strict=True):
            z = h(z)
            z = z + self.step_size * flow(z, coupling, conservation="unit", source=source)
            z = dropout(norm(z), self.dropout, self.training)
        return z
