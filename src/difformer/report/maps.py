r"""Maps of a run: instances layer by layer, with colours, cards, the strongest latent pairs and the observed edges.

With centred states :math:`Z = U Σ V^\top` a layer's map is :math:`M = Z V_{:2}`. Signs and order of singular vectors
are arbitrary, so each map is turned by the orthogonal R that minimises :math:`\|M R - M'\|` for the map M' before it
(Procrustes: :math:`R = A B^\top` for :math:`M^\top M' = A S B^\top`). A slider then moves points, not axes.

A point's card shows a picture, the first words of a text, or the columns in which the instance is most unusual.
Pictures share one PNG, so that a page holds one picture, not thousands.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data import Split, Task
from difformer.nn import GraphLevel, readout
from difformer.report.gather import (
    DENSE_ENTRIES,
    Scene,
    column_names,
    dense_rows,
    draw,
    encoder_of,
    is_diffusion,
    layer_names,
    original_cells,
    rounded,
    said,
    shortened,
    source_columns,
)
from difformer.report.layers import (
    LatentLayer,
    asking,
    chance,
    latent_layers,
    near_uniform,
    observed_pairs,
    why_no_attention,
)
from difformer.training.model import in_units
from difformer.training.run_folder import TaskSource
from difformer.training.trained_run import Loaded

POINTS, PICTURES = 3_000, 1_000
NUMBERS = 60_000  # points times layers: deep models show fewer points
EDGES = 3_000
GRID = 9_999  # coordinates are whole numbers from 0 to this: four digits are more than a screen can show
SPRITE_BYTES = 1_750_000
SPRITE_COLUMNS = 50
TEXT_LENGTH, TITLE_LENGTH = 160, 80
TOP_COLUMNS = 4
COLUMNS = 6  # of a multi-label task that can be chosen as colour
IMAGES = ("digits", "cifar10", "stl10")
Array = np.ndarray[Any, Any]
Colouring = dict[str, Any]


@dataclass(frozen=True)
class Map:
    """One map and what was found on the way."""

    data: dict[str, Any]  # for the page's script
    notes: tuple[str, ...]  # sentences about it
    shown: Tensor  # [r] rows of the scene that are shown
    latent: tuple[LatentLayer, ...] = ()  # one per layer; empty without latent pairs


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
        states = loaded.states()
        named = ["features", "states"]
        points = [dense_rows(task, shown, number), (states if number is None else states[number])[shown]]
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
        outputs = in_units(model, model.decode(readout(final, None, model.how))[0])
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
            asked = shown[asking(shown, scene.size)]
            if (count := asked.numel()) < shown.numel():
                notes = (*notes, f"Attention was computed from {count:,} of the shown {shown.numel():,} to all others.")
            base = None if classes is None else chance(classes, asked)
            count = 0 if classes is None else int((classes[asked] >= 0).sum())
            data["uniform"] = [near_uniform(one, base, count) for one in latent]
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


@dataclass(frozen=True)
class Points:
    """Points of one layer."""

    x: list[int]  # [n] from 0 to `GRID`
    y: list[int]  # likewise
    explained: float  # share of the variance of the states that the two directions hold


def project(layers: list[Tensor]) -> list[Points]:
    """One map per layer, from states ``[n, d]`` whose d may differ between layers."""
    maps, before = [], None
    for z in layers:
        points, explained = _principal(z.double())
        if before is not None:
            a, _, b = torch.linalg.svd(points.T @ before)
            points = points @ (a @ b)
        before = points
        scaled = _to_grid(points)
        maps.append(Points(scaled[:, 0].tolist(), scaled[:, 1].tolist(), explained))
    return maps


def _principal(z: Tensor) -> tuple[Tensor, float]:
    centred = z - z.mean(0)
    # The d × d covariance is small where there are many rows.
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    top = vectors[:, -2:].flip(1)
    points = centred @ top
    if points.shape[1] < 2:
        points = torch.cat([points, points.new_zeros(points.shape[0], 2 - points.shape[1])], 1)
    total = float(values.clamp_min(0).sum())
    return points, float(values[-2:].clamp_min(0).sum()) / total if total > 0 else 1.0


def _to_grid(points: Tensor) -> Tensor:
    """One scale for both axes, the cloud in the middle."""
    low, high = points.min(0).values, points.max(0).values
    reach = float((high - low).max()) or 1.0
    return ((points - (low + high) / 2) / reach * GRID + GRID / 2).round().long().clamp(0, GRID)


def by_class(name: str, numbers: Tensor, names: list[str]) -> Colouring:
    """Classes by number; -1 is unknown."""
    return {"name": name, "kind": "class", "values": numbers.tolist(), "names": names}


def by_value(name: str, values: Tensor) -> Colouring:
    return {"name": name, "kind": "value", "values": [rounded(v, 4) for v in values.double().tolist()]}


def by_correctness(right: Tensor, known: Tensor) -> Colouring:
    numbers = torch.where(known, torch.where(right, 0, 1), torch.tensor(-1))
    return {"name": "correctness", "kind": "right", "values": numbers.tolist(), "names": ["right", "wrong"]}


def by_part(split: Split, rows: Tensor, count: int) -> Colouring:
    number = torch.full((count,), -1)
    names = list(split.parts())
    for place, index in enumerate(split.parts().values()):
        number[index] = place
    return by_class("part", number[rows], names)


def of_predictions(task: Task, targets: Tensor, outputs: Tensor) -> list[Colouring]:
    """By what should be and what is predicted, for targets ``[n]`` or ``[n, C]`` and outputs ``[n, C]``."""
    names = column_names(task)
    if task.problem == "multiclass":
        predicted = outputs.argmax(-1)
        return [
            by_class("class", targets, names),
            by_class("prediction", predicted, names),
            by_correctness(predicted == targets, targets >= 0),
        ]
    targets = targets.reshape(outputs.shape)
    if task.problem == "multilabel":
        known, right = ~targets.isnan(), (outputs > 0) == (targets > 0.5)
        found = []
        for c in range(min(COLUMNS, outputs.shape[1])):
            end = f" {names[c]}" if outputs.shape[1] > 1 else ""
            truth = torch.where(known[:, c], (targets[:, c] > 0.5).long(), torch.tensor(-1))
            found += [
                by_class(f"class{end}", truth, ["no", "yes"]),
                by_class(f"prediction{end}", (outputs[:, c] > 0).long(), ["no", "yes"]),
            ]
        if outputs.shape[1] == 1:
            return [*found, by_correctness(right[:, 0], known[:, 0])]
        share = (right & known).sum(1) / known.sum(1).clamp_min(1)
        return [*found, by_value("share of columns right", share)]
    first = f" {names[0]}" if outputs.shape[1] > 1 else ""
    error = outputs[:, 0] - targets[:, 0]
    return [
        by_value(f"target{first}", targets[:, 0]),
        by_value(f"prediction{first}", outputs[:, 0]),
        by_value(f"error{first}", error.abs()),
    ]


@dataclass(frozen=True)
class Cards:
    """Of the shown instances, in their order."""

    titles: list[str]  # one short line each: a name, or kind and number
    texts: list[str]  # more of each, or empty
    sprite: bytes | None = None  # PNG of all pictures, or None
    side: int = 0  # width and height of one picture
    note: str = ""  # what could not be shown, and why; empty where nothing is missing


def instance_titles(task: Task, rows: Tensor, what: str) -> list[str]:
    """Names where there are some, numbers otherwise; long names are cut, thousands of them would fill a page."""
    names = task.instance_names
    return [shortened(names[i], TITLE_LENGTH) if i < len(names) else f"{what} {i}" for i in rows.tolist()]


def node_cards(task: Task, source: TaskSource | None, rows: Tensor) -> Cards:
    """Of some nodes of a task on nodes."""
    titles = instance_titles(task, rows, "instance")
    name = None if source is None else source.name
    root = None if source is None else source.root
    if name in IMAGES:
        pictures = _pictures(name, root, task.num_instances)
        if pictures is not None:
            sprite, side = make_sprite(pictures[rows.numpy()])
            return Cards(titles, [""] * len(titles), sprite, side)
        return Cards(titles, [""] * len(titles), note=f"The images of {name} are not on disk, so none are shown.")
    if name == "20news":
        texts = _posts(root, task.num_instances)
        if texts is not None:
            return Cards(titles, [shortened(texts[i], TEXT_LENGTH) for i in rows.tolist()])
    return Cards(titles, _strong_columns(task, rows))


def _pictures(name: str | None, root: str | None, count: int) -> Array | None:
    """Images ``[N, H, W, C]`` uint8 in the order of the task; None where they are not on disk."""
    if name == "digits":
        from sklearn.datasets import load_digits

        grey = np.asarray(load_digits().images) * (255 / 16)
        found = grey.astype(np.uint8)[..., None]
    else:
        from difformer.data.datasets.images import load_images
        from difformer.data.lookup import find

        if find(str(name), root) is None:
            return None
        found = load_images(str(name), root)[0]
    return found if len(found) == count else None


def _posts(root: str | None, count: int) -> list[str] | None:
    from difformer.data.lookup import find

    found = find("20news", root, forms=("text",))
    if found is None:
        return None
    with gzip.open(Path(found.path), "rt", encoding="utf-8") as stream:
        texts = [str(json.loads(line)["text"]) for line in stream]
    return texts if len(texts) == count else None


def _strong_columns(task: Task, rows: Tensor) -> list[str]:
    """The columns in which an instance is most unusual, in original units, where columns have names."""
    if not task.feature_names or task.kind != "nodes":
        return [""] * rows.numel()
    score = dense_rows(task, rows)
    if task.x.layout == torch.strided and task.x.numel() <= DENSE_ENTRIES:
        spread = task.x.float().std(0)
        score = (score - task.x.float().mean(0)) / torch.where(spread > 0, spread, 1.0)
    groups = source_columns(task)
    names, score = list(groups), torch.stack([score[:, c].abs().amax(1) for c in groups.values()], 1)
    top = [[names[c] for c in row] for row in score.topk(min(TOP_COLUMNS, len(names)), dim=1).indices.tolist()]
    return [
        ", ".join(f"{shortened(name, TITLE_LENGTH)} {cell}" for name, cell in zip(own, cells, strict=True))
        for own, cells in zip(top, original_cells(task, rows, top), strict=True)
    ]


def make_sprite(pictures: Array) -> tuple[bytes, int]:
    """All pictures ``[n, H, W, C]`` in rows of `SPRITE_COLUMNS`, shrunk until they fit; and the side of one."""
    side = int(pictures.shape[1])
    while side > 8 and len(pictures) * side * side * pictures.shape[3] > SPRITE_BYTES:
        side -= 4
    if side < pictures.shape[1]:
        # Means over areas: pixels of the small picture are means of those they cover.
        edges = np.linspace(0, pictures.shape[1], side + 1).round().astype(int)
        rows = np.add.reduceat(pictures.astype(np.float32), edges[:-1], axis=1)
        both = np.add.reduceat(rows, edges[:-1], axis=2)
        area = np.diff(edges)
        pictures = (both / (area[:, None] * area)[None, ..., None]).round().astype(np.uint8)
    lines = -(-len(pictures) // SPRITE_COLUMNS)
    padding = np.zeros((lines * SPRITE_COLUMNS - len(pictures), *pictures.shape[1:]), dtype=np.uint8)
    grid = np.concatenate([pictures, padding]).reshape(lines, SPRITE_COLUMNS, side, side, -1)
    return png(grid.transpose(0, 2, 1, 3, 4).reshape(lines * side, SPRITE_COLUMNS * side, -1)), side


def png(pixels: Array) -> bytes:
    """A PNG of ``[H, W, 1 or 3]`` uint8: signature, header, one block of compressed rows, end."""
    height, width, channels = pixels.shape
    # Each row begins with its filter: 1 stores the difference to the pixel at its left, which compresses better.
    left = np.concatenate([np.zeros_like(pixels[:, :1]), pixels[:, :-1]], axis=1)
    filtered = (pixels.astype(np.int16) - left).astype(np.uint8).reshape(height, -1)
    rows = np.concatenate([np.ones((height, 1), dtype=np.uint8), filtered], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
