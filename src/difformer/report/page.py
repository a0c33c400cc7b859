"""``write_report``: a run folder becomes one self-contained HTML file.

The page is ``assets/page.html``, a jinja2 template that escapes whatever comes from data; figures and maps reach it as
JSON. Its content security policy forbids every request.
"""

from __future__ import annotations

import base64
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from difformer.data import Task
from difformer.data.own.targets import DETERMINES
from difformer.errors import require
from difformer.files import csv_text, finite, printable, write_bytes
from difformer.nn import DIFFormer
from difformer.report import ATTENTION_OFF, comparison, explanation, gather, layers, maps, plots, quality
from difformer.report.explanation import Place
from difformer.report.gather import Material
from difformer.report.layers import LayerEnergies
from difformer.report.quality import Baseline
from difformer.training.devices import saved_bytes
from difformer.training.metrics import protocol_text
from difformer.training.record import NO_BETTER, NO_BETTER_MEAN
from difformer.training.run_folder import RunFolder
from difformer.training.trained_run import Loaded

NAME = "report.html"
OVERFIT = 0.2  # a larger lead of the training part in a metric in [0, 1] is reported as overfitting


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    path: Path  #: the file
    size: int  #: in bytes
    notes: tuple[str, ...]  #: what was left out or sampled, one sentence each
    verdict: str  #: what the layers' energies mean, in a sentence; empty for models that have none
    answer: str = ""  #: the result against simple models, in a sentence
    warnings: tuple[str, ...] = ()  #: what a reader should know before believing the result


