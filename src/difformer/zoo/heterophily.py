r"""Models for heterophilous graphs: H2GCN, FSGNN, GloGNN, CPGNN and LINKX."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.kernels.rows import unit_rows
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.zoo.encoder import Encoder, Labelled, Observed, Passes, Penalised, one_of, option, refuse_beyond_memory
from difformer.zoo.linear_maps import linear, mapped
from difformer.zoo.node_pairs import by_graph

MOST_CHANNELS = 1 << 16


def rings(graph: Graph) -> tuple[Graph, Graph]:
    """The graphs of nodes at exactly one and exactly two hops; directed, without weights, repeated edges or loops."""
    from scipy.sparse import coo_array

    n = graph.num_nodes
    source, target = (end.numpy() for end in graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]].cpu())
    one = coo_array((torch.ones(len(source)).numpy(), (target, source)), shape=(n, n)).tocsr()
    one.data[:] = 1
    walks = float((one @ one.sum(axis=1)).sum())  # of two steps: a bound on the entries of A²
    needed, what = 32.0 * min(walks, float(n) ** 2), f"h2gcn on the {walks:,.0f} walks of two steps"
    refuse_beyond_memory(needed, graph.device, what, "use another model")
    two = one @ one
    two.setdiag(0)
    two = two.astype(bool).astype("float32")
    two = two - two.multiply(one)
    two.eliminate_zeros()
    entries = (matrix.tocoo() for matrix in (one, two))
    ends = [torch.stack([torch.from_numpy(end.astype("int64")) for end in (part.col, part.row)]) for part in entries]
    return Graph(ends[0].to(graph.device), n), Graph(ends[1].to(graph.device), n)


class H2GCN(Encoder):
    r"""H2GCN (Zhu et al., NeurIPS 2020): concatenated means over neighbours at one and two hops, from all rounds.

    .. math::
        R^{(0)} = \mathrm{ReLU}(X W_e), \qquad
        R^{(k)} = \big[\, \bar A_1 R^{(k-1)} \,\Vert\, \bar A_2 R^{(k-1)} \,\big], \qquad
        \hat Y = \mathrm{dropout}(R^{(0)} \Vert \cdots \Vert R^{(K)}) W_c + b,

    where Ā_1 and Ā_2 are the graphs of nodes at exactly one and two hops (`rings`), each normalised by 1/√(d_i d_j)
    with its own degrees. Each round doubles the channels, to (2^{K+1} - 1) times `hidden_channels` in total.

    Args:
        hidden_channels: Length of R⁰.
    """

    num_layers: int = option(2, "K, number of rounds.", least=0)
    dropout: float = option(0.5, "Before the output.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        channels = (2 ** (self.num_layers + 1) - 1) * hidden_channels
        if channels > MOST_CHANNELS:
            problem = f"num_layers={self.num_layers} gives h2gcn (2^{self.num_layers + 1} - 1) × {hidden_channels} = "
            problem += f"{channels:,} channels, at most {MOST_CHANNELS:,} are possible; take fewer layers (the paper "
            problem += "takes 1 or 2)"
            raise UserError(problem)
        self.input = nn.Linear(in_channels, hidden_channels, bias=False)
        self.output = nn.Linear(channels, out_channels)
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self._rings: ResultCache[tuple[Graph, Graph]] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        """The concatenated rounds, ``[N, (2^{K+1} - 1) hidden]``."""
        graph = observed.graph
        found = [functional.relu(linear(self.input, x))]
        near = None if graph is None else self._rings.of(graph, (), lambda: rings(graph))
        for _ in range(self.num_layers):
            last = found[-1]
            parts = [torch.zeros_like(last)] * 2 if near is None else [ring.propagate(last) for ring in near]
            found.append(torch.cat(parts, 1))
        return dropout(torch.cat(found, 1), self.dropout, self.training)


class FSGNN(Encoder):
    r"""FSGNN (Maurya, Liu and Murata, 2021): a linear map of each of 2K + 1 feature matrices, weighted by a softmax.

    .. math::
        \mathcal X = \{ X, \; S X, \tilde S X, \; S^2 X, \tilde S^2 X, \; …, \; S^K X, \tilde S^K X \}, \qquad
        \hat Y = \mathrm{dropout}(\mathrm{ReLU}(\Vert_m \, α_m \, \mathrm{unit}(X_m W_m + b_m))) \, W_O + b,

    with S = D^{-1/2} A D^{-1/2} without and S̃ with self-loops, α = softmax(a), and rows scaled to unit length.
    Propagation and map commute, so the mapped features are propagated.

    Args:
        hidden_channels: Channels of each mapped matrix; a state concatenates 2K + 1 of them.
    """

    num_layers: int = option(3, "K, number of hops.", least=0)
    dropout: float = option(0.5, "Before the output.")
    unit_length: bool = option(True, "Whether mapped rows are scaled to unit length.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        count = 2 * self.num_layers + 1
        self.maps: Any = nn.ModuleList(nn.Linear(in_channels, hidden_channels) for _ in range(count))
        self.selection = nn.Parameter(torch.ones(count))
        self.output = nn.Linear(count * hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """The concatenated, weighted features, ``[N, (2K + 1) hidden]``."""
        bare, looped, shares = observed.loopless, observed.looped, torch.softmax(self.selection, 0)
        parts = []
        for m, layer in enumerate(self.maps):
            z = mapped(layer.weight, x)
            # Matrices 2k - 1 and 2k have k hops, without and with self-loops.
            graph = bare if m % 2 else looped
            for _ in range((m + 1) // 2):
                z = torch.zeros_like(z) if graph is None else graph.propagate(z)
            z = z + layer.bias
            parts.append(shares[m] * (unit_rows(z) if self.unit_length else z))
        return dropout(functional.relu(torch.cat(parts, 1)), self.dropout, self.training)


def rebuilt(
    h: Tensor, h0: Tensor, graph: Graph, hops: Tensor, batch: Segments | None, gamma: float, beta1: float, beta2: float
) -> Tensor:
    r"""Z* H within each graph, from H and H₀ ``[N, d]``, without forming the coefficients

    .. math::
        Z^* = \arg\min_Z \; ‖H - (1 - γ) Z H - γ H_0‖_F^2 + β_1 ‖Z‖_F^2 + β_2 ‖Z - \textstyle\sum_k λ_k S^k‖_F^2 .

    With T = H C⁻¹ and the small matrix C = (1-γ)² HᵀH + (β_1 + β_2) I, the minimum is at

    .. math::
        Z^* H = (1-γ) (H - γ H_0) (H^\top T) + β_2 \textstyle\sum_k λ_k S^k T, \qquad O(N d^2 + K E d).
    """
    small = by_graph(lambda _, x: _shrunk(x, (1 - gamma) ** 2, beta1 + beta2), batch, h)
    answer = (1 - gamma) * by_graph(lambda _, a, b, c: a @ (b.mT @ c), batch, h - gamma * h0, h, small)
    if beta2:
        spread = small
        for share in hops:
            spread = graph.propagate(spread)
            answer = answer + beta2 * share * spread
    return answer


def _shrunk(h: Tensor, scale: float, ridge: float) -> Tensor:
    """T = H C⁻¹ for a block of graphs; zero padding stays zero."""
    # In double precision, so that rounding of HᵀH does not outweigh the ridge. A singular matrix gives NaN, which the
    # loss reports: `torch.linalg.solve` would synchronise with the GPU to raise.
    wide = h if h.device.type == "mps" else h.double()
    eye = torch.eye(h.shape[-1], dtype=wide.dtype, device=h.device)
    factor, failed = torch.linalg.cholesky_ex(scale * (wide.mT @ wide) + ridge * eye)
    # A CUDA graph can record triangular solves, unlike a batched `cholesky_inverse`.
    root = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    inverse = (root.mT @ root).masked_fill((failed > 0)[..., None, None], torch.nan)
    return (wide @ inverse).to(h.dtype)


class GloGNN(Encoder):
    r"""GloGNN (Li et al., ICML 2022): an MLP, then layers :math:`H^{(l+1)} = (1 - γ) Z^* H^{(l)} + γ H_0`.

    The coefficients Z* reconstruct each state from the others and stay close to powers of the graph (`rebuilt`), whose
    weights λ are trained. S is D̃^{-1/2} (A + I) D̃^{-1/2}. H₀ depends on the features only (the paper's α = 0).
    """

    num_layers: int = option(2, "Layers.", least=0)
    dropout: float = option(0.5, "On the features and before the second map of the MLP.")
    gamma: float = option(0.3, "γ, share of H₀.")
    beta1: float = option(1.0, "β_1, penalty of large coefficients.")
    beta2: float = option(1000.0, "β_2, pull towards the graph, relative to the sum HᵀH over all nodes.")
    hops: Any = option(3, "K, powers of S.")  # a count; `make` replaces it by the parameter λ

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        if self.beta1 == self.beta2 == 0:
            raise UserError("beta1 and beta2 must not both be zero")
        self.first = nn.Linear(in_channels, hidden_channels)
        self.second = nn.Linear(hidden_channels, hidden_channels)
        self.hops = nn.Parameter(torch.full((self.hops,), 1.0 / self.hops))
        self.output = nn.Linear(hidden_channels, out_channels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        graph = observed.looped
        z = functional.relu(linear(self.first, x, self.dropout, self.training))
        h = h0 = self.second(dropout(z, self.dropout, self.training))
        for _ in range(self.num_layers):
            again = rebuilt(h, h0, graph, self.hops, observed.segments, self.gamma, self.beta1, self.beta2)
            h = (1 - self.gamma) * again + self.gamma * h0
        return h


SINKHORN_STEPS = 1000
SINKHORN_ERROR = 1e-6


def sinkhorn(matrix: Tensor) -> Tensor:
    """The doubly stochastic matrix D₁ M D₂ of a non-negative matrix M, by alternating normalisation."""
    m = matrix.double().clamp_min(1e-12)
    for _ in range(SINKHORN_STEPS):
        m = m / m.sum(1, keepdim=True)
        m = m / m.sum(0, keepdim=True)
        if float((m.sum(1) - 1).abs().max()) < SINKHORN_ERROR:
            break
    return m.to(matrix.dtype)


def estimated_compatibility(graph: Graph, prior: Tensor, labels: Tensor, index: Tensor) -> Tensor:
    r"""H ``[C, C]``, how often classes are adjacent: :math:`\mathrm{Sinkhorn}(Y^\top A \tilde B)`.

    Y are the known labels; B̃ are the known labels and, elsewhere, the prior beliefs.
    """
    known = functional.one_hot(labels, prior.shape[1]).to(prior.dtype)
    beliefs = prior.index_copy(0, index, known)
    return sinkhorn(known.T @ graph.propagate(beliefs, "none")[index])


class CPGNN(Penalised, Labelled):
    r"""CPGNN (Zhu et al., AAAI 2021): linearised propagation of the beliefs of an MLP.

    .. math::
        B_p = \mathrm{softmax}(\mathrm{MLP}(X)), \quad \bar B^{(0)} = B_p - \tfrac1C, \quad
        \bar B^{(k)} = \bar B^{(0)} + A \bar B^{(k-1)} \bar H, \quad \hat Y = \mathrm{softmax}(\bar B^{(K)}),

    with A the observed edges without self-loops and H̄ = H - 1/C. The MLP trains alone for `pretraining` passes; then H
    is estimated from the beliefs and the labels passed to `observe`, and trained with the MLP.

    Args:
        hidden_channels: Length of the states of the MLP.
    """

    num_layers: int = option(2, "K, number of propagations.", least=0)
    dropout: float = option(0.5, "Within the MLP.")
    prior_layers: int = option(2, "Linear maps of the MLP.")
    pretraining: int = option(100, "Training passes of the MLP alone.", least=0)
    prior_loss: float = option(1.0, "η, weight of the loss of the MLP.")
    centring: float = option(1.0, "Weight of Σ_i |Σ_j H̄_ij|, which keeps H doubly stochastic.")
    graph_norm: str = one_of("none", "gcn", "random_walk", about="Normalisation of A by degrees.")

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        sizes = [in_channels, *[hidden_channels] * (self.prior_layers - 1), out_channels]
        self.prior = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.compatibility = nn.Parameter(torch.zeros(out_channels, out_channels))
        self.passes = nn.Buffer(torch.zeros((), dtype=torch.long))
        self._passes = Passes()

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Centred beliefs after the last propagation, ``[N, C]``; during pretraining the outputs of the MLP."""
        observed.one_graph("cpgnn", "knows labels of one graph's nodes")
        logits = linear(self.prior[0], x, self.dropout, self.training)  # type: ignore[arg-type]
        for layer in self.prior[1:]:
            logits = layer(dropout(functional.relu(logits), self.dropout, self.training))
        if self.training:
            self._passes.add(self.passes)
        self._penalty = logits.new_zeros(())
        graph, passes = observed.loopless, self._passes.of(self.passes)
        if graph is None or passes <= self.pretraining:
            return logits
        beliefs = torch.softmax(logits, 1)
        if self.training and passes == self.pretraining + 1:
            if self._labels is None:
                problem = "cpgnn estimates compatibility from labels; call observe(y, train_index) before training"
                raise UserError(problem)
            with torch.no_grad():
                found = estimated_compatibility(graph, beliefs, *self._labels[::-1])
                self.compatibility.copy_(found - 1 / found.shape[0])
        if self.training and self._labels is not None:
            index, labels = self._labels
            self._penalty = self.prior_loss * functional.cross_entropy(logits[index], labels)
        self._penalty = self._penalty + self.centring * self.compatibility.sum(1).abs().sum()
        start = beliefs - 1 / beliefs.shape[1]
        now = start
        for _ in range(self.num_layers):
            now = start + graph.propagate(now, self.graph_norm) @ self.compatibility
        return now

    def decode(self, states: Tensor) -> Tensor:
        return states


class Perceptron(nn.Module):
    """Linear maps with ReLU, BatchNorm and dropout, in that order, between them."""

    def __init__(self, sizes: list[int], dropout: float) -> None:
        super().__init__()
        self.maps: Any = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:-1])
        self.dropout = dropout

    def forward(self, z: Features) -> Tensor:
        for layer, norm in zip(self.maps, self.norms, strict=False):
            z = dropout(norm(functional.relu(linear(layer, z))), self.dropout, self.training)
        return linear(self.maps[-1], z)


