"""Every reader of published files that tests cannot have, on small files in the very same format."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch

from difformer.data import DataError, DownloadError, load, load_images
from difformer.data.datasets.actstrack import COLUMNS, POSITION, Z_MASS
from difformer.data.datasets.pokec import NUM_TEXTS
from difformer.data.datasets.temporal import period_scale
from difformer.data.datasets.texts import GROUPS, published_order, tfidf
from difformer.data.features import hog_features, save_features, shrink_images
from difformer.data.sources import PROTEINS_MEMBERS, STL10_MEMBERS


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def csv(rows):
    return "".join(",".join(str(v) for v in np.atleast_1d(row)) + "\n" for row in rows).encode()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def undirected(edge_index):
    return {tuple(sorted(edge)) for edge in edge_index.t().tolist() if edge[0] != edge[1]}


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
        monkeypatch.setattr("difformer.data.textnumbers.BLOCK_BYTES", 64)  # so that blocks end inside the small files
        content, edges, scores, labels, order = self.members()
        assert set(content) == set(PROTEINS_MEMBERS)
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
            ("raw/num-edge-list.csv.gz", b"31\n", "30 edges, but num-edge-list announces 31"),
            ("raw/num-edge-list.csv.gz", b"29\n", "more than the 29 edges"),
        ],
    )
    def test_broken_tables(self, cache, tmp_path, member, text, complaint):
        content = self.members()[0] | {member: text}
        self.put(tmp_path, content, "zip")
        with pytest.raises(DataError, match=complaint):
            load("ogbn-proteins", tmp_path)
        assert not list(cache.rglob("*.npz"))


class TestPokec:
    def profile(self, user, *, gender="1", region="zilinsky kraj, cadca", age="26", filled=(), public="1"):
        texts = [f"text {i}" if i in filled else "null" for i in range(NUM_TEXTS)]
        fields = [
            str(user),
            public,
            "14",
            gender,
            region,
            "2012-05-25 11:20:00.0",
            "2005-04-03 00:00:00.0",
            age,
            *texts,
        ]
        return "\t".join(fields) + "\t\n"

    def snap(self, folder, profiles, relations):
        write(folder / "pokec" / "soc-pokec-profiles.txt.gz", gzip.compress("".join(profiles).encode()))
        write(folder / "pokec" / "soc-pokec-relationships.txt.gz", gzip.compress(relations))

    def test_tables_of_snap(self, cache, tmp_path):
        profiles = [
            self.profile(2, gender="0", filled=(0, 50)),
            self.profile(1, region="zahranicie, zahranicie - nemecko", age="0"),
            self.profile(4, gender="null", region="zahranicie, ina", public="0"),
            self.profile(3, gender="1"),
            *(self.profile(i, gender=str(i % 2)) for i in range(5, 31)),
        ]
        self.snap(tmp_path, profiles, b"1\t2\n2\t1\n3\t1\n4\t4\n")
        task = load("pokec", tmp_path)
        assert task.y[:4].tolist() == [1, 0, 1, -1]
        assert undirected(task.edge_index) == {(0, 1), (0, 2)}
        assert task.num_edges == 4 + 30
        assert task.num_features == 6 + 2 + NUM_TEXTS
        assert task.x[0, :4].tolist() == pytest.approx([1, 0.14, 0, 0])
        assert task.x[1, :4].tolist() == pytest.approx([1, 0.14, 0.26, 1])
        assert task.x[1, 4].item() == pytest.approx(5.25, abs=0.01)  # registered in April 2005
        assert task.x[:4, 6:8].tolist() == [[0, 1], [1, 0], [1, 0], [0, 1]]  # the more frequent region first
        assert task.x[1, 8:].nonzero().flatten().tolist() == [0, 50]
        assert task.splits[0].sizes() == (2, 2, 25)  # 10/10/80 of the 29 with a gender
        assert "paper: random 10/10/80" in task.protocol
        assert any("not those of the published figures" in note for note in task.notes)

    @pytest.mark.parametrize(
        ("profiles", "relations", "complaint"),
        [
            (["1\t1\t14\n"], b"1\t1\n", "line 1: expected 59 columns, got 3"),
            (None, b"1\t9\n", r"edge \(0, 8\) names a node outside 0 … 1"),
            (None, b"1\t2\n1\ttwo\n", "line 2, column 2: expected a number, got 'two'"),
        ],
    )
    def test_broken_tables(self, cache, tmp_path, profiles, relations, complaint):
        self.snap(tmp_path, profiles or [self.profile(1), self.profile(2)], relations)
        with pytest.raises(DataError, match=complaint):
            load("pokec", tmp_path)

    def test_users_must_be_numbered_throughout(self, cache, tmp_path):
        self.snap(tmp_path, [self.profile(1), self.profile(3)], b"1\t1\n")
        with pytest.raises(DataError, match="numbered 1 to 2"):
            load("pokec", tmp_path)

    def test_file_of_linkx(self, cache, tmp_path, monkeypatch):
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
        monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
        with pytest.raises(DownloadError, match=r"soc-pokec-profiles\.txt\.gz"):
            load("pokec", tmp_path, source="snap")


class TestSeries:
    def wikimath(self, folder, days=60, pages=6, seed=0):
        rng = np.random.default_rng(seed)
        visits = rng.poisson(50, (days, pages)).astype(float)
        edges = [[0, 1], [1, 2], [2, 0], [5, 5]]
        content = {
            "edges": edges,
            "weights": [3, 1, 2, 4],
            "time_periods": days,
            "node_ids": {f"p{i}": i for i in range(pages)},
        }
        content |= {str(day): {"index": day, "y": visits[day].tolist()} for day in range(days)}
        write(folder / "temporal" / "wikivital_mathematics.json", json.dumps(content).encode())
        return visits

    def test_lags_targets_and_graph(self, cache, tmp_path):
        visits = self.wikimath(tmp_path)
        task = load("wikimath", tmp_path, protocol="public-code")
        z = torch.tensor((visits - visits.mean(0)) / visits.std(0)).float()
        assert task.x.shape == (46, 6, 14)
        for t in (0, 17, 45):
            torch.testing.assert_close(task.x[t], z[t : t + 14].T)
            torch.testing.assert_close(task.y[t], z[t + 14])
        assert task.edge_index.t().tolist() == [[0, 1], [1, 2], [2, 0], [5, 5]]
        assert task.edge_weight.tolist() == [3, 1, 2, 4]
        assert task.splits[0].sizes() == (9, 9, 28)
        assert task.splits[0].train.tolist() == list(range(9))
        assert task.instance_names[2] == "p2"

    def test_statistics_come_from_the_training_part(self, cache, tmp_path):
        visits = self.wikimath(tmp_path)
        before = load("wikimath", tmp_path, lags=5)
        train = 11 + 5  # a fifth of 55 snapshots, and the lags
        z = (visits - visits[:train].mean(0)) / visits[:train].std(0)
        torch.testing.assert_close(before.y, torch.tensor(z[5:]).float())
        torch.testing.assert_close(before.y[:11].mean() * 11, torch.tensor(z[5:16].sum() / 6).float())
        # What happens later changes nothing before it.
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        content = json.loads(path.read_text())
        for day in range(train, 60):
            content[str(day)]["y"] = [1e6] * 6
        path.write_text(json.dumps(content))
        after = load("wikimath", tmp_path, lags=5)
        index = before.splits[0].train
        torch.testing.assert_close(after.x[index], before.x[index])
        torch.testing.assert_close(after.y[index], before.y[index])

    def test_errors_convert_between_protocols(self, cache, tmp_path):
        self.wikimath(tmp_path)
        paper, public = (load("wikimath", tmp_path, protocol=p) for p in ("paper", "public-code"))
        scale = period_scale("wikimath", tmp_path, lags=14)
        difference = (paper.y[3] - paper.y[20]) * scale
        torch.testing.assert_close(difference, public.y[3] - public.y[20], rtol=1e-4, atol=1e-5)

    def test_a_page_nobody_visits(self, cache, tmp_path):
        self.wikimath(tmp_path)
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        content = json.loads(path.read_text())
        for day in range(60):
            content[str(day)]["y"][2] = 7.0
        path.write_text(json.dumps(content))
        task = load("wikimath", tmp_path)
        assert task.y[:, 2].abs().max() == 0
        assert any("1 nodes do not change" in note for note in task.notes)

    def test_too_many_lags(self, cache, tmp_path):
        self.wikimath(tmp_path)
        with pytest.raises(ValueError, match="lags must lie between 1 and 55"):
            load("wikimath", tmp_path, lags=60)

    @pytest.mark.parametrize("content", [b"{", b'{"edges": []}', b"[1, 2]"])
    def test_broken_file(self, cache, tmp_path, content):
        write(tmp_path / "temporal" / "wikivital_mathematics.json", content)
        with pytest.raises(DataError, match="'wikimath' cannot be read"):
            load("wikimath", tmp_path)


class TestImages:
    def stl10(self, seed=0):
        rng = np.random.default_rng(seed)
        images = {
            part: rng.integers(0, 256, (n, 96, 96, 3), dtype=np.uint8) for part, n in (("train", 20), ("test", 30))
        }
        labels = {part: np.arange(len(pixels)) % 10 for part, pixels in images.items()}
        members = {}
        for part, pixels in images.items():
            members[f"{part}_X.bin"] = pixels.transpose(0, 3, 2, 1).tobytes()  # colour, column, row
            members[f"{part}_y.bin"] = (labels[part] + 1).astype(np.uint8).tobytes()
        return members, np.concatenate(list(images.values())), np.concatenate(list(labels.values()))

    @pytest.mark.parametrize("form", ["tar", "folder"])
    def test_binary_files_of_stl10(self, cache, tmp_path, form):
        members, images, labels = self.stl10()
        assert set(members) == set(STL10_MEMBERS)
        if form == "tar":
            extra = {"stl10_binary/class_names.txt": b"airplane\n", "stl10_binary/unlabeled_X.bin": b"\0" * 1000}
            inside = {f"stl10_binary/{name}": data for name, data in members.items()} | extra
            write(tmp_path / "stl10" / "stl10_binary.tar.gz", tarred(inside))
        else:
            for name, data in members.items():
                write(tmp_path / "stl10" / "stl10_binary" / name, data)
        read, classes = load_images("stl10", tmp_path)
        assert (read == images).all()
        assert (classes == labels).all()

    def test_features_that_are_absent_are_missed_before_anything_is_downloaded(self, cache, tmp_path, monkeypatch):
        monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
        with pytest.raises(DataError, match=r"needs stl10/stl10_simclr\.npz.*Train it") as caught:
            load("stl10", tmp_path)
        assert not isinstance(caught.value, DownloadError)
        with pytest.raises(DownloadError, match=r"stl10_binary\.tar\.gz"):
            load("stl10", tmp_path, features="pca")

    def test_features_of_stl10(self, cache, tmp_path, monkeypatch):
        members, images, labels = self.stl10()
        for name, data in members.items():
            write(tmp_path / "stl10" / "stl10_binary" / name, data)
        from difformer.data.datasets import images as module

        split = module.labels_per_class_split
        monkeypatch.setattr(module, "labels_per_class_split", lambda y, **k: split(y, **{**k, "num_valid": 10}))
        pixels = load("stl10", tmp_path, features="pixels", per_class=2, num_splits=1)
        assert pixels.x.shape == (50, 3 * 32 * 32)
        assert pixels.x.min() >= 0
        assert pixels.x.max() <= 1
        assert pixels.x[0].mean().item() == pytest.approx(images[0].mean() / 255, abs=0.01)
        assert load("stl10", tmp_path, features="pca", pca_dim=5, per_class=2).num_features == 5
        hog = load("stl10", tmp_path, features="hog", per_class=2)
        torch.testing.assert_close(hog.x, torch.tensor(hog_features(shrink_images(images, 32))))
        with pytest.raises(DataError, match=r"stl10/stl10_simclr\.npz"):
            load("stl10", tmp_path, per_class=2)
        features = np.random.default_rng(0).normal(size=(50, 512)).astype(np.float16)
        np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features)
        task = load("stl10", tmp_path, per_class=2, num_splits=2)
        torch.testing.assert_close(task.x, torch.tensor(features).float())
        assert task.y.tolist() == labels.tolist()
        save_features(tmp_path / "stl10" / "stl10_simclr.npz", features, method="pca")
        with pytest.raises(DataError, match="made by 'pca', not by SimCLR"):
            load("stl10", tmp_path, per_class=2)
        save_features(tmp_path / "stl10" / "stl10_simclr.npz", features, method="simclr", labels=labels[::-1])
        with pytest.raises(DataError, match="labels beside these features are others"):
            load("stl10", tmp_path, per_class=2)
        np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features[:49])
        with pytest.raises(DataError, match="49 rows of features for 50 images"):
            load("stl10", tmp_path, per_class=2)

    @pytest.mark.parametrize(
        ("name", "content", "complaint"),
        [
            ("train_X.bin", b"\0" * 100, "train_X.bin has 100 bytes"),
            ("test_y.bin", bytes(range(30)), "labels must lie between 1 and 10"),
        ],
    )
    def test_broken_files_of_stl10(self, cache, tmp_path, name, content, complaint):
        members = self.stl10()[0] | {name: content}
        for file, data in members.items():
            write(tmp_path / "stl10" / "stl10_binary" / file, data)
        with pytest.raises(DataError, match=complaint):
            load_images("stl10", tmp_path)

    def test_binary_files_of_cifar10(self, cache, tmp_path, monkeypatch):
        monkeypatch.setattr("difformer.data.datasets.image_files.PER_CLASS_KEPT", 3)
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
        labels = rng.integers(0, 10, 200)
        table = np.concatenate(
            [labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(200, -1)], axis=1
        )
        batches = {
            f"cifar-10-batches-bin/data_batch_{i + 1}.bin": table[40 * i : 40 * i + 40].tobytes() for i in range(5)
        }
        write(
            tmp_path / "cifar10" / "cifar-10-binary.tar.gz", tarred(batches | {"cifar-10-batches-bin/readme.html": b""})
        )
        read, classes = load_images("cifar10", tmp_path)
        kept = sorted(int(i) for c in range(10) for i in np.flatnonzero(labels == c)[:3])
        assert (read == images[kept]).all()
        assert classes.tolist() == labels[kept].tolist()

    def test_an_archive_without_the_files(self, cache, tmp_path):
        write(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", tarred({"other": b"x"}))
        with pytest.raises(DataError, match=r"holds no data_batch_1\.bin"):
            load_images("cifar10", tmp_path)


class TestActsTrack:
    """Events as published: particles at the start, something else, hits."""

    def event(self, rng, *, decay=False, tracks=14, charges=(1, -1), hits_of_decay=True):
        pd = pytest.importorskip("pandas")
        number = np.arange(100, 100 + tracks)
        kind, charge = np.full(tracks, 211), np.ones(tracks, dtype=int)
        momentum = rng.normal(size=(tracks, 3))
        if decay:  # back to back muons whose mass is the z boson's
            kind[:2], charge[:2] = (13, -13), charges
            momentum[:2] = [[Z_MASS / 2, 0, 0], [-Z_MASS / 2, 0, 0]]
        particles = {"particle_id": number, "particle_type": kind, "q": charge, "m": np.full(tracks, 0.1057)}
        particles |= {f"p{axis}": momentum[:, i] for i, axis in enumerate("xyz")}
        owner = np.repeat(number if hits_of_decay else number[2:], 3)
        hits = {"particle_id": owner} | {name: rng.normal(size=len(owner)) for name in (*POSITION, *COLUMNS)}
        return self.frame(pd, particles), None, self.frame(pd, hits)

    def frame(self, pd, columns):
        # Column names as Python strings, as every version of pandas pickled them when the data were published.
        table = pd.DataFrame(columns)
        table.columns = pd.Index(list(columns), dtype=object)
        return table

    def put(self, folder, signal, background, form="zip", protocol=4):
        files = {"signal_events_2T.pkl": signal, "bkg_events_2T.pkl": background}
        packed = {name: pickle.dumps(events, protocol=protocol) for name, events in files.items()}
        if form == "zip":
            members = {f"raw_2T/{name}": data for name, data in packed.items()}
            write(folder / "actstrack" / "actstrack_raw_2T.zip", zipped(members))
        else:
            for name, data in packed.items():
                write(folder / "actstrack" / "raw_2T" / name, data)

    @pytest.mark.parametrize(("form", "pickled"), [("zip", 4), ("folder", 2), ("folder", 5)])
    def test_raw_events(self, cache, tmp_path, form, pickled):
        rng = np.random.default_rng(0)
        signal = [self.event(rng, decay=True) for _ in range(8)]
        wrong = [
            self.event(rng, decay=True, charges=(1, 1)),  # charges agree
            self.event(rng, decay=True, hits_of_decay=False),  # the pair left no hit
            self.event(rng),  # no pair at all
        ]
        background = [self.event(rng) for _ in range(12)]
        self.put(tmp_path, signal + wrong, background, form, pickled)
        task = load("actstrack", tmp_path, num_splits=2)
        assert (task.kind, task.metric, task.problem, task.num_outputs) == ("graphs", "rocauc", "multilabel", 1)
        assert task.y.flatten().tolist() == [1.0] * 8 + [0.0] * 12
        assert task.num_features == 12
        assert task.splits[0].sizes() == (2, 2, 16)
        first = slice(int(task.node_ptr[0]), int(task.node_ptr[1]))
        hits = signal[0][2]
        published = torch.tensor(hits[[*COLUMNS, *POSITION]].to_numpy(dtype=np.float64)).float()
        mine = task.x[first]
        rows = [int((published == row).all(1).nonzero()[0]) for row in mine]
        assert rows == sorted(rows)
        owners = hits["particle_id"].to_numpy()[rows]
        assert {100, 101} <= set(owners.tolist())  # the decay is always kept, each track with all of its hits
        assert len(set(owners.tolist())) <= 10
        assert len(rows) == 3 * len(set(owners.tolist()))

    def test_neighbours_are_nearest_in_direction(self, cache, tmp_path):
        rng = np.random.default_rng(1)
        self.put(tmp_path, [self.event(rng, decay=True)], [self.event(rng) for _ in range(9)])
        task = load("actstrack", tmp_path, num_splits=1)
        direction = torch.nn.functional.normalize(task.x[:, 9:].double(), dim=1)
        for graph in (0, 4):
            start, end = task.node_ptr[graph], task.node_ptr[graph + 1]
            node = int(start) + 2
            nearest = (direction[start:end] - direction[node]).norm(dim=1).argsort()[:5] + start
            assert set(task.edge_index[0, task.edge_index[1] == node].tolist()) == set(nearest.tolist())

    def test_processed_file(self, cache, tmp_path):
        geometric = pytest.importorskip("torch_geometric.data")
        rng = np.random.default_rng(0)
        sizes = [4, 7, 5, 9, 6, 8, 5, 4, 6, 7]
        graphs = [
            geometric.Data(
                x=torch.tensor(rng.normal(size=(n, 9))).float(),
                pos=torch.tensor(rng.normal(size=(n, 3))).float(),
                y=torch.tensor([[float(i % 2)]]),
                node_label=torch.zeros(n),
                node_dir=torch.zeros(n, 3),
                num_tracks=3,
                track_ids=torch.zeros(n, dtype=torch.long),
                signal_im=-1,
            )
            for i, n in enumerate(sizes)
        ]
        collated = geometric.InMemoryDataset.collate(graphs)
        split = {"train": np.arange(7), "valid": np.array([7]), "test": np.array([8, 9])}
        buffer = io.BytesIO()
        torch.save((*collated, split), buffer)
        content = zipped({"processed_2T/data_2T.pt": buffer.getvalue()})
        write(tmp_path / "actstrack" / "actstrack_processed_2T.zip", content)
        task = load("actstrack", tmp_path, protocol="lri", num_splits=1)
        assert task.node_ptr.diff().tolist() == sizes
        torch.testing.assert_close(task.x[:, :9], torch.cat([graph.x for graph in graphs]))
        torch.testing.assert_close(task.x[:, 9:], torch.cat([graph.pos for graph in graphs]))
        assert task.y.flatten().tolist() == [i % 2 for i in range(10)]
        order = np.arange(10)
        np.random.RandomState(42).shuffle(order)
        assert task.splits[0].train.tolist() == order[:7].tolist()
        assert task.splits[0].sizes() == (7, 1, 2)

    def test_a_program_in_place_of_tensors_is_refused(self, cache, tmp_path):
        program = zipped({f"program/{name}": b"" for name in ("data.pkl", "constants.pkl", "version")})
        content = zipped({"processed_2T/data_2T.pt": program})
        write(tmp_path / "actstrack" / "actstrack_processed_2T.zip", content)
        with pytest.raises(DataError, match=r"processed_2T\.zip: is a TorchScript program"):
            load("actstrack", tmp_path)

    def test_a_pickle_that_would_run_something_is_refused(self, cache, tmp_path):
        class Foul:
            def __reduce__(self):
                return print, ("this must not be printed",)

        self.put(tmp_path, [(Foul(), None, Foul())], [])
        with pytest.raises(DataError, match=r"builtins\.print, which no data set here needs"):
            load("actstrack", tmp_path)


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
        from difformer.data.datasets import texts

        with pytest.MonkeyPatch.context() as patch:
            split = texts.labels_per_class_split
            patch.setattr(texts, "labels_per_class_split", lambda y, **k: split(y, **{**k, "num_valid": 50}))
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
        arrays = tfidf(["apples pears"] + ["apples"] * 39, [0] * 40)
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


class TestBrokenFiles:
    """A byte changed, lost or added anywhere: the data set still loads, or the error is about data."""

    # MATLAB files are left out: scipy reads them in C, and what it makes of a changed byte may end the process.
    FILES = ("proteins", "pokec", "wikimath", "stl10", "cifar10", "actstrack", "deezer")

    def write(self, kind, folder):
        if kind == "proteins":
            TestProteins().put(folder, TestProteins().members()[0], "zip")
            return "ogbn-proteins", "ogbn_proteins/proteins.zip"
        if kind == "pokec":
            maker = TestPokec()
            maker.snap(folder, [maker.profile(i, gender=str(i % 2)) for i in range(1, 31)], b"1\t2\n3\t4\n" * 9)
            return "pokec", "pokec/soc-pokec-profiles.txt.gz"
        if kind == "wikimath":
            TestSeries().wikimath(folder)
            return "wikimath", "temporal/wikivital_mathematics.json"
        if kind == "stl10":
            inside = {f"stl10_binary/{name}": data for name, data in TestImages().stl10()[0].items()}
            write(folder / "stl10" / "stl10_binary.tar.gz", tarred(inside))
            return "stl10", "stl10/stl10_binary.tar.gz"
        if kind == "cifar10":
            batches = {f"cifar-10-batches-bin/data_batch_{i}.bin": bytes(3073) for i in range(1, 6)}
            write(folder / "cifar10" / "cifar-10-binary.tar.gz", tarred(batches))
            return "cifar10", "cifar10/cifar-10-binary.tar.gz"
        if kind == "actstrack":
            rng, maker = np.random.default_rng(0), TestActsTrack()
            maker.put(folder, [maker.event(rng, decay=True)], [maker.event(rng) for _ in range(9)], "folder")
            return "actstrack", "actstrack/raw_2T/signal_events_2T.pkl"
        TestOtherPublishedFiles().test_deezer(None, folder)
        return "deezer-europe", "deezer_europe/deezer_europe.zip"

    @pytest.mark.parametrize("kind", FILES)
    @pytest.mark.filterwarnings("ignore")
    def test_noise(self, cache, tmp_path, monkeypatch, kind):
        monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
        name, place = self.write(kind, tmp_path)
        read = load_images if name in ("stl10", "cifar10") else load
        read(name, tmp_path)
        good = (tmp_path / place).read_bytes()
        rng = np.random.default_rng(1)
        refused = 0
        for how in ("cut", "change", "insert") * 8:
            at = int(rng.integers(len(good)))
            noise = bytes(rng.integers(0, 256, 4, dtype=np.uint8))
            tail = {"cut": b"", "change": noise + good[at + 4 :], "insert": noise + good[at:]}[how]
            (tmp_path / place).write_bytes(good[:at] + tail)
            try:
                read(name, tmp_path)
            except ValueError:  # DataError, or a task that contradicts itself
                refused += 1
        assert refused >= 8  # every file that was cut, at the least
