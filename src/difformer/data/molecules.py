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

import warnings
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from difformer.data.errors import require
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
    # Added hydrogens stand behind the atoms of the SMILES, so that the first n rows are these, in their order.
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
