"""A DIFFormer over ranks: parameters on every rank, rows on one.

All of a pass is row by row (input and output layer, LayerNorm, dropout, whose masks follow from the *global* number of
a row) but for two terms of a diffusion step, latent and observed propagation. `embed` is `DIFFormer.embed` with these
two exchanged for ones that reach the rows of all ranks; outputs are those of one process, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention import polynomial
from difformer.attention.layout import working_dtype
from difformer.attention.linear import LINEAR
from difformer.attention.scores import score_key
from difformer.distributed.collectives import all_reduce
from difformer.distributed.graph import ShardedGraph
from difformer.distributed.linear import constant, gram, simple
from difformer.distributed.ranks import Ranks
from difformer.distributed.ring import ring
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.difformer import ACTIVATIONS
from difformer.nn.dropout import dropout
from difformer.nn.unit import unit_rows
from difformer.sparse import SparseMatrix


@dataclass(frozen=True)
class Rows:
    """The rows of one rank, and what it takes to reach the others.

    Args:
        ranks: The group.
        numbers: ``[n]`` global numbers of own rows.
        sizes: Rows of every rank.
        graph: Observed edges into own rows; None where the whole graph has none.
    """

    ranks: Ranks
    numbers: Tensor
    sizes: tuple[int, ...]
    graph: ShardedGraph | None

    @property
    def total(self) -> int:
        """N of all ranks."""
        return sum(self.sizes)


def embed(model: DIFFormer, x: Tensor | SparseMatrix, rows: Rows) -> Tensor:
    """Final states of own rows, ``[n, hidden_channels]``; all ranks must call it together."""
    z = source = model.encode(x)
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        z = model.norms[k](step(layer, z, rows, source))
        if model.activation is not None:
            z = ACTIVATIONS[model.activation](z)
        z = dropout(z, model.dropout, model.training)
    return z


def outputs(model: DIFFormer, x: Tensor | SparseMatrix, rows: Rows) -> Tensor:
    """Outputs of own rows, ``[n, out_channels]``."""
    return model.decode(embed(model, x, rows))


def step(layer: DIFFormerConv, z: Tensor, rows: Rows, source: Tensor) -> Tensor:
    """Z⁺ of own rows from their Z, as `DIFFormerConv.step` has it for one graph."""
    shape = (z.shape[0], layer.num_heads, layer.out_channels)
    v = z.unsqueeze(1) if layer.value is None else layer.value(z).view(shape)
    if rows.graph is None:
        p = latent(layer, z, v, rows)
    else:
        observed = rows.graph.propagate(over_heads(v), layer.graph_norm)
        if layer.diffusivity is None:
            p = observed
        elif layer.graph_weight is None:
            p = latent(layer, z, v, rows) + observed
        else:
            p = torch.lerp(latent(layer, z, v, rows), observed, layer.graph_weight)
    if layer.residual:
        p = torch.lerp(z, p.to(z.dtype), layer.step_size)
    if layer.source_weight:
        p = p + layer.step_size * layer.source_weight * source
    return p


def latent(layer: DIFFormerConv, z: Tensor, v: Tensor, rows: Rows) -> Tensor:
    """Mean over heads of the all-pair term of own rows, ``[n, out_channels]``."""
    if layer.diffusivity is None or layer.form == "identity":
        return over_heads(v)
    key = score_key(layer.diffusivity, layer.out_channels)
    if layer.form == "constant":
        return over_heads(constant(v, rows.total, rows.ranks))
    assert layer.query is not None
    sums_up = layer.form in LINEAR and layer.backend in ("auto", "linear")
    if sums_up and layer.qk_norm != "row":  # queries and keys are linear in the states
        return gram(layer, z, rows.total, rows.ranks)
    q, k = _queries_and_keys(layer, z, rows.ranks)
    v = v.to(q.dtype)
    with torch.autocast(z.device.type, enabled=False):
        if layer.backend == "polynomial":
            return over_heads(_polynomial(q, k, v, key, rows.ranks))
        if sums_up:
            return over_heads(simple(q, k, v, rows.total, rows.ranks))
        if layer.backend == "linear":
            raise ValueError(
                f"backend 'linear' serves {' and '.join(sorted(LINEAR))}, not {layer.diffusivity.name!r}; "
                f"try backend='auto'"
            )
        return over_heads(ring(q, k, v, key, rows.sizes, rows.ranks))


def over_heads(x: Tensor) -> Tensor:
    """Mean of ``[n, H, c]`` over heads."""
    return x.squeeze(1) if x.shape[1] == 1 else x.mean(1)


def _polynomial(q: Tensor, k: Tensor, v: Tensor, key: str, ranks: Ranks) -> Tensor:
    """Sums of monomials: as many numbers as there are monomials, whatever N."""
    polynomial.check_norms(q=q, k=k)
    wide = working_dtype(q.dtype)
    state = all_reduce(polynomial.summarise(k.to(wide), v.to(wide), key), ranks)
    return polynomial.answer(q.to(wide), state, key).to(q.dtype)


def _queries_and_keys(layer: DIFFormerConv, z: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Normalised Q and K of own rows; a global norm is one over the rows of all ranks."""
    assert layer.query is not None
    shape = (z.shape[0], layer.num_heads, layer.out_channels)
    q = layer.query(z).view(shape)
    k = q if layer.key is None else layer.key(z).view(shape)
    if layer.qk_norm == "row":
        unit = unit_rows(q)
        return unit, unit if k is q else unit_rows(k)
    if layer.qk_norm == "none":
        return q, k
    squares = torch.stack([x.to(working_dtype(x.dtype)).square().sum() for x in (q, k)])
    norms = all_reduce(squares, ranks).sqrt().clamp_min(1e-12)
    return (q / norms[0]).to(q.dtype), (k / norms[1]).to(k.dtype)
