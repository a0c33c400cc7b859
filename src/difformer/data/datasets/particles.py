"""SynMol and ActsTrack: sets of points in space, one yes-or-no answer per set.

Every point gets edges from its five nearest, itself counted: nearest in space for atoms, nearest in direction as seen
from the collision for hits. The shares of ``"lri"``, the data's first publication: for SynMol the published test set,
and of the others, shuffled, the last 1000 for validation; for ActsTrack random 70/15/15.
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import read_members, read_npz
from difformer.data.datasets.common import Array, Arrays, Reader, Splits, seeded, shuffled
from difformer.data.download import Found
from difformer.data.knn import knn_graph
from difformer.data.sparse_features import segments
from difformer.data.split import Split, fraction_split, index_split
from difformer.data.task import Task
from difformer.errors import DataError, require

LRI_VALID, LRI_SEED = 1000, 42


@dataclass(frozen=True, kw_only=True)
class PointSetReader(Reader):
    """Sets of points.

    Args:
        protocol: ``"paper"`` (random 10/10/80), ``"lri"`` (shares of the publication) or ``"public-code"`` (likewise,
            with SynMol's atom type as a number, as in the authors' code).
        num_splits: Number of splits.
        seed: Seed of the first split; by default 0, and 42 for ``"lri"`` and ``"public-code"``.
        knn: Nearest points a point is joined to, itself counted.
    """

    protocol: str = "paper"
    num_splits: int = 3
    seed: int | None = None
    knn: int = 5

    def splits(self, y: Tensor, published: Callable[[int], Split], called: str) -> Splits:
        """Random 10/10/80 for ``"paper"``; otherwise those of `published`, which the protocol calls `called`."""
        make, first, said = published, LRI_SEED, called
        if self.protocol == "paper":
            make, first, said = lambda s: fraction_split(y, protocol="10/10/80", seed=s), 0, "random 10/10/80"
        return seeded(make, self.num_splits, first if self.seed is None else self.seed, f"{self.protocol}: {said}")

    def nearest(self, points: Tensor, node_ptr: Tensor) -> Tensor:
        return knn_graph(points, self.knn, metric="euclidean", include_self=True, node_ptr=node_ptr)

    def sets_task(self, x: Tensor, pos: Tensor, y: Tensor, splits: Splits, *said: str, **parts: Any) -> Task:
        """A task of one yes-or-no answer per set; positions are features too."""
        x, y, said = torch.cat([x, pos], dim=1), y[:, None].float(), (*said, "ROC-AUC over all graphs of a part")
        return self.make_task(x, y, splits, *said, problem="multilabel", **parts)


@dataclass(frozen=True, kw_only=True)
class SynMol(PointSetReader):
    """Molecules, one point per atom, with type and position; positive where both of these are substructures.

    carbonyl            [CX3]=O                        a carbon with three neighbours, doubly bonded to an oxygen
    unbranched alkane   [R0;D2,D1][R0;D2][R0;D2,D1]    three atoms in a row, none in a ring, none with a branch

    The data was labelled with the second pattern, which is wider than its name: it does not ask for carbons. Atoms are
    the heavy ones, in the order of the SMILES; rdkit, the extra ``molecules``, places them by seeded distance geometry
    and the MMFF94 force field.
    """

    def read(self, found: Found) -> Arrays:
        """``synmol_raw.zip`` with positions made here (some minutes, once) and labels from the rule that made them."""
        table, split = read_members(found.path, ("logic8_smiles.csv", "logic8_traintest_indices.npz")).values()
        published = read_npz(io.BytesIO(split), ("train_index", "test_index"))
        built = build_synmol(read_smiles(table.decode(), found.path), workers=os.cpu_count() or 1)
        index = {key: np.asarray(part, dtype=np.int64).ravel() for key, part in published.items()}
        return {**built, "atom_names": np.array(ATOM_NAMES), **index}

    def task(self, content: Any) -> Task:
        placed = content["has_pos"].astype(bool)
        kept = torch.from_numpy(np.flatnonzero(placed))
        rows, node_ptr = segments(torch.from_numpy(content["node_ptr"]), kept)
        pos = torch.from_numpy(content["pos"][rows].astype(np.float32))
        x = torch.from_numpy(content["atom_type"][rows].astype(np.int64))
        names = [str(symbol) for symbol in content["atom_names"]]
        new_number = np.cumsum(placed) - 1

        def published(s: int) -> Split:
            others = content["train_index"][shuffled(len(content["train_index"]), s)]
            parts = (others[:-LRI_VALID], others[-LRI_VALID:], content["test_index"])
            return index_split(f"lri/seed={s}", *(new_number[part[placed[part]]] for part in parts))

        y = torch.from_numpy(content["y"].astype(np.int64))[kept]
        code = self.protocol == "public-code"
        types = x[:, None].float() if code else torch.nn.functional.one_hot(x, len(names)).float()
        splits = self.splits(y, published, "LRI's split")
        graph = f"{self.knn} nearest atoms (self counted)"
        said = ("atom type as a number" if code else "atom types one-hot", "positions in Å", graph)
        parts: Any = {"edge_index": self.nearest(pos, node_ptr), "node_ptr": node_ptr}
        parts["feature_names"] = (*(["atom type"] if code else names), "x", "y", "z")
        gone = len(placed) - len(kept)
        parts["notes"] = (f"{gone} molecules without positions are left out.",) if gone else ()
        return self.sets_task(types, pos, y, splits, *said, **parts)


ATOM_NAMES = ("C", "N", "O", "S", "F", "P", "Cl", "Br", "Na", "Ca", "I", "B", "H", "*")  # the last: any other element
CARBONYL, UNBRANCHED_ALKANE = "[CX3]=O", "[R0;D2,D1][R0;D2][R0;D2,D1]"
SEED, STEPS = 42, 1000  # of the embedding, and of the force field


def read_smiles(table: str, path: object) -> list[str]:
    """The molecules of a table in the format of ``logic8_smiles.csv``: a header with ``smiles`` in it.

    Its column ``label``, if there is one, is not read: in the published file it is not the label of the task.
    """
    rows = csv.DictReader(io.StringIO(table))
    if "smiles" not in (rows.fieldnames or ()):
        raise DataError(f"no column 'smiles'; the header is {rows.fieldnames}", path=path, line=1)
    smiles = []
    for row in rows:
        if not row["smiles"]:
            raise DataError("empty", path=path, line=rows.line_num, column="smiles")
        smiles.append(row["smiles"])
    return smiles


def build_synmol(smiles: Sequence[str], *, workers: int = 1) -> Arrays:
    """Places and labels molecules; the result does not depend on the number of `workers` (threads).

    Gives ``node_ptr [G + 1]``, ``atom_type``, ``pos [ΣN, 3]`` in Å, NaN where ``has_pos [G]`` is false, and ``y``.
    """
    require("rdkit", extra="molecules", purpose="a molecule")
    from rdkit import Chem

    mols = [Chem.MolFromSmiles(text) for text in smiles]
    for text, mol in zip(smiles, mols, strict=True):
        if mol is None or mol.GetNumAtoms() == 0:
            raise DataError(f"molecule {text!r} is not a SMILES of at least one atom that rdkit accepts")
    patterns = [Chem.MolFromSmarts(pattern) for pattern in (UNBRANCHED_ALKANE, CARBONYL)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        pos = list(pool.map(place_atoms, mols))
    number = {name: i for i, name in enumerate(ATOM_NAMES)}
    types = [number.get(atom.GetSymbol(), len(number) - 1) for mol in mols for atom in mol.GetAtoms()]
    return {
        "node_ptr": np.cumsum([0, *map(len, pos)], dtype=np.int64),
        "atom_type": np.array(types, dtype=np.int8),
        "pos": np.concatenate([np.zeros((0, 3), dtype=np.float32), *pos]),
        "y": np.array([all(mol.HasSubstructMatch(pattern) for pattern in patterns) for mol in mols], dtype=np.int64),
        "has_pos": np.array([not np.isnan(of_one).any() for of_one in pos], dtype=bool),
    }


def place_atoms(mol: Any) -> Array:
    """Positions ``[n, 3]`` of the heavy atoms, NaN where distance geometry or the force field fails."""
    from rdkit.Chem import AddHs, rdDistGeom, rdForceFieldHelpers

    full = AddHs(mol)
    placed = rdDistGeom.EmbedMolecule(full, randomSeed=SEED) == 0
    status = rdForceFieldHelpers.MMFFOptimizeMolecule(full, maxIters=STEPS) if placed else -1
    if status == -1:  # it has no parameters for one of the atoms
        return np.full((mol.GetNumAtoms(), 3), np.nan, dtype=np.float32)
    if status != 0:
        warnings.warn(f"a molecule: the force field had not converged after {STEPS} steps", stacklevel=2)
    # Added hydrogens come after the atoms of the SMILES, which are the first n rows, in their order.
    return np.asarray(full.GetConformer().GetPositions()[: mol.GetNumAtoms()], dtype=np.float32)


NUM_VALUES = 9  # of a hit, beside its position
COLUMNS = ("tt", "tpx", "tpy", "tpz", "te", "deltapx", "deltapy", "deltapz", "deltae", "tx", "ty", "tz")


@dataclass(frozen=True, kw_only=True)
class ActsTrack(PointSetReader):
    """Hits of particles in a detector, with position, time, momentum, energy and their changes.

    From the processed file of Zenodo record 7265547 (2 T, ten tracks per event as published); positive where a
    z → μμ decay is among them.
    """

    def read(self, found: Found) -> Arrays:
        inside = found.form == "processed"
        file = read_members(found.path, ["data_2T.pt"])["data_2T.pt"] if inside else found.path.read_bytes()
        x, pos, y, node_ptr = read_events(file)
        if x.shape[1] != NUM_VALUES or pos.shape != (len(x), 3):
            problem = f"expected {NUM_VALUES} features and 3 coordinates per hit, got {x.shape} and {pos.shape}"
            raise DataError(problem, path=found.path)
        return {"x": x, "pos": pos, "y": y.ravel().astype(np.int64), "node_ptr": node_ptr.astype(np.int64)}

    def task(self, content: Any) -> Task:
        x, pos = (torch.from_numpy(content[key].astype(np.float32)) for key in ("x", "pos"))
        y, node_ptr = (torch.from_numpy(content[key].astype(np.int64)) for key in ("y", "node_ptr"))

        def published(s: int) -> Split:
            order, train, valid = shuffled(len(y), s), int(0.7 * len(y)), int(0.15 * len(y))
            return index_split(f"lri/seed={s}", order[:train], order[train : train + valid], order[train + valid :])

        graph = f"{self.knn} nearest hits in direction (self counted)"
        said = ("features of hits as published (processed files)", "with positions", graph)
        edge_index = self.nearest(torch.nn.functional.normalize(pos, dim=1), node_ptr)
        splits = self.splits(y, published, "random 70/15/15 as in LRI")
        parts: Any = {"edge_index": edge_index, "node_ptr": node_ptr, "feature_names": COLUMNS}
        return self.sets_task(x, pos, y, splits, *said, **parts)


def read_events(content: bytes) -> list[Array]:
    """Features, positions, labels and pointers of a processed PyG data set; of its objects only arrays are read."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # The published file also holds numpy arrays; the functions that make them have other names since numpy 2.
    made: dict[str, Any] = {"_reconstruct": np.zeros(0).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
    makers = [(make, f"numpy.{core}.multiarray.{name}") for name, make in made.items() for core in ("core", "_core")]
    numpy_types: list[Any] = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}]
    pyg_types = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        with torch.serialization.safe_globals([*pyg_types, *numpy_types, *makers]):
            data, slices, *_ = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return [part.numpy() for part in (data["x"], data["pos"], data["y"], slices["x"])]
    except Exception as error:  # the loader has no error of its own for a damaged or foreign file
        problem = f"is damaged, or holds more than tensors and arrays ({type(error).__name__}); nothing else is read"
        raise DataError(problem) from error
