"""The reader of ActsTrack, on small files in the very same format."""

import io
import pickle

import numpy as np
import pytest
import torch
from published_files import write, zipped

from difformer.data import DataError, load
from difformer.data.datasets.particles import COLUMNS, POSITION, Z_MASS


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
        with pytest.raises(DataError, match=r"builtins\.print, which no published data set needs"):
            load("actstrack", tmp_path)
