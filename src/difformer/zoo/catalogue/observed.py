"""Systems that pass messages along observed edges."""

from __future__ import annotations

from difformer.zoo.catalogue.info import QUADRATIC, ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "gcn",
        "observed graphs",
        "difformer.zoo.gcn:GCN",
        "Graph convolution: neighbours averaged with weights 1/√(dᵢdⱼ), then a linear map and ReLU.",
        needs_graph=True,
        coupling="1/√(dᵢdⱼ) on edges",
        energy=QUADRATIC,
        cost="E d + N d²",
        stackable=True,
    ),
)
