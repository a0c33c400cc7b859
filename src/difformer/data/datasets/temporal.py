"""Chickenpox, Covid and WikiMath: counts at nodes of a graph, to be foretold from their own past and their neighbours'.

With L lags, snapshot t has features (c_t, …, c_{t+L-1}) and target c_{t+L}. Snapshots are split 2 : 2 : 6 in time
order. Counts are standardised node by node, z = (c - μ) / σ. Protocols differ in where μ and σ come from:

* ``"paper"``: from the training part alone, that is from c_0, …, c_{n+L-1} where n snapshots train.
* ``"public-code"``: from the whole period, test included, as the authors' code does.

Chickenpox is published standardised over the whole period. That needs no undoing: standardisation forgets any affine
map per node, so that standardising the published values on the training part gives what the counts themselves would
have given.

Errors under the two protocols are in different units. `period_scale` converts: multiplied by it, an error of
``"paper"`` is in units of the whole period's deviation, as published figures are.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.datasets.common import choice
from difformer.data.errors import DataError
from difformer.data.lookup import locate, reading
from difformer.data.split import time_split
from difformer.data.task import Task
from difformer.errors import UserError

PROTOCOLS = ("paper", "public-code")
RATIO = (2, 2, 6)


@dataclass(frozen=True)
class Series:
    """A series as published: ``values [T, N]``, ``edges [2, E]`` or one per moment, weights likewise or None, names."""

    values: Any
    edges: Any
    weights: Any
    names: tuple[str, ...] = ()


def chickenpox(
    name: str, root: str | os.PathLike[str] | None = None, *, protocol: str = "paper", lags: int = 4
) -> Task:
    """Weekly cases of chickenpox in the 20 counties of Hungary, 2005 to 2015.

    Args:
        name: ``"chickenpox"``.
        root: Folder to search first.
        protocol: ``"paper"``, or ``"public-code"`` (standardised over the whole period, test included).
        lags: Weeks of the past that a snapshot holds.
    """
    return _load(name, root, protocol, lags)


def covid(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    lags: int = 8,
    graph_day: str = "first",
) -> Task:
    """Daily cases of Covid-19 in 129 regions of England, March to May 2020, with a directed mobility graph each day.

    Args:
        name: ``"covid"``.
        root: Folder to search first.
        protocol: ``"paper"``, or ``"public-code"`` (standardised over the whole period, test included).
        lags: Days of the past that a snapshot holds.
        graph_day: Which of these days gives the snapshot's graph: ``"first"``, as the published loader pairs them, or
            ``"last"``, the latest one known when the target is foretold.
    """
    choice("graph_day", graph_day, ("first", "last"))
    return _load(name, root, protocol, lags, graph_day)


def wikimath(name: str, root: str | os.PathLike[str] | None = None, *, protocol: str = "paper", lags: int = 14) -> Task:
    """Daily visits of 1068 Wikipedia pages on mathematics, March 2019 to March 2021; links directed and weighted.

    Args:
        name: ``"wikimath"``.
        root: Folder to search first.
        protocol: ``"paper"``, or ``"public-code"`` (standardised over the whole period, test included).
        lags: Days of the past that a snapshot holds.
    """
    return _load(name, root, protocol, lags)


def period_scale(name: str, root: str | os.PathLike[str] | None = None, *, lags: int) -> Tensor:
    """σ of the training part over σ of the whole period, a number per node: see the module's text.

    The mean over nodes of (error · scale)² is the mean squared error in the units of published figures.
    """
    values = _read(name, root).values
    train = _train_rows(len(values), lags)
    return torch.from_numpy(_deviation(values[:train]) / _deviation(values)).float()


def _load(name: str, root: str | os.PathLike[str] | None, protocol: str, lags: int, graph_day: str = "first") -> Task:
    choice("protocol", protocol, PROTOCOLS)
    return _task(name, _read(name, root), protocol, lags, graph_day)


def _read(name: str, root: str | os.PathLike[str] | None) -> Series:
    found = locate(name, root)
    with reading(found):
        content = json.loads(found.path.read_text(encoding="utf-8"))
        series = {"chickenpox": _chickenpox, "covid": _covid, "wikimath": _wikimath}[name](content)
        if series.values.ndim != 2 or not np.isfinite(series.values).all():
            raise DataError("counts must be a table of numbers, a row per moment", path=found.path)
        _check_edges(series)
    return series


def _check_edges(series: Series) -> None:
    """Edges between nodes that there are, and a finite weight for each where there are weights."""
    nodes = series.values.shape[1]
    several = isinstance(series.edges, list)
    graphs = series.edges if several else [series.edges]
    weights = [None] * len(graphs) if series.weights is None else series.weights if several else [series.weights]
    for number, (edges, weight) in enumerate(zip(graphs, weights, strict=True)):
        if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
            raise DataError(f"graph {number} names nodes {edges.min()} … {edges.max()}; there are 0 … {nodes - 1}")
        if weight is not None and (weight.shape != edges.shape[1:] or not np.isfinite(weight).all()):
            raise DataError(f"graph {number}: {edges.shape[1]} edges, but not as many finite weights")


def _chickenpox(content: Any) -> Series:
    edges = _edges(_part(content, "edges"))
    return Series(_numbers(_part(content, "FX")), edges, None, _names(_part(content, "node_ids")))


def _covid(content: Any) -> Series:
    days = range(_count(content))
    index, weight = (_part(content, "edge_mapping", part) for part in ("edge_index", "edge_weight"))
    return Series(
        _numbers(_part(content, "y")),
        [_edges(_part(index, str(day))) for day in days],
        [_numbers(_part(weight, str(day)), np.float32) for day in days],
    )


def _wikimath(content: Any) -> Series:
    days = [_part(content, str(day), "y") for day in range(_count(content))]
    names = _names(content["node_ids"]) if content.get("node_ids") else ()
    return Series(
        _numbers(days), _edges(_part(content, "edges")), _numbers(_part(content, "weights"), np.float32), names
    )


def _part(content: Any, *keys: str) -> Any:
    """An entry of nested JSON objects."""
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"expected an object with {key!r}")
        content = content[key]
    return content


def _count(content: Any) -> int:
    count = _part(content, "time_periods")
    if type(count) is not int:
        raise DataError("time_periods must be a whole number")
    return count


def _names(numbers: Any) -> tuple[str, ...]:
    """Names of the nodes in the order of their numbers."""
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise DataError("node_ids must give every node a whole number")
    return tuple(sorted(numbers, key=numbers.__getitem__))


def _numbers(values: Any, dtype: Any = np.float64) -> Any:
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise DataError(f"expected a table of numbers ({error})") from error


def _edges(pairs: Any) -> Any:
    return _numbers(pairs, np.int64).reshape(-1, 2).T


def _train_rows(num_moments: int, lags: int) -> int:
    """Moments that training sees, as feature or as target."""
    return len(time_split(num_moments - lags, ratio=RATIO).train) + lags


def _deviation(values: Any) -> Any:
    spread = values.std(axis=0)
    return np.where(spread > 0, spread, 1.0)  # a node that never changes is shifted, not scaled


def _task(name: str, series: Series, protocol: str, lags: int, graph_day: str) -> Task:
    moments, nodes = series.values.shape
    if not 1 <= lags <= moments - 5:
        raise UserError(f"lags must lie between 1 and {moments - 5} for {moments} moments, got {lags}")
    split = time_split(moments - lags, ratio=RATIO)
    basis = series.values[: _train_rows(moments, lags)] if protocol == "paper" else series.values
    scaled = ((series.values - basis.mean(axis=0)) / _deviation(basis)).astype(np.float32)
    window = np.lib.stride_tricks.sliding_window_view(scaled, lags, axis=0)[: moments - lags]  # [T - L, N, L]
    edge_index, edge_weight = _structure(series, moments - lags, 0 if graph_day == "first" else lags - 1)
    still = int((basis.std(axis=0) == 0).sum())
    whence = "the training part" if protocol == "paper" else "the whole period, test included"
    notes = [f"{still} nodes do not change in what they are standardised by; they are shifted only."] if still else []
    notes.append(f"Errors are in units of the deviation over {whence}.")
    return Task(
        name=name,
        kind="series",
        problem="regression",
        metric="mse",
        protocol=(
            f"{protocol}: {lags} lags, split 2:2:6 in time order, standardised by node over {whence}; "
            f"graph as published; MSE"
        ),
        x=torch.from_numpy(np.ascontiguousarray(window)),
        y=torch.from_numpy(np.ascontiguousarray(scaled[lags:])),
        splits=(split,),
        num_outputs=1,
        edge_index=edge_index,
        edge_weight=edge_weight,
        instance_names=series.names if len(series.names) == nodes else (),
        notes=tuple(notes),
    )


def _structure(series: Series, snapshots: int, day: int) -> tuple[Any, Any]:
    if isinstance(series.edges, list):
        chosen = range(day, day + snapshots)
        edges = tuple(torch.from_numpy(np.ascontiguousarray(series.edges[t])) for t in chosen)
        return edges, tuple(torch.from_numpy(series.weights[t]) for t in chosen)
    weights = None if series.weights is None else torch.from_numpy(series.weights)
    return torch.from_numpy(np.ascontiguousarray(series.edges)), weights
