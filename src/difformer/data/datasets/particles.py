"""SynMol and ActsTrack: sets of points in space, one yes-or-no answer a set.

SynMol: molecules, a point an atom, with type and position; positive where it has both a carbonyl and an unbranched
alkane. ActsTrack: hits of particles in a detector, with position, time, momentum, energy and their changes; positive
where a z → μμ decay is among them. Edges run from each point's five nearest ones, itself counted, to it: nearest in
space for atoms, nearest in direction as seen from the collision for hits.

* ``"paper"``: random 10/10/80, atom types one-hot.
* ``"lri"``: the shares of the data's first publication. SynMol: the published test set; of the others, shuffled, the
  last 1000 are for validation. ActsTrack: random 70/15/15.
* ``"public-code"``: as ``"lri"``, and SynMol's atom type enters as a number, as in the authors' code.

ActsTrack is read from the processed file of Zenodo record 7265547, magnetic field of 2 T: all events' hits end to end,
ten tracks per event, as chosen by those who published them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import read_npz, read_zip
from difformer.data.datasets.common import Array, Arrays, Reader, seeded
from difformer.data.datasets.pickles import read_tensors
from difformer.data.datasets.synmol import ATOM_NAMES, build_synmol, read_smiles
from difformer.data.errors import DataError
from difformer.data.knn import knn_graph
from difformer.data.lookup import Found
from difformer.data.sparse import segments
from difformer.data.split import Split, fraction_split, index_split
from difformer.data.task import Task

LRI_VALID, LRI_SEED = 1000, 42


@dataclass(frozen=True, kw_only=True)
class PointSetReader(Reader):
    """Sets of points.

    Args:
        protocol: ``"paper"`` (10/10/80), ``"lri"`` (shares of the publication) or ``"public-code"``.
        num_splits: How many splits.
        seed: Of the first; the others follow. By default 0, and 42 for ``"lri"`` and ``"public-code"``.
        graph: ``"knn"`` or None.
        knn: Nearest points a point is joined to, itself counted.
        positions: Whether positions are features too.
    """

    num_splits: int = 3
    seed: int | None = None
    graph: str | None = "knn"
    knn: int = 5
    positions: bool = True

    def set_task(
        self,
        x: Tensor,
        pos: Tensor,
        y: Tensor,
        node_ptr: Tensor,
        *,
        edge_index: Tensor | None,
        names: Sequence[str],
        axes: Sequence[str],
        published: Callable[[int], Split],
        called: str,
        steps: Sequence[str],
        notes: Sequence[str],
    ) -> Task:
        """Of features and positions of points; `published` draws the split that the publication calls `called`."""
        paper = self.protocol == "paper"
        splits, said = seeded(
            (lambda s: fraction_split(y, protocol="10/10/80", seed=s)) if paper else published,
            self.num_splits,
            self.seed if self.seed is not None else 0 if paper else LRI_SEED,
            f"{self.protocol}: {'random 10/10/80' if paper else called}",
        )
        return Task(
            name=self.name,
            kind="graphs",
            problem="multilabel",
            metric="rocauc",
            protocol="; ".join([said, *steps, "ROC-AUC over all graphs of a part"]),
            x=torch.cat([x, pos], dim=1) if self.positions else x,
            y=y[:, None].float(),
            splits=splits,
            num_outputs=1,
            edge_index=edge_index,
            node_ptr=node_ptr,
            feature_names=(*names, *(axes if self.positions else ())),
            notes=tuple(notes),
        )

    def nearest(self, points: Tensor, node_ptr: Tensor) -> Tensor:
        return knn_graph(points, self.knn, metric="euclidean", include_self=True, node_ptr=node_ptr)


@dataclass(frozen=True, kw_only=True)
class SynMol(PointSetReader):
    """Molecules in space.

    Args:
        graph: ``"knn"``, ``"bonds"`` for the covalent ones in both directions, or None.
    """

    choices = (("graph", ("knn", "bonds", None)),)

    def read(self, found: Found) -> Arrays:
        """``synmol_raw.zip`` with positions made here (some minutes, once) and labels from the rule that made them."""
        table, split = read_zip(found.path, ("logic8_smiles.csv", "logic8_traintest_indices.npz")).values()
        published = read_npz(io.BytesIO(split), ("train_index", "test_index"))
        built, _ = build_synmol(read_smiles(table.decode(), found.path), workers=os.cpu_count() or 1)
        index = {key: np.asarray(part, dtype=np.int64).ravel() for key, part in published.items()}
        return {**built, "atom_names": np.array(ATOM_NAMES), **index}

    def task(self, content: Any) -> Task:
        kept = torch.from_numpy(np.flatnonzero(content["has_pos"]))
        rows, node_ptr = segments(torch.from_numpy(content["node_ptr"]), kept)
        pos = torch.from_numpy(content["pos"][rows].astype(np.float32))
        x = torch.from_numpy(content["atom_type"][rows].astype(np.int64))
        names = [str(symbol) for symbol in content["atom_names"]]
        edge_index = self.nearest(pos, node_ptr) if self.graph == "knn" else None
        if self.graph == "bonds":
            columns, edge_ptr = segments(torch.from_numpy(content["edge_ptr"]), kept)
            shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff())
            edge_index = torch.from_numpy(content["edge_index"][:, columns].astype(np.int64)) + shift
        count = len(content["y"])
        new_number = np.full(count, -1)
        new_number[kept] = np.arange(len(kept))

        def published(s: int) -> Split:
            others = content["train_index"][_shuffled(len(content["train_index"]), s)]
            parts = (new_number[p] for p in (others[:-LRI_VALID], others[-LRI_VALID:], content["test_index"]))
            return index_split(f"lri/seed={s}", *(part[part >= 0] for part in parts))

        code = self.protocol == "public-code"
        graphs = {"knn": f"{self.knn} nearest atoms (self counted)", "bonds": "covalent bonds", None: "no graph"}
        types = "atom type as a number" if code else "atom types one-hot"
        return self.set_task(
            x[:, None].float() if code else torch.nn.functional.one_hot(x, len(names)).float(),
            pos,
            torch.from_numpy(content["y"].astype(np.int64))[kept],
            node_ptr,
            edge_index=edge_index,
            names=["atom type"] if code else names,
            axes=("x", "y", "z"),
            published=published,
            called="LRI's split",
            steps=[types, *["positions in Å"] * self.positions, graphs[self.graph]],
            notes=[f"{count - len(kept)} molecules without positions are left out."] * (len(kept) < count),
        )


COLUMNS = ("tt", "tpx", "tpy", "tpz", "te", "deltapx", "deltapy", "deltapz", "deltae")
POSITION = ("tx", "ty", "tz")


@dataclass(frozen=True, kw_only=True)
class ActsTrack(PointSetReader):
    """Tracks in a detector.

    Args:
        source: ``"processed"``, the published choice of ten tracks per event; ``"auto"`` means the same.
    """

    source: str = "processed"
    choices = (("graph", ("knn", None)), ("source", ("processed", "auto")))

    def read(self, found: Found) -> Arrays:
        inside = found.form == "processed"
        file = read_zip(found.path, ["data_2T.pt"])["data_2T.pt"] if inside else found.path.read_bytes()
        data, slices, *_ = read_tensors(file)
        x, pos = data["x"], data["pos"]
        if x.shape[1] != len(COLUMNS) or pos.shape != (len(x), 3):
            raise DataError(
                f"expected {len(COLUMNS)} features and 3 coordinates a hit, got {x.shape} and {pos.shape}",
                path=found.path,
            )
        return {"x": x, "pos": pos, "y": data["y"].ravel().astype(np.int64), "node_ptr": slices["x"].astype(np.int64)}

    def task(self, content: Any) -> Task:
        x, pos = (torch.from_numpy(content[key].astype(np.float32)) for key in ("x", "pos"))
        y, node_ptr = (torch.from_numpy(content[key].astype(np.int64)) for key in ("y", "node_ptr"))

        def published(s: int) -> Split:
            order, train, valid = _shuffled(len(y), s), int(0.7 * len(y)), int(0.15 * len(y))
            return index_split(f"lri/seed={s}", order[:train], order[train : train + valid], order[train + valid :])

        near = self.graph == "knn"
        nearest = f"{self.knn} nearest hits in direction (self counted)" if near else "no graph"
        return self.set_task(
            x,
            pos,
            y,
            node_ptr,
            edge_index=self.nearest(torch.nn.functional.normalize(pos, dim=1), node_ptr) if near else None,
            names=COLUMNS,
            axes=POSITION,
            published=published,
            called="random 70/15/15 as in LRI",
            steps=["features of hits as published (processed files)", *["with positions"] * self.positions, nearest],
            notes=["Features are in the units of the detector and are not scaled."],
        )


def _shuffled(count: int, seed: int) -> Array:
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)  # the published splits were drawn by this generator
    return order
