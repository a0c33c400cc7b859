"""Everything a report needs about a run, read once: folder, model of one seed, predictions of all seeds, and scenes.

A *scene* holds the instances that exchange with each other: all instances of a task on nodes, one snapshot of a series,
or one graph of many.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.data import Split, Task, induced_subgraph
from difformer.data.own.preprocessing import SINGLE, written
from difformer.data.sparse_features import take_rows
from difformer.files import RunFolderError
from difformer.graph import Graph
from difformer.nn import DIFFormer, GraphLevel
from difformer.training.feeds import Inputs
from difformer.training.record import Predictions
from difformer.training.run_folder import PREDICTIONS, RunFolder
from difformer.training.trained_run import Loaded, best_seed, load_run

SEED = 0  # of every sample that is drawn
WHAT = {"nodes": "instance", "series": "node", "graphs": "graph"}  # what a point of the map is, by kind of task
DENSE_ENTRIES = 50_000_000  # of features; larger ones are not examined column by column


@dataclass(frozen=True)
class Material:
    """A run with everything that a report looks at."""

    folder: RunFolder
    loaded: Loaded  # the model of the seed that is shown
    seed: int  # that seed
    predictions: tuple[Predictions, ...]  # of every seed with a result, the shown one first
    part: str  # "test"; "valid" or "train" if there is no test part

    @property
    def task(self) -> Task:
        return self.loaded.task

    @property
    def outputs(self) -> Tensor:
        """Outputs of the shown seed for all instances."""
        return self.predictions[0].outputs

    @property
    def rows(self) -> Tensor:
        """Instances of the part, in the split of the shown seed."""
        return self.loaded.split.parts()[self.part]

    @property
    def classes(self) -> Tensor | None:
        """Class of every instance of a task on nodes, -1 if unknown; None if there are no classes to compare."""
        task, flat = self.task, self.task.y.reshape(-1)
        if task.kind == "nodes" and task.problem == "multiclass":
            return task.y
        two = task.kind == "nodes" and task.problem == "multilabel" and task.num_outputs == 1
        return torch.where(flat.isnan(), -1, (flat > 0.5).long()) if two else None


def gather(run: RunFolder | str | Path, *, seed: int | None = None, **given: Any) -> Material:
    """Opens a run; `given` as in `difformer.training.trained_run.load_run`."""
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    chosen = best_seed(folder) if seed is None else seed
    loaded = load_run(folder, seed=chosen, **given)
    done = [chosen, *(r["seed"] for r in folder.results() if r["seed"] != chosen)]
    predictions = tuple(_read_predictions(folder, loaded.task, one) for one in done)
    return Material(folder, loaded, chosen, predictions, usual_part(loaded.split)[0])


def usual_part(split: Split) -> tuple[str, Tensor]:
    """The part that is reported, and its instances: test, else validation, else training, the first with any."""
    parts = split.parts()
    name = next((name for name in ("test", "valid", "train") if parts[name].numel()), "test")
    return name, parts[name]


def read_arrays(folder: RunFolder, seed: int, *names: str) -> list[Any]:
    """Arrays of a seed's ``predictions.npz``, whose hash is checked."""
    path = folder.file(seed, PREDICTIONS)
    try:
        content = path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = [file[name] for name in names]
    except Exception as error:  # a damaged file may raise anything
        raise RunFolderError(f"{path} cannot be read: {error}; train the run again") from error
    folder.check_hash(seed, "predictions", content)
    return found


def _read_predictions(folder: RunFolder, task: Task, seed: int) -> Predictions:
    outputs, part = read_arrays(folder, seed, "outputs", "part")
    expected = (*task.y.shape[: 2 if task.kind == "series" else 1], task.num_outputs)
    if outputs.shape != expected or len(part) != task.num_instances:
        problem = f"{folder.file(seed, PREDICTIONS)} holds outputs of shape {outputs.shape} for {len(part)} instances, "
        problem += f"expected {expected}: it does not belong to this run; train the run again"
        raise RunFolderError(problem)
    names = (task.class_names, task.instance_names)
    return Predictions(task.problem, torch.from_numpy(outputs), *names, task.y, tuple(part.tolist()))


@dataclass(frozen=True)
class Scene:
    """Instances that exchange with each other."""

    encoder: Any  # the model that makes states, in evaluation mode
    inputs: Inputs  # its arguments; one graph, hence no batch
    number: int | None  # which snapshot or graph; None if the scene is the whole task
    states: Tensor | None = field(default=None, repr=False)  # [L + 1, n, d] on the CPU; None if not of a DIFFormer

    @property
    def size(self) -> int:
        return self.inputs.x.shape[0]

    @property
    def graph(self) -> Graph | None:
        """Observed edges; None without any."""
        graph = self.inputs.graph
        return graph if graph is not None and graph.num_edges else None


