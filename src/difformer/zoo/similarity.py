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
from difformer.sparse import SparseMatrix
from difformer.zoo.feature_pairs import Points
from difformer.zoo.gram_matrix import GramMatrix, SparseGramMatrix, squared_entries
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
            similarity = PairMatrix.make(lambda block: block @ block.mT, segments, self._heads(dense(v)))
        return similarity.map(lambda part: functional.threshold(part, self.epsilon, 0.0))

    def factored(self, v: Tensor | Points) -> GramMatrix:
        """The same of one graph without all pairs; right where v is nowhere negative and ε is 0.

        Args:
            v: Rows ``[N, c]``; sparse ones as `Points`.
        """
        return SparseGramMatrix(v, self.weight.square()) if isinstance(v, Points) else GramMatrix(self._heads(v))

    def _heads(self, v: Tensor) -> Tensor:
        """One product for all heads: their cosines are inner products of neighbouring columns."""
        return unit_rows(v.unsqueeze(1) * self.weight).flatten(1) / self.weight.shape[0] ** 0.5

    def _sparse(self, v: SparseMatrix) -> Tensor:
        """Σ_h D_h V diag(w_h²) Vᵀ D_h / H, with D_h the inverse norms: one sparse product a head."""
        columns = v.to_dense().T
        squares = self.weight.square()
        inverse = (squared_entries(v) @ squares.T).clamp_min(1e-24).rsqrt()  # [N, H]
        total = v.rows.value.new_zeros(v.shape[0], v.shape[0])
        for h in range(squares.shape[0]):
            total = total + inverse[:, h, None] * (v @ (squares[h, :, None] * columns * inverse[:, h]))
        return total / squares.shape[0]


def squared_distances(x: Tensor, segments: Segments | None) -> PairMatrix:
    """‖x_i - x_j‖² of all pairs."""
    return PairMatrix.make(lambda block: torch.cdist(block, block).square(), segments, x)
