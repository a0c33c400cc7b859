"""The linear part of a regression: ridge on standardised columns, beside which the models learn the rest.

A regressor predicts, for each target t,

    ŷ_t = w_tᵀx + b_t + γ_t · (mean output of the models),    γ_t in [0, 1].

w and b are those of scikit-learn's `Ridge` with its default penalty; the models are trained on what it leaves over, and
γ is the share of their outputs that predicts held-out rows best, zero unless that is a gain of more than three standard
errors. Where a target is linear in the features, γ is near zero and the regressor is a ridge regression; where it is
not, the models add what a line cannot say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.linear_model import Ridge
from torch import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LinearPart:
    """Coefficients ``[F, T]`` and intercepts ``[T]`` for scaled features and scaled targets, and γ ``[T]``."""

    coefficients: Tensor
    intercepts: Tensor
    share: Tensor

    @staticmethod
    def of(table: Any, target: Tensor, rows: Tensor, weight: Tensor | None) -> LinearPart:
        """Fitted to some rows of a table of scaled features ``[n, F]`` and targets ``[n, T]``, NaN where unknown."""
        columns, chosen = table.shape[1], rows.numpy()
        y = target[rows].double().numpy()
        w = np.ones(len(chosen)) if weight is None else weight[rows].double().numpy()
        coefficients, intercepts = np.zeros((columns, y.shape[1])), np.zeros(y.shape[1])
        for t in range(y.shape[1]):
            known = ~np.isnan(y[:, t]) & (w > 0)
            if not known.any():
                continue
            x, share = table[chosen[known]], w[known] / w[known].sum()
            mean, deviation = np.zeros(columns), np.ones(columns)
            if not sparse.issparse(x):
                mean = share @ x
                deviation = np.sqrt(share @ np.square(x - mean))
                deviation[deviation <= 1e-12 * np.maximum(np.abs(mean), 1.0)] = np.inf  # constant among these rows
                x = (x - mean) / deviation
            ridge = Ridge().fit(x, y[known, t], sample_weight=w[known])
            coefficients[:, t] = ridge.coef_ / deviation
            intercepts[t] = ridge.intercept_ - mean @ coefficients[:, t]
        return LinearPart(*(torch.from_numpy(part) for part in (coefficients, intercepts, np.ones(y.shape[1]))))

    def predict(self, table: Any) -> Tensor:
        """``[n, T]`` of the rows of a table."""
        return torch.from_numpy(np.asarray(table @ self.coefficients.numpy())) + self.intercepts


def best_share(outputs: Tensor, left: Tensor, weight: Tensor) -> Tensor:
    """γ ``[T]``: least squares on held-out rows, clipped to [0, 1]; zero if the gain is within three standard errors.

    `outputs` are those of the models, and `left` is what the linear part leaves over, NaN where unknown.
    """
    known = (~left.isnan()) * weight.unsqueeze(1)
    left, least = left.nan_to_num(), torch.finfo(torch.float64).tiny
    share = (outputs * left * known).sum(0) / (outputs.square() * known).sum(0).clamp_min(least)
    share = share.clamp(0, 1)
    gain = (left.square() - (left - share * outputs).square()) * known
    error = gain.std(0, correction=0) * len(gain) ** 0.5
    return torch.where(gain.sum(0) > 3 * error, share, 0.0)
