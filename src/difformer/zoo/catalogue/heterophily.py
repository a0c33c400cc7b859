"""Systems made for graphs whose neighbours differ."""

from __future__ import annotations

from difformer.zoo.catalogue.info import ModelInfo

_GROUP = "heterophily"

SYSTEMS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "h2gcn",
        _GROUP,
        "difformer.zoo.h2gcn:H2GCN",
        "A node, its neighbours and those at exactly two hops, each apart from the others, in all rounds.",
        needs_graph=True,
        coupling="1/√(dᵢdⱼ) on edges, and on pairs at two hops, side by side",
        cost="E₂ d",
        stackable=True,
    ),
    ModelInfo(
        "fsgnn",
        _GROUP,
        "difformer.zoo.fsgnn:FSGNN",
        "Features of many hops, with and without self-loops, each with a map of its own and a learned share.",
        needs_graph=True,
        coupling="Sᵏ and S̃ᵏ, side by side",
        cost="E d + N d²",
        stackable=True,
    ),
    ModelInfo(
        "cpgnn",
        _GROUP,
        "difformer.zoo.cpgnn:CPGNN",
        "Beliefs of a perceptron, propagated through a learned matrix of how compatible classes are.",
        kinds=("nodes",),
        needs_graph=True,
        coupling="A, with channels coupled by H",
        cost="E C + N C²",
    ),
    ModelInfo(
        "glognn",
        _GROUP,
        "difformer.zoo.glognn:GloGNN",
        "Every state rebuilt from all others with coefficients in closed form, at linear cost.",
        needs_graph=True,
        coupling="Z* = argmin ||H - (1-γ)ZH - γH₀||² + β₁||Z||² + β₂||Z - ΣλₖSᵏ||²",
        cost="N d² + K E d",
        stackable=True,
    ),
)
