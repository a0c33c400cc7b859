r"""Learning discrete structures of Franceschi et al. (ICML 2019): a graph whose edges are random, and trained.

Every pair of nodes is joined with its own probability θ_ij. The probabilities are the outer variables of a bilevel
problem, the weights w of a graph convolutional network the inner ones:

.. math::
    \min_θ \; \mathbb{E}_{A \sim \mathrm{Ber}(θ)} F(w_θ, A), \qquad
    w_θ = \arg\min_w \; \mathbb{E}_{A \sim \mathrm{Ber}(θ)} L(w, A),

L being the loss on one part of the labels and F that on another one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.conv import check_count
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate
from difformer.zoo.inputs import refuse_beyond_memory
from difformer.zoo.lds_network import Network, Weights, network_states
from difformer.zoo.lds_outer import OuterStep
from difformer.zoo.neighbour_graph import NeighbourGraph


class LDS(Encoder):
    r"""A graph convolutional network on graphs that are drawn edge by edge from learned probabilities.

    The training loop trains the network on all training labels, on a graph drawn anew for every pass. Every
    `outer_every` passes the model makes one step of the outer problem by itself: `inner_steps` steps of gradient
    descent of a second network w on one half of the training labels, each on a graph of its own, then the loss F of the
    other half, whose gradient goes back through all these steps to the graphs and, straight through the drawing, to θ:

    .. math::
        w_{s+1} = w_s - γ \nabla_w L(w_s, A_s), \qquad
        θ \leftarrow \mathrm{clip}\Big(θ - η \sum_s \frac{∂F(w_τ, A_τ)}{∂A_s}, 0, 1\Big).

    Which half is which is drawn anew at each restart of w. (The paper takes F from validation labels; here they choose
    the epoch, as for every system.) θ begins as the observed graph, or as neighbours in feature space where nothing is
    observed. Outputs in evaluation are those of the mean graph θ, or the mean over drawn graphs.

    The graph belongs to the nodes it was learned for: new rows may follow them, joined by their own edges.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Classes.
        num_layers: Convolutions, the output's included.
        dropout: After each ReLU.
        outer_every: Passes of training from one outer step to the next.
        outer_rate: η.
        inner_steps: τ.
        inner_rate: γ.
        restart_every: Outer steps after which w begins anew.
        samples: Graphs drawn for an evaluation; 0 uses the mean graph.
        k: Neighbours of a node where nothing is observed, itself counted.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.5,
        outer_every: int = 5,
        outer_rate: float = 1.0,
        inner_steps: int = 5,
        inner_rate: float = 1.0,
        restart_every: int = 20,
        samples: int = 0,
        k: int = 10,
    ) -> None:
        super().__init__()
        check_layers(num_layers, least=2)
        check_rate("dropout", dropout)
        for name, value in {
            "outer_every": outer_every,
            "inner_steps": inner_steps,
            "restart_every": restart_every,
        }.items():
            check_count(name, value, 1)
        check_positive("outer_rate", outer_rate)
        check_positive("inner_rate", inner_rate)
        check_count("samples", samples, 0)
        self.network = Network(in_channels, hidden_channels, num_layers)
        self.output = nn.Linear(hidden_channels, out_channels)
        self.dropout, self.outer_every, self.samples = dropout, outer_every, samples
        self.neighbours = NeighbourGraph(k)
        self.outer = OuterStep(
            in_channels, hidden_channels, out_channels, num_layers,
            rate=outer_rate, inner_steps=inner_steps, inner_rate=inner_rate, restart_every=restart_every,
        )  # fmt: skip
        # N is not known yet; a saved model brings its own.
        self.register_buffer("theta", torch.empty(0, 0))
        self.register_buffer("seen", torch.zeros(in_channels))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.theta: Tensor
        self.seen: Tensor
        self.passes: Tensor
        self._labels: tuple[Tensor, Tensor] | None = None

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Takes the training labels, of which both parts of the bilevel problem are made."""
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(f"lds needs one class number an instance, got {y.dtype} {tuple(y.shape)}")
        known = train_index[y[train_index] >= 0]
        self._labels = (known, y[known])

    def prepare(self, x: Tensor, edge_index: Any, edge_weight: Any) -> tuple[Tensor, Any, Any]:
        """Begins with the probabilities of the observed graph, unless there are learned ones; inputs stay."""
        if not self.theta.numel():
            self._begin(x, None if edge_index is None else Graph(edge_index, x.shape[0], edge_weight))
        return x, edge_index, edge_weight

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        if structure.segments is not None and structure.segments.num_graphs > 1:
            raise ValueError("lds learns the edges of one graph; it serves nodes, neither batches of graphs nor series")
        if not self.theta.numel():
            self._begin(x, structure.graph)
        if not self.training:
            return self._evaluated(x, structure.graph)
        self._check_rows(x, exactly=True)
        if self._labels is not None and int(self.passes) % self.outer_every == 0:
            self.outer.step(self.theta, x, *self._labels)
        self.passes += 1
        return self._states(x, draw(self.theta), drop=True)

    def _states(self, x: Features, adjacency: Tensor, drop: bool = False) -> Tensor:
        return network_states(self.network.weights(), x, adjacency, self.dropout if drop else 0.0)

    def _evaluated(self, x: Features, graph: Graph | None) -> Tensor:
        self._check_rows(x, exactly=False)
        theta = self._with_new_rows(x.shape[0], graph)
        if not self.samples:
            return self._states(x, theta)
        generator = torch.Generator(theta.device).manual_seed(0)  # an evaluation says the same when asked again
        return torch.stack([self._states(x, draw(theta, generator)) for _ in range(self.samples)]).mean(0)

    def _begin(self, x: Features, graph: Graph | None) -> None:
        rows = x.shape[0]
        device = self.theta.device
        copies = 8 + 4 * self.outer.inner_steps
        refuse_beyond_memory(
            4.0 * copies * rows**2,
            device,
            f"lds, which learns {rows:,}² edge probabilities and differentiates {self.outer.inner_steps} inner steps,",
            "take another system for as many nodes, or fewer inner_steps",
        )
        with torch.no_grad():
            if graph is None or not graph.num_edges:
                graph = self.neighbours(x)
            source, target = graph.edge_index.to(device)
            theta = torch.zeros(rows, rows, device=device)
            theta[target, source] = 1.0
            theta[source, target] = 1.0  # one probability for both directions
            self.theta = theta.fill_diagonal_(0.0)  # every node keeps a self-loop of its own
            self.seen = _sums(x, rows).to(device)

    def _check_rows(self, x: Features, exactly: bool) -> None:
        known = self.theta.shape[0]
        if x.shape[0] < known or (exactly and x.shape[0] > known):
            raise ValueError(
                f"lds has learned the edges of {known} nodes, got {x.shape[0]} rows; give it all its nodes"
            )
        if not torch.allclose(_sums(x, known).to(self.seen), self.seen, rtol=1e-3, atol=1e-3):
            raise ValueError(
                f"lds has learned the edges of {known} nodes, but the first {known} rows are others; new ones follow"
            )

    def _with_new_rows(self, rows: int, graph: Graph | None) -> Tensor:
        known = self.theta.shape[0]
        if rows == known:
            return self.theta
        theta = nn.functional.pad(self.theta, (0, rows - known, 0, rows - known))
        if graph is not None:
            source, target = graph.edge_index
            new = ((source >= known) | (target >= known)) & (source != target)
            theta[target[new], source[new]] = 1.0
        return theta

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found = state_dict.get(prefix + "theta")
        if found is not None and found.shape != self.theta.shape:
            self.theta = self.theta.new_empty(found.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def draw(theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A symmetric graph ``[N, N]`` of zeros and ones, each pair joined with its probability."""
    upper = (torch.rand(theta.shape, generator=generator, device=theta.device) < theta).to(theta.dtype).triu_(1)
    return upper.T.contiguous().add_(upper)  # a transposed operand would be read across rows


def _sums(x: Features, rows: int) -> Tensor:
    """``[F]``: sums of the first rows, by which they are known again."""
    first = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    first[:rows] = 1.0
    with torch.autocast(x.device.type, enabled=False):  # the same in training of any precision
        if isinstance(x, Tensor):
            return (x.T.to_dense() @ first if x.layout == torch.strided else x.to_sparse_coo().T @ first).squeeze(1)
        return (x.T @ first).squeeze(1)


__all__ = ["LDS", "Weights", "draw"]
