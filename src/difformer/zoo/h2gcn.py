r"""H2GCN of Zhu et al. (NeurIPS 2020): a node apart from its neighbours, near ones apart from far ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.zoo.encoder import Encoder, Features, Graph, Observed, ResultCache, dropout, linear, refuse_beyond_memory

MOST_CHANNELS = 1 << 16


def rings(graph: Graph) -> tuple[Graph, Graph]:
    """Graphs of one hop and of exactly two: neighbours without the node, and their neighbours without both.

    Edges are taken as they point, each once and with weight one.

    Raises:
        MemoryError: If there are more pairs at two hops than fit into memory.
    """
    from scipy.sparse import coo_array

    n = graph.num_nodes
    source, target = (end.numpy() for end in graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]].cpu())
    one = coo_array((torch.ones(len(source)).numpy(), (target, source)), shape=(n, n)).tocsr()
    one.data[:] = 1
    walks = float((one @ one.sum(axis=1)).sum())  # walks of two steps: the entries of A² are at most as many
    refuse_beyond_memory(
        32.0 * min(walks, float(n) ** 2),
        graph.device,
        f"h2gcn on the {walks:,.0f} walks of two steps",
        "take another system",
    )
    two = one @ one
    two.setdiag(0)
    two = two.astype(bool).astype("float32")
    two = two - two.multiply(one)
    two.eliminate_zeros()
    return _graph(one, graph), _graph(two, graph)


def _graph(matrix: object, like: Graph) -> Graph:
    entries = matrix.tocoo()  # type: ignore[attr-defined]
    ends = (torch.from_numpy(end.astype("int64")) for end in (entries.col, entries.row))
    return Graph(torch.stack(list(ends)).to(like.device), like.num_nodes)


class H2GCN(Encoder):
    r"""Rounds that set the means of both rings side by side, and an output that sees all rounds.

    .. math::
        R^{(0)} = \mathrm{ReLU}(X W_e), \qquad
        R^{(k)} = \big[\, \bar A_1 R^{(k-1)} \,\Vert\, \bar A_2 R^{(k-1)} \,\big], \qquad
        \hat Y = \mathrm{dropout}(R^{(0)} \Vert \cdots \Vert R^{(K)}) W_c + b,

    Ā_1 the graph of neighbours and Ā_2 that of nodes at exactly two hops (`rings`), both without self-loops and
    normalised by 1/√(d_i d_j) with their own degrees. A round doubles the channels: K rounds give (2^{K+1} - 1) times
    `hidden_channels`, so K is small.

    Args:
        hidden_channels: Length of R⁰.
        num_layers: K, rounds.
        dropout: Before the output.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, *, num_layers: int = 2, dropout: float = 0.5
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, dropout=dropout)
        channels = (2 ** (num_layers + 1) - 1) * hidden_channels
        if channels > MOST_CHANNELS:
            raise UserError(
                f"num_layers={num_layers} gives h2gcn (2^{num_layers + 1} - 1) × {hidden_channels} = {channels:,} "
                f"channels, at most {MOST_CHANNELS:,} are possible; take fewer layers (the paper takes 1 or 2)"
            )
        self.input = nn.Linear(in_channels, hidden_channels, bias=False)
        self.output = nn.Linear(channels, out_channels)
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self._rings: ResultCache[tuple[Graph, Graph]] = ResultCache()

    def states(self, x: Features, observed: Observed) -> Tensor:
        """All rounds side by side, ``[N, (2^{K+1} - 1) hidden]``."""
        graph = observed.graph
        found = [functional.relu(linear(self.input, x))]
        near = None if graph is None else self._rings.of(graph, (), lambda: rings(graph))
        for _ in range(self.num_layers):
            last = found[-1]
            parts = [torch.zeros_like(last)] * 2 if near is None else [ring.propagate(last) for ring in near]
            found.append(torch.cat(parts, 1))
        return dropout(torch.cat(found, 1), self.dropout, self.training)
