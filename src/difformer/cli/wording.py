"""Messages of the package in the words of the command line.

Readers, trainers and models are also called from Python, so their errors say ``duplicates='sum'``. Whoever typed
``difformer fit`` has to type ``--data duplicates=sum`` instead. One place translates; nothing else knows of it.
"""

from __future__ import annotations

import re

# Arguments that have an option of their own.
OPTIONS = {"labels": "--labels", "edges": "--edges", "device": "--device", "root": "--root", "out": "--out"}
# Options of `difformer.data.from_files` and of the data sets, and settings of a training.
DATA = (
    "ids", "label_columns", "label_ids", "edge_columns", "split_column", "drop", "header", "delimiter", "encoding",
    "decimal", "comment", "name", "problem", "fractions", "seeds", "directed", "self_loops", "duplicates", "missing",
    "class_names", "standardize", "features", "protocol", "per_class", "num_splits", "knn",
)  # fmt: skip
SETTINGS = ("loss", "metric", "graph", "batch_size", "precision")

_QUOTED = r"'[^']*'(?:,? (?:or )?'[^']*')*"  # 'sum', 'mean' or 'max'
_VALUE = rf"(\[[^\]]*\]|\([^)]*\)|{_QUOTED}|True|False|None|FILE|…|(?=[\s;,)]|$))"
_NAMES = "|".join(sorted({*OPTIONS, *DATA, *SETTINGS, "splits"}, key=len, reverse=True))
_ARGUMENT = re.compile(rf"(?<![\w=\-.])({_NAMES})={_VALUE}")
# "fractions: 2 labelled instances are too few …": the argument at fault stands first.
_SUBJECT = re.compile(rf"^({'|'.join(('labels', 'problem', 'fractions', 'self_loops', 'duplicates', 'encoding'))}): ")

_PHRASES = (
    (re.compile(r"^path: (?=splits )"), "--split: "),
    (re.compile(r"^seeds must be "), "--seeds: expected "),
    (re.compile(r"^(stacked|preset|out): "), r"--\1: "),
    (
        re.compile(r"(is already there and not empty; nothing was changed\. Choose another folder), or continue .*$"),
        r"\1 with --out",
    ),
    (re.compile(r"Choose another folder, or continue the run with resume"), "Choose another folder, or use --resume"),
    (
        re.compile(r"continue (?:the run )?with resume: (\S+?)(?=[.,;]?(?:\s|$))"),
        r"go on with: difformer fit --resume \1",
    ),
    (re.compile(r"continue (?:the run )?with resume"), "go on with `difformer fit --resume RUN`"),
    (re.compile(r"pass that task again: task=…"), "use it from Python, where the task can be given again"),
    (re.compile(r"train it with out=None"), "train it from Python, in memory"),
    (re.compile(r", or a Diffusivity object"), ""),
)


def as_typed(message: str) -> str:
    """A message with every argument written as a person types it."""
    for pattern, words in _PHRASES:
        message = pattern.sub(words, message)
    message = _SUBJECT.sub(lambda found: f"{_option(found[1])}: ", message)
    return _ARGUMENT.sub(_typed, message)


def _option(name: str) -> str:
    if name == "splits":
        return "--split"
    return OPTIONS.get(name) or (f"--set {name}" if name in SETTINGS else f"--data {name}")


def _typed(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    inside = value[1:-1].removesuffix(",").replace(", ", ",") if value[:1] in ("[", "(") else value
    text = inside.replace("'", "")
    text = text.lower() if text in ("True", "False", "None") else text
    if name == "splits" or (name in OPTIONS and not text):
        return f"{_option(name)} FILE"
    return f"{_option(name)}{' ' if name in OPTIONS else '='}{text or '…'}"
