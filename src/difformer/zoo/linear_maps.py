"""Linear maps of features that may be dense or sparse, with dropout of their input, and norms of states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager
from difformer.sparse import CSR, SparseMatrix
from difformer.zoo.encoder import check_choice

NORMS = ("batch", "layer", "none")


def make_norm(name: str | bool, channels: int) -> nn.Module:
    """A norm of states: ``"batch"``, ``"layer"`` (also True) or ``"none"`` (also False)."""
    name = {True: "layer", False: "none"}[name] if isinstance(name, bool) else name
    check_choice("norm", name, NORMS)
    if name == "none":
        return nn.Identity()
    return nn.BatchNorm1d(channels) if name == "batch" else nn.LayerNorm(channels)


def dense(x: Features) -> Tensor:
    """Features as a dense tensor, where a model cannot do without."""
    return x if isinstance(x, Tensor) and x.layout == torch.strided else x.to_dense()


def linear(layer: nn.Linear, x: Features, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
    """A linear layer whose input may be sparse, after a dropout of its input.

    Of a sparse input the stored entries are dropped; all others are zero either way.
    """
    if isinstance(x, Tensor) and x.layout == torch.strided:
        return layer(dropout(x, rate, training))
    product = mapped(layer.weight, x, rate, training)
    return product if layer.bias is None else product + layer.bias


def mapped(weight: Tensor, x: Features, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
    """``x Wᵀ``, dense or sparse, after a dropout of x; what `linear` computes without a bias."""
    if isinstance(x, Tensor):
        if x.layout == torch.strided:
            return dropout(x, rate, training) @ weight.T
        x = SparseMatrix.from_tensor(x)
    if training:
        values = dropout(x.rows.value, rate, training)
        if values is x.rows.value:  # nothing was dropped
            return x @ weight.T
        if x.device.type == "cpu" and is_eager(values, weight) and not values.requires_grad:
            return _with_values(x, values) @ weight.T
        return _product(x, values, weight.T.contiguous())
    return x @ weight.T


_columns: ResultCache[tuple[Tensor, Tensor]] = ResultCache()


def _with_values(x: SparseMatrix, values: Tensor) -> SparseMatrix:
    """`x` with other values in the order of its rows; their order by columns is computed once."""
    order, row = _columns.of(x, (), lambda: _by_columns(x))
    rows, columns = x.rows, x.columns
    return SparseMatrix(
        x.shape, CSR(rows.crow, rows.col, values), CSR(columns.crow, row, values.index_select(0, order))
    )


def _by_columns(x: SparseMatrix) -> tuple[Tensor, Tensor]:
    order = torch.argsort(x.rows.col, stable=True)
    count = (x.rows.crow[1:] - x.rows.crow[:-1]).long()
    row = torch.arange(count.numel(), device=count.device).repeat_interleave(count)
    return order, row[order].to(x.columns.col.dtype)


def _product(x: SparseMatrix, values: Tensor, columns: Tensor) -> Tensor:
    """``x @ columns`` with other values in place of its own, which may differ from run to run of a stack."""
    count = (x.rows.crow[1:] - x.rows.crow[:-1]).long()
    row = torch.arange(count.numel(), device=count.device).repeat_interleave(count, output_size=x.rows.col.numel())
    # Selecting along an axis is several times as fast as indexing, forward and backward.
    terms = values.unsqueeze(1) * columns.index_select(0, x.rows.col.long())
    return terms.new_zeros(x.shape[0], columns.shape[1]).index_add(0, row, terms)
