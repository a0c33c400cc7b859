r"""Maps of a run: instances layer by layer, with colours, cards, the strongest latent pairs and the observed edges.

With centred states :math:`Z = U Σ V^\top` a layer's map is :math:`M = Z V_{:2}`. Signs and order of singular vectors
are arbitrary, so each map is rotated by the orthogonal R that minimises :math:`\|M R - M'\|` for the map M' before it
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
from torch.nn import functional

from difformer.data import Task, induced_subgraph
from difformer.nn import DIFFormer, readout
from difformer.report import gather
from difformer.report.gather import Material, Scene
from difformer.report.layers import Attention, LatentLayer, attention_of
from difformer.training.model import in_units
from difformer.training.run_folder import TaskSource

# Ten colours that differ, also for most colour-blind people: Okabe and Ito's without black, olive, grey, purple, brown.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B3B000", "#7F7F7F", "#8450CF", "#94562A",
)  # fmt: skip
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
    """One map, notes about it, and the attention that it shows."""

    data: dict[str, Any]  # for the page's script
    notes: list[str]  # sentences about it
    attention: Attention | None  # None without latent pairs


def make_maps(material: Material, scene: Scene | None, always: Sequence[int]) -> list[Map]:
    """Maps of the instances (nodes), of one snapshot (series), or of all graphs and of the nodes of one (graphs)."""
    if material.task.kind == "graphs":
        return [_graphs_map(material), *([] if scene is None else [_nodes_of_graph_map(material, scene)])]
    assert scene is not None
    return [_scene_map(material, scene, always)]


def _scene_map(material: Material, scene: Scene, always: Sequence[int]) -> Map:
    task, source, number = material.task, material.folder.source, scene.number
    layers = 2 if scene.states is None else len(scene.states)
    limit = PICTURES if source is not None and source.name in IMAGES else POINTS
    shown = gather.draw(scene.size, min(limit, max(NUMBERS // layers, 200)), material.classes, always)
    at, what = (shown, "instances") if number is None else ((number, shown), f"nodes of snapshot {number}")
    colourings = of_predictions(task, task.y[at], material.outputs[at])
    if number is None:
        colourings.append(_by_part(material, shown))
        cards = node_cards(task, source, shown)
    else:
        cards = Cards(_titles(task, shown), [f"snapshot {number}"] * shown.numel())
    if scene.states is None:
        points = {"features": gather.dense_rows(task, shown, number), "states": material.loaded.states()[at]}
    else:
        points = _points(scene.states, shown)
    note = gather.sample_note(shown.numel(), scene.size, what)
    return _map(scene, shown, points, colourings, cards, note, material.classes)


def _graphs_map(material: Material) -> Map:
    """Graphs as points: the pooled states of every layer."""
    task, model = material.task, material.loaded.model
    layers, names = material.loaded.states().unsqueeze(0), ["states"]
    if isinstance(encoder := gather.encoder_of(model), DIFFormer):
        pooled = []
        with torch.no_grad():
            for inputs in material.loaded.feed.passes():
                states = encoder.trajectory(inputs.x, inputs.graph, None, inputs.batch)
                pooled.append(torch.stack([readout(z, inputs.batch, model.how) for z in states]).float().cpu())  # type: ignore[arg-type]
        layers, names = torch.cat(pooled, 1), []
    classes = task.y if task.problem == "multiclass" else None
    shown = gather.draw(task.num_instances, min(POINTS, max(NUMBERS // len(layers), 200)), classes)
    colourings = [*of_predictions(task, task.y[shown], material.outputs[shown]), _by_part(material, shown)]
    points, note = _points(layers, shown, names), gather.sample_note(shown.numel(), task.num_instances, "graphs")
    return _map(None, shown, points, colourings, Cards(_titles(task, shown)), note)


def _nodes_of_graph_map(material: Material, scene: Scene) -> Map:
    """The nodes of one graph, coloured by what each does to the graph's output."""
    model: Any = material.loaded.model
    assert scene.states is not None
    final = scene.states[-1].to(scene.inputs.x.device).requires_grad_()
    with torch.enable_grad():
        outputs = in_units(model, model.decode(readout(final, None, model.how))[0])
        (slope,) = torch.autograd.grad(outputs[int(outputs.detach().abs().argmax())], final)
    effect, shown = (slope * final.detach()).sum(1).cpu(), gather.draw(scene.size, POINTS)
    cards = Cards([f"node {i}" for i in shown.tolist()], [f"graph {scene.number}"] * shown.numel())
    colourings = [_by_value("effect on the output", effect[shown])]
    note = gather.sample_note(len(shown), scene.size, "nodes")
    return _map(scene, shown, _points(scene.states, shown), colourings, cards, note)


