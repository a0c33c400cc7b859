"""Energy, rank and separation of the states of every layer, and what they mean in words.

Measured is the mean of δ(||z_i - z_j||²) over pairs of unit states (as `difformer energy` shows it). What a theorem
says is another curve: the diffusion from the same Z⁰, with the same f and step size, whose exchange is a function of
distances. There E(Z^(k+1), k) ≤ E(Z^(k), k), hence Σδ never rises. A trained network is covered by the theorem only if
it *is* that diffusion; where it is not, the reasons are named.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.linear import LINEAR
from difformer.diffusion import AllPairAttention, diffuse, penalty
from difformer.diffusion.diffusivity import CONSTANT
from difformer.diffusion.energy import effective_rank
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.report.sampling import draw
from difformer.report.scene import Scene

PAIRWISE_LIMIT = 4_000  # states whose pairs are summed one by one; more are drawn from
THEOREM_LIMIT = 1_000


@dataclass(frozen=True)
class LayerEnergies:
    """Entry k belongs to Z^(k), entry 0 to the input layer's.

    Args:
        energy: Mean δ over pairs of unit states.
        edges: Mean a_ij ||z_i - z_j||² over observed edges; None without any.
        rank: Effective rank.
        spread: Mean squared distance of unit states, in [0, 2]: 0 where all point the same way.
        separation: Share of the variance of unit states that lies between classes; None without classes.
        theorem: Mean δ along the diffusion that the theorem covers; None where it has nothing to say.
        reasons: Why the run itself is not covered; empty where it is.
        sampled: How many states stand for all in `energy`; None where all were taken.
    """

    energy: list[float]
    edges: list[float] | None
    rank: list[float]
    spread: list[float]
    separation: list[float] | None
    theorem: list[float] | None
    reasons: tuple[str, ...]
    sampled: int | None


@torch.no_grad()
def layer_energies(scene: Scene, classes: Tensor | None = None) -> LayerEnergies:
    """Of a scene with states; `classes` are -1 where unknown."""
    assert scene.states is not None
    model, states, graph = scene.difformer, scene.states, scene.graph
    layer: DIFFormerConv | None = model.layers[0] if len(model.layers) else None  # type: ignore[assignment]
    diffusivity = CONSTANT if layer is None or layer.diffusivity is None else layer.diffusivity
    some = None
    if diffusivity.name not in (*LINEAR, "identity") and scene.size > PAIRWISE_LIMIT:
        some = draw(scene.size, PAIRWISE_LIMIT)
    graph = None if graph is None else graph.to("cpu")
    energy, edges, rank, spread, separation = [], [], [], [], []
    for z in states:
        unit = functional.normalize(z, dim=-1)
        chosen = (unit if some is None else unit[some]).double()
        energy.append(float(penalty(diffusivity)(chosen)) / chosen.shape[0] ** 2)
        if graph is not None:
            edges.append(float(penalty(CONSTANT, graph=graph)(unit)) / graph.num_edges)
        rank.append(float(effective_rank(z)))
        spread.append(float(2 * (unit.square().sum(1).mean() - unit.mean(0).square().sum())))
        if classes is not None and (known := classes >= 0).any():
            separation.append(_between(unit[known], classes[known]))
    return LayerEnergies(
        energy,
        edges or None,
        rank,
        spread,
        separation or None,
        None if layer is None else _theorem(layer, states[0], len(model.layers)),
        () if layer is None else uncovered(model, scene),
        None if some is None else some.numel(),
    )


def _between(z: Tensor, classes: Tensor) -> float:
    """Σ_c n_c ||m_c - m||² / Σ_i ||z_i - m||²."""
    count = int(classes.max()) + 1
    sums = z.new_zeros(count, z.shape[1]).index_add(0, classes, z)
    sizes = torch.bincount(classes, minlength=count).to(z.dtype)
    means = sums / sizes.clamp_min(1).unsqueeze(1)
    total = float((z - z.mean(0)).square().sum())
    return float((sizes.unsqueeze(1) * (means - z.mean(0)).square()).sum()) / total if total > 0 else 0.0


def _theorem(layer: DIFFormerConv, z: Tensor, steps: int) -> list[float] | None:
    """Mean δ along Z⁺ = (1-τ)Z + τ D̄⁻¹ΩZ from the unit Z⁰; None without pairs or without τ < 1."""
    if layer.diffusivity is None or layer.form == "identity" or not layer.residual or layer.step_size >= 1:
        return None
    start = functional.normalize(z[draw(z.shape[0], THEOREM_LIMIT)].double(), dim=-1)
    start = start[start.square().sum(1) > 0.5]  # a state that is zero has no direction
    if start.shape[0] < 2:
        return None
    states = diffuse(start, AllPairAttention(layer.diffusivity), steps=steps, step_size=layer.step_size, save="all")
    measure = penalty(layer.diffusivity)
    return [float(measure(state)) / start.shape[0] ** 2 for state in states]


def uncovered(model: DIFFormer, scene: Scene) -> tuple[str, ...]:
    """What keeps a network from being the diffusion of the theorem, one clause each."""
    layer: DIFFormerConv = model.layers[0]  # type: ignore[assignment]
    reasons = []
    if layer.query is not None:
        if layer.qk_norm == "global":
            reasons.append("queries and keys are divided by the norm of all rows (qk_norm=global), not by their own")
        if not layer.tied_qk:
            reasons.append("queries and keys have weights of their own, so the exchange is not symmetric")
        elif not all(_isometry(one) for one in model.layers):  # type: ignore[arg-type]
            reasons.append("the map to queries is no isometry, so the exchange is no function of the states' distances")
    if layer.value is not None:
        reasons.append("values are transformed (transform=true)")
    if model.config["norm"]:
        reasons.append("a LayerNorm follows every step")
    if model.activation is not None:
        reasons.append(f"an activation ({model.activation}) follows every step")
    if not layer.residual or layer.step_size >= 1:
        reasons.append("a step keeps nothing of the state (the theorem needs a step size below 1)")
    if layer.num_heads > 1:
        reasons.append(f"{layer.num_heads} heads are averaged")
    if layer.source_weight:
        reasons.append("there is a source term")
    if scene.graph is not None:
        reasons.append("observed edges take part")
    assert scene.states is not None
    lengths = scene.states[:-1].norm(dim=-1)  # those that are stepped from
    if not bool(((lengths - 1).abs() < 1e-3).all()):
        reasons.append("the states are not all of unit length")
    return tuple(reasons)


def _isometry(layer: DIFFormerConv) -> bool:
    assert layer.query is not None
    weight = layer.query.weight.detach().double()
    gram = weight.T @ weight - torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    return float(gram.abs().max()) < 1e-3 and float(layer.query.bias.detach().abs().max()) < 1e-6
