"""A fitted estimator as a program of its own: one ``.pt2`` file that runs where torch is and this package is not.

    >>> model.export("flowers.pt2")                                  # here
    >>> program = torch.export.load("flowers.pt2").module()          # anywhere
    >>> probabilities = program(torch.randn(5, 4))

The program takes features ``[M, F]`` in single precision, as the table had them (scaling is inside), and gives
probabilities, values or embeddings in double precision. A model fitted with a neighbour graph searches for neighbours
itself; one fitted with a given graph takes two more arguments, ``edge_index [2, E]`` with fitted rows above, and
``edge_weight [E]``. The file also holds ``difformer.json``: classes, and names of columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from difformer.errors import UserError
from difformer.estimators.predictor import Edges, Predictor
from difformer.estimators.row_search import SparseRowSearch
from difformer.files import atomic_write

LARGEST_DENSE = 1 << 28  # entries of fitted sparse rows that a program may hold densely
EXTRA = "difformer.json"
SUFFIX = ".pt2"


class Program(nn.Module):
    """What is exported: plain tensor operations on whole batches, for outputs or, if `states`, for embeddings."""

    def __init__(self, fitted: Predictor, *, states: bool) -> None:
        super().__init__()
        # Without what a program has no use for: a given graph's edges and the fingerprints of its rows.
        self.fitted = Predictor(
            fitted.scaling,
            softmax=fitted.softmax,
            temperature=float(fitted.temperature),
            output_scale=fitted.output_scale,
            linear=fitted.linear,
        )
        self.fitted.members = fitted.members
        self.states = states
        self.search = Cosine(fitted.search) if isinstance(fitted.search, SparseRowSearch) else fitted.search
        self.register_buffer("degree", None if fitted.given is None else fitted.given.degree)
        self.degree: Tensor | None
        self.directed = fitted.given is not None and fitted.given.directed

    def forward(self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        fitted: Any = self.fitted
        x = x.double()
        x = (x if fitted.shift is None else x - fitted.shift) / fitted.scale
        edges = None
        if self.degree is not None:
            assert edge_index is not None
            assert edge_weight is not None
            source, row = edge_index
            edges = Edges.normalised(
                row, source, edge_weight.double(), x.shape[0], None if self.directed else self.degree
            )
        elif self.search is not None:
            edges = Edges.nearest(self.search(x))
        states = [member.states(x, edges) for member in fitted.members]
        return torch.cat(states, 1) if self.states else fitted.combine(states, x)


class Cosine(nn.Module):
    """`SparseRowSearch` on dense rows, in plain tensor operations."""

    def __init__(self, search: SparseRowSearch) -> None:
        super().__init__()
        if search.shape[0] * search.shape[1] > LARGEST_DENSE:
            raise UserError(
                f"the {search.shape[0]} × {search.shape[1]} sparse rows that neighbours are searched among are too "
                f"many for an exported program; fit with graph=None, or reduce the columns first (TruncatedSVD)"
            )
        points = torch.from_numpy(search.points.toarray())
        self.register_buffer("points", nn.functional.normalize(points, dim=1))
        self.points: Tensor
        self.k = search.k

    def forward(self, x: Tensor) -> Tensor:
        # Rows of equal cosine: the smaller index first, as the search itself has it.
        order = (-(nn.functional.normalize(x, dim=1) @ self.points.T)).sort(dim=1, stable=True).indices
        return order[:, : self.k]


def export_program(fitted: Predictor, path: str | Path, *, states: bool, facts: dict[str, Any]) -> None:
    """Writes the program to a ``.pt2`` file, whole or not at all; `facts` are what ``difformer.json`` in it holds."""
    if Path(path).suffix != SUFFIX:
        raise UserError(
            f"path: a program is written as a torch.export archive, whose name ends in {SUFFIX}; got {str(path)!r}. "
            f"Other formats, ONNX among them, are not written; write for example {Path(path).stem or 'model'}{SUFFIX}"
        )
    rows = torch.export.Dim("rows", min=1)
    x = torch.zeros(3, fitted.scale.numel())
    args: tuple[Tensor, ...] = (x,)
    shapes: tuple[Any, ...] = ({0: rows},)
    if fitted.given is not None:
        args += (torch.zeros(2, 4, dtype=torch.long), torch.ones(4))
        count = torch.export.Dim("edges", min=1)
        shapes += ({1: count}, {0: count})
    with torch.no_grad():
        program = torch.export.export(Program(fitted, states=states), args, dynamic_shapes=shapes)
    with atomic_write(path) as stream:
        torch.export.save(program, stream, extra_files={EXTRA: json.dumps(facts)})
