r"""Other models as options of `diffuse`: the rows of the paper's comparison (`tbl-existing`).

Each function returns the options with which `diffuse` computes the propagation of a model:

    >>> diffuse(z, steps=2, **gcn(graph))          # two layers of graph convolution, without weights

Pass the weights and the activation of a layer as `transform` and `activation`. In matrix form, with Ŝ = D^-½ A D^-½ of
the given graph (add self-loops if the model has them):

==============  ======================================  =======================================================
setting         one step                                layer that computes the same
==============  ======================================  =======================================================
`mlp`           Z                                       a linear layer with an activation
`gcn`           (1-τ)Z + τŜZ                            GCNConv (τ = 1)
`gin`           (1+ε)Z + AZ                             GINConv
`appnp`         (1-α)ŜZ + αZ⁰                           APPNP
`gcnii`         (1-α)ŜZ + αZ⁰                           GCN2Conv, with weights as `transform`
`gat`           (1-τ)Z + τSZ, s_ij ∝ a_ij f(u_ij)       the paper's extension of GAT to diffusivities
`transformer`   (1-τ)Z + τSZ, s_ij ∝ e^(x_ij/√d)        TransformerConv on the complete graph, tied weights (τ = 1)
`difformer_s`   (1-τ)Z + τSZ, s_ij ∝ 1 + x_ij           DIFFormer-s
`difformer_a`   (1-τ)Z + τSZ, s_ij ∝ 1/(1 + e^-x_ij)    DIFFormer-a
==============  ======================================  =======================================================

Label propagation (`propagate_labels`) diffuses labels instead of features. With the known labels Y⁰ (one-hot rows, zero
rows elsewhere) and a propagation matrix S of the graph,

.. math::
    Y^{(k+1)} = \mathrm{clamp}\left[\alpha S Y^{(k)} + (1 - \alpha) Y^{(0)}\right],

which is `diffuse` with coupling αS, source Y⁰ of weight 1 - α, step size one and the clamp as activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusion.coupling import AllPairAttention, Coupling, EdgeAttention, GraphCoupling, Identity, Mix
from difformer.diffusion.dynamics import diffuse
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError, check_choice
from difformer.graph import Graph

Options = dict[str, Any]

CLAMPS = ("range", "labels", "none")


def _options(coupling: Coupling, step_size: float = 1.0, **more: Any) -> Options:
    return {"coupling": coupling, "step_size": step_size, "conservation": "unit", **more}


def mlp() -> Options:
    """No exchange: σ(h(Z))."""
    return _options(Identity())


def gcn(graph: Graph, *, step_size: float = 1.0) -> Options:
    """Graph convolution, with a residual if τ < 1. The paper has I instead of D̃, hence ``"unit"`` conservation."""
    return _options(GraphCoupling(graph, "gcn"), step_size)


def gin(graph: Graph, *, eps: float = 0.0) -> Options:
    """Isomorphism network: a state keeps all of itself and adds its neighbours, so nothing is conserved.

    The paper's S = A + I with step τ gives (1+τ)Z + τAZ, which is τ times this with ε = 1/τ.
    """
    coupling = Mix((GraphCoupling(graph, "raw"), Identity()), (1.0, eps))
    return {"coupling": coupling, "step_size": 1.0, "conservation": "none"}


def appnp(graph: Graph, *, alpha: float = 0.1) -> Options:
    """Personalised PageRank: a convex combination of propagated states and Z⁰, which bounds the states.

    The paper's form (1-τ)Z + τŜZ + τβZ⁰ is not convex, and grows if Z⁰ has a component in the null space.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha must lie in [0, 1], got {alpha!r}")
    return _options(Mix((GraphCoupling(graph, "gcn"),), (1 - alpha,)), source_weight=alpha)


def gcnii(graph: Graph, *, alpha: float = 0.1) -> Options:
    """Graph convolution with initial residual, which propagates like APPNP.

    GCN2Conv applies its weights h to the whole sum; as S acts on rows and h on columns, use ``transform=h`` and
    ``source=h(z0)``.
    """
    return appnp(graph, alpha=alpha)


def gat(
    graph: Graph, *, diffusivity: str | Diffusivity = "simple", metric: str = "cosine", step_size: float = 1.0
) -> Options:
    """Attention on observed edges, with a diffusivity instead of the score of GAT."""
    return _options(EdgeAttention(graph, diffusivity, metric), step_size)


def transformer(*, step_size: float = 1.0) -> Options:
    """Softmax attention between all pairs of normalised states, with temperature √d."""
    return _options(AllPairAttention("softmax", "cosine"), step_size)


def difformer_s(*, metric: str = "cosine", step_size: float = 0.5) -> Options:
    """Simple diffusivity between all pairs, in linear time."""
    return _options(AllPairAttention("simple", metric), step_size)


def difformer_a(*, metric: str = "cosine", step_size: float = 0.5) -> Options:
    """Sigmoid diffusivity between all pairs."""
    return _options(AllPairAttention("sigmoid", metric), step_size)


def propagate_labels(
    y: Tensor,
    graph: Graph,
    *,
    known: Tensor | None = None,
    steps: int = 50,
    alpha: float = 0.9,
    weights: str = "gcn",
    clamp: str = "range",
    save: str = "last",
) -> Tensor:
    """Spreads known labels over a graph.

    Args:
        y: Labels: classes ``[N]`` (negative if unknown; C is the largest plus one), or scores ``[N, C]``.
        graph: The graph.
        known: The nodes with known labels, as a mask ``[N]`` or indices; by default all with non-negative labels.
        steps: Number of steps.
        alpha: Share of the neighbours; the rest is the known label.
        weights: Weights of the graph, as for `GraphCoupling`.
        clamp: ``"range"`` keeps scores in [0, 1]; ``"labels"`` restores the known labels after every step; ``"none"``
            does neither.
        save: ``"last"`` or ``"all"``, as for `diffuse`.

    Returns:
        Scores ``[N, C]``, or ``[steps + 1, N, C]`` with ``save="all"``.
    """
    if y.shape[:1] != (graph.num_nodes,) or y.dim() > 2:
        raise UserError(f"y must be [N] or [N, C] with N = {graph.num_nodes}, got {tuple(y.shape)}")
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha must lie in [0, 1], got {alpha!r}")
    check_choice("clamp", clamp, CLAMPS)
    start, fixed = _known_scores(y, known)

    def clamped(scores: Tensor) -> Tensor:
        if clamp == "labels":
            return torch.where(fixed.unsqueeze(1), start, scores)
        return scores.clamp(0.0, 1.0) if clamp == "range" else scores

    options = _options(Mix((GraphCoupling(graph, weights),), (alpha,)), source_weight=1 - alpha, activation=clamped)
    return diffuse(start, steps=steps, save=save, **options)


def _known_scores(y: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
    """Y⁰ ``[N, C]`` and the mask ``[N]`` of its known rows."""
    mask = torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
    if known is not None:
        mask = torch.zeros_like(mask).index_fill(0, known, True) if known.dtype != torch.bool else known
    if y.dim() == 2:
        scores = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        return torch.where(mask.unsqueeze(1), scores, 0.0), mask
    if y.is_floating_point():
        raise UserError(f"y must hold classes as integers, or scores [N, C]; got {y.dtype} {tuple(y.shape)}")
    mask = mask & (y >= 0)
    classes = int(y.max()) + 1 if y.numel() else 1
    one_hot = functional.one_hot(torch.where(mask, y, 0), max(classes, 1)).to(torch.get_default_dtype())
    return torch.where(mask.unsqueeze(1), one_hot, 0.0), mask
