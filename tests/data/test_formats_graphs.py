"""Readers of the large graphs, on small files in the very same format."""

import gzip
import io

import numpy as np
import pytest
import scipy.io
import torch
from published_files import csv, undirected, write, zipped

from difformer.data import DataError, load
from difformer.data.catalogue import FORMS


class TestProteins:
    N, E = 12, 30

    def members(self, seed=0):
        rng = np.random.default_rng(seed)
        pairs = np.array([(i, j) for i in range(self.N - 1) for j in range(i + 1, self.N - 1)])  # node 11 has no edge
        edges = rng.permutation(pairs)[: self.E]
        scores = rng.integers(0, 1000, (self.E, 8)) / 1000
        labels = rng.integers(0, 2, (self.N, 112))
        order = rng.permutation(self.N)
        content = {
            "raw/edge.csv.gz": csv(edges),
            "raw/edge-feat.csv.gz": csv(scores),
            "raw/num-node-list.csv.gz": csv([self.N]),
            "raw/num-edge-list.csv.gz": csv([self.E]),
            "raw/node_species.csv.gz": csv(rng.choice([3702, 9606], self.N)),
            "raw/node-label.csv.gz": csv(labels),
            "split/species/train.csv.gz": csv(order[:6]),
            "split/species/valid.csv.gz": csv(order[6:9]),
            "split/species/test.csv.gz": csv(order[9:]),
        }
        return content, edges, scores, labels, order

    def put(self, folder, content, form):
        packed = {name: gzip.compress(text) for name, text in content.items()}
        if form == "zip":
            members = {f"proteins/{name}": data for name, data in packed.items()} | {"proteins/RELEASE_v1.txt": b""}
            write(folder / "ogbn_proteins" / "proteins.zip", zipped(members))
        else:
            for name, data in packed.items():
                write(folder / "ogbn_proteins" / name, data)

    @pytest.mark.parametrize("form", ["zip", "folder"])
    def test_tables(self, cache, tmp_path, form, monkeypatch):
        monkeypatch.setattr("difformer.data.archives.BLOCK_BYTES", 64)  # so that blocks end inside the small files
        content, edges, scores, labels, order = self.members()
        assert set(content) == {file.path.partition("/")[2] for file in FORMS["ogbn-proteins"][0].files}
        self.put(tmp_path, content, form)
        task = load("ogbn-proteins", tmp_path, self_loops=False)
        assert (task.problem, task.metric, task.num_outputs) == ("multilabel", "rocauc", 112)
        assert undirected(task.edge_index) == {tuple(sorted(edge)) for edge in edges.tolist()}
        assert task.num_edges == 2 * self.E
        for node in range(self.N):
            mine = scores[(edges == node).any(axis=1)]
            expected = mine.mean(axis=0) if len(mine) else np.zeros(8)
            torch.testing.assert_close(task.x[node], torch.tensor(expected).float())
        assert (task.y == torch.tensor(labels)).all()
        assert task.splits[0].train.tolist() == order[:6].tolist()
        assert task.splits[0].sizes() == (6, 3, 3)

    @pytest.mark.parametrize(
        ("member", "text", "complaint"),
        [
            ("raw/edge.csv.gz", b"0,1\n2,x\n", "line 2, column 2: expected a number, got 'x'"),
            ("raw/edge.csv.gz", b"0,1\n2,12\n" * 15, r"line 2: edge \(2, 12\) names a node outside 0 … 11"),
            ("raw/edge.csv.gz", b"0,1\n" * 29, "different numbers of lines"),
            ("raw/edge-feat.csv.gz", b"1,2,3\n" * 30, "expected 8 numbers, got 3"),
            ("raw/num-node-list.csv.gz", b"", "num-node-list.csv.gz: empty"),
            ("raw/num-edge-list.csv.gz", b"31\n", "30 edges, but num-edge-list announces 31"),
            ("raw/num-edge-list.csv.gz", b"29\n", "30 edges, but num-edge-list announces 29"),
        ],
    )
    def test_broken_tables(self, cache, tmp_path, member, text, complaint):
        content = self.members()[0] | {member: text}
        self.put(tmp_path, content, "zip")
        with pytest.raises(DataError, match=complaint):
            load("ogbn-proteins", tmp_path)
        assert not list(cache.rglob("*.npz"))


class TestPokec:
    def test_file_of_linkx(self, cache, tmp_path):
        rng = np.random.default_rng(0)
        n, edges = 40, rng.integers(0, 40, (2, 100))
        label = np.r_[-1, np.arange(39) % 2]
        x = rng.normal(size=(n, 65))
        content = {"edge_index": edges, "node_feat": x, "label": label[None], "num_nodes": np.array([[n]])}
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, content)
        write(tmp_path / "pokec" / "pokec.mat", buffer.getvalue())
        task = load("pokec", tmp_path, protocol="public-code", num_splits=2, seed=5)
        assert task.num_features == 65
        torch.testing.assert_close(task.x, torch.tensor(x).float())
        assert task.y.tolist() == label.tolist()
        assert undirected(task.edge_index) == {tuple(sorted(e)) for e in edges.T.tolist() if e[0] != e[1]}
        assert [split.sizes() for split in task.splits] == [(19, 9, 11)] * 2
        assert "50/25/25" in task.protocol
