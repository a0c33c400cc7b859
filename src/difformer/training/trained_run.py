"""Using a trained run: evaluate, predict, embed and measure the energy of its own instances or of new ones.

Everything is read from the run folder; a run on a task object needs that object again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.sparse_features import from_scipy, stack_rows
from difformer.diffusivity import as_diffusivity
from difformer.errors import UserError
from difformer.files import RunFolderError
from difformer.nn.inspection import EnergyProfile
from difformer.nn.pretrained import no_larger_than
from difformer.training.config import knn_of
from difformer.training.devices import precision, resolve
from difformer.training.feeds import Feed, make_feed, with_neighbours
from difformer.training.metrics import METRICS
from difformer.training.model import UNITS, build_model, hook, set_units
from difformer.training.randomness import isolated_rng
from difformer.training.record import Predictions
from difformer.training.run_folder import CONFIG, RunFolder
from difformer.zoo.model_registry import find


@dataclass(frozen=True)
class Evaluation:
    """Every metric of a run's best epoch."""

    seed: int
    split: str
    values: dict[str, dict[str, float]]  # by metric, then by part


@dataclass(frozen=True)
class Loaded:
    """A trained model in evaluation mode, with its data."""

    model: nn.Module
    feed: Feed
    task: Task
    split: Split
    precision: str = "float32"
    new: int | None = None  # number of the first new instance, or None

    def outputs(self) -> Tensor:
        """Outputs of all instances, on the CPU."""
        return self._passed(self.feed.outputs)

    def states(self) -> Tensor:
        """States before the output layer, of all instances, on the CPU."""
        return self._passed(self.feed.states)

    def _passed(self, ask: Callable[[nn.Module], Tensor]) -> Tensor:
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        # As in training, so that a run is measured as it was chosen.
        with torch.no_grad(), precision(device, self.precision):
            return ask(self.model).float().cpu()


