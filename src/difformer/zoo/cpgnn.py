r"""CPGNN of Zhu et al. (AAAI 2021): beliefs travel along edges through a learned matrix of compatibility."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.errors import UserError
from difformer.zoo.encoder import (
    GRAPH_NORMS,
    Encoder,
    Features,
    Graph,
    Observed,
    Passes,
    check_choice,
    class_labels,
    dropout,
    linear,
    without_loops,
)

SINKHORN_STEPS = 1000
SINKHORN_ERROR = 1e-6


def sinkhorn(matrix: Tensor) -> Tensor:
    """The doubly stochastic matrix D₁ M D₂ of a matrix without negative entries: rows and columns divided in turn."""
    m = matrix.double().clamp_min(1e-12)
    for _ in range(SINKHORN_STEPS):
        m = m / m.sum(1, keepdim=True)
        m = m / m.sum(0, keepdim=True)
        if float((m.sum(1) - 1).abs().max()) < SINKHORN_ERROR:
            break
    return m.to(matrix.dtype)


def estimated_compatibility(graph: Graph, prior: Tensor, labels: Tensor, index: Tensor) -> Tensor:
    r"""H ``[C, C]``: how often classes meet, :math:`\mathrm{Sinkhorn}(Y^\top A \tilde B)`.

    Rows are counted at labelled nodes alone; B̃ holds the labels where they are known and prior beliefs elsewhere.

    Args:
        graph: Observed edges.
        prior: Beliefs ``[N, C]`` that sum to one.
        labels: Classes of the nodes in `index`.
        index: Labelled nodes.
    """
    known = functional.one_hot(labels, prior.shape[1]).to(prior.dtype)
    beliefs = prior.index_copy(0, index, known)
    return sinkhorn(known.T @ graph.propagate(beliefs, "none")[index])


class CPGNN(Encoder):
    r"""A perceptron's beliefs, then linearised belief propagation.

    .. math::
        B_p = \mathrm{softmax}(\mathrm{MLP}(X)), \quad \bar B^{(0)} = B_p - \tfrac1C, \quad
        \bar B^{(k)} = \bar B^{(0)} + A \bar B^{(k-1)} \bar H, \quad \hat Y = \mathrm{softmax}(\bar B^{(K)}),

    with A the observed edges without self-loops and H̄ = H - 1/C. For the first `pretraining` passes the perceptron
    trains by itself; then H is estimated from labels and beliefs (`estimated_compatibility`) and trained from there
    on, together with the perceptron. `embed` gives the propagated beliefs; they are the logits.

    It needs classes of nodes: the labels come by `observe`.

    Args:
        hidden_channels: Length of the perceptron's states.
        out_channels: C, classes.
        num_layers: K, propagations.
        dropout: Within the perceptron.
        prior_layers: Maps of the perceptron.
        pretraining: Passes of the perceptron alone.
        prior_loss: η, weight of the perceptron's own loss.
        centring: Weight of Σ_i |Σ_j H̄_ij|, which keeps H doubly stochastic.
        graph_norm: ``"none"`` takes A as it is; ``"gcn"`` or ``"random_walk"`` divide it by degrees.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.5,
        prior_layers: int = 2,
        pretraining: int = 100,
        prior_loss: float = 1.0,
        centring: float = 1.0,
        graph_norm: str = "none",
    ) -> None:
        super().__init__({"num_layers": 0}, num_layers=num_layers, prior_layers=prior_layers, dropout=dropout)
        check_choice("graph_norm", graph_norm, GRAPH_NORMS)
        sizes = [in_channels, *[hidden_channels] * (prior_layers - 1), out_channels]
        self.prior = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.compatibility = nn.Parameter(torch.zeros(out_channels, out_channels))
        self.pretraining, self.prior_loss, self.centring, self.graph_norm = (
            pretraining,
            prior_loss,
            centring,
            graph_norm,
        )
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self._passes = Passes()
        self._labels: tuple[Tensor, Tensor] | None = None
        self._penalty: Tensor | None = None

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Takes the training labels, from which compatibility is estimated."""
        self._labels = class_labels("cpgnn", y, train_index)

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Centred beliefs after the last propagation, ``[N, C]``; the perceptron's outputs while it trains alone."""
        observed.one_graph("cpgnn", "knows labels of one graph's nodes")
        logits = self._logits(x)
        if self.training:
            self._passes.add(self.passes)
        self._penalty = logits.new_zeros(())
        graph, passes = without_loops(observed.graph), self._passes.of(self.passes)
        if graph is None or passes <= self.pretraining:
            return logits
        beliefs = torch.softmax(logits, 1)
        if self.training and passes == self.pretraining + 1:
            self._estimate(graph, beliefs.detach())
        if self.training and self._labels is not None:
            index, labels = self._labels
            self._penalty = self.prior_loss * functional.cross_entropy(logits[index], labels)
        self._penalty = self._penalty + self.centring * self.compatibility.sum(1).abs().sum()
        start = beliefs - 1 / beliefs.shape[1]
        now = start
        for _ in range(self.num_layers):
            now = start + graph.propagate(now, self.graph_norm) @ self.compatibility
        return now

    def decode(self, states: Tensor) -> Tensor:
        """Beliefs are logits already."""
        return states

    def penalty(self) -> Tensor:
        """The perceptron's own loss and the centring of H, of the last pass."""
        if self._penalty is None:
            raise UserError("cpgnn has made no pass yet: its penalty is that of the last one")
        return self._penalty

    def _logits(self, x: Features) -> Tensor:
        z = linear(self.prior[0], x, self.dropout, self.training)  # type: ignore[arg-type]
        for layer in self.prior[1:]:
            z = layer(dropout(functional.relu(z), self.dropout, self.training))
        return z

    def _estimate(self, graph: Graph, beliefs: Tensor) -> None:
        if self._labels is None:
            raise UserError("cpgnn estimates compatibility from labels; call observe(y, train_index) before training")
        index, labels = self._labels
        with torch.no_grad():
            found = estimated_compatibility(graph, beliefs, labels, index)
            self.compatibility.copy_(found - 1 / found.shape[0])
