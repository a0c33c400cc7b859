"""Every model as one row of data: class, defaults, family, paper, diffusion, cost, and its own search space.

Nothing here loads torch: the command line lists and checks names from this table. Every model is a class
``(in_channels, hidden_channels, out_channels, *, options…)`` that follows `difformer.nn.Model`. Several rows may share
a class and differ by defaults.

A search space holds the values over which the authors of a model tune it for node classification; its keys are options
of the model and settings of the training. `published` holds settings that they published, per data set; a fair search
tries those first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL_KINDS = ("nodes", "series", "graphs")
NODES = ("nodes",)


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


# Energies, couplings and costs that several rows have.
QUADRATIC = "||Z - Z_k||² + λ Σ_E s_ij ||z_i - z_j||²"
LATENT = "||Z - Z_k||² + λ Σ_ij δ(||z_i - z_j||²)"
WITH_SOURCE = "||Z - Z_k - η Z_0||² + λ Σ_E s_ij ||z_i - z_j||²"
ON_EDGES = "||Z - Z_k||² + λ Σ_E δ(||z_i - z_j||²)"
CONVOLUTION = "1/√(dᵢdⱼ) on edges"
ATTENTION = "softmax of scores on edges"
EDGES = "E d + N d²"

# Axes that several spaces have: the training, the width, and the options of tuned classic networks.
TRAINING = {"learning_rate": (0.001, 0.005, 0.01, 0.05), "weight_decay": (0.0, 5e-4, 1e-3, 1e-2, 1e-1)}
USUAL = {**TRAINING, "hidden_channels": (32, 64, 128, 256), "dropout": (0.0, 0.2, 0.5, 0.7)}
TUNED = {
    "learning_rate": (0.001, 0.005, 0.01),
    "weight_decay": (0.0, 5e-5, 5e-4, 1e-3, 1e-2),
    "hidden_channels": (64, 256, 512),
    "dropout": (0.2, 0.3, 0.5, 0.7),
    "num_layers": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    "residual": (False, True),
    "norm": ("none", "batch", "layer"),
    "jumping": (False, True),
    "linear_input": (False, True),
}
TRANSFORMER = {**USUAL, "num_heads": (1, 2, 4), "num_layers": (1, 2, 3, 4)}
DIFFORMER = {
    "learning_rate": (0.001, 0.003, 0.01),
    "weight_decay": (0.0, 5e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "hidden_channels": (64, 128, 256, 512),
    "dropout": (0.0, 0.2, 0.3, 0.5),
    "num_layers": (2, 4, 8, 16),
    "step_size": (0.3, 0.5, 0.9),
    "graph_weight": (None, 0.5, 0.8, 0.9),
    "source_weight": (0.0, 0.2, 0.5, 1.0),
    "initialisation": ("identity", "torch"),
    "activation": (None, "relu"),
    "norm": (False, True),
    "transform": (False, True),
    "qk_norm": ("row", "global"),
}
LDS = {
    **USUAL,
    "outer_rate": (0.01, 0.1, 1.0),
    "inner_rate": (0.1, 1.0),
    "inner_steps": (1, 5),
    "outer_every": (5, 10),
    "samples": (0, 16),
    "k": (10, 20),
}
DRAWN = "1/√(dᵢdⱼ) on edges drawn with probability θᵢⱼ"
TUNED_GNN = "Luo, Shi and Wu, NeurIPS 2024, Classic GNNs are strong baselines"


def _setting(rate: float, layers: int, width: int, decay: float, dropout: float, **more: Any) -> dict[str, Any]:
    """A published setting of a tuned classic network."""
    first = {"learning_rate": rate, "num_layers": layers, "hidden_channels": width}
    return {**first, "weight_decay": decay, "dropout": dropout, **more}


BN = {"norm": "batch", "residual": True}
EXACT = {"graph_weight": None, "source_weight": 0.0, "initialisation": "torch"}  # the paper's form
OBSERVED = {"k": None, "knn_metric": "cosine"}  # no neighbour graph

ROWS: tuple[ModelInfo, ...] = (
    # ---- the paper's encoders
    ModelInfo(
        "difformer-s", "difformer", "difformer.nn:DIFFormer",
        "All-pair diffusion with score 1 + qᵀk, linear in N, plus the graph where there is one.",
        coupling="(1 + qᵢᵀkⱼ) / Σₗ(1 + qᵢᵀkₗ)", energy=LATENT, cost="N d²", fixed={"diffusivity": "simple"},
        defaults=EXACT, space=DIFFORMER, stackable=True, paper="Wu et al., ICLR 2023, DIFFormer",
    ),
    ModelInfo(
        "difformer-a", "difformer", "difformer.nn:DIFFormer",
        "All-pair diffusion with sigmoid scores, plus the graph where there is one.",
        coupling="σ(qᵢᵀkⱼ) / Σₗσ(qᵢᵀkₗ)", energy=LATENT, cost="N² d", fixed={"diffusivity": "sigmoid"},
        defaults=EXACT, space=DIFFORMER, stackable=True, paper="Wu et al., ICLR 2023, DIFFormer",
    ),
    ModelInfo(
        "difformer", "difformer", "difformer.nn:DIFFormer",
        "The encoder with any diffusivity: set diffusivity=simple, sigmoid, softmax, gaussian, constant …",
        coupling="g(qᵢᵀkⱼ) / Σₗg(qᵢᵀkₗ)", energy=LATENT, cost="N d² or N² d",
        space=DIFFORMER, stackable=True, paper="Wu et al., ICLR 2023, DIFFormer",
    ),
    ModelInfo(
        "difformer-sharp", "difformer", "difformer.nn:DIFFormer",
        "The encoder with scores e^(a(qᵢᵀqⱼ - 1)): each exchanges with its nearest alone, as on a learned kNN graph.",
        coupling="exp(a qᵢᵀqⱼ) / Σₗexp(a qᵢᵀqₗ)", energy=LATENT, cost="N² d", fixed={"tied_qk": True},
        defaults={"diffusivity": "sharp"}, stackable=True,
        space={**DIFFORMER, "diffusivity": ("sharp:10", "sharp:20", "sharp:40", "sharp:80"), "qk_norm": ("row",)},
    ),
    ModelInfo(
        "difformer-off", "difformer", "difformer.nn:DIFFormer",
        "The encoder without attention: diffusion along the graph alone. What attention adds is measured against it.",
        coupling=CONVOLUTION, energy=QUADRATIC, cost=EDGES, fixed={"diffusivity": None}, stackable=True,
        space={key: values for key, values in DIFFORMER.items() if key != "qk_norm"},
    ),
    # ---- no message passing between states
    ModelInfo(
        "mlp", "basic", "difformer.zoo.classic:MLP",
        "Each instance by itself: layers of linear map, ReLU and dropout.",
        coupling="I", energy="||Z - Z_k||²", cost="N d²", stackable=True,
        space={**USUAL, "num_layers": (2, 3, 4), "norm": ("none", "batch", "layer"), "input_dropout": (0.0, 0.5)},
    ),
    ModelInfo(
        "lp", "basic", "difformer.zoo.label_spreading:LabelPropagation",
        "Label propagation: training labels diffuse over the observed graph; nothing is trained.",
        kinds=NODES, needs_graph=True, coupling=CONVOLUTION, cost="E C", trained=False,
        energy="||Y - Y_k - η Y_0||² + λ Σ_E s_ij ||y_i - y_j||²",
        paper="Zhu et al., ICML 2003; Zhou et al., NIPS 2003",
        space={"num_layers": (10, 20, 50, 100), "alpha": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)},
    ),
    ModelInfo(
        "manireg", "basic", "difformer.zoo.manireg:ManiReg",
        "Manifold regularisation: an MLP whose loss penalises outputs that vary along edges.",
        kinds=("nodes", "series"), needs_graph=True, coupling="I", energy="||Z - Z_k||²", cost="N d²", stackable=True,
        paper="Belkin, Niyogi and Sindhwani, JMLR 2006",
        space={**USUAL, "penalty_weight": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "graph_norm": ("gcn", "none")},
    ),
    ModelInfo(
        "label-spreading", "basic", "difformer.zoo.label_spreading:LabelSpreading",
        "scikit-learn's LabelSpreading: labels diffuse over a neighbour graph of the features; nothing is trained.",
        kinds=NODES, coupling="D^-½ W D^-½ of neighbours", energy=QUADRATIC, cost="N k", trained=False,
        paper="Zhou et al., NIPS 2003",
        space={"neighbours": (3, 5, 7, 10, 15, 20, 30), "alpha": (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.99)},
    ),
    # ---- message passing along observed edges
    ModelInfo(
        "gcn", "observed graphs", "difformer.zoo.classic:GCN",
        "Graph convolution: neighbours averaged with weights 1/√(dᵢdⱼ), then a linear map and ReLU.",
        needs_graph=True, coupling=CONVOLUTION, energy=QUADRATIC, cost=EDGES, stackable=True,
        fixed=OBSERVED, space={**USUAL, "num_layers": (2, 3, 4)}, paper="Kipf and Welling, ICLR 2017",
        published={"cora": _setting(0.01, 2, 16, 5e-4, 0.5), "citeseer": _setting(0.01, 2, 16, 5e-4, 0.5)},
    ),
    ModelInfo(
        "gcn+", "observed graphs", "difformer.zoo.classic:GCN",
        "Tuned graph convolution: residual, norm, jumping knowledge, linear head, up to ten layers of 512.",
        needs_graph=True, coupling=CONVOLUTION, energy=QUADRATIC, cost=EDGES, stackable=True, fixed=OBSERVED,
        defaults={"linear_head": True, "num_layers": 3, "dropout": 0.5}, space=TUNED, paper=TUNED_GNN,
        published={
            "cora": _setting(0.001, 3, 512, 5e-4, 0.7), "citeseer": _setting(0.001, 2, 512, 0.01, 0.5),
            "pubmed": _setting(0.005, 2, 256, 5e-4, 0.7), "squirrel": _setting(0.01, 4, 256, 5e-4, 0.7, **BN),
            "chameleon": _setting(0.005, 5, 512, 0.001, 0.2),
        },
    ),
    ModelInfo(
        "gat", "observed graphs", "difformer.zoo.classic:GAT",
        "Graph attention: neighbours averaged with weights that are inferred from both states.",
        needs_graph=True, coupling=ATTENTION, energy=ON_EDGES, cost=EDGES, stackable=True, fixed=OBSERVED,
        paper="Veličković et al., ICLR 2018",
        space={**USUAL, "num_layers": (2, 3, 4), "num_heads": (1, 4, 8), "output_heads": (1, 8)},
        published={
            "cora": _setting(0.005, 2, 64, 5e-4, 0.6), "citeseer": _setting(0.005, 2, 64, 5e-4, 0.6),
            "pubmed": _setting(0.01, 2, 64, 1e-3, 0.6, output_heads=8),
        },
    ),
    ModelInfo(
        "gat+", "observed graphs", "difformer.zoo.classic:GAT",
        "Tuned graph attention: residual, norm, jumping knowledge, linear head, up to ten layers of 512.",
        needs_graph=True, coupling=ATTENTION, energy=ON_EDGES, cost=EDGES, stackable=True, fixed=OBSERVED,
        defaults={
            "linear_head": True, "num_layers": 3, "dropout": 0.5, "input_dropout": 0.0, "attention_dropout": 0.0,
            "activation": "relu", "num_heads": 1,
        },
        space={**TUNED, "num_heads": (1, 4, 8)}, paper=TUNED_GNN,
        published={
            "cora": _setting(0.001, 3, 512, 5e-4, 0.2, residual=True),
            "citeseer": _setting(0.001, 3, 256, 0.01, 0.5, residual=True),
            "pubmed": _setting(0.01, 2, 512, 5e-4, 0.5), "squirrel": _setting(0.005, 7, 512, 5e-4, 0.5, **BN),
            "chameleon": _setting(0.01, 2, 256, 0.001, 0.7, **BN),
        },
    ),
    ModelInfo(
        "sgc", "observed graphs", "difformer.zoo.classic:SGC",
        "Simple graph convolution: a linear model of features that were averaged over neighbours K times.",
        needs_graph=True, coupling=CONVOLUTION, energy=QUADRATIC, cost="E C", stackable=True,
        paper="Wu et al., ICML 2019",
        space={
            "learning_rate": (0.01, 0.05, 0.1, 0.2), "weight_decay": (0.0, 1e-6, 1e-5, 1e-4, 5e-4, 1e-3),
            "num_layers": (1, 2, 3, 4, 8),
        },
    ),
    ModelInfo(
        "gin", "observed graphs", "difformer.zoo.classic:GIN",
        "Isomorphism network: neighbours summed, then an MLP.",
        needs_graph=True, coupling="1 on edges, 2 on self-loops", energy=QUADRATIC, cost=EDGES, stackable=True,
        paper="Xu et al., ICLR 2019",
        space={**USUAL, "num_layers": (2, 3, 5), "learn_eps": (False, True), "norm": ("batch", "layer")},
    ),
    ModelInfo(
        "appnp", "observed graphs", "difformer.zoo.classic:APPNP",
        "Predict, then propagate: personalised PageRank of an MLP's states.",
        needs_graph=True, coupling=CONVOLUTION, energy=WITH_SOURCE, cost="E d", stackable=True,
        paper="Gasteiger et al., ICLR 2019",
        space={**USUAL, "num_layers": (2, 5, 10, 20), "alpha": (0.05, 0.1, 0.2, 0.5), "mlp_layers": (2, 3)},
        published={"cora": {"learning_rate": 0.01, "weight_decay": 5e-3, "hidden_channels": 64, "alpha": 0.1}},
    ),
    ModelInfo(
        "gcnii", "observed graphs", "difformer.zoo.classic:GCNII",
        "Deep graph convolution, held by its initial states and by maps close to the identity.",
        needs_graph=True, coupling=CONVOLUTION, energy=WITH_SOURCE, cost=EDGES, stackable=True,
        paper="Chen et al., ICML 2020",
        space={
            **USUAL, "num_layers": (4, 8, 16, 32, 64), "alpha": (0.1, 0.2, 0.5), "theta": (0.5, 1.0, 1.5),
            "dropout": (0.4, 0.5, 0.6, 0.7),
        },
        published={
            "cora": _setting(0.01, 64, 64, 5e-4, 0.6, alpha=0.1, theta=0.5),
            "citeseer": _setting(0.01, 32, 256, 5e-4, 0.7, alpha=0.1, theta=0.6),
            "pubmed": _setting(0.01, 16, 256, 5e-4, 0.5, alpha=0.1, theta=0.4),
        },
    ),
    ModelInfo(
        "graphsage", "observed graphs", "difformer.zoo.classic:GraphSAGE",
        "Own state and mean of the neighbours, each with a map of its own.",
        needs_graph=True, coupling="1/dᵢ on edges", energy=QUADRATIC, cost=EDGES, stackable=True,
        space={**USUAL, "num_layers": (2, 3, 4)}, paper="Hamilton et al., NIPS 2017",
    ),
    ModelInfo(
        "sage+", "observed graphs", "difformer.zoo.classic:GraphSAGE",
        "Tuned GraphSAGE: residual, norm, jumping knowledge, linear head, up to ten layers of 512.",
        needs_graph=True, coupling="1/dᵢ on edges", energy=QUADRATIC, cost=EDGES, stackable=True,
        defaults={"linear_head": True, "num_layers": 3}, space=TUNED, paper=TUNED_GNN,
        published={
            "cora": _setting(0.001, 3, 256, 5e-4, 0.7), "citeseer": _setting(0.001, 3, 512, 0.01, 0.2),
            "pubmed": _setting(0.005, 4, 512, 5e-4, 0.7), "squirrel": _setting(0.01, 3, 256, 5e-4, 0.7, **BN),
            "chameleon": _setting(0.01, 4, 256, 0.001, 0.7, **BN),
        },
    ),
    ModelInfo(
        "grand", "observed graphs", "difformer.zoo.grand:GRAND",
        "Neural differential equation over graph attention that follows the states.",
        needs_graph=True, coupling=ATTENTION, energy=ON_EDGES, cost=EDGES, fixed={"linear": False}, stackable=True,
        paper="Chamberlain et al., ICML 2021",
        space={**USUAL, "num_layers": (2, 4, 8, 12, 18, 24), "step_size": (0.5, 1.0), "num_heads": (1, 4, 8)},
        published={"cora": {"num_layers": 18, "step_size": 1.0, "hidden_channels": 80}},
    ),
    ModelInfo(
        "grand-l", "observed graphs", "difformer.zoo.grand:GRAND",
        "Neural differential equation over graph attention of the initial states, a linear one.",
        needs_graph=True, coupling=ATTENTION + ", at Z_0", energy=QUADRATIC, cost="E d", fixed={"linear": True},
        stackable=True, paper="Chamberlain et al., ICML 2021",
        space={**USUAL, "num_layers": (2, 4, 8, 12, 18, 24), "step_size": (0.5, 1.0), "num_heads": (1, 4, 8)},
        published={"cora": {"num_layers": 18, "step_size": 1.0, "hidden_channels": 80}},
    ),
    ModelInfo(
        "grand++", "observed graphs", "difformer.zoo.grand:GRANDPlusPlus",
        "GRAND with a source at labelled nodes, which keeps states apart at any depth.",
        kinds=NODES, needs_graph=True, coupling=ATTENTION, cost=EDGES, stackable=True,
        energy="||Z - Z_k - η H||² + λ Σ_E δ(||z_i - z_j||²)", paper="Thorpe et al., ICLR 2022",
        space={
            **USUAL, "num_layers": (2, 4, 8, 12, 18, 24), "step_size": (0.5, 1.0), "source_weight": (0.1, 0.5, 1.0),
        },
    ),
    ModelInfo(
        "gdc", "observed graphs", "difformer.zoo.graph_diffusion:GDC",
        "Graph convolution on a graph that was diffused beforehand, by PageRank or heat, and made sparse.",
        needs_graph=True, coupling="k largest of α(I - (1 - α)T)⁻¹ or e^-t(I - T)", energy=QUADRATIC,
        cost="N k d + N d²", stackable=True, fixed=OBSERVED, paper="Gasteiger et al., NeurIPS 2019",
        space={
            **USUAL, "kernel": ("ppr", "heat"), "teleport": (0.05, 0.1, 0.2), "time": (1.0, 3.0, 5.0),
            "top_k": (32, 64, 128),
        },
        published={"cora": {"learning_rate": 0.01, "kernel": "ppr", "teleport": 0.05, "top_k": 128}},
    ),
    ModelInfo(
        "graphheat", "observed graphs", "difformer.zoo.graph_diffusion:GraphHeat",
        "Convolution with the heat kernel of the graph, by its Chebyshev expansion.",
        needs_graph=True, coupling="e^-sL", energy=QUADRATIC, cost="K E d + N d²", stackable=True, fixed=OBSERVED,
        space={**USUAL, "time": (1.0, 2.0, 3.5, 5.0), "num_layers": (2, 3)}, paper="Xu et al., IJCAI 2019",
    ),
    # ---- latent graphs
    ModelInfo(
        "gcn-knn", "latent graphs", "difformer.zoo.classic:GCN",
        "Graph convolution over the k nearest neighbours in feature space; observed edges are ignored.",
        coupling="1/√(dᵢdⱼ) on neighbours", energy=QUADRATIC, cost="N k d + N d²", stackable=True,
        defaults={"k": 5, "dropout": 0.5},
        space={**USUAL, "k": (3, 5, 10, 20, 30), "knn_metric": ("cosine", "euclidean"), "num_layers": (2, 3)},
    ),
    ModelInfo(
        "gat-knn", "latent graphs", "difformer.zoo.classic:GAT",
        "Graph attention over the k nearest neighbours in feature space; observed edges are ignored.",
        coupling="softmax of LeakyReLU(aᵀ[vᵢ, vⱼ]) on neighbours", energy="||Z - Z_k||² + λ Σ_kNN δ(||z_i - z_j||²)",
        cost="N k d + N d²", stackable=True, defaults={"k": 5},
        space={**USUAL, "k": (3, 5, 10, 20, 30), "knn_metric": ("cosine", "euclidean"), "num_layers": (2, 3)},
    ),
    ModelInfo(
        "dense-gat", "latent graphs", "difformer.zoo.dense_gat:DenseGAT",
        "Graph attention over all pairs, exact in N log N, with observed edges mixed in.",
        coupling="softmax of LeakyReLU(aᵀ[vᵢ, vⱼ]) on all pairs", energy=LATENT, cost="N log N + N d²", stackable=True,
        space={**USUAL, "num_layers": (2, 3, 4), "num_heads": (1, 4, 8), "graph_weight": (0.0, 0.2, 0.5, 0.8, 0.9)},
    ),
    ModelInfo(
        "lds", "latent graphs", "difformer.zoo.lds:LDS",
        "Bilevel learning of a probability for every edge, by gradients through the training of a graph convolution.",
        kinds=NODES, coupling=DRAWN, energy=QUADRATIC, cost="N² d", fixed={"outer_labels": "train"},
        paper="Franceschi et al., ICML 2019", space=LDS,
    ),
    ModelInfo(
        "lds-valid", "latent graphs", "difformer.zoo.lds:LDS",
        "lds as its authors train it: validation labels train the edges, so its validation score is not held out.",
        kinds=NODES, coupling=DRAWN, energy=QUADRATIC, cost="N² d", fixed={"outer_labels": "validation"},
        paper="Franceschi et al., ICML 2019", space=LDS,
    ),
    ModelInfo(
        "glcn", "latent graphs", "difformer.zoo.glcn:GLCN",
        "Graph convolution over edges (all pairs where there are none) weighted by a learned distance of features.",
        coupling="softmax of ReLU(aᵀ|pᵢ - pⱼ|)", energy=QUADRATIC, cost="E d + N d², or N² d", stackable=True,
        paper="Jiang et al., CVPR 2019",
        space={**USUAL, "graph_channels": (32, 70, 128), "graph_loss": (0.0, 0.01, 0.1), "sparsity": (0.01, 0.1, 1.0)},
    ),
    # ---- graph transformers
    ModelInfo(
        "nodeformer", "graph transformers", "difformer.zoo.nodeformer:NodeFormer",
        "Softmax attention by random features with Gumbel noise, observed edges as a bias and as a loss.",
        coupling="φ(qᵢ)ᵀφ(kⱼ) / Σₗφ(qᵢ)ᵀφ(kₗ) + σ(b)/√(dᵢdⱼ) on edges", energy=LATENT, cost="N m d + E d",
        stackable=True, paper="Wu et al., NeurIPS 2022",
        space={
            **TRANSFORMER, "random_features": (30, 50), "samples": (5, 10), "bias_order": (1, 2, 3),
            "temperature": (0.25, 0.5), "edge_loss": (0.0, 0.1, 1.0), "jumping": (False, True),
        },
        published={
            name: _setting(0.01, 2, 32, 5e-4, 0.0, bias_order=3, samples=10)
            for name in ("cora", "citeseer", "pubmed")
        },
    ),
    ModelInfo(
        "graphormer", "graph transformers", "difformer.zoo.graphormer:Graphormer",
        "Full softmax attention with biases of distances in hops, and degrees in the states.",
        coupling="softmax of qᵢᵀkⱼ/√d + b(hops from j to i)", energy=LATENT, cost="N² d",
        paper="Ying et al., NeurIPS 2021",
        space={
            **TRANSFORMER, "dropout": (0.1, 0.3, 0.5, 0.7, 0.9), "attention_dropout": (0.0, 0.1, 0.5),
            "input_dropout": (0.0, 0.3, 0.5), "max_distance": (5, 10, 20), "widening": (1, 2, 4),
        },
        published={
            name: {"learning_rate": 0.01, "weight_decay": 5e-4, "dropout": 0.9}
            for name in ("cora", "citeseer", "pubmed")
        },
    ),
    ModelInfo(
        "graphgps", "graph transformers", "difformer.zoo.graphgps:GraphGPS",
        "Message passing and global attention side by side in every layer, with random-walk or Laplacian positions.",
        coupling="1/√(dᵢdⱼ) on edges + softmax of qᵢᵀkⱼ/√d", energy=LATENT, cost="N m d + E d, or N² d", stackable=True,
        paper="Rampášek et al., NeurIPS 2022",
        space={
            **TRANSFORMER, "norm": ("batch", "layer"), "encoding": ("none", "random_walk", "laplacian"),
            "encoding_steps": (8, 16), "attention": ("performer", "softmax"), "local": ("gcn", "gin"),
        },
        published={name: {"norm": "batch", "encoding": "none"} for name in ("cora", "citeseer", "pubmed")},
    ),
    ModelInfo(
        "sgformer", "graph transformers", "difformer.zoo.sgformer:SGFormer",
        "One layer of linear all-pair attention beside graph convolutions, added with weights.",
        coupling="(1 + q̃ᵢᵀk̃ⱼ/…) normalised, + 1/√(dᵢdⱼ) on edges", energy=LATENT, cost="N d² + E d", stackable=True,
        paper="Wu et al., NeurIPS 2023",
        space={
            **USUAL, "num_layers": (2, 3, 4, 8), "num_heads": (1, 2), "attention_dropout": (0.0, 0.2, 0.5),
            "graph_weight": (0.2, 0.5, 0.8, 0.9), "residual_weight": (0.5, 0.7, 0.9), "norm": (False, True),
            "local_norm": ("none", "batch"), "local_residual": (False, True), "join": ("add", "cat"),
        },
    ),
    ModelInfo(
        "polynormer", "graph transformers", "difformer.zoo.polynormer:Polynormer",
        "Gated attention along edges, then gated linear attention over all pairs: a polynomial of the features.",
        coupling="attention on edges, then σ(qᵢ)ᵀσ(kⱼ) / Σₗσ(qᵢ)ᵀσ(kₗ)", energy=LATENT, cost=EDGES,
        paper="Deng, Yue and Zhang, ICLR 2024",
        space={
            **USUAL, "num_layers": (5, 7, 10), "global_layers": (1, 2, 3, 4), "num_heads": (1, 8),
            "input_dropout": (0.1, 0.15, 0.2, 0.4), "local_passes": (100, 200), "pre_norm": (False, True),
            "global_dropout": (0.3, 0.5, 0.7), "beta": (0.5, 0.9),
        },
    ),
    ModelInfo(
        "exphormer", "graph transformers", "difformer.zoo.exphormer:Exphormer",
        "Attention along edges, along a random expander and through virtual nodes, beside graph convolutions.",
        kinds=("nodes", "series"), coupling="softmax of qᵢᵀ(e ⊙ kⱼ)/√d on edges, expander and virtual nodes",
        energy=ON_EDGES, cost="(E + N) d + N d²", stackable=True, paper="Shirzad et al., ICML 2023",
        space={
            **TRANSFORMER, "num_layers": (2, 3, 4, 6), "degree": (0, 4, 6, 10), "virtual_nodes": (0, 1, 4),
            "norm": ("batch", "layer"),
        },
    ),
    ModelInfo(
        "advdifformer", "graph transformers", "difformer.zoo.advdifformer:AdvDIFFormer",
        "Advective diffusion: all-pair diffusion plus advection along edges, as a series of K terms.",
        coupling="(1 + qᵢᵀkⱼ) / Σₗ(1 + qᵢᵀkₗ) + β/√(dᵢdⱼ) on edges", energy=LATENT, cost="N d² + E d", stackable=True,
        fixed={"solver": "series"}, paper="Wu et al., ICML 2025, advective diffusion",
        space={
            **USUAL, "num_layers": (1, 2, 4, 8), "num_heads": (1, 2, 4), "beta": (0.2, 0.5, 0.8, 1.0),
            "residual": (False, True),
        },
    ),
    ModelInfo(
        "advdifformer-i", "graph transformers", "difformer.zoo.advdifformer:AdvDIFFormer",
        "Advective diffusion in closed form: one linear system over all pairs per head.",
        coupling="σ(qᵢᵀkⱼ) / Σₗσ(qᵢᵀkₗ) + β/√(dᵢdⱼ) on edges", energy=LATENT, cost="N³", fixed={"solver": "inverse"},
        defaults={"diffusivity": "sigmoid"}, paper="Wu et al., ICML 2025, advective diffusion",
        space={
            **USUAL, "num_heads": (1, 2, 4), "beta": (0.2, 0.5, 0.8), "theta": (1.0, 2.0), "residual": (False, True),
        },
    ),
    # ---- made for heterophily
    ModelInfo(
        "linkx", "heterophily", "difformer.zoo.linkx:LINKX",
        "Features and rows of the adjacency matrix, each with a perceptron, then both together.",
        kinds=NODES, needs_graph=True, coupling="none: A is a feature", cost=EDGES, stackable=True,
        paper="Lim et al., NeurIPS 2021",
        space={
            **USUAL, "hidden_channels": (16, 32, 64, 128, 256), "num_layers": (1, 2, 3), "edge_layers": (1, 2),
            "feature_layers": (1, 2),
        },
    ),
    ModelInfo(
        "h2gcn", "heterophily", "difformer.zoo.h2gcn:H2GCN",
        "A node, its neighbours and those at exactly two hops, each apart from the others, in all rounds.",
        needs_graph=True, coupling="1/√(dᵢdⱼ) on edges, and on pairs at two hops, side by side", cost="E₂ d",
        stackable=True, space={**USUAL, "num_layers": (1, 2)}, paper="Zhu et al., NeurIPS 2020",
    ),
    ModelInfo(
        "fsgnn", "heterophily", "difformer.zoo.fsgnn:FSGNN",
        "Features of many hops, with and without self-loops, each with a map of its own and a learned share.",
        needs_graph=True, coupling="Sᵏ and S̃ᵏ, side by side", cost=EDGES, stackable=True,
        paper="Maurya, Liu and Murata, 2021", space={**USUAL, "num_layers": (3, 8), "unit_length": (False, True)},
    ),
    ModelInfo(
        "cpgnn", "heterophily", "difformer.zoo.cpgnn:CPGNN",
        "Beliefs of a perceptron, propagated through a learned matrix of how compatible classes are.",
        kinds=NODES, needs_graph=True, coupling="A, with channels coupled by H", cost="E C + N C²",
        paper="Zhu et al., AAAI 2021",
        space={**USUAL, "num_layers": (1, 2), "pretraining": (100, 400), "graph_norm": ("none", "gcn")},
    ),
    ModelInfo(
        "glognn", "heterophily", "difformer.zoo.glognn:GloGNN",
        "Every state rebuilt from all others with coefficients in closed form, at linear cost.",
        needs_graph=True, coupling="Z* = argmin ||H - (1-γ)ZH - γH₀||² + β₁||Z||² + β₂||Z - ΣλₖSᵏ||²",
        cost="N d² + K E d", stackable=True, paper="Li et al., ICML 2022",
        space={
            **USUAL, "num_layers": (1, 2, 3), "gamma": (0.1, 0.3, 0.5, 0.9), "beta1": (0.0, 1.0, 10.0),
            "beta2": (1.0, 100.0, 1000.0, 10000.0), "hops": (1, 3, 6),
        },
    ),
    # ---- the framework: one diffusion network per coupling. Those over all pairs are the encoder with another
    # diffusivity; like it they add the graph where there is one (graph_weight=0 leaves it out).
    ModelInfo(
        "diffusion-identity", "framework", "difformer.nn:DIFFormer",
        "Diffusion that takes nothing from other instances but along the graph, where there is one.",
        coupling="I", energy="||Z - Z_k||²", cost="N d²", fixed={"diffusivity": "identity"}, stackable=True,
        defaults=EXACT, space=DIFFORMER,
    ),
    ModelInfo(
        "diffusion-constant", "framework", "difformer.nn:DIFFormer",
        "Diffusion with the all-one coupling: every instance takes the mean of all.",
        coupling="1/N", energy="||Z - Z_k||² + λ Σ_ij ||z_i - z_j||²", cost="N d²", fixed={"diffusivity": "constant"},
        stackable=True, defaults=EXACT, space=DIFFORMER,
    ),
    ModelInfo(
        "diffusion-softmax", "framework", "difformer.nn:DIFFormer",
        "Diffusion with the softmax attention of Transformers.",
        coupling="exp(qᵢᵀkⱼ/√d) / Σₗexp(qᵢᵀkₗ/√d)", energy=LATENT, cost="N² d", fixed={"diffusivity": "softmax"},
        stackable=True, defaults=EXACT, space=DIFFORMER,
    ),
    ModelInfo(
        "diffusion-gaussian", "framework", "difformer.nn:DIFFormer",
        "Diffusion with a Gaussian kernel of distances between queries and keys.",
        coupling="exp(-||qᵢ - kⱼ||²/2σ²) / Σₗexp(-||qᵢ - kₗ||²/2σ²)", energy=LATENT, cost="N² d",
        fixed={"diffusivity": "gaussian"}, stackable=True, defaults=EXACT, space=DIFFORMER,
    ),
    ModelInfo(
        "diffusion-edge-attention", "framework", "difformer.zoo.edge_diffusion:EdgeDiffusion",
        "Diffusion with attention on observed edges alone, by a diffusivity of the states.",
        needs_graph=True, coupling="g(zᵢᵀzⱼ) / Σ_N(i) g(zᵢᵀzₗ) on edges", energy=ON_EDGES, cost=EDGES, stackable=True,
        space={
            **USUAL, "num_layers": (2, 4, 8), "step_size": (0.3, 0.5, 0.9), "source_weight": (0.0, 0.2, 1.0),
            "transform": (False, True), "norm": (False, True),
        },
    ),
)  # fmt: skip

MODELS: dict[str, ModelInfo] = {row.name: row for row in ROWS}

# Names that earlier versions had, with what to use instead.
REMOVED = {"idgl": "it was removed in version 0.2: use glcn or lds, which also learn a graph, or difformer-s"}

# Options that earlier versions called otherwise, per model; run folders and presets may still hold the old name.
RENAMED = {
    "gcn-knn": {"metric": "knn_metric"},
    "gat-knn": {"metric": "knn_metric"},
    "diffusion-edge-attention": {"metric": "similarity"},
}
