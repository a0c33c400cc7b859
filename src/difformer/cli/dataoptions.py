"""``--data KEY=VALUE``: texts become what an option takes, by the annotation of the reader that takes it.

``int | None`` is a whole number or the word none, ``Sequence[float]`` numbers with commas between them, ``Column`` a
name or a number. What does not fit is refused here, where the words of the command line are still known.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from difformer.cli.options import key_values
from difformer.cli.output import shown
from difformer.cli.scope import outside

_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "none"}


def read_data_options(words: list[str] | None, dataset: str | None) -> dict[str, Any]:
    """Options of a data set, or of a user's own files where `dataset` is None.

    Raises:
        ValueError: If an option is not known, with the nearest one and all there are, or its value does not fit.
    """
    given = key_values(words, "--data")
    if not given:
        return {}
    kinds, defaults = _known(dataset)
    found: dict[str, Any] = {}
    for key, text in given.items():
        if key not in kinds:
            raise ValueError(_unknown(key, dataset, defaults) + outside([key]))
        found[key] = _value(key, text, kinds[key])
    return found


def _known(dataset: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Kind and default of every option."""
    import inspect

    from difformer.data import from_files
    from difformer.data.registry import annotations_of, dataset_options, option_kinds

    if dataset is not None:
        return option_kinds(dataset), dataset_options(dataset)
    return annotations_of(from_files), {
        key: parameter.default for key, parameter in inspect.signature(from_files).parameters.items()
    }


def _unknown(key: str, dataset: str | None, defaults: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, defaults, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    if dataset is None:
        return f"--data: own files have no option {key!r}; {hint}they take {', '.join(list(defaults)[3:])}"
    listed = ", ".join(f"{name}={_default(value)}" for name, value in defaults.items())
    return f"--data: data set {dataset!r} has no option {key!r}; {hint}it takes, with these defaults, {listed}"


def _default(value: Any) -> str:
    return ",".join(map(shown, value)) if isinstance(value, (tuple, list)) else shown(value)


def _value(key: str, text: str, annotation: str) -> Any:
    """The value of a text for an annotation."""
    kinds = _alternatives(annotation)
    several = next((kind for kind in kinds if kind.startswith("Sequence[")), None)
    single = [kind for kind in kinds if kind is not several and not kind.startswith("Mapping[")]
    if "None" in single and text.lower() == "none":
        return None
    if several is not None and ("," in text or single in ([], ["None"])):
        inner = several.removeprefix("Sequence[").removesuffix("]")
        return [_one(key, word.strip(), [inner], text) for word in text.split(",")]
    return _one(key, text, single, text)


def _alternatives(annotation: str) -> list[str]:
    """``"Column | Sequence[Column] | None"`` as its three parts; no annotation here has a bar within brackets."""
    return [part.strip() for part in annotation.split("|")]


def _one(key: str, text: str, kinds: list[str], whole: str) -> Any:
    if "bool" in kinds and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    for kind, number in (("int", int), ("Column", int), ("float", float)):
        if kind in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    if all(kind in _EXPECTED for kind in kinds):
        expected = " or ".join(_EXPECTED[kind] for kind in kinds)
        came = repr(text) if text == whole else f"{text!r} in {whole!r}"
        raise ValueError(f"--data {key}: expected {expected}, got {came}")
    return text.replace("\\t", "\t") if key == "delimiter" else text
