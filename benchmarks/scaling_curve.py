"""Time and memory of one training step against the number of nodes: random graphs of degree 20.

    python -m benchmarks.scaling_curve --out scaling.jsonl
    python -m benchmarks.scaling_curve --out scaling.jsonl --sizes 10000000 --systems DIFFormer-s

Three layers of 64 channels, 64 features, 10 classes, float32; forward, backward and Adam in a plain loop. Systems:
DIFFormer-s, DIFFormer-a exactly, DIFFormer-a by polynomials (tolerance 1e-3), and a GCN of PyTorch Geometric whose
adjacency is normalised beforehand. A system is left out from the size on at which a step would take more than `--most`
seconds, or at which it runs out of memory. One JSON line per measurement is written as it is taken.
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
from torch_geometric.nn import GCN

from benchmarks.measure import measure
from difformer import DIFFormer

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SYSTEMS: dict[str, Callable[[], nn.Module]] = {
    "DIFFormer-s": lambda: DIFFormer(64, 64, 10, num_layers=3),
    "DIFFormer-s, checkpoint": lambda: DIFFormer(64, 64, 10, num_layers=3, checkpoint=True),
    "DIFFormer-a": lambda: DIFFormer(64, 64, 10, num_layers=3, diffusivity="sigmoid"),
    "DIFFormer-a, polynomial": lambda: DIFFormer(64, 64, 10, num_layers=3, diffusivity="sigmoid", backend="polynomial"),
    "GCN": lambda: GCN(64, 64, 3, 10, cached=True),
}


def step_of(model: nn.Module, x: Any, edges: Any, y: Any) -> Callable[[], None]:
    """One training step."""
    optimizer = torch.optim.Adam(model.parameters(), fused=x.is_cuda)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x, edges), y).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scaling.jsonl"))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--most", type=float, default=3.0, help="seconds of a step beyond which a system is left out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    gpu = given.device.startswith("cuda")
    name = torch.cuda.get_device_name() if gpu else f"processor with {torch.get_num_threads()} threads"
    ended: set[str] = set()
    slowest: dict[str, tuple[int, float]] = {}
    for nodes in given.sizes:
        generator = torch.Generator(given.device).manual_seed(0)
        half = torch.randint(0, nodes, (2, 10 * nodes), generator=generator, device=given.device)
        edges = torch.cat([half, half.flip(0)], 1)
        x = torch.randn(nodes, 64, generator=generator, device=given.device)
        y = torch.randint(0, 10, (nodes,), generator=generator, device=given.device)
        del half
        for system in given.systems:
            if system in slowest and system.startswith("DIFFormer-a"):  # quadratic, or linear with a large factor
                size, seconds = slowest[system]
                power = 1 if "polynomial" in system else 2
                if seconds * (nodes / size) ** power > given.most:
                    ended.add(system)
            if system in ended:
                continue
            torch.manual_seed(0)
            row: dict[str, Any] = {"benchmark": "scaling", "system": system, "nodes": nodes, "edges": edges.shape[1]}
            try:
                work = step_of(SYSTEMS[system]().to(given.device), x, edges, y)
                (cost,) = measure(work, repeats=5, gpu=gpu)
                row |= {"ms": 1000 * cost.seconds, "gigabytes": (cost.peak or 0) / 1e9}
                slowest[system] = nodes, cost.seconds
                del work
            except torch.cuda.OutOfMemoryError:
                row["error"] = "out of memory"
                ended.add(system)
            if gpu:
                torch.cuda.empty_cache()
            row |= {"torch": torch.__version__, "device": name, "date": time.strftime("%F")}
            with given.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{nodes:>10,} {system:24} {row.get('ms', 0):10.2f} ms {row.get('gigabytes', 0):8.2f} GB", flush=True)


if __name__ == "__main__":
    main()
