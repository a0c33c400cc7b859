"""SynMol from its raw molecules: points in space with atom types, and a label that a rule of chemistry gives.

A molecule is positive where it has a carbonyl **and** an unbranched chain, each as a substructure:

    carbonyl            [CX3]=O                        a carbon with three neighbours, doubly bonded to an oxygen
    unbranched alkane   [R0;D2,D1][R0;D2][R0;D2,D1]    three atoms in a row, none in a ring, none with a branch

and then every atom of every match of either explains the label; in a negative molecule no atom does. The second pattern
is the one the data was labelled with, and wider than its name: it does not ask for carbons, so that an ether's C-O-C is
one too. Atoms are the heavy ones, in the order of the SMILES.

Positions: hydrogens are added, distance geometry embeds the molecule (seeded), the MMFF94 force field relaxes it, and
the hydrogens are dropped again. Everything here but the constants needs rdkit, the extra ``molecules``.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from difformer.data.archives import read_npz, read_zip
from difformer.data.errors import require
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, processed
from difformer.errors import UserError

Array = np.ndarray[Any, Any]
Stage = Literal["parsing", "embedding", "force field"]

ATOM_NAMES = ("C", "N", "O", "S", "F", "P", "Cl", "Br", "Na", "Ca", "I", "B", "H", "*")  # the last: any other element
BOND_NAMES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "UNSPECIFIED")  # the last: any other bond
CARBONYL = "[CX3]=O"
UNBRANCHED_ALKANE = "[R0;D2,D1][R0;D2][R0;D2,D1]"


class MoleculeError(UserError):
    """A molecule that cannot be read or placed in space; ``smiles`` and ``stage`` say which and where it failed."""

    def __init__(self, smiles: str, stage: Stage, reason: str) -> None:
        super().__init__(f"molecule {smiles!r}: {stage} failed: {reason}")
        self.smiles, self.stage, self.reason = smiles, stage, reason


class Molecule(NamedTuple):
    """One molecule of n heavy atoms and m bonds.

    Args:
        atom_types: ``[n]`` int8, indices into ``ATOM_NAMES``.
        pos: ``[n, 3]`` float32, in Angstrom.
        bonds: ``[3, 2m]`` int32: from, to, and an index into ``BOND_NAMES``; each bond once in either direction.
    """

    atom_types: Array
    pos: Array
    bonds: Array


def from_smiles(smiles: str, *, seed: int = 42, max_iterations: int = 1000) -> Molecule:
    """Atom types, positions and bonds of a molecule.

    Args:
        smiles: The molecule.
        seed: Of the embedding.
        max_iterations: Steps of the force field; where they do not suffice there is a warning, and the positions
            reached are kept.

    Returns:
        Atom types, positions and bonds.

    Raises:
        MoleculeError: If the SMILES cannot be read, no embedding is found, or the force field lacks parameters.
        ImportError: Without rdkit.
    """
    mol = parse(smiles)
    pos, converged = place_atoms(mol, smiles, seed, max_iterations)
    if not converged:
        warnings.warn(
            f"molecule {smiles!r}: the force field had not converged after {max_iterations} steps", stacklevel=2
        )
    return Molecule(atom_types(mol), pos, bonds_of(mol))


def label(smiles: str) -> tuple[int, Array]:
    """The label of a molecule, and which atoms explain it.

    Args:
        smiles: The molecule.

    Returns:
        1 where both patterns match and 0 elsewhere; and ``[n]`` int8, 1 for every atom of a match (none where the label
        is 0).

    Raises:
        MoleculeError: If the SMILES cannot be read.
        ImportError: Without rdkit.
    """
    return label_atoms(parse(smiles))


def _rdkit() -> ModuleType:
    require("rdkit", extra="molecules", purpose="a molecule")
    from rdkit import Chem

    return Chem


@lru_cache(maxsize=1)
def _patterns() -> tuple[Any, Any]:
    chem = _rdkit()
    return chem.MolFromSmarts(UNBRANCHED_ALKANE), chem.MolFromSmarts(CARBONYL)


def parse(smiles: str) -> Any:
    """rdkit's molecule, or a `MoleculeError`."""
    mol = _rdkit().MolFromSmiles(smiles)
    if mol is None or mol.GetNumAtoms() == 0:
        raise MoleculeError(smiles, "parsing", "not a SMILES of at least one atom that rdkit accepts")
    return mol


