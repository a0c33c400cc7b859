"""``write_report``: a run folder becomes one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from difformer.data import Task
from difformer.files import write_bytes
from difformer.report import layer_sections, sections
from difformer.report.choosing import worth_explaining
from difformer.report.curves import learning_curves
from difformer.report.energy import layer_energies
from difformer.report.explanation import Place, explain_nodes
from difformer.report.gathering import gather
from difformer.report.html import page, plotly_script
from difformer.report.maps import Map, graphs_map, nodes_of_graph_map, scene_map
from difformer.report.quality import quality
from difformer.report.scene import is_diffusion, make_scene
from difformer.training.run_folder import RunFolder

NAME = "report.html"


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Args:
        path: The file.
        size: In bytes.
        notes: What was left out or sampled, one sentence each.
        verdict: What the layers' energies mean, in a sentence; empty for models that have none.
    """

    path: Path
    size: int
    notes: tuple[str, ...]
    verdict: str


def write_report(
    run: RunFolder | str | Path,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    nodes: Sequence[Place] = (),
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Report:
    """Writes a page about a run: curves, errors, maps of the states, latent structure, energy, cost.

    Args:
        run: The run folder.
        out: The file; ``report.html`` in the run folder by default, which is written over.
        seed: Which seed is looked into; the best on validation by default. Curves and errors are of all.
        nodes: Instances to explain besides those that are chosen, as `explain_node` takes them.
        task: The run's task, where it was made from a task object.
        device: Where the model is run.

    Raises:
        ImportError: If plotly (extra ``report``) is not installed.
        RunFolderError: If the run has no result yet, or its data have changed.
    """
    plotly_script()  # before anything is computed
    material = gather(run, seed=seed, task=task, device=device)
    folder, loaded = material.folder, material.loaded
    found = quality(material.task, material.predictions, material.part)
    curves = learning_curves(folder)
    diffuses = is_diffusion(loaded.model)
    scene = None if material.task.kind == "graphs" and not diffuses else make_scene(loaded)
    chosen = [*nodes, *worth_explaining(material)] if diffuses else []
    explanations = explain_nodes(loaded, list(dict.fromkeys(chosen))) if chosen else []
    maps: list[Map] = []
    if material.task.kind == "graphs":
        maps.append(graphs_map(loaded, material.outputs))
        if scene is not None:
            maps.append(nodes_of_graph_map(loaded, scene))
    else:
        assert scene is not None
        always = [one.node for one in explanations if one.number == scene.number]
        maps.append(scene_map(loaded, scene, material.outputs, material.classes, folder.source, always))
    energies = layer_energies(scene, material.classes) if scene is not None and diffuses else None
    data: dict[str, Any] = {
        "curves": curves,
        "quality": {key: value for key, value in found.items() if key != "table"},
        "maps": [one.data for one in maps],
        "explanations": [layer_sections.explanation_data(one) for one in explanations],
    }
    if energies is not None:
        data["energy"] = layer_sections.energy_data(energies)
    data["within"] = layer_sections.within_data(maps[0], scene, material.classes)
    verdict = layer_sections.verdict_of(material, energies)
    body = "".join(
        (
            sections.header(material),
            "<main>",
            sections.what_was_run(material),
            sections.results(material, curves),
            sections.predictions(material, found),
            layer_sections.map_section(material, scene, maps),
            layer_sections.within_section(material, scene, data["within"]),
            layer_sections.energy_section(material, scene, energies, verdict),
            layer_sections.explanation_section(material, explanations),
            sections.cost_section(material),
            sections.use_section(material),
            "</main>",
        )
    )
    about = folder.about["data"]
    text = page(f"{folder.config.model} on {about['task']}", body, data)
    path = folder.path / NAME if out is None else Path(out)
    content = text.encode()
    write_bytes(path, content)
    notes = tuple(dict.fromkeys(note for one in maps for note in one.notes))
    return Report(path, len(content), notes, verdict)
