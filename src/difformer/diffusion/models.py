r"""Other models as settings of `diffuse`: the rows of the paper's comparison (`tbl-existing`).

Each function gives the options under which `diffuse` computes the propagation of that model:

    >>> diffuse(z, steps=2, **gcn(graph))          # two layers of graph convolution, without weights

A layer's weights and activation are `transform` and `activation`, which every setting leaves to the caller. In matrix
form, with Ŝ = D^-½ A D^-½ of the graph as it is (add self-loops to it where the model has them):

==============  ======================================  =======================================================
setting         one step                                layer that computes the same
==============  ======================================  =======================================================
`mlp`           Z                                       a linear layer with an activation
`gcn`           (1-τ)Z + τŜZ                            GCNConv (τ = 1)
`gin`           (1+ε)Z + AZ                             GINConv
`appnp`         (1-α)ŜZ + αZ⁰                           APPNP
`gcnii`         (1-α)ŜZ + αZ⁰                           GCN2Conv, the weights as `transform`
`gat`           (1-τ)Z + τSZ, s_ij ∝ a_ij f(u_ij)       the paper's extension of GAT to diffusivities
`transformer`   (1-τ)Z + τSZ, s_ij ∝ e^(x_ij/√d)        TransformerConv on the complete graph, tied weights (τ = 1)
`difformer_s`   (1-τ)Z + τSZ, s_ij ∝ 1 + x_ij           DIFFormer-s
`difformer_a`   (1-τ)Z + τSZ, s_ij ∝ 1/(1 + e^-x_ij)    DIFFormer-a
==============  ======================================  =======================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from difformer.diffusion.coupling import AllPairAttention, Coupling, EdgeAttention, GraphCoupling, Identity, Mix
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.graph import Graph

Options = dict[str, Any]


def _options(coupling: Coupling, step_size: float = 1.0, **more: Any) -> Options:
    return {"coupling": coupling, "step_size": step_size, "conservation": "unit", **more}


def mlp() -> Options:
    """No exchange at all: what remains is σ(h(Z))."""
    return _options(Identity())


def gcn(graph: Graph, *, step_size: float = 1.0) -> Options:
    """Graph convolution, with a residual where τ < 1. The paper puts I where the diffusion has D̃: ``"unit"``."""
    return _options(GraphCoupling(graph, "gcn"), step_size)


def gin(graph: Graph, *, eps: float = 0.0) -> Options:
    """Isomorphism network: a state keeps all of itself and adds its neighbours, so that nothing is conserved.

    The paper's S = A + I with step τ gives (1+τ)Z + τAZ, which is τ times this with ε = 1/τ.
    """
    coupling = Mix((GraphCoupling(graph, "raw"), Identity()), (1.0, eps))
    return {"coupling": coupling, "step_size": 1.0, "conservation": "none"}


def appnp(graph: Graph, *, alpha: float = 0.1) -> Options:
    """Personalised PageRank: a convex mix of what neighbours send and of Z⁰, which bounds the states.

    The paper's form (1-τ)Z + τŜZ + τβZ⁰ is not convex, and grows where Z⁰ has a component in the null space.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha must lie in [0, 1], got {alpha!r}")
    return _options(Mix((GraphCoupling(graph, "gcn"),), (1 - alpha,)), source_weight=alpha)


def gcnii(graph: Graph, *, alpha: float = 0.1) -> Options:
    """Graph convolution with initial residual: the propagation of APPNP.

    GCN2Conv applies its weights h to the whole sum; since S acts on rows and h on columns, that is ``transform=h`` with
    ``source=h(z0)``.
    """
    return appnp(graph, alpha=alpha)


def gat(
    graph: Graph, *, diffusivity: str | Diffusivity = "simple", metric: str = "cosine", step_size: float = 1.0
) -> Options:
    """Attention on observed edges, by a diffusivity instead of GAT's score."""
    return _options(EdgeAttention(graph, diffusivity, metric), step_size)


def transformer(*, temperature: float | None = None, step_size: float = 1.0) -> Options:
    """Softmax attention between all pairs of normalised states; the temperature is √d where none is given."""
    name = "softmax" if temperature is None else f"softmax:{temperature!r}"
    return _options(AllPairAttention(name, "cosine"), step_size)


def difformer_s(*, metric: str = "cosine", step_size: float = 0.5) -> Options:
    """Simple diffusivity between all pairs, in linear time."""
    return _options(AllPairAttention("simple", metric), step_size)


def difformer_a(*, metric: str = "cosine", step_size: float = 0.5) -> Options:
    """Sigmoid diffusivity between all pairs."""
    return _options(AllPairAttention("sigmoid", metric), step_size)


MODELS: dict[str, Callable[..., Options]] = {
    setting.__name__: setting for setting in (mlp, gcn, gin, appnp, gcnii, gat, transformer, difformer_s, difformer_a)
}
