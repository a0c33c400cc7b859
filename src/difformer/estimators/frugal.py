"""Training on large populations with one state a layer kept, instead of all that a layer makes of it.

A backward pass wants, of every layer, Z, Q, K, P, Z⁺ and its norm: six matrices ``[N, hidden]``. Kept is Z alone; the
others are made again when the backward pass comes to the layer, for a third of the time more. Numbers stay the same to
the bit: nothing in a layer is drawn at random where there is no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from difformer.nn import DIFFormer
from difformer.nn.structure import Structure
from difformer.training import TrainConfig

ROOM = 1 << 24  # numbers in the states of all layers, above which they are all that is kept


class FrugalDIFFormer(DIFFormer):
    """A `DIFFormer` whose layers are passed again by the backward pass; made by changing the class of a model."""

    def _advance(self, k: int, z: Tensor, structure: Structure, source: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super()._advance(k, z, structure, source)
        again = super()._advance
        found: Tensor = checkpoint(again, k, z, structure, source, use_reentrant=False, preserve_rng_state=False)
        return found


def wants_frugality(rows: int, config: TrainConfig) -> bool:
    """Whether whole passes over `rows` keep more than `ROOM` numbers; never with dropout, which is drawn once."""
    options = config.options
    states = rows * int(options["hidden_channels"]) * int(options["num_layers"])
    return config.batch_size is None and not options["dropout"] and states > ROOM


def be_frugal(model: DIFFormer) -> None:
    """From now on passes with gradients keep states alone; parameters and their names stay."""
    model.__class__ = FrugalDIFFormer
