r"""Features on a common scale, as every estimator applies it to what it is given.

Dense columns are centred and divided by the quadratic mean of their own deviation's inverse and of a common one's,

    x̃_ij = (x_ij - μ_j) √(½ (1/σ_j² + 1/σ²)),   σ² = mean_j σ_j²,

all weighted by the rows' mass. Columns in their own unit (1/σ_j) are right where units are arbitrary, columns in one
common unit (1/σ) where they are comparable, as pixels or centimetres are, and a small deviation means little; a table
does not say which it is, and this is never far from either. Constant columns are only centred.

Sparse features keep their zeros: all entries are divided by one number, so that the mean
square of a row becomes F, as it is for dense rows; columns of a bag of words are comparable as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

Array = np.ndarray[Any, Any]

CONSTANT = 1e-12  # a deviation below this share of the column's size is rounding


@dataclass(frozen=True)
class Scaling:
    """What features are shifted and divided by.

    Args:
        shift: ``[F]``, or None for features that keep their zeros.
        scale: ``[F]``.
    """

    shift: Array | None
    scale: Array

    @staticmethod
    def of(x: Any, mass: Array, *, standardize: bool = True) -> Scaling:
        """The scaling that a population asks for; with `standardize` False, none."""
        features = x.shape[1]
        if not standardize:
            return Scaling(None, np.ones(features))
        share = mass / mass.sum()
        if sparse.issparse(x):
            square = float(share @ np.asarray(x.multiply(x).sum(1)).ravel()) / features
            return Scaling(None, np.full(features, np.sqrt(square) if square > 0 else 1.0))
        shift = share @ x
        # One block of rows after the other: a second copy of a large table is not needed to square it.
        square = sum(share[i : i + 4096] @ np.square(x[i : i + 4096] - shift) for i in range(0, x.shape[0], 4096))
        constant = np.sqrt(square) <= CONSTANT * np.maximum(np.abs(shift), np.finfo(np.float64).tiny)
        own = np.where(constant, 1.0, square)
        common = square[~constant].mean() if not constant.all() else 1.0
        return Scaling(shift, np.where(constant, 1.0, np.sqrt(2 / (1 / own + 1 / common))))

    def __call__(self, x: Any) -> Any:
        """Scaled features, float64; dense stays dense, CSR stays CSR."""
        if sparse.issparse(x):
            if self.shift is not None:
                return self(x.toarray())  # fitted on dense rows
            return sparse.csr_array(x.multiply(1.0 / self.scale))
        return (x if self.shift is None else x - self.shift) / self.scale
