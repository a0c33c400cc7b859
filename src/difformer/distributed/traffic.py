r"""Bytes that a rank sends, counted by kind.

A collective is counted by what one rank puts on the wire when it is done in the way that needs least of it:

.. math::
    \text{all-reduce of } n \text{ bytes: } 2 n \frac{P - 1}{P}, \qquad
    \text{all-gather: } n (P - 1), \qquad
    \text{all-to-all, ring: what goes to other ranks,}

so that P = 1 sends nothing. Kinds:

* ``sums``: what latent propagation needs to know of all nodes, forward and backward;
* ``boundary``: states, and backward their gradients, of nodes with a neighbour on another rank;
* ``ring``: keys, values and their gradients, for diffusivities that are no sums: O(N d) in all;
* ``gradients``: of the parameters, once a step;
* ``metrics``: counts, losses and, for ROC-AUC, scores;
* ``plan``: what is exchanged once, before the first step;
* ``results``: predictions, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

KINDS = ("sums", "boundary", "ring", "gradients", "metrics", "plan", "results")


@dataclass
class Traffic:
    """Bytes sent by this rank since it was made."""

    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def add(self, kind: str, count: float) -> None:
        self.sent[kind] += round(count)

    @contextmanager
    def during(self) -> Iterator[dict[str, int]]:
        """A mapping that holds, once the block has ended, what was sent within it."""
        before, found = dict(self.sent), dict.fromkeys(KINDS, 0)
        try:
            yield found
        finally:
            for kind, count in self.sent.items():
                found[kind] = count - before[kind]


def readable(count: float) -> str:
    """1234567 as 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
