"""Which short way a step of diffusion can take; there are three, and none where tensors are not plain ones.

`gram_step` serves simple attention that is linear in the states, `row_step` simple attention of unit rows on a CPU, and
`mix` adds the terms of every other step in place. All of them differentiate once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.eager import is_eager
from difformer.nn.gram_step import gram_step
from difformer.nn.mixing import Weights, mix
from difformer.nn.row_step import row_step
from difformer.nn.structure import Structure

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv


def short_step(conv: DIFFormerConv, z: Tensor, structure: Structure, source: Tensor | None) -> Tensor | None:
    """Z⁺ of a layer; None where it has to go term by term."""
    if not _serves(conv, z, structure):
        return None
    weights, matrix = _weights(conv, structure), None
    if structure.graph is not None:
        matrix = structure.graph.matrix(conv.graph_norm, z.dtype)
    given = source if conv.source_weight else None
    if conv.query is not None and conv.num_heads == 1 and weights.latent > 0:
        if conv.value is None and conv.is_linear_in_states(structure.segments):
            return gram_step(z, conv.query, conv.key, given, matrix, weights, scaled=conv.qk_norm == "global")
        if _by_blocks(conv, z, structure.segments):
            return row_step(z, conv.query, conv.key, conv.value, given, matrix, weights)
    v = z.unsqueeze(1) if conv.value is None else conv.value(z).view(z.shape[0], conv.num_heads, conv.out_channels)
    latent = conv.latent(z, v, structure.segments)
    return mix(z, latent, None if conv.value is None else over_heads(v), given, matrix, weights)


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
