"""``difformer demo``: the main job in a few minutes, on data that need no download.

1,797 handwritten digits, ten labels a class, no graph. DIFFormer finds its structure by itself; beside it stand an MLP
(no structure), label spreading (labels diffuse over neighbours) and a GCN on a neighbour graph. Settings are those of
the shipped presets ``best``, each chosen on validation data alone by the command that the preset names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from difformer.cli.command import command
from difformer.cli.options import Device, Json, option
from difformer.cli.output import Output
from difformer.cli.progress import Progress, clock_time

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.experiments import Preset

DATASET = "digits"
LABELS_A_CLASS = 10
SYSTEMS = {  # model of the zoo: what it is called here, and the structure that it uses
    "difformer-s": ("DIFFormer-s", "all pairs, found while training"),
    "difformer-a": ("DIFFormer-a", "all pairs, found while training"),
    "mlp": ("MLP", "none"),
    "label-spreading": ("LabelSpreading", "nearest neighbours"),
    "gcn": ("GCN", "nearest neighbours"),
}
NEXT = "difformer fit digits --data per_class=10 --preset best --set graph=knn:5"


@command
def demo(
    splits: Annotated[int, option("Random splits, one run each.", low=1, default=True)] = 5,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train DIFFormer and four others on 1,797 handwritten digits, ten labels a class, and compare."""
    from difformer.data.registry import load
    from difformer.experiments import find_preset

    output = Output(as_json)
    started = time.monotonic()
    task = load(DATASET, per_class=LABELS_A_CLASS, num_splits=splits)
    labels = task.splits[0].train.numel()
    output.say(
        f"{task.num_instances:,} handwritten digits, {LABELS_A_CLASS} labels a class ({labels} in all), no graph; "
        f"{splits} random splits.\nSettings: presets 'best', each chosen on validation data alone.\n"
    )
    rows = [_train(task, find_preset("best", model=name, dataset=DATASET), device, output) for name in SYSTEMS]
    output.json({"task": task.facts(), "seconds": time.monotonic() - started, "systems": rows})
    output.table(
        ["model", "structure", "test accuracy", "seconds"],
        [[row["label"], row["structure"], _percent(row["test"], row["std"]), f"{row['seconds']:.1f}"] for row in rows],
        right=["test accuracy", "seconds"],
    )
    output.say(f"mean ± standard deviation over {splits} splits; {clock_time(time.monotonic() - started)} in all.")
    output.say(f"Try next, with latent and neighbour structure together: {NEXT}")


def _percent(mean: float, std: float) -> str:
    return f"{100 * mean:.1f} ± {100 * std:.1f} %"


def _train(task: Task, preset: Preset, device: str, output: Output) -> dict[str, Any]:
    """Every split with one preset, through the same loop as `difformer fit`."""
    from difformer.training import Summary, train_one
    from difformer.training.config import make_config

    label, structure = SYSTEMS[preset.model]
    config = make_config(preset.model, preset.settings)
    before = time.monotonic()
    with Progress(output, metric="accuracy", runs=len(task.splits), epochs=config.epochs, title=f"{label}: ") as shown:
        records = [
            train_one(task, split, config, seed, device, callbacks=[shown]) for seed, split in enumerate(task.splits)
        ]
    summary = Summary(tuple(record.result() for record in records), records[0].metric, higher_is_better=True)
    return {
        "model": preset.model,
        "label": label,
        "structure": structure,
        "test": summary.mean("test"),
        "std": summary.std("test"),
        "valid": summary.mean("valid"),
        "values": summary.values("test"),
        "seconds": time.monotonic() - before,
        "settings": dict(preset.settings),
    }
