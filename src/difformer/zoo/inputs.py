"""What models share about their inputs: sparse features, graphs with self-loops, and what fits into memory."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from difformer.attention.memory import free_bytes
from difformer.attention.segments import Segments
from difformer.eager import is_eager
from difformer.errors import WouldNotFitError
from difformer.graph import Graph
from difformer.kept import Kept
from difformer.nn.dropout import dropout
from difformer.nn.structure import as_structure
from difformer.sparse import CSR, SparseMatrix

WORTH_A_LOOK = 2**28  # bytes: what is smaller is not worth asking the system for


def linear(layer: nn.Linear, x: Tensor | SparseMatrix, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
    """A linear layer whose input may be sparse, after a dropout of its input.

    Of a sparse input the entries that stand are dropped: those that do not are zero either way.
    """
    if isinstance(x, Tensor) and x.layout == torch.strided:
        return layer(dropout(x, rate, training))
    product = mapped(layer.weight, x, rate, training)
    return product if layer.bias is None else product + layer.bias


def mapped(weight: Tensor, x: Tensor | SparseMatrix, rate: float | Tensor = 0.0, training: bool = False) -> Tensor:
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


_columns: Kept[tuple[Tensor, Tensor]] = Kept()


def _with_values(x: SparseMatrix, values: Tensor) -> SparseMatrix:
    """`x` with other values in the order of its rows; where they stand by columns is worked out once."""
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


def dense(x: Tensor | SparseMatrix) -> Tensor:
    """Features as a dense tensor, where a model cannot do without."""
    return x if isinstance(x, Tensor) and x.layout == torch.strided else x.to_dense()


def observed_graph(
    num_nodes: int,
    edge_index: Tensor | Graph | None,
    edge_weight: Tensor | None = None,
    batch: Tensor | Segments | None = None,
    *,
    self_loops: bool = False,
    device: torch.device | None = None,
) -> Graph | None:
    """The graph of a forward pass, checked; None where there are no edges and no self-loops were asked for."""
    graph = as_structure(num_nodes, edge_index, edge_weight, batch).graph
    if not self_loops:
        return graph
    if graph is not None:
        return graph.with_self_loops()
    # What a compiler traces with must not outlive it.
    loops = _loops.__wrapped__ if torch.compiler.is_compiling() else _loops
    return loops(num_nodes, torch.device("cpu") if device is None else device)


@lru_cache(maxsize=1)
def _loops(num_nodes: int, device: torch.device) -> Graph:
    """Self-loops and nothing else; kept for the next pass, which then asks nothing of the device."""
    with torch.inference_mode(False):
        return Graph(torch.arange(num_nodes, device=device).expand(2, -1), num_nodes)


def refuse_beyond_memory(needed: float, device: torch.device, what: str, remedy: str) -> None:
    """Raises a `WouldNotFitError` before a pass that cannot fit, with what it needs and what is free.

    Args:
        needed: Bytes.
        device: Where they are needed.
        what: What needs them, for example ``"gat on 5,000,000 edges"``.
        remedy: What to do instead.
    """
    if needed < WORTH_A_LOOK or torch.compiler.is_compiling():
        return
    # Whoever records work has done it before; to ask the device meanwhile may spoil the recording.
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    free = free_bytes(device)
    if needed > free:
        gib = 2**30
        # Advice that is of use here: the machine's own memory only where it is another one, and suffices.
        if device.type != "cpu" and needed <= (of_machine := free_bytes(torch.device("cpu"))):
            remedy += f", or take device='cpu', where {of_machine / gib:,.1f} GiB are free"
        raise WouldNotFitError(
            f"{what} needs about {needed / gib:,.1f} GiB, and {free / gib:,.1f} GiB are free on {device}; {remedy}"
        )
