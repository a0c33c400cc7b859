r"""Latent structure of a scene: which pairs exchange most at every layer, and how much attention stays within classes.

Attention :math:`\hat s_{ij}` of instance i to instance j is worked out for some i and *all* j, so that its rows sum to
one whatever is shown. Within class c(i) falls

.. math:: w_i = \sum_{j: c(j) = c(i)} \hat s_{ij} \Big/ \sum_{j: c(j)\ \mathrm{known}} \hat s_{ij},

and uniform attention would give the share of class c(i) among the labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.reference import attention_matrix
from difformer.nn.conv import DIFFormerConv
from difformer.nn.inspection import PAIRS_OF_A_BLOCK
from difformer.report.sampling import draw
from difformer.report.scene import Scene

PAIRS = 400  # kept of every layer
ENTROPY_MARGIN = 0.01
ENTRIES = 50_000_000  # of attention that are computed per layer


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


def attention_of(layer: DIFFormerConv, z: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from some rows to their attention ``[H, r, n]`` to all; queries and keys are worked out once."""
    assert layer.diffusivity is not None
    if layer.query is None:
        return lambda targets: z.new_full((layer.num_heads, targets.numel(), z.shape[0]), 1 / z.shape[0])
    diffusivity = layer.diffusivity
    q, k = layer.queries_and_keys(z)
    return lambda targets: attention_matrix(q[targets], k, diffusivity)


@torch.no_grad()
def latent_layers(scene: Scene, shown: Tensor, classes: Tensor | None) -> list[LatentLayer]:
    """Every layer of a scene's DIFFormer.

    Args:
        scene: With states.
        shown: ``[r]`` rows that are shown; pairs are looked for among them, from those of `asking`.
        classes: ``[n]`` class of every row, -1 where unknown.
    """
    assert scene.states is not None
    device = scene.inputs.x.device
    return [
        _layer(layer, scene.states[k].to(device), shown.to(device), classes)  # type: ignore[arg-type]
        for k, layer in enumerate(scene.difformer.layers)
    ]


def asking(shown: Tensor, size: int) -> Tensor:
    """Places among the shown whose attention to all is worked out: all, or as many as `ENTRIES` of attention allow."""
    return draw(shown.numel(), max(1, ENTRIES // max(size, 1)))


def _layer(layer: DIFFormerConv, z: Tensor, shown: Tensor, classes: Tensor | None) -> LatentLayer:
    n = z.shape[0]
    asked = asking(shown, n).to(z.device)
    best = (z.new_empty(0), asked.new_empty(0), asked.new_empty(0))
    known = None if classes is None else classes.to(z.device)
    members = None if known is None else functional.one_hot(known.clamp_min(-1) + 1).to(z.dtype)
    shares, entropies, attention = [], [], attention_of(layer, z)
    for places in asked.split(max(1, PAIRS_OF_A_BLOCK // max(n, 1))):
        targets = shown[places]
        rows = attention(targets).mean(0)
        entropies.append(torch.special.entr(rows).sum(1))
        if known is not None and members is not None:
            mass = rows @ members  # attention by class, the unlabelled first
            own = mass.gather(1, known[targets].unsqueeze(1) + 1).squeeze(1)
            shares.append((own / mass[:, 1:].sum(1).clamp_min(1e-12))[known[targets] >= 0])
        among = rows[:, shown].masked_fill(targets.unsqueeze(1) == shown, -torch.inf)
        value, place = among.flatten().topk(min(PAIRS, among.numel()))
        here = (value, place % shown.numel(), places[place // shown.numel()])
        joined = [torch.cat(pair) for pair in zip(best, here, strict=True)]
        order = joined[0].topk(min(PAIRS, joined[0].numel())).indices
        best = (joined[0][order], joined[1][order], joined[2][order])
    kept = best[0] > -torch.inf
    within = torch.cat(shares) if shares else None
    return LatentLayer(
        source=best[1][kept].tolist(),
        target=best[2][kept].tolist(),
        weight=[float(f"{v * n:.4g}") for v in best[0][kept].tolist()],
        within=float(within.mean()) if within is not None and within.numel() else None,
        entropy=float(torch.cat(entropies).mean()) / math.log(max(n, 2)),
    )


def near_uniform(layer: LatentLayer, chance: float | None, count: int) -> bool:
    """Whether a layer's attention cannot be told from uniform attention.

    That is so where its entropy is within 1 % of the uniform one, or where the share within classes lies within two
    standard errors √(p (1 - p) / count) of what uniform attention gives.

    Args:
        layer: The layer.
        chance: Share p that uniform attention would give; None without classes.
        count: Instances that the share was measured on.
    """
    if layer.entropy >= 1 - ENTROPY_MARGIN:
        return True
    if layer.within is None or chance is None or not count:
        return False
    return abs(layer.within - chance) <= 2 * math.sqrt(chance * (1 - chance) / count)


def uniform_note(uniform: Sequence[bool], latent: Sequence[LatentLayer], chance: float | None) -> str:
    """The sentence about layers whose attention is close to uniform; empty where there are none."""
    if not any(uniform):
        return ""
    numbers = [str(k + 1) for k, even in enumerate(uniform) if even]
    where = "at every layer" if all(uniform) else f"at layer{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    figures = [f"entropy {min(100 * one.entropy for one, even in zip(latent, uniform, strict=True) if even):.1f} %"]
    last = next(one for one, even in reversed(list(zip(latent, uniform, strict=True))) if even)
    if last.within is not None and chance is not None:
        figures.append(f"{100 * last.within:.1f} % within classes where uniform attention gives {100 * chance:.1f} %")
    return (
        f"Attention is close to uniform {where} ({', '.join(figures)}): the strongest pairs are the largest of nearly "
        "equal weights, not structure. Attention off may do as well."
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
