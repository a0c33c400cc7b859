r"""LDS, learning discrete structures (Franceschi et al., ICML 2019): a random graph with learned edge probabilities.

Every pair of nodes has its own edge probability θ_ij. The probabilities are the outer variables of a bilevel problem,
the weights w of a graph convolutional network the inner ones:

.. math::
    \min_θ \; \mathbb{E}_{A \sim \mathrm{Ber}(θ)} F(w_θ, A), \qquad
    w_θ = \arg\min_w \; \mathbb{E}_{A \sim \mathrm{Ber}(θ)} L(w, A),

where L and F are the losses on two disjoint parts of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.graph import Graph
from difformer.nn.dropout import dropout, keyed_uniform
from difformer.nn.protocol import Features
from difformer.sparse import SparseMatrix
from difformer.zoo.encoder import Labelled, Observed, class_labels, one_of, option, refuse_beyond_memory
from difformer.zoo.linear_maps import mapped
from difformer.zoo.neighbour_graph import neighbour_graph


class LDS(Labelled):
    r"""A graph convolutional network on graphs drawn from learned edge probabilities.

    Each training pass of the network draws a new graph. Every `outer_every` passes, one outer step updates θ: a second
    network w takes `inner_steps` steps of gradient descent on one half of the training labels, each on its own graph;
    the gradient of the loss F on the other half flows back through these steps to the graphs and, by the
    straight-through estimator, to θ:

    .. math::
        w_{s+1} = w_s - γ \nabla_w L(w_s, A_s), \qquad
        θ \leftarrow \mathrm{clip}\Big(θ - η \sum_s \frac{∂F(w_τ, A_τ)}{∂A_s}, 0, 1\Big).

    Each restart of w draws new halves. In the paper F uses validation labels, as in ``"lds-valid"``, so its validation
    score is not on unseen labels. θ starts from the observed graph, or from nearest neighbours, and belongs to its
    nodes; new rows may follow them, with their own edges. Evaluation uses θ as the graph.
    """

    num_layers: int = option(2, "Convolutions, including the output layer.", least=2)
    dropout: float = option(0.5, "After each ReLU.")
    outer_every: int = option(5, "Training passes per outer step.")
    outer_rate: float = option(1.0, "η.")
    inner_steps: int = option(5, "τ.")
    inner_rate: float = option(1.0, "γ.")
    restart_every: int = option(20, "Outer steps between restarts of w.")
    samples: int = option(0, "Graphs drawn per evaluation; 0 uses the mean graph.", least=0)
    outer_labels: str = one_of("train", "validation", about="Labels of F; with train, F and L use one half each.")
    k: int = option(10, "Neighbours of a node, including itself, if no edges are given.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        sizes = [in_channels, *[hidden_channels] * (self.num_layers - 1)]
        weights = [nn.Parameter(nn.init.xavier_uniform_(torch.empty(a, b))) for a, b in pairwise(sizes)]
        biases = [nn.Parameter(torch.zeros(b)) for b in sizes[1:]]
        self.network = nn.ModuleDict({"maps": nn.ParameterList(weights), "biases": nn.ParameterList(biases)})
        self.output = nn.Linear(hidden_channels, out_channels)
        rates = self.outer_rate, self.inner_steps, self.inner_rate
        self.outer = OuterStep((*sizes, out_channels), *rates, self.restart_every)
        self.theta: Tensor = nn.Buffer(torch.empty(0, 0))  # resized in the first pass, or by a saved model
        self.seen: Tensor = nn.Buffer(torch.zeros(in_channels))
        self.passes: Tensor = nn.Buffer(torch.zeros((), dtype=torch.long))
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def observe_validation(self) -> Callable[[Tensor, Tensor], None] | None:
        """Stores the validation labels ``(y, valid_index)`` of the outer loss; None if it uses training labels."""

        def observe(y: Tensor, valid_index: Tensor) -> None:
            self._held = class_labels("lds", y, valid_index)

        return observe if self.outer_labels == "validation" else None

    def prepare(self, x: Tensor, edge_index: Any, edge_weight: Any) -> tuple[Tensor, Any, Any]:
        """Initialises θ from the observed graph unless it has been learned; returns the inputs unchanged."""
        if not self.theta.numel():
            self._begin(x, None if edge_index is None else Graph(edge_index, x.shape[0], edge_weight))
        return x, edge_index, edge_weight

    def states(self, x: Features, observed: Observed) -> Tensor:
        observed.one_graph("lds", "learns the edges of one graph")
        if not self.theta.numel():
            self._begin(x, observed.graph)
        if not self.training:
            return self._evaluated(x, observed.graph)
        self._check_rows(x, exactly=True)
        if self._labels is not None and int(self.passes) % self.outer_every == 0:
            if self.outer_labels == "validation" and self._held is None:
                raise UserError("lds-valid needs validation labels: call observe_validation(y, valid_index) first")
            self.outer.step(self.theta, x, *self._labels, held=self._held)
        self.passes += 1
        return self._states(x, draw(self.theta), drop=True)

    def _states(self, x: Features, adjacency: Tensor, drop: bool = False) -> Tensor:
        weights = list(zip(self.network["maps"], self.network["biases"], strict=True))  # type: ignore[call-overload]
        return network_states(weights, x, adjacency, self.dropout if drop else 0.0)

    def _evaluated(self, x: Features, graph: Graph | None) -> Tensor:
        self._check_rows(x, exactly=False)
        theta, rows, known = self.theta, x.shape[0], self.theta.shape[0]
        if rows > known:
            theta = functional.pad(theta, (0, rows - known, 0, rows - known))
            if graph is not None:
                source, target = graph.edge_index
                new = ((source >= known) | (target >= known)) & (source != target)
                theta[target[new], source[new]] = 1.0
        if not self.samples:
            return self._states(x, theta)
        generator = torch.Generator(theta.device).manual_seed(0)  # makes evaluation deterministic
        return torch.stack([self._states(x, draw(theta, generator)) for _ in range(self.samples)]).mean(0)

    def _begin(self, x: Features, graph: Graph | None) -> None:
        rows, device, copies = x.shape[0], self.theta.device, 8 + 4 * self.inner_steps
        what = f"lds, which learns {rows:,}² edge probabilities and differentiates {self.inner_steps} inner steps,"
        remedy = "use another model at this size, or fewer inner_steps"
        refuse_beyond_memory(4.0 * copies * rows**2, device, what, remedy)
        with torch.no_grad():
            if graph is None or not graph.num_edges:
                graph = neighbour_graph(x, self.k)
            source, target = graph.edge_index.to(device)
            theta = torch.zeros(rows, rows, device=device)
            theta[target, source] = 1.0
            theta[source, target] = 1.0  # one probability for both directions
            self.theta = theta.fill_diagonal_(0.0)  # self-loops are added in each propagation
            self.seen = _sums(x, rows).to(device)

    def _check_rows(self, x: Features, exactly: bool) -> None:
        known = self.theta.shape[0]
        if x.shape[0] < known or (exactly and x.shape[0] > known):
            raise UserError(f"lds has learned the edges of {known} nodes, got {x.shape[0]} rows; give it all its nodes")
        if not torch.allclose(_sums(x, known).to(self.seen), self.seen, rtol=1e-3, atol=1e-3):
            raise UserError(
                f"lds has learned the edges of {known} nodes, but the first {known} rows differ; put new rows last"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found = state_dict.get(prefix + "theta")
        if found is not None and found.shape != self.theta.shape:
            self.theta = self.theta.new_empty(found.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def draw(theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A random symmetric adjacency matrix ``[N, N]`` with these edge probabilities."""
    shape, device = theta.shape, theta.device
    uniform = _uniform(shape, device) if generator is None else torch.rand(shape, generator=generator, device=device)
    upper = (uniform < theta).to(theta.dtype).triu_(1)
    return upper.T.contiguous().add_(upper)  # reading a transposed operand would be slow


