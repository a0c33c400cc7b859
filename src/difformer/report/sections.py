"""What the page says in words: the answer on top, warnings, facts of the run, its cost, and how to use it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from difformer.attention import explain
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.report.gather import Material, Scene, encoder_of
from difformer.report.layers import ALIKE, LayerEnergies, smoothed_layers, why_no_attention
from difformer.report.quality import FIT_SPLITS, Baseline, Calibration
from difformer.training.devices import saved_bytes
from difformer.training.record import NO_BETTER
from difformer.training.trained_run import Loaded

MIB = 2**20
OVERFIT = 0.2  # by which a metric in [0, 1] may be better on the training part before the page speaks of it
NO_DIFFUSION = (
    "This model takes no diffusion steps over latent pairs, so there is {} to show; DIFFormer models have it."
)


def answer(material: Material, base: Sequence[Baseline]) -> str:
    """The result in one sentence, against the simple models."""
    summary, part, task = material.folder.summary(), material.part, material.task
    what = {"nodes": "instances", "series": "snapshots", "graphs": "graphs"}[task.kind]
    others = " and ".join(f"{one.name} gives {one.mean:.4f}" for one in base if one.mean == one.mean)
    splits = len({result["split"] for result in summary.results})
    where = "split" if splits == 1 else "splits" if splits <= FIT_SPLITS else f"first {FIT_SPLITS} splits"
    direction = "" if summary.higher_is_better else " (lower is better)"
    return (
        f"On {material.rows.numel():,} {part} {what} {material.folder.config.model} reaches {summary.metric} "
        f"{value_of(material)}{direction}{f'; {others} on the same {where}' if others else ''}."
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
            found.append((f"against a {name}", f"{gain:+.4f}", f"{one.name}: {one.mean:.4f}"))
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
) -> list[str]:
    """What a reader should know before believing the page, in plain words."""
    summary, part = material.folder.summary(), material.part
    sign = 1 if summary.higher_is_better else -1
    mean, train = summary.mean(part), summary.mean("train")
    said = [f"{note[0].upper()}{note[1:]}." for note in summary.notes]
    error = math.sqrt(max(mean * (1 - mean), 0) / max(material.rows.numel(), 1)) if summary.metric == "accuracy" else 0
    constant, linear = base
    ahead = sign * (mean - constant.mean)
    if ahead <= 2 * error:
        count = material.rows.numel()
        why = "No better than a constant" if ahead <= 0 else f"Not shown to beat a constant on {count} instances"
        said = [one for one in said if NO_BETTER[1:] not in one]  # which is the same
        said.append(f"{why}: {constant.name} gives {constant.mean:.4f}, this model {mean:.4f}.")
    elif sign * (mean - linear.mean) <= 0:
        how = "as well" if mean == linear.mean else "better"
        name = f"{linear.name[0].upper()}{linear.name[1:]}"
        said.append(f"{name} on the features alone does {how} ({linear.mean:.4f} against {mean:.4f}).")
    if (
        part != "train"
        and train == train
        and (train - mean > OVERFIT if summary.higher_is_better else mean > 2 * train)
    ):
        said.append(
            f"Overfitting: {summary.metric} is {train:.4f} on the training part and {mean:.4f} on the {part} part. "
            "More dropout or weight decay, fewer channels or more labels may help."
        )
    collapsed = energies is not None and (smoothed_layers(energies) or energies.spread[0] < ALIKE)
    if collapsed and not any("ollapsed states" in one for one in said):
        said.append(f"Collapsed states: {verdict}")
    if found["kind"] == "classes" and found["seeds"]:
        rare = [r for r in found["table"] if r["number"] and r["predicted_in"] < found["seeds"]]
        for row in rare[:3]:
            often = f"in {row['predicted_in']} of {found['seeds']} seeds" if row["predicted_in"] else "in no seed"
            rests = ": its precision rests on those alone" if row["predicted_in"] else ""
            said.append(f"Class {row['name']} is predicted {often}{rests}.")
        if len(rare) > 3:
            said.append(f"The same holds for {len(rare) - 3} more classes, see the table of classes.")
    return said


def why_no_pairs(scene: Scene | None) -> str:
    """Why there are no latent pairs, with a place for what is missing; empty where there are some."""
    if scene is None or scene.states is None:
        return NO_DIFFUSION
    if not len(scene.difformer.layers):
        return "There are no diffusion layers, hence no latent pairs."
    why = why_no_attention(scene.difformer.layers[0])  # type: ignore[arg-type]
    return f"{why[0].upper()}{why[1:]}." if why else ""


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
    threads = f"{threads} thread{'s' * (threads != 1)}"
    found = [
        ("training", f"{seconds:.1f} s, {seeds}, {epochs:,} epochs: {each:.1f} ms each, evaluation included"),
        ("trained on", f"{device} ({run['device']}), {threads}, {how}"),
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


def score(value: float | None) -> str:
    """A metric with four digits."""
    return "–" if value is None or value != value else f"{value:.4f}"


def spread(value: tuple[float, float | None] | None) -> str:
    """Mean ± deviation, without the latter where one value is all there is."""
    if value is None:
        return "–"
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"
