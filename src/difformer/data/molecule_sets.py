"""Many molecules laid end to end, as SynMol keeps them, and the table they come from."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.molecules import MoleculeError, atom_types, bonds_of, label_atoms, parse, place_atoms
from difformer.errors import UserError

Array = np.ndarray[Any, Any]


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
