"""Systems that use no message passing between states."""

from __future__ import annotations

from difformer.zoo.catalogue.info import QUADRATIC, ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = (
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
        "lp",
        "basic",
        "difformer.zoo.lp:LabelPropagation",
        "Label propagation: training labels diffuse over the observed graph; nothing is trained.",
        kinds=("nodes",),
        needs_graph=True,
        coupling="1/√(dᵢdⱼ) on edges",
        energy="||Y - Y_k - η Y_0||² + λ Σ_E s_ij ||y_i - y_j||²",
        cost="E C",
        trained=False,
    ),
    ModelInfo(
        "manireg",
        "basic",
        "difformer.zoo.manireg:ManiReg",
        "Manifold regularisation: an MLP whose loss punishes outputs that vary along edges.",
        kinds=("nodes", "series"),
        needs_graph=True,
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
        energy=QUADRATIC,
        cost="N k",
        trained=False,
    ),
)
