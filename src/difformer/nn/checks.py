"""A look at features before they are used, and at the size of a model before it is built."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

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


@contextmanager
def no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, building a model that is much larger than its saved weights fails at once.

    A configuration from elsewhere may ask for 10⁹ layers; that its weights are of another model would be noticed only
    after all layers were built.

    Raises:
        UserError: If this thread registers far more parameters or modules than `weights` can be those of.
    """
    total = sum(value.numel() for value in weights.values())
    numbers = 10_000 + 2 * total
    modules = 1_000 + 20 * len(weights)
    me, counted = threading.get_ident(), {"numbers": 0, "modules": 0}

    def count(kind: str, amount: int, most: int) -> None:
        if threading.get_ident() != me:
            return
        counted[kind] += amount
        if counted[kind] > most:
            raise UserError(f"the model of the configuration is larger than its weights, of {total:,} numbers")

    with ExitStack() as stack:
        for handle in (
            register_module_parameter_registration_hook(
                lambda module, name, value: count("numbers", 0 if value is None else value.numel(), numbers)
            ),
            register_module_module_registration_hook(lambda module, name, value: count("modules", 1, modules)),
        ):
            stack.callback(handle.remove)
        yield
