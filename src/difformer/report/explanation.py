"""One prediction, explained: where the instance is, what its score is, and every layer of it taken apart.

The mathematics is in `difformer.report.decomposition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from difformer.data import Task
from difformer.nn import GraphLevel, readout
from difformer.report.decomposition import PARTS, Influence, Passage, Step, last_terms, pass_through, take_apart
from difformer.report.quality import column_names
from difformer.report.scene import Scene, is_diffusion, make_scene, usual_number
from difformer.training.run_folder import RunFolder
from difformer.training.using import Loaded, load_run

# A number, a name, or both a snapshot or graph and a node of it.
Place = int | str | tuple[int, int]

__all__ = ["PARTS", "Explanation", "Influence", "Step", "explain_node", "explain_nodes"]


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
        steps: One per layer.
        terms: The score as a sum: effects of the last layer's parts, ``"biases"`` of LayerNorm and output layer,
            ``"activation"`` (what a curved one adds) and, of graphs, ``"other nodes"``; the sum is exact.
        title: The instance with its snapshot or graph, and how these were chosen where nobody named them.
    """

    name: str
    node: int
    number: int | None
    score: float
    meaning: str
    prediction: str
    target: str
    steps: tuple[Step, ...] = field(repr=False)
    terms: dict[str, float] = field(default_factory=dict)
    title: str = ""


def explain_node(
    run: RunFolder | str | Path,
    node: Place,
    *,
    top_k: int = 8,
    seed: int | None = None,
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Explanation:
    """Takes one prediction of a run apart.

    Args:
        run: The run folder.
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
    loaded = load_run(run, seed=seed, task=task, device=device)
    return explain_nodes(loaded, [node], top_k=top_k)[0]


def explain_nodes(loaded: Loaded, nodes: Sequence[Place], *, top_k: int = 8) -> list[Explanation]:
    """Several predictions of a run that is loaded; those of one scene share a forward pass."""
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if not is_diffusion(loaded.model):
        raise ValueError(
            f"model {type(loaded.model).__name__} takes no diffusion steps to be taken apart; DIFFormer models do"
        )
    passages: dict[int | None, Passage] = {}
    found = []
    for node in nodes:
        number, place = locate(loaded, node)
        if number not in passages:
            passages[number] = pass_through(make_scene(loaded, number, with_states=False))
        one = _explain(loaded, passages[number], place, top_k)
        found.append(replace(one, title=_title(loaded, one, usual=_pair(node, loaded.task.instance_names)[0] is None)))
    return found


def _title(loaded: Loaded, one: Explanation, *, usual: bool) -> str:
    """``GYOR (node 7 of snapshot 5)``; what was not named but chosen, `usual`, is said with how."""
    task = loaded.task
    if task.kind == "nodes":
        return one.name
    scene = "snapshot" if task.kind == "series" else "graph"
    where = f"node {one.node} of {scene} {one.number}"
    if task.kind == "graphs" and task.instance_names:
        assert one.number is not None
        where += f", {task.instance_names[one.number]}"
    if usual and task.kind == "graphs":
        where += ", the node with the largest effect"
    elif usual:
        named = {"test": loaded.split.test, "validation": loaded.split.valid, "training": loaded.split.train}
        part = next((name for name, held in named.items() if held.numel()), None)
        where += f", the last{f' of the {part} part' if part else ''}"
    return where if one.name == f"node {one.node}" else f"{one.name} ({where})"


def locate(loaded: Loaded, node: Place) -> tuple[int | None, int | None]:
    """Snapshot or graph (None on nodes) and place there (None for a whole graph).

    Raises:
        ValueError: If there is no such instance.
    """
    task = loaded.task
    if task.kind == "nodes":
        if isinstance(node, tuple):
            raise ValueError(f"node: {node} names a snapshot or graph; {task.name!r} has neither")
        return None, find(node, task.num_nodes, task.instance_names, "instance")
    first, second = _pair(node, task.instance_names)
    if task.kind == "series":
        number = usual_number(loaded) if first is None else find(first, task.num_instances, (), "snapshot")
        names = task.instance_names if len(task.instance_names) == task.num_nodes else ()
        return number, find(second, task.num_nodes, names, "node")
    number = find(second if first is None else first, task.num_instances, task.instance_names, "graph")
    assert task.node_ptr is not None
    size = int(task.node_ptr[number + 1] - task.node_ptr[number])
    return number, None if first is None else find(second, size, (), "node")


def _pair(node: Place, names: Sequence[str]) -> tuple[int | str | None, int | str]:
    """``"A:B"`` or ``(A, B)`` as two, anything else as the second of them; a name may have a colon in it."""
    if isinstance(node, tuple):
        return node
    if isinstance(node, str) and node not in names and ":" in node:
        first, _, second = node.rpartition(":")
        return first, second
    return None, node


def find(word: int | str, count: int, names: Sequence[str], what: str) -> int:
    """By name or number; a whole number from Python is a number, a text is a name first."""
    if isinstance(word, str) and word in names:
        places = [place for place, name in enumerate(names) if name == word]
        if len(places) > 1:
            shown = ", ".join(map(str, places[:5])) + (" …" if len(places) > 5 else "")
            raise ValueError(f"node: {len(places)} have the name {word!r}; give the number of one of them: {shown}")
        return places[0]
    if str(word).isdecimal() and int(word) < count:
        return int(word)
    known = f"names such as {names[0]!r}, or " if names else ""
    raise ValueError(f"node: there is no {what} {word!r}; expected {known}a number from 0 to {count - 1}")


def _explain(loaded: Loaded, passage: Passage, place: int | None, top_k: int) -> Explanation:
    scene, states = passage.scene, passage.states
    model = scene.difformer
    with torch.enable_grad():
        if isinstance(loaded.model, GraphLevel):
            outputs = model.decode(readout(states[-1], None, loaded.model.how))[0]
        else:
            assert place is not None
            outputs = model.decode(states[-1][place])
        score, meaning = _score(loaded.task, outputs)
        slopes = torch.autograd.grad(score, states, retain_graph=True)
    if place is None:
        place = int((slopes[-1] * states[-1].detach()).sum(1).abs().argmax())
    names = _names(loaded.task, scene)
    steps = [take_apart(passage, k, slopes[k + 1][place], place, names, top_k) for k in range(len(model.layers))]
    prediction, target = _said(loaded.task, scene, place, outputs.detach())
    value = float(score.detach())
    terms = last_terms(passage, steps[-1].effects if steps else {}, slopes[-1], place, value)
    return Explanation(names(place), place, scene.number, value, meaning, prediction, target, tuple(steps), terms)


def _score(task: Task, outputs: Tensor) -> tuple[Tensor, str]:
    names = column_names(task)
    if task.problem == "multiclass":
        if outputs.numel() == 1:
            return outputs[0], f"output of {names[0]!r}, the only class"
        first, second = outputs.detach().topk(2).indices.tolist()
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
