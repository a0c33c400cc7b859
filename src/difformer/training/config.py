"""The configuration of a run: one frozen object, complete, comparable, and readable without torch."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from difformer.errors import UserError

PRECISIONS = ("float32", "bf16")
Rule = tuple[Callable[[Any], bool], str]  # whether a value is allowed, and what is, in words


def _count(least: int) -> Rule:
    return lambda v: type(v) is int and v >= least, f"a whole number of at least {least}"


def _number(holds: Callable[[float], bool], expected: str) -> Rule:
    return lambda v: isinstance(v, float) and math.isfinite(v) and holds(v), expected


def _or_none(rule: Rule) -> Rule:
    return lambda v: v is None or rule[0](v), f"{rule[1]}, or none"


def _choice(*choices: str) -> Rule:
    return lambda v: v in choices, f"one of {', '.join(choices)}"


_POSITIVE = _number(lambda v: v > 0, "a number above 0")
_AT_LEAST_0 = _number(lambda v: v >= 0, "a number of at least 0")
_FLAG: Rule = (lambda v: isinstance(v, bool), "true or false")
_TEXT: Rule = (lambda v: isinstance(v, str) and bool(v), "a name")


def _setting(default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True)
class TrainConfig:
    """Model and training of one run; the earliest epoch with the best validation score is kept.

    Args:
        model: Name of a model, see `difformer.zoo.MODELS`; or your own, as ``"package.module:Class"`` or as the class.
        options: Options of the model; what is left out keeps the model's default.
        epochs: Passes over the training part at most.
        learning_rate: Of Adam, at its highest.
        weight_decay: λ of ½λ‖w‖², inside the gradient as the paper's Adam has it, or beside it where `decoupled`.
        decoupled: AdamW instead of Adam.
        schedule: ``"constant"``, ``"cosine"`` or ``"linear"``: how the learning rate falls to zero by the last epoch.
        warmup: Epochs over which the learning rate rises linearly to `learning_rate`.
        gradient_clip: Largest norm of the whole gradient; None does not clip.
        patience: Stop after so many epochs without a better validation metric; None trains all epochs.
        eval_every: Epochs from one evaluation to the next; the last epoch is always evaluated.
        batch_size: Nodes of a mini-batch (None: the whole graph), graphs of a batch (None: 256), or snapshots that are
            propagated at once (None: as many as a fixed memory allows; it does not change the result).
        steps_per_epoch: For series: ``"epoch"`` makes one step from the mean over all training snapshots,
            ``"snapshot"`` one step per snapshot, in time order.
        label_smoothing: Share of a target spread evenly over the classes.
        class_weights: Weight classes by the inverse of their number among the training labels.
        loss: ``"auto"`` is cross-entropy, binary cross-entropy or squared error, as the task's problem has it;
            ``"broadcast-mse"`` is what the authors' code computes for series, see `difformer.training.losses`.
        scale_targets: For regression: whether targets are learnt with mean 0 and deviation 1 over the training part,
            unless they are near that scale already; outputs, predictions and metrics have the units of the data.
        metric: What is reported and, on validation, chooses the epoch; ``"auto"`` is the task's own.
        readout: For graphs: ``"mean"``, ``"sum"`` or ``"max"`` over their nodes.
        graph: ``"given"`` is the task's own, ``"none"`` leaves it out, ``"knn:K"`` joins every instance to its K
            nearest (itself counted), both ways.
        precision: ``"float32"``, or ``"bf16"`` for forward passes in mixed precision.
        checkpoint_every: Epochs from one checkpoint to the next; None leaves it to the clock.
        checkpoint_seconds: Seconds from one checkpoint to the next. A run that is killed loses at most that.

    Raises:
        ValueError: Naming the field, what came and what it takes.
    """

    model: str = "difformer"
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = _setting(500, _count(1))
    learning_rate: float = _setting(1e-3, _POSITIVE)
    weight_decay: float = _setting(0.0, _AT_LEAST_0)
    decoupled: bool = _setting(False, _FLAG)
    schedule: str = _setting("constant", _choice("constant", "cosine", "linear"))
    warmup: int = _setting(0, _count(0))
    gradient_clip: float | None = _setting(None, _or_none(_POSITIVE))
    patience: int | None = _setting(None, _or_none(_count(1)))
    eval_every: int = _setting(1, _count(1))
    batch_size: int | None = _setting(None, _or_none(_count(1)))
    steps_per_epoch: str = _setting("epoch", _choice("epoch", "snapshot"))
    label_smoothing: float = _setting(0.0, _number(lambda v: 0 <= v < 1, "a number in [0, 1)"))
    class_weights: bool = _setting(False, _FLAG)
    loss: str = _setting("auto", _choice("auto", "broadcast-mse"))
    scale_targets: bool = _setting(True, _FLAG)
    metric: str = _setting("auto", _TEXT)
    readout: str = _setting("mean", _choice("mean", "sum", "max"))
    graph: str = _setting("given", _TEXT)
    precision: str = _setting("float32", _choice(*PRECISIONS))
    checkpoint_every: int | None = _setting(None, _or_none(_count(1)))
    checkpoint_seconds: float = _setting(10.0, _AT_LEAST_0)

    def __post_init__(self) -> None:
        if isinstance(self.model, type):
            from difformer.zoo.model_registry import name_of

            object.__setattr__(self, "model", name_of(self.model))
        elif not isinstance(self.model, str):
            raise UserError(
                f"model must be a name or a class, got an object of class {type(self.model).__name__}; give the class, "
                f"model={type(self.model).__name__}, and its arguments in options"
            )
        object.__setattr__(self, "options", {name: _storable(value) for name, value in self.options.items()})
        for name, (kind, (holds, expected)) in _RULES.items():
            value = getattr(self, name)
            if (
                type(value) is int and "float" in kind
            ):  # a preset file or a command line writes 1 where a float is meant
                value = float(value)
                object.__setattr__(self, name, value)
            if not holds(value):
                raise UserError(f"{name} must be {expected}, got {value!r}")
        knn_of(self.graph)

    def replace(self, **changes: Any) -> TrainConfig:
        """The same with some fields changed; a new `options` takes the place of all old ones."""
        _check_names(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Every field, `options` as a dictionary of its own."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"options": dict(self.options)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TrainConfig:
        """From some or all fields."""
        _check_names(fields)
        return cls(**fields)


# What every field but the model and its options takes, as its type and its rule; the names a command line can set.
_RULES = {f.name: (str(f.type), f.metadata["rule"]) for f in dataclasses.fields(TrainConfig) if f.metadata}


def _storable(value: Any) -> Any:
    """A `Diffusivity` by its name where it has one, so that the configuration can be written to a file."""
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
    raise UserError(
        f"graph must be 'given', 'none' or 'knn:K' with K of at least 2 (the node itself is counted), got {graph!r}"
    )


def parse_settings(settings: Iterable[str], model: str = "difformer") -> tuple[dict[str, Any], dict[str, Any]]:
    """``["hidden_channels=64", "learning_rate=0.01"]`` as fields of a `TrainConfig` and options of the model.

    Args:
        settings: ``name=value`` each; a value is a number, true, false, none, or text. The word none is the value None
            for a setting that can be without one, and a name for one that takes names (``graph=none``).
        model: Whose options are meant.

    Raises:
        UserError: If a setting has no ``=``, is given twice, or is neither a field nor an option of the model; the
            message lists what there is, and names the nearest.
    """
    from difformer.zoo import options_of

    options_known = options_of(model)
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UserError(f"a setting is NAME=VALUE, for example learning_rate=0.01; got {setting!r}")
        if name in fields or name in options:
            raise UserError(f"setting {name} is given twice, the second time as {text.strip()!r}")
        named = text.strip().lower() == "none" and _takes_a_name(name, model)
        value = "none" if named else _parse_value(text)
        if name in _RULES:
            fields[name] = value
        elif name in options_known:
            options[name] = value
        else:
            raise UserError(_unknown_setting(name, model, [*options_known]))
    TrainConfig(model=model, **fields)  # a value out of range is refused here, where the setting can still be named
    return fields, options


def _parse_value(text: str) -> Any:
    """A text as the value it looks like: a whole number, a number, true, false, none, or itself."""
    text = text.strip()
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def make_config(model: str, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from fields and model options in one mapping, as `--set` and presets have them."""
    from difformer.zoo import check_options

    options = {key: value for key, value in settings.items() if key not in _RULES}
    check_options(model, options)
    return TrainConfig(model=model, options=options, **{key: v for key, v in settings.items() if key in _RULES})


