"""A graph: edges, weights, and their normalised forms, each computed once.

Edges run from ``edge_index[0]`` (source j) to ``edge_index[1]`` (target i). With weights a_ij and the weighted
in-degree d_i = Σ_j a_ij, one propagation is

    (S z)_i = Σ_j s_ij z_j,   s_ij = a_ij / √(d_i d_j)  ("gcn"),   a_ij / d_i  ("random_walk"),   a_ij  ("none").

On directed graphs both sides of "gcn" use the in-degree. Nodes of degree zero send and receive nothing. No self-loops
are added.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from difformer.errors import UserError, check_choice
from difformer.result_cache import ResultCache, version_of
from difformer.shortcut import is_eager
from difformer.sparse import SparseMatrix, check_scipy

GRAPH_NORMS = ("gcn", "random_walk", "none")


class Graph:
    """Edges and weights of one graph (or several side by side), with cached normalised forms.

    A model normalises a `Graph`, or the same ``edge_index`` tensor given again (`as_graph`), once, unless edges or
    weights are assigned or changed in place. Changes are noticed by the version counters of the tensors, which do not
    count writes through ``.data``, through a numpy view that shares their memory, or to tensors made in inference mode:
    make a new `Graph` after such a write.

    Args:
        edge_index: ``[2, E]`` integers, sources above targets; other types than int64 are copied. Or a scipy sparse
            matrix ``[N, N]``, whose entry (i, j) weighs the edge i → j, as adjacency matrices do in the estimators and
            in `difformer.data`. Or a torch sparse tensor ``[N, N]``, whose row i holds the weights with which node i
            receives, as ``adj_t`` of PyTorch Geometric does. (The estimators and `difformer.data` read a torch sparse
            tensor as an adjacency matrix, entry (i, j) for i → j; this matters for directed graphs only, and
            ``adj_t.T`` is the same graph there.)
        num_nodes: N; left out, the largest index plus one.
        edge_weight: ``[E]`` weights; left out, one each. Edges that are given twice count twice.
        keep: Whether to sort the normalised graph at first use and keep it, which pays where a graph is used again.
            Without it every propagation goes edge by edge.

    Raises:
        ValueError: If shapes do not fit or an index is out of range.

    Example:
        >>> import torch
        >>> path = Graph(torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
        >>> path.with_self_loops().edge_index.shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        edge_index: Tensor | Any,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        *,
        keep: bool = True,
    ) -> None:
        if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            edge_index, edge_weight, num_nodes = _from_sparse(edge_index, edge_weight, num_nodes)
        _check(edge_index, edge_weight, num_nodes)
        if num_nodes is None:
            num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
        self.edge_index, self.edge_weight = edge_index.long(), edge_weight
        self.num_nodes, self.keep = num_nodes, keep
        self._forget()

    def version(self) -> tuple[int, int]:
        """Changes whenever edges or weights are written to in place; tensors of inference mode have no counter."""
        compiled = torch.compiler.is_compiling()  # a compiled program sees no counters
        return (0, 0) if compiled else (version_of(self.edge_index), version_of(self.edge_weight))

    def _forget(self) -> None:
        """Drops the normalised forms; later ones are computed from the tensors as they are now."""
        self._matrices: dict[tuple[str, torch.dtype], SparseMatrix] = {}
        self._looped: Graph | None = None
        self._seen = (self.edge_index, self.edge_weight, self.num_nodes, self.version())

    def _refresh(self) -> None:
        """Drops what was computed before edges or weights were changed or assigned, and checks them again."""
        index, weight, *others = self._seen
        same = index is self.edge_index and weight is self.edge_weight
        if not same or others != [self.num_nodes, self.version()]:
            _check(self.edge_index, self.edge_weight, self.num_nodes)
            self._forget()

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    def __repr__(self) -> str:
        weighted = ", weighted" if self.edge_weight is not None else ""
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}{weighted})"

    def to(self, device: Any) -> Graph:
        """The same graph on another device; normalised forms travel with it."""
        if isinstance(device, torch.dtype):
            raise TypeError(f"a Graph moves to a device, not to {device}; its weights follow the states' precision")
        weight = None if self.edge_weight is None else self.edge_weight.to(device)
        self._refresh()
        moved = self._copy(self.edge_index.to(device), weight)
        moved._looped = None if self._looped is None else self._looped.to(device)
        moved._matrices = {key: matrix.to(device) for key, matrix in self._matrices.items()}
        return moved

    def _copy(self, edge_index: Tensor, edge_weight: Tensor | None) -> Graph:
        """A graph of as many nodes, without a look at its edges."""
        made = Graph.__new__(Graph)
        made.num_nodes, made.keep = self.num_nodes, self.keep
        made.edge_index, made.edge_weight = edge_index, edge_weight
        made._forget()
        return made

    def with_self_loops(self) -> Graph:
        """The graph with a self-loop of weight one at every node that has none; computed once."""
        self._refresh()
        if self._looped is None:
            source, target = self.edge_index
            bare = torch.ones(self.num_nodes, dtype=torch.bool, device=self.device)
            bare[source[source == target]] = False
            loops = bare.nonzero().T.expand(2, -1)
            own = self.edge_weight
            weight = None if own is None else torch.cat([own, own.new_ones(loops.shape[1])])
            self._looped = Graph(torch.cat([self.edge_index, loops], 1), self.num_nodes, weight, keep=self.keep)
        return self._looped

    def weights(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """``[E]`` edge weights, one each where none were given."""
        if self.edge_weight is None:
            return torch.ones(self.num_edges, dtype=dtype, device=self.device)
        return self.edge_weight.to(dtype)

    def degree(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """``[N]`` weighted in-degree."""
        return self.weights(dtype).new_zeros(self.num_nodes).index_add(0, self.edge_index[1], self.weights(dtype))

    def normalised_weights(self, norm: str = "gcn", dtype: torch.dtype = torch.float32) -> Tensor:
        """``[E]`` entries s_ij of the propagation matrix, in the order of the edges."""
        check_choice("graph norm", norm, GRAPH_NORMS)
        weight = self.weights(dtype)
        if norm == "none":
            return weight
        degree, power = self.degree(dtype), -0.5 if norm == "gcn" else -1.0
        # The inner `where` keeps the gradient of an empty row finite.
        inverse = torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).pow(power), 0.0)
        source, target = self.edge_index
        return weight * inverse[target] * (inverse[source] if norm == "gcn" else 1.0)

    def matrix(self, norm: str = "gcn", dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """The propagation matrix S, sorted by rows and by columns; kept for the next call."""
        key = (norm, dtype)
        if not torch.compiler.is_compiling():
            self._refresh()
        if key not in self._matrices:  # made under inference mode it could never be trained on
            with torch.inference_mode(False), torch.no_grad():
                source, target = self.edge_index
                value, shape = self.normalised_weights(norm, dtype), (self.num_nodes, self.num_nodes)
                self._matrices[key] = SparseMatrix.from_entries(target, source, value, shape)
        return self._matrices[key]

    @property
    def is_kept(self) -> bool:
        """Whether propagation goes by a matrix that is sorted once; weights that are trained would change it."""
        return self.keep and not (self.edge_weight is not None and self.edge_weight.requires_grad)

    def propagate(self, z: Tensor, norm: str = "gcn", mask: Tensor | None = None) -> Tensor:
        """``S z`` for states ``[N, …]``, by the cached matrix; weights that are trained go edge by edge.

        Args:
            z: States.
            norm: Normalisation of the weights.
            mask: ``[E]`` factors of the messages, after normalisation, as explainers set them.
        """
        if mask is not None:
            return propagate_edges(z, self, norm, mask)
        dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
        # Sorting looks at values, which a compiled program cannot: there a matrix is used only if it is ready.
        ready = (norm, dtype) in self._matrices or not torch.compiler.is_compiling()
        if not self.is_kept or not ready:
            return propagate_edges(z, self, norm)
        return self.matrix(norm, dtype) @ z


_GRAPHS: ResultCache[Graph] = ResultCache()
_WEIGHTS: ResultCache[object] = ResultCache()


def as_graph(edge_index: Tensor | Graph | Any, num_nodes: int, edge_weight: Tensor | None = None) -> Graph:
    """The `Graph` of an edge index and its weights: checked, sorted and normalised once per tensor.

    The graph is kept as long as the `edge_index` tensor lives. A tensor that was changed in place is read again.
    Weights that are trained are never kept, and compiled programs keep nothing.

    Args:
        edge_index: ``[2, E]`` integers, a ``torch_geometric.EdgeIndex``, a torch or scipy sparse matrix (`Graph` says
            in which direction each is read), or a `Graph`.
        num_nodes: N.
        edge_weight: ``[E]`` weights of an ``edge_index`` tensor.

    Raises:
        ValueError: If shapes do not fit or an index is out of range.
    """
    if isinstance(edge_index, Graph):
        if edge_weight is not None:
            raise UserError("edge_weight was given beside a Graph, which carries its weights itself")
        if edge_index.num_nodes != num_nodes:
            raise UserError(f"the graph has {edge_index.num_nodes} nodes, but x has {num_nodes} rows")
        return edge_index
    if not isinstance(edge_index, Tensor):
        index, weight, _ = _from_sparse(edge_index, edge_weight, num_nodes)
        # A scipy matrix has no version counter.
        entries = zlib.crc32(weight.cpu().numpy().data, zlib.crc32(index.cpu().numpy().data))
        return _GRAPHS.of(edge_index, (num_nodes, entries), lambda: Graph(index, num_nodes, weight))
    index = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index  # of PyG's EdgeIndex
    given = (index,) if edge_weight is None else (index, edge_weight)
    if not is_eager(*given) or any(x.is_inference() for x in given):
        return Graph(index, num_nodes, edge_weight, keep=False)
    if index.requires_grad:  # a sparse matrix whose entries are trained
        return Graph(index, num_nodes, edge_weight)
    if edge_weight is not None and edge_weight.requires_grad:
        graph = as_graph(index, num_nodes)
        _check_weight(edge_weight, index)
        return graph._copy(graph.edge_index, edge_weight)
    # An object for a tensor of weights as it is now, by which to know it again.
    token = None if edge_weight is None else _WEIGHTS.of(edge_weight, (), object)
    alone = None if edge_weight is None else edge_weight.detach()
    return _GRAPHS.of(index, (num_nodes, token), lambda: Graph(index.detach(), num_nodes, alone))


def propagate_edges(z: Tensor, graph: Graph, norm: str = "gcn", mask: Tensor | None = None) -> Tensor:
    """``S z`` edge by edge, nothing sorted or kept: the reference, and the way for weights that carry gradients."""
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    weight = graph.normalised_weights(norm, dtype)
    if mask is not None:
        if mask.shape != weight.shape:
            raise UserError(f"the edge mask has shape {tuple(mask.shape)}, but the graph has {weight.numel()} edges")
        weight = weight * mask.to(dtype)
    source, target = graph.edge_index
    messages = weight.view(-1, *[1] * (z.dim() - 1)) * z[source].to(dtype)
    return messages.new_zeros(z.shape).index_add(0, target, messages).to(z.dtype)


def _from_sparse(matrix: Tensor | Any, edge_weight: Tensor | None, num_nodes: int | None) -> tuple[Tensor, Tensor, int]:
    """Edges and weights of a sparse matrix of torch (row i receives) or scipy (row i sends)."""
    is_scipy = hasattr(matrix, "tocoo") and hasattr(matrix, "nnz")  # known without scipy being loaded
    if not isinstance(matrix, Tensor) and not is_scipy:
        wanted = "a torch tensor [2, E], a torch or scipy sparse matrix or a Graph"
        found = f"{type(matrix).__name__}; convert arrays and lists by torch.as_tensor, lists of pairs also by .T"
        raise TypeError(f"edge_index must be {wanted}, got {found}")
    if edge_weight is not None:
        raise UserError("edge_weight goes with an edge_index; a sparse matrix carries its weights itself")
    size = matrix.shape[0] if num_nodes is None else num_nodes
    if tuple(matrix.shape) != (size, size):
        wanted = f"[{size}, {size}], one row and column per node"
        raise UserError(f"edge_index as a sparse matrix must be {wanted}, got {tuple(matrix.shape)}")
    if isinstance(matrix, Tensor):
        coo = matrix.to_sparse_coo().coalesce()
        return coo.indices().flip(0), coo.values().clone(), matrix.shape[0]  # compilers cannot look at a view of `coo`
    check_scipy(matrix, "edge_index")
    coo = matrix.tocoo()
    ends = [torch.as_tensor(x, dtype=torch.long) for x in (coo.row, coo.col)]
    return torch.stack(ends), torch.tensor(coo.data), matrix.shape[0]


def _check_weight(edge_weight: Tensor, edge_index: Tensor) -> None:
    if edge_weight.shape != edge_index.shape[1:]:
        hint = "" if edge_weight.is_floating_point() else "; to say which graph a row belongs to, pass batch=…"
        wanted = f"one entry per edge, shape ({edge_index.shape[1]},)"
        raise UserError(f"edge_weight must have {wanted}, got {tuple(edge_weight.shape)}{hint}")


def _check(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int | None) -> None:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        pairs = edge_index.dim() == 2 and edge_index.shape[1] == 2
        hint = "; transpose an array with one edge per row (.T)" if pairs else ""
        raise UserError(f"edge_index must have shape [2, E], got {tuple(edge_index.shape)}{hint}")
    if edge_index.is_floating_point() or edge_index.dtype == torch.bool:
        raise UserError(f"edge_index must hold integers, got {edge_index.dtype}")
    if edge_weight is not None:
        _check_weight(edge_weight, edge_index)
    if edge_index.numel() and not torch.compiler.is_compiling():  # a look at values would break a compiled graph
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or (num_nodes is not None and high >= num_nodes):
            wanted = "0 … N - 1" if num_nodes is None else f"0 … {num_nodes - 1} ({num_nodes} nodes)"
            raise UserError(f"edge_index must lie in {wanted}, got values from {low} to {high}")
