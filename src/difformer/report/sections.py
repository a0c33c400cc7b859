"""What the page says in words: the answer on top, warnings, facts of the run, its cost, and how to use it."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from typing import Any

import torch

from difformer.attention import explain
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.report.gather import Material, encoder_of
from difformer.report.layers import LayerEnergies, smoothed_layers
from difformer.report.quality import Baseline, Calibration
from difformer.training.saved import saved_bytes
from difformer.training.using import Loaded

MIB = 2**20
PARTS = ("train", "valid", "test")
OVERFIT = 0.2  # by which a metric in [0, 1] may be better on the training part before the page speaks of it
NO_DIFFUSION = (
    "This model takes no diffusion steps over latent pairs, so there is {} to show; DIFFormer models have it."
)


def answer(material: Material, base: Sequence[Baseline]) -> str:
    """The result in one sentence, against the simple models."""
    summary, part, task = material.folder.summary(), material.part, material.task
    what = {"nodes": "instances", "series": "snapshots", "graphs": "graphs"}[task.kind]
    others = " and ".join(f"{one.name} gives {one.mean:.4f}" for one in base if one.mean == one.mean)
    direction = "" if summary.higher_is_better else " (lower is better)"
    return (
        f"On {material.rows.numel():,} {part} {what} {material.folder.config.model} reaches {summary.metric} "
        f"{value_of(material)}{direction}; {others} on the same split."
    )


def value_of(material: Material) -> str:
    """Mean ± deviation of the metric."""
    summary, part = material.folder.summary(), material.part
    mean = f"{summary.mean(part):.4f}"
    return f"{mean} ± {summary.std(part):.4f}" if len(summary.results) > 1 else mean


def over_seeds(material: Material) -> str:
    """What ± is taken over."""
    summary = material.folder.summary()
    runs, splits = len(summary.results), len({result["split"] for result in summary.results})
    if runs == 1:
        return "one seed"
    over = f"mean ± standard deviation over {runs} seeds on {splits} split{'s' * (splits > 1)}"
    return f"{over}: ± is over initialisations alone" if splits == 1 else over


def cards(material: Material, base: Sequence[Baseline], measured: Calibration | None) -> list[tuple[str, str, str]]:
    """Heading, figure and a remark of each card."""
    summary, part = material.folder.summary(), material.part
    sign = 1 if summary.higher_is_better else -1
    found = [(f"{part} {summary.metric}", value_of(material), over_seeds(material))]
    short = ("constant prediction", "linear model")
    for one, name in zip(base, short, strict=True):
        if one.mean == one.mean:
            gain = sign * (summary.mean(part) - one.mean)
            found.append((f"better than a {name} by", f"{gain:+.4f}", f"{one.name}: {one.mean:.4f}"))
    if measured is not None:
        remark = "expected calibration error: how far predicted probabilities are from how often they are right"
        found.append(("calibration error", f"{100 * measured.error:.1f} %", remark))
    return found


def warnings_of(
    material: Material,
    base: Sequence[Baseline],
    found: dict[str, Any],
    energies: LayerEnergies | None,
    verdict: str,
    uniform: str,
) -> list[str]:
    """What a reader should know before believing the page, in plain words."""
    summary, part, task = material.folder.summary(), material.part, material.task
    sign = 1 if summary.higher_is_better else -1
    mean, train = summary.mean(part), summary.mean("train")
    said = list(getattr(summary, "notes", ()))
    error = math.sqrt(max(mean * (1 - mean), 0) / max(material.rows.numel(), 1)) if summary.metric == "accuracy" else 0
    constant, linear = base
    if sign * (mean - constant.mean) <= 2 * error:
        said.append(f"No better than a constant: {constant.name} gives {constant.mean:.4f}, this model {mean:.4f}.")
    elif sign * (mean - linear.mean) <= 0:
        said.append(
            f"{linear.name[0].upper()}{linear.name[1:]} on the features alone does as well ({linear.mean:.4f} against "
            f"{mean:.4f})."
        )
    if task.problem == "multiclass" and not said:
        only = [names for one in material.predictions if len(names := one.labels()[_in(one, part)].unique()) < 2]
        if only and task.num_outputs > 1:
            said.append(f"{len(only)} of {len(material.predictions)} seeds predict one class for every instance.")
    if (
        part != "train"
        and train == train
        and (train - mean > OVERFIT if summary.higher_is_better else mean > 2 * train)
    ):
        said.append(
            f"Overfitting: {summary.metric} is {train:.4f} on the training part and {mean:.4f} on the {part} part. "
            "More dropout or weight decay, fewer channels or more labels may help."
        )
    if energies is not None and len(energies.spread) > 1 and (smoothed_layers(energies) or energies.spread[0] < 0.02):
        said.append(f"Collapsed states: {verdict}")
    if uniform:
        said.append(uniform)
    if found["kind"] == "classes" and found["seeds"]:
        rare = [r for r in found["table"] if r["number"] and r["predicted_in"] < found["seeds"]]
        for row in rare[:3]:
            often = f"in {row['predicted_in']} of {found['seeds']} seeds" if row["predicted_in"] else "in no seed"
            rests = ": its precision rests on those alone" if row["predicted_in"] else ""
            said.append(f"Class {row['name']} is predicted {often}{rests}.")
        if len(rare) > 3:
            said.append(f"The same holds for {len(rare) - 3} more classes, see the table of classes.")
    return said


def _in(predictions: Any, part: str) -> list[int]:
    return [i for i, one in enumerate(predictions.part) if one == part]


def run_facts(material: Material) -> tuple[list[tuple[str, Any]], list[tuple[str, str]]]:
    """What was run, and all settings."""
    folder = material.folder
    run, versions = folder.about["run"], folder.about["versions"]
    # The run's own metric, which may differ from the task's.
    named = {**material.task.facts(), "metric": folder.summary().metric}
    facts = [(key, f"{value:,}" if isinstance(value, int) else value) for key, value in named.items()]
    facts += [
        ("folder", str(folder.path)),
        ("created", run["created"]),
        ("seeds", ", ".join(map(str, folder.seeds))),
        ("versions", ", ".join(f"{key} {value}" for key, value in versions.items())),
    ]
    settings = {**folder.about["model"].get("options", {}), **folder.about["training"]}
    shown = [(k, str(v).lower() if v is None or isinstance(v, bool) else str(v)) for k, v in settings.items()]
    return facts, shown


def result_rows(material: Material) -> list[list[Any]]:
    """One row per seed."""
    return [
        [r["seed"], r["split"], f"{r['best_epoch']}/{r['epochs']}", *(number(r[p]) for p in PARTS),
         f"{r['seconds']:.1f} s", r["status"]]
        for r in material.folder.results()
    ]  # fmt: skip


def class_rows(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of the table of classes, or of the errors of values."""
    if found["kind"] == "residuals":
        return ["", "MSE", "MAE", "R²"], [
            [r["name"], *(deviation(r[c]) for c in ("mse", "mae", "r2"))] for r in found["table"]
        ]
    columns = ["precision", "recall", "f1", *(["auc"] if found["table"] and "auc" in found["table"][0] else [])]
    seeds = f"{found['seeds']} seed{'s' * (found['seeds'] > 1)}"
    rows = [
        [r["name"], f"{r['number']:,.0f}", *(deviation(r[c]) for c in columns), f"{r['predicted_in']} of {seeds}"]
        for r in found["table"]
    ]
    return ["class", "number", *columns, "predicted in"], rows


