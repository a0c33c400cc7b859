"""Tasks made from a seed: nothing to download, of any size, and with answers that are known.

**Heat.** With the Laplacian L of a graph and a start x⁰, heat flows as ∂x/∂t = -L x, so that x(t) = e^{-tL} x⁰. A model
that diffuses over the observed graph must be able to reproduce it; k Euler steps of size t/k give (I - (t/k) L)^k x⁰.

**Random edges** are drawn as numbers: edge {i, j}, i < j, has the code i · N + j. Codes sort and compare as one array
of int64, which keeps thirty million of them within seconds and a few hundred megabytes.

Equal options give equal tasks on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from difformer.data.datasets.common import Reader
from difformer.data.edges import undirected
from difformer.data.knn import knn_graph
from difformer.data.split import Split, labels_per_class_split, random_split
from difformer.data.task import Problem, Task
from difformer.errors import UserError

Codes = NDArray[np.int64]

MOST_PAIRS_TO_PERMUTE = 20_000_000
LAPLACIANS = ("random-walk", "symmetric", "combinatorial")


def distinct_edges(num_nodes: int, num_edges: int, *, skew: float = 0.0, rng: np.random.Generator) -> Codes:
    """Exactly `num_edges` distinct edges ``[2, E]`` between `num_nodes` nodes, no loops, sorted.

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
        # The k-th pair in the order {0, 1}, {0, 2}, …, {1, 2}, …; node i is the lower end of N - 1 - i pairs.
        kth = np.sort(rng.choice(possible, num_edges, replace=False))
        row_start = np.concatenate([[0], np.cumsum(np.arange(num_nodes - 1, 0, -1))])
        low = np.searchsorted(row_start, kth, side="right") - 1
        return np.stack([low, kth - row_start[low] + low + 1])
    ranked = rng.permutation(num_nodes) if skew else None

    def draw(lacking: int) -> Codes:
        count = lacking + lacking // 50 + 16
        ends = []
        for _ in range(2):
            if ranked is None:
                ends.append(rng.integers(num_nodes, size=count))
            else:
                rank = (num_nodes * rng.random(count) ** (1 / (1 - skew))).astype(np.int64)
                ends.append(ranked[np.minimum(rank, num_nodes - 1)])
        low, high = np.minimum(*ends), np.maximum(*ends)
        codes: Codes = (low * num_nodes + high)[low != high]
        return codes

    codes = _distinct(num_edges, draw, rng)
    if codes.size < num_edges:
        raise UserError(
            f"skew: {skew} with {num_edges} edges on {num_nodes} nodes fills the hubs; ask for fewer or less"
        )
    return np.stack(np.divmod(codes, num_nodes)) if codes.size else np.empty((2, 0), dtype=np.int64)


