"""Runs the benchmarks, prints their tables with ratios, and writes ``build/benchmarks.json``.

python -m benchmarks                     # all of them; rows of a GPU appear where there is one
python -m benchmarks attention_cpu       # some
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: spinning threads distort everything

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row

# Modules with a function rows(repeats) that gives the lines of a table.
BENCHMARKS = ("attention_cpu", "model_cpu", "own_loop_cpu", "training_cpu", "attention_gpu", "training_gpu", "scaling")
RESULTS = Path(__file__).parents[1] / "build" / "benchmarks.json"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def table(group: str, rows: Iterable[Row]) -> Table:
    """One table: time and memory of both sides, and their ratios."""
    found = Table(title=group, title_justify="left")
    for column in ("work", "time", "memory", "against", "time", "memory", "faster", "of its memory", "target", ""):
        found.add_column(column, justify="left" if column in ("work", "against", "target") else "right")
    for row in rows:
        theirs = ("", "") if row.theirs is None else (_time(row.theirs.seconds), _bytes(row.theirs.peak))
        found.add_row(
            row.work,
            _time(row.ours.seconds),
            _bytes(row.ours.peak),
            row.against,
            *theirs,
            "" if row.speedup is None else f"{row.speedup:.2f} ×",
            "" if row.memory_ratio is None else f"{row.memory_ratio:.0%}",
            row.target,
            {True: "reached", False: "missed", None: ""}[row.reached],
        )
    return found


def write(rows: list[Row], path: Path, repeats: int) -> None:
    """All rows and what they were measured on, whole or not at all."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {
        "torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
        "processor": platform.machine(), "gpu": gpu, "repeats": repeats, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    content = json.dumps({"machine": machine, "rows": [row.as_dict() for row in rows]}, indent=1, ensure_ascii=False)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; left out, all")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls a row (10)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    # Wide enough for all columns also where the output is a file.
    console = Console(width=None if sys.stdout.isatty() else 240)
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        module = importlib.import_module(f"benchmarks.{name}")
        found = []
        for row in module.rows(options.repeats):
            console.print(f"[dim]{row.group}: {row.work} {_time(row.ours.seconds)}[/dim]")
            found.append(row)
        for group in dict.fromkeys(row.group for row in found):
            console.print(table(group, (row for row in found if row.group == group)))
        rows += found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(rows, options.out, options.repeats)
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
