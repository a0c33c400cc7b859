r"""Iterative deep graph learning of Chen, Wu and Zaki (NeurIPS 2020): better graphs from better states, in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.eager import is_eager
from difformer.kept import Kept
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.sparse import SparseMatrix
from difformer.zoo.base import Encoder, check_layers, check_rate, check_share
from difformer.zoo.feature_pairs import Points
from difformer.zoo.idgl_mixture import Matrix, Mixed, Mixture, is_moving
from difformer.zoo.inputs import dense, linear, observed_graph, refuse_beyond_memory
from difformer.zoo.neighbour_graph import NeighbourGraph
from difformer.zoo.pair_matrix import PairMatrix
from difformer.zoo.per_graph import pairs
from difformer.zoo.similarity import WeightedCosine, squared_distances

COPIES_A_STEP = 5  # of N² numbers that an iteration leaves behind for the backward pass


class IDGL(Encoder):
    r"""Convolutions over a graph that is learned from their own states, again and again until it stays.

    With A^(1) the similarity of features, A^(t) that of the states Z^(t-1) (`WeightedCosine`: the mean over heads of a
    weighted cosine, what is not above ε left out), f the division of rows by their sum, and L the observed graph
    D̃^{-1/2} (A + I) D̃^{-1/2} (neighbours in feature space where nothing is observed),

    .. math::
        \tilde A^{(t)} = λ L + (1 - λ) \{ η f(A^{(t)}) + (1 - η) f(A^{(1)}) \}, \qquad
        Z^{(t)} = \mathrm{ReLU}(\tilde A^{(t)} \cdots \mathrm{ReLU}(\tilde A^{(t)} X W_1) \cdots W_L).

    It stops, each graph of a batch for itself, once :math:`‖A^{(t)} - A^{(t-1)}‖_F^2 \le δ ‖A^{(1)}‖_F^2`. `embed`
    gives Ã Z of the last iteration. The paper's loss is the mean over iterations; here outputs are those of the last
    one, and the graph's own loss (`penalty`) is the mean over all.

    Where features are nowhere negative, as bags of words are, ε is 0 and there is one graph, no pair is looked at by
    itself (`difformer.zoo.gram_matrix`), and time and memory are linear in the nodes.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included; at least 2.
        dropout: After each ReLU.
        num_heads: Weightings of the cosine.
        epsilon: ε, similarity that is taken for none.
        graph_weight: λ, share of the observed graph.
        update_weight: η, share of the present states in the learned part.
        max_iterations: Graphs in all, that of the features included; the paper allows 10, at more than twice the time.
        tolerance: δ.
        smoothness: Weight of Σ A_ij ‖x_i - x_j‖² / (2 N²) in the loss.
        connectivity: Weight of -Σ_i log(Σ_j A_ij) / N.
        sparsity: Weight of ‖A‖_F² / N².
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
        num_heads: int = 4,
        epsilon: float = 0.0,
        graph_weight: float = 0.9,
        update_weight: float = 0.1,
        max_iterations: int = 4,
        tolerance: float = 4e-5,
        smoothness: float = 0.2,
        connectivity: float = 0.0,
        sparsity: float = 0.0,
        k: int = 20,
    ) -> None:
        super().__init__()
        check_layers(num_layers, least=2)
        check_rate("dropout", dropout)
        check_share("graph_weight", graph_weight)
        check_share("update_weight", update_weight)
        check_count("max_iterations", max_iterations, 1)
        self.of_features = WeightedCosine(in_channels, num_heads, epsilon)
        self.of_states = WeightedCosine(hidden_channels, num_heads, epsilon)
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(size, hidden_channels, bias=False) for size in sizes[:-1])
        self.output = nn.Linear(hidden_channels, out_channels)
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
        self.dropout, self.graph_weight, self.update_weight = dropout, graph_weight, update_weight
        self.max_iterations, self.tolerance = max_iterations, tolerance
        self.smoothness, self.connectivity, self.sparsity = smoothness, connectivity, sparsity
        self.neighbours = NeighbourGraph(k)
        self.iterations = 0  # of the last pass
        self._distances: Kept[PairMatrix] = Kept()
        self._points: Kept[Points] = Kept()
        self._penalty: Tensor | None = None

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states of the last iteration, before the last linear map."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        segments = structure.segments
        points = self._linear(x, segments)
        if points is None:
            self._refuse(x.shape[0], segments, x.device)
        if edge_index is None:
            graph = self.neighbours(x, segments)
        else:
            found = observed_graph(x.shape[0], structure.graph, self_loops=True, device=x.device)
            assert found is not None  # there always are self-loops
            graph = found
        first = self._similar(x, segments, points)
        penalties = [self._loss(first, x, points)]
        mapped = linear(self.hidden[0], x)  # type: ignore[arg-type]
        mixture = Mixture(graph, first, self.graph_weight, self.update_weight)
        always = mixture.settled(mapped)
        mixed = mixture.at(first)
        z = self._states(mixed, mapped, always)
        now, going = first, None
        self.iterations = 1
        while self.iterations < self.max_iterations:
            new: Matrix = self.of_states(z, segments) if points is None else self.of_states.factored(z)
            if going is not None and not all(bool(flag.all()) for flag in going):  # what has settled stays
                assert isinstance(new, PairMatrix)  # one graph alone ends below
                assert isinstance(now, PairMatrix)
                new = PairMatrix(tuple(map(torch.where, going, new.parts, now.parts)), segments)
            with torch.no_grad():
                going = is_moving(new, now, first, self.tolerance)
            now, self.iterations = new, self.iterations + 1
            mixed = mixture.at(now)
            penalties.append(self._loss(now, x, points))
            z = self._states(mixed, mapped, always)
            if not any(bool(flag.any()) for flag in going):
                break
        self._penalty = torch.stack(penalties).mean()
        return mixed(z)

    def penalty(self) -> Tensor:
        """The loss of the graphs of the last pass, a mean over them."""
        if self._penalty is None:
            raise ValueError("idgl has no graph yet: its penalty is that of the last forward pass")
        return self._penalty

    def _linear(self, x: Features, segments: Segments | None) -> Points | None:
        """The features as points, where no pair need be looked at by itself: the system is then linear in the nodes.

        That is for one graph whose features are nowhere negative, with ε = 0 and no loss of ‖A‖².
        """
        plain = x.rows.value if isinstance(x, SparseMatrix) else x
        if (
            segments is not None
            or self.sparsity
            or self.of_states.epsilon
            or plain.requires_grad
            or not is_eager(plain)
        ):
            return None
        points = self._points.of(x, (), lambda: Points(x))
        return points if points.serves else None

    def _similar(self, x: Features, segments: Segments | None, points: Points | None) -> Matrix:
        if points is None:
            return self.of_features(x, segments)
        is_sparse = isinstance(points.x, SparseMatrix)
        return self.of_features.factored(points if is_sparse else dense(x))

    def _states(self, mixed: Mixed, mapped: Tensor, always: Tensor) -> Tensor:
        z = dropout(functional.relu(mixed(mapped, always)), self.dropout, self.training)
        for layer in self.hidden[1:]:
            z = dropout(functional.relu(mixed(layer(z))), self.dropout, self.training)
        return z

    def _loss(self, matrix: Matrix, x: Features, points: Points | None) -> Tensor:
        rows = x.shape[0]
        loss = self.output.weight.new_zeros(())
        if self.smoothness:
            if isinstance(matrix, PairMatrix):
                key = () if matrix.segments is None else (matrix.segments.batch,)
                distances = self._distances.of(x, key, lambda: squared_distances(dense(x), matrix.segments))
                spread = matrix.map(torch.mul, distances).total()
            else:
                assert points is not None
                spread = matrix.spread(points)
            loss = loss + self.smoothness / (2 * rows**2) * spread
        if self.connectivity:
            loss = loss - self.connectivity / rows * matrix.row_sums().clamp_min(1e-12).log().sum()
        if self.sparsity:
            assert isinstance(matrix, PairMatrix)
            loss = loss + self.sparsity / rows**2 * matrix.map(torch.square).total()
        return loss

    def _refuse(self, rows: int, segments: Segments | None, device: torch.device) -> None:
        count = pairs(rows, segments)
        steps = self.max_iterations if torch.is_grad_enabled() else 1
        refuse_beyond_memory(
            4.0 * count * (COPIES_A_STEP * steps + 6),
            device,
            f"idgl, which learns {count:,} pairs in {self.max_iterations} iterations,",
            "take a smaller max_iterations, or another system",
        )
