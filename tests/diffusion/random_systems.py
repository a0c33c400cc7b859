"""Random graphs, states and diffusivities for property tests."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from difformer.graph import Graph

DIFFUSIVITY_NAMES = ("simple", "sigmoid", "softmax", "softmax:0.5", "gaussian", "gaussian:0.3", "constant")

seeds = st.integers(0, 2**31 - 1)
diffusivities = st.sampled_from(DIFFUSIVITY_NAMES)


def random_graph(nodes: int, density: float, weighted: bool, loops: bool, seed: int) -> Graph:
    """An undirected graph; at low density it falls into components and single nodes."""
    generator = torch.Generator().manual_seed(seed)
    chosen = (torch.rand(nodes, nodes, generator=generator) < density).triu(0 if loops else 1)
    low, high = chosen.nonzero(as_tuple=True)
    weight = torch.rand(low.numel(), generator=generator, dtype=torch.float64) * 3 + 0.01
    other = low != high
    edges = torch.stack([torch.cat([low, high[other]]), torch.cat([high, low[other]])])
    return Graph(edges, nodes, torch.cat([weight, weight[other]]) if weighted else None)


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 14) -> Graph:
    return random_graph(
        draw(st.integers(1, max_nodes)),
        draw(st.sampled_from([0.0, 0.1, 0.25, 0.6, 1.0])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(seeds),
    )


def states(nodes: int, seed: int, *, channels: int | None = None, where: str = "sphere") -> Tensor:
    """States on the unit sphere, in the unit ball, in two tight clusters on opposite sides, or anywhere."""
    generator = torch.Generator().manual_seed(seed)
    channels = 1 + seed % 5 if channels is None else channels
    z = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    if where == "anywhere":
        return 3 * z + 5
    unit = torch.nn.functional.normalize(z, dim=1)
    if where == "ball":
        return unit * torch.rand(nodes, 1, generator=generator, dtype=torch.float64)
    if where == "opposite":
        pole = torch.zeros(channels, dtype=torch.float64)
        pole[0] = 1.0
        side = torch.where(torch.rand(nodes, 1, generator=generator) < 0.5, 1.0, -1.0).double()
        return torch.nn.functional.normalize(side * pole + 1e-3 * z, dim=1)
    return unit


places = st.sampled_from(["sphere", "ball", "opposite"])
