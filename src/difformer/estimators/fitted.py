"""Everything that a fitted estimator needs for predictions, in one module: scaling, neighbours, members.

Rows come in as a user's table has them and leave as states or outputs. Nothing of the training data is kept but what
predictions need: the sums of each layer; with a neighbour graph the scaled features to search among, with any graph the
values of each layer; with a given graph its edges, and a fingerprint of every row by which a fitted row is recognised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from difformer.data.sparse import from_scipy
from difformer.estimators.context import Edges, Member, Part
from difformer.estimators.digest import find_rows, row_digests
from difformer.estimators.neighbours import Neighbours, SparseNeighbours
from difformer.estimators.scaling import Scaling
from difformer.estimators.threads import threads_for
from difformer.sparse import SparseMatrix

ROWS_AT_ONCE = 8192
NUMBERS_AT_ONCE = 1 << 24
SPARSE_BELOW = 0.1  # share of entries that are not zero, below which a sparse product is the faster one

Search = Neighbours | SparseNeighbours


class GivenGraph(nn.Module):
    """Edges among the fitted rows, and how to recognise these.

    Args:
        matrix: ``[n, n]`` scipy CSR: row i holds the weights with which i receives.
        digests: ``[n, 2]`` uint64 fingerprints of the fitted rows.
        directed: Whether each row's weights are divided by their sum instead of by √(d_i d_j); a sender that receives
            nothing has d_j = 0, and its edges would be lost.
    """

    def __init__(self, matrix: Any, digests: Any, *, directed: bool = False) -> None:
        super().__init__()
        self.directed = directed
        parts = {"data": matrix.data.astype(np.float64), "indices": matrix.indices, "indptr": matrix.indptr}
        for name, part in parts.items():
            self.register_buffer(name, torch.from_numpy(np.array(part)))
        self.register_buffer("digests", torch.from_numpy(np.array(digests).view(np.int64)))
        self.register_buffer("degree", torch.from_numpy(np.asarray(matrix.sum(1), dtype=np.float64).ravel()))
        self.digests: Tensor
        self.degree: Tensor

    @property
    def matrix(self) -> Any:
        parts = tuple(getattr(self, name).numpy() for name in ("data", "indices", "indptr"))
        return sparse.csr_array(parts, shape=(self.degree.numel(),) * 2)

    def recognise(self, x: Any) -> Any:
        """``[M, n]``: for rows equal to a fitted one that row's edges, none for others.

        Of several fitted rows with equal features nobody can tell which is meant: the first is taken, with a warning.
        """
        digests = self.digests.numpy().view(np.uint64)
        found = find_rows(row_digests(x), digests)
        first = find_rows(digests, digests)
        several = np.bincount(first, minlength=len(first))[np.maximum(found, 0)] > 1
        if (several & (found >= 0)).any():
            warnings.warn(
                f"{int((several & (found >= 0)).sum())} rows have the features of more than one fitted row, and are "
                f"given the edges of the first; pass graph= to say which edges are theirs",
                UserWarning,
                stacklevel=2,
            )
        chosen = self.matrix[np.maximum(found, 0)]
        return sparse.csr_array(sparse.diags_array((found >= 0).astype(np.float64)) @ chosen)

    def edges(self, matrix: Any) -> Edges:
        """Normalised edges of rows whose weights from fitted rows are ``matrix [M, n]``."""
        coo = sparse.csr_array(matrix).tocoo()
        row, source = (torch.from_numpy(part.astype(np.int64)) for part in (coo.row, coo.col))
        weight = torch.from_numpy(coo.data.astype(np.float64))
        return Edges.normalised(row, source, weight, matrix.shape[0], None if self.directed else self.degree)


class Fitted(nn.Module):
    """Models in the context of their population; `members` are appended once they remember it.

    Args:
        scaling: Of the features.
        search: Neighbours among the fitted rows, where the estimator made its own graph.
        given: The graph that was given, where one was.
        softmax: Whether outputs are logits, to become probabilities.
        temperature: Logits are divided by it.
        output_scale: ``[2, T]`` mean and deviation of the targets of a regression.
    """

    def __init__(
        self,
        scaling: Scaling,
        *,
        search: Search | None = None,
        given: GivenGraph | None = None,
        softmax: bool = True,
        temperature: float = 1.0,
        output_scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float64))
        self.temperature: Tensor
        self.register_buffer("shift", None if scaling.shift is None else torch.from_numpy(scaling.shift))
        self.register_buffer("scale", torch.from_numpy(scaling.scale))
        self.register_buffer("output_scale", output_scale)
        self.scale: Tensor
        self.shift: Tensor | None
        self.output_scale: Tensor | None
        self.members = nn.ModuleList()  # of `Member`, filled in by whoever trained or loaded them
        self.search, self.given, self.softmax = search, given, softmax
        self.scaling = scaling

    def parts(self, x: Any, edges: Any = None, nearest: Tensor | None = None) -> Iterator[Part]:
        """Scaled features and normalised edges of rows of a table, some thousand at a time.

        Args:
            x: ``[M, F]`` features, dense or CSR.
            edges: ``[M, n]`` CSR weights from fitted rows, where the estimator was given its graph; None recognises
                fitted rows and leaves others without edges.
            nearest: ``[M, k]`` neighbours of the rows, where they have been searched already.
        """
        if self.given is not None and edges is None:
            edges = self.given.recognise(x)
        at_once = max(16, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, x.shape[1])))
        for start in range(0, x.shape[0], at_once):
            rows = slice(start, start + at_once)
            scaled = self.scaling(x[rows])
            if self.given is not None:
                yield features(scaled), self.given.edges(edges[rows])
            elif self.search is None:
                yield features(scaled), None
            else:
                index = self._nearest(scaled) if nearest is None else nearest[rows]
                yield features(scaled), Edges.nearest(index)

    def _nearest(self, scaled: Any) -> Tensor:
        if isinstance(self.search, SparseNeighbours):
            return self.search(scaled)
        assert self.search is not None
        dense = scaled.toarray() if sparse.issparse(scaled) else scaled
        found: Tensor = self.search(torch.from_numpy(np.ascontiguousarray(dense)))
        return found

    @torch.no_grad()
    def states(self, x: Any, edges: Any = None) -> np.ndarray[Any, Any]:
        """Final states ``[M, members · hidden]``."""
        with threads_for(self._numbers(x.shape[0])):
            found = [torch.cat([m.states(*part) for m in self._members()], 1) for part in self.parts(x, edges)]
            return torch.cat(found).numpy()

    @torch.no_grad()
    def outputs(self, x: Any, edges: Any = None) -> np.ndarray[Any, Any]:
        """Probabilities ``[M, C]`` or values ``[M, T]``, the mean over members."""
        with threads_for(self._numbers(x.shape[0])):
            found = [self.combine([m.states(*part) for m in self._members()]) for part in self.parts(x, edges)]
            return torch.cat(found).numpy()

    def _numbers(self, rows: int) -> int:
        """In the largest operation: rows by features, by channels, or by what is remembered of the population."""
        return rows * max(*self.widths(), *(len(kept) for kept in self.buffers() if kept.ndim))

    def widths(self) -> list[int]:
        """Length of a state of each member."""
        return [int(member.model.config["hidden_channels"]) for member in self._members()]

    def combine(self, states: list[Tensor]) -> Tensor:
        """The members' outputs, averaged, from the states of each."""
        each = [member.decode(z) for member, z in zip(self._members(), states, strict=True)]
        mean = torch.stack([(o / self.temperature).softmax(-1) for o in each] if self.softmax else each).mean(0)
        return mean if self.output_scale is None else mean * self.output_scale[1] + self.output_scale[0]

    def _members(self) -> list[Member]:
        return list(self.members)  # type: ignore[arg-type]


def features(x: Any) -> Tensor | SparseMatrix:
    """Scaled features as a layer takes them, in double precision."""
    if not sparse.issparse(x):
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
    if x.nnz > SPARSE_BELOW * x.shape[0] * x.shape[1]:
        return torch.from_numpy(x.toarray())
    return SparseMatrix.from_tensor(from_scipy(x.astype(np.float64)))
