"""Exact inference on a graph that does not fit a device as a whole: layer by layer, in chunks of rows.

A layer needs of all nodes only a summary (`difformer.nn.context.store`): one pass over chunks of rows adds up the
summaries of their keys and values, a second pass answers the rows of each chunk. For a diffusivity whose summary is a
sum (simple, constant) that takes O(N) time; for any other the answer visits all keys and values, tile by tile, in
O(N²) time. Observed edges are products with rows of the normalised graph. The states of all nodes stay on the CPU
unless the device has ample room; the result is that of one forward pass over everything, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from difformer._compat import has_global_hooks
from difformer.data.sparse import take_rows
from difformer.errors import UserError
from difformer.free_memory import free_bytes
from difformer.graph import Graph
from difformer.kernels.rows import LayerNorm
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.context import store
from difformer.nn.edge_mask import mask_holder
from difformer.sparse import SparseMatrix
from difformer.training.model import is_as_written

AMPLE = 0.25  # of a device's free memory: what states and graph may take to live there
ROW_BY_ROW = (nn.Linear, nn.Identity, nn.ModuleList, LayerNorm)  # what a DIFFormer is made of beside its layers


def can_chunk(model: DIFFormer) -> bool:
    """Whether rows can be answered in chunks: only by the model of this package, every part of it as it was written.

    A part that was subclassed, replaced, hooked or wrapped may look at all rows at once, or sum in its own way.
    """
    if type(model) is not DIFFormer or has_global_hooks() or any(type(x) is not DIFFormerConv for x in model.layers):
        return False
    known = (DIFFormer, DIFFormerConv, *ROW_BY_ROW)
    holders = {mask_holder(layer) for layer in model.layers}  # what explainers look for; it computes nothing
    return all(type(part) in known and is_as_written(part) for part in model.modules() if part not in holders)


def embed_in_batches(
    model: DIFFormer, x: Tensor, graph: Graph | None, *, batch_size: int, device: torch.device, storage: torch.device
) -> Tensor:
    """Final states ``[N, hidden]`` of all nodes of one graph: those of ``model.embed(x, graph)`` with exact sums.

    The model is in evaluation mode on `device`, where `batch_size` rows at a time are worked on (see `can_chunk`);
    features are there or on the CPU, dense or sparse CSR; the graph is on `storage`, where the states are kept.
    """
    if model.training:
        raise UserError("model must be in evaluation mode: call model.eval() first")
    count = x.shape[0]
    if graph is not None and not graph.num_edges:
        graph = None
    z = torch.cat([model.encode(_features(x, rows, device)).to(storage) for rows in _blocks(count, batch_size)])
    source, dtype = z, torch.float64 if model.input.weight.dtype == torch.float64 else torch.float32
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        senders = store(layer, z, observed=graph is not None, size=batch_size, device=device)
        matrix = None if graph is None else graph.matrix(layer.graph_norm, dtype)
        out = torch.empty_like(z)
        for rows in _blocks(count, batch_size):
            edges = None if matrix is None else _rows_times(matrix, rows)
            here, first = z[rows].to(device), source[rows].to(device)
            out[rows] = model.advance(k, here, first, context=senders.receiving(edges)).to(z)
        z = out
    return z


def decode_in_batches(model: DIFFormer, states: Tensor, *, batch_size: int, device: torch.device) -> Tensor:
    """Outputs of all states, on the device."""
    return torch.cat([model.decode(states[rows].to(device)) for rows in _blocks(states.shape[0], batch_size)])


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _features(x: Tensor, rows: slice, device: torch.device) -> Tensor | SparseMatrix:
    if x.layout == torch.strided:
        return x[rows].to(device)
    return SparseMatrix.from_tensor(take_rows(x, torch.arange(rows.start, rows.stop, device=x.device))).to(device)


def _rows_times(matrix: SparseMatrix, rows: slice) -> Callable[[Tensor], Tensor]:
    """Some rows of a sparse matrix, to be multiplied by dense states."""
    crow, col, value = matrix.rows.crow, matrix.rows.col, matrix.rows.value
    first, last, shape = int(crow[rows.start]), int(crow[rows.stop]), rows.stop - rows.start

    def times(z: Tensor) -> Tensor:
        if first == last:
            return z.new_zeros(shape, z.shape[1])
        part = torch.sparse_csr_tensor(
            crow[rows.start : rows.stop + 1] - crow[rows.start],
            col[first:last],
            value[first:last],
            (shape, z.shape[0]),
            check_invariants=False,
        )
        with torch.autocast(z.device.type, enabled=False):  # there are no sparse products in low precision
            return part @ z.to(value.dtype)

    return times


def has_room(device: torch.device, needed: int) -> bool:
    """Whether a GPU has ample room for so many bytes; never true of a CPU, where everything is already."""
    return device.type == "cuda" and needed < AMPLE * free_bytes(device)
