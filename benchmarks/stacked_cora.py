"""54 settings × 4 random splits of Cora, trained as one: how long it takes, and what it finds.

    python benchmarks/stacked_cora.py planetoid/cora.npz

trains DIFFormer-s (8 layers, hidden 64, 240 epochs, evaluation every second epoch) with every combination of three
learning rates, three weight decays, two dropout rates and three graph weights on four splits (20 labels a class, 500,
1000), and prints seconds, milliseconds an epoch, the peak of memory, and the accuracies of the setting that is best on
validation. The target: at most 30 seconds on one H200.

``--check 2`` trains two of the runs again, alone, and prints by how much they differ. ``--profile`` prints which
kernels take the time. On a CPU: ``--settings 2 --splits 1 --epochs 4``.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace
from pathlib import Path

import torch

from difformer.data import Task, load
from difformer.training import RunRecord, train_one
from difformer.training.config import make_config
from difformer.training.devices import describe, resolve
from difformer.training.journal import Run
from difformer.training.stack import train_stacked

AXES = {
    "learning_rate": (0.001, 0.005, 0.01),
    "weight_decay": (0.0005, 0.005, 0.05),
    "dropout": (0.2, 0.5),
    "graph_weight": (0.5, 0.7, 0.9),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz", type=Path, help="…/planetoid/cora.npz")
    parser.add_argument("--settings", type=int, default=54, help="use the first so many of the 54")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=240)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--no-norm", action="store_true", help="without LayerNorm")
    parser.add_argument("--check", type=int, default=0, help="runs to train again, alone")
    parser.add_argument("--profile", action="store_true", help="print a profile of a few epochs instead")
    parser.add_argument("--tf32", action="store_true", help="matrix products in TF32")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    device = resolve(given.device)
    torch.backends.cuda.matmul.allow_tf32 = given.tf32
    task = load(given.npz.stem, given.npz.resolve().parents[1], protocol="random", num_splits=given.splits)
    points = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())][: given.settings]
    shared = {
        "num_layers": given.layers,
        "hidden_channels": given.hidden,
        "transform": False,
        "norm": not given.no_norm,
        "epochs": 6 if given.profile else given.epochs,
        "eval_every": 2,
    }
    configs = [make_config("difformer", {**shared, **point}) for point in points]
    runs = [Run(s, s, config) for config in configs for s in range(given.splits)]
    print(f"{task.name}: {task.protocol}\n{describe(device)}, torch {torch.__version__}")
    print(f"{len(points)} settings × {given.splits} splits = {len(runs)} runs, {given.epochs} epochs")
    if given.profile:
        profile(task, runs, device)
        return
    # Libraries and kernels are loaded at first use, which is nobody's training time.
    train_stacked(task, [replace(run, config=run.config.replace(epochs=2)) for run in runs[:2]], device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    results = train_stacked(task, runs, device)
    seconds = time.perf_counter() - started
    print(f"{seconds:.1f} s, {1000 * seconds / given.epochs:.1f} ms per epoch, {seconds / len(runs):.3f} s per run")
    if device.type == "cuda":
        print(f"peak of memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")
    show(points, results, given.splits)
    if given.check:
        check(task, runs, device, results, given.check)


def show(points: list[dict[str, float]], results: list[RunRecord | Exception], splits: int) -> None:
    """The setting with the best mean validation accuracy."""
    scores = []
    for i, point in enumerate(points):
        runs = [run for run in results[i * splits : (i + 1) * splits] if isinstance(run, RunRecord)]
        if len(runs) == splits:
            scores.append((sum(r.valid for r in runs) / splits, sum(r.test for r in runs) / splits, point))
    print(f"{len(points) - len(scores)} settings diverged")
    valid, test, point = max(scores, key=lambda score: score[0])
    print(f"best on validation: {valid:.4f}, test {test:.4f}: " + ", ".join(f"{k}={v:g}" for k, v in point.items()))
    print(f"mean over all settings: test {sum(score[1] for score in scores) / len(scores):.4f}")


def check(
    task: Task,
    runs: list[Run],
    device: torch.device,
    results: list[RunRecord | Exception],
    count: int,
) -> None:
    """Runs trained alone against the same ones of the stack."""
    for i in range(0, len(runs), max(1, len(runs) // count))[:count]:
        run, record = runs[i], results[i]
        started = time.perf_counter()
        alone = train_one(task, run.split, run.config, run.seed, device)
        seconds = time.perf_counter() - started
        assert isinstance(record, RunRecord)
        first = abs(record.history[0]["loss"] - alone.history[0]["loss"])
        later = max(abs(a["loss"] - b["loss"]) for a, b in zip(record.history, alone.history, strict=True))
        print(
            f"run {i} alone, {seconds:.1f} s: loss differs by {first:.1e} in the first epoch, by at most {later:.1e} "
            f"in any; best epoch {alone.best_epoch} (stack {record.best_epoch}), validation {alone.valid:.4f} "
            f"({record.valid:.4f}), test {alone.test:.4f} ({record.test:.4f})"
        )


def profile(task: Task, runs: list[Run], device: torch.device) -> None:
    """Where the time goes, in kernels and in calls."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    train_stacked(task, runs[:2], device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with record(activities=activities) as found:
        train_stacked(task, runs, device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=70))


if __name__ == "__main__":
    main()
