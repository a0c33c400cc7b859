r"""What each layer of a DIFFormer does: latent pairs, attention within classes, energy and rank.

Attention :math:`\hat s_{ij}` of instance i to instance j is computed for some i and *all* j, so that its rows sum to
one whatever is shown. Within class c(i) falls

.. math:: w_i = \sum_{j: c(j) = c(i)} \hat s_{ij} \Big/ \sum_{j: c(j)\ \mathrm{known}} \hat s_{ij},

and uniform attention would give the share of class c(i) among the labelled.

The measured energy is the mean of δ(||z_i - z_j||²) over pairs of unit states (as `difformer energy` shows it). What a
theorem says is another curve: the diffusion from the same Z⁰, with the same f and step size, whose exchange is a
function of distances. There E(Z^(k+1), k) ≤ E(Z^(k), k), hence Σδ never rises. A trained network is covered by the
theorem only if it *is* that diffusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.reference import attention_matrix
from difformer.attention.summary import LINEAR
from difformer.data import Task
from difformer.diffusion import AllPairAttention, diffuse, penalty
from difformer.errors import out_of_memory
from difformer.nn import DIFFormerConv
from difformer.nn.context import Structure
from difformer.nn.inspection import PAIRS_OF_A_BLOCK, energy_profile
from difformer.report.gather import Scene, draw, make_scene
from difformer.training.trained_run import load_run

PAIRS = 400  # kept per layer
ENTRIES = 50_000_000  # of attention computed per layer
NOTED, LARGEST_NOTED = 300, 100_000  # instances whose attention `uniform_note` computes, and of a task it looks at
ENTROPY_MARGIN = 0.01  # attention whose entropy is closer than this to the uniform one is called uniform
PAIRWISE_LIMIT = 4_000  # states; of more a sample is drawn, since all pairs are summed
THEOREM_LIMIT = 1_000
# Below these all states count as one: cosines above 0.99, or one singular value left.
ALIKE = 0.02
ONE_DIRECTION = 1.2
MUCH_CLOSER = 0.5  # of the distance before diffusion, below which states are no longer called apart
LOSS_OF_SEPARATION = 0.05
LITTLE = 0.02
NO_DIFFUSION = (
    "This model takes no diffusion steps over latent pairs, so there is {} to show; DIFFormer models have it."
)


@dataclass(frozen=True)
class LatentLayer:
    """What one layer's attention looks like."""

    source: list[int]  # [k] places among the shown instances that are attended to
    target: list[int]  # [k] places that attend
    weight: list[float]  # [k] attention in units of 1/n, the uniform one; strongest first
    within: float | None  # mean of w_i over the shown instances with a class; None without classes
    entropy: float  # mean entropy of the rows over that of uniform attention: 1 if all weights are equal


def why_no_pairs(scene: Scene | None) -> str:
    """Why a scene has no latent pairs, with a place for what is missing; empty if it has some."""
    if scene is None or scene.states is None:
        return NO_DIFFUSION
    if not len(scene.encoder.layers):
        return "There are no diffusion layers, hence no latent pairs."
    layer: DIFFormerConv = scene.encoder.layers[0]
    if layer.diffusivity is None:
        return "This model propagates only over observed edges (no diffusivity), so it infers no latent pairs."
    if layer.form == "identity":
        return "The identity diffusivity exchanges nothing, so there are no latent pairs."
    if layer.query is None:
        return "The constant diffusivity gives every pair the same weight, so no pair is stronger than another."
    return "With graph_weight=1 latent pairs are left out." if layer.graph_weight == 1 else ""


@torch.no_grad()
def latent_layers(scene: Scene, shown: Tensor, classes: Tensor | None) -> list[LatentLayer]:
    """Every layer of a scene's DIFFormer, with pairs among the `shown` rows. Classes are -1 if unknown."""
    assert scene.states is not None
    device = scene.inputs.x.device
    known = None if classes is None else classes.to(device)
    steps = zip(scene.encoder.layers, scene.states[:-1], strict=True)
    return [_latent_layer(layer, z.to(device), shown.to(device), known) for layer, z in steps]


