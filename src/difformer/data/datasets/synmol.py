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
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from difformer.data.datasets.common import Array, Arrays
from difformer.data.errors import DataError, require
from difformer.errors import UserError

Stage = Literal["parsing", "embedding", "force field"]

ATOM_NAMES = ("C", "N", "O", "S", "F", "P", "Cl", "Br", "Na", "Ca", "I", "B", "H", "*")  # the last: any other element
BOND_NAMES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "UNSPECIFIED")  # the last: any other bond
CARBONYL = "[CX3]=O"
UNBRANCHED_ALKANE = "[R0;D2,D1][R0;D2][R0;D2,D1]"
SEED, STEPS = 42, 1000  # of the embedding, and of the force field


class MoleculeError(UserError):
    """A molecule that cannot be read or placed in space; ``smiles`` and ``stage`` say which and where it failed."""

    def __init__(self, smiles: str, stage: Stage, reason: str) -> None:
        super().__init__(f"molecule {smiles!r}: {stage} failed: {reason}")
        self.smiles, self.stage, self.reason = smiles, stage, reason


def read_smiles(table: str, path: object) -> list[str]:
    """The molecules of a table in the format of ``logic8_smiles.csv``: a header with ``mol_id`` and ``smiles``.

    Its column ``label``, if there is one, is not read: in the published file it is not the label of the task.
    """
    rows = csv.DictReader(io.StringIO(table))
    for column in ("mol_id", "smiles"):
        if column not in (rows.fieldnames or ()):
            raise DataError(f"no column {column!r}; the header is {rows.fieldnames}", path=path, line=1)
    smiles = []
    for row in rows:
        if not row["smiles"]:
            raise DataError("empty", path=path, line=rows.line_num, column="smiles")
        smiles.append(row["smiles"])
    return smiles


def build_synmol(
    smiles: Sequence[str], *, seed: int = SEED, max_iterations: int = STEPS, workers: int = 1
) -> tuple[Arrays, list[MoleculeError]]:
    """Places and labels molecules; the result does not depend on the number of `workers` (threads).

    Returns:
        arrays: The molecules end to end: ``node_ptr``, ``edge_ptr [G + 1]``; ``atom_type``, ``node_label`` (1 for an
            atom that explains its molecule's label), ``pos [ΣN, 3]`` in Å; ``edge_index [2, ΣE]``, local to each
            molecule, and ``bond_type``; ``y`` and ``has_pos [G]``.
        failures: Why molecules could not be placed; they keep atoms, bonds and label, and their positions are NaN.

    Raises:
        MoleculeError: If a SMILES cannot be read.
        ImportError: Without rdkit.
    """
    mols = [parse(text) for text in smiles]

    def place(item: tuple[str, Any]) -> Array | MoleculeError:
        try:
            return place_atoms(item[1], item[0], seed, max_iterations)
        except MoleculeError as error:
            return error

    with ThreadPoolExecutor(max_workers=workers) as pool:
        placed = list(pool.map(place, zip(smiles, mols, strict=True)))
    nowhere = [np.full((mol.GetNumAtoms(), 3), np.nan, dtype=np.float32) for mol in mols]
    pos = [absent if isinstance(p, MoleculeError) else p for p, absent in zip(placed, nowhere, strict=True)]
    labels, bonds = [label_atoms(mol) for mol in mols], [bonds_of(mol) for mol in mols]
    all_bonds = np.concatenate([np.zeros((3, 0), dtype=np.int32), *bonds], axis=1)
    no_atoms = np.zeros(0, dtype=np.int8)
    arrays = {
        "node_ptr": _pointer([len(p) for p in pos]),
        "edge_ptr": _pointer([b.shape[1] for b in bonds]),
        "atom_type": np.concatenate([no_atoms, *(atom_types(mol) for mol in mols)]),
        "pos": np.concatenate([np.zeros((0, 3), dtype=np.float32), *pos]),
        "node_label": np.concatenate([no_atoms, *(atoms for _, atoms in labels)]),
        "edge_index": all_bonds[:2],
        "bond_type": all_bonds[2].astype(np.int8),
        "y": np.array([y for y, _ in labels], dtype=np.int64),
        "has_pos": np.array([not isinstance(p, MoleculeError) for p in placed], dtype=bool),
    }
    return arrays, [p for p in placed if isinstance(p, MoleculeError)]


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
    """1 if both patterns match, and 0 otherwise; and ``[n]`` int8, 1 for every atom of a match."""
    matches = [mol.GetSubstructMatches(pattern) for pattern in _patterns()]
    atoms = np.zeros(mol.GetNumAtoms(), dtype=np.int8)
    if not all(matches):
        return 0, atoms
    for match in (*matches[0], *matches[1]):
        atoms[list(match)] = 1
    return 1, atoms


def place_atoms(mol: Any, smiles: str, seed: int, max_iterations: int) -> Array:
    """Positions ``[n, 3]`` of the heavy atoms; those reached are kept, with a warning, if the force field goes on."""
    chem = _rdkit()
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

    full = chem.AddHs(mol)
    if rdDistGeom.EmbedMolecule(full, randomSeed=seed) != 0:
        raise MoleculeError(smiles, "embedding", f"distance geometry found no conformer with seed {seed}")
    status = rdForceFieldHelpers.MMFFOptimizeMolecule(full, maxIters=max_iterations)
    if status == -1:
        raise MoleculeError(smiles, "force field", "MMFF94 has no parameters for one of its atoms")
    if status != 0:
        warnings.warn(
            f"molecule {smiles!r}: the force field had not converged after {max_iterations} steps", stacklevel=2
        )
    # Added hydrogens come after the atoms of the SMILES, so that the first n rows are these, in their order.
    pos: Array = full.GetConformer().GetPositions()[: mol.GetNumAtoms()].astype(np.float32)
    return pos


def atom_types(mol: Any) -> Array:
    """``[n]`` int8, indices into ``ATOM_NAMES``."""
    index = {name: i for i, name in enumerate(ATOM_NAMES)}
    return np.array([index.get(atom.GetSymbol(), len(index) - 1) for atom in mol.GetAtoms()], dtype=np.int8)


def bonds_of(mol: Any) -> Array:
    """``[3, 2m]`` int32: from, to, and an index into ``BOND_NAMES``; each bond once in either direction."""
    index = {name: i for i, name in enumerate(BOND_NAMES)}
    both = []
    for bond in mol.GetBonds():
        source, target = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        kind = index.get(str(bond.GetBondType()), len(index) - 1)
        both += [(source, target, kind), (target, source, kind)]
    return np.array(both, dtype=np.int32).reshape(-1, 3).T


def _pointer(counts: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
