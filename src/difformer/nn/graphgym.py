"""The layer for GraphGym of PyTorch Geometric: importing this module registers it as ``difformerconv``.

    import difformer.nn.graphgym  # then, in the configuration: gnn.layer_type: difformerconv

Options of `DIFFormerConv` are keyword arguments of the layer.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.graphgym.register import register_layer

from difformer.nn.conv import DIFFormerConv


@register_layer("difformerconv")
class DIFFormerLayer(nn.Module):
    """`DIFFormerConv` as a GraphGym layer; without a residual term if ``dim_in`` and ``dim_out`` differ."""

    def __init__(self, layer_config: Any, **options: Any) -> None:
        super().__init__()
        sizes = layer_config.dim_in, layer_config.dim_out
        self.model = DIFFormerConv(*sizes, **{"residual": sizes[0] == sizes[1], **options})

    def forward(self, batch: Any) -> Any:
        """Replaces ``batch.x`` by the next states; attention stays within the graphs of ``batch.batch``."""
        weight, graphs = getattr(batch, "edge_weight", None), getattr(batch, "batch", None)
        batch.x = self.model(batch.x, batch.edge_index, weight, graphs)
        return batch
