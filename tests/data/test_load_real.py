"""Every data set there is a file of: sizes, splits and preprocessing against what is known of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from difformer.data import ENTRIES, DataError, DownloadError, dataset_options, list_datasets, load, load_images
from difformer.data.catalogue import FORMS
from difformer.data.datasets.common import csr_of
from difformer.data.datasets.planetoid import Planetoid
from difformer.data.datasets.temporal import period_scale
from difformer.data.download import find

# Nodes, undirected edges, features, classes.
GRAPHS = {
    "cora": (2708, 5278, 1433, 7),
    "citeseer": (3327, 4552, 3703, 6),
    "pubmed": (19717, 44324, 500, 3),
    "chameleon": (890, 8854, 2325, 5),
    "squirrel": (2223, 46998, 2089, 5),
    "chameleon-unfiltered": (2277, 31371, 2325, 5),
    "squirrel-unfiltered": (5201, 198353, 2089, 5),
    "actor": (7600, 26659, 932, 5),
    "amazon-photo": (7650, 119081, 745, 8),
    "amazon-computers": (13752, 245861, 767, 10),
    "coauthor-cs": (18333, 81894, 6805, 15),
    "coauthor-physics": (34493, 247962, 8415, 5),
    "facebook100-reed98": (962, 18812, 745, 2),
    "facebook100-johnshopkins55": (5180, 186586, 2406, 2),
    "facebook100-cornell5": (18660, 790777, 4735, 2),
    "deezer-europe": (28281, 92752, 31241, 2),
}
CITATIONS = ("cora", "citeseer", "pubmed")


def real(folder, name, **options):
    if find(name, folder) is None:
        pytest.skip(f"no files of {name}")
    return load(name, folder, **options)


def rows_of(x):
    return x.to_dense() if x.layout == torch.sparse_csr else x


@pytest.mark.parametrize("name", GRAPHS)
def test_real_graphs_have_their_published_sizes(real_data, name):
    few = {"num_splits": 2} if "num_splits" in dataset_options(name) else {}
    task = real(real_data, name, **few)
    nodes, edges, features, classes = GRAPHS[name]
    assert (task.num_nodes, task.num_features, task.num_outputs) == (nodes, features, classes)
    assert task.num_edges == 2 * edges + nodes  # both directions, and a loop a node
    source, target = task.edge_index
    assert int((source == target).sum()) == nodes
    code, mirrored = source * nodes + target, target * nodes + source
    assert code.unique().numel() == code.numel()
    assert torch.equal(code, mirrored.sort().values)
    one = ENTRIES[name]
    assert (one.nodes, one.edges, one.features, one.outputs) == (nodes, edges, features, classes)
    assert int(task.y.max()) == classes - 1
    assert len(task.splits) == (few.get("num_splits") or 10)
    assert task.protocol.startswith(one.protocols[0])
    if name not in ("deezer-europe",) and not name.startswith("facebook"):
        values = task.x.values() if task.x.layout == torch.sparse_csr else task.x
        assert values.min() >= 0
        total = torch.sparse.sum(task.x.to_sparse_coo(), 1).to_dense() if task.x.is_sparse_csr else task.x.sum(1)
        assert ((total - 1).abs() < 1e-5).logical_or(total == 0).all()


@pytest.mark.parametrize("name", CITATIONS)
def test_the_authors_split_is_the_published_one(real_data, name):
    task = real(real_data, name, protocol="authors")
    path = real_data / "splits" / f"{name}_authors_split.npz"
    if not path.exists():
        pytest.skip("no file with the split")
    published = np.load(path)
    (split,) = task.splits
    for part, key in (("train", "train_idx"), ("valid", "val_idx"), ("test", "test_idx")):
        assert sorted(split.parts()[part].tolist()) == sorted(published[key].tolist())
    (only,) = real(real_data, name, protocol="public-code").splits  # one split for all runs
    first, second = real(real_data, name, protocol="public-code", num_splits=2).splits
    assert torch.equal(only.test, split.test)
    assert torch.equal(first.test, split.test)
    assert not second.same_as(first)


@pytest.mark.parametrize("name", CITATIONS)
def test_citation_protocols(real_data, name):
    classes = GRAPHS[name][3]
    for protocol, count in (("random", 3), ("public", 1), ("public-code", 3)):
        options = {} if protocol == "public" else {"num_splits": 3}
        task = real(real_data, name, protocol=protocol, **options)
        assert len(task.splits) == count
        for split in task.splits:
            assert split.sizes() == (20 * classes, 500, 1000)
            assert torch.bincount(task.y[split.train]).tolist() == [20] * classes


def test_citeseers_nodes_without_features_are_drawn_by_the_public_code_alone(real_data):
    def drawn(protocol):
        task = real(real_data, "citeseer", protocol=protocol, sparse=False)
        bare = (task.x.sum(1) == 0).nonzero().flatten()
        assert bare.numel() == 15
        everything = torch.cat([torch.cat(list(split.parts().values())) for split in task.splits])
        return int(torch.isin(everything, bare).sum()), " ".join(task.notes)

    assert drawn("random") == (0, "15 nodes have no features; they are in no split.")
    assert drawn("public")[0] == 0
    assert drawn("authors")[0] == 9
    assert drawn("public-code")[0] == 9
    assert "9 of them are in the splits" in drawn("authors")[1]


@pytest.mark.parametrize("name", CITATIONS)
def test_raw_files_give_the_same_arrays(real_data, name):
    found = find(name, real_data, forms=("raw",))
    if found is None or not (real_data / "planetoid" / f"{name}.npz").exists():
        pytest.skip("one of the two forms is absent")
    raw, prepared = Planetoid(name).read(found), np.load(real_data / "planetoid" / f"{name}.npz")
    assert (csr_of(raw) != csr_of(prepared)).nnz == 0
    assert (raw["y"] == prepared["y"]).all()
    assert {tuple(e) for e in raw["edge_index"].T.tolist()} == {tuple(e) for e in prepared["edge_index"].T.tolist()}
    for part in ("train_idx", "val_idx", "test_idx"):
        assert sorted(raw[part].tolist()) == sorted(prepared[part].tolist())


def test_raw_files_load_from_a_folder_that_has_nothing_else(real_data, tmp_path, monkeypatch):
    if find("cora", real_data, forms=("raw",)) is None:
        pytest.skip("no raw files")
    (tmp_path / "planetoid").mkdir()
    (tmp_path / "planetoid" / "Cora").symlink_to(real_data / "planetoid" / "Cora")
    expected = load("cora", real_data, protocol="public")
    monkeypatch.delenv("DIFFORMER_DATA")
    before = sorted(real_data.rglob("*"))
    task = load("cora", tmp_path, protocol="public")
    assert torch.equal(rows_of(task.x), rows_of(expected.x))
    assert torch.equal(task.edge_index, expected.edge_index)
    assert sorted(real_data.rglob("*")) == before


def test_genders_that_are_unknown(real_data):
    task = real(real_data, "facebook100-reed98")
    unknown = task.y == -1
    assert 0 < int(unknown.sum()) < 200
    for split in task.splits:
        assert sum(split.sizes()) == int((~unknown).sum())
    assert (rows_of(task.x).sum(1) == 6).all()  # one value of each of six columns


def test_chickenpox_has_its_published_sizes(real_data):
    task = real(real_data, "chickenpox")
    assert task.x.shape == (517, 20, 4)
    assert task.splits[0].sizes() == (103, 103, 311)
    assert task.num_edges == 102
    assert ENTRIES["chickenpox"].edges == (102 - 20) // 2  # both directions and a loop a node are listed
    assert task.edge_weight is None
    assert task.instance_names[:2] == ("BACS", "BARANYA")
    public = real(real_data, "chickenpox", protocol="public-code")
    published = torch.tensor(json.loads((real_data / "temporal" / "chickenpox.json").read_text())["FX"])
    torch.testing.assert_close(public.y, published[4:].float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(public.x[7], published[7:11].T.float(), rtol=1e-4, atol=1e-5)
    # The training part, and it alone, has mean zero and deviation one: 103 targets and the four weeks before the first.
    seen = torch.cat([task.x[0].T, task.y[:103]])
    torch.testing.assert_close(seen.mean(0), torch.zeros(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, unbiased=False), torch.ones(20), atol=1e-5, rtol=0)
    scale = period_scale("chickenpox", real_data, lags=4)
    back = (task.y - task.y[0]) * scale
    torch.testing.assert_close(back, public.y - public.y[0], rtol=1e-3, atol=1e-4)


def test_zero_everywhere_scores_what_is_known_of_the_public_code(real_data):
    """Its metric on Chickenpox's and Covid's test part, for a prediction of zero, is 0.9243 and 0.8197."""
    for name, known in (("chickenpox", 0.9243), ("covid", 0.8197)):
        task = real(real_data, name, protocol="public-code")
        assert task.y[task.splits[0].test].square().mean().item() == pytest.approx(known, abs=1e-4)


def test_covid_has_its_published_sizes_and_edges(real_data):
    task = real(real_data, "covid")
    assert task.x.shape == (53, 129, 8)
    assert task.splits[0].sizes() == (10, 10, 33)
    assert len(task.edge_index) == len(task.edge_weight) == 53
    content = json.loads((real_data / "temporal" / "england_covid.json").read_text())
    mapping = content["edge_mapping"]
    assert task.edge_index[5].t().tolist() == mapping["edge_index"]["5"]
    assert task.edge_weight[5].tolist() == mapping["edge_weight"]["5"]
    cases = np.array(content["y"])
    train = 10 + 8
    z = (cases - cases[:train].mean(0)) / np.where(cases[:train].std(0) > 0, cases[:train].std(0), 1)
    torch.testing.assert_close(task.y, torch.tensor(z[8:]).float(), rtol=1e-4, atol=1e-4)


def test_twenty_news_reproduces_the_published_features(real_data):
    if find("20news", real_data, forms=("text",)) is None:
        pytest.skip("no text")
    task = load("20news", real_data, num_splits=2)
    assert (task.num_instances, task.num_features, task.num_outputs) == (9607, 236, 10)
    assert task.x.layout == torch.strided
    assert task.splits[0].sizes() == (1000, 1000, 7607)
    path = real_data / "20news" / "20news10_features.npz"
    if path.exists():
        known = np.load(path)
        matrix = csr_of({f"x_{key}": known[name] for key, name in _NAMES.items()})
        torch.testing.assert_close(task.x, torch.tensor(matrix.toarray()), rtol=1e-6, atol=1e-7)
        assert task.y.tolist() == known["y"].tolist()
        assert list(task.feature_names) == known["vocabulary"].tolist()
        assert list(task.class_names) == known["class_names"].tolist()


_NAMES = {"data": "tfidf_data", "indices": "indices", "indptr": "indptr", "shape": "shape"}


def test_cifar10_features_have_their_sizes_and_splits(real_data):
    task = real(real_data, "cifar10", per_class=10)
    assert (task.num_instances, task.num_features, task.num_outputs) == (15000, 512, 10)
    assert task.splits[0].sizes() == (100, 1000, 13900)
    assert len(task.splits) == 5
    assert torch.bincount(task.y).tolist() == [1500] * 10
    images, labels = load_images("cifar10", real_data)
    assert images.shape == (15000, 32, 32, 3)
    assert labels.tolist() == task.y.tolist()
    pixels = load("cifar10", real_data, features="pixels", num_splits=1)
    assert pixels.num_features == 3072
    assert "pixels" in pixels.protocol
    assert "SimCLR" in task.protocol


def test_synmol_has_its_published_sizes(real_data):
    task = real(real_data, "synmol")
    assert task.num_instances == 8665
    assert task.num_features == 17
    assert len(task.splits) == 3
    assert task.splits[0].sizes() == (866, 866, 6933)
    assert task.y.mean().item() == pytest.approx(0.176, abs=0.001)
    assert task.node_ptr.diff().float().mean().item() == pytest.approx(21.36, abs=0.01)
    assert (task.x[:, :14].sum(1) == 1).all()
    assert task.x.isfinite().all()
    size = task.node_ptr.diff()
    assert task.num_edges == int((size * size.clamp(max=5)).sum())


def test_synmols_published_split(real_data):
    task = real(real_data, "synmol", protocol="lri", num_splits=1)
    train, valid, test = task.splits[0].sizes()
    assert sum((train, valid, test)) == 8665
    assert valid in range(994, 1001)
    assert test in range(912, 919)
    public = real(real_data, "synmol", protocol="public-code", num_splits=1)
    assert public.num_features == 4
    assert public.x[:, 0].long().tolist() == task.x[:, :14].argmax(1).tolist()
    assert torch.equal(public.splits[0].valid, task.splits[0].valid)


def test_what_is_listed_as_here_is_here_and_what_is_not_would_be_downloaded(real_data):
    absent = 0
    for one in list_datasets(real_data):
        if one.place is None:
            absent += 1
            with pytest.raises(DataError if one.lacks else DownloadError, match=f"data set '{one.entry.name}'"):
                load(one.entry.name, real_data)
        elif one.place != "built in":
            files = {file.name for form in FORMS[one.entry.name] for file in form.files}
            assert files & {path.name for path in Path(one.place).iterdir()}
    assert absent < len(FORMS)


def test_a_task_is_the_same_each_time(real_data):
    assert real(real_data, "cora").fingerprint() == real(real_data, "cora").fingerprint()
    assert real(real_data, "cora", seed=1).fingerprint() != real(real_data, "cora").fingerprint()
