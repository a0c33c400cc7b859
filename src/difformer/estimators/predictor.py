r"""Everything that a fitted estimator needs for predictions: scaling, neighbours, models, and their population.

The layers are those of the trained model; what differs is who sends (`difformer.nn.context`). Layer by layer the
population is summarised (`store`), and a row, new or fitted, receives from that summary and, along observed edges, from
the values that fitted rows have at this layer. Fitted rows do not feel new ones, and new rows do not feel each other.
The population itself goes through the same code, so a fitted row that is asked again gets the same answer.

Edges continue the weights of `difformer.graph`: with a_j the weights of a row's edges from fitted rows, d = Σ_j a_j its
own degree and d_j the degrees of the fitted rows among themselves, s_j = a_j / √(d d_j).

All of it is computed in double precision, so it makes no visible difference whether rows come one by one or by the
million. Nothing of the training data is kept but what predictions need: the summary of each layer; with a neighbour
graph the scaled features to search among; with any graph the values of each layer; with a given graph its edges, and a
fingerprint of every row by which a fitted row is recognised.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from difformer.attention import restore
from difformer.attention.polynomial import DEFAULT_TOL
from difformer.attention.summary import adds_up
from difformer.data.sparse_features import SPARSE_BELOW, from_scipy
from difformer.estimators.population import Scaling, find_rows, row_digests
from difformer.estimators.problem import LinearPart, threads_for
from difformer.estimators.row_graph import RowSearch, SparseRowSearch, edges_of
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.context import Stored, store
from difformer.nn.conv import over_heads
from difformer.sparse import SparseMatrix

Array = np.ndarray[Any, Any]
Search = RowSearch | SparseRowSearch
ROWS_AT_ONCE = 8192
NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Edges:
    """Observed edges from fitted rows to some rows, normalised."""

    row: Tensor  # [E] which of the rows receives
    source: Tensor  # [E] the fitted row that sends
    weight: Tensor  # [E] s_j
    count: int  # of rows

    @staticmethod
    def nearest(index: Tensor) -> Edges:
        """Of ``[M, k]`` neighbours, each with weight 1/k."""
        count, k = index.shape
        row = torch.arange(count, device=index.device).repeat_interleave(k)
        return Edges(row, index.reshape(-1), torch.full_like(row, 1.0 / k, dtype=torch.float64), count)

    @staticmethod
    def normalised(row: Tensor, source: Tensor, weight: Tensor, count: int, degree: Tensor | None) -> Edges:
        """Of weights a_j, with the fitted rows' own degrees ``[n]``; without degrees, s_j = a_j / d."""
        own = weight.new_zeros(count).index_add(0, row, weight)
        square = own[row].square() if degree is None else own[row] * degree[source]
        share = torch.where(square > 0, weight * torch.where(square > 0, square, 1.0).rsqrt(), 0.0)
        return Edges(row, source, share, count)

    def __call__(self, sent: Tensor) -> Tensor:
        """Σ_j s_j v_j for each row, of the values ``[n, c]`` that fitted rows send."""
        messages = self.weight.unsqueeze(1) * sent[self.source].to(self.weight.dtype)
        return messages.new_zeros(self.count, sent.shape[1]).index_add(0, self.row, messages)


class Memory(nn.Module):
    """What one layer keeps of the population, as buffers: its summary, and ``"sent"`` if there are observed edges."""

    def __init__(self, state: dict[str, Tensor], layer: DIFFormerConv, tol: float | None) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name, value)
        self.diffusivity, self.tol = layer.diffusivity, tol

    def context(self, edges: Edges | None) -> Stored:
        """The population as the senders of rows with these edges."""
        state = dict(self.named_buffers())
        sent = state.pop("sent", None)
        if not state or self.diffusivity is None:
            return Stored(None, sent=sent, edges=edges)
        return Stored(restore(state, self.diffusivity, tol=self.tol), sent=sent, edges=edges)


class Member(nn.Module):
    """One trained model in the context of its population."""

    def __init__(self, model: DIFFormer, memories: list[Memory]) -> None:
        super().__init__()
        self.model, self.memories = model, nn.ModuleList(memories)

    def states(self, x: Tensor | SparseMatrix, edges: Edges | None) -> Tensor:
        """Final states of some rows, from their scaled features."""
        contexts = [memory.context(edges) for memory in self.memories]  # type: ignore[operator]
        return self.model.embed(x, context=contexts)


