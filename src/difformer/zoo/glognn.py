r"""GloGNN of Li et al. (ICML 2022): every node from all others, with coefficients that a least-squares problem has.

A layer seeks the coefficients Z ∈ ℝ^{N×N} that rebuild the states from each other, near to what the graph says:

.. math::
    \min_Z \; ‖H - (1 - γ) Z H - γ H_0‖_F^2 + β_1 ‖Z‖_F^2 + β_2 ‖Z - \textstyle\sum_k λ_k S^k‖_F^2 .

Setting the gradient to zero gives, with M = (1-γ)² H Hᵀ + (β_1 + β_2) I,

.. math::
    Z^* = \big[ (1-γ) (H - γ H_0) H^\top + β_2 \textstyle\sum_k λ_k S^k \big] M^{-1}.

Only Z* H is needed, and M⁻¹ H = H C⁻¹ with the small matrix C = (1-γ)² HᵀH + (β_1 + β_2) I ∈ ℝ^{d×d}: with
T = H C⁻¹,

.. math::
    Z^* H = (1-γ) (H - γ H_0) (H^\top T) + β_2 \textstyle\sum_k λ_k S^k T,

which costs O(N d² + K E d), and no coefficient is ever formed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.zoo.encoder import Encoder, Features, Graph, Observed, Segments, check_count, dropout, linear
from difformer.zoo.node_pairs import by_graph


def rebuilt(
    h: Tensor,
    h0: Tensor,
    graph: Graph,
    hops: Tensor,
    segments: Segments | None,
    *,
    gamma: float,
    beta1: float,
    beta2: float,
) -> Tensor:
    """Z* H of the module's formula, within each graph.

    Args:
        h: H ``[N, d]``.
        h0: H₀ ``[N, d]``.
        graph: The graph of S.
        hops: λ_1 … λ_K.
        segments: The graphs; None for one.
        gamma: γ.
        beta1: β_1.
        beta2: β_2.
    """
    small = by_graph(lambda _, x: _shrunk(x, (1 - gamma) ** 2, beta1 + beta2), segments, h)
    answer = (1 - gamma) * by_graph(lambda _, a, b, c: a @ (b.mT @ c), segments, h - gamma * h0, h, small)
    if beta2:
        spread = small
        for share in hops:
            spread = graph.propagate(spread)
            answer = answer + beta2 * share * spread
    return answer


def _shrunk(h: Tensor, scale: float, ridge: float) -> Tensor:
    """T = H C⁻¹ of graphs side by side; padding is zero and stays so."""
    # Positive definite by its ridge, which rounding of HᵀH must not outweigh where channels depend on each other, so in
    # double precision from the start. `solve` would make a GPU wait, to raise where a matrix is singular; here what is
    # not solved is no number, and the loss says it.
    wide = h if h.device.type == "mps" else h.double()
    eye = torch.eye(h.shape[-1], dtype=wide.dtype, device=h.device)
    factor, failed = torch.linalg.cholesky_ex(scale * (wide.mT @ wide) + ridge * eye)
    # By triangular solves, which a CUDA graph can hold; those behind `cholesky_inverse` of many matrices it cannot.
    root = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    inverse = (root.mT @ root).masked_fill((failed > 0)[..., None, None], torch.nan)
    return (wide @ inverse).to(h.dtype)


class GloGNN(Encoder):
    r"""A perceptron, then layers :math:`H^{(l+1)} = (1 - γ) Z^* H^{(l)} + γ H_0` of `rebuilt` states.

    λ is trained. S is D̃^{-1/2} (A + I) D̃^{-1/2}. H₀ is made from the features alone: the paper can add a map of a
    node's row of A, which fixes the nodes once for all and is left out here (its α = 0). States have `hidden_channels`
    instead of as many channels as there are classes.

    Args:
        num_layers: Layers.
        dropout: Of the features and before the perceptron's second map.
        gamma: γ, share of H₀.
        beta1: β_1.
        beta2: β_2; against HᵀH, a sum over all nodes: where it is small, every state rebuilds itself.
        hops: K, powers of S.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.5,
        gamma: float = 0.3,
        beta1: float = 1.0,
        beta2: float = 1000.0,
        hops: int = 3,
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, dropout=dropout)
        check_count("hops", hops, 1)
        if not 0 <= gamma < 1:
            raise UserError(f"gamma must lie in [0, 1), got {gamma!r}")
        if beta1 < 0 or beta2 < 0 or beta1 + beta2 <= 0:
            raise UserError(f"beta1 and beta2 must not be negative, nor both zero; got {beta1!r} and {beta2!r}")
        self.first = nn.Linear(in_channels, hidden_channels)
        self.second = nn.Linear(hidden_channels, hidden_channels)
        self.hops = nn.Parameter(torch.full((hops,), 1.0 / hops))
        self.output = nn.Linear(hidden_channels, out_channels)
        self.gamma, self.beta1, self.beta2 = gamma, beta1, beta2

    def states(self, x: Features, observed: Observed) -> Tensor:
        """States after the last layer."""
        graph = observed.looped
        z = functional.relu(linear(self.first, x, self.dropout, self.training))
        h = h0 = self.second(dropout(z, self.dropout, self.training))
        for _ in range(self.num_layers):
            again = rebuilt(
                h, h0, graph, self.hops, observed.segments, gamma=self.gamma, beta1=self.beta1, beta2=self.beta2
            )
            h = (1 - self.gamma) * again + self.gamma * h0
        return h
