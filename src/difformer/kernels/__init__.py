"""Fast replacements for the step of a layer, chosen by one predicate: `difformer.kernels.fused.why_not_fused`.

This module describes a fused layer in the form that the C and GPU kernels take.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from difformer.sparse import SparseMatrix

Some = Tensor | None
MOST_PAIRS = 1 << 23  # of diffusivity 'sigmoid', that a layer keeps for its backward pass


class Weights(NamedTuple):
    """a, b, c and s of a step a Z + b P + c S V + s Z⁰; without a matrix S is the identity."""

    state: float
    latent: float
    observed: float
    source: float = 0.0


class MaskKey(NamedTuple):
    """Everything that determines a dropout mask, for kernels that compute it themselves."""

    first: int  # int16 that keeps an entry
    scale: float  # 1 / (1 - p)
    key: int  # half of the key, the number of the dropout mixed in
    twin: int  # the other half
    numbers: Tensor | None  # [N] int32, of the rows, from 1; None for 1 … N


class Tail(NamedTuple):
    """What follows a step: a LayerNorm (its ε; None without), ReLU, and dropout by a key or by torch's generator."""

    eps: float | None = None
    relu: bool = False
    mask: MaskKey | None = None
    rate: float = 0.0


class Plan(NamedTuple):
    """What defines a layer, apart from its parameters."""

    weights: Weights
    matrix: SparseMatrix | None  # S
    tail: Tail  # what follows the step
    pairs: bool  # whether g is the logistic function of all pairs; otherwise g(x) = 1 + x
    tied: bool  # whether keys are the queries
    transform: bool  # whether there is a map of values
    qk_norm: str  # as in `DIFFormerConv`; unless it is "row", queries and keys are linear in the states
    low: bool = False  # whether, on a GPU, the product with a large matrix may gather bfloat16
