"""Every model as one row of ``model_catalogue.toml``: class, defaults, family, paper, diffusion, cost, search space.

Nothing here loads torch: the command line lists and checks names from this table. Every model is a class
``(in_channels, hidden_channels, out_channels, *, options…)`` that follows `difformer.nn.Model`. Several rows may share
a class and differ by defaults.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ALL_KINDS = ("nodes", "series", "graphs")


@dataclass(frozen=True)
class ModelInfo:
    """One row.

    Args:
        name: What `build` and ``--model`` take.
        group: Family of systems.
        home: ``"module:Class"``.
        about: One sentence.
        kinds: Kinds of task it can serve.
        needs_graph: Whether it is pointless without observed edges.
        coupling: S of the diffusion it performs, where it has one.
        energy: Energy of such a coupling as the paper writes it, where it has one; not a claim that layers descend it.
        cost: Operations of one layer, with N nodes, E edges and d channels.
        paper: Where it was published.
        defaults: Options whose default differs from the class's.
        fixed: Options that make the model what it is and cannot be set.
        space: Search space: values per setting.
        published: Settings that the authors published, per data set.
        stackable: Whether runs of it can be trained as one with a leading axis.
        trained: Whether it has parameters; a model without is computed once and ignores settings of the training.
    """

    name: str
    group: str
    home: str
    about: str
    kinds: tuple[str, ...] = ALL_KINDS
    needs_graph: bool = False
    coupling: str = ""
    energy: str = ""
    cost: str = ""
    paper: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stackable: bool = False
    trained: bool = True


def _rows() -> dict[str, ModelInfo]:
    content = _toml.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    spaces = content["space"]

    def inherited(space: dict[str, Any]) -> dict[str, Any]:
        base = spaces[space["inherits"]] if "inherits" in space else {}
        return {**(inherited(base) if base else {}), **{key: space[key] for key in space if key != "inherits"}}

    found = (ModelInfo(**_plain({**entry, "space": inherited(entry.get("space", {}))})) for entry in content["model"])
    return {row.name: row for row in found}


def _plain(value: Any) -> Any:
    """Lists as tuples, and None where TOML, which has none, says ``"unset"``."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, list) else None if value == "unset" else value


MODELS: dict[str, ModelInfo] = _rows()

# Names that earlier versions had, with what to use instead.
REMOVED = {"idgl": "it was removed in version 0.2: use glcn or lds, which also learn a graph, or difformer-s"}

# Options that earlier versions called otherwise, per model; run folders and presets may still hold the old name.
RENAMED = {
    "gcn-knn": {"metric": "knn_metric"},
    "gat-knn": {"metric": "knn_metric"},
    "diffusion-edge-attention": {"metric": "similarity"},
}
