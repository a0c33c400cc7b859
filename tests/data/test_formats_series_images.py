"""Readers of WikiMath, STL-10 and CIFAR-10, on small files in the very same format."""

import json

import numpy as np
import pytest
import torch
from published_files import tarred, write

from difformer.data import DataError, DownloadError, load, load_images
from difformer.data.catalogue import FORMS
from difformer.data.datasets.temporal import period_scale


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

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"node_ids": ["p0", "p1"]}, "node_ids must give every node a whole number"),
            ({"node_ids": {"p0": 0.5}}, "node_ids must give every node a whole number"),
            ({"time_periods": "60"}, "time_periods must be a whole number"),
            ({"time_periods": 61}, "expected an object with '60'"),
            ({"0": [1, 2]}, "expected an object with 'y'"),
            ({"edges": [0, 1, 2]}, "edges: expected pairs of nodes, got 3 numbers"),
            ({"weights": ["a"]}, "expected a table of numbers"),
        ],
    )
    def test_errors_say_what_the_file_lacks(self, cache, tmp_path, changes, complaint):
        self.wikimath(tmp_path)
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        with pytest.raises(DataError, match=f"wikivital_mathematics.json: {complaint}"):
            load("wikimath", tmp_path)

    def test_names_of_pages_may_be_missing(self, cache, tmp_path):
        self.wikimath(tmp_path)
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "node_ids": None}))
        assert load("wikimath", tmp_path).instance_names == ()

    def test_a_page_nobody_visits(self, cache, tmp_path):
        self.wikimath(tmp_path)
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        content = json.loads(path.read_text())
        for day in range(60):
            content[str(day)]["y"][2] = 7.0
        path.write_text(json.dumps(content))
        task = load("wikimath", tmp_path)
        assert task.y[:, 2].abs().max() == 0
        assert any("1 nodes are constant" in note for note in task.notes)

    def test_too_many_lags(self, cache, tmp_path):
        self.wikimath(tmp_path)
        with pytest.raises(ValueError, match="lags must lie between 1 and 55"):
            load("wikimath", tmp_path, lags=60)

    @pytest.mark.parametrize("content", [b"{", b'{"edges": []}', b"[1, 2]"])
    def test_broken_file(self, cache, tmp_path, content):
        write(tmp_path / "temporal" / "wikivital_mathematics.json", content)
        with pytest.raises(DataError, match="data set 'wikimath'"):
            load("wikimath", tmp_path)

    @pytest.mark.parametrize(
        ("part", "value", "complaint"),
        [
            ("edges", [[0, 1], [1, 2], [2, 0], [5, 6]], "names nodes 0 … 6; there are 0 … 5"),
            ("weights", [3, 1, 2], "4 edges, but not as many finite weights"),
            ("weights", [3, 1, 2, float("nan")], "4 edges, but not as many finite weights"),
        ],
    )
    def test_a_graph_that_does_not_fit_is_named(self, cache, tmp_path, part, value, complaint):
        self.wikimath(tmp_path)
        path = tmp_path / "temporal" / "wikivital_mathematics.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
        with pytest.raises(DataError, match=rf"wikivital_mathematics\.json.*{complaint}.*data set 'wikimath'.*https"):
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
        assert set(members) == {file.name for form in FORMS["stl10"] if form.name == "folder" for file in form.files}
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

    def test_learned_features_that_are_no_numbers_are_refused(self, cache, tmp_path):
        members, _, labels = self.stl10()
        for name, content in members.items():
            write(tmp_path / "stl10" / "stl10_binary" / name, content)
        count = len(labels)
        for features in (np.full((count, 4), np.nan, np.float16), np.zeros(count), np.zeros((count, 4), np.int64)):
            np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features)
            with pytest.raises(DataError, match=r"stl10_simclr\.npz: features must be a table of finite floats"):
                load("stl10", tmp_path)

    def test_features_of_stl10(self, cache, tmp_path, monkeypatch):
        members, images, labels = self.stl10()
        for name, data in members.items():
            write(tmp_path / "stl10" / "stl10_binary" / name, data)
        from difformer.data.datasets import instances

        split = instances.per_class_split
        monkeypatch.setattr(instances, "per_class_split", lambda y, **k: split(y, **{**k, "num_valid": 10}))
        pixels = load("stl10", tmp_path, features="pixels", per_class=2, num_splits=1)
        assert pixels.x.shape == (50, 3 * 32 * 32)
        assert pixels.x.min() >= 0
        assert pixels.x.max() <= 1
        assert pixels.x[0].mean().item() == pytest.approx(images[0].mean() / 255, abs=0.01)
        assert load("stl10", tmp_path, features="pca", pca_dim=5, per_class=2).num_features == 5
        with pytest.raises(DataError, match=r"stl10/stl10_simclr\.npz"):
            load("stl10", tmp_path, per_class=2)
        features = np.random.default_rng(0).normal(size=(50, 512)).astype(np.float16)
        np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features)
        task = load("stl10", tmp_path, per_class=2, num_splits=2)
        torch.testing.assert_close(task.x, torch.tensor(features).float())
        assert task.y.tolist() == labels.tolist()
        made_by = {how: np.array(json.dumps({"method": how})) for how in ("pca", "simclr")}
        np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features, metadata=made_by["pca"])
        with pytest.raises(DataError, match="made by 'pca', not by SimCLR"):
            load("stl10", tmp_path, per_class=2)
        other = {"labels": labels[::-1], "metadata": made_by["simclr"]}
        np.savez(tmp_path / "stl10" / "stl10_simclr.npz", features=features, **other)
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
        monkeypatch.setattr("difformer.data.datasets.instances.PER_CLASS_KEPT", 3)
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

    def test_prepared_images_of_another_shape_are_refused(self, cache, tmp_path):
        (tmp_path / "cifar10").mkdir()
        for images in (np.zeros((20, 32, 32), np.uint8), np.zeros((20, 32, 32, 3), np.float32)):
            np.savez(tmp_path / "cifar10" / "cifar10_15000.npz", images=images, labels=np.arange(20) % 10)
            with pytest.raises(DataError, match=r"cifar10_15000\.npz: images must have shape \[N, 32, 32, 3\], uint8"):
                load_images("cifar10", tmp_path)

    def test_an_archive_without_the_files(self, cache, tmp_path):
        write(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", tarred({"other": b"x"}))
        with pytest.raises(DataError, match=r"holds no data_batch_1\.bin"):
            load_images("cifar10", tmp_path)
