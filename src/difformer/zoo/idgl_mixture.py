"""The graphs of `difformer.zoo.idgl`: how observed and learned ones are mixed, and whether a learned one moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from difformer.graph import Graph
from difformer.zoo.gram_matrix import GramMatrix
from difformer.zoo.pair_matrix import PairMatrix

Matrix: TypeAlias = PairMatrix | GramMatrix
Mixed: TypeAlias = Callable[..., Tensor]  # z → Ã z


class Mixture:
    """Ã: an observed graph, the learned graph of features, and one that is learned anew.

    Args:
        graph: L.
        first: A^(1).
        observed: λ.
        update: η.
    """

    def __init__(self, graph: Graph, first: Matrix, observed: float, update: float) -> None:
        self.graph, self.first, self.observed, self.update = graph, first, observed, update
        self.of_first = _inverse_sums(first)

    def settled(self, z: Tensor) -> Tensor:
        """What of Ã z no iteration changes: (λ L + (1 - λ) (1 - η) f(A^(1))) z."""
        learned = (1 - self.update) * self.of_first * (self.first @ z)
        return self.observed * self.graph.propagate(z) + (1 - self.observed) * learned

    def at(self, now: Matrix) -> Mixed:
        """Ã of an iteration."""
        of_now = self.of_first if now is self.first else _inverse_sums(now)

        def mixed(z: Tensor, always: Tensor | None = None) -> Tensor:
            """Ã z; `always` is `settled` of z where that is known."""
            if always is None:
                always = self.settled(z)
            return always + (1 - self.observed) * self.update * of_now * (now @ z) if self.update else always

        return mixed


def _inverse_sums(matrix: Matrix) -> Tensor:
    """f(A) z = A z over row sums: the rows themselves need not be divided."""
    return 1 / matrix.row_sums().clamp_min(1e-12).unsqueeze(1)


def is_moving(new: Matrix, now: Matrix, first: Matrix, tolerance: float) -> list[Tensor]:
    """Whether ‖A^(t) - A^(t-1)‖_F² > δ ‖A^(1)‖_F², for every graph, a block at a time."""
    if isinstance(new, PairMatrix):
        assert isinstance(now, PairMatrix)
        assert isinstance(first, PairMatrix)
        pairs = zip(_squares(new.map(torch.sub, now)), _squares(first), strict=True)
        return [(moved > tolerance * size).view(-1, 1, 1) for moved, size in pairs]
    assert not isinstance(now, PairMatrix)
    assert not isinstance(first, PairMatrix)
    # ‖B‖_F ≥ ‖B 1‖ / ‖1‖, and entries of A are at most 1, so that Σ A_ij² ≤ Σ A_ij: mostly, sums of rows decide.
    least = (new.row_sums() - now.row_sums()).square().mean()
    if bool(least > tolerance * first.row_sums().sum()):
        return [torch.ones(1, 1, 1, dtype=torch.bool)]
    moved = new.squared - 2 * now.inner(new) + now.squared
    return [(moved > tolerance * first.squared).view(-1, 1, 1)]


def _squares(matrix: PairMatrix) -> list[Tensor]:
    """‖·‖_F² of every graph, a block at a time."""
    return [torch.linalg.vector_norm(part.detach(), dim=(1, 2)).square() for part in matrix.parts]
