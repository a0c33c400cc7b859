r"""A graph convolutional network as a function of its weights and of a dense graph, so that both can be differentiated.

.. math::
    Z^{(k+1)} = \mathrm{ReLU}(\tilde D^{-1/2} (A + I) \tilde D^{-1/2} Z^{(k)} W_k + b_k)
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.nn.dropout import dropout
from difformer.nn.protocol import Features
from difformer.sparse import SparseMatrix

Weights = list[tuple[Tensor, Tensor]]


class Network(nn.Module):
    """Weights of the hidden layers.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state.
        num_layers: Convolutions, the output's included, whose own map is not here.
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int) -> None:
        super().__init__()
        sizes = [in_channels] + [hidden_channels] * (num_layers - 1)
        self.maps = nn.ParameterList(
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(a, b))) for a, b in pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])

    def weights(self) -> Weights:
        """Maps and biases, layer by layer."""
        return list(zip(self.maps, self.biases, strict=True))


def network_states(weights: Weights, x: Features, adjacency: Tensor, rate: float = 0.0) -> Tensor:
    """Propagated states before the output's map; a rate of dropout is for training."""
    inverse = (adjacency.sum(1) + 1).rsqrt().unsqueeze(1)

    def propagate(z: Tensor) -> Tensor:
        z = inverse * z
        return inverse * (adjacency @ z + z)  # the graph itself stays as it was drawn: one N × N tensor, no more

    z = x
    for weight, bias in weights:
        z = functional.relu(propagate(_product(z, weight)) + bias)
        z = dropout(z, rate, rate > 0)
    assert isinstance(z, Tensor)  # there is a hidden layer
    return propagate(z)


def _product(z: Features, weight: Tensor) -> Tensor:
    if isinstance(z, Tensor) and z.layout != torch.strided:
        z = SparseMatrix.from_tensor(z)
    return z @ weight
