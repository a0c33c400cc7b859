"""One training step in a loop of the user's own on a CPU: `edge_index`, `Graph`, and the same model written literally.

Forward, backward and Adam, hidden 64. `edge_index` must be as fast as `Graph`: the sorted graph is kept with the
tensor.

A tiny graph shows the overhead of a layer: calls of torch operations and CPU time per layer, forward and backward with
dropout.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import literal
from benchmarks.measure import Cost, Row, Work, measure
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


class _Calls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def _per_layer(make: Any, edges: torch.Tensor, repeats: int) -> tuple[float, Cost]:
    """Calls and CPU time of one layer: nine layers less one, by eight."""
    x, y = torch.randn(32, 64), torch.randint(0, 7, (32,))
    counts, times = [], []
    for model in (make(9), make(1)):

        def work(model: torch.nn.Module = model) -> None:
            model.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x, edges), y).backward()

        for _ in range(3):
            work()
        with _Calls() as calls:
            work()
        counts.append(calls.count)
        found = []
        for _ in range(max(5, repeats)):
            start = time.process_time()
            for _ in range(20):
                work()
            found.append((time.process_time() - start) / 20)
        times.append(found)
    median, fastest = ((take(times[0]) - take(times[1])) / 8 for take in (statistics.median, min))
    return (counts[0] - counts[1]) / 8, Cost(median, fastest, None)


def overhead_rows(repeats: int) -> Iterator[Row]:
    """A layer of 64 channels on 32 nodes and 100 edges; the literal model has no dropout."""
    edges = torch.randint(0, 32, (2, 100), generator=torch.Generator().manual_seed(0))
    for kernel in ("simple", "sigmoid"):
        options: dict[str, Any] = {"diffusivity": kernel, "dropout": 0.2}
        calls, ours = _per_layer(lambda n, o=options: DIFFormer(64, 64, 7, num_layers=n, **o), edges, repeats)
        many, theirs = _per_layer(lambda n, k=kernel: literal.Model(64, 64, 7, layers=n, kernel=k), edges, repeats)
        work = f"{kernel}, overhead of a layer: {calls:g} calls"
        reached = calls <= 100 and ours.fastest < theirs.fastest
        yield Row(GROUP, work, ours, f"literal layer: {many:g} calls", theirs, "≤ 100 calls, faster", reached)


def rows(repeats: int) -> Iterator[Row]:
    yield from overhead_rows(repeats)
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
