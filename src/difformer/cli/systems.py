"""Every system with its coupling, energy and cost, as the paper tabulates existing models, in the room there is.

A wide terminal gets a row a system, a very wide one also what each does; a narrow one three short lines a system, so
that formulas stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from difformer.cli.output import make_table

if TYPE_CHECKING:
    from rich.table import Table

    from difformer.zoo.model_catalogue import ModelInfo

ROW, ABOUT = 160, 200  # columns from which a system has one row, and from which that has room for a sentence
NONE = "–"
KEY = (
    "Letters of the cost: N nodes, E edges, E₂ pairs at two hops, d channels, C classes, k neighbours, K hops or terms "
    "of a series, m random features, T iterations. Of coupling and energy: dᵢ the degree of i, qᵢ and kⱼ queries and "
    "keys, vᵢ values, Z states, Z_k those of the layer before, Z_0 the first, s_ij the coupling, δ a concave function, "
    f"λ and η weights. {NONE} stands where there is none. An energy is the paper's for such a coupling: steps descend "
    "it under conditions on τ and weights, not whatever a network has learnt. Tasks: all, or where none is named, are "
    "nodes, series and graphs."
)


def listing(models: Iterable[ModelInfo], width: int) -> Table:
    """Systems by group, as wide as `width` columns allow."""
    return _in_rows(models, about=width >= ABOUT) if width >= ROW else _in_lines(models)


def tasks(info: ModelInfo) -> str:
    """Kinds of task that a system serves, in as few words as possible."""
    from difformer.zoo.model_catalogue import ALL_KINDS

    return "all" if info.kinds == ALL_KINDS else ", ".join(info.kinds)


def _in_rows(models: Iterable[ModelInfo], *, about: bool) -> Table:
    headings = ["system", "tasks", "coupling", "energy", "cost a layer", *(["about"] if about else [])]
    rows: list[list[str]] = []
    group = ""
    for info in models:
        if info.group != group:
            group = info.group
            rows += [[""] * len(headings)] if rows else []
            rows.append([group.upper(), *[""] * (len(headings) - 1)])
        formulas = [formula or NONE for formula in (info.coupling, info.energy, info.cost)]
        rows.append([info.name, tasks(info), *formulas, *([info.about] if about else [])])
    return make_table(headings, rows)


def _in_lines(models: Iterable[ModelInfo]) -> Table:
    rows: list[list[str]] = []
    group = ""
    for info in models:
        if info.group != group:
            group = info.group
            rows += [["", "", ""], [group.upper(), "", ""]]
        served = tasks(info)
        rows += [
            [info.name, "coupling", info.coupling or NONE],
            ["" if served == "all" else f"  {served}", "energy", info.energy or NONE],
            ["", "cost", info.cost or NONE],
        ]
    return make_table(["system", "", "of a layer"], rows[1:])
