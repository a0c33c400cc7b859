"""Tasks made from a seed: nothing to download, of any size, and with answers that are known.

**Heat.** With the Laplacian L of a graph and a start x⁰, heat flows as ∂x/∂t = -L x, so that x(t) = e^{-tL} x⁰. A model
that diffuses over the observed graph must be able to reproduce it; k Euler steps of size t/k give (I - (t/k) L)^k x⁰.

**Random edges** are drawn as numbers: edge {i, j}, i < j, has the code i · N + j. Codes sort and compare as one array
of int64, which keeps thirty million of them within seconds and a few hundred megabytes.

Equal options give equal tasks on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from difformer.data.edges import undirected
from difformer.data.knn import knn_graph
from difformer.data.split import Split, labels_per_class_split, random_split
from difformer.data.task import Task
from difformer.errors import UserError

Codes = NDArray[np.int64]

MOST_PAIRS_TO_PERMUTE = 20_000_000
LaplacianKind = Literal["random-walk", "symmetric", "combinatorial"]


def distinct_edges(num_nodes: int, num_edges: int, *, skew: float = 0.0, rng: Generator) -> Codes:
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


def _distinct(count: int, draw: Callable[[int], Codes], rng: Generator) -> Codes:
    """`count` different numbers, sorted; `draw` gives at least as many as requested, some of them equal."""
    found = np.empty(0, dtype=np.int64)
    for _ in range(200):
        if found.size == count:
            break
        found = np.unique(np.concatenate([found, draw(count - found.size)]))
        if found.size > count:  # the surplus is dropped at random: cutting the end would favour low numbers
            found = np.delete(found, rng.choice(found.size, found.size - count, replace=False))
    return found


def _distinct_below(limit: int, count: int, rng: Generator) -> Codes:
    if limit <= MOST_PAIRS_TO_PERMUTE and 4 * count > limit:
        return rng.choice(limit, count, replace=False)
    return _distinct(count, lambda lacking: rng.integers(limit, size=lacking + 16), rng)


def block_edges(sizes: NDArray[np.int64], *, average_degree: float, homophily: float, rng: Generator) -> Codes:
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


def sbm(
    *,
    num_nodes: int = 1000,
    num_classes: int = 4,
    average_degree: float = 10.0,
    homophily: float = 0.8,
    num_features: int = 16,
    signal: float = 1.0,
    self_loops: bool = True,
    fractions: Sequence[float] = (0.1, 0.1, 0.8),
    num_splits: int = 1,
    seed: int = 0,
) -> Task:
    """A stochastic block model: classes of equal size, edges mostly inside them, Gaussian features.

    Every pair of nodes is joined independently, with probability p inside a class and q across, chosen such that the
    expected degree is `average_degree` and the expected share of edges inside classes is `homophily`. Features are
    x_i = signal · m_{y_i} + ε_i with unit class means m and standard normal noise ε.

    Args:
        num_nodes: Number of nodes.
        num_classes: Number of classes, one block each.
        average_degree: Expected neighbours per node, itself not counted.
        homophily: Expected share of edges within a class, 0 to 1.
        num_features: Columns of x.
        signal: Length of the class means; 0 leaves only the graph to learn from.
        self_loops: Add one to every node.
        fractions: Shares of train, valid and test.
        num_splits: Number of splits, with seeds 0, 1, …
        seed: Seed of everything else.
    """
    _check_sizes(num_nodes=num_nodes, num_classes=num_classes, num_features=num_features)
    if num_classes > num_nodes or not 0 <= homophily <= 1 or average_degree < 0:
        raise UserError(
            f"sbm: expected num_classes ≤ num_nodes, homophily in [0, 1] and average_degree ≥ 0, "
            f"got {num_classes} classes, {num_nodes} nodes, homophily {homophily}, average_degree {average_degree}"
        )
    rng = np.random.default_rng(seed)
    sizes = np.full(num_classes, num_nodes // num_classes)
    sizes[: num_nodes % num_classes] += 1
    pairs = block_edges(sizes, average_degree=average_degree, homophily=homophily, rng=rng)
    y = torch.from_numpy(np.repeat(np.arange(num_classes), sizes))
    # Blocks lie one after the other so far; a random renaming hides the class from the order of nodes.
    rename = rng.permutation(num_nodes)
    shuffled = torch.empty_like(y)
    shuffled[torch.from_numpy(rename)] = y
    said = f"stochastic block model, homophily {homophily:g}, average degree {average_degree:g}"
    edge_index = undirected(rename[pairs], num_nodes, self_loops=self_loops)
    x = _gaussian(shuffled, num_classes, num_features, signal, rng)
    splits = (random_split(shuffled, fractions=fractions, seed=s) for s in range(num_splits))
    return _task("sbm", said, x, shuffled, num_classes, edge_index, splits)


def random_graph(
    *,
    num_nodes: int = 10_000,
    num_edges: int = 100_000,
    num_features: int = 64,
    num_classes: int = 2,
    signal: float = 0.5,
    skew: float = 0.0,
    self_loops: bool = False,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    num_splits: int = 1,
    seed: int = 0,
) -> Task:
    """A graph of exactly `num_edges` distinct undirected edges, for measuring cost at any size.

    Args:
        num_nodes: Number of nodes.
        num_edges: Undirected, no loops; twice as many directed ones are listed.
        num_features: Columns of x; classes are Gaussian as in `sbm`, and independent of the graph.
        num_classes: Drawn uniformly, node by node.
        signal: Length of the class means.
        skew: 0 draws both ends uniformly; s in (0, 1) draws the node of rank r with probability ∝ r^-s, which gives
            hubs as social networks have them.
        self_loops: Add one to every node.
        fractions: Shares of train, valid and test.
        num_splits: Number of splits, with seeds 0, 1, …
        seed: Seed of everything else.
    """
    _check_sizes(num_nodes=num_nodes, num_classes=num_classes, num_features=num_features)
    rng = np.random.default_rng(seed)
    edge_index = undirected(distinct_edges(num_nodes, num_edges, skew=skew, rng=rng), num_nodes, self_loops=self_loops)
    y = torch.from_numpy(rng.integers(num_classes, size=num_nodes))
    said = f"{num_nodes:,} nodes, {num_edges:,} undirected edges" + (f", skew {skew:g}" if skew else "")
    x = _gaussian(y, num_classes, num_features, signal, rng)
    splits = (random_split(y, fractions=fractions, seed=s) for s in range(num_splits))
    return _task("random-graph", said, x, y, num_classes, edge_index, splits)


def two_moons(
    *,
    num_nodes: int = 500,
    noise: float = 0.1,
    k: int | None = None,
    per_class: int | None = None,
    fractions: Sequence[float] = (0.1, 0.1, 0.8),
    num_splits: int = 1,
    seed: int = 0,
) -> Task:
    """Two interleaved half circles in the plane.

    (cos θ, sin θ) for class 0 and (1 - cos θ, ½ - sin θ) for class 1, θ uniform on [0, π], plus Gaussian noise.

    Args:
        num_nodes: Half of them in each moon.
        noise: Standard deviation.
        k: Join every point with its k nearest ones (both directions listed); None leaves the task without a graph.
        per_class: Training labels per class, a quarter of the others valid, the rest test; replaces `fractions`.
        fractions: Shares of train, valid and test.
        num_splits: Number of splits, with seeds 0, 1, …
        seed: Seed of everything else.
    """
    _check_sizes(num_nodes=num_nodes)
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(num_nodes) % 2)
    theta = rng.uniform(0, np.pi, num_nodes)
    sign = 1 - 2 * y
    x = np.stack([y + sign * np.cos(theta), 0.5 * y + sign * np.sin(theta)], axis=1)
    x += noise * rng.standard_normal(x.shape)
    features, target = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    edge_index = None if k is None else knn_graph(features, k, metric="euclidean", symmetric=True)

    def split(s: int) -> Split:
        if per_class is None:
            return random_split(target, fractions=fractions, seed=s, stratify=True)
        valid = (num_nodes - 2 * per_class) // 4
        return labels_per_class_split(target, per_class=per_class, num_valid=valid, seed=s)

    said = f"two moons, noise {noise:g}, " + ("no graph" if k is None else f"{k} nearest neighbours")
    return _task("two-moons", said, features, target, 2, edge_index, map(split, range(num_splits)))


def _gaussian(y: Tensor, num_classes: int, num_features: int, signal: float, rng: Generator) -> Tensor:
    """Gaussian features around the means of classes."""
    means = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((y.numel(), num_features), dtype=np.float32)
    for label in range(num_classes):  # class by class: a gather of all means would take as much memory as x again
        x[y.numpy() == label] += means[label]
    return torch.from_numpy(x)


def _task(
    name: str, said: str, x: Tensor, y: Tensor, outputs: int, edges: Tensor | None, splits: Iterable[Split]
) -> Task:
    """Regression if `y` holds floats, otherwise classification."""
    if y.is_floating_point():
        return Task(name, "nodes", "regression", "mse", said, x, y, tuple(splits), outputs, edges)
    return Task(name, "nodes", "multiclass", "accuracy", said, x, y, tuple(splits), outputs, edges)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name}: expected at least 1, got {size}")


def heat(
    *,
    num_nodes: int = 400,
    graph: Literal["ring", "grid", "random"] = "grid",
    average_degree: float = 4.0,
    num_features: int = 1,
    time: float = 1.0,
    steps: int | None = None,
    laplacian: LaplacianKind = "random-walk",
    precision: Literal["single", "double"] = "single",
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    num_splits: int = 1,
    seed: int = 0,
) -> Task:
    """Features x⁰ at time 0, targets x(t): regression whose exact answer is e^{-tL} x⁰.

    Args:
        num_nodes: A square number for ``"grid"``.
        graph: ``"ring"``, square ``"grid"`` without wrapping, or ``"random"``.
        average_degree: Of ``"random"`` only.
        num_features: Columns of x⁰, standard normal, each diffused by itself.
        time: How long heat flows.
        steps: Number of Euler steps instead of the exact flow.
        laplacian: I - D⁻¹A, I - D^{-1/2} A D^{-1/2}, or D - A.
        precision: Floats of x and y.
        fractions: Shares of train, valid and test.
        num_splits: Number of splits, with seeds 0, 1, …
        seed: Seed of everything else.
    """
    if precision not in ("single", "double"):
        raise UserError(f"precision: expected 'single' or 'double', got {precision!r}")
    if not np.isfinite(time) or time < 0:
        raise UserError(f"time: expected a finite number ≥ 0, got {time}")
    rng = np.random.default_rng(seed)
    node = np.arange(num_nodes)
    if graph == "ring":
        if num_nodes < 3:
            raise UserError(f"num_nodes: a ring needs at least 3, got {num_nodes}")
        pairs = np.stack([node, (node + 1) % num_nodes])
    elif graph == "grid":
        side = round(num_nodes**0.5)
        if side * side != num_nodes or side < 2:
            near = max(side, 2) ** 2
            raise UserError(f"num_nodes: a grid needs a square number from 4 on, got {num_nodes}; try {near}")
        place = node.reshape(side, side)
        across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        pairs = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in (across, down)], axis=1)
    elif graph == "random":
        pairs = distinct_edges(num_nodes, round(average_degree * num_nodes / 2), rng=rng)
    else:
        raise UserError(f"graph: expected 'ring', 'grid' or 'random', got {graph!r}")
    edge_index = undirected(pairs, num_nodes, self_loops=False)
    start = rng.standard_normal((num_nodes, num_features))
    dtype = torch.float64 if precision == "double" else torch.float32
    x = torch.from_numpy(start).to(dtype)
    # The flow starts from x as the task holds it, so that the answer is exact in single precision too.
    y = flow(edge_index, x.double(), time=time, steps=steps, laplacian=laplacian).to(dtype)
    how = "exact" if steps is None else f"{steps} Euler steps"
    said = f"heat on a {graph} for time {time:g}, {laplacian} Laplacian, {how}"
    splits = (random_split(num_nodes, fractions=fractions, seed=s) for s in range(num_splits))
    return _task("heat", said, x, y, num_features, edge_index, splits)


def flow(
    edge_index: Tensor, x: Tensor, *, time: float, steps: int | None = None, laplacian: LaplacianKind = "random-walk"
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


def _laplacian(edge_index: NDArray[np.int64], num_nodes: int, kind: LaplacianKind) -> Any:
    ones = np.ones(edge_index.shape[1])
    adjacency = sparse.csr_array((ones, (edge_index[1], edge_index[0])), shape=(num_nodes, num_nodes))
    degree = adjacency.sum(axis=1)
    if kind == "combinatorial":
        return sparse.diags_array(degree) - adjacency
    if kind not in ("random-walk", "symmetric"):
        raise UserError(f"laplacian: expected 'random-walk', 'symmetric' or 'combinatorial', got {kind!r}")
    # A node without neighbours keeps its heat: its row of L is zero.
    alive = (degree > 0).astype(np.float64)
    power = np.zeros(num_nodes)
    np.power(degree, -1.0 if kind == "random-walk" else -0.5, out=power, where=degree > 0)
    scaled = sparse.diags_array(power) @ adjacency
    if kind == "symmetric":
        scaled = scaled @ sparse.diags_array(power)
    return sparse.csr_array(sparse.diags_array(alive) - scaled)
