r"""Diffusion along observed edges: GRAND, GRAND++, and the paper's extension of graph attention networks.

An equation :math:`\partial Z / \partial t = r(Z)` is solved by explicit steps of fixed length, or adaptively:

.. math::
    Z^{+} = Z + τ r(Z) \;\; \text{(Euler)}, \qquad
    Z^{+} = Z + \tfrac{τ}{6} (r_1 + 2 r_2 + 2 r_3 + r_4) \;\; \text{(Runge-Kutta of order four)}.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.diffusion.coupling import EdgeAttention
from difformer.diffusion.dynamics import Transform, flow
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError, require
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.zoo.edge_operators import check_attention_memory, edge_scores, edge_softmax, edge_sum
from difformer.zoo.encoder import Encoder, Observed, check_heads, one_of, option, self_loops
from difformer.zoo.linear_maps import linear, make_norm

METHODS = ("euler", "rk4", "dopri5")


def integrate(
    target: Transform, z: Tensor, steps: int, step: float | Tensor, method: str, tolerance: float = 1e-3
) -> Tensor:
    """The solution of ∂Z/∂t = target(Z) - Z at time ``steps × step``; ``"dopri5"`` chooses its own steps."""

    def rate(z: Tensor) -> Tensor:
        return target(z) - z

    if method == "dopri5":
        odeint = require("torchdiffeq", extra="ode", purpose="method='dopri5'").odeint
        times = torch.tensor([0.0, float(steps * step)], dtype=z.dtype, device=z.device)
        return odeint(lambda _, states: rate(states), z, times, method="dopri5", rtol=tolerance, atol=tolerance)[-1]
    for _ in range(steps):
        if method == "rk4":
            first = rate(z)
            second = rate(z + step / 2 * first)
            third = rate(z + step / 2 * second)
            z = z + step / 6 * (first + 2 * second + 2 * third + rate(z + step * third))
        else:  # one operation, or none for a step of length one
            z = target(z) if isinstance(step, (int, float)) and step == 1 else torch.lerp(z, target(z), step)
    return z


class GRAND(Encoder):
    r"""Graph neural diffusion (Chamberlain et al., ICML 2021), between a linear input and a linear output layer:

    .. math::
        \frac{\partial Z}{\partial t} = (S(Z) - I) Z, \qquad
        s_{ij} = \frac1H \sum_h \mathrm{softmax}_{j \in N(i)} \frac{(W_Q^h z_i)^\top W_K^h z_j}{\sqrt{d_h}},

    where N(i) includes i; an edge's weight multiplies its exponential. GRAND-l (``linear=True``) computes S once, at
    Z(0). Rows of S sum to one, so Euler steps are stable for τ up to one.
    """

    linear: bool = option(False, "Whether attention is computed once, at the initial states.")
    num_layers: int = option(8, "Steps of the solver.")
    step_size: float = option(1.0, "τ; the time is ``num_layers × step_size`` unless `time` is given.")
    time: float | None = option(None, "T; if given, each step has length T / `num_layers`.")
    method: str = one_of(*METHODS, about="dopri5 (torchdiffeq) is adaptive; `num_layers` then only determines T.")
    tolerance: float = option(1e-3, 'Relative and absolute tolerance of ``"dopri5"``.')
    num_heads: int | None = option(None, "Heads, averaged; None uses 4, or its largest divisor that fits.")
    dropout: float = option(0.5, "Before each of the two linear maps, including on the features.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.heads = check_heads(self.num_heads, hidden_channels, default=4)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.query, self.key = (nn.Linear(hidden_channels, hidden_channels) for _ in range(2))
        self.output = nn.Linear(hidden_channels, out_channels)

    def attention(self, z: Tensor, graph: Graph) -> Tensor:
        """S(Z) on the edges of `graph`, ``[E, 1]``: the mean over heads."""
        shape = (self.heads, self.query.out_features // self.heads)
        scale = shape[1] ** -0.5  # applied to the map, which is smaller than the queries
        q = functional.linear(z, scale * self.query.weight, scale * self.query.bias).unflatten(1, shape)
        each = edge_softmax(edge_scores(q, self.key(z).unflatten(1, shape), graph), graph)
        return each @ each.new_full((self.heads, 1), 1 / self.heads)

    def source(self, initial: Tensor) -> Tensor | None:
        """A constant term of ∂Z/∂t; None here."""
        return None

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        passes = self.num_layers * (4 if self.method == "rk4" else 1)
        sizes, remedy = (self.heads, self.output.in_features, passes), "train with batch_size=…, or fewer layers"
        check_attention_memory(f"a diffusion of {passes} evaluations", [graph], *sizes, remedy)
        z = linear(self.input, x, self.dropout, self.training)
        step = self.step_size if self.time is None else self.time / self.num_layers
        source = self.source(z)
        fixed = self.attention(z, graph) if self.linear else None

        def target(z: Tensor) -> Tensor:
            weights = self.attention(z, graph) if fixed is None else fixed
            spread = edge_sum(weights, z.unsqueeze(1), graph).squeeze(1)
            return spread if source is None else spread + source

        z = integrate(target, z, self.num_layers, step, self.method, self.tolerance)
        return dropout(functional.relu(z), self.dropout, self.training)


class GRANDPlusPlus(GRAND):
    r"""GRAND++ (Thorpe et al., ICLR 2022): GRAND with a source at the labelled nodes I,

    .. math::
        \frac{\partial z_i}{\partial t} = \sum_j s_{ij} z_j - z_i + β \, [\, i \in I \,] \, (z_i(0) - \bar z),
        \qquad \bar z = \frac{1}{|I|} \sum_{j \in I} z_j(0),

    which prevents states from collapsing over long times. There is no source until `observe` names the labelled nodes.
    The model needs the whole graph.
    """

    source_weight: float = option(1.0, "β.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().make(in_channels, hidden_channels, out_channels)
        # Not saved, since it belongs to the graph; a buffer, since each run of a stack may have its own labels.
        self.register_buffer("labelled", None, persistent=False)
        self.labelled: Tensor | None

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Marks the labelled nodes; the labels themselves are ignored."""
        labelled = torch.zeros(y.shape[0], dtype=torch.bool, device=y.device)
        self.labelled = labelled.index_fill(0, train_index, True)

    def source(self, initial: Tensor) -> Tensor | None:
        """β (z_i(0) - z̄) at labelled nodes, zero elsewhere."""
        if self.labelled is None:
            return None
        if self.labelled.numel() != initial.shape[0]:
            problem = f"grand++ has observed {self.labelled.numel()} nodes, but there are {initial.shape[0]}: it needs "
            problem += "the whole graph; leave batch_size out, or call observe(y, train_index) for this graph"
            raise UserError(problem)
        here = self.labelled.unsqueeze(1).to(initial.dtype)
        mean = (here * initial).sum(0) / here.sum().clamp_min(1)
        return self.source_weight * here * (initial - mean)


