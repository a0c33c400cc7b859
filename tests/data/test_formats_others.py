"""Readers of the other published files, on small ones in the very same format."""

import io
import pickle
from collections import defaultdict

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from published_files import csv, tarred, undirected, write, zipped

from difformer.data import DataError, load
from difformer.data.datasets.common import csr_of
from difformer.data.datasets.instances import GROUPS, published_order, tfidf
from difformer.data.datasets.planetoid import Planetoid
from difformer.data.download import locate


class TestOtherPublishedFiles:
    def test_deezer(self, cache, tmp_path):
        members = {
            "deezer_europe/deezer_europe_edges.csv": b"node_1,node_2\n0,1\n1,2\n2,1\n",
            "deezer_europe/deezer_europe_features.json": b'{"0": [3, 1], "1": [], "3": [0, 0], "2": [4]}',
            "deezer_europe/deezer_europe_target.csv": b"id,target\n0,0\n1,1\n3,1\n2,0\n",
        }
        write(tmp_path / "deezer_europe" / "deezer_europe.zip", zipped(members))
        task = load("deezer-europe", tmp_path, sparse=False, self_loops=False)
        assert task.x.tolist() == [[0, 1, 0, 1, 0], [0] * 5, [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
        assert task.y.tolist() == [0, 1, 0, 1]
        assert undirected(task.edge_index) == {(0, 1), (1, 2)}

    def test_facebook(self, cache, tmp_path):
        rng = np.random.default_rng(0)
        links = sp.csc_matrix(np.triu(rng.integers(0, 2, (30, 30)), 1))
        profile = rng.integers(0, 4, (30, 7)).astype(float)
        profile[:, 1] = rng.integers(0, 3, 30)
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, {"A": links + links.T, "local_info": profile})
        write(tmp_path / "facebook100" / "Amherst41.mat", buffer.getvalue())
        task = load("Amherst41", tmp_path, sparse=False)
        assert task.name == "facebook100-amherst41"
        assert task.y.tolist() == (profile[:, 1] - 1).astype(int).tolist()
        assert task.num_features == sum(len(np.unique(profile[:, c])) for c in (0, 2, 3, 4, 5, 6))
        assert (task.x.sum(1) == 6).all()
        same = (profile[:, None, [0, 2, 3, 4, 5, 6]] == profile[None, :, [0, 2, 3, 4, 5, 6]]).sum(-1)
        assert (task.x @ task.x.T == torch.tensor(same)).all()
        assert task.num_edges == 2 * links.nnz + 30

    @pytest.mark.parametrize("shape", [(30,), (30, 1), (0, 7)])
    def test_facebook_profiles_that_are_no_table_are_refused(self, cache, tmp_path, shape):
        (tmp_path / "facebook100").mkdir()
        edges = np.zeros((2, 0), np.int64)
        np.savez(tmp_path / "facebook100" / "Reed98.npz", metadata=np.zeros(shape, np.int64), edge_index=edges)
        with pytest.raises(DataError, match=r"Reed98\.npz: profiles must have 7 columns, got int64 of shape"):
            load("reed98", tmp_path)

    def test_gnn_benchmark(self, cache, tmp_path):
        rng = np.random.default_rng(0)
        n = 150
        words = sp.random(n, 20, 0.4, format="csr", random_state=0)
        words.data[:] = rng.integers(1, 5, words.nnz)
        links = sp.random(n, n, 0.05, format="csr", random_state=1)
        links.setdiag(1)
        links = links.tocsr()
        arrays = {"labels": np.arange(n) % 2}
        for part, matrix in (("attr", words), ("adj", links)):
            arrays |= {f"{part}_{key}": getattr(matrix, key) for key in ("data", "indices", "indptr")}
            arrays[f"{part}_shape"] = np.array(matrix.shape)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write(tmp_path / "gnn_benchmark" / "ms_academic_cs.npz", buffer.getvalue())
        task = load("coauthor-cs", tmp_path, num_splits=2)
        binary = (words.toarray() > 0).astype(float)
        torch.testing.assert_close(task.x, torch.tensor(binary / binary.sum(1, keepdims=True)).float())
        wanted = {tuple(sorted(e)) for e in zip(*links.nonzero(), strict=True) if e[0] != e[1]}
        assert undirected(task.edge_index) == {(int(a), int(b)) for a, b in wanted}
        split = task.splits[0]
        assert torch.bincount(task.y[split.train]).tolist() == [20, 20]
        assert torch.bincount(task.y[split.valid]).tolist() == [30, 30]
        assert sum(split.sizes()) == n

    def test_twenty_news(self, cache, tmp_path):
        rng = np.random.default_rng(0)
        vocabulary = np.array(["apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel"])
        groups = [*GROUPS, "comp.graphics"]
        posts = {}
        for part in ("train", "test"):
            for group in groups:
                for number in rng.choice(90000, 30, replace=False):
                    text = " ".join(rng.choice(vocabulary, 4)) + " caf\xe9"
                    posts[f"20news-bydate-{part}/{group}/{number}"] = text
        members = {name: text.encode("latin1") for name, text in posts.items()}
        write(tmp_path / "20news" / "20news-bydate.tar.gz", tarred(members))
        from difformer.data.datasets import instances

        with pytest.MonkeyPatch.context() as patch:
            split = instances.per_class_split
            patch.setattr(instances, "per_class_split", lambda y, **k: split(y, **{**k, "num_valid": 50}))
            task = load("20news", tmp_path, per_class=5)
        names = {part: [n.partition("/")[2] for n in posts if f"-{part}/" in n] for part in ("train", "test")}
        order = published_order(names)
        assert len(order) == task.num_instances == 600
        ordered = [posts[f"20news-bydate-{part}/{name}"] for part, name in order]
        assert task.y.tolist() == [GROUPS.index(name.split("/")[0]) for _, name in order]
        assert set(task.feature_names) == {*vocabulary, "café"}
        row = np.array([ordered[0].split().count(word) for word in task.feature_names], dtype=float)
        frequency = np.array([sum(word in text for text in ordered) for word in task.feature_names])
        row *= np.log(600 / frequency) + 1
        torch.testing.assert_close(task.x[0], torch.tensor(row / np.linalg.norm(row)).float())

    def test_the_order_of_twenty_news_is_that_of_scikit_learn(self, tmp_path):
        """scikit-learn reads its cache, which we write; then nothing is downloaded."""
        import codecs

        from sklearn.datasets import fetch_20newsgroups, load_files

        rng = np.random.default_rng(0)
        groups = [*GROUPS, "comp.graphics", "zzz.last"]
        names = {"train": [], "test": []}
        for part, listed in names.items():
            for group in groups:
                for number in rng.choice(90000, 12, replace=False):
                    listed.append(f"{group}/{number}")
                    write(tmp_path / part / group / str(number), f"{part} {group} {number}".encode())
        content = {part: load_files(str(tmp_path / part), encoding="latin1") for part in names}
        packed = codecs.encode(pickle.dumps(content), "zlib_codec")
        from sklearn.datasets import _twenty_newsgroups

        write(tmp_path / "home" / getattr(_twenty_newsgroups, "CACHE_NAME", "20news-bydate_py3.pkz"), packed)
        (found,) = (tmp_path / "home").iterdir()
        found.rename(found.with_name("20news-bydate_py3.pkz"))
        bunch = fetch_20newsgroups(
            data_home=str(tmp_path / "home"), subset="all", categories=list(GROUPS), download_if_missing=False
        )
        mine = [f"{part} {name.replace('/', ' ')}" for part, name in published_order(names)]
        assert mine == list(bunch.data)

    def test_words_below_five_percent_are_left_out(self):
        arrays = tfidf([("apples pears", 0)] + [("apples", 0)] * 39)
        assert arrays["vocabulary"].tolist() == ["apples"]

    def synmol(self, folder, count):
        smiles = ["CCCC(=O)C", "c1ccccc1", "CCCCO", "CC(=O)CCC", "C1CCCCC1"] * (count // 5)
        table = "mol_id,smiles,label\n" + "".join(f"m{i},{text},0\n" for i, text in enumerate(smiles))
        buffer = io.BytesIO()
        np.savez(buffer, train_index=np.arange(count - 10), test_index=np.arange(count - 10, count))
        members = {"raw/logic8_smiles.csv": table.encode(), "raw/logic8_traintest_indices.npz": buffer.getvalue()}
        write(folder / "synmol" / "synmol_raw.zip", zipped(members))
        return load("synmol", folder, num_splits=1)

    def test_synmol_from_a_few_smiles(self, cache, tmp_path):
        pytest.importorskip("rdkit")
        task = self.synmol(tmp_path, 20)
        assert task.y.flatten().tolist() == [1, 0, 0, 1, 0] * 4
        assert task.node_ptr.diff().tolist() == [6, 6, 5, 6, 6] * 4
        assert task.num_features == 17
        assert (task.x[:, :14].sum(1) == 1).all()
        assert (task.edge_index[0] == task.edge_index[1]).sum() == task.num_nodes


class TestPlanetoid:
    """The eight files of a citation graph: nodes 0-4 described in allx, 5-8 in tx, 7 by nobody."""

    def put(self, folder, *, test=(8, 5, 6), neighbours=9):
        def onehot(labels):
            return np.eye(2)[list(labels)]

        parts = {
            "x": sp.csr_matrix(np.eye(9)[:2]),
            "y": onehot([0, 1]),
            "allx": sp.csr_matrix(np.eye(9)[:5]),
            "ally": onehot([0, 1, 0, 1, 0]),
            "tx": sp.csr_matrix(np.eye(9)[[8, 5, 6]]),
            "ty": onehot([1, 0, 1]),
            "graph": defaultdict(list, {i: [(i + 1) % neighbours] for i in range(neighbours)}),
        }
        for name, part in parts.items():
            write(folder / "planetoid" / "Cora" / "raw" / f"ind.cora.{name}", pickle.dumps(part, protocol=2))
        write(folder / "planetoid" / "Cora" / "raw" / "ind.cora.test.index", csv(test))

    def test_rows_find_their_nodes(self, cache, tmp_path):
        self.put(tmp_path)
        read = Planetoid("cora").read(locate("cora", tmp_path))
        words = csr_of(read).toarray()
        assert (words[[8, 5, 6]] == np.eye(9)[[8, 5, 6]]).all()
        assert not words[7].any()
        assert read["y"].tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1]
        assert read["test_idx"].tolist() == [5, 6, 8]
        assert read["edge_index"].shape == (2, 9)

    def test_a_matrix_that_points_outside_itself_ends_no_process(self, cache, tmp_path):
        self.put(tmp_path)
        matrix = sp.csr_matrix(np.eye(9)[:5])
        matrix.indices[2] = 2**30
        write(tmp_path / "planetoid" / "Cora" / "raw" / "ind.cora.allx", pickle.dumps(matrix, protocol=2))
        with pytest.raises(
            DataError, match=r"ind\.cora\.\S+: is not a pickle that can be read .*indices must be < 9.*data set 'cora'"
        ):
            load("cora", tmp_path)

    @pytest.mark.parametrize("test", [(8, 5, 60_000_000_000), (8, 5, 2)])
    def test_a_wrong_number_asks_for_no_memory(self, cache, tmp_path, test):
        self.put(tmp_path, test=test)
        with pytest.raises(DataError, match=r"ind\.cora\.test\.index: test nodes .* in a graph of 9.*data set 'cora'"):
            load("cora", tmp_path)