def load_run(
    run: RunFolder | str | Path,
    features: Any = None,
    *,
    edges: Any = None,
    edge_weight: Any = None,
    on: Task | None = None,
    together: bool = True,
    seed: int | None = None,
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Loaded:
    """The model of a run with the parameters of its best epoch, over the run's own instances or over new ones.

    Args:
        run: The run folder.
        features: New instances: rows ``[M, F]``, or snapshots ``[T, N, F]`` of the same nodes; prepared as the
            features of the run's task were.
        edges: ``[2, E]`` edges of new rows, which are numbered after the task's instances (from 0 if not `together`).
        edge_weight: Their weights.
        on: New instances as a task of its own, in place of `features`.
        together: Whether new rows are propagated together with the task's instances, or by themselves.
        seed: Which run; None takes the one that is best on validation.
        task: The run's task, if it was made from a task object.
        device: See `difformer.training.devices.resolve`.
    """
    if features is None and (edges is not None or edge_weight is not None):
        raise UserError("edges of new instances were given without their features")
    if features is not None and on is not None:
        raise UserError("give new instances either as features or as a task, not both")
    folder = _open(run)
    own, start = folder.task(task), None
    if features is not None:
        on, start = new_task(own, features, edges, edge_weight, together=together)
    return replace(_load(folder, own, seed, on, device), new=start)


def _open(run: RunFolder | str | Path) -> RunFolder:
    """The run, with a warning if it is not finished."""
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    if (left := folder.unfinished) and folder.results():  # without any there is nothing to use: that is an error
        warnings.warn(
            f"{folder.path} is not finished ({len(left)} of {len(folder.seeds)} seeds are not trained to their end), "
            f"the best epoch so far is used; resume it with: difformer fit --resume {folder.path}",
            stacklevel=3,
        )
    return folder


def _load(folder: RunFolder, own: Task, seed: int | None, on: Task | None, device: str | torch.device) -> Loaded:
    chosen = best_seed(folder) if seed is None else seed
    if chosen not in folder.seeds:
        raise RunFolderError(f"{folder.path} has no seed {chosen}; it has {', '.join(map(str, folder.seeds))}")
    place, used = resolve(device), own if on is None else on
    if (used.kind, used.num_features) != (own.kind, own.num_features):
        had = f"the run was trained on {own.kind} with {own.num_features} features"
        raise UserError(f"{had}, task {used.name!r} holds {used.kind} with {used.num_features}")
    split, config = folder.split_of(used, chosen), folder.config
    if used.kind == "series" and not split.train.numel() and (neighbours := knn_of(config.graph)) is not None:
        used = with_neighbours(used, own, folder.split_of(own, chosen), neighbours)
        config = config.replace(graph="given")
    weights = folder.read_weights(chosen)
    _check_known(folder)
    with isolated_rng(place):
        try:
            with no_larger_than(weights):
                model = build_model(own, folder.config, chosen)
            if UNITS[0] in weights:
                set_units(model, *(weights[name].expand(own.num_outputs) for name in UNITS))
            model.load_state_dict(weights)
        except (UserError, KeyError, RuntimeError, TypeError, OverflowError) as error:
            raise RunFolderError(f"{folder.file(chosen)}: the weights are of another model: {error}") from error
        model.to(place).eval()
        if (observe := hook(model, "observe")) is not None:
            observe(used.y.to(place), split.train.to(place))
        return Loaded(model, make_feed(used, split, config, chosen, place, model), used, split, config.precision)


def _check_known(folder: RunFolder) -> None:
    """Refuses a run whose model or diffusivity is not known in this process."""
    given = folder.config.options.get("diffusivity")
    diffusivity = given if isinstance(given, str) else "simple"
    for what, name, lookup in (("model", folder.config.model, find), ("diffusivity", diffusivity, as_diffusivity)):
        try:
            lookup(name)
        except UserError as error:
            advice = f"if it is your own, import the code that registers it first (difformer.register_{what})"
            problem = f"the {what} {name!r} of this run is not known here; {advice}. {error}"
            raise RunFolderError(f"{folder.path / CONFIG}: {problem}") from error


def evaluate(
    run: RunFolder | str | Path, *, task: Task | None = None, device: str | torch.device = "auto"
) -> tuple[Evaluation, ...]:
    """Measures every metric of the problem again, on every part, for every seed that has been trained."""
    folder = _open(run)
    own = folder.task(task)
    found = []
    for result in folder.summary().results:
        loaded = _load(folder, own, result["seed"], None, device)
        outputs, parts = loaded.outputs(), loaded.split.parts()
        values = {
            metric.name: {part: float(metric(outputs[i], own.y[i])) for part, i in parts.items()}
            for metric in METRICS.values()
            if own.problem in metric.problems and (metric.name != "broadcast-mse" or own.kind == "series")
        }
        found.append(Evaluation(result["seed"], loaded.split.name, values))
    return tuple(found)


def predict(run: RunFolder | str | Path, features: Any = None, **given: Any) -> Predictions:
    """Predictions of a run for its own instances, or for new ones; arguments as in `load_run`."""
    loaded = load_run(run, features, **given)
    outputs = loaded.outputs()
    if loaded.new is None:
        return Predictions.of(loaded.task, outputs, None if given.get("on") is not None else loaded.split)
    return Predictions(loaded.task.problem, outputs[loaded.new :], loaded.task.class_names)


def embed(run: RunFolder | str | Path, features: Any = None, **given: Any) -> Tensor:
    """States before the output layer, ``[instances, …, hidden]``; arguments as in `load_run`."""
    loaded = load_run(run, features, **given)
    return loaded.states()[loaded.new or 0 :]


def energy(run: RunFolder | str | Path, **given: Any) -> EnergyProfile:
    """Measured energy and effective rank of every layer, over all instances; for series and graphs, means over passes.

    Arguments are those of `load_run`. Models without an energy are refused.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    loaded = load_run(folder, **given)
    if (measure := hook(loaded.model, "energy")) is None:
        raise UserError(f"model {folder.config.model!r} does not measure an energy; DIFFormer models do")
    profiles = [measure(inputs.x, inputs.graph, None, inputs.batch) for inputs in loaded.feed.passes()]
    means: dict[str, Any] = {}
    for name in ("energy", "dirichlet", "effective_rank"):
        values = [value for profile in profiles if (value := getattr(profile, name)) is not None]
        means[name] = torch.stack(values).mean(0).cpu() if values else None
    return EnergyProfile(**means)


def best_seed(folder: RunFolder) -> int:
    """The seed with the best validation score; the first of several."""
    summary = folder.summary()
    sign = 1 if summary.higher_is_better else -1
    worth = [sign * value if value == value else -math.inf for value in summary.values("valid")]
    return int(summary.results[worth.index(max(worth))]["seed"])


def new_task(
    task: Task, features: Any, edges: Any = None, edge_weight: Any = None, *, together: bool = True
) -> tuple[Task, int]:
    """A task with new instances without targets, and the position of the first of them.

    If they are propagated `together`, new rows follow the task's own, whose labels stay for models that spread labels.
    If every node of the task has an edge to itself, new ones get one too.
    """
    if task.kind == "graphs":
        raise UserError("new graphs are given as a task of their own: on=…, see difformer.data.from_arrays(node_ptr=…)")
    x = from_scipy(features) if hasattr(features, "tocsr") else features
    x = (x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))).to(task.x.dtype)
    dims = 3 if task.kind == "series" else 2
    if x.dim() != dims or x.shape[-1] != task.num_features or (dims == 3 and x.shape[1] != task.num_nodes):
        expected = f"[T, {task.num_nodes}, {task.num_features}]" if dims == 3 else f"[M, {task.num_features}]"
        raise UserError(f"features of new instances must have shape {expected}, got {tuple(x.shape)}")
    none = torch.empty(0, dtype=torch.long)
    nothing = (Split("none", none, none, none),)
    unknown = task.y.new_full((x.shape[0], *task.y.shape[1:]), -1 if task.problem == "multiclass" else torch.nan)
    index, weight = task.edge_index, task.edge_weight
    if task.kind == "series":
        if edges is not None or isinstance(index, tuple):
            raise UserError("new snapshots with graphs of their own are given as a task: on=…")
        return replace(task, x=x, y=unknown, splits=nothing), 0
    if task.scaling is not None:  # new rows come as they are, the task's own are standardised
        x, task = task.scaled(x), replace(task, scaling=None)
    start = task.num_nodes if together else 0
    parts: list[tuple[Tensor, Tensor | None]] = []  # edges and weights: the task's own, new ones, loops
    if together and isinstance(index, Tensor):
        parts.append((index, weight if isinstance(weight, Tensor) else None))
    if edges is not None:
        new = None if edge_weight is None else torch.as_tensor(np.asarray(edge_weight), dtype=torch.float32)
        parts.append((torch.as_tensor(np.asarray(edges), dtype=torch.long), new))
    if isinstance(index, Tensor) and int((index[0] == index[1]).sum()) == task.num_nodes:
        parts.append((torch.arange(start, start + x.shape[0]).expand(2, -1), None))
    weighted = any(part is not None for _, part in parts)
    names = (task.instance_names or tuple(f"instance {i}" for i in range(start)))[:start]
    joined = replace(
        task,
        x=stack_rows([task.x, x]) if together else x,
        y=torch.cat([task.y, unknown]) if together else unknown,
        edge_index=torch.cat([pairs for pairs, _ in parts], 1) if parts else None,
        edge_weight=torch.cat([torch.ones(i.shape[1]) if w is None else w for i, w in parts]) if weighted else None,
        splits=task.splits if together else nothing,
        instance_names=(*names, *(f"new row {i}" for i in range(x.shape[0]))),
    )
    return joined, start
