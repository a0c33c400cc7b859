r"""Weighted cosines of all pairs of rows that are nowhere negative, without a number for any pair.

The mean over H heads of a weighted cosine is an inner product of rows, :math:`A = F F^\top` with the unit rows
:math:`w_h ⊙ v_i / ‖w_h ⊙ v_i‖` of all heads side by side in F. Where v ≥ 0 no entry is below zero and leaving out those
that are not above 0 leaves out nothing, so all that is asked of A follows from F alone:

.. math::
    A z = F (F^\top z), \qquad ⟨F F^\top, G G^\top⟩ = ‖F^\top G‖_F^2, \qquad
    \sum_{ij} A_{ij} ‖x_i - x_j‖^2 = 2 \sum_i ‖x_i‖^2 (A 1)_i - 2 ‖F^\top X‖_F^2.

Gradients agree too, if those rows that are zero in a channel do not move there: outputs of a ReLU, and features that
are not trained. `difformer.zoo.similarity` has the same with all pairs, for every other case.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from difformer.sparse import CSR, SparseMatrix
from difformer.zoo.feature_pairs import Points


class GramMatrix:
    """A = F Fᵀ.

    Args:
        factor: F, ``[N, K]``; no inner product of its rows is below zero.
    """

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor
        self._sums = factor @ factor.sum(0)

    def __matmul__(self, z: Tensor) -> Tensor:
        """``[N, c]``: A z."""
        return self.factor @ (self.factor.T @ z)

    def row_sums(self) -> Tensor:
        """``[N]``: A 1."""
        return self._sums

    @cached_property
    def squared(self) -> Tensor:
        """‖A‖_F², in float64 where there is that: differences of such numbers are asked for. No gradients."""
        return self.inner(self)

    def inner(self, other: GramMatrix) -> Tensor:
        """Σ A_ij B_ij; no gradients."""
        one, two = (matrix.factor.detach().to(_wide(matrix.factor)) for matrix in (self, other))
        return (one.T @ two).square().sum()

    def spread(self, points: Points) -> Tensor:
        """Σ A_ij ‖x_i - x_j‖²."""
        return 2 * (points.squares @ self.row_sums() - (points.x.T @ self.factor).square().sum())


class SparseGramMatrix(GramMatrix):
    """A = Σ_h D_h V diag(w_h²) Vᵀ D_h / H with sparse V, of which F has H copies: they are never made.

    Args:
        points: What is known of V.
        squares: w², ``[H, F]``.
    """

    def __init__(self, points: Points, squares: Tensor) -> None:
        assert isinstance(points.x, SparseMatrix)
        self.points, self.v, self.heads = points, points.x, squares.shape[0]
        self.squares = squares.T / self.heads  # [F, H]
        self.inverse = (squared_entries(self.v) @ squares.T).clamp_min(1e-24).rsqrt()  # [N, H], D
        self._sums = (self.inverse * (self.v @ (self.squares * (self.v.T @ self.inverse)))).sum(1)

    def __matmul__(self, z: Tensor) -> Tensor:
        # Columns of all heads side by side: one product with V and one with Vᵀ.
        inside = self.v.T @ (self.inverse.unsqueeze(2) * z.unsqueeze(1)).flatten(1)
        outside = self.v @ (self.squares.unsqueeze(2) * inside.unflatten(1, (self.heads, -1))).flatten(1)
        return (self.inverse.unsqueeze(2) * outside.unflatten(1, (self.heads, -1))).sum(1)

    def inner(self, other: GramMatrix) -> Tensor:
        with torch.no_grad():
            if other is self:
                return self._own()
            total = torch.zeros((), dtype=_wide(self.inverse), device=self.inverse.device)
            for h in range(self.heads):  # Fᵀ G, head by head
                product = self.v.T @ (self.inverse[:, h, None] * other.factor)
                total += self.squares[:, h].to(total.dtype) @ product.to(total.dtype).square().sum(1)
            return total

    def _own(self) -> Tensor:
        """Σ_{hg} Σ_{cd} w²_hc w²_gd (Σ_i D_hi D_gi v_ic v_id)²."""
        pairs = self.points.pairs
        one, two = (self.squares.index_select(0, index) for index in pairs.channels)
        total = torch.zeros((), dtype=_wide(self.inverse), device=self.inverse.device)
        for h in range(self.heads):
            products = (pairs.products @ (self.inverse[:, h, None] * self.inverse)).square()
            total += ((two * products).sum(1) * one[:, h] * pairs.times).sum(dtype=total.dtype)
        return total

    def spread(self, points: Points) -> Tensor:
        # Fᵀ X has a column for every channel of X, here that of V itself: Σ_hcd w²_hc (Σ_i D_hi v_ic v_id)².
        assert points is self.points
        pairs = points.pairs
        inside = (self.squares * (pairs.by_channel @ (pairs.products @ self.inverse).square())).sum()
        return 2 * (points.squares @ self.row_sums() - inside)


def squared_entries(v: SparseMatrix) -> SparseMatrix:
    """Every entry squared."""
    rows, columns = v.rows, v.columns
    return SparseMatrix(
        v.shape,
        CSR(rows.crow, rows.col, rows.value.square()),
        CSR(columns.crow, columns.col, columns.value.square()),
    )


def _wide(x: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return x.dtype if x.device.type == "mps" else torch.float64