def _uniform(shape: Sequence[int], device: torch.device, *, nodes: bool = True) -> Tensor:
    """Uniform numbers on (0, 1), drawn by seed and epoch in a training run, else from torch's generator."""
    found = keyed_uniform(shape, device, nodes=nodes)
    return torch.rand(*shape, device=device) if found is None else found


def _sums(x: Features, rows: int) -> Tensor:
    """Column sums ``[F]`` of the first rows, which identify them."""
    first = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    first[:rows] = 1.0
    with torch.autocast(x.device.type, enabled=False):  # independent of the precision of training
        if isinstance(x, Tensor):
            return (x.T.to_dense() @ first if x.layout == torch.strided else x.to_sparse_coo().T @ first).squeeze(1)
        return (x.T @ first).squeeze(1)


Weights = list[tuple[Tensor, Tensor]]


def network_states(weights: Weights, x: Features, adjacency: Tensor, rate: float = 0.0) -> Tensor:
    """Propagated states before the linear map of the output layer, with dropout after each ReLU."""
    inverse = (adjacency.sum(1) + 1).rsqrt().unsqueeze(1)

    def propagate(z: Tensor) -> Tensor:
        z = inverse * z
        return inverse * (adjacency @ z + z)  # needs no second N × N tensor

    z = x
    for weight, bias in weights:
        z = functional.relu(propagate(mapped(weight.T, z)) + bias)
        z = dropout(z, rate, rate > 0)
    assert isinstance(z, Tensor)  # there is a hidden layer
    return propagate(z)


