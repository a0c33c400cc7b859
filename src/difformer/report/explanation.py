r"""One prediction, explained: in one sentence (`difformer.report.attribution`), and layer by layer as an exact sum.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from difformer.data import Task
from difformer.errors import UserError, did_you_mean
from difformer.nn import DIFFormer, DIFFormerConv, GraphLevel, readout
from difformer.nn.difformer import ACTIVATIONS
from difformer.report.attribution import Attribution, attribute, explained_column, remainder, sentence
from difformer.report.gather import Material, Scene, column_names, is_diffusion, make_scene, usual_number
from difformer.report.layers import attention_of
from difformer.training.model import in_units
from difformer.training.run_folder import RunFolder
from difformer.training.trained_run import Loaded, load_run

PARTS = ("self", "latent", "observed", "source")
WRONG, NARROW = 2, 1  # instances that a report explains by itself
# A number, a name, or both a snapshot or graph and a node of it.
Place = int | str | tuple[int, int]


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
    """One pass through a scene's model, kept for as many explanations as are wanted."""

    scene: Scene  # what was passed through
    states: tuple[Tensor, ...]  # Z⁰ … Z^L, ready to be differentiated
    before: tuple[Tensor, ...]  # Z^(k+1) before norm and activation, one per layer


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
    """Layer k's step (from 0) for instance i, `slope` being ∂m/∂z_i after the layer."""
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
    found: list[Influence] = []
    for through, (nodes, weights, vectors) in given.items():
        effect = vectors @ g
        for at in effect.abs().topk(min(top_k, effect.numel())).indices.tolist() if through != "self" else ():
            j, numbers = int(nodes[at]), (weights[at], vectors[at].norm(), effect[at])
            found.append(Influence(j, names(j), through, *map(float, numbers)))
    found.sort(key=lambda one: -abs(one.effect))
    effects = {name: float(part @ g) for name, part in parts.items()}
    listed = found[:top_k]
    others = effects["latent"] + effects["observed"] - sum(one.effect for one in listed)
    lengths = {name: float(part.norm()) for name, part in parts.items()}
    return Step(k + 1, lengths, effects, tuple(listed), others, residue)


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
    infers = layer.diffusivity is not None and layer.form != "identity"
    if graph is None and infers and layer.graph_weight is not None:  # without edges its own value is mixed in
        latent = 1 - layer.graph_weight
        found["self"] = (here, z.new_ones(1), tau * layer.graph_weight * mean[here])
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


