"""Neighbour graphs of features, found once: runs of one task share theirs.

To find it takes longer than many a run does. It is kept as long as the features are, and found anew when they were
changed in place.
"""

from __future__ import annotations

import hashlib

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from difformer.data.knn import knn_graph
from difformer.data.task import update_digest

_FOUND = WeakIdKeyDictionary()  # of features: edges by k and what the features held


def neighbours_of(x: Tensor, k: int, node_ptr: Tensor | None = None) -> Tensor:
    """Edges ``[2, E]`` between every instance and its k nearest by cosine, both ways, the instance itself counted.

    Args:
        x: Features, dense or sparse CSR.
        k: How many.
        node_ptr: Where graphs begin and end, for neighbours within each.
    """
    digest = hashlib.sha256()
    for part in (x, node_ptr):
        update_digest(digest, part)
    key = (k, digest.hexdigest())
    known: dict[tuple[int, str], Tensor] = _FOUND.get(x, {})
    if key not in known:
        # What was found of features that have changed since is let go.
        known = {other: edges for other, edges in known.items() if other[1] == key[1]}
        known[key] = knn_graph(x, k, include_self=True, symmetric=True, node_ptr=node_ptr)
        _FOUND[x] = known
    return known[key]
