"""One training step in a loop of the user's own on a CPU: `edge_index`, `Graph`, and the same model written literally.

Forward, backward and Adam, hidden 64. `edge_index` must be as fast as `Graph`: the sorted graph is kept with the
tensor.

    python -m benchmarks.own_loop_cpu --out own_loop.jsonl

writes the processor time that one thread takes, the fastest of steps in turns, so that other work matters little; with
``--threads 2`` the time that passes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

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


def steps() -> Iterator[tuple[str, float, dict[str, Work]]]:
    """Each size in words, how many times faster it has to be, and a step of each kind."""
    for kernel, nodes, count, features, layers, faster in SIZES:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(nodes, features, generator=generator), torch.randint(0, 7, (nodes,), generator=generator)
        edges = torch.randint(0, nodes, (2, count), generator=generator)
        options = {"num_layers": layers, "diffusivity": kernel}
        kept, plain = (DIFFormer(features, 64, 7, **options) for _ in range(2))  # type: ignore[arg-type]
        theirs = literal.Model(features, 64, 7, layers=layers, kernel=kernel)
        works = {
            "literal": _step(theirs, x, y, edges),
            "edge_index": _step(plain, x, y, edges),
            "Graph": _step(kept, x, y, Graph(edges, nodes)),
        }
        yield f"{kernel}, N = {nodes:,}, {count:,} edges, {layers} layers", faster, works


def rows(repeats: int) -> Iterator[Row]:
    for work, faster, works in steps():
        other, index, graph = measure(*works.values(), repeats=max(2, min(repeats, 5)))
        alike = index.fastest <= 1.1 * graph.fastest
        yield Row(GROUP, work, index, "the same with Graph", graph, "≤ 1.1 × its time", alike)
        reached = other.fastest / index.fastest >= faster
        yield Row(GROUP, work, index, "literal model", other, f"≥ {faster:g} × faster", reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own_loop.jsonl"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    device = f"processor with {given.threads} thread{'' if given.threads == 1 else 's'}"
    for case, _, works in steps():
        taken: dict[str, list[float]] = {column: [] for column in works}
        for turn in range(given.repeats + 1):
            for column, work in works.items():
                start = clock()
                work()
                taken[column] += [clock() - start] if turn else []  # the first is a warm-up
        for column, seconds in taken.items():
            row = {"benchmark": "own loop, CPU", "case": case, "column": column, "ms": 1000 * min(seconds)}
            row |= {"torch": torch.__version__, "device": device, "date": time.strftime("%F")}
            with given.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{case:56} {column:12} {row['ms']:9.1f} ms", flush=True)


if __name__ == "__main__":
    main()
