"""Which short way a step of diffusion can take; there are four, and none where tensors are not plain ones.

`gram_step` serves simple attention that is linear in the states, `row_step` simple attention of unit rows on a CPU, and
`mix` adds the terms of every other step in place. Where there are kernels in C, `native_step` serves the first two on a
CPU, the norm and all that follows it included. All of them differentiate once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.eager import is_eager
from difformer.native.passes import serves
from difformer.nn.dropout import dropout, next_mask
from difformer.nn.gram_step import gram_step
from difformer.nn.layer_norm import LayerNorm
from difformer.nn.mixing import Weights, mix
from difformer.nn.native_step import Plan, Tail, native_step
from difformer.nn.plain_modules import is_plain_norm
from difformer.nn.row_step import row_step
from difformer.nn.structure import Structure
from difformer.sparse import SparseMatrix

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv


def short_step(conv: DIFFormerConv, z: Tensor, structure: Structure, source: Tensor | None) -> Tensor | None:
    """Z⁺ of a layer; None where it has to go term by term."""
    if not _serves(conv, z, structure):
        return None
    weights, matrix, given = _terms(conv, z, structure, source)
    if _by_kernels(conv, z, structure, given, matrix, weights):
        return native_step(z, given, None, _plan(conv, matrix, weights, Tail()), _parameters(conv))
    if conv.query is not None and conv.num_heads == 1 and weights.latent > 0:
        if conv.value is None and conv.is_linear_in_states(structure.segments):
            return gram_step(z, conv.query, conv.key, given, matrix, weights, scaled=conv.qk_norm == "global")
        if _by_blocks(conv, z, structure.segments):
            return row_step(z, conv.query, conv.key, conv.value, given, matrix, weights)
    v = z.unsqueeze(1) if conv.value is None else conv.value(z).view(z.shape[0], conv.num_heads, conv.out_channels)
    latent = conv.latent(z, v, structure.segments)
    return mix(z, latent, None if conv.value is None else over_heads(v), given, matrix, weights)


def whole_layer(
    conv: nn.Module,
    norm: nn.Module,
    z: Tensor,
    structure: Structure,
    source: Tensor | None,
    *,
    relu: bool,
    rate: float | Tensor,
    training: bool,
) -> Tensor | None:
    """Z⁺ with norm, activation and dropout at once; None where they have to go one after the other.

    Args:
        conv, norm: Of the layer.
        z, structure, source: As in `DIFFormerConv.step`.
        relu: Whether the activation is ReLU; otherwise there must be none.
        rate: Of dropout.
        training: Whether there is dropout.
    """
    from difformer.nn.conv import DIFFormerConv

    if type(conv) is not DIFFormerConv or isinstance(rate, Tensor) or not _serves(conv, z, structure):
        return None
    weights, matrix, given = _terms(conv, z, structure, source)
    if not is_plain_norm(norm) or not _by_kernels(conv, z, structure, given, matrix, weights, *norm.parameters()):
        return None
    mask = next_mask(rate, training)
    found = norm if isinstance(norm, LayerNorm) else None
    tail = Tail(None if found is None else found.eps, relu, mask)
    out = native_step(z, given, found, _plan(conv, matrix, weights, tail), _parameters(conv))
    return out if mask is not None else dropout(out, rate, training)


def _terms(
    conv: DIFFormerConv, z: Tensor, structure: Structure, source: Tensor | None
) -> tuple[Weights, SparseMatrix | None, Tensor | None]:
    """Weights of the four terms, the graph's matrix and the source, where there are such."""
    matrix = None if structure.graph is None else structure.graph.matrix(conv.graph_norm, z.dtype)
    return _weights(conv, structure), matrix, source if conv.source_weight else None


def _by_kernels(
    conv: DIFFormerConv,
    z: Tensor,
    structure: Structure,
    source: Tensor | None,
    matrix: SparseMatrix | None,
    weights: Weights,
    *parameters: Tensor,
) -> bool:
    """Simple attention of one head, whole rows of plain tensors on a CPU."""
    linear = conv.value is None and conv.is_linear_in_states(structure.segments)
    simple = conv.query is not None and conv.num_heads == 1 and weights.latent > 0
    if not simple or not (linear or _by_blocks(conv, z, structure.segments)):
        return False
    if matrix is not None and matrix.rows.crow.dtype != torch.int32:
        return False
    given = (z, *parameters, *_parameters(conv), *(() if source is None else (source,)))
    return serves(z.shape[0], max(conv.in_channels, conv.out_channels), *given)


def _plan(conv: DIFFormerConv, matrix: SparseMatrix | None, weights: Weights, tail: Tail) -> Plan:
    linear = conv.qk_norm != "row"
    return Plan(weights, matrix, tail, linear, scaled=conv.qk_norm == "global", tied=conv.key is None)


def _parameters(conv: DIFFormerConv) -> tuple[Tensor, ...]:
    maps = (conv.query, conv.key, conv.value)
    return tuple(x for layer in maps if layer is not None for x in (layer.weight, layer.bias))


def _serves(conv: DIFFormerConv, z: Tensor, structure: Structure) -> bool:
    """Plain tensors, and a graph that is kept."""
    graph = structure.graph
    weights = (conv.step_size, conv.source_weight, conv.graph_weight)
    return (
        conv.diffusivity is not None
        and conv.backend != "reference"  # differentiates twice
        and structure.has_edges is None
        and (graph is None or graph.is_kept)
        and not any(isinstance(weight, Tensor) for weight in weights)
        and z.dtype in (torch.float32, torch.float64)
        and is_eager(z, *conv.parameters())
        and not torch.is_autocast_enabled(z.device.type)
    )


def _by_blocks(conv: DIFFormerConv, z: Tensor, segments: Segments | None) -> bool:
    """Simple attention of unit rows on a CPU; a GPU has the memory for queries and keys, and would wait for blocks."""
    simple = conv.form == "simple" and conv.qk_norm == "row" and conv.backend in ("auto", "linear")
    return simple and segments is None and z.device.type == "cpu"


def _weights(conv: DIFFormerConv, structure: Structure) -> Weights:
    tau, mass = (conv.step_size, 1 - conv.step_size) if conv.residual else (1.0, 0.0)
    latent = observed = 1.0
    if structure.graph is not None and conv.graph_weight is not None:
        latent, observed = 1 - conv.graph_weight, conv.graph_weight
    return Weights(mass, tau * latent, tau * observed, conv.step_size * conv.source_weight)


def over_heads(x: Tensor) -> Tensor:
    """Mean of ``[N, H, c]`` over heads; a single head is not copied."""
    return x.squeeze(1) if x.shape[1] == 1 else x.mean(1)
