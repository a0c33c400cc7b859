"""Chickenpox, Covid and WikiMath: counts at the nodes of a graph, predicted from the past of all nodes.

With L lags, snapshot t has features (c_t, …, c_{t+L-1}) and target c_{t+L}. Snapshots are split 2 : 2 : 6 in time
order. Counts are standardised node by node, z = (c - μ) / σ. Protocols differ in where μ and σ come from:

* ``"paper"``: from the training part only, that is from c_0, …, c_{n+L-1} where n snapshots train.
* ``"public-code"``: from the whole period, test included, as the authors' code does.

Chickenpox is published standardised over the whole period. That needs no undoing: standardisation removes any affine
map per node, so standardising the published values on the training part gives the same as standardising the counts.

Errors under the two protocols are in different units. Multiplied by `period_scale`, an error of ``"paper"`` is in units
of the whole period's deviation, as published figures are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from difformer.data.datasets.common import Array, Reader
from difformer.data.download import Found, locate, reading
from difformer.data.split import time_split
from difformer.data.task import Task
from difformer.errors import DataError, UserError


class Series(NamedTuple):
    """A series as published."""

    values: Array  # counts [T, N]
    edges: Sequence[Array]  # [2, E], one per moment or one for all
    weights: Sequence[Array] = ()  # [E], likewise; empty where every weight is one
    names: tuple[str, ...] = ()  # of the nodes


@dataclass(frozen=True, kw_only=True)
class SeriesReader(Reader):
    """Counts over time.

    Args:
        protocol: ``"paper"``, or ``"public-code"`` (standardised over the whole period, test included).
        lags: Weeks or days of the past that a snapshot holds.
    """

    protocol: str = "paper"
    lags: int = 4

    def content(self, found: Found) -> Series:
        series = self.series(json.loads(found.path.read_text(encoding="utf-8")))
        moments, nodes = series.values.shape if series.values.ndim == 2 else (0, 0)
        if moments == 0 or not np.isfinite(series.values).all():
            raise DataError("counts must be a table of numbers, one row per moment", path=found.path)
        for number, edges in enumerate(series.edges):
            if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
                raise DataError(f"graph {number} names nodes {edges.min()} … {edges.max()}; there are 0 … {nodes - 1}")
            for weight in series.weights[number : number + 1]:
                if weight.shape != edges.shape[1:] or not np.isfinite(weight).all():
                    raise DataError(f"graph {number}: {edges.shape[1]} edges, but not as many finite weights")
        return series

    def series(self, content: Any) -> Series:
        """The series in the JSON of the file."""
        raise NotImplementedError

    def task(self, content: Series) -> Task:
        values, lags, moments = content.values, self.lags, len(content.values)
        if not 1 <= lags <= moments - 5:
            raise UserError(f"lags must lie between 1 and {moments - 5} for {moments} moments, got {lags}")
        paper = self.protocol == "paper"
        basis = values[: _train_rows(moments, lags)] if paper else values
        scaled = ((values - basis.mean(axis=0)) / _deviation(basis)).astype(np.float32)
        window = np.lib.stride_tricks.sliding_window_view(scaled, lags, axis=0)[: moments - lags]  # [T - L, N, L]
        still = int((basis.std(axis=0) == 0).sum())
        whence = "the training part" if paper else "the whole period, test included"
        shifted = f"{still} nodes are constant over the period used for standardisation; they are only shifted."
        notes = (shifted,) * bool(still)

        def per_snapshot(parts: Sequence[Array]) -> Tensor | tuple[Tensor, ...] | None:
            tensors = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
            return tuple(tensors[: moments - lags]) if len(tensors) > 1 else tensors[0] if parts else None

        said = f"{self.protocol}: {lags} lags, split 2:2:6 in time order, standardised by node over {whence}"
        splits = (time_split(moments - lags),), said
        x, y = (torch.from_numpy(np.ascontiguousarray(part)) for part in (window, scaled[lags:]))
        parts: Any = {"edge_index": per_snapshot(content.edges), "edge_weight": per_snapshot(content.weights)}
        parts["instance_names"] = content.names if len(content.names) == values.shape[1] else ()
        parts["notes"] = (*notes, f"Errors are in units of the deviation over {whence}.")
        return self.make_task(x, y, splits, "graph as published", "MSE", problem="regression", **parts)


@dataclass(frozen=True, kw_only=True)
class Chickenpox(SeriesReader):
    """Weekly cases of chickenpox in the 20 counties of Hungary, 2005 to 2015."""

    def series(self, content: Any) -> Series:
        return Series(_numbers(_part(content, "FX")), [_edges(content)], names=_names(_part(content, "node_ids")))


@dataclass(frozen=True, kw_only=True)
class Covid(SeriesReader):
    """Daily cases of Covid-19 in 129 regions of England, March to May 2020, with a directed mobility graph each day.

    As in the published loader, a snapshot has the graph of the first of its days.
    """

    lags: int = 8

    def series(self, content: Any) -> Series:
        index, weight = (_part(content, "edge_mapping", part) for part in ("edge_index", "edge_weight"))
        days = [str(day) for day in range(_moments(content))]
        weights = [_numbers(_part(weight, day), np.float32) for day in days]
        return Series(_numbers(_part(content, "y")), [_edges(index, day) for day in days], weights)


@dataclass(frozen=True, kw_only=True)
class WikiMath(SeriesReader):
    """Daily visits of 1068 Wikipedia pages on mathematics, March 2019 to March 2021; links directed and weighted."""

    lags: int = 14

    def series(self, content: Any) -> Series:
        visits = _numbers([_part(content, str(day), "y") for day in range(_moments(content))])
        names = _names(content["node_ids"]) if content.get("node_ids") else ()
        return Series(visits, [_edges(content)], [_numbers(_part(content, "weights"), np.float32)], names)


def period_scale(name: str, root: str | os.PathLike[str] | None = None, *, lags: int) -> Tensor:
    """σ of the training part over σ of the whole period, for every node.

    The mean over nodes of (error · scale)² is the mean squared error in the units of published figures.
    """
    found = locate(name, root)
    with reading(found):
        values = {"chickenpox": Chickenpox, "covid": Covid, "wikimath": WikiMath}[name](name).content(found).values
    train = _train_rows(len(values), lags)
    return torch.from_numpy(_deviation(values[:train]) / _deviation(values)).float()


def _part(content: Any, *keys: str) -> Any:
    """An entry of nested JSON objects."""
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"expected an object with {key!r}")
        content = content[key]
    return content


def _moments(content: Any) -> int:
    count = _part(content, "time_periods")
    if type(count) is not int:
        raise DataError("time_periods must be a whole number")
    return count


def _numbers(values: Any, dtype: Any = np.float64) -> Array:
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise DataError(f"expected a table of numbers ({error})") from error


def _edges(content: Any, key: str = "edges") -> Array:
    pairs = _numbers(_part(content, key), np.int64)
    if pairs.size % 2:
        raise DataError(f"{key}: expected pairs of nodes, got {pairs.size} numbers")
    return pairs.reshape(-1, 2).T


def _names(numbers: Any) -> tuple[str, ...]:
    """Names of the nodes in the order of their numbers."""
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise DataError("node_ids must give every node a whole number")
    return tuple(sorted(numbers, key=numbers.__getitem__))


def _train_rows(num_moments: int, lags: int) -> int:
    """Moments that training sees, as feature or as target."""
    return len(time_split(num_moments - lags).train) + lags


def _deviation(values: Array) -> Array:
    spread = values.std(axis=0)
    return np.where(spread > 0, spread, 1.0)  # a node that never changes is shifted, not scaled
