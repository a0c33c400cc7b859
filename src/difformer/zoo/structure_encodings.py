r"""Encodings of the structure around a node: distances in hops, return probabilities of random walks, eigenvectors.

All are computed per graph. Row i of the tables below belongs to node i of the batch; its columns count the nodes of
i's own graph (`Observed.places`), so one sparse product serves all graphs at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from difformer.sparse import SparseMatrix
from difformer.zoo.encoder import Observed

ENTRIES = 1 << 24  # of a table that is worked on at a time
DENSE = 1500  # nodes up to which all eigenvectors of a graph are computed


def _columns(rows: int, width: int) -> Iterator[slice]:
    step = max(1, ENTRIES // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, min(start + step, width))


def _identity(place: Tensor, columns: slice) -> Tensor:
    """``[N, columns]``: one where a column is the row's own node."""
    return (place.unsqueeze(1) == torch.arange(columns.start, columns.stop, device=place.device)).float()


def _times(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """S X without gradients; plain, so that it also works while a stack of models makes its pass."""
    rows = matrix.rows
    return torch.sparse_csr_tensor(rows.crow, rows.col, rows.value, matrix.shape, check_invariants=False) @ x


def hop_distances(observed: Observed, most: int) -> Tensor:
    """Hops from every node of a graph to node i along edges, ``[N, largest graph]`` uint8.

    0 at the node itself; larger ones count as `most`, at most 250. ``most + 1`` where there is no way, and at columns
    beyond i's graph.
    """
    (place, width), num_nodes, device = observed.places(), observed.rows, observed.device
    found = torch.full((num_nodes, width), most + 1, dtype=torch.uint8, device=device)
    graph = observed.graph
    if graph is None:
        return found.scatter_(1, place.unsqueeze(1), 0)
    source, target = graph.edge_index
    joined = SparseMatrix.from_entries(target, source, torch.ones(graph.num_edges, device=device), (num_nodes,) * 2)
    for columns in _columns(num_nodes, width):
        front = _identity(place, columns)
        reached = front > 0
        part = torch.where(reached, 0, found[:, columns])
        hops = 0
        while bool(front.any()):
            hops += 1
            new = (_times(joined, front) > 0) & ~reached
            reached |= new
            part[new] = min(hops, most)
            front = new.float()
        found[:, columns] = part
    return found


def return_probabilities(observed: Observed, steps: int) -> Tensor:
    r"""How likely a random walk from i is at i again after 1 … S steps: :math:`((D^{-1} A)^s)_{ii}`, ``[N, S]``."""
    graph, num_nodes = observed.graph, observed.rows
    back = torch.zeros(num_nodes, steps, device=observed.device)
    if graph is None:
        return back
    place, width = observed.places()
    source, target = graph.edge_index
    weight = graph.weights()
    total = weight.new_zeros(num_nodes).index_add(0, source, weight)
    share = weight / torch.where(total > 0, total, 1.0)[source]
    # Column c of the table: where walks that began at node c are; a step takes them along edges.
    walk = SparseMatrix.from_entries(target, source, share, (num_nodes, num_nodes))
    for columns in _columns(num_nodes, width):
        at = _identity(place, columns)
        own = at > 0
        rows = own.any(1)
        for s in range(steps):
            at = _times(walk, at)
            back[rows, s] = at[own]
    return back


def laplacian_eigenvectors(observed: Observed, count: int) -> Tensor:
    """Of every graph the first eigenvectors of I - D^{-½} A D^{-½} beyond the lowest, ``[N, count]``.

    The edges are taken both ways. A vector's sign is such that its largest entry is positive; graphs with fewer nodes
    have zeros beyond.
    """
    graph, num_nodes, segments = observed.graph, observed.rows, observed.segments
    found = torch.zeros(num_nodes, count, device=observed.device)
    if graph is None:
        return found
    from scipy.sparse import coo_array, csgraph
    from scipy.sparse.linalg import eigsh

    source, target = graph.edge_index.cpu().numpy()
    entries = (graph.weights(torch.float64).cpu().numpy(), (target, source))
    whole = coo_array(entries, shape=(num_nodes, num_nodes)).tocsr()
    whole = whole.maximum(whole.T)
    sets = [torch.arange(num_nodes)] if segments is None else segments.by_graph.cpu().split(segments.sizes.tolist())
    for nodes in sets:
        if nodes.numel() < 2:
            continue
        part = whole[nodes.numpy()][:, nodes.numpy()]
        laplacian = csgraph.laplacian(part, normed=True)
        wanted = min(count + 1, nodes.numel())
        if nodes.numel() <= DENSE or wanted >= nodes.numel():
            vectors = torch.linalg.eigh(torch.from_numpy(laplacian.toarray())).eigenvectors[:, 1:wanted]
        else:
            # The lowest eigenvalues lie in [0, 2]: those nearest to a number just below zero.
            start = torch.ones(nodes.numel(), dtype=torch.float64).numpy()
            vectors = torch.from_numpy(eigsh(laplacian, k=wanted, sigma=-0.01, v0=start)[1][:, 1:])
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        found[nodes.to(found.device), : wanted - 1] = (vectors * largest.sign()).to(found)
    return found
