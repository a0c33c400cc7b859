"""SynMol and ActsTrack: sets of points in space, one yes-or-no answer a set.

SynMol: molecules, a point an atom, with type and position; positive where it has both a carbonyl and an unbranched
alkane. ActsTrack: hits of particles in a detector, with position, time, momentum, energy and their changes; positive
where a z → μμ decay is among them. Edges run from each point's five nearest ones, itself counted, to it: nearest in
space for atoms, nearest in direction as seen from the collision for hits.

* ``"paper"``: random 10/10/80, atom types one-hot.
* ``"lri"``: the shares of the data's first publication. SynMol: the published test set; of the others, shuffled, the
  last 1000 are for validation. ActsTrack: random 70/15/15.
* ``"public-code"``: as ``"lri"``, and SynMol's atom type enters as a number, as in the authors' code.

The files of ActsTrack are those of Zenodo record 7265547, magnetic field of 2 T. *Processed*: all events' hits end to
end, ten tracks per event, as chosen by those who published them. *Raw*: two lists of events, each (particles at the
start, something else, hits), as pandas tables. From the raw events a signal event is kept if exactly one pair of
opposite charge, two muons or two electrons, has the mass of the z boson to within 2 GeV, where for momenta p₁, p₂

    M² = 2 (m² + E₁E₂ - p₁·p₂),   E = √(m² + |p|²),

and if the pair left a hit; to the pair as many particles of the event are drawn (with replacement, the pair not left
out, as those who published the data did) as make up ten tracks.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import check_size
from difformer.data.datasets.common import choice, seeded, seeds_of, sentence, share_splits
from difformer.data.datasets.pickles import Frame, read_pickle, read_tensors
from difformer.data.datasets.synmol import read_synmol
from difformer.data.errors import DataError
from difformer.data.knn import knn_graph
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, stored_arrays
from difformer.data.sparse import segments
from difformer.data.split import Split, index_split
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
    kept_molecules = torch.from_numpy(kept)
    rows, node_ptr = segments(torch.from_numpy(atoms["node_ptr"]), kept_molecules)
    pos = torch.from_numpy(atoms["pos"][rows].astype(np.float32))
    kind = torch.from_numpy(atoms["atom_type"][rows].astype(np.int64))
    names = [str(symbol) for symbol in atoms["atom_names"]]
    if protocol == "public-code":
        type_columns, labels = kind[:, None].float(), ["atom type"]
    else:
        type_columns, labels = torch.nn.functional.one_hot(kind, len(names)).float(), names
    bonds = None
    if graph == "bonds":
        columns, edge_ptr = segments(torch.from_numpy(atoms["edge_ptr"]), kept_molecules)
        shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff())
        bonds = torch.from_numpy(atoms["edge_index"][:, columns].astype(np.int64)) + shift
    y = torch.from_numpy(atoms["y"][kept].astype(np.int64))
    new_number = np.full(len(atoms["y"]), -1)
    new_number[kept] = np.arange(len(kept))

    def lri(s: int) -> Split:
        others = atoms["train_index"].copy()
        order = np.arange(len(others))
        np.random.RandomState(s).shuffle(order)  # the published split was drawn by this generator
        parts = others[order[:-LRI_VALID]], others[order[-LRI_VALID:]], atoms["test_index"]
        return index_split(f"lri/seed={s}", *(new_number[part][new_number[part] >= 0] for part in parts))

    splits, said = _splits(protocol, y, lri, "LRI's split", num_splits, seed)
    lost = len(atoms["y"]) - len(kept)
    return _task(
        name,
        x=torch.cat([type_columns, pos], dim=1) if positions else type_columns,
        y=y,
        node_ptr=node_ptr,
        edge_index=bonds if graph != "knn" else _nearest(pos, node_ptr, knn),
        splits=splits,
        protocol=said,
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

    def lri(s: int) -> Split:
        order = np.arange(len(y))
        np.random.RandomState(s).shuffle(order)  # the published split was drawn by this generator
        train, valid = int(0.7 * len(y)), int(0.15 * len(y))
        return index_split(f"lri/seed={s}", order[:train], order[train : train + valid], order[train + valid :])

    splits, said = _splits(protocol, y, lri, "random 70/15/15 as in LRI", num_splits, seed)
    direction = torch.nn.functional.normalize(pos, dim=1)
    return _task(
        name,
        x=torch.cat([x, pos], dim=1) if positions else x,
        y=y,
        node_ptr=node_ptr,
        edge_index=_nearest(direction, node_ptr, knn) if graph == "knn" else None,
        splits=splits,
        protocol=said,
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


def _splits(
    protocol: str, y: Tensor, lri: Callable[[int], Split], called: str, num_splits: int, seed: int | None
) -> tuple[tuple[Split, ...], str]:
    """Splits and protocol: the paper's shares, or those of the publication, which `lri` draws."""
    paper = protocol == "paper"
    first = seed if seed is not None else 0 if paper else LRI_SEED
    draw = share_splits(y, "10/10/80", num_splits=num_splits, seed=first) if paper else None
    splits = draw or seeded(lri, num_splits=num_splits, seed=first)
    return splits, f"{protocol}: {'random 10/10/80' if paper else called}, {seeds_of(num_splits, first)}"


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


