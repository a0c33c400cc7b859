"""What is said of the settings before a training: where they come from, and which of them change nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from difformer.cli.output import shown

if TYPE_CHECKING:
    from difformer.cli.request import Request
    from difformer.experiments.presets import Preset
    from difformer.training.source import TaskSource

# Settings of a training that also a model without parameters heeds; all others are about steps of an optimiser.
HEEDED = ("batch_size", "metric", "graph", "precision")
# Settings that say how long a training is and how often one looks, and so choose no model.
LENGTH = frozenset({"epochs", "patience", "eval_every"})


def describe_request(request: Request, source: TaskSource | None) -> list[str]:
    """Model, settings, their origin and remarks, in a few lines.

    Args:
        request: What was asked for.
        source: Where the task comes from; None for one that is partitioned.
    """
    settings = ", ".join(f"{key}={shown(value)}" for key, value in request.settings.items()) or "defaults"
    lines = [f"model: {request.config.model} ({settings})"]
    if request.preset is not None:
        lines += _origin(request, source)
    elif not set(request.settings) - LENGTH:
        lines.append(untuned(request, source))
    return lines + untrained(request)


def untuned(request: Request, source: TaskSource | None) -> str:
    """That settings are defaults, and which presets there are instead."""
    from difformer.experiments.presets import PREFERRED, load_presets

    model, dataset = request.config.model, request.dataset
    if dataset is None:
        data = "a partitioned task" if source is None else "your own files"
        return f"untuned: defaults of {model}, no preset for {data}"
    known = [p for p in load_presets() if (p.model, p.dataset, p.variant) == (model, dataset, None)]
    if not known:
        return f"untuned: defaults of {model}, no preset for {dataset}"
    known.sort(key=lambda preset: PREFERRED.index(preset.name) if preset.name in PREFERRED else len(PREFERRED))
    here = _protocol(source)
    names = [p.name if p.protocol in (None, here) else f"{p.name} under protocol {p.protocol}" for p in known]
    first = known[0]
    words = f"--preset {first.name}" + ("" if first.protocol in (None, here) else f" --protocol {first.protocol}")
    return f"untuned: defaults of {model}; presets for {dataset}: {', '.join(names)} (add {words})"


def untrained(request: Request) -> list[str]:
    """A remark where settings of a training are given to a model that has nothing to train."""
    from difformer.training.config import TrainConfig
    from difformer.zoo import find

    if find(request.config.model).trained:
        return []
    fields = {field.name for field in dataclasses.fields(TrainConfig)} - {"model", "options", *HEEDED}
    chosen = {} if request.preset is None else request.preset.settings
    typed = [f"{k}={shown(v)}" for k, v in request.settings.items() if k in fields and chosen.get(k) != v]
    return [f"note: {request.config.model} trains nothing, so {', '.join(typed)} changes nothing"] if typed else []


def _origin(request: Request, source: TaskSource | None) -> list[str]:
    """Of a preset: what it is, what found it, and whether it was chosen for what is asked."""
    preset = request.preset
    assert preset is not None
    lines = [f"preset: {preset.describe()}"]
    lines += [f"found by: {preset.command}"] if preset.command else []
    lines += [f"note: {preset.note}"] if preset.note else []
    if request.dataset is not None and preset.dataset != request.dataset:
        lines.append(f"note: these settings were chosen on {preset.dataset}, not on {request.dataset}")
    if preset.protocol is not None and _protocol(source) != preset.protocol:
        lines.append(
            f"note: these settings belong to protocol {preset.protocol!r}; add --protocol {preset.protocol} for it"
        )
    if other := _other_data(preset, source):
        words = " ".join(f"--data {option}" for option in other)
        lines.append(f"note: these settings were found with {', '.join(other)}; add {words} for it")
    return lines


def _other_data(preset: Preset, source: TaskSource | None) -> list[str]:
    """Options of the data set that a preset was found with, where others are asked for: ``["per_class=200"]``."""
    if source is None or source.name != preset.dataset:
        return []
    from difformer.data.registry import dataset_options

    here = {**dataset_options(preset.dataset), **source.options}
    found = {key: value for key, value in preset.data_options.items() if key != "protocol"}
    return [f"{key}={value}" for key, value in found.items() if shown(here.get(key)) != value]


def _protocol(source: TaskSource | None) -> str | None:
    """The protocol of a data set that is asked for, by its default where nobody said it."""
    if source is None or source.name is None:
        return None
    from difformer.data.entries import ENTRIES

    return source.options.get("protocol") or next(iter(ENTRIES[source.name].protocols), None)
