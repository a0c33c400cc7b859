"""Maps of a run: instances layer by layer, with the strongest latent pairs and the observed edges between them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer.data.sparse import take_rows
from difformer.nn import GraphLevel, readout
from difformer.report.cards import (
    IMAGES,
    SPRITE_COLUMNS,
    TITLE_LENGTH,
    Cards,
    instance_titles,
    node_cards,
    shortened,
)
from difformer.report.colourings import Colouring, by_part, by_value, of_predictions
from difformer.report.latent import (
    LatentLayer,
    asking,
    chance,
    latent_layers,
    near_uniform,
    observed_pairs,
    uniform_note,
    why_no_attention,
)
from difformer.report.projection import project
from difformer.report.sampling import draw, said
from difformer.report.scene import Scene, encoder_of, is_diffusion
from difformer.training.source import TaskSource
from difformer.training.using import Loaded

POINTS, PICTURES = 3_000, 1_000
NUMBERS = 60_000  # points times layers: deep models show fewer points
EDGES = 3_000


@dataclass(frozen=True)
class Map:
    """One map and what was found on the way.

    Args:
        data: For the page's script.
        notes: Sentences about it.
        shown: ``[r]`` rows of the scene that are shown.
        latent: One a layer; empty without latent pairs.
    """

    data: dict[str, Any]
    notes: tuple[str, ...]
    shown: Tensor
    latent: tuple[LatentLayer, ...] = ()


def layer_names(count: int) -> list[str]:
    """Of a DIFFormer's states."""
    return ["input", *(f"layer {k}" for k in range(1, count))]


