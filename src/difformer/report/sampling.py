"""Which instances a page shows, where it cannot show them all: some of every class, drawn by a seed, and said so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SEED = 0


def draw(count: int, limit: int, classes: Tensor | None = None, always: Sequence[int] = ()) -> Tensor:
    """At most `limit` of `count` instances, in their order.

    Args:
        count: How many there are.
        limit: How many are wanted.
        classes: ``[count]`` class numbers; every class then keeps its share, and at least one instance.
        always: Instances that are kept in any case.
    """
    if count <= limit:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(count, generator=generator)
    first = torch.tensor(list(always), dtype=torch.long)
    if classes is not None:
        shuffled = classes[order]
        heads = [order[shuffled == c][:1] for c in classes.unique().tolist()]
        first = torch.cat([first, *heads])
    chosen = torch.cat([first, order])
    # The first occurrence of each index counts: unique() would lose the order, and with it what comes always.
    seen, kept = set(), []
    for index in chosen.tolist():
        if index not in seen:
            seen.add(index)
            kept.append(index)
        if len(kept) == limit:
            break
    return torch.tensor(kept).sort().values


def said(shown: int, count: int, what: str) -> str:
    """The sentence about a sample; empty where all are shown."""
    return "" if shown >= count else f"{shown:,} of {count:,} {what} are shown, drawn at random (seed {SEED})."
