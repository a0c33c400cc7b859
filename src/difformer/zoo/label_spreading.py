"""Label spreading of Zhou et al. (NIPS 2003), by scikit-learn: diffusion of labels instead of features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.attention.segments import Segments
from difformer.graph import Graph
from difformer.sparse import SparseMatrix


class LabelSpreading(nn.Module):
    r"""Labels spread over neighbours in feature space, :math:`F^{+} = α S F + (1 - α) Y`.

    Nothing is trained; `observe` gives it the training labels, and each forward pass is one call of scikit-learn's
    estimator on the given rows.

    Args:
        in_channels: Features of an instance; not used.
        hidden_channels: Not used.
        out_channels: Classes.
        neighbours: Size of the neighbourhood.
        alpha: α, how much a label may change.
        max_iter: Iterations at most.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        neighbours: int = 7,
        alpha: float = 0.2,
        max_iter: int = 100,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.neighbours, self.alpha, self.max_iter = neighbours, alpha, max_iter
        self._labels: Tensor | None = None

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Takes the training labels; all others stay unknown."""
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(f"label spreading needs one class number an instance, got {y.dtype} {tuple(y.shape)}")
        self._labels = torch.full_like(y, -1)
        self._labels[train_index] = y[train_index]

    def embed(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        """Distribution over classes of each instance."""
        from sklearn.semi_supervised import LabelSpreading as Estimator

        if self._labels is None or self._labels.numel() != x.shape[0]:
            seen = "none" if self._labels is None else f"{self._labels.numel()}"
            raise ValueError(
                f"label spreading has observed {seen} labels for {x.shape[0]} rows; call observe(y, train_index)"
            )
        features: Any = x.to_dense() if isinstance(x, SparseMatrix) or x.layout != torch.strided else x
        estimator = Estimator(kernel="knn", n_neighbors=self.neighbours, alpha=self.alpha, max_iter=self.max_iter)
        estimator.fit(features.detach().cpu().numpy(), self._labels.cpu().numpy())
        states = torch.zeros(x.shape[0], self.out_channels, device=features.device)
        states[:, torch.from_numpy(estimator.classes_)] = torch.from_numpy(estimator.label_distributions_).to(states)
        return states

    def decode(self, states: Tensor) -> Tensor:
        """Logarithms, so that a softmax gives the distribution back."""
        return states.clamp_min(1e-12).log()

    def forward(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | Segments | None = None,
    ) -> Tensor:
        return self.decode(self.embed(x, edge_index, edge_weight, batch))
