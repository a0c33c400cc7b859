"""Label propagation of Zhu et al. (ICML 2003) and label spreading of Zhou et al. (NIPS 2003)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusion.coupling import GRAPH_WEIGHTS
from difformer.diffusion.models import CLAMPS, propagate_labels
from difformer.errors import UserError
from difformer.nn.protocol import Features
from difformer.zoo.encoder import Encoder, Observed, class_labels, one_of, option
from difformer.zoo.linear_maps import dense

LEAST = 1e-12


class LabelDiffusion(Encoder):
    """A model without parameters, whose states are scores of classes computed from the observed labels."""

    def make(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        self.out_channels = out_channels
        self._labels: Tensor | None = None

    def observed_labels(self, x: Features) -> Tensor:
        """The observed labels; a ValueError if they are not those of the rows of `x`."""
        if self._labels is None or self._labels.shape[0] != x.shape[0]:
            seen = "none" if self._labels is None else len(self._labels)
            problem = f"{type(self).__name__} has observed {seen} labels for {x.shape[0]} rows; call observe(y, "
            problem += "train_index) and leave batch_size out: it needs the whole graph"
            raise UserError(problem)
        return self._labels

    def decode(self, states: Tensor) -> Tensor:
        """Logarithms, so that a softmax (a sigmoid for multiple labels) returns the scores."""
        logs = states.clamp_min(LEAST).log()
        if states.shape[-1] == self.out_channels:
            return logs
        present, absent = logs.split(self.out_channels, -1)
        return present - absent


class LabelPropagation(LabelDiffusion):
    r"""Labels diffuse over the graph, :math:`Y^{(k+1)} = \mathrm{clamp}[α S Y^{(k)} + (1 - α) Y^{(0)}]`.

    Nothing is trained; `observe` stores the training labels. With α = 1, ``graph_norm="random_walk"`` and
    ``clamp="labels"`` this is the harmonic solution of Zhu et al.; with the defaults it is PyTorch Geometric's
    ``LabelPropagation``. For multiple labels, presence and absence diffuse separately; outputs are their log ratio.

    Args:
        hidden_channels: Not used.
    """

    num_layers: int = option(50, "Number of steps.", least=0)
    alpha: float = option(0.9, "α, share of the neighbours.")
    graph_norm: str = one_of(*GRAPH_WEIGHTS, about="S, see `difformer.diffusion.GraphCoupling`.")
    clamp: str = one_of(*CLAMPS, about="range keeps scores in [0, 1]; labels restores known labels after each step.")

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Stores the training labels: classes ``[N]``, or 0 and 1 ``[N, C]`` with NaN for unknown labels."""
        if y.dim() == 1 and not y.is_floating_point():
            scores = functional.one_hot(y.clamp_min(0), self.out_channels).float() * (y >= 0).unsqueeze(1)
        elif y.dim() == 2 and bool(((y == 0) | (y == 1) | y.isnan()).all()):
            scores = torch.cat([y == 1, y == 0], 1).float()
        else:
            raise UserError(
                f"label propagation needs class numbers [N], or labels 0 and 1 [N, C]; got {y.dtype} {tuple(y.shape)}"
            )
        self._labels, self._index = scores, train_index

    def states(self, x: Features, observed: Observed) -> Tensor:
        """Scores of classes ``[N, C]``; for multiple labels, of presence and absence, ``[N, 2 C]``."""
        return propagate_labels(
            self.observed_labels(x),
            observed.edges,
            known=self._index,
            steps=self.num_layers,
            alpha=self.alpha,
            weights=self.graph_norm,
            clamp=self.clamp,
        )


class LabelSpreading(LabelDiffusion):
    r"""scikit-learn's label spreading over neighbours in feature space, :math:`F^{+} = α S F + (1 - α) Y`.

    Nothing is trained; `observe` stores the training labels, and each forward pass fits scikit-learn's estimator.

    Args:
        hidden_channels: Not used.
    """

    neighbours: int = option(7, "Number of neighbours.")
    alpha: float = option(0.2, "α, share of the neighbours.")
    max_iter: int = option(100, "Maximum number of iterations.")

    def observe(self, y: Tensor, train_index: Tensor) -> None:
        """Stores the training labels; all others are unknown."""
        known, labels = class_labels("label spreading", y, train_index)
        self._labels = torch.full_like(y, -1).index_copy(0, known, labels)

    def states(self, x: Features, observed: Observed) -> Tensor:
        from sklearn.semi_supervised import LabelSpreading as Estimator

        labels, features = self.observed_labels(x), dense(x)
        estimator = Estimator(kernel="knn", n_neighbors=self.neighbours, alpha=self.alpha, max_iter=self.max_iter)
        estimator.fit(features.detach().cpu().numpy(), labels.cpu().numpy())
        states = torch.zeros(x.shape[0], self.out_channels, device=features.device)
        states[:, torch.from_numpy(estimator.classes_)] = torch.from_numpy(estimator.label_distributions_).to(states)
        return states
