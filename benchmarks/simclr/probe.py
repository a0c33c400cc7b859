"""The linear probe: how well a straight boundary in feature space tells the classes, given a few labels.

Features are standardised over all instances (labels play no part), n labels a class are drawn, and multinomial logistic
regression

    min_W  ½‖W‖² + C Σ_i -log softmax(W z_i + b)_{y_i}

is fitted to them; the accuracy is taken on every other instance. C is fixed, so that nothing is chosen on what is
reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of a linear probe, one a draw of the labelled instances."""

    per_class: int
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        return float(np.std(self.accuracies))


def linear_probe(
    features: Array, labels: Array, *, per_class: int = 100, draws: int = 5, seed: int = 0, strength: float = 0.1
) -> ProbeResult:
    """Accuracy of logistic regression from ``per_class`` labels, on all other instances.

    Args:
        features: ``[N, D]``.
        labels: ``[N]`` integers.
        per_class: Labelled instances of each class.
        draws: How often the labelled instances are drawn anew.
        seed: Draw i uses the seed ``(seed, i)``.
        strength: C of the equation above.

    Returns:
        The accuracy of every draw.

    Raises:
        ValueError: If lengths differ, there is one class only, or a class has no instance left to test on.
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if features.ndim != 2 or labels.shape != (len(features),):
        raise ValueError(
            f"features must have shape [N, D] and labels [N], got features {features.shape} and labels {labels.shape}"
        )
    if per_class < 1 or draws < 1:
        raise ValueError(f"per_class and draws must be at least 1, got per_class={per_class} and draws={draws}")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"labels hold {len(classes)} class; a probe needs at least two")
    if counts.min() <= per_class:
        raise ValueError(
            f"per_class={per_class} leaves no instance of class {classes[counts.argmin()]} to test on: "
            f"it has {counts.min()} in all; ask for fewer labels"
        )
    z = features.astype(np.float32)
    z = (z - z.mean(0)) / np.maximum(z.std(0), 1e-6)
    accuracies = []
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        train = np.concatenate([rng.choice(np.flatnonzero(labels == c), per_class, replace=False) for c in classes])
        test = np.setdiff1d(np.arange(len(labels)), train)
        model = LogisticRegression(C=strength, max_iter=2000).fit(z[train], labels[train])
        accuracies.append(float(model.score(z[test], labels[test])))
    return ProbeResult(per_class, tuple(accuracies))


def probe_table(
    features: Array, labels: Array, *, per_class: Sequence[int] = (10, 50, 100), draws: int = 5, seed: int = 0
) -> dict[int, ProbeResult]:
    """``linear_probe`` for several numbers of labels."""
    return {n: linear_probe(features, labels, per_class=n, draws=draws, seed=seed) for n in per_class}
