"""The parts of the page that look into the layers: map, attention, energy, predictions taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from difformer.nn import DIFFormerConv
from difformer.report.cards import TEXT_LENGTH, TITLE_LENGTH, shortened
from difformer.report.energy import LayerEnergies
from difformer.report.explanation import PARTS, Explanation, Step
from difformer.report.gathering import Material
from difformer.report.html import escape, paragraph, plot, section, table
from difformer.report.latent import chance, uniform_note, why_no_attention
from difformer.report.maps import Map, layer_names
from difformer.report.scene import Scene, is_diffusion
from difformer.report.words import verdict

NO_DIFFUSION = (
    "This model takes no diffusion steps over latent pairs, so there is {} to show; DIFFormer models have it."
)


def map_section(material: Material, scene: Scene | None, maps: Sequence[Map]) -> str:
    kind = material.task.kind
    title = "States layer by layer, and latent structure"
    parts = [
        paragraph(
            f"States of seed {material.seed}, projected to the two directions of largest variance of each layer, "
            "turned to lie like the layer before. Move the slider to follow the diffusion; point at an instance to see "
            "it."
        )
    ]
    for number, one in enumerate(maps):
        if kind == "graphs":
            said = (
                "Graphs, by their pooled states." if number == 0 else f"Nodes of graph {scene.number if scene else 0}."
            )
            parts.append(f"<h3>{escape(said)}</h3>")
        if kind == "series" and scene is not None:
            parts.append(f"<h3>{escape(f'Nodes at snapshot {scene.number}')}</h3>")
        parts.append(f'<div class="map" id="map-{number}"></div>')
        parts += [paragraph(note, "note") for note in one.notes]
    parts.append(paragraph(_about_pairs(scene, maps)))
    return section("map", title, *parts)


def _about_pairs(scene: Scene | None, maps: Sequence[Map]) -> str:
    if scene is None or scene.states is None:
        return NO_DIFFUSION.format("no latent structure")
    if not len(scene.difformer.layers):
        return "There are no diffusion layers, hence no latent pairs."
    layer: DIFFormerConv = scene.difformer.layers[0]  # type: ignore[assignment]
    if (why := why_no_attention(layer)) is not None:
        return f"{why[0].upper()}{why[1:]}."
    latent = maps[-1].latent
    evenness = ", ".join(f"{100 * one.entropy:.1f}" for one in latent)
    return (
        "Pairs are drawn where the attention of one shown instance to another is above the threshold, in units of the "
        f"uniform attention 1/n; the {max(len(one.weight) for one in latent)} strongest of a layer are kept. Entropy "
        f"of the attention, in percent of that of uniform attention, by layer: {evenness}."
    )


def within_data(one: Map, scene: Scene | None, classes: Tensor | None) -> dict[str, Any] | None:
    """Share of attention within classes by layer, and what uniform attention would give."""
    if classes is None or scene is None or not one.latent or any(layer.within is None for layer in one.latent):
        return None
    shares = [round(float(layer.within or 0), 4) for layer in one.latent]
    joined, edges = homophily(scene, classes)
    return {
        "layers": layer_names(len(shares) + 1)[1:],
        "share": shares,
        "chance": round(chance(classes, one.shown), 4),
        "observed": None if not edges else round(joined / edges, 4),
        "edges": edges,
        "note": uniform_note(one.data["uniform"], one.latent, chance(classes, one.shown)),
    }


def homophily(scene: Scene, classes: Tensor) -> tuple[int, int]:
    """Observed edges that join one class, and all whose two ends have a known label.

    Both directions of an edge count once, self-loops not at all.
    """
    if scene.graph is None:
        return 0, 0
    low, high = scene.graph.edge_index.cpu().sort(0).values
    apart = low != high
    pairs = (low[apart] * scene.size + high[apart]).unique()
    first, second = classes[pairs // scene.size], classes[pairs % scene.size]
    known = (first >= 0) & (second >= 0)
    return int((first == second)[known].sum()), int(known.sum())


def within_section(material: Material, scene: Scene | None, data: dict[str, Any] | None) -> str:
    title = "How much attention falls within classes"
    if data is not None:
        first, last = 100 * data["share"][0], 100 * data["share"][-1]
        edges = (
            ""
            if data["observed"] is None
            else f" Of the {data['edges']:,} observed edges whose two ends have a known label, "
            f"{100 * data['observed']:.1f} % join one class."
        )
        text = (
            f"At the last layer {last:.1f} % of an instance's attention goes to its own class (first layer "
            f"{first:.1f} %); uniform attention would give {100 * data['chance']:.1f} %.{edges}"
        )
        return section("within", title, paragraph(data["note"], "verdict"), paragraph(text), plot("within-plot"))
    if scene is None or scene.states is None:
        return section("within", title, paragraph(NO_DIFFUSION.format("no attention")))
    if len(scene.difformer.layers) and (why := why_no_attention(scene.difformer.layers[0])) is not None:  # type: ignore[arg-type]
        return section("within", title, paragraph(f"{why[0].upper()}{why[1:]}."))
    kind = material.task.kind
    what = "instances have no classes" if kind == "nodes" else f"the nodes of {kind} have no classes of their own"
    return section("within", title, paragraph(f"Not shown: {what}, so there is nothing to compare attention with."))


def energy_data(measured: LayerEnergies) -> dict[str, Any]:
    return {"layers": layer_names(len(measured.energy)), **asdict(measured)}


def verdict_of(material: Material, measured: LayerEnergies | None) -> str:
    """The plain-language line; empty for models without layers of diffusion."""
    if measured is None:
        return ""
    options = material.folder.about["model"].get("options", {})
    return verdict(measured, float(options.get("source_weight", 0.0)))


def energy_section(material: Material, scene: Scene | None, measured: LayerEnergies | None, said: str) -> str:
    if measured is None:
        return section("energy", "Energy", paragraph(NO_DIFFUSION.format("no energy")))
    assert scene is not None
    of = {
        "nodes": "",
        "series": f" Measured on snapshot {scene.number}.",
        "graphs": f" Measured on graph {scene.number}.",
    }
    sampled = f" Pairs of {measured.sampled:,} of {scene.size:,} states stand for all." if measured.sampled else ""
    columns: list[tuple[str, list[float] | None]] = [
        ("energy, all pairs", measured.energy),
        ("energy, edges", measured.edges),
        ("theorem's diffusion", measured.theorem),
        ("effective rank", measured.rank),
        ("distance of unit states", measured.spread),
        ("between classes", measured.separation),
    ]
    held = [(name, values) for name, values in columns if values is not None]
    rows = [
        [name, *(f"{values[k]:.4g}" for _, values in held)] for k, name in enumerate(layer_names(len(measured.energy)))
    ]
    return section(
        "energy",
        "Energy by layer",
        paragraph(said, "verdict"),
        plot("energy-plot"),
        paragraph(
            "Measured: mean of δ(‖zᵢ - zⱼ‖²) over pairs, and of ‖zᵢ - zⱼ‖² over observed edges, on unit states."
            f"{sampled}{of[material.task.kind]}"
        ),
        paragraph(_theorem_said(measured)),
        table(["state", *(name for name, _ in held)], rows, right=range(1, len(held) + 1)),
    )  # fmt: skip


def _theorem_said(measured: LayerEnergies) -> str:
    if len(measured.energy) == 1:
        return ""
    first = "The theorem on all-pair attention has nothing to say here."
    if measured.theorem:
        first = (
            "The theorem says that the energy of the diffusion from the same first states, with the same diffusivity "
            "and step size but an exchange by distances, never rises: that is the dashed line."
        )
    if not measured.reasons:
        return f"{first} This run is that diffusion: the dashed line is its own."
    why = "; ".join(measured.reasons)
    return f"{first} It does not cover this run: {why}. What is shown of the run is measured, not proved."


def explanation_data(one: Explanation) -> dict[str, Any]:
    """For the bars: effect of every part by layer."""
    return {
        "layers": [f"layer {step.layer}" for step in one.steps],
        "parts": {name: [float(f"{step.effects[name]:.5g}") for step in one.steps] for name in PARTS},
    }


def _influences(step: Step) -> list[list[object]]:
    """Rows of what was given in a step, all that is not listed in the last."""
    listed: list[list[object]] = [
        [
            step.layer,
            shortened(i.name, TITLE_LENGTH),
            i.through,
            f"{i.weight:.4g}",
            f"{i.length:.3g}",
            f"{i.effect:+.3g}",
        ]
        for i in step.influences
    ]
    return [*listed, [step.layer, "all others", "", "", "", f"{step.others:+.3g}"]] if listed else []


def explanation_section(material: Material, explanations: Sequence[Explanation]) -> str:
    title = "Predictions taken apart"
    if not explanations:
        text = (
            NO_DIFFUSION.format("no step to take apart")
            if not is_diffusion(material.loaded.model)
            else "No instance was chosen."
        )
        return section("explanations", title, paragraph(text))
    blocks = []
    for number, one in enumerate(explanations):
        where = {"nodes": "", "series": f" at snapshot {one.number}", "graphs": f" of graph {one.number}"}[
            material.task.kind
        ]
        target = f", target {one.target}" if one.target else ""
        head = f"{shortened(one.name, TEXT_LENGTH)}{where}: predicted {one.prediction}{target}"
        parts = [
            [
                s.layer,
                *(f"{s.lengths[p]:.3g}" for p in PARTS),
                *(f"{s.effects[p]:+.3g}" for p in PARTS),
                f"{s.residue:.0e}",
            ]
            for s in one.steps
        ]
        who = [row for s in one.steps for row in _influences(s)]
        headings = ["layer", *(f"‖{p}‖" for p in PARTS), *(f"{p} effect" for p in PARTS), "residue"]
        blocks.append(
            f"<details{' open' if number == 0 else ''}><summary>{escape(head)}</summary>"
            + paragraph(
                f"Score: {one.meaning} = {one.score:.4g} = "
                + " ".join(f"{value:+.4g} ({name})" for name, value in one.terms.items())
            )
            + plot(f"explanation-{number}")
            + table(headings, parts, right=range(len(headings)))
            + table(["layer", "instance", "through", "weight", "‖given‖", "effect"], who, right=(0, 3, 4, 5))
            + "</details>"
        )
    text = (
        "A step is exactly the sum of its parts: what is kept of the state (self), what latent pairs give, what "
        "observed edges give, and the source; the residue is rounding. An effect is what a part does to the score: "
        "after the last layer effects and biases add up to it, with the deviation of its LayerNorm held fixed; before "
        "they are of first order. More: "
        "difformer explain RUN --node ID."
    )
    return section("explanations", title, paragraph(text), *blocks)
