"""What a fused layer does, beside its parameters: the same for the kernels in C and those of a GPU."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from difformer.sparse import SparseMatrix

Map = tuple[Tensor, Tensor]


class Weights(NamedTuple):
    """a, b, c and s of a step a Z + b P + c S V + s Z⁰; without a matrix S is the identity."""

    state: float
    latent: float
    observed: float
    source: float = 0.0


class MaskKey(NamedTuple):
    """All that a dropout mask follows from, for kernels that work it out by themselves.

    The first int16 that keeps an entry, 1 / (1 - p), the two halves of the key with the number of the dropout mixed in,
    and ``[N]`` int32 numbers of the rows, from 1 (None: 1 … N).
    """

    first: int
    scale: float
    key: int
    twin: int
    numbers: Tensor | None


class Tail(NamedTuple):
    """What follows a step: a LayerNorm (its ε; None without), ReLU, and dropout by a key or by torch's generator."""

    eps: float | None = None
    relu: bool = False
    mask: MaskKey | None = None
    rate: float = 0.0


class Plan(NamedTuple):
    """What a layer does beside its parameters.

    Args:
        weights: Of the four terms.
        matrix: S, where there is one.
        tail: What follows the step.
        pairs: Whether g is the logistic function of all pairs; otherwise g(x) = 1 + x.
        tied: Whether keys are the queries.
        transform: Whether there is a map of values.
        qk_norm: As in `DIFFormerConv`; unless it is ``"row"``, queries and keys are linear in the states.
    """

    weights: Weights
    matrix: SparseMatrix | None
    tail: Tail
    pairs: bool
    tied: bool
    transform: bool
    qk_norm: str

    def maps(self, parameters: tuple[Tensor, ...]) -> tuple[Map, Map, Map | None]:
        """Weight and bias of queries, keys and values."""
        pairs = [(parameters[i], parameters[i + 1]) for i in range(0, len(parameters), 2)]
        return pairs[0], pairs[0 if self.tied else 1], pairs[-1] if self.transform else None