def _distinct(count: int, draw: Callable[[int], Codes], rng: np.random.Generator) -> Codes:
    """`count` different numbers, sorted; `draw` gives at least as many as requested, some of them equal."""
    found = np.empty(0, dtype=np.int64)
    for _ in range(200):
        if found.size == count:
            break
        found = np.unique(np.concatenate([found, draw(count - found.size)]))
        if found.size > count:  # the surplus is dropped at random: cutting the end would favour low numbers
            found = np.delete(found, rng.choice(found.size, found.size - count, replace=False))
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
    wanted = average_degree * sum(blocks) / 2
    chance = []
    for edges, pairs, where in ((homophily, inside, "inside"), (1 - homophily, across, "across")):
        if edges * wanted > pairs:
            raise UserError(
                f"average_degree, homophily: {edges * wanted:.0f} edges expected {where} classes, but there are "
                f"{pairs} pairs"
            )
        chance.append(edges * wanted / pairs if pairs else 0.0)
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

    def load(self) -> Task:
        for option in ("num_nodes", "num_classes", "num_features"):
            if (size := getattr(self, option, 1)) < 1:
                raise UserError(f"{option}: expected at least 1, got {size}")
        return super().load()

    def split(self, y: Tensor, seed: int) -> Split:
        return random_split(y, fractions=self.fractions, seed=seed)

    def generated(self, said: str, x: Tensor, y: Tensor, edge_index: Tensor | None, num_outputs: int) -> Task:
        splits = tuple(self.split(y, seed) for seed in range(self.num_splits))
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
            raise UserError(
                f"sbm: expected num_classes ≤ num_nodes, homophily in [0, 1] and average_degree ≥ 0, "
                f"got {classes} classes, {n} nodes, homophily {homophily}, average_degree {degree}"
            )
        rng = np.random.default_rng(self.seed)
        sizes = np.full(classes, n // classes)
        sizes[: n % classes] += 1
        pairs = block_edges(sizes, average_degree=degree, homophily=homophily, rng=rng)
        # Blocks lie one after the other so far; a random renaming hides the class from the order of nodes.
        rename = rng.permutation(n)
        y = torch.empty(n, dtype=torch.long)
        y[torch.from_numpy(rename)] = torch.from_numpy(np.repeat(np.arange(classes), sizes))
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
        skew: 0 draws both ends uniformly; s in (0, 1) draws the node of rank r with probability ∝ r^-s, which gives
            hubs as in social networks.
    """

    num_nodes: int = 10_000
    num_edges: int = 100_000
    num_features: int = 64
    num_classes: int = 2
    signal: float = 0.5
    skew: float = 0.0
    self_loops: bool = False
    fractions: Sequence[float] = (0.5, 0.25, 0.25)

    def task(self, content: None) -> Task:
        rng = np.random.default_rng(self.seed)
        pairs = distinct_edges(self.num_nodes, self.num_edges, skew=self.skew, rng=rng)
        edge_index = undirected(pairs, self.num_nodes, self.self_loops)
        y = torch.from_numpy(rng.integers(self.num_classes, size=self.num_nodes))
        skewed = f", skew {self.skew:g}" if self.skew else ""
        said = f"{self.num_nodes:,} nodes, {self.num_edges:,} undirected edges{skewed}"
        return self.generated(said, self.draw_features(y, rng), y, edge_index, self.num_classes)


@dataclass(frozen=True, kw_only=True)
class TwoMoons(Generator):
    """Two interleaved half circles in the plane.

    (cos θ, sin θ) for class 0 and (1 - cos θ, ½ - sin θ) for class 1, θ uniform on [0, π], plus Gaussian noise.

    Args:
        num_nodes: Number of points, half of them in each moon.
        noise: Standard deviation.
        k: Join every point with its k nearest ones (both directions listed); None leaves the task without a graph.
        per_class: Training labels per class, a quarter of the others valid, the rest test; replaces `fractions`.
    """

    num_nodes: int = 500
    noise: float = 0.1
    k: int | None = None
    per_class: int | None = None

    def split(self, y: Tensor, seed: int) -> Split:
        if self.per_class is None:
            return random_split(y, fractions=self.fractions, seed=seed, stratify=True)
        valid = (self.num_nodes - 2 * self.per_class) // 4
        return labels_per_class_split(y, per_class=self.per_class, num_valid=valid, seed=seed)

    def task(self, content: None) -> Task:
        rng = np.random.default_rng(self.seed)
        y = rng.permutation(np.arange(self.num_nodes) % 2)
        theta = rng.uniform(0, np.pi, self.num_nodes)
        sign = 1 - 2 * y
        points = np.stack([y + sign * np.cos(theta), 0.5 * y + sign * np.sin(theta)], axis=1)
        points += self.noise * rng.standard_normal(points.shape)
        x = torch.from_numpy(points.astype(np.float32))
        edge_index = None if self.k is None else knn_graph(x, self.k, metric="euclidean", symmetric=True)
        graph = "no graph" if self.k is None else f"{self.k} nearest neighbours"
        return self.generated(f"two moons, noise {self.noise:g}, {graph}", x, torch.from_numpy(y), edge_index, 2)


@dataclass(frozen=True, kw_only=True)
class Heat(Generator):
    """Features x⁰ at time 0, targets x(t): regression whose exact answer is e^{-tL} x⁰.

    Args:
        num_nodes: Number of nodes; a square number for ``"grid"``.
        graph: ``"ring"``, square ``"grid"`` without wrapping, or ``"random"``.
        average_degree: Of ``"random"`` only.
        num_features: Columns of x⁰, standard normal, each diffused by itself.
        time: How long heat flows.
        steps: Number of Euler steps instead of the exact flow.
        laplacian: ``"random-walk"`` I - D⁻¹A, ``"symmetric"`` I - D^{-1/2} A D^{-1/2}, or ``"combinatorial"`` D - A.
        precision: Floats of x and y, ``"single"`` or ``"double"``.
    """

    num_nodes: int = 400
    graph: str = "grid"
    average_degree: float = 4.0
    num_features: int = 1
    time: float = 1.0
    steps: int | None = None
    laplacian: str = "random-walk"
    precision: str = "single"
    fractions: Sequence[float] = (0.5, 0.25, 0.25)
    choices = (
        ("graph", ("ring", "grid", "random")),
        ("laplacian", LAPLACIANS),
        ("precision", ("single", "double")),
    )

    def task(self, content: None) -> Task:
        if not np.isfinite(self.time) or self.time < 0:
            raise UserError(f"time: expected a finite number ≥ 0, got {self.time}")
        n, rng = self.num_nodes, np.random.default_rng(self.seed)
        if self.graph == "ring":
            if n < 3:
                raise UserError(f"num_nodes: a ring needs at least 3, got {n}")
            pairs = np.stack([np.arange(n), (np.arange(n) + 1) % n])
        elif self.graph == "grid":
            side = round(n**0.5)
            if side * side != n or side < 2:
                raise UserError(f"num_nodes: a grid needs a square number from 4 on, got {n}; try {max(side, 2) ** 2}")
            place = np.arange(n).reshape(side, side)
            across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
            pairs = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in (across, down)], axis=1)
        else:
            pairs = distinct_edges(n, round(self.average_degree * n / 2), rng=rng)
        edge_index = undirected(pairs, n, self_loops=False)
        dtype = torch.float64 if self.precision == "double" else torch.float32
        x = torch.from_numpy(rng.standard_normal((n, self.num_features))).to(dtype)
        # The flow starts from x as the task holds it, so that the answer is exact in single precision too.
        y = flow(edge_index, x.double(), time=self.time, steps=self.steps, laplacian=self.laplacian).to(dtype)
        how = "exact" if self.steps is None else f"{self.steps} Euler steps"
        said = f"heat on a {self.graph} for time {self.time:g}, {self.laplacian} Laplacian, {how}"
        return self.generated(said, x, y, edge_index, self.num_features)


def flow(
    edge_index: Tensor, x: Tensor, *, time: float, steps: int | None = None, laplacian: str = "random-walk"
) -> Tensor:
    """e^{-tL} x, or (I - (t/k) L)^k x with ``steps=k``, in double precision."""
    operator = _laplacian(edge_index.numpy(force=True), x.shape[0], laplacian)
    state: NDArray[np.float64] = x.double().numpy(force=True)
    if steps is None:
        return torch.from_numpy(np.asarray(expm_multiply(-time * operator, state)))
    if steps < 1:
        raise UserError(f"steps: expected at least 1, or None for the exact flow; got {steps}")
    for _ in range(steps):
        state = state - (time / steps) * (operator @ state)
    return torch.from_numpy(state)


def _laplacian(edge_index: NDArray[np.int64], num_nodes: int, kind: str) -> Any:
    ones = np.ones(edge_index.shape[1])
    adjacency = sparse.csr_array((ones, (edge_index[1], edge_index[0])), shape=(num_nodes, num_nodes))
    degree = adjacency.sum(axis=1)
    if kind == "combinatorial":
        return sparse.diags_array(degree) - adjacency
    # A node without neighbours keeps its heat: its row of L is zero.
    alive = (degree > 0).astype(np.float64)
    power = np.zeros(num_nodes)
    np.power(degree, -1.0 if kind == "random-walk" else -0.5, out=power, where=degree > 0)
    scaled = sparse.diags_array(power) @ adjacency
    if kind == "symmetric":
        scaled = scaled @ sparse.diags_array(power)
    return sparse.csr_array(sparse.diags_array(alive) - scaled)
