import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from difformer.data.datasets import synmol as molecules
from difformer.data.datasets.synmol import (
    ATOM_NAMES,
    BOND_NAMES,
    MoleculeError,
    build_synmol,
    label_atoms,
    parse,
    read_smiles,
)


def label(smiles):
    return label_atoms(parse(smiles))


def from_smiles(smiles, **options):
    """One molecule by itself."""
    made, failures = build_synmol([smiles], **options)
    if failures:
        raise failures[0]
    bonds = np.concatenate([made["edge_index"], made["bond_type"][None]])
    return SimpleNamespace(atom_types=made["atom_type"], pos=made["pos"], bonds=bonds)


NO_FORCE_FIELD = "C[Mg]C"  # MMFF94 knows magnesium as an ion only


@pytest.fixture
def rdkit():
    pytest.importorskip("rdkit")


# --- the label rule --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize(
    ("smiles", "atoms"),
    [
        ("CCCC=O", "11111"),  # butanal: a chain, and a carbonyl at its end
        ("COCC(=O)C", "111110"),  # the chain need not be of carbons
        ("c1ccccc1C(=O)NCCC", "000000111111"),
        ("CCC(=O)CC", "000000"),  # every run of three has the branched carbonyl carbon in it
        ("CCCC", "0000"),  # no carbonyl
        ("CC(=O)C", "0000"),  # no chain
        ("O=C1CCCCC1", "0000000"),  # the only chain is a ring
        ("CCCCC=C=O", "0000000"),  # a ketene's carbon has two neighbours, not three
        ("CC(C)(C)C=O", "000000"),  # branched
        ("O=C(O)CCCC(C)=O", "110111101"),  # the acid's OH hangs on the branched carbon
    ],
)
def test_label_and_the_atoms_that_explain_it(smiles, atoms):
    y, node_label = label(smiles)
    assert "".join(map(str, node_label)) == atoms
    assert y == int("1" in atoms)


# --- points in space -------------------------------------------------------------------------------------------------


def edges(molecule):
    source, target, kind = molecule.bonds
    length = np.linalg.norm(molecule.pos[source] - molecule.pos[target], axis=1)
    return source, target, kind, length


@pytest.mark.usefixtures("rdkit")
def test_benzene_is_a_flat_hexagon():
    molecule = from_smiles("c1ccccc1")
    _, _, kind, length = edges(molecule)
    assert molecule.atom_types.tolist() == [ATOM_NAMES.index("C")] * 6
    assert set(kind) == {BOND_NAMES.index("AROMATIC")}
    np.testing.assert_allclose(length, 1.395, atol=0.01)
    centred = molecule.pos - molecule.pos.mean(0)
    assert np.linalg.svd(centred, compute_uv=False)[2] < 0.01


@pytest.mark.usefixtures("rdkit")
def test_atoms_and_bonds_come_in_the_order_of_the_smiles():
    molecule = from_smiles("FC(=O)C#N")
    atom_types, pos, bonds = molecule.atom_types, molecule.pos, molecule.bonds
    assert [ATOM_NAMES[t] for t in atom_types] == ["F", "C", "O", "C", "N"]
    assert bonds[:2].T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [1, 3], [3, 1], [3, 4], [4, 3]]
    assert [BOND_NAMES[t] for t in bonds[2]] == ["SINGLE"] * 2 + ["DOUBLE"] * 2 + ["SINGLE"] * 2 + ["TRIPLE"] * 2
    assert (pos.shape, pos.dtype) == ((5, 3), np.float32)
    carbonyl, nitrile = np.linalg.norm(pos[1] - pos[2]), np.linalg.norm(pos[3] - pos[4])
    assert 1.15 < nitrile < carbonyl < 1.25


@pytest.mark.usefixtures("rdkit")
def test_positions_depend_on_the_seed_alone():
    smiles = "CCOC(=O)CCN"
    np.testing.assert_array_equal(from_smiles(smiles).pos, from_smiles(smiles).pos)
    assert np.abs(from_smiles(smiles).pos - from_smiles(smiles, seed=1).pos).max() > 0.1


@pytest.mark.usefixtures("rdkit")
def test_an_atom_alone_and_one_of_another_element():
    assert from_smiles("C").bonds.shape == (3, 0)
    assert [ATOM_NAMES[t] for t in from_smiles("C[SiH3]").atom_types] == ["C", "*"]


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize(
    ("smiles", "stage"),
    [("C1CC", "parsing"), ("", "parsing"), ("not a molecule", "parsing"), (NO_FORCE_FIELD, "force field")],
)
def test_failure_is_told(smiles, stage):
    with pytest.raises(MoleculeError, match=f"{stage} failed") as raised:
        from_smiles(smiles)
    assert (raised.value.smiles, raised.value.stage) == (smiles, stage)


@pytest.mark.usefixtures("rdkit")
def test_no_convergence_is_told_and_positions_are_kept():
    with pytest.warns(UserWarning, match="not converged after 1 steps"):
        molecule = from_smiles("CCOC(=O)CCN", max_iterations=1)
    assert np.isfinite(molecule.pos).all()


def test_without_rdkit_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    molecules._patterns.cache_clear()
    for function in (from_smiles, label, lambda smiles: build_synmol([smiles])):
        with pytest.raises(ImportError, match=r"difformer\[molecules\]"):
            function("CCO")


# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rdkit")
def test_a_set_is_its_molecules_end_to_end():
    smiles = ["CCCC=O", NO_FORCE_FIELD, "c1ccccc1", "C"]
    made, failures = build_synmol(smiles, workers=2)
    together = SimpleNamespace(**made)
    assert together.node_ptr.tolist() == [0, 5, 8, 14, 15]
    assert together.edge_ptr.tolist() == [0, 8, 12, 24, 24]
    assert together.y.tolist() == [1, 0, 0, 0]
    assert together.has_pos.tolist() == [True, False, True, True]
    assert [(error.smiles, error.stage) for error in failures] == [(NO_FORCE_FIELD, "force field")]
    assert np.isnan(together.pos[5:8]).all()
    for i in (0, 2, 3):
        alone = from_smiles(smiles[i])
        nodes = slice(together.node_ptr[i], together.node_ptr[i + 1])
        edge = slice(together.edge_ptr[i], together.edge_ptr[i + 1])
        np.testing.assert_array_equal(together.pos[nodes], alone.pos)
        np.testing.assert_array_equal(together.atom_type[nodes], alone.atom_types)
        np.testing.assert_array_equal(together.node_label[nodes], label(smiles[i])[1])
        np.testing.assert_array_equal(together.edge_index[:, edge], alone.bonds[:2])
        np.testing.assert_array_equal(together.bond_type[edge], alone.bonds[2])


@pytest.mark.usefixtures("rdkit")
def test_an_empty_set_has_its_shapes():
    made, failures = build_synmol([])
    empty = SimpleNamespace(**made)
    assert len(empty.y) == 0
    assert not failures
    assert empty.pos.shape == (0, 3)
    assert empty.edge_index.shape == (2, 0)
    assert empty.node_ptr.tolist() == [0]


def test_tables_are_read_and_broken_ones_named():
    assert read_smiles("mol_id,smiles,label\na,CCO,1\nb,CC,0\n", "t.csv") == ["CCO", "CC"]
    with pytest.raises(ValueError, match=r"t\.csv, line 3, column 'smiles': empty"):
        read_smiles("mol_id,smiles\na,CCO\nb\n", "t.csv")
    with pytest.raises(ValueError, match="no column 'mol_id'"):
        read_smiles("name,smiles\na,CCO\n", "t.csv")


# --- the published molecules -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synmol():
    pytest.importorskip("rdkit")
    folder = Path(os.environ.get("DIFFORMER_DATA", "")) / "synmol"
    if not os.environ.get("DIFFORMER_DATA") or not (folder / "synmol.npz").exists():
        pytest.skip("set DIFFORMER_DATA to a folder with synmol/synmol.npz and synmol/logic8_smiles.csv")
    with np.load(folder / "synmol.npz", allow_pickle=False) as file:
        arrays = dict(file)
    table = folder / "logic8_smiles.csv"
    return read_smiles(table.read_text(), table), arrays


def test_every_published_label_follows_the_rule(synmol):
    """All 8671 labels, and all 185,198 atoms."""
    smiles, data = synmol
    labels = [label(text) for text in smiles]
    np.testing.assert_array_equal([y for y, _ in labels], data["y"])
    np.testing.assert_array_equal(np.concatenate([atoms for _, atoms in labels]), data["node_label"])


def check_against(data, smiles, chosen):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, failures = build_synmol([smiles[i] for i in chosen], workers=2)
    built = SimpleNamespace(**made, failures=failures)
    nodes = np.concatenate([np.arange(*data["node_ptr"][i : i + 2]) for i in chosen])
    edge = np.concatenate([np.arange(*data["edge_ptr"][i : i + 2]) for i in chosen])
    np.testing.assert_array_equal(built.has_pos, data["has_pos"][chosen])
    np.testing.assert_array_equal(built.atom_type, data["atom_type"][nodes])
    np.testing.assert_array_equal(built.edge_index, data["edge_index"][:, edge])
    np.testing.assert_array_equal(built.bond_type, data["bond_type"][edge])
    np.testing.assert_array_equal(built.node_label, data["node_label"][nodes])
    np.testing.assert_array_equal(built.y, data["y"][chosen])
    return built, nodes


RELEASE_OF_POSITIONS = "2026.09.1"  # others embed with other random numbers and find other conformers


def bond_lengths(pos, node_ptr, edge_ptr, edge_index):
    source, target = edge_index + np.repeat(node_ptr[:-1], np.diff(edge_ptr))
    return np.linalg.norm(pos[source] - pos[target], axis=1)


def check_positions(built, data, nodes):
    import rdkit

    published = data["pos"][nodes]
    if rdkit.__version__ == RELEASE_OF_POSITIONS:
        np.testing.assert_allclose(built.pos, published, atol=1e-4)
    structure = (built.node_ptr, built.edge_ptr, built.edge_index)
    np.testing.assert_allclose(bond_lengths(built.pos, *structure), bond_lengths(published, *structure), atol=0.05)


def test_a_sample_of_published_molecules_is_rebuilt(synmol):
    smiles, data = synmol
    chosen = np.append(np.random.default_rng(0).choice(len(smiles), 30, replace=False), [1571, 7263])
    built, nodes = check_against(data, smiles, chosen)
    assert np.flatnonzero(~built.has_pos).tolist() == [30, 31]
    assert [error.stage for error in built.failures] == ["force field", "embedding"]
    check_positions(built, data, nodes)


FAILING = [1571, 3458, 7261, 7263, 7278, 8129]


@pytest.mark.slow
def test_a_tenth_of_the_published_molecules_is_rebuilt(synmol):
    smiles, data = synmol
    chosen = np.unique(np.append(np.arange(0, len(smiles), 10), FAILING))
    built, nodes = check_against(data, smiles, chosen)
    assert chosen[~built.has_pos].tolist() == FAILING
    check_positions(built, data, nodes)
