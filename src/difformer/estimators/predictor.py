r"""What a fitted estimator needs for predictions: scaling, neighbours, models, and their memory of the population.

The layers are those of the trained model; what differs is who sends (`difformer.nn.context`). Layer by layer the
population is summarised (`store`), and a row, new or fitted, receives from that summary and, along observed edges, from
the values that fitted rows have at this layer. Fitted rows do not receive from new ones, nor new rows from each other.
The population itself goes through the same code, so a fitted row that is predicted again gets the same answer. All of
it is computed in double precision, so that a row gets the same answer alone and in any batch.

Of the training data only this is kept: the summary of each layer; with a neighbour graph the scaled features to search
among; with any graph the values of each layer; with a given graph its edges and the fingerprints of its rows.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from difformer.attention import restore
from difformer.attention.polynomial import DEFAULT_TOL
from difformer.attention.summary import adds_up
from difformer.data.sparse_features import SPARSE_BELOW, from_scipy
from difformer.estimators.population import RowScaling
from difformer.estimators.row_graph import GivenGraph, RowEdges, RowSearch
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.context import Stored, store
from difformer.nn.conv import over_heads
from difformer.sparse import SparseMatrix

Features = Tensor | SparseMatrix
Numbers = Mapping[str, Tensor | None]  # by the names in `NUMBERS`
Part = tuple[Features, RowEdges | None]
ROWS_AT_ONCE = 8192
NUMBERS_AT_ONCE = 1 << 24
SMALL = 1 << 16  # numbers in an operation up to which one thread is used
# Scaling; temperature of probabilities; mean and deviation [2, T] of values; the linear part of a regressor.
NUMBERS = ("shift", "scale", "temperature", "output_scale", "coefficients", "intercepts", "share")


class Memory(nn.Module):
    """What one layer keeps of the population, as buffers: its summary, and ``"sent"`` if there are observed edges."""

    def __init__(self, state: dict[str, Tensor], layer: DIFFormerConv) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name, value)
        self.diffusivity, self.tol = layer.diffusivity, DEFAULT_TOL if layer.backend == "polynomial" else None

    def context(self, edges: RowEdges | None) -> Stored:
        """The population as the senders of rows with these edges."""
        state = dict(self.named_buffers())
        sent = state.pop("sent", None)
        summary = restore(state, self.diffusivity, tol=self.tol) if state and self.diffusivity is not None else None
        return Stored(summary, sent=sent, edges=edges)


class Member(nn.Module):
    """One trained model in the context of its population."""

    def __init__(self, model: DIFFormer, memories: list[Memory]) -> None:
        super().__init__()
        self.model, self.memories = model, nn.ModuleList(memories)

    def states(self, x: Features, edges: RowEdges | None) -> Tensor:
        """Final states of some rows, from their scaled features."""
        contexts = [memory.context(edges) for memory in self.memories]  # type: ignore[operator]
        return self.model.embed(x, context=contexts)


@torch.no_grad()
def remember(
    model: DIFFormer, parts: list[Part], mass: Tensor | None = None, landmarks: Tensor | None = None
) -> Member:
    """A copy of the model with its memory of a population, given as scaled features and the edges among its rows.

    `landmarks` represent it where the keys themselves are remembered. Sums are kept in double precision.
    """
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    sizes = [x.shape[0] for x, _ in parts]
    z = source = torch.cat([model.encode(x) for x, _ in parts])
    # A graph without edges counts as none, as it does in training.
    joined = any(edges is not None and edges.row.numel() for _, edges in parts)
    memories: list[Memory] = []
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        tol = DEFAULT_TOL if layer.backend == "polynomial" else None
        if k > 0:
            contexts = [memories[-1].context(edges) for _, edges in parts]
            rows = zip(z.split(sizes), source.split(sizes), contexts, strict=True)
            z = torch.cat([model.advance(k - 1, here, first, context=context) for here, first, context in rows])
        if landmarks is None or layer.diffusivity is None or adds_up(layer.diffusivity, tol):
            stored = store(layer, z, weight=mass, observed=joined, tol=tol)
        else:
            stored = store(layer, z[landmarks], weight=None if mass is None else mass[landmarks])
            stored = replace(stored, sent=over_heads(layer.values(z)) if joined else None)
        state = {} if stored.summary is None else stored.summary.state()
        state |= {} if stored.sent is None else {"sent": stored.sent}
        kept = {name: value if name in ("sums", "moments") else value.float() for name, value in state.items()}
        memories.append(Memory(kept, layer))
    return Member(model, memories)


class Predictor(nn.Module):
    """Models in the context of their population; answers are states if `embed`, otherwise probabilities or values."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the numbers

    def __init__(self, numbers: Numbers, search: RowSearch | None, given: GivenGraph | None, *, embed: bool) -> None:
        super().__init__()
        for name in NUMBERS:
            self.register_buffer(name, numbers.get(name))
        self.members: Any = nn.ModuleList()  # which are appended once they remember the population
        self.search, self.given, self.embed = search, given, embed

    @property
    def softmax(self) -> bool:
        return self.output_scale is None

    @property
    def scaling(self) -> RowScaling:
        return RowScaling(None if self.shift is None else self.shift.numpy(), self.scale.numpy())

    def parts(self, x: Any, edges: Any = None, nearest: Tensor | None = None) -> Iterator[Part]:
        """Scaled features and normalised edges of rows of a table, some thousand at a time.

        `edges` are weights ``[M, n]`` from fitted rows, None to recognise fitted rows; `nearest` neighbours ``[M, k]``.
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
                found = RowEdges.nearest(self.search(scaled) if nearest is None else nearest[rows])
            if sparse.issparse(scaled) and scaled.nnz <= SPARSE_BELOW * scaled.shape[0] * scaled.shape[1]:
                yield SparseMatrix.from_tensor(from_scipy(scaled)), found
            else:
                dense = scaled.toarray() if sparse.issparse(scaled) else scaled
                yield torch.from_numpy(np.ascontiguousarray(dense)), found

    @torch.no_grad()
    def predict(self, x: Any, edges: Any = None) -> np.ndarray[Any, Any]:
        """Answers to the rows of a table; `edges` as in `parts`."""
        # Numbers in the largest operation: rows by features, by channels, or by what is kept of the population.
        width = max(self.channels, *(len(kept) for kept in self.buffers() if kept.ndim))
        with threads_for(x.shape[0] * width):
            return torch.cat([self(*part) for part in self.parts(x, edges)]).numpy()

    @property
    def channels(self) -> int:
        """Length of a state of a member, as it was fitted: options may have been set to something else since."""
        return int(self.members[0].model.config["hidden_channels"])

    def forward(self, x: Features, edges: RowEdges | None) -> Tensor:
        """Probabilities ``[M, C]`` or values ``[M, T]`` of scaled features; or states ``[M, members · hidden]``."""
        states = [member.states(x, edges) for member in self.members]
        if self.embed:
            return torch.cat(states, 1)
        each = [member.model.decode(z) for member, z in zip(self.members, states, strict=True)]
        if self.softmax:
            return torch.stack([(o / self.temperature).softmax(-1) for o in each]).mean(0)
        mean = torch.stack(each).mean(0)
        if self.coefficients is not None:
            mean = x @ self.coefficients + self.intercepts + self.share * mean
        return mean * self.output_scale[1] + self.output_scale[0]


_lock = threading.Lock()
_outside: list[int] = []  # the number of threads before any fit, one entry per running fit


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Within it torch uses one thread if operations have at most `SMALL` numbers: more would wait for each other.

    A Python thread inherits the number that another set last, so the number before the first running fit is restored.
    """
    with _lock:
        before = _outside[0] if _outside else torch.get_num_threads()
        _outside.append(before)
    try:
        torch.set_num_threads(1 if numbers <= SMALL else before)
        yield
    finally:
        with _lock:
            _outside.pop()
        torch.set_num_threads(before)
