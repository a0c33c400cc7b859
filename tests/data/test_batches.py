import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from difformer.data.batches import (
    GraphBatches,
    NodePartitions,
    SnapshotBatches,
    epoch_generator,
    induced_subgraph,
    partition_nodes,
)
from difformer.data.registry import load
from difformer.data.split import random_split, time_split
from difformer.data.task import Task


def labelled_graph(num_nodes=60, num_edges=200, **changes) -> Task:
    """Features, targets and weights that say which node or edge they belong to."""
    task = load("random-graph", num_nodes=num_nodes, num_edges=num_edges, seed=1)
    source, target = task.edge_index
    node = torch.arange(num_nodes)
    return Task(
        **{
            **vars(task),
            "problem": "regression",
            "num_outputs": 1,
            "x": torch.stack([node, -node], 1).float(),
            "y": node.float(),
            "edge_weight": (source * num_nodes + target).float(),
            **changes,
        }
    )


def many_graphs(weighted=True, scattered=False) -> Task:
    sizes = torch.tensor([3, 1, 4, 2, 5])
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    edges = []
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        edges += [(i, j) for i in range(start, end) for j in range(start, end) if (i + 2 * j) % 3]
    edge_index = torch.tensor(edges).T
    if scattered:
        edge_index = edge_index[:, torch.randperm(edge_index.shape[1], generator=torch.Generator().manual_seed(0))]
    weight = (edge_index[0] * 100 + edge_index[1]).float() if weighted else None
    node = torch.arange(15.0)[:, None]
    y = torch.arange(5)
    return Task(
        "many", "graphs", "multiclass", "accuracy", "p", node, y, (random_split(5),), 5, edge_index, weight, ptr
    )


@given(n=st.integers(0, 50), size=st.integers(1, 60), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_a_partition_holds_every_node_once_and_in_order(n, size, seed, epoch):
    parts = partition_nodes(n, batch_size=size, seed=seed, epoch=epoch)
    assert sorted(i for part in parts for i in part.tolist()) == list(range(n))
    assert all((part.diff() > 0).all() for part in parts)
    assert all(part.numel() <= size for part in parts)


def test_order_is_a_pure_function_of_seed_and_epoch():
    first = partition_nodes(40, batch_size=7, seed=3, epoch=5)
    torch.manual_seed(99)
    assert all(
        torch.equal(a, b) for a, b in zip(first, partition_nodes(40, batch_size=7, seed=3, epoch=5), strict=True)
    )
    for other in ({"seed": 3, "epoch": 6}, {"seed": 4, "epoch": 5}):
        assert not torch.equal(first[0], partition_nodes(40, batch_size=7, **other)[0])
    draws = {torch.rand(1, generator=epoch_generator(s, e)).item() for s in (0, 1) for e in (0, 1)}
    assert len(draws) == 4
    with pytest.raises(ValueError, match="≥ 0"):
        epoch_generator(0, -1)


@pytest.mark.parametrize("sparse", [False, True])
def test_batches_of_a_partition_never_pair_wrongly(sparse):
    task = labelled_graph()
    if sparse:
        task = labelled_graph(x=task.x.to_sparse_csr())
    batches = list(NodePartitions(task, batch_size=25, seed=2).epoch(4))
    assert [b.nodes.numel() for b in batches] == [25, 25, 10]
    for batch in batches:
        x = batch.x.to_dense() if sparse else batch.x
        assert torch.equal(x[:, 0].long(), batch.nodes)
        assert torch.equal(batch.y.long(), batch.nodes)
        source, target = batch.nodes[batch.edge_index]
        assert torch.equal(batch.edge_weight, (source * 60 + target).float())
        inside = torch.isin(task.edge_index, batch.nodes).all(0)
        assert torch.equal(torch.stack([source, target]), task.edge_index[:, inside])  # all of them, in order
        single, weight = induced_subgraph(batch.nodes, task.edge_index, task.edge_weight, num_nodes=60)
        assert torch.equal(single, batch.edge_index)
        assert torch.equal(weight, batch.edge_weight)


def test_positions_of_training_nodes_in_a_batch():
    batch = next(NodePartitions(labelled_graph(), batch_size=20).epoch(0))
    index = torch.tensor([59, 3, 17, 40, 41, 42])
    expected = sorted(set(index.tolist()) & set(batch.nodes.tolist()))
    assert batch.nodes[batch.local(index)].tolist() == expected
    assert batch.local(torch.empty(0, dtype=torch.long)).numel() == 0


def test_without_a_graph_and_on_another_device():
    batch = next(NodePartitions(load("two-moons"), batch_size=100).epoch(0))
    assert batch.edge_index is None
    moved = next(NodePartitions(labelled_graph(), batch_size=20).epoch(0)).to("meta")
    assert {t.device.type for t in (moved.x, moved.y, moved.nodes, moved.edge_index, moved.edge_weight)} == {"meta"}


def test_nodes_out_of_order_are_refused():
    with pytest.raises(ValueError, match="strictly ascending"):
        induced_subgraph(torch.tensor([2, 1]), torch.tensor([[0], [1]]), num_nodes=3)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_graph_in_a_batch_is_what_it_is_alone(scattered):
    task = many_graphs(scattered=scattered)
    batches = GraphBatches(task, index=torch.tensor([4, 1, 0, 3]), batch_size=3, seed=2)
    assert len(batches) == 2
    seen = []
    for batch in batches.epoch(0):
        assert torch.equal(batch.y, batch.graphs)
        for place, graph in enumerate(batch.graphs.tolist()):
            start, end = task.node_ptr[graph : graph + 2].tolist()
            rows = slice(*batch.node_ptr[place : place + 2].tolist())
            assert torch.equal(batch.x[rows], task.x[start:end])
            assert (batch.batch[rows] == place).all()
            mine = batch.batch[batch.edge_index[0]] == place
            source, target = batch.edge_index[:, mine] - rows.start + start
            assert torch.equal(batch.edge_weight[mine], (source * 100 + target).float())
            inside = (task.edge_index[0] >= start) & (task.edge_index[0] < end)
            assert torch.equal(torch.stack([source, target]), task.edge_index[:, inside])
            seen.append(graph)
    assert sorted(seen) == [0, 1, 3, 4]


def test_graphs_in_order_without_weights():
    batch = next(GraphBatches(many_graphs(weighted=False), batch_size=9, shuffle=False).epoch(3))
    assert batch.graphs.tolist() == [0, 1, 2, 3, 4]
    assert batch.edge_weight is None
    assert torch.equal(batch.edge_index, many_graphs().edge_index)


def test_epochs_of_graphs_differ_and_repeat():
    batches = GraphBatches(many_graphs(), batch_size=2, seed=0)
    orders = [torch.cat([b.graphs for b in batches.epoch(e)]).tolist() for e in (0, 1, 2, 0)]
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) > 1