def energy_rows(measured: LayerEnergies, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    columns: list[tuple[str, list[float] | None]] = [
        ("energy, all pairs", measured.energy),
        ("energy, edges", measured.edges),
        ("theorem's diffusion", measured.theorem),
        ("effective rank", measured.rank),
        ("distance of unit states", measured.spread),
        ("between classes", measured.separation),
    ]
    held = [(name, values) for name, values in columns if values is not None]
    rows = [[name, *(f"{values[k]:.4g}" for _, values in held)] for k, name in enumerate(names)]
    return ["state", *(name for name, _ in held)], rows


def theorem(measured: LayerEnergies) -> str:
    """What the theorem says of this run."""
    if len(measured.energy) == 1:
        return ""
    first = "The theorem on all-pair attention does not apply here."
    if measured.theorem:
        first = (
            "The theorem says that the energy of the diffusion from the same first states, with the same diffusivity "
            "and step size but an exchange by distances, never rises: that is the dashed line."
        )
    if not measured.reasons:
        return f"{first} This run is that diffusion: the dashed line is its own."
    why = "; ".join(measured.reasons)
    return f"{first} It does not cover this run: {why}. What is shown of the run is measured, not proved."


def costs(material: Material) -> list[tuple[str, str]]:
    """Time from the folder; parameters, memory of a training pass and the operator, measured here."""
    folder, loaded = material.folder, material.loaded
    results, run = folder.results(), folder.about["run"]
    seconds, epochs = sum(r["seconds"] for r in results), sum(r["epochs"] for r in results)
    each = 1000 * seconds / max(epochs, 1)
    how = "seeds as one model" if run["stacked"] else "one seed after the other"
    held = list(loaded.model.parameters())
    size = sum(p.numel() * p.element_size() for p in held) / MIB
    seeds = f"{len(results)} seed{'s' * (len(results) > 1)}"
    device, threads = run.get("device_name", run["device"]), run.get("threads", "?")
    found = [
        ("training", f"{seconds:.1f} s, {seeds}, {epochs:,} epochs: {each:.1f} ms each, evaluation included"),
        ("trained on", f"{device} ({run['device']}), {threads} threads, {how}"),
        ("parameters", f"{sum(p.numel() for p in held):,} ({size:.2f} MiB)"),
        *_forward_pass(loaded),
        ("all pairs by", _backend(loaded)),
    ]
    return [(name, value) for name, value in found if value]


def _forward_pass(loaded: Loaded) -> list[tuple[str, str]]:
    """Time of a pass over some or all instances, and what it keeps for its backward pass."""
    inputs = loaded.feed.passes()[0]
    model, rows = loaded.model, inputs.x.shape[0]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.no_grad():
        inputs.outputs(model)  # graphs are sorted at their first use
        wait()
        begun = time.perf_counter()
        inputs.outputs(model)
        wait()
    taken = time.perf_counter() - begun
    with torch.enable_grad():
        size = saved_bytes(lambda: inputs.outputs(model), besides=model.parameters())
    whole = "all instances" if len(loaded.feed.passes()) == 1 else f"a batch of {rows:,} rows"
    memory = f"{size / MIB:.1f} MiB are kept for the backward pass of {whole}" if size else ""
    return [
        ("a forward pass here", f"{1000 * taken:.1f} ms for {whole} on {device}"),
        ("memory of a training pass", memory),
    ]


def _backend(loaded: Loaded) -> str:
    """The operator for all pairs and why it was chosen."""
    encoder = encoder_of(loaded.model)
    if not isinstance(encoder, DIFFormer) or not len(encoder.layers):
        return ""
    layer: DIFFormerConv = encoder.layers[0]  # type: ignore[assignment]
    if layer.diffusivity is None:
        return "no latent pairs: observed edges alone"
    if layer.backend != "auto":
        return f"{layer.backend}: requested by the setting backend={layer.backend}"
    inputs = loaded.feed.passes()[0]
    rows = inputs.x.shape[0] if inputs.batch is None else inputs.batch.largest
    if layer.form == "simple" and layer.qk_norm != "row" and inputs.batch is None:
        return "linear: simple is a sum; with this norm of queries and keys the states' Gram matrix is all it needs"
    device = next(encoder.parameters()).device
    return str(explain(rows, layer.out_channels, diffusivity=layer.diffusivity, heads=layer.num_heads, device=device))


def snippets(material: Material) -> list[str]:
    """Python and, where the run can load its own data, shell commands that use the run."""
    path, own = str(material.folder.path), material.folder.source is not None
    task, word = "" if own else ", task=task", shlex.quote(path)
    python = (
        "from difformer.training import load_run, predict\n\n"
        f"predictions = predict({path!r}{task})  # of the run's own instances\n"
        "headings, rows = predictions.table()\n"
        f"loaded = load_run({path!r}{task}, seed={material.seed})  # loaded.model, loaded.task, loaded.split"
    )
    if not own:
        return [python]
    shell = f"difformer predict {word} --out predictions.csv\ndifformer evaluate {word}"
    if material.task.kind == "nodes":
        shell += f"\ndifformer predict {word} --features new.csv --out predictions.csv"
    return [python, shell]


def number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"


def deviation(value: tuple[float, float | None] | None) -> str:
    """Mean ± deviation, without the latter where one value is all there is."""
    if value is None:
        return "–"
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"
