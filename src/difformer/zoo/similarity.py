r"""Learned similarity of all pairs: the mean over heads of a weighted cosine, small ones left out.

.. math::
    s_{ij} = \frac{1}{H} \sum_h \cos(w_h ⊙ v_i, \, w_h ⊙ v_j), \qquad A_{ij} = s_{ij} \, [\, s_{ij} > ε \,].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.conv import check_count
from difformer.nn.protocol import Features
from difformer.nn.unit import unit_rows
from difformer.sparse import CSR, SparseMatrix
from difformer.zoo.inputs import dense
from difformer.zoo.pair_matrix import PairMatrix


class WeightedCosine(nn.Module):
    """A of the module's formula.

    Args:
        in_channels: Length of v.
        num_heads: H.
        epsilon: ε.
    """

    def __init__(self, in_channels: int, num_heads: int, epsilon: float) -> None:
        super().__init__()
        check_count("num_heads", num_heads, 1)
        self.weight = nn.Parameter(torch.empty(num_heads, in_channels))
        nn.init.xavier_uniform_(self.weight)
        self.epsilon = epsilon

    def forward(self, v: Features, segments: Segments | None) -> PairMatrix:
        """Similarities of rows ``[N, c]`` within each graph."""
        if isinstance(v, Tensor) and v.layout != torch.strided:
            v = SparseMatrix.from_tensor(v)
        if isinstance(v, SparseMatrix) and segments is None:
            similarity = PairMatrix((self._sparse(v).unsqueeze(0),), None)
        else:
            # One product for all heads: their cosines are inner products of neighbouring columns.
            heads = unit_rows(dense(v).unsqueeze(1) * self.weight).flatten(1) / self.weight.shape[0] ** 0.5
            similarity = PairMatrix.make(lambda block: block @ block.mT, segments, heads)
        return similarity.map(lambda part: functional.threshold(part, self.epsilon, 0.0))

    def _sparse(self, v: SparseMatrix) -> Tensor:
        """Σ_h D_h V diag(w_h²) Vᵀ D_h / H, with D_h the inverse norms: one sparse product a head."""
        columns = v.to_dense().T
        squares = self.weight.square()
        inverse = (_squared(v) @ squares.T).clamp_min(1e-24).rsqrt()  # [N, H]
        total = v.rows.value.new_zeros(v.shape[0], v.shape[0])
        for h in range(squares.shape[0]):
            total = total + inverse[:, h, None] * (v @ (squares[h, :, None] * columns * inverse[:, h]))
        return total / squares.shape[0]


def _squared(v: SparseMatrix) -> SparseMatrix:
    """Every entry squared."""
    rows, columns = v.rows, v.columns
    return SparseMatrix(
        v.shape,
        CSR(rows.crow, rows.col, rows.value.square()),
        CSR(columns.crow, columns.col, columns.value.square()),
    )


def squared_distances(x: Tensor, segments: Segments | None) -> PairMatrix:
    """‖x_i - x_j‖² of all pairs."""
    return PairMatrix.make(lambda block: torch.cdist(block, block).square(), segments, x)
