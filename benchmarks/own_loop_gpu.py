"""One training step in a plain PyTorch loop on a GPU: forward, backward and Adam.

    python -m benchmarks.own_loop_gpu --out own_loop.jsonl

Columns: the literal model (the formulas as one writes them down first), ours with `edge_index`, with `Graph`, with a
fused Adam, compiled, and compiled with ``mode="reduce-overhead"``. Dropout 0.2, hidden 64, otherwise defaults. Last
comes all-pair propagation by polynomials at the size of Pokec. One JSON line per measurement is written as it is taken.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import literal
from benchmarks.measure import measure
from difformer import DIFFormer, Graph
from difformer.attention import propagate

# Name, nodes, edges, features, classes, diffusivity, layers, and precisions beside float32.
CASES: tuple[tuple[str, int, int, int, int, str, int, tuple[str, ...]], ...] = (
    ("Cora s", 2_708, 13_264, 1_433, 7, "simple", 8, ()),
    ("Cora a", 2_708, 13_264, 1_433, 7, "sigmoid", 8, ("tf32", "bf16")),
    ("Pubmed s", 19_717, 108_365, 500, 3, "simple", 8, ()),
    ("Pubmed a", 19_717, 108_365, 500, 3, "sigmoid", 4, ("tf32", "bf16")),
    ("50,000 nodes a", 50_000, 500_000, 128, 10, "sigmoid", 2, ("tf32", "bf16")),
    ("ogbn-proteins s", 132_534, 79_122_504, 8, 112, "simple", 3, ("tf32", "bf16", "bf16 and tf32")),
    ("Pokec s", 1_632_803, 61_245_128, 65, 2, "simple", 3, ("tf32", "bf16", "bf16 and tf32")),
)
LARGEST_LITERAL = 20_000
LARGEST_COMPILED = 20_000
POLYNOMIAL = "1,632,803 rows, d = 64, tolerance 1e-3"


def step(
    model: Callable[..., Any], parameters: Any, inputs: tuple[Any, ...], y: Any, precision: str, fused: bool
) -> Any:
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True if fused else None)

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in precision):
            out = model(*inputs)
        functional.cross_entropy(out.float(), y).backward()
        optimizer.step()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own_loop.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="names of cases, such as 'Cora s'")
    parser.add_argument("--columns", nargs="*", default=[], help="names of columns, such as 'edge_index'")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which nothing is started")
    given = parser.parse_args()
    started = time.perf_counter()
    for name, nodes, count, features, classes, kernel, layers, precisions in CASES:
        if given.only and name not in given.only:
            continue
        generator = torch.Generator().manual_seed(0)
        half = torch.randint(0, nodes, (2, count // 2), generator=generator)
        edges = torch.cat([half, half.flip(0)], 1).cuda()
        x, y = torch.randn(nodes, features, generator=generator).cuda(), torch.randint(0, classes, (nodes,)).cuda()
        graph = Graph(edges, nodes)

        def ours(precision: str, form: Any, how: str, x=x, y=y, size=(features, classes, layers), kernel=kernel) -> Any:
            model: nn.Module = DIFFormer(
                size[0], 64, size[1], num_layers=size[2], diffusivity=kernel, dropout=0.2
            ).cuda()
            call: Any = model
            if how.startswith("compile"):
                call = torch.compile(model, fullgraph=True, mode="reduce-overhead" if "overhead" in how else None)
            return step(call, model.parameters(), (x, form), y, precision, how != "edge_index" and how != "Graph")

        columns: list[tuple[str, str, Callable[[], Any]]] = []
        if nodes <= LARGEST_LITERAL:
            build = lambda: literal.Model(features, 64, classes, layers=layers, kernel=kernel).cuda()  # noqa: B023
            columns.append(("literal", "float32", lambda b=build, e=edges, x=x, y=y: _literal(b(), x, e, y)))
        for precision in ("float32", *precisions):
            columns.append(("edge_index", precision, lambda p=precision, e=edges: ours(p, e, "edge_index")))
            if precision == "float32":
                columns.append(("Graph", precision, lambda g=graph: ours("float32", g, "Graph")))
                columns.append(("edge_index, fused Adam", precision, lambda e=edges: ours("float32", e, "fused")))
                for how in ("compiled", "compiled, reduce-overhead") if nodes <= LARGEST_COMPILED else ():
                    columns.append((how, precision, lambda e=edges, how=how: ours("float32", e, how)))
        for column, precision, make in columns:
            if given.columns and column not in given.columns:
                continue
            if time.perf_counter() - started > given.limit:
                print("time limit", flush=True)
                return
            repeats = 5 if nodes > 100_000 else 15
            _write(given.out, {"benchmark": "own loop", "case": name, "column": column}, precision, make, repeats)
    for precision in ("float32", "tf32") if not given.only or POLYNOMIAL in given.only else ():
        row = {"benchmark": "polynomial", "case": POLYNOMIAL, "column": "forward and backward"}
        _write(given.out, row, precision, _polynomial, 3)


def _write(path: Path, row: dict[str, Any], precision: str, make: Callable[[], Any], repeats: int) -> None:
    """Measure the work that `make` gives and append a line to `path`."""
    torch.set_float32_matmul_precision("high" if "tf32" in precision else "highest")
    row |= {"precision": precision}
    try:
        torch.cuda.empty_cache()
        work = make()
        for _ in range(4 if repeats > 3 else 1):
            work()
        torch.cuda.reset_peak_memory_stats()
        (cost,) = measure(work, repeats=repeats, gpu=True)
        row |= {"ms": 1000 * cost.seconds, "fastest_ms": 1000 * cost.fastest}
        row["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
        del work
    except Exception as error:  # a column that fails is a result, too
        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("highest")
    row |= {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "date": time.strftime("%F")}
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    shown = row.get("error") or f"{row['ms']:8.2f} ms  {row['gigabytes']:6.2f} GB"
    print(f"{row['case']:16} {precision:8} {row['column']:28} {shown}", flush=True)


def _polynomial() -> Callable[[], None]:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1_632_803, 64, generator=generator, device="cuda") for _ in range(3))
    given = [x.requires_grad_() for x in (functional.normalize(q), functional.normalize(k), v)]

    def work() -> None:
        out = propagate(*given, "sigmoid", backend="polynomial", tol=1e-3)
        torch.autograd.grad(out, given, torch.ones_like(out))

    return work


def _literal(model: nn.Module, x: Any, edges: Any, y: Any) -> Any:
    return step(model, model.parameters(), (x, edges), y, "float32", False)


if __name__ == "__main__":
    main()
