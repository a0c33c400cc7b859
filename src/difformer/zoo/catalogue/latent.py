"""Systems that find the graph they pass messages along."""

from __future__ import annotations

from difformer.zoo.catalogue.info import LATENT, QUADRATIC, ModelInfo

_GROUP = "latent graphs"

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "gcn-knn",
        _GROUP,
        "difformer.zoo.gcn_knn:GCNkNN",
        "Graph convolution over the k nearest neighbours in feature space; observed edges are not looked at.",
        coupling="1/√(dᵢdⱼ) on neighbours",
        energy=QUADRATIC,
        cost="N k d + N d²",
        stackable=True,
    ),
    ModelInfo(
        "gat-knn",
        _GROUP,
        "difformer.zoo.gat_knn:GATkNN",
        "Graph attention over the k nearest neighbours in feature space; observed edges are not looked at.",
        coupling="softmax of LeakyReLU(aᵀ[vᵢ, vⱼ]) on neighbours",
        energy="||Z - Z_k||² + λ Σ_kNN δ(||z_i - z_j||²)",
        cost="N k d + N d²",
        stackable=True,
    ),
    ModelInfo(
        "dense-gat",
        _GROUP,
        "difformer.zoo.dense_gat:DenseGAT",
        "Graph attention over all pairs, exact in N log N, with observed edges mixed in.",
        coupling="softmax of LeakyReLU(aᵀ[vᵢ, vⱼ]) on all pairs",
        energy=LATENT,
        cost="N log N + N d²",
        stackable=True,
    ),
    ModelInfo(
        "lds",
        _GROUP,
        "difformer.zoo.lds:LDS",
        "Bilevel learning of a probability for every edge, by gradients through the training of a graph convolution.",
        kinds=("nodes",),
        coupling="1/√(dᵢdⱼ) on edges drawn with probability θᵢⱼ",
        energy=QUADRATIC,
        cost="N² d",
    ),
    ModelInfo(
        "glcn",
        _GROUP,
        "difformer.zoo.glcn:GLCN",
        "Graph convolution over edges (all pairs where there are none) weighted by a learned distance of features.",
        coupling="softmax of ReLU(aᵀ|pᵢ - pⱼ|)",
        energy=QUADRATIC,
        cost="E d + N d², or N² d",
        stackable=True,
    ),
    ModelInfo(
        "idgl",
        _GROUP,
        "difformer.zoo.idgl:IDGL",
        "Graph convolution over observed edges mixed with a similarity of states, learned in turns.",
        coupling="λ/√(dᵢdⱼ) on edges + (1 - λ) of weighted cosines",
        energy=LATENT,
        cost="T N d², or T N² d",
    ),
)
