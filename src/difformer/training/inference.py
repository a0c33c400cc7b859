"""Exact inference on a graph that does not fit a device as a whole: layer by layer, rows in batches.

A DIFFormer layer needs of *all* nodes only sums. For a diffusivity that is itself a sum (simple, constant) one pass
over the batches adds up

    M = Σ_j k_j v_jᵀ,   κ = Σ_j k_j,   ν = Σ_j v_j,   Σ_j ||q_j||²,   Σ_j ||k_j||²,

and a second one answers every row, P_i = (ν + Mᵀq_i) / (N + κᵀq_i). For any other diffusivity the second pass meets the
keys batch by batch and adds up both sums of P_i = Σ_j g(x_ij) v_j / Σ_j g(x_ij): O(N²) time, O(batch²) memory. Observed
edges are products with rows of the normalised graph. The states of all nodes stay on the CPU unless the device has
ample room; the result is that of one forward pass over everything, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention.linear import LINEAR
from difformer.attention.memory import free_bytes
from difformer.attention.reference import safe_total
from difformer.attention.scores import least_of
from difformer.data.sparse import take_rows
from difformer.errors import UserError
from difformer.graph import Graph
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.difformer import ACTIVATIONS
from difformer.sparse import SparseMatrix

AMPLE = 0.25  # of a device's free memory: what states and graph may take to live there


def embed_in_batches(
    model: DIFFormer, x: Tensor, graph: Graph | None, *, batch_size: int, device: torch.device, storage: torch.device
) -> Tensor:
    """Final states ``[N, hidden]`` of all nodes of one graph: those of ``model.embed(x, graph)`` with exact sums.

    Args:
        model: In evaluation mode, on `device`.
        x: Features, dense or sparse CSR, on the CPU or on `device`.
        graph: Observed edges on `storage`, or None.
        batch_size: Rows at a time; for a diffusivity that is no sum, rows and columns of a tile.
        device: Where rows are worked on.
        storage: Where the states of all nodes are kept, see `choose_storage`.

    Returns:
        The states, on `storage`.
    """
    if model.training:
        raise UserError("model must be in evaluation mode: call model.eval() first")
    count = x.shape[0]
    if graph is not None and not graph.num_edges:
        graph = None
    z = torch.cat([model._encode(_features(x, rows, device)).to(storage) for rows in _blocks(count, batch_size)])
    source = z
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        z = _Layer(model, k, layer, graph, batch_size, device)(z, source)
    return z


def decode_in_batches(model: DIFFormer, states: Tensor, *, batch_size: int, device: torch.device) -> Tensor:
    """Outputs of all states, on the device."""
    return torch.cat([model.decode(states[rows].to(device)) for rows in _blocks(states.shape[0], batch_size)])


@dataclass
class _Sums:
    """What a layer needs to know of all nodes."""

    outer: Tensor | float = 0.0  # M
    keys: Tensor | float = 0.0  # κ
    values: Tensor | float = 0.0  # ν
    query_squares: Tensor | float = 0.0
    key_squares: Tensor | float = 0.0


class _Layer:
    """One layer over all rows, in batches."""

    def __init__(
        self,
        model: DIFFormer,
        number: int,
        layer: DIFFormerConv,
        graph: Graph | None,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.model, self.number, self.layer, self.device, self.batch_size = model, number, layer, device, batch_size
        dtype = torch.float64 if model.input.weight.dtype == torch.float64 else torch.float32
        self.matrix = None if graph is None else graph.matrix(layer.graph_norm, dtype)
        name = None if layer.diffusivity is None else layer.diffusivity.name
        self.infers = layer.query is not None
        self.sums_up = name in LINEAR
        self.latent_is_own = name in (None, "identity")

    def __call__(self, z: Tensor, source: Tensor) -> Tensor:
        layer, count = self.layer, z.shape[0]
        sums, mean_values = _Sums(), z
        if layer.value is not None and self.matrix is not None:
            mean_values = torch.empty_like(z)
        for rows in _blocks(count, self.batch_size):
            v = self._values(z[rows].to(self.device))
            if mean_values is not z:
                mean_values[rows] = v.mean(1).to(z.device, z.dtype)
            if not self.latent_is_own:
                self._add(sums, z[rows].to(self.device), v)
        out = torch.empty_like(z)
        for rows in _blocks(count, self.batch_size):
            here = z[rows].to(self.device)
            p = self._latent(here, z, sums)
            if self.matrix is not None:
                observed = _rows_times(self.matrix, rows, mean_values).to(self.device)
                p = self._mix(p, observed)
            if layer.residual:
                p = torch.lerp(here, p.to(here.dtype), layer.step_size)
            if layer.source_weight:
                p = p + layer.step_size * layer.source_weight * source[rows].to(self.device)
            p = self.model.norms[self.number](p)
            if self.model.activation is not None:
                p = ACTIVATIONS[self.model.activation](p)
            out[rows] = p.to(z.device, z.dtype)
        return out

    def _values(self, z: Tensor) -> Tensor:
        layer = self.layer
        if layer.value is None:
            return z.unsqueeze(1)
        return layer.value(z).view(z.shape[0], layer.num_heads, layer.out_channels)

    def _queries(self, z: Tensor) -> Tensor:
        layer = self.layer
        assert layer.query is not None
        q = layer.query(z).view(z.shape[0], layer.num_heads, layer.out_channels)
        return torch.nn.functional.normalize(q, dim=-1) if layer.qk_norm == "row" else q

    def _keys(self, z: Tensor) -> Tensor:
        layer = self.layer
        if layer.key is None:
            return self._queries(z)
        k = layer.key(z).view(z.shape[0], layer.num_heads, layer.out_channels)
        return torch.nn.functional.normalize(k, dim=-1) if layer.qk_norm == "row" else k

    def _add(self, sums: _Sums, z: Tensor, v: Tensor) -> None:
        """One batch's share of the sums; with a global norm of queries and keys as they are, to be scaled later."""
        sums.values = sums.values + v.sum(0)
        if not self.infers:
            return
        q, k = self._queries(z), self._keys(z)
        sums.query_squares = sums.query_squares + q.square().sum()
        sums.key_squares = sums.key_squares + k.square().sum()
        if self.sums_up:
            sums.keys = sums.keys + k.sum(0)
            sums.outer = sums.outer + torch.einsum("nhd,nhc->hdc", k, v.to(k.dtype).expand(-1, k.shape[1], -1))

    def _latent(self, z: Tensor, everything: Tensor, sums: _Sums) -> Tensor:
        """Mean over heads of the all-pair term of some rows."""
        count = everything.shape[0]
        if self.latent_is_own:
            return self._values(z).mean(1)
        if not self.infers:
            return (torch.as_tensor(sums.values) / count).mean(0).expand(z.shape[0], -1)
        q = self._queries(z) / self._norm(sums.query_squares)
        scale = 1 / self._norm(sums.key_squares)
        if self.sums_up:
            total = count + torch.einsum("nhd,hd->nh", q, sums.keys * scale)
            answer = torch.einsum("nhd,hdc->nhc", q, sums.outer * scale) + sums.values
            return (answer / safe_total(total, count).unsqueeze(-1)).mean(1)
        assert self.layer.diffusivity is not None
        total, answer = q.new_zeros(()), q.new_zeros(())
        for rows in _blocks(count, self.batch_size):
            others = everything[rows].to(self.device)
            weights = self.layer.diffusivity.g(torch.einsum("nhd,mhd->hnm", q, self._keys(others) * scale))
            v = self._values(others).to(q.dtype).expand(-1, q.shape[1], -1)
            total = total + weights.sum(-1)
            answer = answer + torch.einsum("hnm,mhc->hnc", weights, v)
        least = least_of(self.layer.diffusivity)
        return (answer / safe_total(total, count, least).unsqueeze(-1)).mean(0)

    def _norm(self, squares: Tensor | float) -> Tensor | float:
        """By what queries or keys are still to be divided."""
        return torch.as_tensor(squares).sqrt().clamp_min(1e-12) if self.layer.qk_norm == "global" else 1.0

    def _mix(self, latent: Tensor, observed: Tensor) -> Tensor:
        if self.layer.diffusivity is None:
            return observed
        if self.layer.graph_weight is None:
            return latent + observed
        return torch.lerp(latent, observed.to(latent.dtype), self.layer.graph_weight)


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _features(x: Tensor, rows: slice, device: torch.device) -> Tensor | SparseMatrix:
    if x.layout == torch.strided:
        return x[rows].to(device)
    return SparseMatrix.from_tensor(take_rows(x, torch.arange(rows.start, rows.stop, device=x.device))).to(device)


