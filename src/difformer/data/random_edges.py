"""Random sets of distinct undirected edges, drawn as numbers: edge {i, j}, i < j, has the code i · N + j.

Codes sort and compare as one array of int64, which is what keeps thirty million of them within seconds and a few
hundred megabytes.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from difformer.data.edges import sorted_unique
from difformer.errors import UserError

Codes = NDArray[np.int64]

MOST_PAIRS_TO_PERMUTE = 20_000_000


def distinct_edges(num_nodes: int, num_edges: int, *, skew: float = 0.0, rng: Generator) -> Codes:
    """Sorted codes of exactly `num_edges` distinct edges between `num_nodes` nodes, no loops.

    With skew s both ends are drawn with probability ∝ rank^-s, ranks given to nodes at random: for a uniform u the rank
    ⌊N · u^{1/(1 - s)}⌋ has that law.
    """
    possible = num_nodes * (num_nodes - 1) // 2
    if not 0 <= num_edges <= possible or not 0 <= skew < 1:
        raise UserError(
            f"num_edges, skew: {num_nodes} nodes have {possible} pairs and skew must lie in [0, 1); "
            f"got {num_edges} edges and skew {skew}"
        )
    if skew == 0 and possible <= MOST_PAIRS_TO_PERMUTE and 4 * num_edges > possible:
        return _kth_pair(np.sort(rng.choice(possible, num_edges, replace=False)), num_nodes)
    ranked = rng.permutation(num_nodes) if skew else None
    codes = np.empty(0, dtype=np.int64)
    for _ in range(200):
        lacking = num_edges - codes.size
        if lacking == 0:
            return codes
        fresh = _draw(lacking + lacking // 50 + 16, num_nodes, skew, ranked, rng)
        codes = sorted_unique(np.concatenate([codes, fresh]))
        if codes.size > num_edges:  # the surplus goes at random: cutting the end would spare high numbers
            codes = np.delete(codes, rng.choice(codes.size, codes.size - num_edges, replace=False))
    raise UserError(f"skew: {skew} with {num_edges} edges on {num_nodes} nodes fills the hubs; ask for fewer or less")


def block_edges(sizes: NDArray[np.int64], *, average_degree: float, homophily: float, rng: Generator) -> Codes:
    """Pairs ``[2, E]`` of a stochastic block model with blocks of nodes that lie one after the other.

    With n·d/2 edges expected, the share h of them inside: p = h·n·d/2 over the pairs inside, q = (1 - h)·n·d/2 over the
    pairs across. For every two blocks the number of edges is binomial, and which pairs they are is uniform.
    """
    inside = int((sizes * (sizes - 1) // 2).sum())
    across = (int(sizes.sum()) ** 2 - int((sizes**2).sum())) // 2
    wanted = average_degree * int(sizes.sum()) / 2
    p = _probability(homophily * wanted, inside, "inside classes")
    q = _probability((1 - homophily) * wanted, across, "across classes")
    start = np.concatenate([[0], np.cumsum(sizes)])
    found = []
    for a in range(sizes.size):
        count = rng.binomial(int(sizes[a]) * (int(sizes[a]) - 1) // 2, p)
        codes = distinct_edges(int(sizes[a]), int(count), rng=rng)
        found.append(pairs_of(codes, int(sizes[a])) + start[a])
        for b in range(a + 1, sizes.size):
            cells = int(sizes[a]) * int(sizes[b])
            cell = _distinct_integers(cells, int(rng.binomial(cells, q)), rng)
            found.append(np.stack([cell // sizes[b] + start[a], cell % sizes[b] + start[b]]))
    return np.concatenate(found, axis=1)


def pairs_of(codes: Codes, num_nodes: int) -> Codes:
    """Both ends ``[2, E]`` of coded edges."""
    return np.stack(np.divmod(codes, num_nodes)) if codes.size else np.empty((2, 0), dtype=np.int64)


def _draw(count: int, num_nodes: int, skew: float, ranked: Codes | None, rng: Generator) -> Codes:
    ends = []
    for _ in range(2):
        if ranked is None:
            ends.append(rng.integers(num_nodes, size=count))
        else:
            rank = (num_nodes * rng.random(count) ** (1 / (1 - skew))).astype(np.int64)
            ends.append(ranked[np.minimum(rank, num_nodes - 1)])
    low, high = np.minimum(*ends), np.maximum(*ends)
    different = low != high
    codes: Codes = low[different] * num_nodes + high[different]
    return codes


def _distinct_integers(below: int, count: int, rng: Generator) -> Codes:
    if below <= MOST_PAIRS_TO_PERMUTE and 4 * count > below:
        return rng.choice(below, count, replace=False)
    found = np.empty(0, dtype=np.int64)
    while found.size < count:
        fresh = rng.integers(below, size=count - found.size + 16)
        found = sorted_unique(np.concatenate([found, fresh]))
        if found.size > count:
            found = np.delete(found, rng.choice(found.size, found.size - count, replace=False))
    return found


def _kth_pair(k: Codes, num_nodes: int) -> Codes:
    """Codes of the k-th pairs in the order {0, 1}, {0, 2}, …, {1, 2}, …; node i is the lower end of N - 1 - i."""
    row_start = np.concatenate([[0], np.cumsum(np.arange(num_nodes - 1, 0, -1))])
    low = np.searchsorted(row_start, k, side="right") - 1
    high = k - row_start[low] + low + 1
    codes: Codes = low * num_nodes + high
    return codes


def _probability(edges: float, pairs: int, where: str) -> float:
    if edges > pairs:
        raise UserError(f"average_degree, homophily: {edges:.0f} edges expected {where}, but there are {pairs} pairs")
    return edges / pairs if pairs else 0.0
