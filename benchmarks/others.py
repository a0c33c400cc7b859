"""Models of PyTorch Geometric beside which ours are timed: two layers, hidden 64, built from its own layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GCNConv, GPSConv
from torch_geometric.nn.models import SGFormer


class _GPS(nn.Module):
    """GPS layers with a graph convolution beside all-pair attention."""

    def __init__(self, channels: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(channels, hidden), nn.Linear(hidden, classes)
        self.layers = nn.ModuleList(GPSConv(hidden, GCNConv(hidden, hidden), heads=1) for _ in range(layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.input(x)
        for layer in self.layers:
            z = layer(z, edge_index)
        return self.output(z)


class _SGFormer(nn.Module):
    """SGFormer on one graph."""

    def __init__(self, channels: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        self.model = SGFormer(channels, hidden, classes, trans_num_layers=layers, gnn_num_layers=layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.model(x, edge_index, x.new_zeros(x.shape[0]).long())


OTHERS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "PyG GCN": lambda channels, hidden, classes, layers: GCN(channels, hidden, layers, classes),
    "PyG GAT": lambda channels, hidden, classes, layers: GAT(channels, hidden, layers, classes),
    "PyG SGFormer": _SGFormer,
    "PyG GPSConv": _GPS,
}