def scene_map(
    loaded: Loaded,
    scene: Scene,
    outputs: Tensor,
    classes: Tensor | None,
    source: TaskSource | None,
    always: Sequence[int] = (),
) -> Map:
    """The instances of a scene that is a whole task on nodes, or a snapshot of a series."""
    task = loaded.task
    layers = 2 if scene.states is None else len(scene.states)
    pictures = source is not None and source.name in IMAGES
    limit = min(PICTURES if pictures else POINTS, max(NUMBERS // layers, 200))
    shown = draw(scene.size, limit, classes, always)
    number = scene.number
    targets = task.y[shown] if number is None else task.y[number][shown]
    given = outputs[shown] if number is None else outputs[number][shown]
    colourings = of_predictions(task, targets, given)
    if number is None:
        colourings.append(by_part(loaded.split, shown, task.num_instances))
        cards = node_cards(task, source, shown)
    else:
        names = task.instance_names if len(task.instance_names) == scene.size else ()
        titles = [shortened(names[i], TITLE_LENGTH) if names else f"node {i}" for i in shown.tolist()]
        cards = Cards(titles, [f"snapshot {number}"] * len(titles))
    if scene.states is None:
        features = task.x if number is None else task.x[number]
        x = take_rows(features, shown)
        states = loaded.states()
        named = ["features", "states"]
        points = [
            x.to_dense() if x.layout != torch.strided else x,
            (states if number is None else states[number])[shown],
        ]
    else:
        named, points = layer_names(layers), [z[shown] for z in scene.states]
    what = "instances" if number is None else f"nodes of snapshot {number}"
    return _joined(scene, shown, named, points, colourings, cards, classes, (said(shown.numel(), scene.size, what),))


def graphs_map(loaded: Loaded, outputs: Tensor) -> Map:
    """Graphs as points: the pooled states of every layer."""
    task, model = loaded.task, loaded.model
    assert isinstance(model, GraphLevel)
    if is_diffusion(model):
        encoder: Any = encoder_of(model)
        pooled = []
        with torch.no_grad():
            for inputs in loaded.feed.passes():
                states = encoder.trajectory(inputs.x, inputs.graph, None, inputs.batch)
                pooled.append(torch.stack([readout(z, inputs.batch, model.how) for z in states]).float().cpu())
        layers = torch.cat(pooled, 1)
        named = layer_names(len(layers))
    else:
        layers, named = loaded.states().unsqueeze(0), ["states"]
    classes = task.y if task.problem == "multiclass" else None
    shown = draw(task.num_instances, min(POINTS, max(NUMBERS // len(layers), 200)), classes)
    colourings = of_predictions(task, task.y[shown], outputs[shown])
    colourings.append(by_part(loaded.split, shown, task.num_instances))
    cards = Cards(instance_titles(task, shown, "graph"), [""] * shown.numel())
    notes = (said(shown.numel(), task.num_instances, "graphs"),)
    return _joined(None, shown, named, [z[shown] for z in layers], colourings, cards, None, notes)


def nodes_of_graph_map(loaded: Loaded, scene: Scene) -> Map:
    """The nodes of one graph, coloured by what each does to the graph's output."""
    model = loaded.model
    assert isinstance(model, GraphLevel)
    assert scene.states is not None
    final = scene.states[-1].to(scene.inputs.x.device).requires_grad_()
    with torch.enable_grad():
        outputs = model.decode(readout(final, None, model.how))[0]
        column = int(outputs.detach().abs().argmax())
        (slope,) = torch.autograd.grad(outputs[column], final)
    effect = (slope * final.detach()).sum(1).cpu()
    shown = draw(scene.size, POINTS)
    colourings = [by_value("effect on the output", effect[shown])]
    cards = Cards([f"node {i}" for i in shown.tolist()], [f"graph {scene.number}"] * shown.numel())
    notes = (said(shown.numel(), scene.size, "nodes"),)
    points = [z[shown] for z in scene.states]
    return _joined(scene, shown, layer_names(len(points)), points, colourings, cards, None, notes)


def _joined(
    scene: Scene | None,
    shown: Tensor,
    names: list[str],
    points: list[Tensor],
    colourings: list[Colouring],
    cards: Cards,
    classes: Tensor | None,
    notes: tuple[str, ...],
) -> Map:
    flat = project(points)
    data: dict[str, Any] = {
        "layers": names,
        "x": [one.x for one in flat],
        "y": [one.y for one in flat],
        "explained": [round(one.explained, 3) for one in flat],
        "colourings": colourings,
        "titles": cards.titles,
        "texts": cards.texts if any(cards.texts) else [],
        "pairs": [],
        "uniform": [],
        "observed": None,
    }
    if cards.sprite is not None:
        data["sprite"] = {"png": b64encode(cards.sprite).decode(), "side": cards.side, "columns": SPRITE_COLUMNS}
    latent: tuple[LatentLayer, ...] = ()
    if scene is not None and scene.states is not None and len(scene.difformer.layers):
        if why_no_attention(scene.difformer.layers[0]) is None:  # type: ignore[arg-type]
            latent = tuple(latent_layers(scene, shown, classes))
            asked = asking(shown, scene.size).numel()
            if asked < shown.numel():
                notes = (
                    *notes,
                    f"Attention was worked out from {asked:,} of the shown {shown.numel():,} to all others.",
                )
            base = None if classes is None else chance(classes, shown)
            count = 0 if classes is None else int((classes[shown] >= 0).sum())
            data["uniform"] = [near_uniform(one, base, count) for one in latent]
            notes = (*notes, uniform_note(data["uniform"], latent, base))
        source, target = observed_pairs(scene, shown)
        edges = set(zip(source.tolist(), target.tolist(), strict=True))
        own = None if classes is None else classes[shown].tolist()
        data["pairs"] = [_pairs(one, edges, own) for one in latent]
        if scene.graph is not None:
            kept = draw(source.numel(), EDGES)
            data["observed"] = {"source": source[kept].tolist(), "target": target[kept].tolist(), "all": source.numel()}
    return Map(data, tuple(note for note in (*notes, cards.note) if note), shown, latent)


def _pairs(layer: LatentLayer, edges: set[tuple[int, int]], classes: list[int] | None) -> dict[str, Any]:
    """Pairs of a layer; ``same`` is 1 where both ends are of one class, 0 where they are not, -1 where unknown."""
    joined = [int((s, t) in edges or (t, s) in edges) for s, t in zip(layer.source, layer.target, strict=True)]
    found = {"source": layer.source, "target": layer.target, "weight": layer.weight, "observed": joined}
    if classes is not None:
        ends = [(classes[s], classes[t]) for s, t in zip(layer.source, layer.target, strict=True)]
        found["same"] = [-1 if min(pair) < 0 else int(pair[0] == pair[1]) for pair in ends]
    return found
