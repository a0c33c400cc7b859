"""Nearest fitted rows of any row: the graph that an estimator makes for itself, and its continuation to new rows.

Row i receives from its k nearest fitted rows, each with weight 1/k. A fitted row is its own first neighbour, so the
rule is the same for a fitted row and for a new one with the same features, and both get the same answer. All in-degrees
are k, hence the normalised weight a_ij / √(d_i d_j) is 1/k too.

Which rows are nearest must not depend on how many are searched at once. Dense rows: a matrix product proposes k + 16
candidates, their distances are summed again, difference by difference, and ties go to the smaller index; a row whose
candidates might not suffice is compared with all rows. Sparse rows: the cosine from the product of a sparse matrix with
a dense one, which sums every pair in the order of the fitted row's entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

Array = np.ndarray[Any, Any]

SPARE = 16  # candidates beyond k
PAIRS_AT_ONCE = 1 << 23
NUMBERS_AT_ONCE = 1 << 23


class RowSearch(nn.Module):
    """Search for k neighbours among fitted dense rows ``points [n, F]``, scaled."""

    def __init__(self, points: Tensor, k: int) -> None:
        super().__init__()
        self.register_buffer("points", points.float())
        self.points: Tensor
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """``[M, k]`` indices of the nearest fitted rows of scaled features ``[M, F]``, nearest first."""
        x = x.float()  # as the points are kept, so that a fitted row is at distance zero from itself
        wanted = min(self.k + SPARE, self.points.shape[0])
        if torch.compiler.is_exporting():
            return self._refined(x, self._rough(x).topk(wanted, largest=False).indices)[0]
        points = self.points.shape[0]
        at_once = max(1, min(PAIRS_AT_ONCE // points, NUMBERS_AT_ONCE // max(1, wanted * x.shape[1])))
        return torch.cat([self._nearest(part, wanted) for part in x.split(at_once)]) if x.shape[0] else x.new_empty(0)

    def _rough(self, x: Tensor) -> Tensor:
        """½‖a - b‖² less ½‖a‖², in double precision."""
        points = self.points.double()
        return torch.addmm(points.square().sum(1) / 2, x.double(), points.T, alpha=-1)

    def _refined(self, x: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The k nearest among ``candidates [M, m]``, by distances that depend on the two rows alone."""
        candidates = candidates.sort(1).values
        squares = (x.unsqueeze(1).double() - self.points[candidates].double()).square().sum(-1)
        near, order = squares.sort(dim=1, stable=True)
        return candidates.gather(1, order[:, : self.k]), near[:, : self.k]

    def _nearest(self, x: Tensor, wanted: int) -> Tensor:
        rough = self._rough(x)
        values, candidates = rough.topk(wanted, largest=False)
        found, near = self._refined(x, candidates)
        if wanted == self.points.shape[0]:
            return found
        # Rounding of the product: rows that were not proposed lie beyond this, unless all rows are compared.
        size = x.double().norm(dim=1) + self.points.double().norm(dim=1).max()
        slack = (self.points.shape[1] + 8) * torch.finfo(torch.float64).eps * size.square()
        beyond = 2 * values[:, -1] + x.double().square().sum(1)
        all_rows = torch.arange(self.points.shape[0], device=x.device)
        for row in (near[:, -1] >= beyond - slack).nonzero().flatten().tolist():
            found[row] = self._refined(x[row : row + 1], all_rows.unsqueeze(0))[0][0]
        return found


class SparseRowSearch(nn.Module):
    """Search among fitted sparse rows, scipy CSR, by their cosine."""

    def __init__(self, points: Any, k: int) -> None:
        super().__init__()
        rows = sparse.csr_array(points)
        self.shape, self.k = rows.shape, k
        for name in ("data", "indices", "indptr"):
            self.register_buffer(name, torch.from_numpy(np.array(getattr(rows, name))))
        self._rows: Any = None

    @property
    def points(self) -> Any:
        """The fitted rows, scipy CSR."""
        parts = tuple(getattr(self, name).numpy() for name in ("data", "indices", "indptr"))
        return sparse.csr_array(parts, shape=self.shape)

    def forward(self, x: Any) -> Tensor:
        """``[M, k]`` indices of the nearest fitted rows, nearest first."""
        if self._rows is None:
            self._rows = _unit(self.points)
        rows = _unit(sparse.csr_array(x))
        size = max(1, min(PAIRS_AT_ONCE // self.shape[0], NUMBERS_AT_ONCE // max(1, self.shape[1])))
        found = [self._nearest(rows[start : start + size]) for start in range(0, rows.shape[0], size)]
        return torch.from_numpy(np.concatenate(found) if found else np.empty((0, self.k), dtype=np.int64))

    def _nearest(self, rows: Any) -> Array:
        distance = -(self._rows @ rows.T.toarray()).T
        last = np.partition(distance, self.k - 1, axis=1)[:, self.k - 1 : self.k]
        found = np.empty((len(distance), self.k), dtype=np.int64)
        for i, near in enumerate(distance <= last):
            candidates = np.flatnonzero(near)
            found[i] = candidates[np.argsort(distance[i, candidates], kind="stable")[: self.k]]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}


def _unit(x: Any) -> Any:
    """Rows of length one; empty rows stay empty."""
    row = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    # bincount adds in the order of the entries: equal rows have equal norms, to the bit.
    norm = np.sqrt(np.bincount(row, weights=x.data**2, minlength=x.shape[0]))
    return sparse.csr_array((x.data / np.where(norm > 0, norm, 1.0)[row], x.indices, x.indptr), shape=x.shape)
