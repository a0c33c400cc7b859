"""What models there are, said without loading torch: the command line lists and checks names from here.

Every model is a class ``(in_channels, hidden_channels, out_channels, *, options…)`` that follows
`difformer.nn.Model`. The catalogue says where it lives and how it reads as energy-constrained diffusion.
"""

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
        energy: Energy that one layer descends, where it has one.
        cost: Operations of one layer, with N nodes, E edges and d channels.
        fixed: Options that make the model what it is and cannot be set.
        stackable: Whether runs of it can be trained as one with a leading axis.
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


_QUADRATIC = "||Z - Z_k||² + λ Σ_E s_ij ||z_i - z_j||²"
_LATENT = "||Z - Z_k||² + λ Σ_ij δ(||z_i - z_j||²)"

_ALL = (
    ModelInfo(
        "difformer-s",
        "difformer",
        "difformer.nn:DIFFormer",
        "All-pair diffusion with score 1 + qᵀk, linear in N, plus the graph where there is one.",
        coupling="(1 + qᵢᵀkⱼ) / Σₗ(1 + qᵢᵀkₗ)",
        energy=_LATENT,
        cost="N d²",
        fixed={"diffusivity": "simple"},
        stackable=True,
    ),
    ModelInfo(
        "difformer-a",
        "difformer",
        "difformer.nn:DIFFormer",
        "All-pair diffusion with sigmoid scores, plus the graph where there is one.",
        coupling="σ(qᵢᵀkⱼ) / Σₗσ(qᵢᵀkₗ)",
        energy=_LATENT,
        cost="N² d",
        fixed={"diffusivity": "sigmoid"},
        stackable=True,
    ),
    ModelInfo(
        "difformer",
        "difformer",
        "difformer.nn:DIFFormer",
        "The encoder with any diffusivity: set diffusivity=simple, sigmoid, softmax, gaussian, constant …",
        coupling="g(qᵢᵀkⱼ) / Σₗg(qᵢᵀkₗ)",
        energy=_LATENT,
        cost="N d² or N² d",
        stackable=True,
    ),
    ModelInfo(
        "mlp",
        "basic",
        "difformer.zoo.mlp:MLP",
        "Each instance by itself: layers of linear map, ReLU and dropout.",
        coupling="I",
        energy="||Z - Z_k||²",
        cost="N d²",
        stackable=True,
    ),
    ModelInfo(
        "label-spreading",
        "basic",
        "difformer.zoo.label_spreading:LabelSpreading",
        "scikit-learn's LabelSpreading: labels diffuse over a neighbour graph of the features; nothing is trained.",
        kinds=("nodes",),
        coupling="D^-½ W D^-½ of neighbours",
        energy=_QUADRATIC,
        cost="N k",
    ),
    ModelInfo(
        "gcn",
        "observed graphs",
        "difformer.zoo.gcn:GCN",
        "Graph convolution: neighbours averaged with weights 1/√(dᵢdⱼ), then a linear map and ReLU.",
        needs_graph=True,
        coupling="1/√(dᵢdⱼ) on edges",
        energy=_QUADRATIC,
        cost="E d + N d²",
        stackable=True,
    ),
)

MODELS: dict[str, ModelInfo] = {info.name: info for info in _ALL}