def _rows_times(matrix: SparseMatrix, rows: slice, z: Tensor) -> Tensor:
    """Some rows of a sparse matrix times dense states."""
    crow, col, value = matrix.rows.crow, matrix.rows.col, matrix.rows.value
    first, last = int(crow[rows.start]), int(crow[rows.stop])
    if first == last:
        return z.new_zeros(rows.stop - rows.start, z.shape[1])
    part = torch.sparse_csr_tensor(
        crow[rows.start : rows.stop + 1] - crow[rows.start],
        col[first:last],
        value[first:last],
        (rows.stop - rows.start, z.shape[0]),
        check_invariants=False,
    )
    with torch.autocast(z.device.type, enabled=False):  # there are no sparse products in low precision
        return part @ z.to(value.dtype)


def choose_storage(model: DIFFormer, num_nodes: int, num_edges: int, device: torch.device) -> torch.device:
    """Where states of all nodes and the graph live: on the device where they take little of its room, else the CPU."""
    needed = 4 * num_nodes * model.input.out_features * 4 + num_edges * 64
    return device if has_room(device, needed) else torch.device("cpu")


def has_room(device: torch.device, needed: int) -> bool:
    """Whether a GPU has ample room for so many bytes; never true of a CPU, where everything is already."""
    return device.type == "cuda" and needed < AMPLE * free_bytes(device)