def _latent_layer(layer: DIFFormerConv, z: Tensor, shown: Tensor, known: Tensor | None) -> LatentLayer:
    n, (q, k) = z.shape[0], layer.queries_and_keys(z)
    asked = places_of_queries(shown, n).to(z.device)  # places among the shown
    assert layer.diffusivity is not None
    shares, entropies, among = [z.new_empty(0)], [], []
    for targets in shown[asked].split(max(1, PAIRS_OF_A_BLOCK // max(n, 1))):
        rows = attention_matrix(q[targets], k, layer.diffusivity).mean(0)
        entropies.append(torch.special.entr(rows).sum(1))
        among.append(rows[:, shown].masked_fill(targets.unsqueeze(1) == shown, -torch.inf))
        if known is not None:
            mass = rows @ functional.one_hot(known + 1).to(z.dtype)  # attention by class, the unlabelled first
            own = mass.gather(1, known[targets].unsqueeze(1) + 1).squeeze(1)
            shares.append((own / mass[:, 1:].sum(1).clamp_min(1e-12))[known[targets] >= 0])
    flat, within = torch.cat(among).flatten(), torch.cat(shares)
    weight, place = flat.topk(min(PAIRS, int((flat > -torch.inf).sum())))
    return LatentLayer(
        source=(place % shown.numel()).tolist(),
        target=asked[place // shown.numel()].tolist(),
        weight=[float(f"{v * n:.4g}") for v in weight.tolist()],
        within=float(within.mean()) if within.numel() else None,
        entropy=float(torch.cat(entropies).mean()) / math.log(max(n, 2)),
    )


def places_of_queries(shown: Tensor, size: int) -> Tensor:
    """Places among the shown instances whose attention to all is computed: as many as `ENTRIES` allows."""
    return draw(shown.numel(), max(1, ENTRIES // max(size, 1)))


def near_uniform(layer: LatentLayer, chance: float | None, count: int) -> bool:
    """Whether a layer's attention cannot be told from uniform attention, whose share within classes is p = `chance`.

    Its entropy is within 1 % of the uniform one, or its share within two standard errors √(p (1 - p) / count) of p.
    """
    if layer.entropy >= 1 - ENTROPY_MARGIN:
        return True
    if layer.within is None or chance is None or not count:
        return False
    return abs(layer.within - chance) <= 2 * math.sqrt(chance * (1 - chance) / count)


def chance(classes: Tensor, shown: Tensor) -> float:
    """Share within classes that uniform attention gives: mean over the shown of their class's share of the labelled."""
    labelled = classes[classes >= 0]
    counts = torch.bincount(labelled)
    own = classes[shown]
    return float(counts[own[own >= 0]].float().mean()) / max(labelled.numel(), 1)


@dataclass(frozen=True)
class Attention:
    """Attention in a scene, layer by layer, and within classes."""

    layers: list[LatentLayer]
    asked: int  # shown instances whose attention to all was computed
    chance: float | None  # share within classes that uniform attention would give; None without classes
    uniform: list[bool]  # for each layer, see `near_uniform`
    edges: int = 0  # observed edges with two known labels; both directions count once, self-loops not at all
    joined: int = 0  # those that join one class

    @property
    def even(self) -> dict[int, LatentLayer]:
        """Layers with close to uniform attention, by their number from 1."""
        return {k: one for k, one in enumerate(self.layers, 1) if self.uniform[k - 1]}


def attention_of(scene: Scene, shown: Tensor, classes: Tensor | None) -> Attention | None:
    """Attention of a scene; None if there are no latent pairs. Classes are -1 if unknown."""
    if why_no_pairs(scene):
        return None
    found, asked = latent_layers(scene, shown, classes), shown[places_of_queries(shown, scene.size)]
    share, count, edges, joined = None, 0, 0, 0
    if classes is not None and all(one.within is not None for one in found):
        share, count = chance(classes, asked), int((classes[asked] >= 0).sum())
        if scene.graph is not None:
            low, high = scene.graph.edge_index.cpu().sort(0).values
            pairs = (low * scene.size + high)[low != high].unique()  # numbers are much quicker to compare than columns
            first, second = classes[pairs // scene.size], classes[pairs % scene.size]
            known = (first >= 0) & (second >= 0)
            edges, joined = int(known.sum()), int((known & (first == second)).sum())
    uniform = [near_uniform(one, share, count) for one in found]
    return Attention(found, asked.numel(), share, uniform, edges, joined)


def uniform_note(run: str | Path, task: Task, device: str) -> str:
    """What nearly uniform attention at every layer of a trained model means; empty if it is not, or not affordable."""
    if task.kind != "nodes" or task.num_instances > LARGEST_NOTED:  # the states of all layers are computed
        return ""
    try:
        scene = make_scene(load_run(run, task=task, device=device))
        found = attention_of(scene, draw(scene.size, NOTED), None)
    except (RuntimeError, MemoryError) as error:  # the run is complete; a note must not hide its result
        if not out_of_memory(error):
            raise
        return f"attention was not measured: {str(error).partition(chr(10))[0] or 'out of memory'}"
    if found is None or not found.layers or not all(found.uniform):
        return ""
    least = 100 * min(one.entropy for one in found.layers)
    return (
        f"attention is close to uniform at every layer (entropy {least:.1f} % of the uniform one), which is usual for "
        f"simple and sigmoid scores: each instance receives about the same mean of all others. Whether that helps is "
        f"shown by `--with attention-off`; `--model difformer-sharp` selects near instances instead"
    )


@dataclass(frozen=True)
class LayerEnergies:
    """How states come together; entry k belongs to Z^(k), entry 0 to the input layer."""

    energy: list[float]  # mean δ over pairs of unit states
    edges: list[float] | None  # mean a_ij ||z_i - z_j||² over observed edges; None without any
    rank: list[float]  # effective rank
    spread: list[float]  # mean squared distance of unit states, in [0, 2]: 0 if all point the same way
    # share of the variance of unit states that lies between classes; None without classes
    separation: list[float] | None
    theorem: list[float] | None  # mean δ along the diffusion that the theorem covers; None if none is
    sampled: int | None  # size of the sample that `energy` was measured on; None if all states were


@torch.no_grad()
def layer_energies(scene: Scene, classes: Tensor | None = None) -> LayerEnergies:
    """Energies of a scene with states; `classes` are -1 if unknown."""
    assert scene.states is not None
    states, graph = scene.states, None if scene.graph is None else scene.graph.to("cpu")
    layers: list[DIFFormerConv] = list(scene.encoder.layers)
    diffusivity, some = layers[0].diffusivity if layers else None, None
    if diffusivity is not None and diffusivity.name not in (*LINEAR, "identity") and scene.size > PAIRWISE_LIMIT:
        some = draw(scene.size, PAIRWISE_LIMIT)
    whole = energy_profile(states.double(), diffusivity if some is None else None, Structure(graph))
    measured = whole if some is None else energy_profile(states[:, some].double(), diffusivity, Structure(None))
    units = [functional.normalize(z, dim=-1) for z in states]
    separation = None
    if classes is not None and (known := classes >= 0).any():
        separation = [_between(unit[known], classes[known]) for unit in units]
    return LayerEnergies(
        energy=measured.energy.tolist(),
        edges=None if whole.dirichlet is None else whole.dirichlet.tolist(),
        rank=whole.effective_rank.tolist(),
        spread=[float(2 * (unit.square().sum(1).mean() - unit.mean(0).square().sum())) for unit in units],
        separation=separation,
        theorem=_theorem(layers[0], states[0], len(layers), graph is not None) if layers else None,
        sampled=None if some is None else some.numel(),
    )


def _between(z: Tensor, classes: Tensor) -> float:
    """Σ_c n_c ||m_c - m||² / Σ_i ||z_i - m||²."""
    sizes = torch.bincount(classes).to(z.dtype).unsqueeze(1)
    means = z.new_zeros(len(sizes), z.shape[1]).index_add(0, classes, z) / sizes.clamp_min(1)
    total = float((z - z.mean(0)).square().sum())
    return float((sizes * (means - z.mean(0)).square()).sum()) / total if total > 0 else 0.0


def _theorem(layer: DIFFormerConv, z: Tensor, steps: int, edges: bool) -> list[float] | None:
    """Mean δ along Z⁺ = (1-τ)Z + τ D̄⁻¹ΩZ from the unit Z⁰; None without pairs or without 0 < τ < 1."""
    # In a graph without edges each instance's own value is mixed in with weight w, so the step is τ(1 - w).
    step = layer.step_size * (1 if edges or layer.graph_weight is None else 1 - layer.graph_weight)
    if layer.diffusivity is None or layer.form == "identity" or not layer.residual or not 0 < step < 1:
        return None
    start = functional.normalize(z[draw(z.shape[0], THEOREM_LIMIT)].double(), dim=-1)
    start = start[start.square().sum(1) > 0.5]  # a state that is zero has no direction
    if start.shape[0] < 2:
        return None
    measure, coupling = penalty(layer.diffusivity), AllPairAttention(layer.diffusivity)
    states = diffuse(start, coupling, steps=steps, step_size=step, save="all")
    return [float(measure(state)) / start.shape[0] ** 2 for state in states]


def smoothed_layers(measured: LayerEnergies) -> list[int]:
    """Layers, counted from 1, whose states have become alike."""
    pairs = list(enumerate(zip(measured.spread, measured.rank, strict=True)))[1:]
    several = measured.rank[0] >= ONE_DIRECTION  # with one channel or feature there is one direction from the start
    return [k for k, (spread, rank) in pairs if spread < ALIKE or (several and rank < ONE_DIRECTION)]
