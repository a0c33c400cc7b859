"""What is said of a model without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL_KINDS = ("nodes", "series", "graphs")


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``difformer models``.

    Args:
        name: What `build` and ``--model`` take.
        group: Which family of systems it belongs to.
        home: ``"module:Class"``.
        about: One sentence.
        kinds: Kinds of task it can serve.
        needs_graph: Whether it is pointless without observed edges.
        coupling: S of the diffusion it performs, where it has one.
        energy: Energy of such a coupling as the paper writes it, where it has one; not a claim that layers descend it.
        cost: Operations of one layer, with N nodes, E edges and d channels.
        fixed: Options that make the model what it is and cannot be set.
        stackable: Whether runs of it can be trained as one with a leading axis.
        trained: Whether it has parameters; one that has none is computed once and heeds no setting of a training.
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
    fixed: Mapping[str, Any] = field(default_factory=dict)
    stackable: bool = False
    trained: bool = True


# Energies that several systems have, as the paper writes them.
QUADRATIC = "||Z - Z_k||² + λ Σ_E s_ij ||z_i - z_j||²"
LATENT = "||Z - Z_k||² + λ Σ_ij δ(||z_i - z_j||²)"
