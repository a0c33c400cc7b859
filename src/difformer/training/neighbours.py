"""The neighbour graph that ``graph="knn:K"`` asks for, found once: runs of one task share theirs.

To find it takes longer than many a run does. It is kept as long as the features are, and found anew when they were
changed in place.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

from difformer.data.knn import knn_graph
from difformer.data.task import update_digest
from difformer.kept import Kept

_FOUND: Kept[Tensor] = Kept()


def neighbours_of(x: Tensor, k: int, node_ptr: Tensor | None = None) -> Tensor:
    """Edges ``[2, E]`` between every instance and its k nearest by cosine, both ways, the instance itself counted.

    Args:
        x: Features, dense or sparse CSR.
        k: How many.
        node_ptr: Where graphs begin and end, for neighbours within each.
    """
    # By content: an array that a task shares with its maker may have been written to behind torch's back.
    digest = hashlib.sha256()
    for part in (x, node_ptr):
        update_digest(digest, part)
    key = (k, digest.hexdigest())
    return _FOUND.of(x, key, lambda: knn_graph(x, k, include_self=True, symmetric=True, node_ptr=node_ptr))