def _points(states: Tensor, shown: Tensor, names: Sequence[str] = ()) -> dict[str, Tensor]:
    return dict(zip(names or gather.layer_names(len(states)), states[:, shown], strict=True))


def _map(
    scene: Scene | None,
    shown: Tensor,
    points: dict[str, Tensor],
    colourings: list[Colouring],
    cards: Cards,
    note: str,
    classes: Tensor | None = None,
) -> Map:
    """Points by name of the layer, and what is drawn over them: latent pairs and observed edges."""
    flat = project(list(points.values()))
    data: dict[str, Any] = {
        "layers": list(points), "x": [one.x for one in flat], "y": [one.y for one in flat],
        "explained": [round(one.explained, 3) for one in flat], "colourings": colourings, "titles": cards.titles,
        "texts": cards.texts if any(cards.texts) else [], "pairs": [], "uniform": [], "observed": None,
    }  # fmt: skip
    if cards.sprite is not None:
        data["sprite"] = {"png": b64encode(cards.sprite).decode(), "side": cards.side, "columns": SPRITE_COLUMNS}
    source = target = torch.empty(0, dtype=torch.long)
    if scene is not None and scene.states is not None and scene.graph is not None:
        source, target = induced_subgraph(shown, scene.graph.edge_index.cpu(), num_nodes=scene.size)[0]
        source, target = source[source != target], target[source != target]
        kept = gather.draw(source.numel(), EDGES)
        data["observed"] = {"source": source[kept].tolist(), "target": target[kept].tolist(), "all": source.numel()}
    attention, notes = None if scene is None else attention_of(scene, shown, classes), [note, cards.note]
    if attention is not None:
        edges = set(zip([*source.tolist(), *target.tolist()], [*target.tolist(), *source.tolist()], strict=True))
        own = None if classes is None else classes[shown].tolist()
        data |= {"pairs": [_pairs(one, edges, own) for one in attention.layers], "uniform": attention.uniform}
        if (count := attention.asked) < shown.numel():
            notes.append(f"Attention was computed from {count:,} of the shown {shown.numel():,} to all others.")
    return Map(data, [note for note in notes if note], attention)


def _pairs(layer: LatentLayer, edges: set[tuple[int, int]], classes: list[int] | None) -> dict[str, Any]:
    """Pairs of a layer; ``same`` is 1 if both ends have the same class, 0 if not, -1 if unknown."""
    pairs = list(zip(layer.source, layer.target, strict=True))
    observed = [int(pair in edges) for pair in pairs]
    found = {"source": layer.source, "target": layer.target, "weight": layer.weight, "observed": observed}
    if classes is not None:
        ends = [(classes[s], classes[t]) for s, t in pairs]
        found["same"] = [-1 if min(pair) < 0 else int(pair[0] == pair[1]) for pair in ends]
    return found


@dataclass(frozen=True)
class Points:
    """Points of one layer."""

    x: list[int]  # [n] from 0 to `GRID`
    y: list[int]
    explained: float  # share of the variance of the states that the two directions hold


