"""Manifold regularisation of Belkin, Niyogi and Sindhwani (JMLR 2006), of a multi-layer perceptron."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.errors import UserError
from difformer.zoo.classic import MLP
from difformer.zoo.encoder import Edges, Features, Graph, Observed, Segments, check_choice

LAPLACIANS = ("gcn", "none")


def roughness(outputs: Tensor, graph: Graph | None, norm: str = "gcn") -> Tensor:
    r"""How much outputs vary along edges, :math:`\mathrm{tr}(F^\top L F)`.

    L is :math:`D - A` (``"none"``) or :math:`D^{-1/2} (D - A) D^{-1/2}` (``"gcn"``).
    """
    if graph is None:
        return outputs.new_zeros(())
    degree = graph.degree(outputs.dtype)
    kept = degree if norm == "none" else (degree > 0).to(outputs.dtype)
    return (outputs * (kept.unsqueeze(1) * outputs - graph.propagate(outputs, norm))).sum()


class ManiReg(MLP):
    r"""An MLP whose loss has the term :math:`\frac{λ}{N} \mathrm{tr}(F^\top L F)` of its outputs F.

    The graph shapes training alone: a trained model looks at each instance by itself. It is the observed one, or a
    neighbour graph of the features where the training is told so (``graph="knn:5"``); without edges there is no term.

    Args:
        dropout: After each activation.
        penalty_weight: λ.
        graph_norm: The Laplacian: ``"gcn"`` is the normalised one, ``"none"`` the plain one.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        dropout: float = 0.5,
        penalty_weight: float = 0.1,
        graph_norm: str = "gcn",
        **options: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, dropout=dropout, **options)
        check_choice("graph_norm", graph_norm, LAPLACIANS)
        if not penalty_weight >= 0:
            raise UserError(f"penalty_weight must not be negative, got {penalty_weight!r}")
        self.penalty_weight, self.graph_norm = penalty_weight, graph_norm
        self._last: Tensor | None = None

    def forward(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        outputs = super().forward(x)
        self._last = None
        if self.training:
            graph = Observed.of(x, edge_index, edge_weight, batch).graph
            self._last = self.penalty_weight / max(1, x.shape[0]) * roughness(outputs, graph, self.graph_norm)
        return outputs

    def penalty(self) -> Tensor:
        """The term of the last pass in training mode; zero after one in evaluation mode."""
        term, self._last = self._last, None
        return torch.zeros((), device=self.output.weight.device) if term is None else term
