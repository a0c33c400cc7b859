"""Populations too large to be looked at pair by pair: trained on in parts, and judged in parts.

While it trains on a random partition of the rows, `difformer.training` evaluates exactly, every row against every
other. Where all that an evaluation decides is which epoch to keep, O(N²) pairs are too many: here rows exchange within
parts then as well, of the same size as those that the model learns from, O(N · batch).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.training.feeds import BatchesFeed, Inputs, features, graph_of

FIXED = 0  # the epoch whose partition is judged by; training begins with epoch 1


class PartsFeed(BatchesFeed):
    """Training and evaluation in parts of the rows, with the edges inside each."""

    def outputs(self, model: nn.Module) -> Tensor:
        """``[N, C]``: the same partition at every evaluation, so that epochs differ by their weights alone."""
        parts, places = [], []
        for batch in self.partitions.epoch(FIXED):
            graph = None
            if batch.edge_index is not None:
                graph = graph_of(batch.edge_index, batch.edge_weight, batch.nodes.numel(), self.device)
            parts.append(Inputs(features(batch.x, self.device), graph).outputs(model))
            places.append(batch.nodes.to(self.device))
        return torch.cat(parts)[torch.cat(places).argsort()]