def encoder_of(model: nn.Module) -> nn.Module:
    """The model of nodes inside a model of graphs, or the model itself."""
    return model.encoder if isinstance(model, GraphLevel) else model  # type: ignore[return-value]


def make_scene(loaded: Loaded, number: int | None = None, *, with_states: bool = True) -> Scene:
    """The scene of a task, or of one snapshot or graph: by default the last test snapshot or the first test graph."""
    task, passes, rows = loaded.task, loaded.feed.passes(), usual_part(loaded.split)[1]
    if number is None and task.kind != "nodes":
        number = int(rows.max() if task.kind == "series" else rows[0]) if rows.numel() else task.num_instances - 1
    inputs = passes[0] if number is None else _one_graph(passes, number)
    encoder, states = encoder_of(loaded.model), None
    if with_states and isinstance(encoder, DIFFormer):
        with torch.no_grad():
            states = encoder.trajectory(inputs.x, inputs.graph).float().cpu()
    return Scene(encoder, inputs, number, states)


def _one_graph(passes: list[Inputs], number: int) -> Inputs:
    """Rows and edges of graph `number`, numbered through all passes."""
    for inputs in passes:
        held = 1 if inputs.batch is None else inputs.batch.num_graphs
        if number < held:
            break
        number -= held
    if inputs.batch is None:
        return inputs
    x: Any = inputs.x
    rows, graph = (inputs.batch.batch == number).nonzero().squeeze(1), inputs.graph
    if graph is None:
        return Inputs(x[rows])
    edges, weight = induced_subgraph(rows, graph.edge_index, graph.edge_weight, num_nodes=x.shape[0])
    return Inputs(x[rows], Graph(edges, rows.numel(), weight))


def draw(size: int, limit: int, classes: Tensor | None = None, always: Sequence[int] = ()) -> Tensor:
    """At most `limit` of `size` instances at random, in order, with those in `always` and one of each class."""
    if size <= limit:
        return torch.arange(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(SEED))
    first = list(always)
    if classes is not None:
        shuffled = classes[order]
        first += [int(order[shuffled == c][0]) for c in classes.unique().tolist()]
    chosen = dict.fromkeys([*first, *order.tolist()])
    return torch.tensor(list(chosen)[:limit]).sort().values


def sample_note(shown: int, size: int, what: str) -> str:
    """A sentence about a sample; empty if all are shown."""
    return "" if shown >= size else f"{shown:,} of {size:,} {what} are shown, drawn at random (seed {SEED})."


def dense_rows(task: Task, rows: Tensor, snapshot: int | None = None) -> Tensor:
    """Features ``[r, F]`` of some rows, as the model gets them."""
    x = take_rows(task.x if snapshot is None else task.x[snapshot], rows)
    return (x.to_dense() if x.layout != torch.strided else x).float()


def source_columns(task: Task) -> dict[str, list[int]]:
    """Columns of the user's table, each with the numbers of its encoded columns."""
    if task.preprocessing is None:
        names = task.feature_names or [f"column {c}" for c in range(task.num_features)]
        return {name: [c] for c, name in enumerate(names)}
    numbers = count()
    return {name: [next(numbers) for _ in encoded] for name, encoded in task.preprocessing.groups().items()}


def original_cells(task: Task, rows: Tensor, columns: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Cells of each row in the columns listed for it, as in the user's table."""
    x, scaling = dense_rows(task, rows), task.scaling
    if task.preprocessing is not None:
        held = task.preprocessing.original(x)
        return [[cells[name] for name in names] for cells, names in zip(held, columns, strict=True)]
    x = x.double()
    within = SINGLE * x.abs()
    if scaling is not None:
        x = x * scaling.scale + (0.0 if scaling.shift is None else scaling.shift)
        within = within * scaling.scale
    place = {name: c for name, (c,) in source_columns(task).items()}
    return [
        [rounded(float(written(row[place[n]], off[place[n]])), 15) for n in names]
        for row, off, names in zip(x.tolist(), within.tolist(), columns, strict=True)
    ]


def name_of(task: Task, place: int) -> str:
    """What an instance, a node of a series, or a graph is called."""
    if len(task.instance_names) == (task.num_nodes if task.kind == "series" else task.num_instances):
        return task.instance_names[place]
    return f"{WHAT[task.kind]} {place}"


def layer_names(size: int) -> list[str]:
    """Names of a DIFFormer's states."""
    return ["input", *(f"layer {k}" for k in range(1, size))]


def column_names(task: Task) -> list[str]:
    """Names of classes or target columns."""
    return list(task.class_names) if task.class_names else [str(c) for c in range(task.num_outputs)]


def shortened(text: str, length: int) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A value with so many significant digits, whole numbers as int; None for NaN, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