def label_atoms(mol: Any) -> tuple[int, Array]:
    """As `label`, of rdkit's molecule."""
    matches = [mol.GetSubstructMatches(pattern) for pattern in _patterns()]
    atoms = np.zeros(mol.GetNumAtoms(), dtype=np.int8)
    if not all(matches):
        return 0, atoms
    for match in (*matches[0], *matches[1]):
        atoms[list(match)] = 1
    return 1, atoms


def place_atoms(mol: Any, smiles: str, seed: int, max_iterations: int) -> tuple[Array, bool]:
    """Positions of the heavy atoms, and whether the force field converged."""
    chem = _rdkit()
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

    full = chem.AddHs(mol)
    if rdDistGeom.EmbedMolecule(full, randomSeed=seed) != 0:
        raise MoleculeError(smiles, "embedding", f"distance geometry found no conformer with seed {seed}")
    status = rdForceFieldHelpers.MMFFOptimizeMolecule(full, maxIters=max_iterations)
    if status == -1:
        raise MoleculeError(smiles, "force field", "MMFF94 has no parameters for one of its atoms")
    # Added hydrogens come after the atoms of the SMILES, so that the first n rows are these, in their order.
    pos = full.GetConformer().GetPositions()[: mol.GetNumAtoms()]
    return pos.astype(np.float32), status == 0


def atom_types(mol: Any) -> Array:
    """``[n]`` int8, as in `Molecule`."""
    index = {name: i for i, name in enumerate(ATOM_NAMES)}
    other = len(ATOM_NAMES) - 1
    return np.array([index.get(atom.GetSymbol(), other) for atom in mol.GetAtoms()], dtype=np.int8)


def bonds_of(mol: Any) -> Array:
    """``[3, 2m]`` int32, as in `Molecule`."""
    index = {name: i for i, name in enumerate(BOND_NAMES)}
    other = len(BOND_NAMES) - 1
    both = []
    for bond in mol.GetBonds():
        source, target = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        kind = index.get(str(bond.GetBondType()), other)
        both += [(source, target, kind), (target, source, kind)]
    return np.array(both, dtype=np.int32).reshape(-1, 3).T


@dataclass(frozen=True)
class MoleculeSet:
    """Molecules laid end to end: atoms of molecule i are ``node_ptr[i]:node_ptr[i + 1]``, its edges likewise.

    Args:
        node_ptr: ``[G + 1]`` int64.
        edge_ptr: ``[G + 1]`` int64.
        atom_type: ``[ΣN]`` int8, indices into ``ATOM_NAMES``.
        pos: ``[ΣN, 3]`` float32, NaN where a molecule could not be placed.
        node_label: ``[ΣN]`` int8, 1 where the atom explains its molecule's label.
        edge_index: ``[2, ΣE]`` int32, local to each molecule.
        bond_type: ``[ΣE]`` int8, indices into ``BOND_NAMES``.
        y: ``[G]`` int64.
        has_pos: ``[G]`` bool.
        failures: Number and reason of every molecule that could not be placed.
        unconverged: Numbers of the molecules whose force field ran out of steps; their positions are kept.
    """

    node_ptr: Array
    edge_ptr: Array
    atom_type: Array
    pos: Array
    node_label: Array
    edge_index: Array
    bond_type: Array
    y: Array
    has_pos: Array
    failures: tuple[tuple[int, str], ...]
    unconverged: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.y)


