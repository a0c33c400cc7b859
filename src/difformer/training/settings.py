"""What a person means by a setting: the nearest name of a misspelt one, and whether the word none is a name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence


def unknown_setting(name: str, model: str, training: Sequence[str], options: Sequence[str]) -> str:
    """What to say of a setting that neither the training nor the model has."""
    from difformer.zoo import find

    fixed = find(model).fixed
    if name in fixed:
        free = "model 'difformer' lets you choose it" if model.startswith("difformer") else "choose another model"
        return f"setting {name} is what makes {model!r} that model ({name}={fixed[name]}); {free}"
    near = nearest(name, [*training, *options])
    hint = f"did you mean {near}? " if near else ""
    return (
        f"unknown setting {name!r}; {hint}Training takes {', '.join(training)}; "
        f"model {model!r} takes {', '.join(options)}"
    )


def nearest(name: str, known: Sequence[str]) -> str | None:
    """What was probably meant: a name that is alike, one with a word that is alike, or one with these initials."""
    if close := difflib.get_close_matches(name, known, n=1):
        return close[0]
    words = {word: full for full in reversed(known) for word in full.split("_") if len(word) > 3}
    if close := difflib.get_close_matches(name, words, n=1):
        return words[close[0]]
    initials = ("".join(word[:1] for word in full.split("_")) for full in known)
    return next((full for full, letters in zip(known, initials, strict=True) if letters == name), None)


def takes_a_name(setting: str, model: str, config: type) -> bool:
    """Whether a setting is always a text, by its annotation: then the word none is a name, as in ``qk_norm=none``."""
    from difformer.zoo.model_registry import find, model_class, parameters_of

    kinds = {field.name: str(field.type) for field in dataclasses.fields(config)}
    for name, parameter in parameters_of(model_class(find(model))).items():
        kinds.setdefault(name, str(parameter.annotation))
    return kinds.get(setting) == "str"
