r"""Filters of a graph: functions of its propagation matrix, as polynomials of it.

With T = D^{-½} A D^{-½} (or D^{-1} A) and the Laplacian L = I - T, two filters spread what stands on a node:

.. math::
    e^{-tL} \;\; \text{(heat)}, \qquad α \, (I - (1 - α) T)^{-1} \;\; \text{(personalised PageRank)}.

The eigenvalues of T lie in [-1, 1] where the graph is undirected. There the Chebyshev expansion

.. math::
    f(T) = \sum_k c_k \, T_k(T), \qquad T_{k+1}(x) = 2 x T_k(x) - T_{k-1}(x),

needs the fewest products with T: about √(2/α) ln(1/ε) for PageRank, where a power iteration needs (1/α) ln(1/ε). On
directed graphs eigenvalues are complex, within the unit disc, where powers of T converge and Chebyshev polynomials may
not: there the filter is e^{-t} Σ_k t^k/k! T^k, or α Σ_k (1 - α)^k T^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from difformer.diffusion.coupling.static import is_symmetric
from difformer.graph import Graph

TOLERANCE = 1e-7
LARGEST_DEGREE = 2000

_undirected: WeakKeyDictionary[Graph, bool] = WeakKeyDictionary()


def is_undirected(graph: Graph) -> bool:
    """Whether the weights of a graph are symmetric; looked at once a graph."""
    if graph not in _undirected:
        source, target = graph.edge_index
        weights = graph.weights(torch.float64).detach()
        _undirected[graph] = is_symmetric(target, source, weights, graph.num_nodes)
    return _undirected[graph]


@dataclass(frozen=True)
class Filter:
    """A polynomial of the propagation matrix.

    Args:
        coefficients: c_0 … c_K.
        chebyshev: Whether they are of Chebyshev polynomials, or of powers.
    """

    coefficients: tuple[float, ...]
    chebyshev: bool

    def __call__(self, product: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """f(T) z, where `product` gives T z; one product a degree."""
        total = self.coefficients[0] * z
        before, current = z, z
        for k, coefficient in enumerate(self.coefficients[1:], 1):
            after = product(current)
            if self.chebyshev and k > 1:
                after = 2 * after - before
            before, current = current, after
            total = total + coefficient * current
        return total


@lru_cache(maxsize=64)
def heat_filter(time: float, undirected: bool = True, tolerance: float = TOLERANCE) -> Filter:
    """e^{-tL}."""
    if undirected:
        return _expanded(lambda x: np.exp(time * (x - 1)), tolerance)
    # Poisson weights: all positive, and together one.
    return _powers(lambda k: math.exp(k * math.log(time) - time - math.lgamma(k + 1)), tolerance)


@lru_cache(maxsize=64)
def pagerank_filter(teleport: float, undirected: bool = True, tolerance: float = TOLERANCE) -> Filter:
    """α (I - (1 - α) T)^{-1}."""
    if undirected:
        return _expanded(lambda x: teleport / (1 - (1 - teleport) * x), tolerance)
    return _powers(lambda k: teleport * (1 - teleport) ** k, tolerance)


def _expanded(function: Callable[[np.ndarray], np.ndarray], tolerance: float) -> Filter:
    """The shortest Chebyshev expansion whose left-out coefficients sum to less than `tolerance`."""
    degree = 32
    while True:
        found = chebyshev.chebinterpolate(function, degree)  # type: ignore[type-var]
        tails = np.abs(found)[::-1].cumsum()[::-1]  # bounds on what is left out from each degree on
        enough = int((tails > tolerance).sum())
        # Aliasing folds what is beyond the degree back into it: coefficients are right where the last ones vanish.
        if enough <= degree // 2 or degree >= LARGEST_DEGREE:
            return Filter(tuple(float(c) for c in found[: max(1, enough)]), True)
        degree *= 2


def _powers(coefficient: Callable[[int], float], tolerance: float) -> Filter:
    """Powers until the coefficients, which sum to one, leave less than `tolerance`."""
    found = [coefficient(0)]
    while 1 - math.fsum(found) > tolerance and len(found) <= 10 * LARGEST_DEGREE:
        found.append(coefficient(len(found)))
    return Filter(tuple(found), False)
