"""What tests of several rooms share: diffusions whose exact answer is known, random inputs, changed modules.

Each `Problem` gives states, what drives them, and the states at any time t of the flow dZ/dt = SZ - D̃Z + βH; where the
coupling is a graph, also the ends of its spectrum. A mode of eigenvalue λ decays like e^(-λt), and over k Euler steps
like (1 - τλ)^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from difformer.diffusion import AllPairAttention, Coupling, GraphCoupling
from difformer.graph import Graph


@dataclass(frozen=True)
class Problem:
    coupling: Coupling
    z: Tensor
    exact: Callable[[float], Tensor]
    source: Tensor | None = None
    source_weight: float | None = None
    largest: float | None = None
    gap: float | None = None
    null: int | None = None


def undirected(pairs: list[tuple[int, int]], nodes: int, weight: float = 1.0) -> Graph:
    edges = torch.tensor(pairs + [(j, i) for i, j in pairs], dtype=torch.long).reshape(-1, 2).T
    return Graph(edges, nodes, torch.full((edges.shape[1],), weight, dtype=torch.float64))


def path_graph(nodes: int) -> Graph:
    return undirected([(i, i + 1) for i in range(nodes - 1)], nodes)


def cycle_graph(nodes: int) -> Graph:
    return undirected([(i, (i + 1) % nodes) for i in range(nodes)], nodes)


def complete_graph(nodes: int) -> Graph:
    return undirected([(i, j) for i in range(nodes) for j in range(i + 1, nodes)], nodes)


def star_graph(leaves: int) -> Graph:
    return undirected([(0, i) for i in range(1, leaves + 1)], leaves + 1)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def mode(graph: Graph, shape: Tensor, value: float, *, largest: float, gap: float) -> Problem:
    """An eigenvector of the graph's Laplacian, on top of a constant that diffusion keeps."""
    return Problem(
        GraphCoupling(graph, "raw"),
        2.0 + shape,
        lambda t: 2.0 + math.exp(-value * t) * shape,
        largest=largest,
        gap=gap,
        null=1,
    )


def two_nodes(weight: float = 0.7) -> Problem:
    return mode(undirected([(0, 1)], 2, weight), column(1.0, -1.0), 2 * weight, largest=2 * weight, gap=2 * weight)


def path(nodes: int = 7, number: int = 2) -> Problem:
    place = torch.arange(nodes, dtype=torch.float64).unsqueeze(1)
    values = [2 - 2 * math.cos(math.pi * k / nodes) for k in range(nodes)]
    shape = torch.cos(math.pi * number * (place + 0.5) / nodes)
    return mode(path_graph(nodes), shape, values[number], largest=values[-1], gap=values[1])


def cycle(nodes: int = 8, number: int = 3) -> Problem:
    place = torch.arange(nodes, dtype=torch.float64).unsqueeze(1)
    values = [2 - 2 * math.cos(2 * math.pi * k / nodes) for k in range(nodes)]
    shape = torch.cos(2 * math.pi * number * place / nodes)
    return mode(cycle_graph(nodes), shape, values[number], largest=max(values), gap=values[1])


def complete(nodes: int = 5) -> Problem:
    shape = column(*range(nodes)) - (nodes - 1) / 2
    return mode(complete_graph(nodes), shape, nodes, largest=nodes, gap=nodes)


def two_components() -> Problem:
    """An edge and a triangle, with a node on its own: each keeps its mean."""
    graph = undirected([(0, 1), (2, 3), (3, 4), (2, 4)], 6)
    mean, away = column(1.0, 1.0, -2.0, -2.0, -2.0, 5.0), column(0.5, -0.5, 1.0, 0.0, -1.0, 0.0)
    decay = column(2.0, 2.0, 3.0, 3.0, 3.0, 0.0)
    return Problem(
        GraphCoupling(graph, "raw"),
        mean + away,
        lambda t: mean + torch.exp(-decay * t) * away,
        largest=3.0,
        gap=2.0,
        null=3,
    )


def star_with_source(leaves: int = 4, beta: float = 0.3) -> Problem:
    """The source is a mode of eigenvalue n + 1, so that states go to βH / (n + 1) and stay there."""
    source = column(leaves, *[-1.0] * leaves)
    value = leaves + 1
    return Problem(
        GraphCoupling(star_graph(leaves), "raw"),
        torch.zeros_like(source),
        lambda t: beta * (1 - math.exp(-value * t)) / value * source,
        source=source,
        source_weight=beta,
        largest=value,
        gap=1.0,
        null=1,
    )


def pair_with_drift(beta: float = 0.5) -> Problem:
    """A source of mean one: the mean grows without end."""
    source = column(2.0, 0.0)
    away = column(1.0, -1.0)
    return Problem(
        GraphCoupling(path_graph(2), "raw"),
        torch.zeros_like(source),
        lambda t: beta * t + beta * (1 - math.exp(-2 * t)) / 2 * away,
        source=source,
        source_weight=beta,
        largest=2.0,
        gap=2.0,
        null=1,
    )


def uniform_attention(nodes: int = 6) -> Problem:
    """Everyone takes the mean of all: distances to it decay like e^(-t)."""
    z = column(*[0.1 * i * i for i in range(nodes)])
    return Problem(AllPairAttention("constant"), z, lambda t: z.mean(0) + math.exp(-t) * (z - z.mean(0)))


def two_simple_states(start: float = 0.9) -> Problem:
    """±a under unnormalised `simple`: da/dt = -4a(1 - a²), so that a² follows a logistic curve."""
    z = column(start, -start)
    return Problem(
        AllPairAttention("simple", normalised=False),
        z,
        lambda t: z / start / math.sqrt(1 + (1 / start**2 - 1) * math.exp(8 * t)),
    )


GRAPH_PROBLEMS = {
    problem.__name__: problem
    for problem in (two_nodes, path, cycle, complete, two_components, star_with_source, pair_with_drift)
}
PROBLEMS = {**GRAPH_PROBLEMS, "uniform_attention": uniform_attention, "two_simple_states": two_simple_states}


# ---- random inputs


def points(nodes: int = 24, features: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(nodes, features, generator=torch.Generator().manual_seed(seed))


def some_edges(
    nodes: int = 24, count: int = 30, seed: int = 1, *, directed: bool = False, loops: bool = True
) -> Tensor:
    ends = torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed))
    ends = ends if loops else ends[:, ends[0] != ends[1]]
    return ends if directed else torch.cat([ends, ends.flip(0)], 1).unique(dim=1)


def adjacency(edges: Tensor, nodes: int = 24) -> Tensor:
    a = torch.zeros(nodes, nodes)
    a[edges[1], edges[0]] = 1
    return a


# ---- modules whose outputs are changed


def changed(x: Tensor) -> Tensor:
    """Other directions, not only other lengths, which unit rows and norms would hide."""
    return x * torch.linspace(-1, 2, x.shape[-1], dtype=x.dtype, device=x.device) + 1


class ChangedLinear(nn.Linear):
    """Like a low-rank adapter: the same weights, another result."""

    def forward(self, x: Tensor) -> Tensor:
        return changed(super().forward(x))


class ChangedModule(nn.Module):
    """A wrapper of another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return changed(self.inner(*args, **kwargs))
