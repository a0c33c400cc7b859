"""``write_report``: a run folder becomes one HTML file that needs nothing else.

The page is ``assets/page.html``, a jinja2 template that escapes whatever comes from data; figures and maps reach it as
JSON. Its content security policy forbids every request.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from difformer.data import Task
from difformer.files import csv_text, finite, printable, write_bytes
from difformer.report import plots, sections
from difformer.report.comparison import attention_off
from difformer.report.explanation import PARTS, Explanation, Place, explain_nodes, worth_explaining
from difformer.report.gather import Material, Scene, gather, is_diffusion, make_scene, shortened
from difformer.report.layers import layer_energies, uniform_note, verdict, within_classes
from difformer.report.maps import Map, graphs_map, nodes_of_graph_map, scene_map
from difformer.report.quality import ErrorList, baselines, calibration, column_importance, errors, quality
from difformer.training.metrics import protocol_text
from difformer.training.run_folder import RunFolder

NAME = "report.html"
NAVIGATION = {
    "results": "Results", "predictions": "Predictions", "errors": "Errors", "columns": "Columns", "map": "Map",
    "within": "Attention", "energy": "Energy", "explanations": "Explanations", "cost": "Cost", "run": "Run",
    "use": "Use",
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Args:
        path: The file.
        size: In bytes.
        notes: What was left out or sampled, one sentence each.
        verdict: What the layers' energies mean, in a sentence; empty for models that have none.
        answer: The result against simple models, in a sentence.
        warnings: What a reader should know before believing the result.
    """

    path: Path
    size: int
    notes: tuple[str, ...]
    verdict: str
    answer: str = ""
    warnings: tuple[str, ...] = ()


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
        seed: Which seed is looked into; the best on validation by default. Curves and metrics are of all seeds.
        nodes: Instances to explain besides those that are chosen, as `explain_node` takes them.
        task: The run's task, where it was made from a task object.
        device: Where the model is run.

    Raises:
        ImportError: If plotly or jinja2 (extra ``report``) is not installed.
        RunFolderError: If the run has no result yet, or its data have changed.
    """
    plotly, environment = _libraries()  # before anything is computed
    material = gather(run, seed=seed, task=task, device=device)
    folder, loaded, metric = material.folder, material.loaded, material.folder.summary().metric
    diffuses = is_diffusion(loaded.model)
    scene = None if material.task.kind == "graphs" and not diffuses else make_scene(loaded)
    chosen = [*nodes, *worth_explaining(material)] if diffuses else []
    explanations = explain_nodes(loaded, list(dict.fromkeys(chosen))) if chosen else []
    maps = _maps(material, scene, explanations)
    energies = layer_energies(scene, material.classes) if scene is not None and diffuses else None
    latent, shown = maps[-1].latent, maps[-1].shown
    attention = within_classes(scene, latent, shown, material.classes)
    even = uniform_note(
        maps[-1].data["uniform"], latent, None if attention is None else attention.chance, attention_off(folder)
    )
    options = folder.about["model"].get("options", {})
    said = ""
    if energies is not None and scene is not None:
        said = verdict(energies, float(scene.difformer.config["source_weight"]))
    found, base = quality(material.task, material.predictions, material.part), baselines(material)
    sure, columns = calibration(material.task, material.predictions, material.part), column_importance(material)
    wrong = errors(material, columns.names)
    drawn, thinned = plots.learning_curves(folder, metric)
    if found["kind"] == "classes":
        drawn["confusion"] = plots.confusion(found)
    elif found["scatter"] is not None:
        drawn |= plots.residuals(found)
    if sure is not None:
        drawn["reliability"] = plots.reliability(sure)
    if columns.names:
        drawn["importance"] = plots.importance(columns, metric)
    if attention is not None:
        drawn["within-plot"] = plots.within(attention)
    if energies is not None:
        drawn |= plots.energies(energies)
    drawn |= {f"explanation-{i}": plots.explanation(one) for i, one in enumerate(explanations) if one.steps}
    warnings = sections.warnings_of(material, base, found, energies, said)
    answer = sections.answer(material, base)
    context = {
        "title": f"{folder.config.model} on {folder.about['data']['task']}", "navigation": NAVIGATION,
        "answer": answer, "cards": sections.cards(material, base, sure), "warnings": warnings, "material": material,
        "folder": folder, "about": folder.about, "task": material.task, "kind": material.task.kind, "metric": metric,
        "protocol": protocol_text(material.task.protocol, metric), "settings": {**options, **folder.about["training"]},
        "thinned": thinned, "found": found, "calibration": sure,
        "errors": wrong, "errors_csv": _csv_link(wrong), "importance": columns, "figures": drawn, "scene": scene,
        "maps": maps, "missing": sections.why_no_pairs(scene), "within": attention, "even": even, "verdict": said,
        "energies": energies, "explanations": explanations, "parts": PARTS, "diffuses": diffuses,
        "no_diffusion": sections.NO_DIFFUSION, "costs": sections.costs(material), "own": folder.source is not None,
        "css": _asset("page.css"), "js": _asset("page.js"), "plotly": plotly,
        "data": _embedded({"figures": drawn, "maps": [one.data for one in maps], "colours": plots.COLOURS}),
    }  # fmt: skip
    content = environment.get_template("page.html").render(context).encode()
    path = folder.path / NAME if out is None else Path(out)
    write_bytes(path, content)
    notes = tuple(dict.fromkeys(note for one in maps for note in one.notes if note not in warnings))
    return Report(path, len(content), notes, said, answer, tuple(warnings))


def _libraries() -> tuple[str, Any]:
    """Plotly's whole program, and jinja2 with this page's files."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        name = (error.name or "plotly").partition(".")[0]
        raise ImportError(f"a report needs {name}; install it with: pip install 'difformer[report]'") from error
    loader = jinja2.FunctionLoader(_asset)
    options: dict[str, Any] = {"autoescape": True, "undefined": jinja2.StrictUndefined, "finalize": _without_controls}
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options)
    environment.filters |= {
        "score": sections.score, "spread": sections.spread, "short": shortened, "quoted": repr, "shell": shlex.quote
    }  # fmt: skip
    return str(get_plotlyjs()), environment