class EdgeDiffusion(Encoder):
    r"""Steps of energy-constrained diffusion over observed edges,

    .. math::
        Z^{(k+1)} = (1 - τ) h(Z^{(k)}) + τ S^{(k)} h(Z^{(k)}) + τ β Z^{(0)}, \qquad
        s_{ij} = \frac{a_{ij} \, g(\tilde z_i^\top \tilde z_j)}
        {\sum_{l \in N(i)} a_{il} \, g(\tilde z_i^\top \tilde z_l)},

    between the input and output layers of `difformer.nn.DIFFormer`. N(i) includes i, so every row of S sums to one. S
    is computed from the states h(Z), without queries and keys.
    """

    num_layers: int = option(2, "Steps.", least=0)
    diffusivity: str | Diffusivity = option("simple", "g: a name or a `Diffusivity`.")
    similarity: str = one_of("cosine", "distance", about="cosine as above; distance uses f(‖z_i - z_j‖²) instead of g.")
    step_size: float = option(0.5, "τ.", within="(0, 1]")
    source_weight: float = option(0.0, "β; above 0 each step adds τβZ⁰.")
    transform: bool = option(True, "Whether h is a linear map per step; otherwise the identity.")
    norm: bool = option(True, "Whether a LayerNorm follows the input layer and each step.")
    dropout: float = option(0.0, "After the input layer and after each step.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        EdgeAttention(self_loops(1), self.diffusivity, self.similarity)  # checks the diffusivity
        self.input = nn.Linear(in_channels, hidden_channels)
        self.norms = nn.ModuleList(make_norm(self.norm, hidden_channels) for _ in range(self.num_layers + 1))
        self.maps = nn.ModuleList(
            nn.Linear(hidden_channels, hidden_channels) if self.transform else nn.Identity()
            for _ in range(self.num_layers)
        )
        self.output = nn.Linear(hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        # A step stores states along edges, as attention with a head per channel does.
        sizes, remedy = (self.output.in_features, 0, len(self.maps)), "train with batch_size=…, or fewer layers"
        check_attention_memory(f"{len(self.maps)} steps of edge attention", [graph], *sizes, remedy)
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
