"""The presets of a model, for people: what each was chosen on, how well it did there, and how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from difformer.cli.output import Output, shown

if TYPE_CHECKING:
    from difformer.experiments.presets import Preset


def list_presets(model: str, presets: Sequence[Preset], output: Output) -> None:
    """A row a preset, and where there is more to see."""
    if not presets:
        output.say("There is no preset for it; `difformer tune` finds settings and writes one.")
        return
    output.say("presets (`--preset NAME`):")
    output.table(
        ["data set", "preset", "protocol", "validation", "trials", "source"],
        [[_data(p), p.name, p.protocol or "–", _score(p), _trials(p), p.source] for p in presets],
        right=["trials"],
    )
    output.say(f"`difformer models {model} --presets` shows their values, and the commands that found them.")


def describe_presets(model: str, presets: Sequence[Preset], output: Output) -> None:
    """Every preset in full: origin, values, and the command that found it."""
    if not presets:
        output.say(f"There is no preset for {model}; `difformer tune` finds settings and writes one.")
    for preset in presets:
        output.say(f"{_data(preset)}, {preset.name}: {preset.source}")
        facts = {
            "protocol": preset.protocol or "",
            "validation": "" if preset.validation is None else f"{_score(preset)}, {_trials(preset)} trials",
            "values": ", ".join(f"{key}={shown(value)}" for key, value in preset.settings.items()),
            "found by": preset.command or "",
            "note": preset.note or "",
        }
        for key, value in facts.items():
            if value:
                output.say(f"  {key}: {value}")


def _data(preset: Preset) -> str:
    """The data set, with the question that was asked of it where there are several."""
    return preset.dataset if preset.variant is None else f"{preset.dataset} ({preset.variant})"


def _score(preset: Preset) -> str:
    return "–" if preset.validation is None else f"{preset.metric or 'score'} {preset.validation:.4g}"


def _trials(preset: Preset) -> str:
    return "–" if preset.trials is None else str(preset.trials)
