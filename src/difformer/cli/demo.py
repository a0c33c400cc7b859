"""``difformer demo``: what the package does, in about a minute, on data that need no download.

The settings are the presets ``best``, each the best of 40 trials on validation data. Pixels are not standardised.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from difformer import experiments, report, training
from difformer.cli.command import DEVICE, command, option
from difformer.cli.output import Output, clock_time, counted
from difformer.training.config import make_config

DATASET = "digits"
LABELS_PER_CLASS = 10
SYSTEMS = {  # model: what it is called here, and the structure that it uses
    "mlp": ("perceptron", "none"),
    "label-spreading": ("label spreading", "neighbours"),
    "gcn": ("GCN", "neighbours"),
    "difformer-s": ("DIFFormer-s, as in the paper", "latent pairs"),
    "difformer-sharp": ("DIFFormer, sharp", "near latent pairs"),
    "difformer": ("DIFFormer", "neighbours and near latent pairs"),
}
KEPT = "difformer"


@command("difformer demo")
def demo(
    output: Output,
    splits: int = option("Random splits, one run each.", 3, low=1),
    out: Path | None = option("Folder of the run that is kept; runs/demo-difformer-TIME by default."),
    open_it: bool | None = option("Open the report in the browser.", None, "--open/--no-open"),
    device: str = DEVICE,
) -> None:
    """Compare six models on handwritten digits.

    There are 1,797 digits with ten labels per class. The last model's run is kept, and the demo ends with its report.
    """
    folder = out or training.run_folder.default_path("demo", KEPT)
    training.run_folder.check_free(folder)
    started = time.monotonic()
    source = training.TaskSource(
        DATASET, options={"per_class": LABELS_PER_CLASS, "num_splits": splits, "standardize": False}
    )
    task = source.load()
    output.say(
        f"{task.num_instances:,} handwritten digits, {LABELS_PER_CLASS} labels per class, "
        f"{counted(splits, 'random splits')}. All settings were chosen on validation data, from 40 trials each.\n"
    )
    rows: list[dict[str, Any]] = []
    for model, (label, structure) in SYSTEMS.items():
        settings = dict(experiments.find_preset("best", model=model, dataset=DATASET).settings)
        with output.err.status(f"training {label}: {counted(splits, 'runs')}"):
            before = time.monotonic()
            config, kept = make_config(model, {**settings, "eval_every": 5}), folder if model == KEPT else None
            summary = training.fit(source, config, seeds=splits, out=kept, device=device, preset="best")
        scores = {"test": summary.mean("test"), "std": summary.std("test"), "valid": summary.mean("valid")}
        about = {"model": model, "label": label, "structure": structure, "values": summary.values("test")}
        rows.append({**about, **scores, "seconds": time.monotonic() - before, "settings": settings})
    page: Path | None = None
    try:
        with output.err.status("writing the report"):
            page = report.write_report(folder, device=device).path
    except ImportError as error:
        output.remark(f"no report: {error}")
    seconds = time.monotonic() - started
    output.json({"task": task.facts(), "seconds": seconds, "systems": rows, "run": folder, "report": page})
    shown = []
    for row in rows:
        deviation = f" ± {100 * row['std']:.1f}" if splits > 1 else ""
        shown.append([row["label"], row["structure"], f"{100 * row['test']:.1f}{deviation} %", f"{row['seconds']:.1f}"])
    output.table(["model", "structure", "test accuracy", "seconds"], shown)
    over = f"Mean and standard deviation over {splits} splits" if splits > 1 else "One split"
    output.say(f"{over}; {clock_time(seconds)} in all.")
    output.say(f"Run folder of the last model: {folder}")
    if page is not None:
        output.say(f"Report: {page}")
        if open_it is not False and output.out.is_terminal:
            output.open(page)
