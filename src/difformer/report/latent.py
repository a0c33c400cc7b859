r"""Latent structure of a scene: which pairs exchange most at every layer, and how much attention stays within classes.

Attention :math:`\hat s_{ij}` of instance i to instance j is worked out for some i and *all* j, so that its rows sum to
one whatever is shown. Within class c(i) falls

.. math:: w_i = \sum_{j: c(j) = c(i)} \hat s_{ij} \Big/ \sum_{j: c(j)\ \mathrm{known}} \hat s_{ij},

and uniform attention would give the share of class c(i) among the labelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.attention.reference import attention_matrix
from difformer.nn.conv import DIFFormerConv
from difformer.nn.inspection import PAIRS_OF_A_BLOCK
from difformer.report.scene import Scene

PAIRS = 400  # kept of every layer


@dataclass(frozen=True)
class LatentLayer:
    """What one layer's attention looks like.

    Args:
        source: ``[k]`` places among the shown instances that are attended to.
        target: ``[k]`` places that attend.
        weight: ``[k]`` attention in units of 1/n, the uniform one; strongest first.
        within: Mean over the shown instances with a class of w_i; None without classes.
        entropy: Mean entropy of the rows over that of uniform attention: 1 where every pair exchanges alike.
    """

    source: list[int]
    target: list[int]
    weight: list[float]
    within: float | None
    entropy: float


def why_no_attention(layer: DIFFormerConv) -> str | None:
    """Why a layer has no pairs to look at; None where it has."""
    if layer.diffusivity is None:
        return "this model propagates over observed edges alone (no diffusivity), so it infers no latent pairs"
    if layer.form == "identity":
        return "the identity diffusivity lets nothing be exchanged, so there are no latent pairs"
    if layer.query is None:
        return "the constant diffusivity gives every pair the same weight, so no pair is stronger than another"
    if layer.graph_weight == 1:
        return "graph_weight=1 leaves latent pairs out"
    return None


def rows_of_attention(layer: DIFFormerConv, z: Tensor, targets: Tensor) -> Tensor:
    """Attention ``[H, r, n]`` of some rows to all."""
    assert layer.diffusivity is not None
    if layer.query is None:
        return z.new_full((layer.num_heads, targets.numel(), z.shape[0]), 1 / z.shape[0])
    q, k = layer.queries_and_keys(z)
    return attention_matrix(q[targets], k, layer.diffusivity)


@torch.no_grad()
def latent_layers(scene: Scene, shown: Tensor, classes: Tensor | None) -> list[LatentLayer]:
    """Every layer of a scene's DIFFormer.

    Args:
        scene: With states.
        shown: ``[r]`` rows that are shown; pairs are looked for among them.
        classes: ``[n]`` class of every row, -1 where unknown.
    """
    assert scene.states is not None
    device = scene.inputs.x.device
    return [
        _layer(layer, scene.states[k].to(device), shown.to(device), classes)  # type: ignore[arg-type]
        for k, layer in enumerate(scene.difformer.layers)
    ]


def _layer(layer: DIFFormerConv, z: Tensor, shown: Tensor, classes: Tensor | None) -> LatentLayer:
    n = z.shape[0]
    best = (z.new_empty(0), shown.new_empty(0), shown.new_empty(0))
    shares, entropies = [], []
    known = None if classes is None else classes.to(z.device)
    for start in range(0, shown.numel(), step := max(1, PAIRS_OF_A_BLOCK // max(n, 1))):
        targets = shown[start : start + step]
        rows = rows_of_attention(layer, z, targets).mean(0)
        entropies.append(torch.special.entr(rows.clamp_min(0)).sum(1))
        if known is not None:
            labelled = known[targets] >= 0
            same = (known[targets].unsqueeze(1) == known) & labelled.unsqueeze(1)
            mass = (rows * (known >= 0)).sum(1)
            shares.append(((rows * same).sum(1) / mass.clamp_min(1e-12))[labelled])
        among = rows[:, shown].masked_fill(targets.unsqueeze(1) == shown, -torch.inf)
        value, place = among.flatten().topk(min(PAIRS, among.numel()))
        here = (value, place % shown.numel(), start + place // shown.numel())
        joined = [torch.cat(pair) for pair in zip(best, here, strict=True)]
        order = joined[0].topk(min(PAIRS, joined[0].numel())).indices
        best = (joined[0][order], joined[1][order], joined[2][order])
    kept = best[0] > -torch.inf
    within = torch.cat(shares) if shares else None
    uniform = max(torch.tensor(float(n)).log().item(), 1e-12)
    return LatentLayer(
        source=best[1][kept].tolist(),
        target=best[2][kept].tolist(),
        weight=[float(f"{v * n:.4g}") for v in best[0][kept].tolist()],
        within=float(within.mean()) if within is not None and within.numel() else None,
        entropy=float(torch.cat(entropies).mean()) / uniform,
    )


def chance(classes: Tensor, shown: Tensor) -> float:
    """Mean over the shown of the share of their class among the labelled: what uniform attention would give."""
    labelled = classes[classes >= 0]
    counts = torch.bincount(labelled)
    own = classes[shown]
    return float(counts[own[own >= 0]].float().mean()) / max(labelled.numel(), 1)


def observed_pairs(scene: Scene, shown: Tensor) -> tuple[Tensor, Tensor]:
    """Observed edges between shown rows as places among them, self-loops left out."""
    if scene.graph is None:
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
    place = torch.full((scene.size,), -1)
    place[shown] = torch.arange(shown.numel())
    source, target = place[scene.graph.edge_index.cpu()]
    inside = (source >= 0) & (target >= 0) & (source != target)
    return source[inside], target[inside]
