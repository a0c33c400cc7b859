"""Do deep models train? Many seeds at 2, 8 and 16 layers, with and without a graph.

    python -m benchmarks.depth --seeds 100 --out depth.jsonl

trains every cell (data set × layers × dropout × model) as one stack of runs that differ in their seed only, and prints
the median test accuracy, the fifth percentile, and how many runs ended below half of the median. A run below half of
the median counts as failed. One JSON line per cell is appended to `--out`, so an interrupted call loses nothing.

The goal is at most one failed run in a hundred, and a median no lower than the better of the paper's exact form
(``difformer-s``) and the same form without attention.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import difformer
from difformer.data import Task, load
from difformer.training import RunRecord, TrainConfig
from difformer.training.journal import Run
from difformer.training.stack import train_stacked

DATA: dict[str, dict[str, Any]] = {
    "cora": {"protocol": "authors"},
    "citeseer": {"protocol": "authors"},
    "digits": {"per_class": 10},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "difformer": ("difformer", {}),
    "paper": ("difformer-s", {}),
    "attention off": (
        "difformer",
        {"diffusivity": None, "graph_weight": None, "source_weight": 0.0, "initialisation": "torch"},
    ),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 8, 16])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no new cell is started")
    parser.add_argument("--out", type=Path, default=Path("depth.jsonl"))
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def cell(task: Task, model: str, layers: int, dropout: float, given: argparse.Namespace) -> dict[str, Any]:
    """All seeds of one cell, as one stack."""
    name, options = MODELS[model]
    config = TrainConfig(
        model=name,
        options={**options, "num_layers": layers, "hidden_channels": 64, "dropout": dropout},
        epochs=given.epochs,
        eval_every=4,
        learning_rate=given.learning_rate,
        weight_decay=given.weight_decay,
    )
    started = time.perf_counter()
    runs = [Run(seed, 0, config) for seed in range(given.seeds)]
    records = train_stacked(task, runs, given.device)
    scores = sorted(record.test if isinstance(record, RunRecord) else 0.0 for record in records)
    median = statistics.median(scores)
    return {
        "data": task.name,
        "model": model,
        "layers": layers,
        "dropout": dropout,
        "seeds": given.seeds,
        "median": median,
        "fifth_percentile": scores[len(scores) // 20],
        "worst": scores[0],
        "failed": sum(score < median / 2 for score in scores),
        "seconds": time.perf_counter() - started,
        "config": config.to_dict(),
        "versions": {"difformer": difformer.__version__, "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def main() -> None:
    given = arguments()
    started = time.perf_counter()
    for name in given.data:
        task = load(name, **DATA[name])
        for layers in given.layers:
            for dropout in given.dropout:
                for model in given.models:
                    if time.perf_counter() - started > given.limit:
                        print("The time limit is reached; the remaining cells were not started.")
                        return
                    row = cell(task, model, layers, dropout, given)
                    with given.out.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(row) + "\n")
                    print(
                        f"{name:9} {layers:2} layers, dropout {dropout}: {model:14} median {100 * row['median']:.1f}, "
                        f"5 % {100 * row['fifth_percentile']:.1f}, worst {100 * row['worst']:.1f}, "
                        f"failed {row['failed']} of {row['seeds']}, {row['seconds']:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