def _asset(name: str) -> str:
    return (files("difformer.report") / "assets" / name).read_text(encoding="utf-8")


def _without_controls(value: Any) -> Any:
    """Control characters of names and labels written out; text that is marked as safe is the page's own."""
    if isinstance(value, str):
        return value if hasattr(value, "__html__") else printable(value)
    if isinstance(value, dict):
        return {_without_controls(key): _without_controls(item) for key, item in value.items()}
    return [_without_controls(item) for item in value] if isinstance(value, list) else value


def _embedded(document: Any) -> str:
    """JSON that no text inside can break out of: every ``<`` is written as ``\\u003c``."""
    text = json.dumps(_without_controls(finite(document)), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _csv_link(found: ErrorList) -> str:
    """The table as a link to save; a spreadsheet must not take a text for a formula."""
    text = csv_text(
        [f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@\t\r") else v for v in row]
        for row in (found.headings, *found.rows)
    )
    return "data:text/csv;base64," + base64.b64encode(text.encode()).decode()


def _maps(material: Material, scene: Scene | None, explanations: Sequence[Explanation]) -> list[Map]:
    loaded = material.loaded
    if material.task.kind == "graphs":
        graphs = graphs_map(loaded, material.outputs)
        return [graphs] if scene is None else [graphs, nodes_of_graph_map(loaded, scene)]
    assert scene is not None
    always = [one.node for one in explanations if one.number == scene.number]
    return [scene_map(loaded, scene, material.outputs, material.classes, material.folder.source, always)]
