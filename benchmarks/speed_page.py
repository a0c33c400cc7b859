"""Writes ``docs/speed.md`` and its figure from ``benchmarks/results.json``.

    python -m benchmarks.own_loop_gpu --out lines.jsonl
    python -m benchmarks.own_loop_cpu --out lines.jsonl
    python -m benchmarks.scaling_curve --out lines.jsonl
    python -m benchmarks.speed_page --add lines.jsonl --commit 1a2b3c4     # in place of the same measurements

Every number of the page is read from that file, which also says on which device, with which version of torch, when and
at which commit it was measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, FIGURE = ROOT / "benchmarks" / "results.json", ROOT / "docs" / "speed.md", ROOT / "docs" / "scaling.svg"
Row = dict[str, Any]
TEXT = """# Speed and memory

`python -m benchmarks.speed_page` writes this page from `benchmarks/results.json`; the scripts that measure are
`benchmarks/own_loop_gpu.py`, `own_loop_cpu.py` and `scaling_curve.py`. Compare ratios: small graphs wait for Python,
so times depend on the processor.

## One training step in your own loop

Measured on {loop_on}.

Forward pass, backward pass and Adam, 64 channels, dropout 0.2. *s* has simple attention, *a* sigmoid attention over all
pairs; random graphs of the sizes named. *literal* is the model written down as formulas in PyTorch, as the authors have
it. `tf32` means `torch.set_float32_matmul_precision("high")`, `bf16` autocast. `edge_index` and `Graph` say how the
graph is given: the work is the same from the second step on, so the difference between the two columns is the noise of
the measurement. Memory is all that is held on the device; a second copy of the sorted graph, of the column `Graph`, is
part of it in columns measured after that one.

With `tf32`, sigmoid attention over more than 2,896 rows multiplies in float16, which has the 11 bits of TF32, scaled
per graph so that nothing overflows. For queries and keys of unit length, outputs and gradients stay within 1e-3
(Euclidean norm). The columns with `tf32` were measured with an approximate sigmoid on the GPU; since then it is exact,
which has not been timed.

{loop}

The same with a compiled model, given `edge_index`, on {compiled_on}.

{compiled}

Small graphs wait for Python. `mode="reduce-overhead"` removes most of that wait, and a fused optimiser launches fewer
kernels. torch compiles no CSR tensors: pass sparse features as `SparseMatrix.from_tensor(x)` or `x.to_dense()`.

```python
import torch
from difformer import DIFFormer

model = DIFFormer(16, 64, 4)
fast = torch.compile(model, mode="reduce-overhead")              # call fast(x, edge_index) in the loop
optimizer = torch.optim.Adam(model.parameters(), fused=True)     # one kernel for all parameters
```

The built-in trainer records whole epochs as CUDA graphs and needs neither.

All-pair propagation by polynomials, forward and backward without a model, on {polynomial_on}:

{polynomial}

On a CPU, one step with 128 features, without dropout: processor time for one thread, elapsed time for more.

{cpu}

## Time and memory against the number of nodes

One training step of three layers of 64 channels on a random graph of degree 20, float32; memory is what the step takes
beside its inputs. Sizes at which a step would take several seconds are left out. `checkpoint=True`
recomputes layers in the backward pass. The figure shows the first table.

{curve}

![Milliseconds and gigabytes per training step against the number of nodes](scaling.svg)
"""


def identity(row: Row) -> tuple[Any, ...]:
    """What a measurement is of; a later one replaces it."""
    return tuple(row.get(key) for key in ("benchmark", "device", "case", "column", "precision", "system", "nodes"))


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row per measurement: the last that was made."""
    return list({identity(row): row for row in rows}.values())


def cell(row: Row | None) -> str:
    """``1.2 ms`` and, from a tenth of a gigabyte on, the memory."""
    if row is None:
        return "–"
    if "ms" not in row:
        return row["error"].split(":")[0]
    time = f"{row['ms']:.1f} ms" if row["ms"] < 1000 else f"{row['ms'] / 1000:.2f} s"
    return time if row.get("gigabytes", 0) < 0.1 else f"{time}, {row['gigabytes']:.1f} GB"


def table(rows: Sequence[Row], down: str, across: str, first: str) -> list[str]:
    """Rows of the values of `down`, columns of those of `across`, both in the order of the measurements."""
    known = {(row[down], row[across]): row for row in rows}
    columns = list(dict.fromkeys(row[across] for row in rows))
    lines = [f"| {first} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name in dict.fromkeys(row[down] for row in rows):
        shown = f"{name:,}" if isinstance(name, int) else name
        lines.append(f"| {shown} | {' | '.join(cell(known.get((name, column))) for column in columns)} |")
    return lines


def origin(rows: Sequence[Row]) -> str:
    """Device, version and days of measurements."""
    days = sorted({row["date"] for row in rows})
    where = ", ".join(dict.fromkeys(f"one {row['device']} with torch {row['torch']}" for row in rows))
    commits = ", ".join(dict.fromkeys(row.get("commit", "not noted") for row in rows))
    return f"{where} ({' to '.join(dict.fromkeys((days[0], days[-1])))}; commits: {commits})"


def page(rows: Sequence[Row]) -> str:
    every = [row for row in rows if row["benchmark"] == "own loop"]
    for row in every:
        row["shown"] = row["column"] if row["precision"] == "float32" else f"{row['column']}, {row['precision']}"
    cpu = [row for row in rows if row["benchmark"] == "own loop, CPU"]
    compiled = [row for row in every if row["column"].startswith("compiled")]
    loop = [row for row in every if row not in compiled]
    polynomial = [row for row in rows if row["benchmark"] == "polynomial"]
    parts = {
        "loop_on": origin(loop),
        "loop": "\n".join(table(loop, "case", "shown", "size")),
        "compiled_on": origin(compiled),
        "compiled": "\n".join(table(compiled, "case", "shown", "size")),
        "polynomial_on": origin(polynomial),
        "polynomial": "\n".join(table(polynomial, "case", "precision", "size")),
        "cpu": tables(cpu, "case", "column", "size"),
        "curve": tables([row for row in rows if row["benchmark"] == "scaling"], "nodes", "system", "nodes"),
    }
    return TEXT.format(**parts)


def tables(rows: Sequence[Row], down: str, across: str, first: str) -> str:
    """A table for each device that was measured."""
    each = (
        f"Measured on {origin(part)}.\n\n" + "\n".join(table(part, down, across, first)) for part in by_device(rows)
    )
    return "\n\n".join(each)


def by_device(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each device, GPUs first."""
    devices = sorted(dict.fromkeys(row["device"] for row in rows), key=lambda device: "NVIDIA" not in device)
    return [[row for row in rows if row["device"] == device] for device in devices]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Time and memory on logarithmic axes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "difformer"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for system in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == system and "ms" in row]
        for axis, key in zip(axes, ("ms", "gigabytes"), strict=True):
            axis.loglog([row["nodes"] for row in own], [row[key] for row in own], marker="o", label=system)
    for axis, label in zip(axes, ("milliseconds per step", "gigabytes at the peak"), strict=True):
        axis.set(xlabel="nodes", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="files of measurements, one JSON line each")
    parser.add_argument("--commit", help="of the package that was measured")
    given = parser.parse_args(arguments)
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    for path in given.add:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows += [row | ({"commit": given.commit} if given.commit else {}) for row in found]
    rows = merged(rows)
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    draw(by_device([row for row in rows if row["benchmark"] == "scaling"])[0], FIGURE)
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
