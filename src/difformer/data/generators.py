"""Tasks made from a seed: nothing to download, of any size; equal options give equal tasks on every machine.

Random edges are drawn as numbers: edge {i, j}, i < j, has the code i · N + j. Codes sort and compare as one array of
int64, which keeps thirty million of them within seconds and a few hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from difformer.data.datasets.common import Reader
from difformer.data.edges import undirected
from difformer.data.split import random_split
from difformer.data.task import Problem, Task
from difformer.errors import UserError

Codes = NDArray[np.int64]

MOST_PAIRS_TO_PERMUTE = 20_000_000


def distinct_edges(num_nodes: int, num_edges: int, *, rng: np.random.Generator) -> Codes:
    """Exactly `num_edges` distinct edges ``[2, E]`` between `num_nodes` nodes, no loops, sorted."""
    possible = num_nodes * (num_nodes - 1) // 2
    if not 0 <= num_edges <= possible:
        raise UserError(f"num_edges: {num_nodes} nodes have {possible} pairs, so there cannot be {num_edges} edges")
    if possible <= MOST_PAIRS_TO_PERMUTE and 4 * num_edges > possible:
        # The k-th pair in the order {0, 1}, {0, 2}, …, {1, 2}, …; node i is the lower end of N - 1 - i pairs.
        kth = np.sort(rng.choice(possible, num_edges, replace=False))
        row_start = np.concatenate([[0], np.cumsum(np.arange(num_nodes - 1, 0, -1))])
        low = np.searchsorted(row_start, kth, side="right") - 1
        return np.stack([low, kth - row_start[low] + low + 1])

    def draw(lacking: int) -> Codes:
        count = lacking + lacking // 50 + 16
        ends = rng.integers(num_nodes, size=count), rng.integers(num_nodes, size=count)
        low, high = np.minimum(*ends), np.maximum(*ends)
        return np.asarray((low * num_nodes + high)[low != high])

    codes = _distinct(num_edges, draw, rng)
    if codes.size < num_edges:
        raise UserError(f"num_edges: {num_edges} of {possible} pairs are too many to draw; ask for fewer")
    return np.stack(np.divmod(codes, max(num_nodes, 1)))


def _distinct(count: int, draw: Callable[[int], Codes], rng: np.random.Generator) -> Codes:
    """`count` different numbers, sorted; `draw` gives at least as many as requested, some of them equal."""
    found = np.empty(0, dtype=np.int64)
    attempts = 200
    while found.size < count and attempts:
        found = np.unique(np.concatenate([found, draw(count - found.size)]))
        if found.size > count:  # the surplus is dropped at random: cutting the end would favour low numbers
            found = np.delete(found, rng.choice(found.size, found.size - count, replace=False))
        attempts -= 1
    return found


def _distinct_below(limit: int, count: int, rng: np.random.Generator) -> Codes:
    if limit <= MOST_PAIRS_TO_PERMUTE and 4 * count > limit:
        return rng.choice(limit, count, replace=False)
    return _distinct(count, lambda lacking: rng.integers(limit, size=lacking + 16), rng)


def block_edges(
    sizes: NDArray[np.int64], *, average_degree: float, homophily: float, rng: np.random.Generator
) -> Codes:
    """Pairs ``[2, E]`` of a stochastic block model with blocks of nodes that lie one after the other.

    With n·d/2 edges expected, the share h of them inside: p = h·n·d/2 over the pairs inside, q = (1 - h)·n·d/2 over the
    pairs across. For every two blocks the number of edges is binomial, and which pairs they are is uniform.
    """
    blocks = [int(size) for size in sizes]
    inside = sum(size * (size - 1) // 2 for size in blocks)
    across = (sum(blocks) ** 2 - sum(size**2 for size in blocks)) // 2
    chance = []
    for share, pairs, where in ((homophily, inside, "inside"), (1 - homophily, across, "across")):
        edges = share * (average_degree * sum(blocks) / 2)
        if edges > pairs:
            problem = f"{edges:.0f} edges expected {where} classes, but there are {pairs} pairs"
            raise UserError(f"average_degree, homophily: {problem}")
        chance.append(edges / pairs if pairs else 0.0)
    start = np.concatenate([[0], np.cumsum(sizes)])
    found = []
    for a, size in enumerate(blocks):
        count = int(rng.binomial(size * (size - 1) // 2, chance[0]))
        found.append(distinct_edges(size, count, rng=rng) + start[a])
        for b in range(a + 1, len(blocks)):
            cells = size * blocks[b]
            cell = _distinct_below(cells, int(rng.binomial(cells, chance[1])), rng)
            found.append(np.stack([cell // blocks[b] + start[a], cell % blocks[b] + start[b]]))
    return np.concatenate(found, axis=1)


@dataclass(frozen=True, kw_only=True)
class Generator(Reader):
    """A task made from a seed.

    Args:
        num_nodes: Number of nodes.
        fractions: Shares of train, valid and test.
        num_splits: Number of splits, with seeds 0, 1, …
        seed: Seed of everything else.
    """

    num_nodes: int = 1000
    fractions: Sequence[float] = (0.1, 0.1, 0.8)
    num_splits: int = 1
    seed: int = 0
    stratify: ClassVar[bool] = False

    def generated(self, said: str, x: Tensor, y: Tensor, edge_index: Tensor | None, num_outputs: int) -> Task:
        draw = partial(random_split, y, fractions=self.fractions, stratify=self.stratify)
        splits = tuple(draw(seed=seed) for seed in range(self.num_splits))
        problem: Problem = "regression" if y.is_floating_point() else "multiclass"
        return self.make_task(x, y, (splits, said), problem=problem, edge_index=edge_index, num_outputs=num_outputs)


@dataclass(frozen=True, kw_only=True)
class GaussianClasses(Generator):
    """Classes with Gaussian features, x_i = signal · m_{y_i} + ε_i with unit class means m and standard normal noise ε.

    Args:
        num_classes: Number of classes.
        num_features: Columns of x.
        signal: Length of the class means; 0 leaves only the graph to learn from.
        self_loops: Add one to every node.
    """

    num_classes: int = 4
    num_features: int = 16
    signal: float = 1.0
    self_loops: bool = True

    def draw_features(self, y: Tensor, rng: np.random.Generator) -> Tensor:
        means = rng.standard_normal((self.num_classes, self.num_features), dtype=np.float32)
        means *= self.signal / np.linalg.norm(means, axis=1, keepdims=True)
        x = rng.standard_normal((y.numel(), self.num_features), dtype=np.float32)
        for label in range(self.num_classes):  # a gather of all means at once would take as much memory as x again
            x[y.numpy() == label] += means[label]
        return torch.from_numpy(x)


@dataclass(frozen=True, kw_only=True)
class StochasticBlockModel(GaussianClasses):
    """Classes of equal size, edges mostly inside them, Gaussian features.

    Every pair of nodes is joined independently, with probability p inside a class and q across, chosen such that the
    expected degree is `average_degree` and the expected share of edges inside classes is `homophily`.

    Args:
        average_degree: Expected neighbours per node, itself not counted.
        homophily: Expected share of edges within a class, 0 to 1.
    """

    average_degree: float = 10.0
    homophily: float = 0.8

    def task(self, content: None) -> Task:
        n, classes, degree, homophily = self.num_nodes, self.num_classes, self.average_degree, self.homophily
        if classes > n or not 0 <= homophily <= 1 or degree < 0:
            expected = "num_classes ≤ num_nodes, homophily in [0, 1] and average_degree ≥ 0"
            got = f"{classes} classes, {n} nodes, homophily {homophily}, average_degree {degree}"
            raise UserError(f"sbm: expected {expected}, got {got}")
        rng = np.random.default_rng(self.seed)
        sizes = n // classes + (np.arange(classes) < n % classes)
        pairs = block_edges(sizes, average_degree=degree, homophily=homophily, rng=rng)
        # Blocks lie one after the other so far; a random renaming hides the class from the order of nodes.
        rename = rng.permutation(n)
        y = torch.from_numpy(np.repeat(np.arange(classes), sizes)[rename.argsort()])
        edge_index = undirected(rename[pairs], n, self.self_loops)
        said = f"stochastic block model, homophily {homophily:g}, average degree {degree:g}"
        return self.generated(said, self.draw_features(y, rng), y, edge_index, classes)


@dataclass(frozen=True, kw_only=True)
class RandomGraph(GaussianClasses):
    """A graph of exactly `num_edges` distinct undirected edges, for measuring cost at any size.

    Args:
        num_edges: Undirected, no loops; twice as many directed ones are listed.
        num_features: Columns of x, independent of the graph.
        num_classes: Drawn uniformly for every node.
    """

    num_nodes: int = 10_000
    num_edges: int = 100_000
    num_features: int = 64
    num_classes: int = 2
    signal: float = 0.5
    self_loops: bool = False
    fractions: Sequence[float] = (0.5, 0.25, 0.25)

    def task(self, content: None) -> Task:
        rng = np.random.default_rng(self.seed)
        pairs = distinct_edges(self.num_nodes, self.num_edges, rng=rng)
        edge_index = undirected(pairs, self.num_nodes, self.self_loops)
        y = torch.from_numpy(rng.integers(self.num_classes, size=self.num_nodes))
        said = f"{self.num_nodes:,} nodes, {self.num_edges:,} undirected edges"
        return self.generated(said, self.draw_features(y, rng), y, edge_index, self.num_classes)


@dataclass(frozen=True, kw_only=True)
class TwoMoons(Generator):
    """Two interleaved half circles in the plane.

    (cos θ, sin θ) for class 0 and (1 - cos θ, ½ - sin θ) for class 1, θ uniform on [0, π], plus Gaussian noise.

    Args:
        num_nodes: Number of points, half of them in each moon.
        noise: Standard deviation.
    """

    num_nodes: int = 500
    noise: float = 0.1
    stratify = True

    def task(self, content: None) -> Task:
        rng = np.random.default_rng(self.seed)
        y = rng.permutation(np.arange(self.num_nodes) % 2)
        theta = rng.uniform(0, np.pi, self.num_nodes)
        sign = 1 - 2 * y
        points = np.stack([y + sign * np.cos(theta), 0.5 * y + sign * np.sin(theta)], axis=1)
        points += self.noise * rng.standard_normal(points.shape)
        x = torch.from_numpy(points.astype(np.float32))
        return self.generated(f"two moons, noise {self.noise:g}, no graph", x, torch.from_numpy(y), None, 2)


@dataclass(frozen=True, kw_only=True)
class Heat(Generator):
    """Features x⁰ at time 0, targets x(t) = e^{-tL} x⁰: with L = I - D⁻¹A, heat flows as ∂x/∂t = -L x.

    The graph is a square grid, not wrapped. A model that diffuses over it must be able to reproduce the targets.

    Args:
        num_nodes: Number of nodes, a square number.
        num_features: Columns of x⁰, standard normal, each diffused by itself.
        time: How long heat flows.
    """

    num_nodes: int = 400
    num_features: int = 1
    time: float = 1.0
    fractions: Sequence[float] = (0.5, 0.25, 0.25)

    def task(self, content: None) -> Task:
        if not np.isfinite(self.time) or self.time < 0:
            raise UserError(f"time: expected a finite number ≥ 0, got {self.time}")
        n, rng = self.num_nodes, np.random.default_rng(self.seed)
        side = round(n**0.5)
        if side * side != n or side < 2:
            raise UserError(f"num_nodes: a grid needs a square number from 4 on, got {n}; try {max(side, 2) ** 2}")
        place = np.arange(n).reshape(side, side)
        neighbours = ((place[:, :-1], place[:, 1:]), (place[:-1], place[1:]))
        pairs = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in neighbours], axis=1)
        edge_index = undirected(pairs, n, self_loops=False)
        x = torch.from_numpy(rng.standard_normal((n, self.num_features))).float()
        # The flow starts from x as the task holds it, so that the answer is exact in single precision too.
        y = flow(edge_index, x, time=self.time).float()
        said = f"heat on a grid for time {self.time:g}, random-walk Laplacian, exact"
        return self.generated(said, x, y, edge_index, self.num_features)


def flow(edge_index: Tensor, x: Tensor, *, time: float) -> Tensor:
    """e^{-tL} x in double precision; every node must have a neighbour."""
    sources, targets = edge_index.numpy(force=True)
    adjacency = sparse.csr_array((np.ones(sources.size), (targets, sources)), shape=(x.shape[0], x.shape[0]))
    mean = sparse.diags_array(1 / adjacency.sum(axis=1)) @ adjacency
    laplacian = sparse.csr_array(sparse.diags_array(np.ones(x.shape[0])) - mean)
    return torch.from_numpy(np.asarray(expm_multiply(-time * laplacian, x.double().numpy(force=True))))
