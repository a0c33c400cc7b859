"""Simple graph convolution of Wu et al. (ICML 2019): a linear model of diffused features."""

from __future__ import annotations

from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.nn.protocol import Edges, Features
from difformer.zoo.base import Encoder, check_layers
from difformer.zoo.inputs import dense, mapped, observed_graph


class SGC(Encoder):
    r"""Outputs :math:`\hat Y = S^K X W + b` with :math:`S = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.

    Propagation and map commute, so outputs are computed as S^K (X W), with as many columns as there are outputs.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Not used: there is no hidden layer.
        out_channels: Outputs of an instance.
        num_layers: K, propagations.
    """

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, *, num_layers: int = 2) -> None:
        super().__init__()
        check_layers(num_layers, least=0)
        self.num_layers = num_layers
        self.output = nn.Linear(in_channels, out_channels)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def _diffused(
        self, z: Tensor, edge_index: Edges | None, edge_weight: Tensor | None, batch: Tensor | Segments | None
    ) -> Tensor:
        graph = observed_graph(z.shape[0], edge_index, edge_weight, batch, self_loops=True, device=z.device)
        assert graph is not None  # there always are self-loops
        for _ in range(self.num_layers):
            z = graph.propagate(z)
        return z

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Diffused features S^K X, ``[N, in_channels]``."""
        return self._diffused(dense(x), edge_index, edge_weight, batch)

    def forward(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        few = mapped(self.output.weight, x)
        return self._diffused(few, edge_index, edge_weight, batch) + self.output.bias
