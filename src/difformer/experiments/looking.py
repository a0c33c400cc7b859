"""Looking into a model that was just trained: energy by layer, and pictures of its states and latent edges.

Layouts, strongest pairs and energies are those of `difformer report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data import Task
from difformer.report.energy import layer_energies
from difformer.report.latent import chance, latent_layers, why_no_attention
from difformer.report.projection import project
from difformer.report.sampling import draw
from difformer.report.scene import Scene, make_scene
from difformer.training.feeding import make_feed
from difformer.training.model import build_model
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord
from difformer.training.using import Loaded

if TYPE_CHECKING:
    from difformer.experiments.performing import Ready

POINTS, PAIRS, SNAPSHOTS = 800, 80, 3


def look(mode: str, what: Ready, record: RunRecord, device: torch.device) -> dict[str, Any]:
    """What a figure needs of a run, as numbers and lists."""
    loaded = _loaded(what, record, device)
    task = what.task
    classes = task.y if task.problem == "multiclass" and task.kind == "nodes" else None
    scene = make_scene(loaded)
    energies = layer_energies(scene, classes)
    found: dict[str, Any] = {"energy": energies.energy, "rank": energies.rank, "separation": energies.separation}
    if mode == "energy":
        return found
    if task.kind == "series":
        return {**found, "pictures": _snapshots(loaded, task)}
    shown = draw(scene.size, POINTS)
    pairs = _latent(scene, shown, classes)
    if pairs and classes is not None:
        found |= {"within": [one.within for one in pairs], "uniform": chance(classes, shown)}
        found["entropy"] = [one.entropy for one in pairs]
    return {**found, "pictures": _layers(scene, shown, classes, pairs)}


def _loaded(what: Ready, record: RunRecord, device: torch.device) -> Loaded:
    assert what.config is not None
    task = what.task
    split = task.splits[record.seed % len(task.splits)]
    with isolated_rng(device):
        model = build_model(task, what.config)
        model.load_state_dict(record.state)
        model.to(device).eval()
        feed = make_feed(task, split, what.config, record.seed, device, model)
        return Loaded(model, feed, task, split, what.config.precision)


def _latent(scene: Scene, shown: Tensor, classes: Tensor | None) -> list[Any]:
    """Latent layers; none where a model has no pairs to look at."""
    if not len(scene.difformer.layers) or why_no_attention(scene.difformer.layers[0]):  # type: ignore[arg-type]
        return []
    return latent_layers(scene, shown, classes)


def _layers(scene: Scene, shown: Tensor, classes: Tensor | None, latent: list[Any]) -> list[dict[str, Any]]:
    """Input, first and last layer: states with the pairs of the step that made them."""
    assert scene.states is not None
    maps = project([states[shown] for states in scene.states])
    last = len(maps) - 1
    chosen = list(dict.fromkeys((0, min(1, last), last)))
    own = None if classes is None else classes[shown].tolist()
    return [
        {
            "title": "before diffusion" if k == 0 else f"layer {k} of {last}",
            "x": maps[k].x,
            "y": maps[k].y,
            "classes": own,
            "values": None,
            "pairs": _pairs(latent[k - 1]) if k and latent else [],
        }
        for k in chosen
    ]


def _snapshots(loaded: Loaded, task: Task) -> list[dict[str, Any]]:
    """The first layer's attention at the first test snapshots, nodes coloured by what was to be foretold."""
    found = []
    for number in loaded.split.test[:SNAPSHOTS].tolist():
        scene = make_scene(loaded, number)
        assert scene.states is not None
        everyone = torch.arange(scene.size)
        latent = _latent(scene, everyone, None)
        first = project([scene.states[min(1, len(scene.states) - 1)]])[0]
        found.append(
            {
                "title": f"snapshot {number}, layer 1",
                "x": first.x,
                "y": first.y,
                "classes": None,
                "values": [round(value, 4) for value in task.y[number].tolist()],
                "pairs": _pairs(latent[0]) if latent else [],
            }
        )
    return found


def _pairs(layer: Any) -> list[list[float]]:
    return [list(one) for one in zip(layer.source[:PAIRS], layer.target[:PAIRS], layer.weight[:PAIRS], strict=True)]
