"""The reader of ActsTrack, on small files in the very same format."""

import io

import numpy as np
import pytest
import torch
from published_files import write, zipped

from difformer.data import DataError, load

SIZES = [4, 7, 5, 9, 6, 8, 5, 4, 6, 7]


class Foul:
    def __reduce__(self):
        return print, ("this must not be printed",)


class TestActsTrack:
    """All events end to end, as PyG keeps a data set, and a split of numpy arrays beside them."""

    def put(self, folder, form="zip", **more):
        geometric = pytest.importorskip("torch_geometric.data")
        rng = np.random.default_rng(0)
        graphs = [
            geometric.Data(
                x=torch.tensor(rng.normal(size=(n, 9))).float(),
                pos=torch.tensor(rng.normal(size=(n, 3))).float(),
                y=torch.tensor([[float(i % 2)]]),
                node_label=torch.zeros(n),
                num_tracks=3,
                signal_im=-1,
                **more,
            )
            for i, n in enumerate(SIZES)
        ]
        split = {"train": np.arange(7), "valid": np.array([7]), "test": np.array([8, 9])}
        buffer = io.BytesIO()
        torch.save((*geometric.InMemoryDataset.collate(graphs), split), buffer)
        if form == "zip":
            content = zipped({"processed_2T/data_2T.pt": buffer.getvalue()})
            write(folder / "actstrack" / "actstrack_processed_2T.zip", content)
        else:
            write(folder / "actstrack" / "processed_2T" / "data_2T.pt", buffer.getvalue())
        return graphs

    @pytest.mark.parametrize("form", ["zip", "folder"])
    def test_processed_file(self, cache, tmp_path, form):
        graphs = self.put(tmp_path, form)
        task = load("actstrack", tmp_path, protocol="lri", num_splits=1)
        assert (task.kind, task.metric, task.problem, task.num_outputs) == ("graphs", "rocauc", "multilabel", 1)
        assert task.node_ptr.diff().tolist() == SIZES
        torch.testing.assert_close(task.x[:, :9], torch.cat([graph.x for graph in graphs]))
        torch.testing.assert_close(task.x[:, 9:], torch.cat([graph.pos for graph in graphs]))
        assert task.y.flatten().tolist() == [i % 2 for i in range(10)]
        order = np.arange(10)
        np.random.RandomState(42).shuffle(order)
        assert task.splits[0].train.tolist() == order[:7].tolist()
        assert task.splits[0].sizes() == (7, 1, 2)

    def test_neighbours_are_nearest_in_direction(self, cache, tmp_path):
        self.put(tmp_path)
        task = load("actstrack", tmp_path, num_splits=1)
        direction = torch.nn.functional.normalize(task.x[:, 9:].double(), dim=1)
        for graph in (1, 3):
            start, end = task.node_ptr[graph], task.node_ptr[graph + 1]
            node = int(start) + 2
            nearest = (direction[start:end] - direction[node]).norm(dim=1).argsort()[:5] + start
            assert set(task.edge_index[0, task.edge_index[1] == node].tolist()) == set(nearest.tolist())

    def test_a_program_in_place_of_tensors_is_refused(self, cache, tmp_path):
        program = zipped({f"program/{name}": b"" for name in ("data.pkl", "constants.pkl", "version")})
        content = zipped({"processed_2T/data_2T.pt": program})
        write(tmp_path / "actstrack" / "actstrack_processed_2T.zip", content)
        with pytest.raises(DataError, match=r"processed_2T\.zip: is damaged, or holds more than tensors"):
            load("actstrack", tmp_path)

    def test_a_pickle_that_would_run_something_is_refused(self, cache, tmp_path):
        self.put(tmp_path, foul=Foul())
        with pytest.raises(DataError, match=r"holds more than tensors and arrays \(UnpicklingError\)"):
            load("actstrack", tmp_path)
