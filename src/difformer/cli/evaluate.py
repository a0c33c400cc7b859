"""``difformer evaluate``: measure a run again, only from its folder."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from difformer import training
from difformer.cli.command import DEVICE, RUN, command
from difformer.cli.description import variety
from difformer.cli.output import PARTS, Output, mean_and_deviation, score


@command("difformer evaluate runs/my-run")
def evaluate(output: Output, run: Path = RUN, device: str = DEVICE) -> None:
    """Measure a run again, with every metric that fits.

    The table has the metrics of every seed on train, validation and test instances.
    """
    folder = training.RunFolder.open(run)
    about = folder.about["data"]
    chosen_by = about["metric"] if folder.config.metric == "auto" else folder.config.metric
    output.say(f"{run}: {folder.config.model} on {about['task']}, best epoch on validation by {chosen_by}")
    output.say(f"protocol: {training.metrics.protocol_text(about['protocol'], chosen_by)}")
    found = training.evaluate(folder, device=device)
    names = list(found[0].values)
    means: dict[str, Any] = {}
    for metric in names:
        columns = {part: [one.values[metric][part] for one in found] for part in PARTS}
        means[metric] = {p: {"mean": fmean(v), "std": training.record.spread(v)} for p, v in columns.items()}
    seeds = [{"seed": one.seed, "split": one.split, "values": one.values} for one in found]
    output.json({"run": run, "task": about["task"], "model": folder.config.model, "seeds": seeds, "metrics": means})
    rows = [[o.seed, o.split, name, *(score(o.values[name][p]) for p in PARTS)] for o in found for name in names]
    output.table(["seed", "split", "metric", *PARTS], rows)
    if len(seeds) > 1:
        output.say(f"mean ± standard deviation over {len(seeds)} seeds{variety(seeds)}:")
    for metric in names:
        values = [f"{p} {mean_and_deviation(m['mean'], m['std'], len(seeds))}" for p, m in means[metric].items()]
        output.say(f"{metric}: {', '.join(values)}")