class OuterStep(nn.Module):
    """The outer step on θ, with the inner network w of layers between these sizes.

    The weights w are buffers, which the training loop saves and does not train.
    """

    def __init__(
        self, sizes: Sequence[int], rate: float, inner_steps: int, inner_rate: float, restart_every: int
    ) -> None:
        super().__init__()
        self.rate, self.inner_steps, self.inner_rate, self.restart_every = rate, inner_steps, inner_rate, restart_every
        self.sizes = sizes
        self.names = [f"w{k}" for k in range(2 * (len(sizes) - 1))]
        for name, tensor in zip(self.names, self._fresh(), strict=True):
            self.register_buffer(name, tensor)
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.long))
        self.halves_seed = nn.Buffer(torch.zeros((), dtype=torch.long))

    def _fresh(self) -> list[Tensor]:
        parts = []
        for a, b in pairwise(self.sizes):
            bound = math.sqrt(6 / (a + b))  # Glorot initialisation
            parts += [bound * (2 * _uniform((a, b), torch.device("cpu"), nodes=False) - 1), torch.zeros(b)]
        return parts

    def step(
        self, theta: Tensor, x: Features, index: Tensor, labels: Tensor, held: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Updates θ ``[N, N]`` in place, given the labels of the nodes `index`.

        `held` are the nodes and labels of F; if None, F and L use one half of the labelled nodes each.
        """
        if int(self.steps) % self.restart_every == 0:
            self._restart()
        self.steps += 1
        inner, outer = self.halves(labels) if held is None else (slice(None), slice(None))
        held = (index[outer], labels[outer]) if held is None else held
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.from_tensor(x)
        flat: list[Tensor] = [getattr(self, name) for name in self.names]
        with torch.inference_mode(False), torch.enable_grad():
            flat = [tensor.detach().requires_grad_() for tensor in flat]
            # Straight-through: gradients of the graphs count as gradients of θ.
            graphs = [draw(theta).requires_grad_() for _ in range(self.inner_steps + 1)]
            for graph in graphs[:-1]:
                loss = self._loss(flat, x, graph, index[inner], labels[inner])
                slopes = torch.autograd.grad(loss, flat, create_graph=True)
                flat = [w - self.inner_rate * slope for w, slope in zip(flat, slopes, strict=True)]
            reached = self._loss(flat, x, graphs[-1], *held)
            slopes = torch.autograd.grad(reached, graphs)
        total = torch.zeros_like(theta)
        for slope in slopes:
            total.add_(slope)
        total = total.T.contiguous().add_(total).fill_diagonal_(0.0)
        theta.sub_(total, alpha=self.rate).clamp_(0.0, 1.0)
        for name, w in zip(self.names, flat, strict=True):
            getattr(self, name).copy_(w.detach())

    def _restart(self) -> None:
        self.halves_seed.fill_(int(_uniform((1, 1), torch.device("cpu"), nodes=False) * 2**31))
        for name, tensor in zip(self.names, self._fresh(), strict=True):
            getattr(self, name).copy_(tensor)

    def halves(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the labels of L and of F: half of each class, L gets the odd one."""
        generator = torch.Generator().manual_seed(int(self.halves_seed))
        order = torch.randperm(labels.numel(), generator=generator).to(labels.device)
        by_class = order[torch.argsort(labels[order], stable=True)]
        return by_class[::2], by_class[1::2]

    def _loss(self, flat: list[Tensor], x: Features, adjacency: Tensor, index: Tensor, labels: Tensor) -> Tensor:
        weights: Weights = list(zip(flat[::2], flat[1::2], strict=True))
        states = network_states(weights[:-1], x, adjacency)
        last, bias = weights[-1]
        return functional.cross_entropy(states[index] @ last + bias, labels)
