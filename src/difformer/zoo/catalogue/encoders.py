"""The paper's encoders."""

from __future__ import annotations

from difformer.zoo.catalogue.info import LATENT, ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "difformer-s",
        "difformer",
        "difformer.nn:DIFFormer",
        "All-pair diffusion with score 1 + qᵀk, linear in N, plus the graph where there is one.",
        coupling="(1 + qᵢᵀkⱼ) / Σₗ(1 + qᵢᵀkₗ)",
        energy=LATENT,
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
        energy=LATENT,
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
        energy=LATENT,
        cost="N d² or N² d",
        stackable=True,
    ),
)