def _before_activation(model: DIFFormer, k: int, p: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """LayerNorm(p_i), and ∂m there from ∂m/∂z_i⁺."""
    with torch.enable_grad():
        after = model.norms[k](p.unsqueeze(0))[0].detach().requires_grad_()
        if model.activation is not None:
            (slope,) = torch.autograd.grad(ACTIVATIONS[model.activation](after), after, slope)
    return after.detach(), slope


def _through_norm(model: DIFFormer, k: int, p: Tensor, slope: Tensor) -> Tensor:
    """g: from the slope at z⁺ to that at p, the deviation of the LayerNorm held fixed."""
    norm, (_, slope) = model.norms[k], _before_activation(model, k, p, slope)
    if isinstance(norm, nn.Identity):
        return slope
    scaled = slope * norm.weight  # type: ignore[operator]
    return (scaled - scaled.mean()) / (p.var(unbiased=False) + norm.eps).sqrt()  # type: ignore[operator]


@torch.no_grad()
def last_terms(passage: Passage, effects: dict[str, float], slopes: Tensor, i: int, score: float) -> dict[str, float]:
    """Terms that sum to the score m, from the last layer's `effects` on it and the slopes ∂m/∂z after it."""
    model, final = passage.scene.difformer, passage.states[-1].detach()
    given = (slopes * final).sum(1)
    terms = dict(effects) if effects else {"state": float(given[i])}
    bias = score - float(given.sum())  # of the output layer
    if effects:
        k, norm = len(model.layers) - 1, model.norms[-1]
        after, slope = _before_activation(model, k, passage.before[k][i], slopes[i])
        if model.activation is not None:
            terms["activation"] = float(given[i] - slope @ after)
        if not isinstance(norm, nn.Identity):
            bias += float(slope @ norm.bias)  # type: ignore[operator]
    terms["biases"] = bias
    if isinstance(passage.scene.number, int) and int((slopes.abs().sum(1) > 0).sum()) > 1:
        terms["other nodes"] = float(given.sum() - given[i])
    return terms


@dataclass(frozen=True)
class Explanation:
    """Why an instance was predicted as it was.

    Args:
        name: The instance.
        node: Its number within the scene (a snapshot, a graph, or the whole task).
        number: Snapshot or graph; None for a task on nodes.
        score: m, see the module.
        meaning: What m is, in words.
        prediction: What was predicted.
        target: What it should be; empty where unknown.
        steps: One per layer.
        terms: The score as a sum: effects of the last layer's parts, ``"biases"`` of LayerNorm and output layer,
            ``"activation"`` (what a curved one adds) and, of graphs, ``"other nodes"``; the sum is exact.
        title: The instance with its snapshot or graph, and how these were chosen where none was named.
        attribution: The prediction by columns and neighbours; None where features are too large for it.
        sentence: The same in one sentence.
        remainder: What of the prediction could not be attributed, in words; empty where the effects add up.
    """

    name: str
    node: int
    number: int | None
    score: float
    meaning: str
    prediction: str
    target: str
    steps: tuple[Step, ...] = field(repr=False)
    terms: dict[str, float] = field(default_factory=dict)
    title: str = ""
    attribution: Attribution | None = field(default=None, repr=False)
    sentence: str = ""
    remainder: str = ""


def explain_node(
    run: RunFolder | str | Path,
    node: Place,
    *,
    top_k: int = 8,
    seed: int | None = None,
    task: Task | None = None,
    device: str | torch.device = "auto",
) -> Explanation:
    """Takes one prediction of a run apart.

    Args:
        run: The run folder.
        node: An instance by number or name. Of a series ``"SNAPSHOT:NODE"``, or a node of the last test snapshot; of
            graphs ``"GRAPH:NODE"``, or a graph, of which the node with the largest effect is taken. A pair of numbers
            is understood too.
        top_k: Instances and edges listed per layer.
        seed: Which of the run's seeds; the best on validation by default.
        task: The run's task, where it was made from a task object.
        device: Where to.

    Raises:
        UserError: If there is no such instance, or the model takes no diffusion steps.
    """
    loaded = load_run(run, seed=seed, task=task, device=device)
    return explain_nodes(loaded, [node], top_k=top_k)[0]


def explain_nodes(loaded: Loaded, nodes: Sequence[Place], *, top_k: int = 8) -> list[Explanation]:
    """Several predictions of a run that is loaded; those of one scene share a forward pass."""
    if top_k < 1:
        raise UserError(f"top_k must be at least 1, got {top_k}")
    if not is_diffusion(loaded.model):
        own = type(getattr(loaded.model, "model", loaded.model)).__name__  # within the adapter of an own model
        raise UserError(f"model {own} takes no diffusion steps to be taken apart; DIFFormer models do")
    passages: dict[int | None, Passage] = {}
    found = []
    for node in nodes:
        number, place = locate(loaded, node)
        if number not in passages:
            passages[number] = pass_through(make_scene(loaded, number, with_states=False))
        scene = passages[number].scene
        one = _explain(loaded, passages[number], place, top_k)
        title = _title(loaded, one, usual=_pair(node, loaded.task.instance_names)[0] is None)
        parts = attribute(loaded, scene, one.node, _namer(loaded.task, scene))
        text = sentence(loaded.task, one.prediction, parts)
        left = remainder(loaded.task, parts)
        found.append(replace(one, title=title, attribution=parts, sentence=text, remainder=left))
    return found


def _title(loaded: Loaded, one: Explanation, *, usual: bool) -> str:
    """``GYOR (node 7 of snapshot 5)``; what was not named but chosen, `usual`, is said with how."""
    task = loaded.task
    if task.kind == "nodes":
        return one.name
    scene = "snapshot" if task.kind == "series" else "graph"
    where = f"node {one.node} of {scene} {one.number}"
    if task.kind == "graphs" and task.instance_names:
        assert one.number is not None
        where += f", {task.instance_names[one.number]}"
    if usual and task.kind == "graphs":
        where += ", the node with the largest effect"
    elif usual:
        named = {"test": loaded.split.test, "validation": loaded.split.valid, "training": loaded.split.train}
        part = next((name for name, held in named.items() if held.numel()), None)
        where += f", the last{f' of the {part} part' if part else ''}"
    return where if one.name == f"node {one.node}" else f"{one.name} ({where})"


def locate(loaded: Loaded, node: Place) -> tuple[int | None, int | None]:
    """Snapshot or graph (None on nodes) and place there (None for a whole graph)."""
    task = loaded.task
    if task.kind == "nodes":
        if isinstance(node, tuple):
            raise UserError(f"node: {node} names a snapshot or graph; {task.name!r} has neither")
        return None, find(node, task.num_nodes, task.instance_names, "instance")
    first, second = _pair(node, task.instance_names)
    if task.kind == "series":
        number = usual_number(loaded) if first is None else find(first, task.num_instances, (), "snapshot")
        names = task.instance_names if len(task.instance_names) == task.num_nodes else ()
        return number, find(second, task.num_nodes, names, "node")
    number = find(second if first is None else first, task.num_instances, task.instance_names, "graph")
    assert task.node_ptr is not None
    size = int(task.node_ptr[number + 1] - task.node_ptr[number])
    return number, None if first is None else find(second, size, (), "node")


def _pair(node: Place, names: Sequence[str]) -> tuple[int | str | None, int | str]:
    """``"A:B"`` or ``(A, B)`` as two, anything else as the second of them; a name may have a colon in it."""
    if isinstance(node, tuple):
        return node
    if isinstance(node, str) and node not in names and ":" in node:
        first, _, second = node.rpartition(":")
        return first, second
    return None, node


def find(word: int | str, count: int, names: Sequence[str], what: str) -> int:
    """By name or number; a whole number from Python is a number, a text is a name first."""
    if isinstance(word, str) and word in names:
        places = [place for place, name in enumerate(names) if name == word]
        if len(places) > 1:
            shown = ", ".join(map(str, places[:5])) + (" …" if len(places) > 5 else "")
            raise UserError(f"node: {len(places)} have the name {word!r}; give the number of one of them: {shown}")
        return places[0]
    if str(word).isdecimal() and int(word) < count:
        return int(word)
    known = f"names such as {names[0]!r}, or " if names else ""
    hint = did_you_mean(str(word), names) if isinstance(word, str) and not word.isdecimal() else ""
    raise UserError(
        f"node: there is no {what} {word!r}; {hint}{'E' if hint else 'e'}xpected {known}a number from 0 to {count - 1}"
    )


def _explain(loaded: Loaded, passage: Passage, place: int | None, top_k: int) -> Explanation:
    scene, states = passage.scene, passage.states
    model = scene.difformer
    with torch.enable_grad():
        if isinstance(loaded.model, GraphLevel):
            outputs = model.decode(readout(states[-1], None, loaded.model.how))[0]
        else:
            assert place is not None
            outputs = model.decode(states[-1][place])
        outputs = in_units(loaded.model, outputs)
        score, meaning = _score(loaded.task, outputs)
        slopes = torch.autograd.grad(score, states, retain_graph=True)
    if place is None:
        place = int((slopes[-1] * states[-1].detach()).sum(1).abs().argmax())
    names = _namer(loaded.task, scene)
    steps = [take_apart(passage, k, slopes[k + 1][place], place, names, top_k) for k in range(len(model.layers))]
    prediction, target = _said(loaded.task, scene, place, outputs.detach())
    value = float(score.detach())
    terms = last_terms(passage, steps[-1].effects if steps else {}, slopes[-1], place, value)
    return Explanation(names(place), place, scene.number, value, meaning, prediction, target, tuple(steps), terms)


def _score(task: Task, outputs: Tensor) -> tuple[Tensor, str]:
    names = column_names(task)
    if task.problem == "multiclass":
        if outputs.numel() == 1:
            return outputs[0], f"output of {names[0]!r}, the only class"
        first, second = outputs.detach().topk(2).indices.tolist()
        return outputs[first] - outputs[second], f"output of {names[first]!r} less that of {names[second]!r}"
    column = explained_column(task, outputs)
    return outputs[column], "the output" if outputs.numel() == 1 else f"output of {names[column]!r}"


def _namer(task: Task, scene: Scene) -> Callable[[int], str]:
    """What the instances of a scene are called."""
    fits = task.kind == "nodes" or (task.kind == "series" and len(task.instance_names) == scene.size)
    names, what = task.instance_names if fits else (), "instance" if task.kind == "nodes" else "node"
    return lambda i: names[i] if i < len(names) else f"{what} {i}"


def _said(task: Task, scene: Scene, place: int, outputs: Tensor) -> tuple[str, str]:
    """Prediction and target as texts."""
    names = column_names(task)
    if task.kind == "series":
        assert scene.number is not None
        y = task.y[scene.number][place]
    else:
        y = task.y[place if scene.number is None else scene.number]
    if task.problem == "multiclass":
        return names[int(outputs.argmax())], names[int(y)] if int(y) >= 0 else ""
    if task.problem == "multilabel":
        said = [name for name, value in zip(names, outputs.tolist(), strict=True) if value > 0]
        wanted = [name for name, value in zip(names, y.reshape(-1).tolist(), strict=True) if value > 0.5]
        return ", ".join(said) or "none", ", ".join(wanted) or "none"
    values = [f"{v:.4g}" for v in outputs.reshape(-1).tolist()]
    return ", ".join(values), ", ".join("" if v != v else f"{v:.4g}" for v in y.reshape(-1).tolist())


def worth_explaining(material: Material) -> list[Place]:
    """Confident errors and a narrow success; of a series the largest error of its snapshot, of graphs the one shown."""
    task, outputs = material.task, material.outputs
    number = usual_number(material.loaded)
    if task.kind == "graphs":
        assert number is not None
        return [number]
    if task.kind == "series":
        assert number is not None
        gap = (outputs[number].reshape(task.y[number].shape) - task.y[number]).abs()
        flat = gap.reshape(gap.shape[0], -1).sum(1).nan_to_num(-1)
        return [(number, int(flat.argmax()))]
    part = material.rows
    y, o = task.y[part], outputs[part]
    if task.problem == "multiclass":
        return _surprising(part, o, y)
    gap = ((o.sigmoid() if task.problem == "multilabel" else o).reshape(y.shape) - y).abs().nan_to_num(0)
    return part[gap.reshape(len(part), -1).sum(1).topk(min(WRONG, len(part))).indices].tolist() if len(part) else []


def _surprising(part: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor) -> list[Place]:
    top = outputs.softmax(-1).topk(min(2, outputs.shape[1]), dim=-1)
    margin = top.values[:, 0] - (top.values[:, 1] if outputs.shape[1] > 1 else 0)
    wrong = (top.indices[:, 0] != targets) & (targets >= 0)
    found: list[Place] = []
    for which, sign, count in ((wrong, -1, WRONG), (~wrong & (targets >= 0), 1, NARROW)):
        rows = which.nonzero().squeeze(1)
        found += part[rows[(sign * margin[rows]).argsort()[:count]]].tolist()
    return found
