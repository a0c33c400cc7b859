"""The table of models, ``model_catalogue.toml``: class, defaults, family, paper, diffusion, cost, search space.

Nothing here loads torch, so the command line can list and check names quickly. Every model is a class
``(in_channels, hidden_channels, out_channels, *, options…)`` that follows `difformer.nn.Model`. Several rows may share
a class with different defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from difformer import toml

ALL_KINDS = ("nodes", "series", "graphs")


@dataclass(frozen=True)
class ModelInfo:
    """One row."""

    name: str  #: The name for `build` and ``--model``.
    group: str  #: Family of models.
    home: str  #: ``"module:Class"``.
    about: str  #: One sentence on how it works.
    summary: str = ""  #: In plain words, what it is and when to use it.
    kinds: tuple[str, ...] = ALL_KINDS  #: Supported kinds of task.
    needs_graph: bool = False  #: Whether it requires observed edges.
    coupling: str = ""  #: S of its diffusion, if there is one.
    energy: str = ""  #: The paper's energy for this coupling; not a claim that layers descend it.
    cost: str = ""  #: Operations per layer, with N nodes, E edges and d channels.
    paper: str = ""  #: Publication.
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: Options whose default differs from that of the class.
    fixed: Mapping[str, Any] = field(default_factory=dict)  #: Options that define the model and cannot be set.
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  #: Search space: values per setting.
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: Authors' settings per data set.
    stackable: bool = False  #: Whether several runs can be trained as one with a leading axis.
    trained: bool = True  #: Whether it has parameters; otherwise it is computed once, without training settings.


def _rows() -> dict[str, ModelInfo]:
    content = toml.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    spaces = content["space"]

    def inherited(space: dict[str, Any]) -> dict[str, Any]:
        base = spaces[space["inherits"]] if "inherits" in space else {}
        return {**(inherited(base) if base else {}), **{key: space[key] for key in space if key != "inherits"}}

    found = (ModelInfo(**plain({**entry, "space": inherited(entry.get("space", {}))})) for entry in content["model"])
    return {row.name: row for row in found}


def plain(value: Any) -> Any:
    """Converts lists to tuples and ``"unset"``, TOML's stand-in, to None."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list) else None if value == "unset" else value


MODELS: dict[str, ModelInfo] = _rows()

# Names of earlier versions, with replacements.
REMOVED = {"idgl": "it was removed in version 0.2: use glcn or lds, which also learn a graph, or difformer-s"}

# Option names of earlier versions, which run folders and presets may still contain.
RENAMED = {
    "gcn-knn": {"metric": "knn_metric"},
    "gat-knn": {"metric": "knn_metric"},
    "diffusion-edge-attention": {"metric": "similarity"},
}