def write_report(
    run: RunFolder | str | Path,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    nodes: Sequence[Place] = (),
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Report:
    """Writes a page about a run: result against simple models, errors, columns, maps, latent structure, energy, cost.

    Args:
        run: The run folder.
        out: The file; ``report.html`` in the run folder by default, which is overwritten.
        seed: The seed to inspect; by default the best one on validation. Curves and metrics are of all seeds.
        nodes: Instances to explain besides those that are chosen, as `explain_node` takes them.
        task: The run's task, where it was made from a task object.
        device: Where the model is run.

    Raises:
        ImportError: If plotly or jinja2 (extra ``report``) is not installed.
        RunFolderError: If the run has no result yet, or its data have changed.
    """
    libraries = [require(name, extra="report", purpose="a report") for name in ("jinja2", "plotly.offline")]
    material = gather.gather(run, seed=seed, task=task, device=device)
    folder, loaded, task, part = material.folder, material.loaded, material.task, material.part
    summary, predictions = folder.summary(), material.predictions
    diffuses = isinstance(gather.encoder_of(loaded.model), DIFFormer)
    scene = None if task.kind == "graphs" and not diffuses else gather.make_scene(loaded)
    columns = quality.column_importance(material)
    wrong = quality.errors(material, columns.names)
    chosen = dict.fromkeys([*nodes, *explanation.worth_explaining(material, wrong.places)])
    explanations = explanation.explain_nodes(loaded, list(chosen))
    always = [one.node for one in explanations if scene is not None and one.number == scene.number]
    drawn = maps.make_maps(material, scene, [node for node in always if node is not None])
    attention, energies, depth = drawn[-1].attention, None, ""
    if scene is not None and diffuses:
        energies = layers.layer_energies(scene, material.classes)
        depth = verdict(energies, float(scene.encoder.config["source_weight"]))
    found, base = quality.quality(task, predictions, part), quality.baselines(material)
    sure = quality.calibration(task, predictions, part)
    value = _spread((summary.mean(part), summary.std(part) if len(summary.results) > 1 else None), 4)
    plotly: Any = libraries[1]
    figures, thinned = plots.learning_curves(folder, summary.metric)
    figures |= plots.predictions(found) | plots.reliability(sure) | plots.importance(columns, summary.metric)
    figures |= plots.within(attention) | plots.energies(energies)
    (answer,) = say("answer", material, summary, value, base, quality.FIT_SPLITS)
    warnings = _warnings(material, base, found, energies, depth)
    context = {
        "material": material, "summary": summary, "value": value, "baselines": base, "answer": answer,
        "warnings": warnings, "thinned": thinned, "found": found, "calibration": sure, "errors": wrong,
        "errors_csv": _csv_link(wrong), "importance": columns, "figures": figures, "scene": scene, "maps": drawn,
        "attention": attention, "missing": layers.why_no_pairs(scene), "off": comparison.attention_off(folder),
        "attention_off": ATTENTION_OFF, "verdict": depth, "energies": energies, "explanations": explanations,
        "cost": _cost(loaded), "protocol": protocol_text(task.protocol, summary.metric), "colours": maps.COLOURS,
        "css": _asset("page.css"), "js": _asset("page.js"), "plotly": plotly.get_plotlyjs(),
    }  # fmt: skip
    content = _environment().get_template("page.html").render(context).encode()
    path = folder.path / NAME if out is None else Path(out)
    write_bytes(path, content)
    notes = tuple(dict.fromkeys(note for one in drawn for note in one.notes))
    return Report(path, len(content), notes, depth, answer, tuple(warnings))


def verdict(measured: LayerEnergies, source_weight: float) -> str:
    """One or two sentences about depth."""
    return say("verdict", measured, source_weight)[0]


def say(sentence: str, *values: Any) -> list[str]:
    """The paragraphs that a macro of ``assets/sentences.jinja`` makes, each in one line."""
    macro = getattr(_environment().get_template("sentences.jinja").module, sentence)
    return [" ".join(text.split()) for text in str(macro(*values)).split("\n\n") if text.strip()]


def _spread(value: tuple[float, float | None] | None, digits: int = 3) -> str:
    """Mean ± deviation, without the latter if there is one value."""
    return "–" if value is None else " ± ".join(f"{one:.{digits}f}" for one in value if one is not None)


def _warnings(
    material: Material, base: Sequence[Baseline], found: dict[str, Any], energies: LayerEnergies | None, depth: str
) -> list[str]:
    """What a reader should know before believing the page, in plain words."""
    summary, part, count = material.folder.summary(), material.part, material.rows.numel()
    copies = [note for note in material.task.notes if DETERMINES in note]
    noted = [f"{note[0].upper()}{note[1:]}." for note in (*copies, *summary.notes)]
    mean = summary.mean(part)
    error = math.sqrt(max(mean * (1 - mean), 0) / max(count, 1)) if summary.metric == "accuracy" else 0
    if (1 if summary.higher_is_better else -1) * (mean - base[0].mean) <= 2 * error:  # the warning below says the same
        noted = [one for one in noted if NO_BETTER[1:] not in one and NO_BETTER_MEAN[1:] not in one]
    alike = energies is not None and (layers.smoothed_layers(energies) or energies.spread[0] < layers.ALIKE)
    collapsed = depth if alike and not any("ollapsed states" in one for one in noted) else ""
    return [*noted, *say("warnings", part, summary, count, 2 * error, *base, OVERFIT, collapsed, found)]


def _cost(loaded: Loaded) -> dict[str, Any]:
    """Time of a forward pass, memory that is kept for the backward pass, and how layers are computed."""
    model, passes, encoder = loaded.model, loaded.feed.passes(), gather.encoder_of(loaded.model)
    held, inputs, operator = list(model.parameters()), passes[0], ""
    device = held[0].device if held else torch.device("cpu")

    def timed() -> float:
        begun = time.perf_counter()
        with torch.no_grad():
            inputs.outputs(model)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    timed()  # graphs are sorted at their first use
    if isinstance(encoder, DIFFormer) and len(encoder.layers):
        operator = encoder.explain(inputs.x, inputs.graph, None, inputs.batch)[0].partition(": ")[2]
    with torch.enable_grad():
        saved = saved_bytes(lambda: inputs.outputs(model), besides=held)
    return {
        "parameters": sum(p.numel() for p in held), "bytes": sum(p.numel() * p.element_size() for p in held),
        "milliseconds": 1000 * timed(), "saved": saved, "device": device, "operator": operator,
        "what": "all instances" if len(passes) == 1 else f"a batch of {inputs.x.shape[0]:,} rows",
    }  # fmt: skip


def _environment() -> Any:
    """Jinja2 with this page's files."""
    import jinja2

    options: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "finalize": _without_controls}
    options |= {"autoescape": jinja2.select_autoescape(["html"]), "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.FunctionLoader(_asset), **options)
    environment.globals["layers"] = layers
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    environment.filters |= {
        "spread": _spread, "short": gather.shortened, "quoted": repr, "shell": shlex.quote,
        "percent": lambda share: f"{100 * share:.1f} %", "plain": lambda document: _without_controls(finite(document)),
        "score": lambda value: "–" if value is None or value != value else f"{value:.4f}",
    }  # fmt: skip
    return environment


def _asset(name: str) -> str:
    return (files("difformer.report") / "assets" / name).read_text(encoding="utf-8")


def _without_controls(value: Any) -> Any:
    """Control characters of names and labels written out; text that is marked as safe is the page's own."""
    if isinstance(value, str):
        return value if hasattr(value, "__html__") else printable(value)
    if isinstance(value, dict):
        return {_without_controls(key): _without_controls(item) for key, item in value.items()}
    return [_without_controls(item) for item in value] if isinstance(value, list) else value


def _csv_link(found: quality.ErrorList) -> str:
    """The table as a link that saves a CSV file, in which a spreadsheet reads no text as a formula."""
    text = csv_text(
        [f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@\t\r") and not quality.is_number(v) else v for v in row]
        for row in (found.headings, *found.rows)
    )
    return "data:text/csv;base64," + base64.b64encode(text.encode()).decode()
