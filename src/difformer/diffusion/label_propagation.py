r"""Label propagation: the same diffusion, of labels instead of features.

With Y⁰ the labels that are known (one-hot rows, zero rows elsewhere) and a propagation matrix S of the graph,

.. math::
    Y^{(k+1)} = \mathrm{clamp}\left[\alpha S Y^{(k)} + (1 - \alpha) Y^{(0)}\right],

which is `diffuse` with coupling αS, source Y⁰ of weight 1 - α, step size one and the clamp as activation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusion.coupling import GraphCoupling, Mix
from difformer.diffusion.dynamics import diffuse
from difformer.errors import UserError
from difformer.graph import Graph

CLAMPS = ("range", "labels", "none")


def propagate_labels(
    y: Tensor,
    graph: Graph,
    *,
    known: Tensor | None = None,
    num_classes: int | None = None,
    steps: int = 50,
    alpha: float = 0.9,
    weights: str = "gcn",
    clamp: str = "range",
    save: str = "last",
) -> Tensor:
    """Spreads known labels over a graph.

    Args:
        y: Labels: classes ``[N]`` (negative where unknown), or scores ``[N, C]``.
        graph: The graph.
        known: Which nodes' labels count: a mask ``[N]`` or indices. Left out, all that are not negative.
        num_classes: C; left out, the largest class plus one.
        steps: How many steps to take.
        alpha: What part comes from the neighbours; the rest is the known label itself.
        weights: Weights of the graph, as for `GraphCoupling`.
        clamp: ``"range"`` keeps scores in [0, 1]; ``"labels"`` puts the known labels back after every step;
            ``"none"`` does neither.
        save: ``"last"`` or ``"all"``, as for `diffuse`.

    Returns:
        Scores ``[N, C]``, or ``[steps + 1, N, C]`` with ``save="all"``.
    """
    if y.shape[:1] != (graph.num_nodes,) or y.dim() > 2:
        raise UserError(f"y must be [N] or [N, C] with N = {graph.num_nodes}, got {tuple(y.shape)}")
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha must lie in [0, 1], got {alpha!r}")
    if clamp not in CLAMPS:
        raise UserError(f"clamp must be one of {', '.join(CLAMPS)}, got {clamp!r}")
    start, fixed = _known_scores(y, known, num_classes)

    def clamped(scores: Tensor) -> Tensor:
        if clamp == "labels":
            return torch.where(fixed.unsqueeze(1), start, scores)
        return scores.clamp(0.0, 1.0) if clamp == "range" else scores

    # A step of size one with unit conservation keeps nothing of the states themselves.
    coupling = Mix((GraphCoupling(graph, weights),), (alpha,))
    return diffuse(
        start,
        coupling,
        steps=steps,
        conservation="unit",
        source_weight=1 - alpha,
        activation=clamped,
        save=save,
    )


def _known_scores(y: Tensor, known: Tensor | None, num_classes: int | None) -> tuple[Tensor, Tensor]:
    """Y⁰ ``[N, C]``, and which rows of it are known ``[N]``."""
    mask = torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
    if known is not None:
        mask = torch.zeros_like(mask).index_fill(0, known, True) if known.dtype != torch.bool else known
    if y.dim() == 2:
        scores = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        return torch.where(mask.unsqueeze(1), scores, 0.0), mask
    if y.is_floating_point():
        raise UserError(f"y must hold classes as integers, or scores [N, C]; got {y.dtype} {tuple(y.shape)}")
    mask = mask & (y >= 0)
    largest = int(y.max()) if y.numel() else -1
    classes = max(1, largest + 1) if num_classes is None else num_classes
    if largest >= classes:
        raise UserError(f"num_classes is {classes}, but y holds class {largest}")
    one_hot = functional.one_hot(torch.where(mask, y, 0), classes).to(torch.get_default_dtype())
    return torch.where(mask.unsqueeze(1), one_hot, 0.0), mask
