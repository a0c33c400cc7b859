r"""NodeFormer of Wu et al. (NeurIPS 2022): all-pair attention that draws latent edges, in linear time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.nn.conv import check_count
from difformer.nn.dropout import dropout
from difformer.nn.protocol import Edges, Features
from difformer.nn.structure import as_structure
from difformer.zoo.base import Encoder, check_layers, check_positive, check_rate
from difformer.zoo.inputs import linear, observed_graph, refuse_beyond_memory
from difformer.zoo.nodeformer_layer import NodeFormerLayer


class NodeFormer(Encoder):
    r"""Layers of `NodeFormerLayer` with residual connections, a norm and dropout.

    .. math::
        Z^{(0)} = \mathrm{ELU}(\mathrm{norm}(X W + b)), \qquad
        Z^{(k+1)} = \mathrm{dropout}(\mathrm{norm}(P(Z^{(k)}) + Z^{(k)}))

    While it trains, Gumbel noise and random features are drawn as dropout masks are: by seed, epoch and place, the same
    on every device and in every stack of runs (by torch's generator outside `difformer.nn.dropout.dropout_key`). In
    evaluation there is no noise, and the features are those that are saved with the model.

    Args:
        in_channels: Features of an instance.
        hidden_channels: Length of a state, and of each head.
        out_channels: Outputs of an instance.
        num_layers: Attention layers.
        num_heads: Heads.
        dropout: After the input and each layer.
        random_features: m.
        temperature: τ.
        samples: S, draws of Gumbel noise; 0 trains without it.
        bias_order: Powers of the observed graph that are added; 0 for none.
        edge_loss: λ, weight of the edge loss.
        norm: Whether there is a LayerNorm after each layer.
        residual: Whether a layer adds to its input.
        redraw: Whether random features are drawn anew in every pass of training.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.0,
        random_features: int = 30,
        temperature: float = 0.25,
        samples: int = 5,
        bias_order: int = 2,
        edge_loss: float = 1.0,
        norm: bool = True,
        residual: bool = True,
        redraw: bool = True,
    ) -> None:
        super().__init__()
        check_layers(num_layers)
        check_count("num_heads", num_heads, 1)
        check_count("random_features", random_features, 1)
        check_count("samples", samples, 0)
        check_count("bias_order", bias_order, 0)
        check_positive("temperature", temperature)
        check_rate("dropout", dropout)
        self.input = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(
            NodeFormerLayer(
                hidden_channels,
                num_heads,
                features=random_features,
                temperature=temperature,
                samples=samples,
                bias_order=bias_order,
                redraw=redraw,
            )
            for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(hidden_channels) if norm else nn.Identity() for _ in range(num_layers + 1)
        )
        self.output = nn.Linear(hidden_channels, out_channels)
        nn.init.zeros_(self.input.bias)  # beside features whose rows sum to one it would be all that the norm sees
        self.dropout, self.edge_loss, self.residual = dropout, edge_loss, residual
        self._penalty: Tensor | None = None

    def embed(
        self,
        x: Features,
        edge_index: Edges | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """States after the last layer."""
        structure = as_structure(x.shape[0], edge_index, edge_weight, batch)
        graph = None
        if edge_index is not None:
            graph = observed_graph(x.shape[0], structure.graph, self_loops=True, device=x.device)
        if torch.is_grad_enabled():
            refuse_beyond_memory(
                self._bytes(x.shape[0]),
                x.device,
                f"nodeformer on {x.shape[0]:,} nodes",
                "train with batch_size=…, or fewer samples, random_features or num_heads",
            )
        z = dropout(functional.elu(self.norms[0](linear(self.input, x))), self.dropout, self.training)
        losses = []
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            p, loss = layer(z, structure, graph)
            if loss is not None:
                losses.append(loss)
            z = dropout(norm(p + z if self.residual else p), self.dropout, self.training)
        nothing = z.new_zeros(()) if graph is None else None
        self._penalty = torch.stack(losses).mean() if losses else nothing
        return z

    def _bytes(self, rows: int) -> float:
        """What training keeps: features of queries and keys, four times those of each draw, and a few states."""
        first = self.layers[0]
        assert isinstance(first, NodeFormerLayer)
        (heads, channels), features = first.shape, first.projection.shape[0]
        draws = max(1, first.samples)
        return 4.0 * rows * len(self.layers) * (heads * (features * (4 * draws + 8) + 4 * channels) + 12 * channels)

    def penalty(self) -> Tensor:
        """λ times the edge loss of the last pass, a mean over layers; zero where nothing is observed."""
        if self._penalty is None:
            raise ValueError("nodeformer's penalty is that of the last pass with gradients: make one first")
        return self.edge_loss * self._penalty