COLUMNS = ("tt", "tpx", "tpy", "tpz", "te", "deltapx", "deltapy", "deltapz", "deltae")
POSITION = ("tx", "ty", "tz")
Z_MASS, TOLERANCE = 91.1876, 2.0  # GeV
MUON, ELECTRON = 13, 11
TRACKS = 10
DRAW_SEED = 42


def read_actstrack(name: str, root: str | os.PathLike[str] | None, source: str) -> tuple[Arrays, str]:
    """Hits ``x``, ``pos``, ``node_label``, events' ``node_ptr`` and ``y``, and ``columns``; and from which files."""
    forms = {"auto": None, "processed": ("processed-folder", "processed"), "raw": ("raw-folder", "raw")}[source]
    found = locate(name, root, forms=forms)
    with reading(found):
        kind = found.form.removesuffix("-folder")
        read = read_collated if kind == "processed" else read_events
        return stored_arrays(found, read, name=f"{name}-{kind}"), kind


def read_collated(found: Found) -> Arrays:
    """The processed file."""
    with _member(found, "data_2T.pt") as stream:
        data, slices, *_ = read_tensors(stream)
    ptr = slices["x"].astype(np.int64)
    if data["x"].shape[1] != len(COLUMNS) or data["pos"].shape != (len(data["x"]), 3):
        raise DataError(
            f"expected {len(COLUMNS)} features and 3 coordinates a hit, got {tuple(data['x'].shape)} and "
            f"{tuple(data['pos'].shape)}",
            path=found.path,
        )
    return {
        "x": data["x"],
        "pos": data["pos"],
        "node_label": data["node_label"].astype(np.int8),
        "y": data["y"].ravel().astype(np.int64),
        "node_ptr": ptr,
        "columns": np.array(COLUMNS),
    }


def read_events(found: Found) -> Arrays:
    """The raw events, signal first."""
    rng = np.random.default_rng(DRAW_SEED)
    kept: list[tuple[Frame, Any, Any, int]] = []
    for kind, label in (("signal", 1), ("bkg", 0)):
        with _member(found, f"{kind}_events_2T.pkl") as stream:
            events = read_pickle(stream)
        for particles, _, hits in events:
            chosen = _choose(particles, hits, signal=label == 1, rng=rng)
            if chosen is not None:
                kept.append((hits, *chosen, label))
    if not kept:
        raise DataError("no event is left after selection", path=found.path)

    def stacked(names: tuple[str, ...]) -> Any:
        tables = [
            np.stack([np.asarray(hits[n], dtype=np.float32)[rows] for n in names], 1) for hits, rows, _, _ in kept
        ]
        return np.concatenate(tables)

    return {
        "x": stacked(COLUMNS),
        "pos": stacked(POSITION),
        "node_label": np.concatenate([on_signal for _, _, on_signal, _ in kept]).astype(np.int8),
        "y": np.array([label for _, _, _, label in kept], dtype=np.int64),
        "node_ptr": np.concatenate([[0], np.cumsum([len(rows) for _, rows, _, _ in kept])]).astype(np.int64),
        "columns": np.array(COLUMNS),
    }


def _choose(particles: Frame, hits: Frame, *, signal: bool, rng: np.random.Generator) -> tuple[Any, Any] | None:
    """Rows of the hits that are kept, and which of them belong to the decay; None where the event is not."""
    if len(hits) == 0 or len(particles) == 0:
        return None
    owner = np.asarray(hits["particle_id"])
    decay: list[Any] = []
    if signal:
        pairs = [pair for flavour in (ELECTRON, MUON) for pair in _decays(particles, flavour)]
        if len(pairs) != 1 or not np.isin(owner, pairs[0]).any():
            return None
        decay = list(pairs[0])
    drawn = rng.choice(np.unique(owner), TRACKS - len(decay))
    rows = np.flatnonzero(np.isin(owner, [*drawn, *decay]))
    return rows, np.isin(owner[rows], decay)


def _decays(particles: Frame, flavour: int) -> list[tuple[Any, Any]]:
    """Pairs of opposite charge with the mass of the z boson."""
    members = np.flatnonzero(np.abs(np.asarray(particles["particle_type"])) == flavour)
    charge, mass, number = (np.asarray(particles[key])[members] for key in ("q", "m", "particle_id"))
    p = np.stack([np.asarray(particles[key], dtype=np.float64)[members] for key in ("px", "py", "pz")], axis=1)
    found = []
    for i, j in combinations(range(len(members)), 2):
        m2 = float(mass[i]) ** 2
        energy = np.sqrt((m2 + p[i] @ p[i]) * (m2 + p[j] @ p[j]))
        if charge[i] * charge[j] <= 0 and abs(np.sqrt(2 * (m2 + energy - p[i] @ p[j])) - Z_MASS) < TOLERANCE:
            found.append((number[i], number[j]))
    return found


@contextmanager
def _member(found: Found, name: str) -> Iterator[IO[bytes]]:
    if found.form.endswith("-folder"):
        with open(found[name], "rb") as stream:
            yield stream
        return
    with zipfile.ZipFile(found.path) as archive:
        inside = next((item for item in archive.namelist() if item.rsplit("/", 1)[-1] == name), None)
        if inside is None:
            raise DataError(f"the archive holds no {name}", path=found.path)
        check_size(archive.getinfo(inside).file_size, name)
        with archive.open(inside) as stream:
            yield stream
