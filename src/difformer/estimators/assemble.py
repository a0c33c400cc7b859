"""The way from a checked table to a fitted context, one step after the other.

table → population (distinct rows, masses) → scaled features → graph (given, of neighbours, or none) → trained models →
models that remember the population.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.data.preprocess import feature_tensor
from difformer.estimators import fitting
from difformer.estimators.context import Part, remember
from difformer.estimators.digest import row_digests
from difformer.estimators.fitted import Fitted, GivenGraph, Search
from difformer.estimators.fitting import Problem, Recipe
from difformer.estimators.graphs import KINDS, as_matrix
from difformer.estimators.neighbours import Neighbours, SparseNeighbours
from difformer.estimators.population import Population, make_population
from difformer.estimators.progress import say
from difformer.estimators.scaling import Scaling
from difformer.training import RunRecord

Array = np.ndarray[Any, Any]

FULL_POPULATION = 10_000  # rows up to which all keys are remembered, where keys are
LANDMARKS = 4096


@dataclass(frozen=True)
class Assembled:
    """What `fit` leaves behind.

    Args:
        fitted: The context.
        rows: ``[N, C or T]`` outputs of the table's rows, or their states ``[N, members · hidden]``.
        records: Of the runs.
        graph: ``"given"``, ``"knn"`` or None.
    """

    fitted: Fitted
    rows: Array
    records: list[RunRecord]
    graph: str | None


def assemble(
    x: Any,
    target: Array,
    weight: Array | None,
    *,
    num_outputs: int,
    graph: Any,
    neighbours: int,
    landmarks: int | None,
    standardize: bool,
    recipe: Recipe,
    embed: bool = False,
) -> Assembled:
    """Train on a table and remember it.

    Args:
        x: ``[N, F]`` float64, dense or CSR.
        target: ``[N]`` class numbers (-1 unknown), or ``[N, T]`` values (NaN unknown).
        weight: ``[N]`` non-negative, or None.
        num_outputs: Classes or targets.
        graph: None, ``"knn"``, ``"auto"``, or edges.
        neighbours: Of a row in the neighbour graph.
        landmarks: Rows to remember where keys are remembered; None for all of up to `FULL_POPULATION`.
        standardize: Whether features are scaled.
        recipe: Of the training.
        embed: Whether states are wanted of the table's rows, instead of outputs.
    """
    if isinstance(graph, str) and graph not in KINDS:
        raise ValueError(f"graph must be None, 'knn', 'auto', an adjacency matrix or an edge_index, got {graph!r}")
    given = None if graph is None or isinstance(graph, str) else as_matrix(graph, x.shape[0], x.shape[0])
    population = make_population(x, target, weight, join=given is None)
    if not len(population.labelled) or not population.mass[population.labelled].any():
        raise ValueError("all labelled rows have sample_weight zero; give at least one of them a positive weight")
    scaling = Scaling.of(population.x, population.mass, standardize=standardize)
    scaled = scaling(population.x)
    output_scale, targets = _scaled_targets(population)
    problem = Problem(
        x=feature_tensor(scaled),
        y=targets,
        num_outputs=num_outputs,
        labelled=population.labelled,
        weight=torch.from_numpy(population.mass) if population.weighted else None,
    )
    counted = f"{population.size} distinct rows" if population.size < x.shape[0] else f"{x.shape[0]} rows"
    say(recipe.speaker, f"{counted} of {x.shape[1]} features, {len(population.labelled)} of them labelled")
    search: Search | None = None
    edge_index = edge_weight = nearest = None
    if given is not None:
        edge_index, edge_weight = _edge_list(given)
    elif graph == "knn" or (graph == "auto" and fitting.FEWEST <= population.size <= fitting.MOST):
        search, nearest = _search(scaled, min(neighbours, population.size))
        edge_index = _edges_of(nearest)
        if graph == "auto" and not fitting.neighbours_help(problem, recipe, edge_index):
            search = edge_index = nearest = None
    del scaled  # the models have it in single precision; in a large table a third copy counts
    models, records = fitting.fit_models(problem, recipe, edge_index, edge_weight)
    fitted = Fitted(
        scaling,
        search=search,
        given=None if given is None else GivenGraph(given, row_digests(x)),
        softmax=target.ndim == 1,
        output_scale=output_scale,
    )
    parts = list(fitted.parts(population.x, given, nearest))
    states = _remember(fitted, models, parts, population, recipe, landmarks)
    kind = "given" if given is not None else None if search is None else "knn"
    return Assembled(fitted, _of_table(fitted, population.place, x, states, embed), records, kind)


def _scaled_targets(population: Population) -> tuple[Tensor | None, Tensor]:
    """Mean and deviation ``[2, T]`` of values, and the values so scaled; classes stay as they are."""
    if population.target.ndim == 1:
        return None, torch.from_numpy(population.target)
    known = ~np.isnan(population.target)
    mass = population.mass[:, None] * known
    total = np.maximum(mass.sum(0), np.finfo(np.float64).tiny)
    filled = np.where(known, population.target, 0.0)
    mean = (mass * filled).sum(0) / total
    deviation = np.sqrt((mass * (filled - mean) ** 2).sum(0) / total)
    deviation = np.where(deviation > 0, deviation, 1.0)
    targets = ((population.target - mean) / deviation).astype(np.float32)
    return torch.from_numpy(np.stack([mean, deviation])), torch.from_numpy(targets)


def _edge_list(given: Any) -> tuple[Tensor, Tensor]:
    coo = given.tocoo()
    edge_index = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
    return edge_index, torch.from_numpy(coo.data.astype(np.float32))


def _search(scaled: Any, k: int) -> tuple[Search, Tensor]:
    """A search among the rows, and their own nearest ones ``[n, k]``."""
    if sparse.issparse(scaled):
        sparse_search = SparseNeighbours(scaled, k)
        return sparse_search, sparse_search(scaled)
    points = torch.from_numpy(scaled)
    search = Neighbours(points, k)
    return search, search(points)


def _edges_of(nearest: Tensor) -> Tensor:
    """``edge_index [2, n k]`` of neighbours ``[n, k]``."""
    receivers = torch.arange(nearest.shape[0]).repeat_interleave(nearest.shape[1])
    return torch.stack([nearest.reshape(-1), receivers])


def _remember(
    fitted: Fitted,
    models: list[Any],
    parts: list[Part],
    population: Population,
    recipe: Recipe,
    landmarks: int | None,
) -> list[Tensor]:
    """Puts models into the context of the population, and gives its final states, one tensor a model."""
    mass = torch.from_numpy(population.mass)
    if recipe.batch(population.size) is not None:
        mass = torch.ones_like(mass)  # as the models have learnt: in mini-batches rows count alike in the exchange
    if landmarks is None and population.size > FULL_POPULATION:
        landmarks = LANDMARKS
    chosen = None
    if landmarks is not None and landmarks < population.size:
        rng = np.random.RandomState(recipe.seed % 2**32)
        chosen = torch.from_numpy(np.sort(rng.choice(population.size, landmarks, replace=False)))
    states = []
    for model in models:
        polynomial = recipe.options.get("backend") == "polynomial"
        member, z = remember(model, parts, mass, polynomial=polynomial, landmarks=chosen)
        fitted.members.append(member)
        states.append(z)
    return states


def _of_table(fitted: Fitted, place: Array, x: Any, states: list[Tensor], embed: bool) -> Array:
    """States or outputs of the table's rows; those of weight zero are asked about like new ones."""
    with torch.no_grad():
        found = (torch.cat(states, 1) if embed else fitted.combine(states)).numpy()
    rows: Array = found[np.maximum(place, 0)]
    absent = place < 0
    if absent.any():
        rows[absent] = fitted.states(x[absent]) if embed else fitted.outputs(x[absent])
    return rows
