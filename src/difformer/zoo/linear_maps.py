"""Linear maps of dense or sparse features with dropout of their input, and norms of states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.errors import check_choice
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager
from difformer.sparse import CSR, SparseMatrix

NORMS = ("batch", "layer", "none")


def make_norm(name: str | bool, channels: int) -> nn.Module:
    """A norm of states: ``"batch"``, ``"layer"`` (or True) or ``"none"`` (or False)."""
    name = {True: "layer", False: "none"}[name] if isinstance(name, bool) else name
    check_choice("norm", name, NORMS)
    if name == "none":
        return nn.Identity()
    return nn.BatchNorm1d(channels) if name == "batch" else nn.LayerNorm(channels)


def dense(x: Features) -> Tensor:
    """Features as a dense tensor."""
    return x if isinstance(x, Tensor) and x.layout == torch.strided else x.to_dense()


def linear(layer: nn.Linear, x: Features, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
    """A linear layer with dropout of its input, which may be sparse: then dropout acts on the stored entries."""
    if isinstance(x, Tensor) and x.layout == torch.strided:
        return layer(dropout(x, rate, training))
    product = mapped(layer.weight, x, rate, training)
    return product if layer.bias is None else product + layer.bias


def mapped(weight: Tensor, x: Features, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
    """``x Wᵀ`` after dropout of x; `linear` without a bias."""
    if isinstance(x, Tensor):
        if x.layout == torch.strided:
            return dropout(x, rate, training) @ weight.T
        x = SparseMatrix.from_tensor(x)
    rows = x.rows
    values = dropout(rows.value, rate, training) if training else rows.value
    if values is rows.value:  # nothing was dropped
        return x @ weight.T

    def by_columns() -> tuple[Tensor, Tensor]:
        order = torch.argsort(rows.col, stable=True)
        return order, rows.row()[order].to(x.columns.col.dtype)

    if x.device.type == "cpu" and is_eager(values, weight) and not values.requires_grad:
        order, row = _columns.of(x, (), by_columns)
        columns = CSR(x.columns.crow, row, values.index_select(0, order))
        return SparseMatrix(x.shape, CSR(rows.crow, rows.col, values), columns) @ weight.T
    # Under vmap the values may differ between runs. Selecting along an axis is several times as fast as indexing.
    terms = values.unsqueeze(1) * weight.T.contiguous().index_select(0, rows.col.long())
    return terms.new_zeros(x.shape[0], weight.shape[0]).index_add(0, rows.row(), terms)


_columns: ResultCache[tuple[Tensor, Tensor]] = ResultCache()