def build_synmol(smiles: Sequence[str], *, seed: int = 42, max_iterations: int = 1000, workers: int = 1) -> MoleculeSet:
    """Places and labels many molecules.

    A molecule that cannot be placed keeps its atoms, bonds and label; its positions are NaN, and ``failures`` says why.

    Args:
        smiles: The molecules.
        seed: As in ``from_smiles``, the same for each.
        max_iterations: As in ``from_smiles``.
        workers: Threads; rdkit lets them run side by side. The result does not depend on how many.

    Returns:
        The molecules, in the order they came.

    Raises:
        MoleculeError: If a SMILES cannot be read.
        ImportError: Without rdkit.
    """
    mols = [parse(text) for text in smiles]

    def place(item: tuple[str, Any]) -> tuple[Array, bool] | MoleculeError:
        try:
            return place_atoms(item[1], item[0], seed, max_iterations)
        except MoleculeError as error:
            return error  # kept beside its number, in `failures`

    with ThreadPoolExecutor(max_workers=workers) as pool:
        placed = list(pool.map(place, zip(smiles, mols, strict=True)))
    failures = tuple((i, str(p)) for i, p in enumerate(placed) if isinstance(p, MoleculeError))
    unconverged = tuple(i for i, p in enumerate(placed) if not isinstance(p, MoleculeError) and not p[1])
    nowhere = [np.full((mol.GetNumAtoms(), 3), np.nan, dtype=np.float32) for mol in mols]
    pos = [nowhere[i] if isinstance(p, MoleculeError) else p[0] for i, p in enumerate(placed)]
    labels = [label_atoms(mol) for mol in mols]
    bonds = [bonds_of(mol) for mol in mols]
    all_bonds = np.concatenate([np.zeros((3, 0), dtype=np.int32), *bonds], axis=1)
    return MoleculeSet(
        node_ptr=_pointer([len(p) for p in pos]),
        edge_ptr=_pointer([b.shape[1] for b in bonds]),
        atom_type=np.concatenate([np.zeros(0, dtype=np.int8), *(atom_types(mol) for mol in mols)]),
        pos=np.concatenate([np.zeros((0, 3), dtype=np.float32), *pos]),
        node_label=np.concatenate([np.zeros(0, dtype=np.int8), *(atoms for _, atoms in labels)]),
        edge_index=all_bonds[:2],
        bond_type=all_bonds[2].astype(np.int8),
        y=np.array([y for y, _ in labels], dtype=np.int64),
        has_pos=np.array([not isinstance(p, MoleculeError) for p in placed], dtype=bool),
        failures=failures,
        unconverged=unconverged,
    )


def read_smiles(path: str | Path) -> list[tuple[str, str]]:
    """Names and SMILES of a table in the format of ``logic8_smiles.csv``: a header with ``mol_id`` and ``smiles``.

    Its column ``label``, where there is one, is not read: in the published file it is not the label of the task.

    Raises:
        ValueError: With file, line and column, where a column or an entry is missing.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        for column in ("mol_id", "smiles"):
            if column not in (rows.fieldnames or ()):
                raise UserError(f"{path}, line 1: no column {column!r}; the header is {rows.fieldnames}")
        table = []
        for row in rows:
            if not row["smiles"]:
                raise UserError(f"{path}, line {rows.line_num}, column 'smiles': empty")
            table.append((row["mol_id"], row["smiles"]))
    return table


def _pointer(counts: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


_FORMAT = 1


def read_synmol(name: str, root: str | os.PathLike[str] | None) -> Arrays:
    """Atoms, bonds, labels and the published split; atoms of molecule i are ``node_ptr[i]:node_ptr[i + 1]``.

    From ``synmol.npz`` as it is; from ``synmol_raw.zip`` with positions made here (some
    minutes, once) and labels from the rule that made the published ones.
    """
    found = locate(name, root)
    with reading(found):
        if found.form == "arrays":
            return read_npz(found.path)
        return processed(name, lambda: _from_smiles(found), sources=found.paths, version=_FORMAT)


def _from_smiles(found: Found) -> Arrays:
    members = read_zip(found.path, ("logic8_smiles.csv", "logic8_traintest_indices.npz"))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "logic8_smiles.csv"
        table.write_bytes(members["logic8_smiles.csv"])
        smiles = [text for _, text in read_smiles(table)]
    published = read_npz(io.BytesIO(members["logic8_traintest_indices.npz"]), ("train_index", "test_index"))
    built = build_synmol(smiles, workers=os.cpu_count() or 1)
    return {
        "node_ptr": built.node_ptr,
        "edge_ptr": built.edge_ptr,
        "atom_type": built.atom_type,
        "pos": built.pos,
        "node_label": built.node_label,
        "edge_index": built.edge_index,
        "bond_type": built.bond_type,
        "y": built.y,
        "has_pos": built.has_pos,
        "atom_names": np.array(ATOM_NAMES),
        **{key: np.asarray(index, dtype=np.int64).ravel() for key, index in published.items()},
    }
