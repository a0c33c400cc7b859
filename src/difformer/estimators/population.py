r"""The population that an estimator diffuses over: distinct rows with their masses, fingerprints and scaling.

**Mass.** Rows that agree in features and target become one row whose mass m_j is the sum of their weights, which every
all-pair sum counts; rows of weight zero are left out. Rows are sorted by their fingerprints, so neither the order of a
table nor a repetition in place of a weight changes a result by a single bit. If a graph was given, rows are nodes: none
are joined, and their order stays.

**Fingerprints.** With b_ij the 64 bits of x_ij as a double and s_j a fixed number of column j,

    h_i = Σ_{j: x_ij ≠ 0} mix(b_ij ⊕ s_j)   mod 2^64,

once for each of two families of s_j: 128 bits in all, so that two different rows of a million agree with probability
10^-27. Zeros contribute nothing, so a sparse row and its dense copy have the same fingerprint.

**Scaling.** Dense columns are centred and divided by a mean of their own deviation and a common one,

    x̃_ij = (x_ij - μ_j) √(½ (1/σ_j² + 1/σ²)),   σ² = mean_j σ_j²,

all weighted by mass: right if units are arbitrary (1/σ_j), and never far from right if columns are comparable (1/σ), as
pixels are. Constant columns are only centred. Beside numbers, indicators (columns of 0 and 1) stay as they are: divided
by its deviation, a rare category would outweigh every number. Sparse features keep their zeros: all entries are divided
by one number, so that the mean square of a row becomes F, as it is for dense rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

Array = np.ndarray[Any, Any]

NUMBERS_AT_ONCE = 1 << 20
CONSTANT = 1e-12  # a deviation below this share of the column's size is rounding
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Population:
    """Distinct rows."""

    x: Any  # [n, F] float64, dense or scipy CSR
    target: Array  # [n] class numbers (-1 unknown), or [n, T] values (NaN unknown)
    mass: Array  # [n]
    place: Array  # [N] where each row of the table went, -1 for rows of weight zero

    def scaled_targets(self) -> tuple[Tensor | None, Tensor]:
        """Mean and deviation ``[2, T]`` of values, and the values scaled by them; classes stay as they are."""
        if self.target.ndim == 1:
            return None, torch.from_numpy(self.target)
        known = ~np.isnan(self.target)
        share = self.mass[:, None] * known
        share, filled = share / np.maximum(share.sum(0), TINY), np.where(known, self.target, 0.0)
        mean = (share * filled).sum(0)
        deviation = np.sqrt((share * (filled - mean) ** 2).sum(0))
        scale = np.stack([mean, np.where(deviation > 0, deviation, 1.0)])
        return torch.from_numpy(scale), torch.from_numpy(((self.target - scale[0]) / scale[1]).astype(np.float32))


def make_population(x: Any, target: Array, weight: Array | None, *, join: bool) -> Population:
    """The population of a table; `join` is False if rows are nodes of a graph, which are not joined or sorted."""
    count = x.shape[0]
    weight = np.ones(count) if weight is None else np.asarray(weight, dtype=np.float64)
    if not join:
        return Population(x, target, weight, np.arange(count))
    kept = np.flatnonzero(weight > 0)
    digest, targets = row_digests(x)[kept], np.zeros(len(kept), dtype=np.uint64)
    for column in target.reshape(count, -1)[kept].T:
        targets = mix(targets) + mix((column.astype(np.float64) + 0.0).view(np.uint64))
    # By features first: the unit in which targets are given does not change the order.
    columns = np.column_stack([digest, targets])
    _, first, group = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    place, chosen = np.full(count, -1), kept[first]
    place[kept] = group = group.ravel()
    return Population(x[chosen], target[chosen], np.bincount(group, weights=weight[kept]), place)


def mix(x: Array) -> Array:
    """A bijection of 64-bit numbers in which every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def row_digests(x: Any) -> Array:
    """``[N, 2]`` uint64 for the rows of a dense array or a scipy CSR matrix ``[N, F]``."""
    digests = np.zeros((x.shape[0], 2), dtype=np.uint64)
    columns = mix(np.arange(1, x.shape[1] + 1, dtype=np.uint64))
    numbers = [mix(columns + np.uint64(family * 0x9E3779B97F4A7C15 % 2**64)) for family in (1, 2)]
    at_once = max(1, NUMBERS_AT_ONCE // max(1, x.shape[1]))
    for start in range(0, x.shape[0], at_once):
        rows = slice(start, start + at_once)
        part = x[rows].toarray() if sparse.issparse(x) else np.asarray(x[rows])
        # Adding zero turns -0.0 into 0.0: numbers that are equal must have equal bits.
        bits, filled = (np.ascontiguousarray(part, dtype=np.float64) + 0.0).view(np.uint64), part != 0
        for family in (0, 1):
            digests[rows, family] = np.where(filled, mix(bits ^ numbers[family]), 0).sum(1, dtype=np.uint64)
    return digests


def find_rows(digests: Array, among: Array) -> Array:
    """``[M]``: for each digest, the first row of `among` with the same digest, or -1."""
    both = np.concatenate([among, digests]).view("S16").ravel()  # 16 bytes are one sortable value
    _, first, group = np.unique(both, return_index=True, return_inverse=True)
    found = first[group[len(among) :]]
    return np.where(found < len(among), found, -1)


@dataclass(frozen=True)
class RowScaling:
    """What features are shifted and divided by."""

    shift: Array | None  # [F]; None for features that keep their zeros
    scale: Array  # [F]

    @staticmethod
    def of(x: Any, mass: Array, *, standardize: bool = True) -> RowScaling:
        """The scaling of a population; the identity if `standardize` is False."""
        features, share = x.shape[1], mass / mass.sum()
        if not standardize:
            return RowScaling(None, np.ones(features))
        if sparse.issparse(x):
            square = float(share @ np.asarray(x.multiply(x).sum(1)).ravel()) / features
            return RowScaling(None, np.full(features, np.sqrt(square) if square > 0 else 1.0))
        shift = share @ x
        # Block by block, so that a large table is not copied.
        blocks = [slice(i, i + 4096) for i in range(0, x.shape[0], 4096)]
        square = sum(share[rows] @ np.square(x[rows] - shift) for rows in blocks)
        constant = np.sqrt(square) <= CONSTANT * np.maximum(np.abs(shift), TINY)
        indicator = ~constant & np.all([((x[rows] == 0) | (x[rows] == 1)).all(0) for rows in blocks], axis=0)
        indicator &= not (constant | indicator).all()  # if there are no other columns, they are scaled too
        left = constant | indicator
        own = np.where(left, 1.0, square)
        common = square[~left].mean() if not left.all() else 1.0
        shift = np.where(indicator, 0.0, shift)
        return RowScaling(shift, np.where(left, 1.0, np.sqrt(2 / (1 / own + 1 / common))))

    def tensors(self) -> dict[str, Tensor | None]:
        return {name: None if part is None else torch.from_numpy(part) for name, part in vars(self).items()}

    def __call__(self, x: Any) -> Any:
        """Scaled features, float64; dense stays dense, CSR stays CSR."""
        if sparse.issparse(x):
            if self.shift is not None:
                return self(x.toarray())  # fitted on dense rows
            return sparse.csr_array(x.multiply(1.0 / self.scale))
        return (x if self.shift is None else x - self.shift) / self.scale
