"""Options that several commands share, and values written as ``KEY=VALUE``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field
from typing import Any

import typer

from difformer.errors import UserError, did_you_mean

OWN_DATA = "Your own data"
DATA = "Data"
MODEL = "Model and training"


def option(
    help: str, default: Any = None, *names: str, low: int | None = None, panel: str | None = None, **given: Any
) -> Any:
    """An option and its default, which help shows unless it is empty; `low` is the least value."""
    shown = not any(default is empty for empty in (None, False, ...))
    return typer.Option(default, *names, help=help, show_default=shown, min=low, rich_help_panel=panel, **given)


def argument(help: str, default: Any = None, **given: Any) -> Any:
    return typer.Argument(default, help=help, show_default=False, **given)


def member(help: str, *given: Any, declare: Callable[..., Any] = option, **more: Any) -> Any:
    """An option as a field of a dataclass, a group of options such as `difformer.cli.inputs.Data`."""
    declared = declare(help, *given, **more)
    return field(default=declared.default, metadata={"option": declared})


def dataset_names(incomplete: str) -> list[str]:
    """For completion in a shell."""
    from difformer.data.lookup import list_datasets

    return [one.entry.name for one in list_datasets() if one.entry.name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """For completion in a shell."""
    from difformer.zoo.model_catalogue import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


RUN = argument("Run folder, as written by `difformer fit`.", ..., metavar="RUN")
SEED = option("Seed of the run to use; by default the one with the best validation score.")
FORCE = option("Overwrite an existing file.", False, "--force")
DEVICE = option("auto, cpu, cuda, cuda:1 or mps.", "auto")
MODEL_NAME = option(
    "Model to train; `difformer models` lists them. Your own: package.module:Class.",
    panel=MODEL,
    autocompletion=model_names,
)
SETTINGS = option(
    "A setting of the model or the training, such as hidden_channels=64; repeatable. `difformer models NAME` lists "
    "them.",
    None,
    "--set",
    metavar="KEY=VALUE",
    panel=MODEL,
)
METRIC = option("Metric that selects the epoch and is reported: accuracy, rocauc, f1, mse, mae …", panel=MODEL)


def setting_words(settings: list[str] | None, metric: str | None, batch_size: int | None = None) -> list[str]:
    """All settings as ``KEY=VALUE``; an unknown metric is refused before any data are read."""
    words = list(settings or ())
    if metric is not None:
        from difformer.training.metrics import find_metric

        words.append(f"metric={find_metric(metric.lower()).name}")
    return words if batch_size is None else [*words, f"batch_size={batch_size}"]


def key_values(words: list[str] | None, option: str) -> dict[str, str]:
    """``["a=1", "b=x"]`` as a mapping of texts."""
    found: dict[str, str] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{option}: expected KEY=VALUE, got {word!r}")
        key = key.strip().replace("-", "_")
        if key in found:
            raise UserError(f"{option}: {key} is given twice, as {found[key]!r} and {value!r}")
        found[key] = value.strip()
    return found


def read_seeds(text: str | None, default: int) -> list[int]:
    """``"5"`` is seeds 0 to 4, ``"3,7"`` are these two, ``"3,"`` is this one, ``"0-4"`` are all from 0 to 4."""
    if text is None:
        return list(range(default))
    numbers: list[int] = []
    try:
        for word in text.strip().removesuffix(",").split(","):
            first, _, last = word.strip().partition("-")
            numbers += range(int(first), int(last) + 1) if first and last else [int(word)]
    except ValueError:
        raise UserError(
            f"--seeds: expected a number of seeds such as 5, or seeds such as 0,3,7 or 0-4 (one seed: 3,); got {text!r}"
        ) from None
    if not numbers:
        raise UserError(f"--seeds: expected a range such as 0-4, from a smaller to a larger seed; got {text!r}")
    if "," not in text and "-" not in text.strip()[1:]:
        if numbers[0] < 1:
            raise UserError(f"--seeds: expected at least 1, got {numbers[0]}")
        return list(range(numbers[0]))
    for number in numbers:
        if number < 0:
            raise UserError(f"--seeds: expected seeds of at least 0, got {number} in {text!r}")
        if numbers.count(number) > 1:
            raise UserError(f"--seeds: {text!r} names seed {number} more than once; every run needs its own seed")
    return numbers


def file_options() -> list[str]:
    """Arguments of `difformer.data.from_files`."""
    from difformer.data import from_files

    return list(inspect.signature(from_files).parameters)


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "none"}


def read_data_options(words: list[str] | None, dataset: str | None) -> dict[str, Any]:
    """``--data KEY=VALUE`` of a data set, or of your files if `dataset` is None.

    Texts become what the reader's annotation says: ``int | None`` is a whole number or the word none,
    ``Sequence[float]`` numbers separated by commas, ``Column`` a name or a number.
    """
    given = key_values(words, "--data")
    if not given:
        return {}
    from difformer.cli.output import listed
    from difformer.data import from_files
    from difformer.data.registry import annotations_of, dataset_options, loader_of

    if dataset is None:
        kinds, whose = annotations_of(from_files), "own files have"
        takes = f"they take {', '.join(file_options()[3:])}"
    else:
        kinds, whose = annotations_of(loader_of(dataset)), f"data set {dataset!r} has"
        takes = f"it takes, with these defaults, {listed(dataset_options(dataset))}"
    for key in given:
        if key not in kinds:
            raise UserError(f"--data: {whose} no option {key!r}; {did_you_mean(key, kinds)}{takes}")
    return {key: _value(key, text, kinds[key]) for key, text in given.items()}


def _value(key: str, text: str, annotation: str) -> Any:
    """The value of a text for an annotation such as ``Column | Sequence[Column] | None``."""
    kinds = [part.strip() for part in annotation.split("|")]
    several = next((kind for kind in kinds if kind.startswith("Sequence[")), None)
    single = [kind for kind in kinds if kind is not several and not kind.startswith("Mapping[")]
    if "None" in single and text.lower() == "none":
        return None
    if several is not None and ("," in text or single in ([], ["None"])):
        inner = several.removeprefix("Sequence[").removesuffix("]")
        return [_one(key, word.strip(), [inner], text) for word in text.split(",")]
    return _one(key, text, single, text)


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
        raise UserError(f"--data {key}: expected {expected}, got {came}")
    return text.replace("\\t", "\t") if key == "delimiter" else text
