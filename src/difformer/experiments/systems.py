"""Rows that several tables share."""

from __future__ import annotations

from difformer.experiments.plan import System

DIFFORMER_S = System("difformer-s", "DIFFormer-s", "difformer-s", "ours")
DIFFORMER_A = System("difformer-a", "DIFFormer-a", "difformer-a", "ours")
# The encoder with every setting of DIFFormer-s but without latent propagation: what attention adds is the difference.
OFF = System("off", "attention off", "difformer", "off", base="difformer-s", settings={"diffusivity": None})

LABELS = {
    "mlp": "MLP",
    "lp": "LP",
    "manireg": "ManiReg",
    "label-spreading": "LabelSpreading",
    "gcn": "GCN",
    "gat": "GAT",
    "sgc": "SGC",
    "gin": "GIN",
    "appnp": "APPNP",
    "gcnii": "GCNII",
    "graphsage": "GraphSAGE",
    "grand-l": "GRAND-l",
    "grand": "GRAND",
    "grand++": "GRAND++",
    "gdc": "GDC",
    "graphheat": "GraphHeat",
    "gcn-knn": "GCN-kNN",
    "gat-knn": "GAT-kNN",
    "dense-gat": "Dense GAT",
    "lds": "LDS",
    "glcn": "GLCN",
    "graphormer": "Graphormer",
    "graphgps": "GraphGPS",
    "nodeformer": "NodeFormer",
    "sgformer": "SGFormer",
    "polynormer": "Polynormer",
    "h2gcn": "H2GCN",
    "fsgnn": "FSGNN",
    "cpgnn": "CPGNN",
    "glognn": "GloGNN",
}


def rivals(*models: str) -> tuple[System, ...]:
    """Systems of the zoo as they are."""
    return tuple(System(model, LABELS[model], model) for model in models)