Part = tuple[Tensor | SparseMatrix, Edges | None]


@torch.no_grad()
def remember(
    model: DIFFormer,
    parts: list[Part],
    mass: Tensor | None = None,
    *,
    polynomial: bool = False,
    landmarks: Tensor | None = None,
) -> tuple[Member, Tensor]:
    """A copy of the model with its memory of a population, and the population's final states ``[n, hidden]``.

    `parts` are the population's scaled features and the edges among its rows; `landmarks` are the rows that represent
    it where the keys themselves are remembered. Sums are kept in double precision; keys, values and what is sent, of
    size O(n), in single precision.
    """
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    tol = DEFAULT_TOL if polynomial else None
    z = source = torch.cat([model.encode(x) for x, _ in parts])
    # A graph without edges counts as none, as it does in training.
    joined = any(edges is not None and edges.row.numel() for _, edges in parts)
    memories: list[Memory] = []
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        if landmarks is None or layer.diffusivity is None or adds_up(layer.diffusivity, tol):
            stored = store(layer, z, weight=mass, observed=joined, tol=tol)
        else:
            stored = store(layer, z[landmarks], weight=None if mass is None else mass[landmarks])
            stored = replace(stored, sent=over_heads(layer.values(z)) if joined else None)
        state = {} if stored.summary is None else stored.summary.state()
        state |= {} if stored.sent is None else {"sent": stored.sent}
        kept = {name: value if name in ("sums", "moments") else value.float() for name, value in state.items()}
        memories.append(Memory(kept, layer, tol))
        before, start, z = z, 0, torch.empty_like(z)
        for x, edges in parts:
            rows = slice(start, start + x.shape[0])
            context = memories[-1].context(edges if joined else None)
            z[rows] = model.advance(k, before[rows], source[rows], context=context)
            start = rows.stop
    return Member(model, memories), z


class GivenGraph(nn.Module):
    """Edges among the fitted rows, row i of whose matrix holds the weights with which i receives; their fingerprints.

    If `directed`, a row's weights are divided by their sum instead of by √(d_i d_j): a sender that receives nothing has
    d_j = 0, and its edges would be lost.
    """

    digests: Tensor
    degree: Tensor

    def __init__(self, matrix: Any, digests: Any, *, directed: bool = False) -> None:
        super().__init__()
        self.directed = directed
        degree, marks = np.asarray(matrix.sum(1), dtype=np.float64).ravel(), np.asarray(digests).view(np.int64)
        parts = {"data": matrix.data.astype(np.float64), "indices": matrix.indices, "indptr": matrix.indptr}
        for name, part in {**parts, "digests": marks, "degree": degree}.items():
            self.register_buffer(name, torch.from_numpy(np.array(part)))

    @property
    def matrix(self) -> Any:
        parts = tuple(getattr(self, name).numpy() for name in ("data", "indices", "indptr"))
        return sparse.csr_array(parts, shape=(self.degree.numel(),) * 2)

    def recognise(self, x: Any) -> Any:
        """``[M, n]``: for rows equal to a fitted one that row's edges, none for others.

        If several fitted rows have equal features, the first is taken, with a warning.
        """
        digests = self.digests.numpy().view(np.uint64)
        found, first = find_rows(row_digests(x), digests), find_rows(digests, digests)
        several = (found >= 0) & (np.bincount(first, minlength=len(first))[np.maximum(found, 0)] > 1)
        if several.any():
            warnings.warn(
                f"{int(several.sum())} rows have the features of more than one fitted row, and are given the edges of "
                f"the first; pass graph= to say which edges are theirs",
                UserWarning,
                stacklevel=2,
            )
        return edges_of(self.matrix, found)

    def edges(self, matrix: Any) -> Edges:
        """Normalised edges of rows whose weights from fitted rows are ``matrix [M, n]``."""
        coo = sparse.csr_array(matrix).tocoo()
        row, source = (torch.from_numpy(part.astype(np.int64)) for part in (coo.row, coo.col))
        weight = torch.from_numpy(coo.data.astype(np.float64))
        return Edges.normalised(row, source, weight, matrix.shape[0], None if self.directed else self.degree)


