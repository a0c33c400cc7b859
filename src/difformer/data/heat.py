"""Heat on a graph: a diffusion whose answer is known exactly, for checks that need one.

With the Laplacian L of a graph and a start x⁰, heat flows as ∂x/∂t = -L x, so that x(t) = e^{-tL} x⁰. A model that
diffuses over the observed graph must be able to reproduce it; k Euler steps of size t/k give (I - (t/k) L)^k x⁰.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from difformer.data.random_edges import distinct_edges, listed_both_ways, pairs_of
from difformer.data.splitting import random_split
from difformer.data.task import Task
from difformer.errors import UserError

LaplacianKind = Literal["random-walk", "symmetric", "combinatorial"]


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
        steps: So many Euler steps instead of the exact flow.
        laplacian: I - D⁻¹A, I - D^{-1/2} A D^{-1/2}, or D - A.
        precision: Floats of x and y.
        fractions: Of train, valid and test.
        num_splits: Splits with seeds 0, 1, …
        seed: Of everything else.
    """
    if precision not in ("single", "double"):
        raise UserError(f"precision: expected 'single' or 'double', got {precision!r}")
    if not np.isfinite(time) or time < 0:
        raise UserError(f"time: expected a finite number ≥ 0, got {time}")
    rng = np.random.default_rng(seed)
    if graph == "ring":
        if num_nodes < 3:
            raise UserError(f"num_nodes: a ring needs at least 3, got {num_nodes}")
        node = np.arange(num_nodes)
        pairs = np.stack([node, (node + 1) % num_nodes])
    elif graph == "grid":
        side = round(num_nodes**0.5)
        if side * side != num_nodes or side < 2:
            raise UserError(
                f"num_nodes: a grid needs a square number from 4 on, got {num_nodes}; try {max(side, 2) ** 2}"
            )
        place = np.arange(num_nodes).reshape(side, side)
        across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        pairs = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in (across, down)], axis=1)
    elif graph == "random":
        pairs = pairs_of(distinct_edges(num_nodes, round(average_degree * num_nodes / 2), rng=rng), num_nodes)
    else:
        raise UserError(f"graph: expected 'ring', 'grid' or 'random', got {graph!r}")
    edge_index = listed_both_ways(pairs, num_nodes, self_loops=False)
    start = rng.standard_normal((num_nodes, num_features))
    dtype = torch.float64 if precision == "double" else torch.float32
    x = torch.from_numpy(start).to(dtype)
    # The flow starts from what the task holds, so that in single precision too the answer belongs to the question.
    y = flow(edge_index, x.double(), time=time, steps=steps, laplacian=laplacian).to(dtype)
    how = "exact" if steps is None else f"{steps} Euler steps"
    return Task(
        name="heat",
        kind="nodes",
        problem="regression",
        metric="mse",
        protocol=f"heat on a {graph} for time {time:g}, {laplacian} Laplacian, {how}",
        x=x,
        y=y,
        splits=tuple(random_split(num_nodes, fractions=fractions, seed=s) for s in range(num_splits)),
        num_outputs=num_features,
        edge_index=edge_index,
    )


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
