r"""Structural encodings: distances in hops, return probabilities of random walks, eigenvectors of the Laplacian.

All are computed per graph. Row i of a table belongs to node i of the batch, and its columns are the nodes of i's graph
(`Observed.places`), so one sparse product serves all graphs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from difformer.sparse import SparseMatrix
from difformer.zoo.encoder import Observed

ENTRIES = 1 << 24  # of a table, per block of columns
DENSE = 1500  # nodes up to which all eigenvectors of a graph are computed


def _identity(place: Tensor, width: int) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of columns of a table ``[N, width]`` of ones at the row's own node."""
    step = max(1, ENTRIES // max(1, place.numel()))
    for start in range(0, width, step):
        columns = slice(start, min(start + step, width))
        yield columns, (place.unsqueeze(1) == torch.arange(start, columns.stop, device=place.device)).float()


def _matrix(row: Tensor, column: Tensor, value: Tensor, size: int) -> Tensor:
    """S as torch's own sparse matrix, whose products have no gradients and also work inside torch.vmap."""
    return SparseMatrix.from_entries(row, column, value, (size, size)).rows.as_tensor((size, size))


def hop_distances(observed: Observed, most: int) -> Tensor:
    """Hops along edges from each node of its graph to node i, ``[N, largest graph]`` uint8.

    Distances are capped at `most`, which is at most 250; ``most + 1`` marks unreachable nodes and padding.
    """
    (place, width), num_nodes, device = observed.places(), observed.rows, observed.device
    found = torch.full((num_nodes, width), most + 1, dtype=torch.uint8, device=device)
    graph = observed.graph
    if graph is None:
        return found.scatter_(1, place.unsqueeze(1), 0)
    source, target = graph.edge_index
    joined = _matrix(target, source, torch.ones(graph.num_edges, device=device), num_nodes)
    for columns, front in _identity(place, width):
        reached = front > 0
        part = torch.where(reached, 0, found[:, columns])
        hops = 0
        while bool(front.any()):
            hops += 1
            new = (joined @ front > 0) & ~reached
            reached |= new
            part[new] = min(hops, most)
            front = new.float()
        found[:, columns] = part
    return found


def return_probabilities(observed: Observed, steps: int) -> Tensor:
    r"""Probability that a random walk from i is back after 1 … S steps: :math:`((D^{-1} A)^s)_{ii}`, ``[N, S]``."""
    graph, num_nodes = observed.graph, observed.rows
    back = torch.zeros(num_nodes, steps, device=observed.device)
    if graph is None:
        return back
    place, width = observed.places()
    source, target = graph.edge_index
    weight = graph.weights()
    total = weight.new_zeros(num_nodes).index_add(0, source, weight)
    share = weight / torch.where(total > 0, total, 1.0)[source]
    # Column c of the table is the distribution of walks that started at node c.
    walk = _matrix(target, source, share, num_nodes)
    for _, at in _identity(place, width):
        own = at > 0
        rows = own.any(1)
        for s in range(steps):
            at = walk @ at
            back[rows, s] = at[own]
    return back


def laplacian_eigenvectors(observed: Observed, count: int) -> Tensor:
    """The lowest eigenvectors of I - D^{-½} A D^{-½} of each graph, without the first, ``[N, count]``.

    Edges count in both directions. The largest entry of a vector is positive; small graphs are padded with zeros.
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
            # Eigenvalues lie in [0, 2]; the lowest are those nearest to a number just below zero.
            start = torch.ones(nodes.numel(), dtype=torch.float64).numpy()
            vectors = torch.from_numpy(eigsh(laplacian, k=wanted, sigma=-0.01, v0=start)[1][:, 1:])
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        found[nodes.to(found.device), : wanted - 1] = (vectors * largest.sign()).to(found)
    return found
