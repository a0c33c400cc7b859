"""The files of SynMol: arrays prepared beforehand, or the published SMILES, from which rdkit makes positions."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import numpy as np

from difformer.data.archives import read_npz, read_zip
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, processed

_FORMAT = 1


def read_synmol(name: str, root: str | os.PathLike[str] | None) -> Arrays:
    """Atoms, bonds, labels and the published split; atoms of molecule i are ``node_ptr[i]:node_ptr[i + 1]``.

    From ``synmol.npz`` as it is; from ``synmol_raw.zip`` with positions made by `difformer.data.molecule_sets` (some
    minutes, once) and labels from the rule that made the published ones.
    """
    found = locate(name, root)
    with reading(found):
        if found.form == "arrays":
            return read_npz(found.path)
        return processed(name, lambda: _from_smiles(found), sources=found.paths, version=_FORMAT)


def _from_smiles(found: Found) -> Arrays:
    from difformer.data.molecule_sets import build_synmol, read_smiles
    from difformer.data.molecules import ATOM_NAMES

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
