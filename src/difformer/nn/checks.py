"""A look at features before they are used: off in the hot path, on in the command line."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.errors import UserError
from difformer.sparse import SparseMatrix


def check_finite(x: Tensor | SparseMatrix, name: str = "x") -> None:
    """Raises a ValueError that says how many entries of `x` are NaN or infinite, and where the first one is."""
    if isinstance(x, Tensor) and x.layout == torch.sparse_coo:
        x = x.coalesce()
    values = x.rows.value if isinstance(x, SparseMatrix) else x if x.layout == torch.strided else x.values()
    good = values.isfinite()
    if good.all():
        return
    count = int((~good).sum())
    where = ""
    if values.dim() > 1:
        first = (~good).nonzero()[0].tolist()
        where = f", the first at {name}[{', '.join(map(str, first))}] = {values[tuple(first)].item()}"
    raise UserError(
        f"{name} holds {count} entries that are not finite{where}; fill in or drop missing values before training"
    )
