"""Forward and backward of a bare model on a CPU, against the same model written literally.

128 features, hidden 64, 2 layers, values transformed, a random graph of average degree 10.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks import literal
from benchmarks.measure import Row, Work, measure
from difformer import DIFFormer
from difformer.graph import Graph

GROUP = "model, 2 layers, CPU"
TARGETS = {"simple": (4.0, 0.6), "sigmoid": (2.0, 1 / 20)}


def _step(model: torch.nn.Module, *inputs: object) -> Work:
    def work() -> None:
        model.zero_grad(set_to_none=True)
        model(*inputs).square().mean().backward()

    return work


def _compare(kernel: str, n: int, repeats: int) -> Row:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 128, generator=generator)
    edges = torch.randint(0, n, (2, 10 * n), generator=generator)
    ours = DIFFormer(128, 64, 10, num_layers=2, diffusivity=kernel)
    theirs = literal.Model(128, 64, 10, layers=2, kernel=kernel)
    mine, other = measure(_step(ours, x, Graph(edges, n)), _step(theirs, x, edges), repeats=repeats)
    row = Row(GROUP, f"{kernel}, N = {n:,}, {10 * n:,} edges", mine, "literal model", other)
    faster, less = TARGETS[kernel]
    memory = row.memory_ratio
    reached = (row.speedup or 0) >= faster and (memory is None or memory <= less)
    target = f"≥ {faster:g} × faster, ≤ {less:.0%} of the memory"
    return Row(GROUP, row.work, mine, row.against, other, target, reached)


def rows(repeats: int) -> Iterator[Row]:
    yield _compare("simple", 200_000, min(repeats, 3))
    yield _compare("sigmoid", 10_000, min(repeats, 3))
