"""Graph diffusion convolution, GDC of Gasteiger et al. (NeurIPS 2019): GCN on a diffused graph."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import check_rate
from difformer.zoo.diffusion_graph import Diffusion, diffused
from difformer.zoo.gcn import GCN


class GDC(GCN):
    r"""`GCN` whose graph is :math:`α (I - (1 - α) T)^{-1}` or :math:`e^{-t (I - T)}`, made sparse.

    The diffused graph is worked out once for a `Graph`, and anew for edges that come as tensors; see
    `difformer.zoo.diffusion_graph`. Weights that are trained get no gradient through it.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        out_channels: Outputs of an instance.
        num_layers: Convolutions, the output's included.
        dropout: After each ReLU.
        kernel: ``"ppr"`` or ``"heat"``.
        teleport: α of PageRank.
        time: t of heat.
        top_k: Neighbours that a node keeps; None keeps those of at least `threshold`.
        threshold: Least entry of the diffusion matrix that is kept, where `top_k` is None.
        graph_norm: T: ``"gcn"`` or ``"random_walk"``.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.5,
        kernel: str = "ppr",
        teleport: float = 0.05,
        time: float = 5.0,
        top_k: int | None = 64,
        threshold: float = 1e-4,
        graph_norm: str = "gcn",
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers=num_layers, dropout=dropout)
        check_rate("dropout", dropout)
        self.diffusion = Diffusion(kernel, teleport, time, top_k, threshold, graph_norm)

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Propagated states before the last linear map."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        graph = structure.graph
        if graph is None:
            graph = Graph(torch.empty(2, 0, dtype=torch.long, device=x.device), x.shape[0])
        return super().embed(x, diffused(graph, self.diffusion, structure.segments))
