"""The configuration of a run: one frozen object, complete, comparable, and readable without torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from difformer.errors import UserError, did_you_mean

_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def _setting(default: Any, expected: str, holds: Callable[[Any], bool] = lambda value: True) -> Any:
    """A field whose type is that of its annotation; `expected` describes the valid values."""
    return field(default=default, metadata={"expected": expected, "holds": holds})


def _count(default: int | None, least: int = 1) -> Any:
    return _setting(default, f"a whole number of at least {least}", lambda v: v >= least)


def _choice(*choices: str) -> Any:
    return _setting(choices[0], f"one of {', '.join(choices)}", lambda v: v in choices)


@dataclass(frozen=True)
class TrainConfig:
    """Model and training of one run; the earliest epoch with the best validation score is kept.

    Args:
        model: Name of a model, see `difformer.zoo.MODELS`; or your own, as ``"package.module:Class"`` or as the class.
        options: Options of the model; others keep the model's default.
        epochs: Maximum number of passes over the training part.
        learning_rate: Peak learning rate of Adam.
        weight_decay: λ of ½λ‖w‖², added to the gradient, as in the paper, or applied separately if `decoupled`.
        decoupled: AdamW instead of Adam.
        schedule: ``"constant"``, ``"cosine"`` or ``"linear"``: how the learning rate falls to zero by the last epoch.
        warmup: Epochs over which the learning rate rises linearly to `learning_rate`.
        gradient_clip: Largest norm of the whole gradient; None does not clip.
        patience: Stop after this many epochs without a better validation metric; None trains all epochs.
        eval_every: Epochs from one evaluation to the next; the last epoch is always evaluated.
        batch_size: Nodes of a mini-batch (None: the whole graph), graphs of a batch (None: 256), or snapshots that are
            propagated at once (None: as many as a fixed memory allows; it does not change the result).
        steps_per_epoch: For series: ``"epoch"`` makes one step from the mean over all training snapshots,
            ``"snapshot"`` one step per snapshot, in time order.
        label_smoothing: Share of a target spread evenly over the classes.
        class_weights: Weight classes by the inverse of their number among the training labels.
        loss: ``"auto"`` is cross-entropy, binary cross-entropy or squared error, depending on the task's problem;
            ``"broadcast-mse"`` is what the authors' code computes for series, see `difformer.training.losses`.
        scale_targets: For regression: whether targets are learnt with mean 0 and deviation 1 over the training part,
            unless they are near that scale already; outputs, predictions and metrics have the units of the data.
        metric: What is reported and, on validation, chooses the epoch; ``"auto"`` is the task's own.
        readout: For graphs: ``"mean"``, ``"sum"`` or ``"max"`` over their nodes.
        graph: ``"given"`` is the task's own, ``"none"`` leaves it out, ``"knn:K"`` joins every instance to its K
            nearest (itself counted), both ways.
        precision: ``"float32"``, or ``"bf16"`` for forward passes in mixed precision.
        checkpoint_every: Epochs from one checkpoint to the next; None leaves it to the clock.
        checkpoint_seconds: Seconds from one checkpoint to the next; a killed run loses at most this much work.

    Raises:
        UserError: If a field has an invalid value.
    """

    model: str = "difformer"
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = _count(500)
    learning_rate: float = _setting(1e-3, "a number above 0", lambda v: v > 0)
    weight_decay: float = _setting(0.0, "a number of at least 0", lambda v: v >= 0)
    decoupled: bool = _setting(False, "true or false")
    schedule: str = _choice("constant", "cosine", "linear")
    warmup: int = _count(0, least=0)
    gradient_clip: float | None = _setting(None, "a number above 0", lambda v: v > 0)
    patience: int | None = _count(None)
    eval_every: int = _count(1)
    batch_size: int | None = _count(None)
    steps_per_epoch: str = _choice("epoch", "snapshot")
    label_smoothing: float = _setting(0.0, "a number in [0, 1)", lambda v: 0 <= v < 1)
    class_weights: bool = _setting(False, "true or false")
    loss: str = _choice("auto", "broadcast-mse")
    scale_targets: bool = _setting(True, "true or false")
    metric: str = _setting("auto", "a name", bool)
    readout: str = _choice("mean", "sum", "max")
    graph: str = _setting("given", "a name", bool)
    precision: str = _choice("float32", "bf16")
    checkpoint_every: int | None = _count(None)
    checkpoint_seconds: float = _setting(10.0, "a number of at least 0", lambda v: v >= 0)

    def __post_init__(self) -> None:
        if isinstance(self.model, type):
            from difformer.zoo.model_registry import name_of

            object.__setattr__(self, "model", name_of(self.model))
        elif not isinstance(self.model, str):
            kind = type(self.model).__name__
            advice = f"give the class, model={kind}, and its arguments in options"
            raise UserError(f"model must be a name or a class, got an object of class {kind}; {advice}")
        object.__setattr__(self, "options", {name: _storable(value) for name, value in self.options.items()})
        for name, about in _FIELDS.items():
            kind, _, optional = str(about.type).partition(" | ")
            value = getattr(self, name)
            if kind == "float" and type(value) is int:  # a preset file or a command line writes 1 for 1.0
                value = float(value)
                object.__setattr__(self, name, value)
            fits = isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
            fits = fits and (kind != "float" or math.isfinite(value)) and about.metadata["holds"](value)
            if not fits and not (value is None and optional):
                expected = about.metadata["expected"] + ", or none" * bool(optional)
                raise UserError(f"{name} must be {expected}, got {value!r}")
        knn_of(self.graph)

    def replace(self, /, **changes: Any) -> TrainConfig:
        """A copy with some fields changed; a new `options` replaces all old ones."""
        known = [about.name for about in dataclasses.fields(self)]
        if unknown := next((name for name in changes if name not in known), None):
            problem = f"a training configuration has no field {unknown!r}; {did_you_mean(unknown, known)}It has "
            problem += ", ".join(known)
            raise UserError(problem)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Every field; `options` is a new dictionary."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"options": dict(self.options)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TrainConfig:
        """A configuration from some or all fields."""
        return cls().replace(**fields)


# Every field but the model and its options: the names that a command line can set.
_FIELDS = {f.name: f for f in dataclasses.fields(TrainConfig) if f.metadata}


def _storable(value: Any) -> Any:
    """A `Diffusivity` by its name, if it has one, so that the configuration can be written to a file."""
    if type(value).__name__ != "Diffusivity":  # without torch
        return value
    from difformer.diffusivity import storable

    return storable(value)


def knn_of(graph: str) -> int | None:
    """K of ``"knn:K"``; None for ``"given"`` and ``"none"``."""
    kind, _, count = graph.partition(":")
    if graph in ("given", "none"):
        return None
    if kind == "knn" and count.isdecimal() and int(count) >= 2:
        return int(count)
    expected = "'given', 'none' or 'knn:K' with K of at least 2 (the node itself is counted)"
    raise UserError(f"graph must be {expected}, got {graph!r}")


def parse_settings(settings: Iterable[str], model: str = "difformer") -> tuple[dict[str, Any], dict[str, Any]]:
    """``["hidden_channels=64", "learning_rate=0.01"]`` as fields of a `TrainConfig` and options of the model.

    Args:
        settings: ``name=value`` each; a value is a number, true, false, none, or a string. The word none is the value
            None, or a name for a setting that takes names (``graph=none``).
        model: The model that has the options.

    Raises:
        UserError: If a setting has no ``=``, is given twice, or is neither a field nor an option of the model.
    """
    from difformer.zoo import find, options_of
    from difformer.zoo.model_registry import model_class, parameters_of

    known = {**_FIELDS, **options_of(model)}
    annotations = {name: option.annotation for name, option in parameters_of(model_class(find(model))).items()}
    annotations |= {name: about.type for name, about in _FIELDS.items()}
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UserError(f"a setting is NAME=VALUE, for example learning_rate=0.01; got {setting!r}")
        if name in found:
            raise UserError(f"setting {name} is given twice, the second time as {text.strip()!r}")
        if name in (fixed := find(model).fixed):
            free = "model 'difformer' lets you choose it" if model.startswith("difformer") else "choose another model"
            raise UserError(f"setting {name} defines model {model!r} ({name}={fixed[name]}); {free}")
        if name not in known:
            problem = f"unknown setting {name!r}; {did_you_mean(name, known)}Training takes {', '.join(_FIELDS)}; "
            problem += f"model {model!r} takes {', '.join(options_of(model))}"
            raise UserError(problem)
        found[name] = _parse_value(text, str(annotations.get(name)))
    fields, options = _divided(found)
    TrainConfig(model=model, **fields)  # a value out of range is refused here, where the setting can still be named
    return fields, options


def _divided(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a configuration, and options of a model."""
    fields = {key: value for key, value in settings.items() if key in _FIELDS}
    return fields, {key: value for key, value in settings.items() if key not in _FIELDS}


def _parse_value(text: str, annotation: str) -> Any:
    """The value that a string denotes; for settings that take only strings, the word none is itself a value."""
    text = text.strip()
    words: dict[str, Any] = {"true": True, "false": False, "none": "none" if annotation == "str" else None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def make_config(model: str, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from fields and model options in one mapping, as in `--set` and presets."""
    from difformer.zoo import check_options

    fields, options = _divided(settings)
    check_options(model, options)
    return TrainConfig(model=model, options=options, **fields)
