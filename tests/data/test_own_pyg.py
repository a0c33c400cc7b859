import pytest
import torch
from own_people import BOTH_WAYS, EDGES, X, Y, pairs

from difformer.data import from_files, from_pyg
from difformer.data.split import index_split
from difformer.errors import DataError

NAN = float("nan")


def data(**changes):
    pyg = pytest.importorskip("torch_geometric.data")
    return pyg.Data(
        **{
            "x": torch.from_numpy(X).float(),
            "y": torch.tensor([0, 1, 0, 1, 0, 1, -1, 1]),
            "edge_index": torch.from_numpy(EDGES),
            **changes,
        }
    )


def masks(order):
    return {"train_mask": order < 2, "val_mask": order < 4, "test_mask": order == 5}


def test_the_edges_of_a_sparse_tensor_keep_their_direction():
    """PyG's ToSparseTensor leaves no edge_index, only the transposed matrix."""
    matrix = torch.zeros(8, 8)
    matrix[EDGES[1], EDGES[0]] = torch.arange(1.0, 5.0)
    for adj_t in (matrix.to_sparse(), matrix.to_sparse_csr()):
        task = from_pyg(data(edge_index=None, adj_t=adj_t), directed=True)
        assert task.edge_index.tolist() == EDGES.tolist()
        assert task.edge_weight.tolist() == [1, 2, 3, 4]


def test_given_splits_override_invalid_masks():
    split = index_split("mine", [0, 1], [2], [3])
    assert from_pyg(data(**masks(torch.zeros(8))), splits=split).splits == (split,)


def test_a_pyg_graph_keeps_edges_weights_and_masks():
    task = from_pyg(data(edge_attr=torch.arange(4.0)[:, None]), directed=True)
    assert task.edge_index.tolist() == EDGES.tolist()
    assert task.edge_weight.tolist() == [0, 1, 2, 3]
    assert task.y.tolist() == Y
    mask = torch.arange(8) % 4
    task = from_pyg(data(train_mask=mask == 0, val_mask=mask == 1, test_mask=mask == 3))
    assert task.splits[0].valid.tolist() == [1, 5]
    two = torch.stack([mask == 0, mask == 1], 1)
    task = from_pyg(data(train_mask=two, val_mask=two.roll(2, 0), test_mask=torch.zeros_like(two)))
    assert [s.name for s in task.splits] == ["masks/0", "masks/1"]
    assert task.splits[0].valid.tolist() == [2]  # 6 is in the mask, but has no label
    assert "split masks/0: 1 instance without a label left out" in task.notes
    task = from_pyg(data(edge_attr=torch.rand(4, 5)), directed=False, self_loops="add")
    assert pairs(task) == BOTH_WAYS
    assert any("edge_attr with 5 columns is not used" in note for note in task.notes)


def test_a_list_of_pyg_graphs_becomes_a_task_of_graphs():
    graphs = [
        data(y=torch.tensor([i % 2]), pos=torch.ones(8, 5) * i, edge_index=torch.from_numpy(EDGES)[:, : i % 4])
        for i in range(8)
    ]
    task = from_pyg(graphs)
    assert (task.kind, task.num_instances, task.num_nodes, task.num_features) == ("graphs", 8, 64, 3)
    assert task.edge_index[:, 0].tolist() == [8, 9]
    assert task.node_ptr.tolist() == list(range(0, 65, 8))
    batch = pytest.importorskip("torch_geometric.data").Batch.from_data_list(graphs)
    assert from_pyg(batch).fingerprint() == task.fingerprint()
    clouds = from_pyg(
        [data(x=None, edge_index=None, pos=torch.rand(i + 1, 3), y=torch.tensor([float(i) / 2])) for i in range(8)]
    )
    assert (clouds.problem, clouds.num_features, clouds.edge_index) == ("regression", 3, None)
    several = from_pyg([data(y=torch.tensor([[i % 2, 1]])) for i in range(8)])
    assert (several.problem, several.y.shape) == ("multilabel", (8, 2))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: data(x=None), "data: has neither x nor pos"),
        (lambda: data(y=None), "data: expected a tensor y with the targets, but it has no y"),
        (lambda: data(edge_index=torch.tensor([[9], [0]])), "data: edge_index, edge 0: there is no node 9"),
        (lambda: data(x=[1.0] * 8), "data: x and pos must be tensors, got list"),
        (lambda: data(edge_index=None, adj_t=[[0, 1]]), "data: adj_t must be a sparse matrix, got list"),
        (lambda: data(**masks(torch.arange(6))), r"the masks are not splits: expected 8 entries per split, got 6"),
        (lambda: data(**masks(torch.ones(2, 8))), "the masks are not splits: expected 8 entries per split, got 2"),
        (
            lambda: data(y=torch.arange(5) % 2, train_mask=torch.arange(8) < 4, test_mask=torch.arange(8) > 5),
            r"y has shape \(5,\), but x has 8 nodes",
        ),
        (lambda: data(**masks(torch.zeros(8))), "the masks are not splits: .*both train and valid"),
        (lambda: [], "an empty list"),
        (
            lambda: [data(y=torch.tensor([1])), data(y=torch.tensor([1, 0]))],
            "graph 1: y holds 2 numbers, that of graph 0 1",
        ),
        (lambda: [data(y=torch.tensor([1])), data(x=torch.rand(8, 2), y=torch.tensor([1]))], "graph 1: has 2 features"),
        (lambda: [1, 2], "got a list with an item of type int"),
        (lambda: "cora", "expected a PyG Data or a list of them, got str"),
        (lambda: pytest.importorskip("torch_geometric.data").HeteroData(), "several types"),
    ],
)
def test_invalid_pyg_objects_are_refused(make, complaint):
    with pytest.raises(DataError, match=complaint):
        from_pyg(make())


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"from_pyg\(\) has no option 'standardise'; did you mean standardize"):
        from_pyg(data(), standardise=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"x": torch.tensor([[1.0, NAN]] * 8)},
            r"x: holds nan; features must be finite .*: replace it, or leave the row",
        ),
        ({"x": None, "pos": torch.full((8, 2), NAN)}, r"data: row 0, column 1: pos: holds nan"),
        (
            {"edge_weight": torch.tensor([1, NAN, 1, 1])},
            r"edge 1: a weight must be .* got nan; correct it, or leave the",
        ),
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_a_remedy(change, said):
    with pytest.raises(ValueError, match=said):
        from_pyg(data(**change))


def test_several_types_of_nodes_are_refused_with_a_remedy_wherever_they_are(tmp_path):
    pyg = pytest.importorskip("torch_geometric.data")
    hetero = pyg.HeteroData()
    hetero["a"].x = hetero["b"].x = torch.ones(3, 2)
    remedy = r"several types of nodes or edges are not supported; pass one type as a Data, or to_homogeneous\(\)$"
    for given in (hetero, [hetero], (hetero, None)):
        with pytest.raises(ValueError, match=remedy):
            from_pyg(given)
    for given in (hetero, [hetero], (hetero.to_dict(), {"a": {}}, pyg.HeteroData)):
        torch.save(given, tmp_path / "own.pt")
        with pytest.raises(ValueError, match=rf"own\.pt: graphs with {remedy}"):
            from_files(tmp_path / "own.pt")
    with pytest.raises(
        ValueError, match=r"expected a PyG Data or a list of them, got a tuple with an item of type Tensor$"
    ):
        from_pyg((torch.ones(3, 2), torch.ones(3)))
