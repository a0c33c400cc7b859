"""The population that an estimator diffuses over: distinct rows in an order of their own, each with its mass.

A table may hold a row several times, or once with a weight: both are the same population. Rows that agree in features
and target become one row whose mass m_j is the sum of their weights; rows of weight zero are left out. The order is
that of the rows' fingerprints, so that neither the order of a table nor the way in which it says "twice" changes a
result by a single bit. Every all-pair sum then counts row j with its mass,

    P_i = Σ_j m_j g(q_iᵀk_j) v_j / Σ_l m_l g(q_iᵀk_l).

Where a graph was given, rows are nodes: none are joined, and their order stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from difformer.estimators.digest import mix, row_digests

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Population:
    """Distinct rows.

    Args:
        x: Features ``[n, F]``, float64, dense or scipy CSR.
        target: ``[n]`` class numbers (-1 unknown), or ``[n, T]`` values (NaN unknown).
        mass: ``[n]`` positive floats.
        place: ``[N]``: where each row of the table went, -1 for rows of weight zero.
    """

    x: Any
    target: Array
    mass: Array
    place: Array

    @property
    def size(self) -> int:
        return self.x.shape[0]

    @property
    def labelled(self) -> Array:
        """Rows with a target, or with at least one of several."""
        if self.target.ndim == 1:
            return np.flatnonzero(self.target >= 0)
        return np.flatnonzero((~np.isnan(self.target)).any(1))

    @property
    def weighted(self) -> bool:
        """Whether masses differ."""
        return bool((self.mass != self.mass[0]).any())


def make_population(x: Any, target: Array, weight: Array | None, *, join: bool) -> Population:
    """The population of a table.

    Args:
        x: Features ``[N, F]``, dense or CSR.
        target: See `Population`.
        weight: ``[N]`` non-negative, or None for one each.
        join: Whether equal rows become one and the order becomes canonical; False where rows are nodes of a graph.
    """
    count = x.shape[0]
    weight = np.ones(count) if weight is None else np.asarray(weight, dtype=np.float64)
    if not join:
        return Population(x, target, weight, np.arange(count))
    kept = np.flatnonzero(weight > 0)
    digest = row_digests(x)[kept]
    targets = np.zeros(len(kept), dtype=np.uint64)
    for column in target.reshape(count, -1)[kept].T:
        targets = mix(targets) + mix((column.astype(np.float64) + 0.0).view(np.uint64))
    # By features first: the unit in which targets are given does not change the order.
    order = np.lexsort((kept, targets, digest[:, 1], digest[:, 0]))
    ranked = np.column_stack([digest, targets])[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (ranked[1:] != ranked[:-1]).any(1)
    group = np.cumsum(first) - 1
    mass = np.bincount(group, weights=weight[kept][order])
    place = np.full(count, -1)
    place[kept[order]] = group
    chosen = kept[order[first]]
    return Population(x[chosen], target[chosen], mass, place)
