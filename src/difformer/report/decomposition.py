r"""One instance, taken apart: what each layer's step was made of, and which instances and edges moved the prediction.

A step of a DIFFormer is a sum,

.. math::
    p_i = \underbrace{(1 - τ) z_i}_{\text{self}}
        + \underbrace{τ a \sum_j \tfrac1H \sum_h \hat s^{(h)}_{ij} v^{(h)}_j}_{\text{latent}}
        + \underbrace{τ b \sum_j \tilde a_{ij} \bar v_j}_{\text{observed}}
        + \underbrace{τ β z^{(0)}_i}_{\text{source}},
    \qquad z_i^{+} = σ'(\mathrm{LayerNorm}(p_i)),

with a = b = 1 where latent and observed terms are added, a = 1 - w and b = w where they are mixed. The parts and every
single :math:`j` are computed one by one and must add up to the step that the model takes; `Step.residue` is what is
left.

The *effect* of a part x on the prediction is :math:`g^\top x`. The score m is the output of the predicted class less
that of the runner-up (the output itself for a regression or a single column), and g takes a change of p_i to m:
:math:`g = \frac{1}{s} C (γ \odot σ' \odot ∂m/∂z_i^{+})`, the LayerNorm being linear (C centres, γ scales) once its
deviation s is held at what it was. After the last layer this is exact: effects of all parts, biases of LayerNorm and
output layer, and what a curved activation adds, sum to m (`last_terms`). Before it, ∂m/∂z⁺ is the derivative through
all later layers, so effects are of first order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.difformer import ACTIVATIONS
from difformer.report.latent import attention_of
from difformer.report.scene import Scene

PARTS = ("self", "latent", "observed", "source")


@dataclass(frozen=True)
class Influence:
    """What one instance gave to another in a step.

    Args:
        node: Number of the giver within the scene.
        name: What it is called.
        through: ``"latent"`` or ``"observed"``.
        weight: Attention (mean over heads) or entry of the normalised graph, before step size and mixing.
        length: Norm of what it gave.
        effect: What that did to the score.
    """

    node: int
    name: str
    through: str
    weight: float
    length: float
    effect: float


@dataclass(frozen=True)
class Step:
    """One layer's step, taken apart.

    Args:
        layer: Counted from 1.
        lengths: Norm of each part of p_i.
        effects: Effect of each part on the score.
        influences: Those with the largest effect, of all instances.
        others: Effect of all latent and observed instances that are not listed.
        residue: Norm of p_i less all parts, over the norm of p_i.
    """

    layer: int
    lengths: dict[str, float]
    effects: dict[str, float]
    influences: tuple[Influence, ...]
    others: float
    residue: float


@dataclass(frozen=True)
class Passage:
    """One pass through a scene's model, kept for as many explanations as are wanted.

    Args:
        scene: What was passed through.
        states: Z⁰ … Z^L, ready to be differentiated.
        before: Z^(k+1) before norm and activation, a layer each.
    """

    scene: Scene
    states: tuple[Tensor, ...]
    before: tuple[Tensor, ...]


def pass_through(scene: Scene) -> Passage:
    """The pass of `DIFFormer.trajectory`, with what each step gives before it is normalised."""
    model = scene.difformer
    with torch.enable_grad():
        states, before = [model.encode(scene.inputs.x).detach().requires_grad_()], []
        for k, layer in enumerate(model.layers):
            p = layer(states[-1], scene.graph, source=states[0])
            z = model.norms[k](p)
            states.append(z if model.activation is None else ACTIVATIONS[model.activation](z))
            before.append(p.detach())
    return Passage(scene, tuple(states), tuple(before))


@torch.no_grad()
def take_apart(passage: Passage, k: int, slope: Tensor, i: int, names: Callable[[int], str], top_k: int) -> Step:
    """Layer k's step for instance i.

    Args:
        passage: The pass.
        k: Which layer, from 0.
        slope: ∂m/∂z_i after the layer.
        i: Which instance.
        names: What instances are called.
        top_k: Influences listed.
    """
    scene, model = passage.scene, passage.scene.difformer
    layer: DIFFormerConv = model.layers[k]  # type: ignore[assignment]
    z, p = passage.states[k].detach(), passage.before[k][i]
    given = _given(layer, z, scene, i)
    parts = {name: z.new_zeros(z.shape[1]) for name in PARTS}
    if layer.residual:
        parts["self"] = (1 - layer.step_size) * z[i]
    for through, (_, _, vectors) in given.items():
        parts[through] = parts[through] + vectors.sum(0)
    if layer.source_weight:
        parts["source"] = layer.step_size * layer.source_weight * passage.states[0].detach()[i]
    residue = float((p - sum(parts.values())).norm() / p.norm().clamp_min(1e-12))
    g = _through_norm(model, k, p, slope)
    found = [
        Influence(int(j), names(int(j)), through, float(w), float(length), float(effect))
        for through, (nodes, weights, vectors) in given.items()
        if through != "self"
        for j, w, length, effect in _largest(nodes, weights, vectors, vectors @ g, top_k)
    ]
    found.sort(key=lambda one: -abs(one.effect))
    effects = {name: float(part @ g) for name, part in parts.items()}
    listed = found[:top_k]
    others = effects["latent"] + effects["observed"] - sum(one.effect for one in listed)
    lengths = {name: float(part.norm()) for name, part in parts.items()}
    return Step(k + 1, lengths, effects, tuple(listed), others, residue)


def _largest(
    nodes: Tensor, weights: Tensor, vectors: Tensor, effects: Tensor, count: int
) -> list[tuple[float, float, float, float]]:
    order = effects.abs().topk(min(count, effects.numel())).indices
    columns = (nodes[order], weights[order], vectors[order].norm(dim=1), effects[order])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _given(layer: DIFFormerConv, z: Tensor, scene: Scene, i: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """What every instance gives to i, by way: nodes, weights, and vectors ``[n, c]`` as they enter p_i."""
    heads, graph = layer.num_heads, scene.graph
    v = z.unsqueeze(1) if layer.value is None else layer.value(z).view(z.shape[0], heads, layer.out_channels)
    mean = v.mean(1)
    tau = layer.step_size if layer.residual else 1.0
    latent, observed = 1.0, 1.0
    if graph is not None and layer.diffusivity is None:
        latent = 0.0
    elif graph is not None and layer.graph_weight is not None:
        latent, observed = 1 - layer.graph_weight, layer.graph_weight
    here = torch.tensor([i], device=z.device)
    found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    if layer.diffusivity is None or layer.form == "identity":
        if latent:  # an instance that is propagated to itself: no exchange
            found["self"] = (here, z.new_ones(1), tau * latent * mean[here])
    elif latent:
        attention = attention_of(layer, z)(here)[:, 0]  # [H, n]
        vectors = torch.einsum("hn,nhc->nc", attention, v.expand(-1, heads, -1)) / heads
        found["latent"] = (torch.arange(z.shape[0], device=z.device), attention.mean(0), tau * latent * vectors)
    if graph is not None:
        edges = (graph.edge_index[1] == i).nonzero().squeeze(1)
        weights = graph.normalised_weights(layer.graph_norm, z.dtype)[edges]
        nodes = graph.edge_index[0][edges]
        found["observed"] = (nodes, weights, tau * observed * weights.unsqueeze(1) * mean[nodes])
    return found


def _through_norm(model: DIFFormer, k: int, p: Tensor, slope: Tensor) -> Tensor:
    """g: from the slope at z⁺ to that at p, the deviation of the LayerNorm held fixed."""
    norm = model.norms[k]
    with torch.enable_grad():
        after = norm(p.unsqueeze(0))[0].detach().requires_grad_()
        if model.activation is not None:
            (slope,) = torch.autograd.grad(ACTIVATIONS[model.activation](after), after, slope)
    if isinstance(norm, nn.Identity):
        return slope
    scaled = slope * norm.weight  # type: ignore[operator]
    deviation = (p.var(unbiased=False) + norm.eps).sqrt()  # type: ignore[operator]
    return (scaled - scaled.mean()) / deviation


@torch.no_grad()
def last_terms(passage: Passage, effects: dict[str, float], slopes: Tensor, i: int, score: float) -> dict[str, float]:
    """Terms that sum to the score m, seen from the last layer.

    Args:
        passage: The pass.
        effects: Of the last layer's parts on m; empty for a model without layers, whose state is one term.
        slopes: ``[n, d]`` ∂m/∂z of the final states.
        i: Which instance.
        score: m.
    """
    model, final = passage.scene.difformer, passage.states[-1].detach()
    given = (slopes * final).sum(1)
    terms = dict(effects) if effects else {"state": float(given[i])}
    bias = score - float(given.sum())  # of the output layer
    if effects:
        k, norm = len(model.layers) - 1, model.norms[-1]
        after = norm(passage.before[k][i].unsqueeze(0))[0]
        slope = slopes[i]
        if model.activation is not None:
            with torch.enable_grad():
                at = after.clone().requires_grad_()
                (slope,) = torch.autograd.grad(ACTIVATIONS[model.activation](at), at, slopes[i])
            terms["activation"] = float(given[i] - slope @ after)
        if not isinstance(norm, nn.Identity):
            bias += float(slope @ norm.bias)  # type: ignore[operator]
    terms["biases"] = bias
    if isinstance(passage.scene.number, int) and int((slopes.abs().sum(1) > 0).sum()) > 1:
        terms["other nodes"] = float(given.sum() - given[i])
    return terms
