"""One training step in a loop of the user's own on a CPU: `edge_index`, `Graph`, and the same model written literally.

Forward, backward and Adam, hidden 64. `edge_index` must be as fast as `Graph`: the sorted graph is kept with the
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks import literal
from benchmarks.measure import Row, Work, measure
from difformer import DIFFormer, Graph

GROUP = "training step in a plain loop, CPU"
# Kernel, nodes, edges, features, layers, and how many times faster than the literal model it has to be.
SIZES = (
    ("simple", 100_000, 1_000_000, 128, 2, 4.0),
    ("simple", 2_708, 10_556, 128, 8, 2.0),
    ("sigmoid", 2_708, 10_556, 128, 8, 2.5),
)


def _step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, edges: object) -> Work:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def work() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x, edges), y).backward()
        optimizer.step()

    return work


def rows(repeats: int) -> Iterator[Row]:
    for kernel, nodes, count, features, layers, faster in SIZES:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(nodes, features, generator=generator), torch.randint(0, 7, (nodes,), generator=generator)
        edges = torch.randint(0, nodes, (2, count), generator=generator)
        options = {"num_layers": layers, "diffusivity": kernel}
        kept, plain = (DIFFormer(features, 64, 7, **options) for _ in range(2))  # type: ignore[arg-type]
        theirs = literal.Model(features, 64, 7, layers=layers, kernel=kernel)
        works = (_step(plain, x, y, edges), _step(kept, x, y, Graph(edges, nodes)), _step(theirs, x, y, edges))
        index, graph, other = measure(*works, repeats=max(2, min(repeats, 5)))
        work = f"{kernel}, N = {nodes:,}, {count:,} edges, {layers} layers"
        alike = index.fastest <= 1.1 * graph.fastest
        yield Row(GROUP, work, index, "the same with Graph", graph, "≤ 1.1 × its time", alike)
        reached = other.fastest / index.fastest >= faster
        yield Row(GROUP, work, index, "literal model", other, f"≥ {faster:g} × faster", reached)
