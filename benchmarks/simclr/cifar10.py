"""SimCLR on 15,000 CIFAR-10 images: how long it takes, and how good the features are.

    python -m benchmarks.simclr.cifar10 cifar10_15000.npz --epochs 200 --out runs/simclr

trains once for every combination of ``--batch-size``, ``--lr`` and ``--temperature`` (with ``--compile``, through
torch.compile), as long as ``--budget`` seconds allow, and prints one table: seconds, views a second, the linear probe
with 10, 50 and 100 labels a class (mean over five draws, on all other images), and the peak of GPU memory. The target:
200 epochs in under 180 seconds on one H200 and at least 72 % with 100 labels a class. Measured there, 200 epochs,
highest learning rate 0.5:

    batch   seconds   probe with 10 / 50 / 100 labels a class
      500       105   62.9 / 72.7 / 74.8 %
     1000        92   61.2 / 71.9 / 74.1 %

The first line of the table is features that need no training, for comparison; ``--compare`` adds feature files.
In ``--out`` each run leaves its features (.npz), its encoder (.safetensors) and its line (results.jsonl) when it ends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.simclr import (
    encode,
    load_features,
    probe_table,
    save_encoder,
    save_features,
    train_simclr,
)
from benchmarks.simclr.encoding import resolve_device
from difformer.data.datasets.instances import pca_features

Array = np.ndarray[Any, Any]
Row = tuple[str, ...]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz", type=Path, help="arrays `images` uint8 [N, H, W, 3] and `labels` [N]")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/simclr_cifar10"))
    parser.add_argument("--batch-size", type=int, nargs="+", default=[500])
    parser.add_argument("--lr", type=float, nargs="+", default=[0.5], help="highest learning rate")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.2])
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="use the first LIMIT images only")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="write checkpoints and take interrupted runs up")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="start no run that would end later (seconds)"
    )
    parser.add_argument("--compare", type=Path, nargs="*", default=[], help="feature files to probe beside")
    parser.add_argument("--per-class", type=int, nargs=3, default=[10, 50, 100], help="labels a class of the probes")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    began = time.perf_counter()
    with np.load(options.npz, allow_pickle=False) as file:
        images, labels = file["images"][: options.limit], file["labels"][: options.limit]
    device = resolve_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{len(images)} images, {options.epochs} epochs, {name}, torch {torch.__version__}", flush=True)

    rows = [row("pca-64", pca_features, images, labels, options)]
    for path in options.compare:
        features, _ = load_features(path)
        rows.append((path.stem, "", "", *probes(features[: len(labels)], labels, options), "", ""))

    failed, longest = 0, 0.0
    for batch_size, lr, temperature in itertools.product(options.batch_size, options.lr, options.temperature):
        title = f"simclr B={batch_size} lr={lr:g} τ={temperature:g}{' compiled' if options.compile else ''}"
        spent = time.perf_counter() - began
        if spent + longest > options.budget:
            rows.append((title, "skipped: over budget", *[""] * 6))
            continue
        try:
            rows.append(run(title, images, labels, batch_size, lr, temperature, device, options))
        except Exception as error:  # one setting that fails (memory, divergence) must not cost the others their results
            traceback.print_exc()
            rows.append((title, f"{type(error).__name__}: see above", *[""] * 6))
            failed += 1
        longest = max(longest, time.perf_counter() - began - spent)
        show(rows[-1:])
    print()
    header = ("features", "seconds", "views/s", *(f"probe {n}" for n in options.per_class), "GPU GiB", "last loss")
    show([header, *rows])
    return 1 if failed else 0


def run(
    title: str,
    images: Array,
    labels: Array,
    batch_size: int,
    lr: float,
    temperature: float,
    device: torch.device,
    options: argparse.Namespace,
) -> Row:
    """One training: trains, encodes, probes, saves; returns its line of the table."""
    stem = title.replace(" ", "_").replace("τ", "t")
    options.out.mkdir(parents=True, exist_ok=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    result = train_simclr(
        images,
        epochs=options.epochs,
        batch_size=batch_size,
        temperature=temperature,
        learning_rate=lr,
        weight_decay=options.weight_decay,
        width=options.width,
        seed=options.seed,
        device=device,
        precision=options.precision,
        compile=options.compile,
        checkpoint=options.out / f"{stem}.pt" if options.checkpoint else None,
        progress=False,
        on_epoch=lambda epoch, loss: (
            print(f"  {title}: epoch {epoch}, loss {loss:.4f}", flush=True)
            if epoch % max(1, options.epochs // 10) == 0
            else None
        ),
    )
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    features = encode(result.encoder, images, precision=options.precision, dtype="float16")
    accuracies = probes(features, labels, options)
    save_encoder(options.out / f"{stem}.safetensors", result.encoder, metadata=result.metadata())
    save_features(options.out / f"{stem}.npz", features, method="simclr", labels=labels, metadata=result.metadata())
    line = {
        "title": title,
        "seconds": result.seconds,
        "views_per_second": result.images_per_second,
        "probes": accuracies,
    }
    with (options.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "peak_gib": peak, **result.metadata()}) + "\n")
    speed = f"{result.images_per_second:,.0f}"
    return (
        title,
        f"{result.seconds:.1f}",
        speed,
        *accuracies,
        f"{peak:.1f}" if peak else "",
        f"{result.losses[-1]:.4f}",
    )


def row(
    title: str, compute: Callable[[Array], Array], images: Array, labels: Array, options: argparse.Namespace
) -> Row:
    """The line of features that need no training."""
    started = time.perf_counter()
    features = compute(images)
    seconds = time.perf_counter() - started
    return (title, f"{seconds:.1f}", "", *probes(features, labels, options), "", "")


def probes(features: Array, labels: Array, options: argparse.Namespace) -> list[str]:
    """Mean ± standard deviation, in percent, for each number of labels."""
    table = probe_table(features, labels, per_class=options.per_class)
    return [f"{100 * probe.mean:.1f} ± {100 * probe.std:.1f}" for probe in table.values()]


def show(rows: Sequence[Row]) -> None:
    for cells in rows:
        print(f"{cells[0]:<34}" + "".join(f"{cell:>14}" for cell in cells[1:]), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