class Predictor(nn.Module):
    """Models in the context of their population; `members` are appended once they remember it.

    Rows come in as a user's table has them and leave as states or outputs. Outputs are probabilities if `softmax`; of a
    regression they are scaled by ``output_scale [2, T]``, mean and deviation.
    """

    temperature: Tensor
    scale: Tensor
    shift: Tensor | None
    output_scale: Tensor | None
    coefficients: Tensor | None  # of the linear part, with intercepts and share
    intercepts: Tensor
    share: Tensor

    def __init__(
        self,
        scaling: Scaling,
        *,
        search: Search | None = None,
        given: GivenGraph | None = None,
        softmax: bool = True,
        temperature: float = 1.0,
        output_scale: Tensor | None = None,
        linear: LinearPart | None = None,
    ) -> None:
        super().__init__()
        for name in ("coefficients", "intercepts", "share"):
            self.register_buffer(name, getattr(linear, name, None))
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float64))
        self.register_buffer("shift", None if scaling.shift is None else torch.from_numpy(scaling.shift))
        self.register_buffer("scale", torch.from_numpy(scaling.scale))
        self.register_buffer("output_scale", output_scale)
        self.members: Any = nn.ModuleList()  # of `Member`
        self.scaling, self.search, self.given, self.softmax = scaling, search, given, softmax

    def parts(self, x: Any, edges: Any = None, nearest: Tensor | None = None) -> Iterator[Part]:
        """Scaled features and normalised edges of rows of a table, some thousand at a time.

        `edges` are CSR weights ``[M, n]`` from fitted rows, where a graph was given; None recognises fitted rows.
        `nearest` are neighbours ``[M, k]`` that have been searched already.
        """
        if self.given is not None and edges is None:
            edges = self.given.recognise(x)
        at_once = max(16, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, x.shape[1])))
        for start in range(0, x.shape[0], at_once):
            rows = slice(start, start + at_once)
            scaled, found = self.scaling(x[rows]), None
            if self.given is not None:
                found = self.given.edges(edges[rows])
            elif self.search is not None:
                found = Edges.nearest(nearest_rows(self.search, scaled) if nearest is None else nearest[rows])
            yield features(scaled), found

    def states(self, x: Any, edges: Any = None) -> Array:
        """Final states ``[M, members · hidden]``."""
        return self._each(x, edges, lambda states, part: torch.cat(states, 1))

    def outputs(self, x: Any, edges: Any = None) -> Array:
        """Probabilities ``[M, C]`` or values ``[M, T]``, the mean over members."""
        return self._each(x, edges, lambda states, part: self.combine(states, part))

    @torch.no_grad()
    def _each(self, x: Any, edges: Any, answer: Any) -> Array:
        # Numbers in the largest operation: rows by features, by channels, or by what is kept of the population.
        width = max(*self.widths(), *(len(kept) for kept in self.buffers() if kept.ndim))
        with threads_for(x.shape[0] * width):
            found = [answer([m.states(*part) for m in self.members], part[0]) for part in self.parts(x, edges)]
            return torch.cat(found).numpy()

    def widths(self) -> list[int]:
        """Length of a state of each member."""
        return [int(member.model.config["hidden_channels"]) for member in self.members]

    def combine(self, states: list[Tensor], x: Tensor | SparseMatrix) -> Tensor:
        """The members' outputs, averaged, from the states of each; with the linear part of the scaled features."""
        each = [member.model.decode(z) for member, z in zip(self.members, states, strict=True)]
        mean = torch.stack([(o / self.temperature).softmax(-1) for o in each] if self.softmax else each).mean(0)
        if self.coefficients is not None:
            mean = x @ self.coefficients + self.intercepts + self.share * mean
        return mean if self.output_scale is None else mean * self.output_scale[1] + self.output_scale[0]


def nearest_rows(search: Search, scaled: Any) -> Tensor:
    """Neighbours ``[M, k]`` of scaled rows, dense or CSR; a search among dense rows takes dense ones."""
    if isinstance(search, SparseRowSearch):
        return search(scaled)
    dense = scaled.toarray() if sparse.issparse(scaled) else scaled
    return search(torch.from_numpy(np.ascontiguousarray(dense)))


def features(x: Any) -> Tensor | SparseMatrix:
    """Scaled features as a layer takes them, in double precision."""
    if not sparse.issparse(x):
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
    if x.nnz > SPARSE_BELOW * x.shape[0] * x.shape[1]:
        return torch.from_numpy(x.toarray())
    return SparseMatrix.from_tensor(from_scipy(x.astype(np.float64)))