def test_runs_of_snapshots_go_forwards_and_leap_over_no_gap():
    edges = tuple(torch.tensor([[t % 3], [(t + 1) % 3]]) for t in range(9))
    weights = tuple(torch.tensor([float(t)]) for t in range(9))
    x = torch.arange(9.0)[:, None, None].expand(9, 3, 2)
    task = Task("s", "series", "regression", "mse", "p", x, x[..., 0], (time_split(9),), 1, edges, weights)
    batches = SnapshotBatches(task, index=torch.tensor([8, 0, 1, 2, 3, 7]), length=3)
    assert [b.times.tolist() for b in batches.epoch(0)] == [[0, 1, 2], [3], [7, 8]]
    last = list(batches.epoch(0))[-1]
    assert last.x.shape == (2, 3, 2)
    assert [w.item() for w in last.edge_weight] == [7.0, 8.0]
    together = last.disjoint()
    assert together.x.shape == (6, 2)
    assert torch.equal(together.edge_index, torch.cat([edges[7], edges[8] + 3], 1))
    assert together.edge_weight.tolist() == [7.0, 8.0]
    assert together.batch.tolist() == [0, 0, 0, 1, 1, 1]
    assert [b.times.tolist() for b in SnapshotBatches(task, length=2).epoch(1)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_one_graph_for_all_snapshots():
    edge_index = torch.tensor([[0, 1], [1, 2]])
    x = torch.rand(5, 3, 2)
    task = Task("s", "series", "regression", "mse", "p", x, x[..., 0], (time_split(5),), 1, edge_index)
    batch = next(SnapshotBatches(task, length=2).epoch(0))
    assert torch.equal(batch.edge_index, edge_index)
    assert torch.equal(batch.disjoint().edge_index, torch.cat([edge_index, edge_index + 3], 1))
    assert batch.disjoint().edge_weight is None


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: NodePartitions(many_graphs(), batch_size=2), "need a 'nodes' task, this one is 'graphs'"),
        (lambda: NodePartitions(load("sbm"), batch_size=0), "batch_size"),
        (lambda: GraphBatches(load("sbm"), batch_size=2), "need a 'graphs' task"),
        (lambda: SnapshotBatches(load("sbm")), "need a 'series' task"),
    ],
)
def test_tasks_of_another_kind_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
