"""Arguments of models and features, looked at before they are used."""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from difformer.errors import UserError
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager
from difformer.sparse import SparseMatrix

# Squares of these still have a sum: beyond them a LayerNorm overflows, in each implementation in another way.
LARGEST = {torch.float32: 1e15, torch.float64: 1e150}
_SEEN: ResultCache[bool] = ResultCache()


def check_range(x: Tensor | SparseMatrix) -> None:
    """Refuses features so large that a model could only overflow; looks at each CPU tensor once.

    Tensors on other devices are not looked at: their values would have to be waited for.

    Raises:
        UserError: Says how large they are, and what to do.
    """
    values = x.rows.value if isinstance(x, SparseMatrix) else x
    limit = LARGEST.get(values.dtype)
    if limit is None or values.device.type != "cpu" or not is_eager(values) or values.is_inference():
        return

    def look() -> bool:
        largest = values.detach().abs().amax().item() if values.numel() else 0.0
        if limit < largest < math.inf:  # infinities and NaN are seen in the outputs
            raise UserError(
                f"x holds values of up to {largest:.3g}, beyond the {limit:.0e} that {values.dtype} leaves room for; "
                f"standardise the features"
            )
        return True

    _SEEN.of(values, (), look)


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


def check_count(name: str, count: int, least: int = 1) -> None:
    """Raises a ValueError that names the argument if `count` is no integer (numpy's count as such) or too small."""
    try:
        enough = operator.index(count) >= least
    except TypeError:
        enough = False
    if not enough:
        raise UserError(f"{name} must be an integer of at least {least}, got {count!r}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