class LINKX(Encoder):
    r"""LINKX (Lim et al., NeurIPS 2021): separate MLPs of structure and features, joined by a third:

    .. math::
        H_A = \mathrm{MLP}_A(A), \quad H_X = \mathrm{MLP}_X(X), \quad
        \hat Y = \mathrm{MLP}_f\big( σ(W_A H_A + W_X H_X + H_A + H_X) \big).

    The first map of A has one row of weights per node, so the model belongs to the nodes of one graph; new nodes may
    follow them and enter by their edges to old ones. The layers equal those of PyTorch Geometric's ``LINKX``.
    """

    num_layers: int = option(2, "Linear maps of MLP_f, including the output layer.")
    edge_layers: int = option(1, "Linear maps of MLP_A.")
    feature_layers: int = option(1, "Linear maps of MLP_X.")
    dropout: float = option(0.5, "Within the MLPs.")
    num_nodes: int | None = option(None, "N; None uses that of the task or of the first pass.", least=0)

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        h = hidden_channels
        self.edge_bias = nn.Parameter(torch.zeros(h))
        self.edge_norm = nn.BatchNorm1d(h) if self.edge_layers > 1 else None
        self.edges = Perceptron([h] * self.edge_layers, self.dropout) if self.edge_layers > 1 else None
        self.features = Perceptron([in_channels] + [h] * self.feature_layers, self.dropout)
        self.join_edges, self.join_features = nn.Linear(h, h), nn.Linear(h, h)
        self.hidden = Perceptron([h] * self.num_layers, self.dropout) if self.num_layers > 1 else None
        self.hidden_norm = nn.BatchNorm1d(h) if self.num_layers > 1 else None
        self.output = nn.Linear(h, out_channels)
        self.hidden_channels = hidden_channels
        self.register_parameter("nodes", None)
        self.nodes: nn.Parameter | None
        if self.num_nodes is not None:
            self._begin(self.num_nodes)

    def _begin(self, rows: int) -> None:
        like = self.edge_bias
        bound = rows**-0.5 if rows else 1.0
        weight = torch.empty(rows, self.hidden_channels, dtype=like.dtype, device=like.device).uniform_(-bound, bound)
        self.nodes = nn.Parameter(weight)

    def states(self, x: Features, observed: Observed) -> Tensor:
        observed.one_graph("linkx", "knows the nodes of one graph")
        rows = observed.rows
        if self.nodes is None:
            self._begin(rows)
        assert self.nodes is not None
        known = self.nodes.shape[0]
        if rows < known or (self.training and rows > known):
            problem = (
                f"linkx has weights for {known} nodes, got {rows} rows; give it the whole graph, without batch_size"
            )
            raise UserError(problem)
        structure = self.edge_bias.expand(rows, -1)
        if observed.graph is not None:
            padded = self.nodes if rows == known else functional.pad(self.nodes, (0, 0, 0, rows - known))
            structure = observed.graph.propagate(padded, "none") + self.edge_bias
        if self.edges is not None and self.edge_norm is not None:
            structure = self.edges(dropout(self.edge_norm(functional.relu(structure)), self.dropout, self.training))
        features = self.features(x)
        both = structure + self.join_edges(structure) + features + self.join_features(features)
        z = functional.relu(both)
        if self.hidden is None or self.hidden_norm is None:
            return z
        return dropout(self.hidden_norm(functional.relu(self.hidden(z))), self.dropout, self.training)
