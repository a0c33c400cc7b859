"""Graph neural diffusion: GRAND of Chamberlain et al. (ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate
from difformer.zoo.edges import attention_bytes, edge_scores, edge_softmax, edge_sum
from difformer.zoo.inputs import linear, observed_graph, refuse_beyond_memory
from difformer.zoo.solvers import check_method, integrate


class GRAND(Encoder):
    r"""A neural differential equation over observed edges, from a linear input to a linear output:

    .. math::
        \frac{\partial Z}{\partial t} = (S(Z) - I) Z, \qquad
        s_{ij} = \frac1H \sum_h \mathrm{softmax}_{j \in N(i)} \frac{(W_Q^h z_i)^\top W_K^h z_j}{\sqrt{d_h}},

    with neighbourhoods that hold the node itself. GRAND-l (``linear=True``) takes S at Z(0) and keeps it, so that the
    equation is a linear one. One Euler step of size τ is :math:`Z^{+} = (1 - τ) Z + τ S Z`, diffusion with edge
    attention; it is stable for every τ up to one, because rows of S sum to one. An edge's weight multiplies its
    exponential.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        linear: Whether attention is taken once, at the initial states.
        num_layers: Steps of the solver.
        step_size: τ; the time that is integrated over is ``num_layers × step_size`` unless `time` says otherwise.
        time: T; given, the steps are T / `num_layers` long.
        method: ``"euler"``, ``"rk4"``, or ``"dopri5"`` (adaptive, by torchdiffeq; `num_layers` then only gives T).
        tolerance: Relative and absolute tolerance of ``"dopri5"``.
        num_heads: Heads of the attention, averaged; None takes 4, or the largest part of it that divides
            `hidden_channels`.
        dropout: Before each of the two linear maps, on features too.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        linear: bool = False,
        num_layers: int = 8,
        step_size: float = 1.0,
        time: float | None = None,
        method: str = "euler",
        tolerance: float = 1e-3,
        num_heads: int | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_rate("dropout", dropout)
        check_positive("step_size", step_size)
        check_positive("tolerance", tolerance)
        check_method(method)
        if time is not None:
            check_positive("time", time)
        heads = math.gcd(4, hidden_channels) if num_heads is None else num_heads
        if heads < 1 or hidden_channels % heads:
            raise ValueError(f"num_heads must divide hidden_channels = {hidden_channels}, got {num_heads!r}")
        self.input = nn.Linear(in_channels, hidden_channels)
        self.query, self.key = (nn.Linear(hidden_channels, hidden_channels) for _ in range(2))
        self.output = nn.Linear(hidden_channels, out_channels)
        self.linear, self.num_layers, self.step_size, self.time = linear, num_layers, step_size, time
        self.method, self.tolerance, self.heads, self.dropout = method, tolerance, heads, dropout

    def attention(self, z: Tensor, graph: Graph) -> Tensor:
        """S(Z) on the edges of `graph`, ``[E, 1]``: the mean over heads."""
        shape = (self.heads, self.query.out_features // self.heads)
        scale = shape[1] ** -0.5  # on the map, which is small, not on the queries
        q = functional.linear(z, scale * self.query.weight, scale * self.query.bias).unflatten(1, shape)
        each = edge_softmax(edge_scores(q, self.key(z).unflatten(1, shape), graph), graph)
        return each @ each.new_full((self.heads, 1), 1 / self.heads)

    def source(self, initial: Tensor) -> Tensor | None:
        """What is added to the flow at every time; nothing here."""
        return None

    def towards(self, initial: Tensor, graph: Graph) -> Callable[[Tensor], Tensor]:
        """S(Z) Z and the source, as a function of Z: ∂Z/∂t is this less Z."""
        source = self.source(initial)
        fixed = self.attention(initial, graph) if self.linear else None

        def reached(z: Tensor) -> Tensor:
            weights = self.attention(z, graph) if fixed is None else fixed
            spread = edge_sum(weights, z.unsqueeze(1), graph).squeeze(1)
            return spread if source is None else spread + source

        return reached

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """ReLU of the states at the end of the integration."""
        graph = observed_graph(x.shape[0], edge_index, edge_weight, batch, self_loops=True, device=x.device)
        assert graph is not None  # there always are self-loops
        if torch.is_grad_enabled():
            passes = self.num_layers * (4 if self.method == "rk4" else 1)
            needed = attention_bytes(graph, self.heads, self.output.in_features, passes)
            what = f"a diffusion of {passes} evaluations on {graph.num_edges:,} edges"
            refuse_beyond_memory(needed, graph.device, what, "train with batch_size=…, or fewer layers")
        z = linear(self.input, x, self.dropout, self.training)
        step = self.step_size if self.time is None else self.time / self.num_layers
        reached = self.towards(z, graph)
        if self.method == "euler":  # one operation a step, and none where the step is a whole one
            for _ in range(self.num_layers):
                z = reached(z) if isinstance(step, (int, float)) and step == 1 else torch.lerp(z, reached(z), step)
        else:
            z = integrate(
                lambda z: reached(z) - z, z, self.num_layers, step, method=self.method, tolerance=self.tolerance
            )
        return dropout(functional.relu(z), self.dropout, self.training)
