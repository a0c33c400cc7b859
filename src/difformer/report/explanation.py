"""One prediction, explained: where the instance is, what its score is, and every layer of it taken apart.

The mathematics is in `difformer.report.decomposition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from difformer.data import Task
from difformer.nn import GraphLevel, readout
from difformer.nn.structure import as_structure
from difformer.report.decomposition import PARTS, Influence, Step, take_apart
from difformer.report.quality import column_names
from difformer.report.scene import Scene, is_diffusion, make_scene
from difformer.training.runfolder import RunFolder
from difformer.training.using import Loaded, load_run

# A number, a name, or both a snapshot or graph and a node of it.
Place = int | str | tuple[int, int]

__all__ = ["PARTS", "Explanation", "Influence", "Step", "explain_node"]


@dataclass(frozen=True)
class Explanation:
    """Why an instance was predicted as it was.

    Args:
        name: The instance.
        node: Its number within the scene (a snapshot, a graph, or the whole task).
        number: Snapshot or graph; None for a task on nodes.
        score: m, see `difformer.report.decomposition`.
        meaning: What m is, in words.
        prediction: What was predicted.
        target: What it should be; empty where unknown.
        steps: One a layer.
    """

    name: str
    node: int
    number: int | None
    score: float
    meaning: str
    prediction: str
    target: str
    steps: tuple[Step, ...] = field(repr=False)


def explain_node(
    run: RunFolder | str | Path | Loaded,
    node: Place,
    *,
    top_k: int = 8,
    seed: int | None = None,
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Explanation:
    """Takes one prediction of a run apart.

    Args:
        run: The run folder, or a run that is loaded.
        node: An instance by number or name. Of a series ``"SNAPSHOT:NODE"``, or a node of the last test snapshot; of
            graphs ``"GRAPH:NODE"``, or a graph, of which the node with the largest effect is taken. A pair of numbers
            is understood too.
        top_k: Instances and edges listed a layer.
        seed: Which of the run's seeds; the best on validation by default.
        task: The run's task, where it was made from a task object.
        device: Where to.

    Raises:
        ValueError: If there is no such instance, or the model takes no diffusion steps.
    """
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    loaded = run if isinstance(run, Loaded) else load_run(run, seed=seed, task=task, device=device)
    if not is_diffusion(loaded.model):
        raise ValueError(
            f"model {type(loaded.model).__name__} takes no diffusion steps to be taken apart; DIFFormer models do"
        )
    scene, place = locate(loaded, node)
    return _explain(loaded, scene, place, top_k)


def locate(loaded: Loaded, node: Place) -> tuple[Scene, int | None]:
    """The scene of an instance and its place there; None for a whole graph."""
    task = loaded.task
    if task.kind == "nodes":
        if isinstance(node, tuple):
            raise ValueError(f"node: {node} names a snapshot or graph; {task.name!r} has neither")
        return make_scene(loaded), _find(node, task.num_nodes, task.instance_names, "instance")
    first, second = _pair(node, task.instance_names)
    if task.kind == "series":
        number = None if first is None else _find(first, task.num_instances, (), "snapshot")
        scene = make_scene(loaded, number)
        names = task.instance_names if len(task.instance_names) == scene.size else ()
        return scene, _find(second, scene.size, names, "node")
    if first is None:
        return make_scene(loaded, _find(second, task.num_instances, task.instance_names, "graph")), None
    scene = make_scene(loaded, _find(first, task.num_instances, task.instance_names, "graph"))
    return scene, _find(second, scene.size, (), "node")


def _pair(node: Place, names: Sequence[str]) -> tuple[int | str | None, int | str]:
    """``"A:B"`` or ``(A, B)`` as two, anything else as the second of them; a name may have a colon in it."""
    if isinstance(node, tuple):
        return node
    if isinstance(node, str) and node not in names and ":" in node:
        first, _, second = node.rpartition(":")
        return first, second
    return None, node


def _find(word: int | str, count: int, names: Sequence[str], what: str) -> int:
    """By name or number; a whole number from Python is a number, a text is a name first."""
    if isinstance(word, str) and word in names:
        return list(names).index(word)
    if str(word).isdecimal() and int(word) < count:
        return int(word)
    known = f"names such as {names[0]!r}, or " if names else ""
    raise ValueError(f"node: there is no {what} {word!r}; expected {known}a number from 0 to {count - 1}")


def _explain(loaded: Loaded, scene: Scene, place: int | None, top_k: int) -> Explanation:
    model, structure = scene.difformer, as_structure(scene.size, scene.graph)
    with torch.enable_grad():
        states = [model._encode(scene.inputs.x).detach().requires_grad_()]
        for k in range(len(model.layers)):
            states.append(model._advance(k, states[-1], structure, states[0]))
        if isinstance(loaded.model, GraphLevel):
            outputs = model.decode(readout(states[-1], None, loaded.model.how))[0]
            whole = outputs.detach()
        else:
            assert place is not None
            outputs = model.decode(states[-1])[place]
            whole = outputs.detach()
        score, meaning = _score(loaded.task, outputs)
        slopes = torch.autograd.grad(score, states)
    if place is None:
        place = int((slopes[-1] * states[-1].detach()).sum(1).abs().argmax())
    names = _names(loaded.task, scene)
    detached = [state.detach() for state in states]
    steps = []
    with torch.no_grad():
        for k in range(len(model.layers)):
            steps.append(take_apart(model, k, scene, detached, slopes[k + 1][place], place, names, top_k))
    prediction, target = _said(loaded.task, scene, place, whole)
    return Explanation(
        names(place), place, scene.number, float(score.detach()), meaning, prediction, target, tuple(steps)
    )


def _score(task: Task, outputs: Tensor) -> tuple[Tensor, str]:
    names = column_names(task)
    if task.problem == "multiclass":
        first, second = outputs.detach().topk(min(2, outputs.numel())).indices.tolist()
        return outputs[first] - outputs[second], f"output of {names[first]!r} less that of {names[second]!r}"
    column = int(outputs.detach().abs().argmax()) if task.problem == "multilabel" else 0
    return outputs[column], "the output" if outputs.numel() == 1 else f"output of {names[column]!r}"


class _Names:
    """Names of the instances of a scene."""

    def __init__(self, names: Sequence[str], what: str) -> None:
        self.names, self.what = names, what

    def __call__(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else f"{self.what} {i}"


def _names(task: Task, scene: Scene) -> _Names:
    if task.kind == "nodes":
        return _Names(task.instance_names, "instance")
    names = task.instance_names if task.kind == "series" and len(task.instance_names) == scene.size else ()
    return _Names(names, "node")


def _said(task: Task, scene: Scene, place: int, outputs: Tensor) -> tuple[str, str]:
    """Prediction and target as texts."""
    names = column_names(task)
    if task.kind == "series":
        assert scene.number is not None
        y = task.y[scene.number][place]
    else:
        y = task.y[place if scene.number is None else scene.number]
    if task.problem == "multiclass":
        return names[int(outputs.argmax())], names[int(y)] if int(y) >= 0 else ""
    if task.problem == "multilabel":
        said = [name for name, value in zip(names, outputs.tolist(), strict=True) if value > 0]
        wanted = [name for name, value in zip(names, y.reshape(-1).tolist(), strict=True) if value > 0.5]
        return ", ".join(said) or "none", ", ".join(wanted) or "none"
    values = [f"{v:.4g}" for v in outputs.reshape(-1).tolist()]
    return ", ".join(values), ", ".join("" if v != v else f"{v:.4g}" for v in y.reshape(-1).tolist())