def project(layers: list[Tensor]) -> list[Points]:
    """One map per layer, from states ``[n, d]`` whose d may differ between layers."""
    maps, before = [], None
    for z in layers:
        centred = z.double() - z.double().mean(0)
        variance, directions = torch.linalg.eigh(centred.T @ centred)  # d × d is small even with many rows
        variance, points = variance.clamp_min(0), centred @ directions[:, -2:].flip(1)
        points = functional.pad(points, (0, 2 - points.shape[1]))
        if before is not None:
            a, _, b = torch.linalg.svd(points.T @ before)
            points = points @ (a @ b)
        before, total = points, float(variance.sum())
        # One scale for both axes, the cloud in the middle.
        low, high = points.min(0).values, points.max(0).values
        scaled = (points - (low + high) / 2) / (float((high - low).max()) or 1.0) * GRID + GRID / 2
        x, y = scaled.round().long().clamp(0, GRID).T.tolist()
        maps.append(Points(x, y, float(variance[-2:].sum()) / total if total > 0 else 1.0))
    return maps


def _by_class(name: str, numbers: Tensor, names: Sequence[str], kind: str = "class") -> Colouring:
    """Classes by number; -1 is unknown."""
    return {"name": name, "kind": kind, "values": numbers.tolist(), "names": list(names)}


def _by_value(name: str, values: Tensor) -> Colouring:
    return {"name": name, "kind": "value", "values": [gather.rounded(v, 4) for v in values.double().tolist()]}


def _by_part(material: Material, rows: Tensor) -> Colouring:
    number, parts = torch.full((material.task.num_instances,), -1), material.loaded.split.parts()
    for place, index in enumerate(parts.values()):
        number[index] = place
    return _by_class("part", number[rows], list(parts))


def of_predictions(task: Task, targets: Tensor, outputs: Tensor) -> list[Colouring]:
    """Colours by target and by prediction, for targets ``[n]`` or ``[n, C]`` and outputs ``[n, C]``."""
    names = gather.column_names(task)
    targets = targets if task.problem == "multiclass" else targets.reshape(outputs.shape)
    ends = [f" {name}" if len(names) > 1 else "" for name in names]
    if task.problem == "regression":
        shown = {"target": targets[:, 0], "prediction": outputs[:, 0], "error": (outputs - targets)[:, 0].abs()}
        return [_by_value(f"{name}{ends[0]}", values) for name, values in shown.items()]
    if task.problem == "multiclass":
        predicted, known = outputs.argmax(-1), targets >= 0
        right = predicted == targets
        found = [_by_class("class", targets, names), _by_class("prediction", predicted, names)]
    else:
        known, right, found = ~targets.isnan(), (outputs > 0) == (targets > 0.5), []
        for c, end in enumerate(ends[:COLUMNS]):
            truth = torch.where(known[:, c], (targets[:, c] > 0.5).long(), -1)
            found.append(_by_class(f"class{end}", truth, ("no", "yes")))
            found.append(_by_class(f"prediction{end}", (outputs[:, c] > 0).long(), ("no", "yes")))
        if outputs.shape[1] > 1:
            return [*found, _by_value("share of columns right", (right & known).sum(1) / known.sum(1).clamp_min(1))]
    number = torch.where(known, (~right).long(), -1).reshape(-1)
    return [*found, _by_class("correctness", number, ("right", "wrong"), "right")]


@dataclass(frozen=True)
class Cards:
    """What is shown when a point is selected, in the order of the points."""

    titles: list[str]  # one short line each: a name, or kind and number
    texts: Sequence[str] = ()  # more of each
    sprite: bytes | None = None  # PNG of all pictures, or None
    side: int = 0  # width and height of one picture
    note: str = ""  # what could not be shown, and why; empty if nothing is missing


def _titles(task: Task, rows: Tensor) -> list[str]:
    """Names, shortened, since a page may hold thousands of them."""
    return [gather.shortened(gather.name_of(task, i), TITLE_LENGTH) for i in rows.tolist()]


