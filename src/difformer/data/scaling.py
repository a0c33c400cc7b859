"""Columns of features on one scale.

    dense    x̃_ij = (x_ij - μ_j) / σ_j     μ_j the mean, σ_j the deviation of column j
    sparse   x̃_ij = x_ij / ρ_j             ρ_j the quadratic mean of column j; zeros stay zeros

over all rows of all parts of a split: no label is used. Constant columns are shifted only. `Task.scaled` brings new
rows to the same scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.data.sparse_features import csr
from difformer.errors import UserError

UNEVEN = 100.0  # columns that differ more than this in deviation are worth a note
CONSTANT = 1e-7  # a deviation below this share of the column's size is rounding, in single precision


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class Scaling:
    """What columns are shifted (None keeps zeros) and divided by, in double precision, computed from `rows` rows."""

    shift: Tensor | None
    scale: Tensor
    rows: int

    @staticmethod
    def of(x: Tensor) -> Scaling:
        """From the rows of a matrix, dense or CSR."""
        rows = x.shape[0]
        if x.layout == torch.sparse_csr:
            square = torch.zeros(x.shape[1], dtype=torch.double)
            square.index_add_(0, x.col_indices().long(), x.values().double().square())
            mean = (square / rows).sqrt()
            return Scaling(None, torch.where(mean > 0, mean, 1.0), rows)
        shift, deviation = _moments(x)
        return Scaling(shift, torch.where(deviation > 0, deviation, 1.0), rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows on this scale, of the same type and layout."""
        if x.dim() != 2 or x.shape[1] != self.scale.numel():
            raise UserError(f"x: expected rows of {self.scale.numel()} columns, [N, F], got shape {tuple(x.shape)}")
        if x.layout == torch.sparse_csr and self.shift is None:
            columns = x.col_indices().long()
            values = (x.values().double() / self.scale[columns]).to(x.dtype)
            return csr(x.crow_indices().long(), columns, values, (x.shape[0], x.shape[1]))
        dense = x.to_dense() if x.layout == torch.sparse_csr else x
        shift = self.scale.new_zeros(()) if self.shift is None else self.shift
        return torch.cat([((part.double() - shift) / self.scale).to(x.dtype) for part in dense.split(8192)])

    def describe(self) -> str:
        """What was done, in words."""
        how = "divided by their quadratic mean" if self.shift is None else "standardised"
        return f"columns {how} over all {self.rows} rows, no label used"


def uneven(x: Tensor, names: Sequence[str] = ()) -> tuple[str, ...]:
    """A note if the columns of a dense matrix differ so much in size that only the largest would matter to a model.

    Columns of 0 and 1 count as deviation ½, constant columns do not count.
    """
    if x.layout != torch.strided or x.shape[1] < 2:
        return ()
    _, deviation = _moments(x)
    indicator = torch.stack([((part == 0) | (part == 1)).all(0) for part in x.split(8192)]).all(0)
    changing = deviation > 0
    size = torch.where(indicator, 0.5, deviation)
    most, least = (int(i) for i in (size.where(changing, 0.0).argmax(), size.where(changing, torch.inf).argmin()))
    if not bool(changing.any()) or float(size[most]) <= UNEVEN * float(size[least]):
        return ()
    large, small = (repr(names[i]) if names else f"column {i + 1}" for i in (most, least))
    return (
        f"features differ in scale: {large} has deviation {float(size[most]):.3g}, {small} {float(size[least]):.3g}; "
        f"models may learn next to nothing from them as they are: standardize=true brings all columns to one scale",
    )


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every column in double precision; the deviation is 0 where it is only rounding."""
    shift = x.mean(0, dtype=torch.double)
    # In blocks of rows, so that a large table is not copied in double precision as a whole.
    square = torch.stack([(part.double() - shift).square().sum(0) for part in x.split(8192)]).sum(0)
    deviation = (square / x.shape[0]).sqrt()
    return shift, torch.where(deviation > CONSTANT * shift.abs(), deviation, 0.0)
