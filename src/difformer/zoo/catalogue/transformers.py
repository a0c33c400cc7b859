"""Systems that mix all-pair attention with an observed graph."""

from __future__ import annotations

from difformer.zoo.catalogue.info import LATENT, ModelInfo

_GROUP = "graph transformers"

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "nodeformer",
        _GROUP,
        "difformer.zoo.nodeformer:NodeFormer",
        "Softmax attention by random features with Gumbel noise, observed edges as a bias and as a loss.",
        coupling="φ(qᵢ)ᵀφ(kⱼ) / Σₗφ(qᵢ)ᵀφ(kₗ) + σ(b)/√(dᵢdⱼ) on edges",
        energy=LATENT,
        cost="N m d + E d",
        stackable=True,
    ),
    ModelInfo(
        "graphormer",
        _GROUP,
        "difformer.zoo.graphormer:Graphormer",
        "Full softmax attention with biases of distances in hops, and degrees in the states.",
        coupling="softmax of qᵢᵀkⱼ/√d + b(hops from j to i)",
        energy=LATENT,
        cost="N² d",
    ),
    ModelInfo(
        "graphgps",
        _GROUP,
        "difformer.zoo.graphgps:GraphGPS",
        "Message passing and global attention side by side in every layer, with random-walk or Laplacian positions.",
        coupling="1/√(dᵢdⱼ) on edges + softmax of qᵢᵀkⱼ/√d",
        energy=LATENT,
        cost="N m d + E d, or N² d",
        stackable=True,
    ),
    ModelInfo(
        "sgformer",
        _GROUP,
        "difformer.zoo.sgformer:SGFormer",
        "One layer of linear all-pair attention beside graph convolutions, added with weights.",
        coupling="(1 + q̃ᵢᵀk̃ⱼ/…) normalised, + 1/√(dᵢdⱼ) on edges",
        energy=LATENT,
        cost="N d² + E d",
        stackable=True,
    ),
    ModelInfo(
        "polynormer",
        _GROUP,
        "difformer.zoo.polynormer:Polynormer",
        "Gated attention along edges, then gated linear attention over all pairs: a polynomial of the features.",
        coupling="attention on edges, then σ(qᵢ)ᵀσ(kⱼ) / Σₗσ(qᵢ)ᵀσ(kₗ)",
        energy=LATENT,
        cost="E d + N d²",
    ),
)