def node_cards(task: Task, source: TaskSource | None, rows: Tensor) -> Cards:
    """Cards of some instances of a task on nodes."""
    titles = _titles(task, rows)
    if source is not None and source.name in IMAGES:
        pictures = _pictures(source.name, source.root, task.num_instances)
        if pictures is None:
            return Cards(titles, note=f"The images of {source.name} are not on disk, so none are shown.")
        return Cards(titles, (), *make_sprite(pictures[rows.numpy()]))
    if source is not None and source.name == "20news" and (texts := _posts(source.root, task.num_instances)):
        return Cards(titles, [gather.shortened(texts[i], TEXT_LENGTH) for i in rows.tolist()])
    return Cards(titles, _strong_columns(task, rows))


def _pictures(name: str, root: str | None, count: int) -> Array | None:
    """Images ``[N, H, W, C]`` uint8 in the order of the task; None if they are not on disk."""
    if name == "digits":
        from sklearn.datasets import load_digits

        found = (np.asarray(load_digits().images) * (255 / 16)).astype(np.uint8)[..., None]
    else:
        from difformer.data.datasets.instances import load_images
        from difformer.data.download import find

        if find(name, root) is None:
            return None
        found = load_images(name, root)[0]
    return found if len(found) == count else None


def _posts(root: str | None, count: int) -> list[str]:
    """Texts in the order of the task; none if they are not on disk."""
    from difformer.data.download import find

    if (found := find("20news", root, forms=("text",))) is None:
        return []
    with gzip.open(Path(found.path), "rt", encoding="utf-8") as stream:
        texts = [str(json.loads(line)["text"]) for line in stream]
    return texts if len(texts) == count else []


def _strong_columns(task: Task, rows: Tensor) -> list[str]:
    """The columns in which an instance is most unusual, in original units; nothing if columns have no names."""
    if not task.feature_names:
        return []
    score = gather.dense_rows(task, rows)
    if task.x.layout == torch.strided and task.x.numel() <= gather.DENSE_ENTRIES:
        spread = task.x.float().std(0)
        score = (score - task.x.float().mean(0)) / torch.where(spread > 0, spread, 1.0)
    groups = gather.source_columns(task)
    names, score = list(groups), torch.stack([score[:, c].abs().amax(1) for c in groups.values()], 1)
    top = [[names[c] for c in row] for row in score.topk(min(TOP_COLUMNS, len(names)), dim=1).indices.tolist()]
    return [
        ", ".join(f"{gather.shortened(name, TITLE_LENGTH)} {cell}" for name, cell in zip(own, cells, strict=True))
        for own, cells in zip(top, gather.original_cells(task, rows, top), strict=True)
    ]


def make_sprite(pictures: Array) -> tuple[bytes, int]:
    """All pictures ``[n, H, W, C]`` in rows of `SPRITE_COLUMNS`, shrunk until they fit; and the side of one."""
    side, channels = pictures.shape[1], pictures.shape[3]
    while side > 8 and len(pictures) * side * side * channels > SPRITE_BYTES:
        side -= 4
    small = functional.adaptive_avg_pool2d(torch.from_numpy(pictures).movedim(3, 1).float(), side).round().byte()
    whole = torch.cat([small, small.new_zeros(-len(small) % SPRITE_COLUMNS, *small.shape[1:])])
    grid = whole.reshape(-1, SPRITE_COLUMNS, channels, side, side).permute(0, 3, 1, 4, 2)
    return png(grid.reshape(-1, SPRITE_COLUMNS * side, channels).numpy()), side


def png(pixels: Array) -> bytes:
    """A PNG of ``[H, W, 1 or 3]`` uint8: signature, header, one block of compressed rows, end."""
    height, width, channels = pixels.shape
    # Each row begins with its filter: 1 stores the difference to the pixel at its left, which compresses better.
    filtered = np.diff(pixels, axis=1, prepend=np.uint8(0)).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    rows = zlib.compress(np.insert(filtered, 0, 1, axis=1).tobytes(), 9)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return content
