"""Diffusion networks: one for each coupling of `difformer.diffusion`.

Those over all pairs are the encoder with another diffusivity. Like it they add the graph where there is one
(``graph_weight=0`` leaves it out) and take a source (``source_weight``).
"""

from __future__ import annotations

from difformer.zoo.catalogue.info import LATENT, ModelInfo

GROUP = "framework"
HOME = "difformer.nn:DIFFormer"

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "diffusion-identity",
        GROUP,
        HOME,
        "Diffusion that takes nothing from other instances but along the graph, where there is one.",
        coupling="I",
        energy="||Z - Z_k||²",
        cost="N d²",
        fixed={"diffusivity": "identity"},
        stackable=True,
    ),
    ModelInfo(
        "diffusion-constant",
        GROUP,
        HOME,
        "Diffusion with the all-one coupling: every instance takes the mean of all.",
        coupling="1/N",
        energy="||Z - Z_k||² + λ Σ_ij ||z_i - z_j||²",
        cost="N d²",
        fixed={"diffusivity": "constant"},
        stackable=True,
    ),
    ModelInfo(
        "diffusion-softmax",
        GROUP,
        HOME,
        "Diffusion with the softmax attention of Transformers.",
        coupling="exp(qᵢᵀkⱼ/√d) / Σₗexp(qᵢᵀkₗ/√d)",
        energy=LATENT,
        cost="N² d",
        fixed={"diffusivity": "softmax"},
        stackable=True,
    ),
    ModelInfo(
        "diffusion-gaussian",
        GROUP,
        HOME,
        "Diffusion with a Gaussian kernel of distances between queries and keys.",
        coupling="exp(-||qᵢ - kⱼ||²/2σ²) / Σₗexp(-||qᵢ - kₗ||²/2σ²)",
        energy=LATENT,
        cost="N² d",
        fixed={"diffusivity": "gaussian"},
        stackable=True,
    ),
    ModelInfo(
        "diffusion-edge-attention",
        GROUP,
        "difformer.zoo.edge_diffusion:EdgeDiffusion",
        "Diffusion with attention on observed edges alone, by a diffusivity of the states.",
        needs_graph=True,
        coupling="g(zᵢᵀzⱼ) / Σ_N(i) g(zᵢᵀzₗ) on edges",
        energy="||Z - Z_k||² + λ Σ_E δ(||z_i - z_j||²)",
        cost="E d + N d²",
        stackable=True,
    ),
)