def _unknown_setting(name: str, model: str, options: Sequence[str]) -> str:
    from difformer.zoo import find

    fixed, training = find(model).fixed, list(_RULES)
    if name in fixed:
        free = "model 'difformer' lets you choose it" if model.startswith("difformer") else "choose another model"
        return f"setting {name} is what makes {model!r} that model ({name}={fixed[name]}); {free}"
    return (
        f"unknown setting {name!r}; {_hint(name, [*training, *options])}Training takes {', '.join(training)}; "
        f"model {model!r} takes {', '.join(options)}"
    )


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The likely intended name: a similar one, one with a similar word, or one with these initials."""
    if close := difflib.get_close_matches(name, known, n=1):
        return close[0]
    words = {word: full for full in reversed(known) for word in full.split("_") if len(word) > 3}
    if close := difflib.get_close_matches(name, words, n=1):
        return words[close[0]]
    initials = ("".join(word[:1] for word in full.split("_")) for full in known)
    return next((full for full, letters in zip(known, initials, strict=True) if letters == name), None)


def _takes_a_name(setting: str, model: str) -> bool:
    """Whether a setting is always a text, by its annotation: then the word none is a name, as in ``qk_norm=none``."""
    from difformer.zoo.model_registry import find, model_class, parameters_of

    kinds = {field.name: str(field.type) for field in dataclasses.fields(TrainConfig)}
    for name, parameter in parameters_of(model_class(find(model))).items():
        kinds.setdefault(name, str(parameter.annotation))
    return kinds.get(setting) == "str"


def _hint(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near}? " if near else ""


def _check_names(names: Iterable[str]) -> None:
    known = [f.name for f in dataclasses.fields(TrainConfig)]
    for name in names:
        if name not in known:
            hint = _hint(name, known)
            raise UserError(f"a training configuration has no field {name!r}; {hint}It has {', '.join(known)}")
