"""``difformer models``: what can be trained, and with which settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.table import Table

from difformer import experiments, zoo
from difformer.cli.command import argument, command, model_names
from difformer.cli.description import meanings
from difformer.cli.output import Output, listed, make_table, shown
from difformer.training.config import TrainConfig
from difformer.zoo.model_catalogue import MODELS, ModelInfo

NONE = "–"
KEY = (
    "Letters of the cost: N nodes, E edges, E₂ pairs at two hops, d channels, C classes, k neighbours, K hops or terms "
    "of a series, m random features, T iterations. Of coupling and energy: dᵢ the degree of i, qᵢ and kⱼ queries and "
    "keys, vᵢ values, Z states, Z_k those of the layer before, Z_0 the first, s_ij the coupling, δ a concave function, "
    "λ and η weights. An energy is the paper's for such a coupling: steps descend it under conditions on τ and "
    "weights, which a trained network need not meet."
)


@command("difformer models difformer-s")
def models(
    output: Output,
    name: str | None = argument(
        "A model, to see its settings and presets.", metavar="NAME", autocompletion=model_names
    ),
) -> None:
    """List the models, or show one.

    The list says what each model is and when to use it. `difformer models NAME` shows what a model diffuses over, its
    energy and the cost of a layer, its settings with their meaning and defaults, and its presets.
    """
    if name is not None:
        _one(name, output)
        return
    output.json([{**asdict(info), "fixed": dict(info.fixed)} for info in MODELS.values()])
    output.show(listing(MODELS.values()))
    output.say("`difformer models NAME` shows formulas, cost, settings and presets of one;")
    output.say("`difformer fit DATASET --model NAME` trains it.")
    output.say("None of them predicts links or uses edge features (edge weights are used).")


def _one(name: str, output: Output) -> None:
    info = zoo.find(name)
    training = {key: value for key, value in TrainConfig().to_dict().items() if key not in ("model", "options")}
    settings: dict[str, Any] = {"options": zoo.options_of(name), "training": training}
    documented = {"options": zoo.model_registry.model_class(info), "training": TrainConfig}
    means = {part: meanings(documented[part], values) for part, values in settings.items()}
    presets = [preset for preset in experiments.presets.load_presets() if preset.model == name]
    document = {**asdict(info), "fixed": dict(info.fixed), **settings, "meanings": means}
    output.json({**document, "presets": [preset.to_dict() for preset in presets]})
    facts = {"name": name, "about": info.about, "tasks": ", ".join(info.kinds)}
    facts |= {"needs a graph": "yes" if info.needs_graph else "no", "coupling": info.coupling}
    output.facts({**facts, "energy": info.energy, "cost per layer": info.cost, "is": listed(info.fixed)})
    output.show(KEY)
    for part, values in settings.items():
        whose = "the model (`--set KEY=VALUE`), with their defaults" if part == "options" else "the training"
        output.say(f"settings of {whose}:")
        output.table(
            ["setting", "default", "meaning"], [[key, shown(v), means[part][key]] for key, v in values.items()]
        )
    if not presets:
        output.say(f"There is no preset for {name}; `difformer tune` finds settings and writes one.")
        return
    output.say("presets (`--preset NAME`):")
    rows = []
    for p in presets:
        data = p.dataset if p.variant is None else f"{p.dataset} ({p.variant})"
        score = NONE if p.validation is None else f"{p.metric or 'score'} {p.validation:.4g}"
        rows.append([data, p.name, p.protocol or NONE, score, p.trials or NONE, p.source])
    output.table(["data set", "preset", "protocol", "validation", "trials", "source"], rows)
    output.say(f"`difformer models {name} --json` adds their values, and the commands that found them.")


def listing(models: Iterable[ModelInfo]) -> Table:
    """Models by group, one row each."""
    rows: list[tuple[str, str]] = []
    for group, members in groupby(models, key=lambda info: info.group):
        rows += [("", "")] * bool(rows) + [(group.upper(), "")]
        rows += [(info.name, info.summary or info.about) for info in members]
    return make_table(["model", "what it is, and when to use it"], rows)
