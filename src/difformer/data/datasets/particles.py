"""SynMol and ActsTrack: sets of points in space, one yes-or-no answer a set.

SynMol: molecules, a point an atom, with type and position; positive where it has both a carbonyl and an unbranched
alkane. ActsTrack: hits of particles in a detector, with position, time, momentum, energy and their changes; positive
where a z → μμ decay is among them. Edges run from each point's five nearest ones, itself counted, to it: nearest in
space for atoms, nearest in direction as seen from the collision for hits.

* ``"paper"``: random 10/10/80, atom types one-hot.
* ``"lri"``: the shares of the data's first publication. SynMol: the published test set; of the others, shuffled, the
  last 1000 are for validation. ActsTrack: random 70/15/15.
* ``"public-code"``: as ``"lri"``, and SynMol's atom type enters as a number, as in the authors' code.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.datasets.actstrack import read_actstrack
from difformer.data.datasets.common import choice, seeded, seeds_of, sentence
from difformer.data.datasets.synmol import read_synmol
from difformer.data.knn import knn_graph
from difformer.data.split import Split
from difformer.data.split_rules import index_split, random_split
from difformer.data.task import Task

PROTOCOLS = ("paper", "lri", "public-code")
LRI_VALID = 1000
LRI_SEED = 42


def synmol(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    num_splits: int = 3,
    seed: int | None = None,
    graph: str | None = "knn",
    knn: int = 5,
    positions: bool = True,
) -> Task:
    """Molecules in space.

    Args:
        name: ``"synmol"``.
        root: Folder to search first.
        protocol: ``"paper"`` (10/10/80), ``"lri"`` (shares of the publication) or ``"public-code"``.
        num_splits: How many splits.
        seed: Of the first; the others follow. By default 0, and 42 for ``"lri"`` and ``"public-code"``.
        graph: ``"knn"``, ``"bonds"`` for the covalent ones in both directions, or None.
        knn: Nearest points an atom is joined to, itself counted.
        positions: Whether positions are features too.
    """
    choice("protocol", protocol, PROTOCOLS)
    if graph is not None:
        choice("graph", graph, ("knn", "bonds"))
    atoms = read_synmol(name, root)
    kept = np.flatnonzero(atoms["has_pos"])
    rows, node_ptr = _segments(atoms["node_ptr"], kept)
    pos = torch.from_numpy(atoms["pos"][rows].astype(np.float32))
    kind = torch.from_numpy(atoms["atom_type"][rows].astype(np.int64))
    names = [str(symbol) for symbol in atoms["atom_names"]]
    if protocol == "public-code":
        type_columns, labels = kind[:, None].float(), ["atom type"]
    else:
        type_columns, labels = torch.nn.functional.one_hot(kind, len(names)).float(), names
    bonds = None
    if graph == "bonds":
        columns, edge_ptr = _segments(atoms["edge_ptr"], kept)
        shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff())
        bonds = torch.from_numpy(atoms["edge_index"][:, columns].astype(np.int64)) + shift
    y = torch.from_numpy(atoms["y"][kept].astype(np.int64))
    first = seed if seed is not None else (0 if protocol == "paper" else LRI_SEED)
    new_number = np.full(len(atoms["y"]), -1)
    new_number[kept] = np.arange(len(kept))

    def lri(s: int) -> Split:
        others = atoms["train_index"].copy()
        order = np.arange(len(others))
        np.random.RandomState(s).shuffle(order)  # the published split was drawn by this generator
        parts = others[order[:-LRI_VALID]], others[order[-LRI_VALID:]], atoms["test_index"]
        return index_split(f"lri/seed={s}", *(new_number[part][new_number[part] >= 0] for part in parts))

    splits = (
        _paper_splits(y, num_splits, first) if protocol == "paper" else seeded(lri, num_splits=num_splits, seed=first)
    )
    share = "random 10/10/80" if protocol == "paper" else "LRI's split"
    lost = len(atoms["y"]) - len(kept)
    return _task(
        name,
        x=torch.cat([type_columns, pos], dim=1) if positions else type_columns,
        y=y,
        node_ptr=node_ptr,
        edge_index=bonds if graph != "knn" else _nearest(pos, node_ptr, knn),
        splits=splits,
        protocol=f"{protocol}: {share}, {seeds_of(num_splits, first)}",
        steps=sentence(
            [
                "atom type as a number" if protocol == "public-code" else "atom types one-hot",
                "positions in Å" if positions else None,
                {"knn": f"{knn} nearest atoms (self counted)", "bonds": "covalent bonds", None: "no graph"}[graph],
            ]
        ),
        feature_names=[*labels, *(("x", "y", "z") if positions else ())],
        notes=[f"{lost} molecules without positions are left out."] if lost else [],
    )


def actstrack(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    num_splits: int = 3,
    seed: int | None = None,
    graph: str | None = "knn",
    knn: int = 5,
    source: str = "auto",
    positions: bool = True,
) -> Task:
    """Tracks in a detector.

    Args:
        name: ``"actstrack"``.
        root: Folder to search first.
        protocol: ``"paper"`` (10/10/80), ``"lri"`` (shares of the publication) or ``"public-code"``.
        num_splits: How many splits.
        seed: Of the first; the others follow. By default 0, and 42 for ``"lri"`` and ``"public-code"``.
        graph: ``"knn"`` or None.
        knn: Nearest hits a hit is joined to, itself counted.
        source: ``"processed"``, the published choice of ten tracks per event; ``"raw"``, the events, from which ten
            tracks each are drawn here, seed 42; ``"auto"`` for whichever is on disk.
        positions: Whether positions are features too.
    """
    choice("protocol", protocol, PROTOCOLS)
    if graph is not None:
        choice("graph", graph, ("knn",))
    choice("source", source, ("auto", "processed", "raw"))
    hits, form = read_actstrack(name, root, source)
    x, pos = (torch.from_numpy(hits[key].astype(np.float32)) for key in ("x", "pos"))
    y, node_ptr = (torch.from_numpy(hits[key].astype(np.int64)) for key in ("y", "node_ptr"))
    first = seed if seed is not None else (0 if protocol == "paper" else LRI_SEED)

    def lri(s: int) -> Split:
        order = np.arange(len(y))
        np.random.RandomState(s).shuffle(order)  # the published split was drawn by this generator
        train, valid = int(0.7 * len(y)), int(0.15 * len(y))
        return index_split(f"lri/seed={s}", order[:train], order[train : train + valid], order[train + valid :])

    splits = (
        _paper_splits(y, num_splits, first) if protocol == "paper" else seeded(lri, num_splits=num_splits, seed=first)
    )
    share = "random 10/10/80" if protocol == "paper" else "random 70/15/15 as in LRI"
    direction = torch.nn.functional.normalize(pos, dim=1)
    return _task(
        name,
        x=torch.cat([x, pos], dim=1) if positions else x,
        y=y,
        node_ptr=node_ptr,
        edge_index=_nearest(direction, node_ptr, knn) if graph == "knn" else None,
        splits=splits,
        protocol=f"{protocol}: {share}, {seeds_of(num_splits, first)}",
        steps=sentence(
            [
                f"features of hits as published ({form} files)",
                "with positions" if positions else None,
                f"{knn} nearest hits in direction (self counted)" if graph == "knn" else "no graph",
            ]
        ),
        feature_names=[str(column) for column in hits["columns"]] + (["tx", "ty", "tz"] if positions else []),
        notes=["Features are in the units of the detector and are not scaled."],
    )


def _nearest(points: Tensor, node_ptr: Tensor, knn: int) -> Tensor:
    return knn_graph(points, knn, metric="euclidean", include_self=True, node_ptr=node_ptr)


def _paper_splits(y: Tensor, num_splits: int, seed: int) -> tuple[Split, ...]:
    return seeded(lambda s: random_split(y, fractions=(0.1, 0.1, 0.8), seed=s), num_splits=num_splits, seed=seed)


def _segments(ptr: Any, kept: Any) -> tuple[Any, Tensor]:
    """Rows of the kept segments of a flat array, and the new pointer."""
    length = np.diff(ptr)[kept]
    new_ptr = np.concatenate([[0], np.cumsum(length)])
    rows = np.arange(new_ptr[-1]) + np.repeat(ptr[:-1][kept] - new_ptr[:-1], length)
    return rows, torch.from_numpy(new_ptr.astype(np.int64))


def _task(
    name: str,
    *,
    x: Tensor,
    y: Tensor,
    node_ptr: Tensor,
    edge_index: Tensor | None,
    splits: tuple[Split, ...],
    protocol: str,
    steps: str,
    feature_names: list[str],
    notes: list[str],
) -> Task:
    return Task(
        name=name,
        kind="graphs",
        problem="multilabel",
        metric="rocauc",
        protocol=sentence([protocol, steps, "ROC-AUC over all graphs of a part"]),
        x=x,
        y=y[:, None].float(),
        splits=splits,
        num_outputs=1,
        edge_index=edge_index,
        node_ptr=node_ptr,
        feature_names=tuple(feature_names),
        notes=tuple(notes),
    )
