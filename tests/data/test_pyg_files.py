"""PyG objects by path: read where that is safe, refused with a way out where it is not."""

import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from difformer.data import DataError, from_files, from_pyg, read_features
from difformer.data.own.graphs import read_pyg

EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])


def one(nodes=12):
    return Data(x=torch.arange(2.0 * nodes).view(nodes, 2), edge_index=EDGES, y=torch.arange(nodes) % 3)


def several(count=12):
    return [Data(x=torch.ones(n + 4, 2) * n, edge_index=EDGES, y=torch.tensor([n % 2])) for n in range(count)]


@pytest.mark.parametrize("made", [one, several])
def test_a_file_gives_the_same_task_as_the_object(made, tmp_path):
    torch.save(made(), tmp_path / "own.pt")
    found = from_files(tmp_path / "own.pt", seeds=(0, 1))
    expected = from_pyg(made(), name="own", directed=False, self_loops="add", seeds=(0, 1))
    assert found.fingerprint() == expected.fingerprint()
    kept = from_files(tmp_path / "own.pt", directed=True, self_loops="keep")
    assert (
        kept.fingerprint()
        == from_pyg(made(), name="own", directed=True).fingerprint()
        != from_files(tmp_path / "own.pt").fingerprint()
    )
    assert found.kind == ("nodes" if made is one else "graphs")
    assert len(found.splits) == 2


def test_a_data_set_that_pyg_has_processed_is_read(tmp_path):
    expected = from_pyg(several(), name="own", directed=False, self_loops="add").fingerprint()
    InMemoryDataset.save(several(), str(tmp_path / "own.pt"))
    assert from_files(tmp_path / "own.pt").fingerprint() == expected
    InMemoryDataset.save([one()], str(tmp_path / "single.pt"))
    assert from_files(tmp_path / "single.pt").num_nodes == 12
    torch.save(InMemoryDataset.collate(several()), tmp_path / "own.pt")  # as PyG wrote it before 2.4
    assert from_files(tmp_path / "own.pt").fingerprint() == expected


@pytest.mark.parametrize("slices", [[1, 2], {"x": torch.tensor([0, 99999])}])
def test_graphs_that_cannot_be_told_apart_are_refused(tmp_path, slices):
    whole, _ = InMemoryDataset.collate(several())
    torch.save((whole.to_dict(), slices, Data), tmp_path / "own.pt")
    with pytest.raises(DataError, match=r"own\.pt: its graphs cannot be told apart"):
        from_files(tmp_path / "own.pt")


class Harmful:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    data = one()
    data.extra = Harmful(tmp_path / "harm")
    torch.save(data, tmp_path / "bad.pt")
    with pytest.raises(
        DataError, match=r"bad.pt: is damaged, or holds more than tensors.*could run code; save"
    ) as refused:
        from_files(tmp_path / "bad.pt")
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "harm").exists()


def test_other_files_and_contradictions(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "dict.pt")
    (tmp_path / "text.pt").write_text("no pickle")
    torch.save(Data(x=torch.ones(3, 1)), tmp_path / "unlabelled.pt")
    torch.save(one(), tmp_path / "own.pt")
    with pytest.raises(DataError, match=r"dict.pt: holds a dict"):
        from_files(tmp_path / "dict.pt")
    with pytest.raises(DataError, match=r"text.pt: is damaged"):
        from_files(tmp_path / "text.pt")
    with pytest.raises(DataError, match=r"unlabelled.pt: data: expected a tensor y with the targets, but it has no y"):
        from_files(tmp_path / "unlabelled.pt")
    with pytest.raises(DataError, match="leave out labels, drop"):
        from_files(tmp_path / "own.pt", labels="y.csv", drop="a")
    with pytest.raises(DataError, match="not from a file of PyG"):
        read_features(tmp_path / "own.pt")
    with pytest.raises(FileNotFoundError):
        from_files(tmp_path / "absent.pt")


def test_a_graph_with_a_forged_store_is_refused(tmp_path):
    made = one()
    made.__dict__["_store"] = Data
    torch.save(made, tmp_path / "own.pt")
    with pytest.raises(DataError, match=r"own\.pt: holds a Data; expected a PyG Data"):
        from_files(tmp_path / "own.pt")


def test_the_reason_of_the_loader_is_given(tmp_path, monkeypatch):
    path = tmp_path / "graph.pt"
    path.write_bytes(b"")

    def full(*_, **__):
        raise MemoryError("8 GiB asked for")

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(DataError, match=r"\(MemoryError: 8 GiB asked for\)"):
        read_pyg(path)
