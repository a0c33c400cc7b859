from dataclasses import replace

import pytest
import torch

from difformer.data.split import Split, index_split, random_split, time_split
from difformer.data.task import Task

NAN = float("nan")
EDGES = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
SPLIT = index_split("mine", [0, 1], [2], [3])


def nodes(**changes) -> Task:
    task = Task(
        name="four",
        kind="nodes",
        problem="multiclass",
        metric="accuracy",
        protocol="by hand",
        x=torch.eye(4),
        y=torch.tensor([0, 1, 0, 1]),
        splits=(SPLIT,),
        num_outputs=2,
        edge_index=EDGES,
    )
    return replace(task, **changes)


def series(**changes) -> Task:
    task = Task("s", "series", "regression", "mse", "p", torch.rand(5, 3, 2), torch.rand(5, 3), (time_split(5),), 1)
    return replace(task, **changes)


def graphs(**changes) -> Task:
    task = Task(
        "g",
        "graphs",
        "multiclass",
        "rocauc",
        "p",
        torch.rand(4, 2),
        torch.tensor([0, 1]),
        (index_split("s", [0], [], [1]),),
        2,
        edge_index=EDGES,
        node_ptr=torch.tensor([0, 2, 4]),
    )
    return replace(task, **changes)


def test_every_kind_of_task_reports_its_sizes():
    assert (nodes().num_instances, nodes().num_nodes, nodes().num_features, nodes().num_edges) == (4, 4, 4, 4)
    assert (series().num_instances, series().num_nodes, series().num_edges) == (5, 3, None)
    assert (graphs().num_instances, graphs().num_nodes) == (2, 4)
    assert series(edge_index=(EDGES % 3,) * 5).num_edges == 20
    text = nodes(notes=("made up",)).describe()
    for expected in ("nodes             4\n", "classes           2\n", "train/valid/test  2/1/1", "note: made up"):
        assert expected in text


def test_sparse_features_and_multiple_targets_are_fine():
    assert nodes(x=torch.eye(4).to_sparse_csr()).num_features == 4
    assert nodes(problem="multilabel", y=torch.rand(4, 3), num_outputs=3).num_outputs == 3
    assert nodes(problem="regression", y=torch.rand(4), num_outputs=1).num_outputs == 1
    assert nodes(problem="regression", y=torch.rand(4, 2), num_outputs=2).num_outputs == 2


@pytest.mark.parametrize(
    ("make", "changes", "complaint"),
    [
        (nodes, {"kind": "edges"}, "kind must be"),
        (nodes, {"problem": "ranking"}, "problem must be"),
        (nodes, {"x": torch.rand(4)}, r"x of a 'nodes' task must have shape \[N, F\], got \(4,\)"),
        (nodes, {"x": torch.ones(4, 2, dtype=torch.long)}, "x must hold floats, got torch.int64"),
        (nodes, {"x": torch.eye(4).to_sparse()}, "dense or sparse CSR"),
        (nodes, {"x": torch.rand(5, 2)}, r"y has shape \(4,\), but x has 5 nodes"),
        (nodes, {"y": torch.tensor([0.0, 1, 0, 1])}, "classes must be int64"),
        (nodes, {"y": torch.tensor([0, 1, 0, 2])}, r"classes must lie in 0 … 1"),
        (nodes, {"y": torch.tensor([0, 1, 0, -2])}, r"got -2 … 1"),
        (nodes, {"num_outputs": 0}, "at least 1"),
        (nodes, {"problem": "multilabel"}, "must hold floats"),
        (nodes, {"problem": "multilabel", "y": torch.rand(4)}, r"cannot have shape \(4,\)"),
        (nodes, {"problem": "regression", "y": torch.rand(4, 3)}, r"num_outputs = 2 cannot have shape \(4, 3\)"),
        (nodes, {"edge_index": EDGES.T}, r"int64 of shape \[2, E\]"),
        (nodes, {"edge_index": EDGES + 1}, "holds node 4, but nodes go from 0 to 3"),
        (nodes, {"edge_index": EDGES - 1}, "holds node -1"),
        (nodes, {"edge_index": (EDGES,)}, "a tuple of 1 graphs"),
        (nodes, {"edge_index": None, "edge_weight": torch.rand(4)}, "without edge_index"),
        (nodes, {"edge_weight": torch.rand(3)}, r"shape \[4\]; got torch.float32 of shape \(3,\)"),
        (nodes, {"edge_weight": (torch.rand(4),)}, "edge_weight is a tuple"),
        (nodes, {"node_ptr": torch.tensor([0, 4])}, "is for 'graphs' tasks"),
        (nodes, {"class_names": ("a",)}, "class_names must hold 2 names or none, got 1"),
        (nodes, {"instance_names": ("a",) * 5}, "instance_names must hold 4 names"),
        (nodes, {"feature_names": ("a",) * 5}, "feature_names must hold 4 names"),
        (nodes, {"splits": ()}, "at least one"),
        (nodes, {"splits": (random_split(10),)}, "made for other data"),
        (nodes, {"y": torch.tensor([0, 1, -1, 1])}, "valid holds instance 2, which carries no target"),
        (
            nodes,
            {"problem": "regression", "y": torch.tensor([0, NAN, 0, 1]), "num_outputs": 1},
            "train holds instance 1",
        ),
        (series, {"y": torch.rand(5, 4)}, r"\[T, N\], here \[5, 3\]"),
        (series, {"x": torch.rand(3, 2)}, r"\[T, N, F\]"),
        (series, {"edge_index": (EDGES,) * 4}, "a tuple of 4 graphs"),
        (series, {"edge_index": (EDGES % 3,) * 5, "edge_weight": torch.rand(4)}, "must be a tuple of 5"),
        (graphs, {"node_ptr": None}, r"int64 of shape \[3\]; got none"),
        (graphs, {"node_ptr": torch.tensor([0, 2, 3])}, "must rise from 0"),
        (graphs, {"node_ptr": torch.tensor([0, 1, 4])}, "edge 0 .0 → 1. joins two different graphs"),
        (graphs, {"x": torch.eye(4).to_sparse_csr()}, "sparse features are for 'nodes'"),
    ],
)
def test_contradictions_are_refused(make, changes, complaint):
    make()  # the task itself is sound
    with pytest.raises(ValueError, match=complaint):
        make(**changes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_targets_and_splits_may_be_on_different_devices():
    whole = nodes()
    for y in (whole.y, torch.tensor([0, 1, 0, -1])):
        split = Split("first", *(torch.tensor([i]) for i in range(3)))
        assert nodes(y=y.cuda(), splits=(split,)).y.device.type == "cuda"
    with pytest.raises(ValueError, match="valid holds instance 2, which carries no target"):
        nodes(y=torch.tensor([0, 1, -1, 1]).cuda())


def test_other_splits_make_another_task():
    other = nodes().with_splits(Split("other", *(torch.tensor([i]) for i in (3, 2, 1))))
    assert [split.name for split in other.splits] == ["other"]
    assert other.fingerprint() != nodes().fingerprint()
    assert nodes().fingerprint() == nodes().fingerprint()


def test_tasks_and_splits_can_be_compared_and_kept_in_sets():
    task = nodes()
    assert task == task
    assert task != nodes()
    assert len({task, task, nodes()}) == 2
    assert task.splits[0] in task.splits
    assert Split("same", SPLIT.train, SPLIT.valid, SPLIT.test) not in task.splits


@pytest.mark.parametrize(
    "changes",
    [
        {"x": 2 * torch.eye(4)},
        {"x": torch.eye(4).to(torch.bfloat16)},
        {"x": torch.eye(4).to_sparse_csr()},
        {"y": torch.tensor([0, 1, 1, 1])},
        {"edge_index": EDGES.flip(0)[:, :2]},
        {"edge_weight": torch.ones(4)},
        {"metric": "f1"},
        {"num_outputs": 3},
    ],
)
def test_whatever_changes_a_result_changes_the_fingerprint(changes):
    assert nodes(**changes).fingerprint() != nodes().fingerprint()


def test_features_that_are_not_finite_are_found():
    nodes().check_finite()
    with pytest.raises(ValueError, match=r"x is inf at \(1, 1\)"):
        nodes(x=torch.diag(torch.tensor([0.0, float("inf"), 0, 0])).nan_to_num(0, float("inf"))).check_finite()
    with pytest.raises(ValueError, match="edge_weight is nan at edge 2"):
        nodes(edge_weight=torch.tensor([1.0, 1, NAN, 1])).check_finite()


def test_what_is_shown_of_a_task_and_its_splits_fits_a_line():
    """No tensor is printed: a notebook that ends a cell with a task would drown in indices."""
    task = nodes()
    assert repr(task) == (
        "Task('four', nodes, multiclass: 4 nodes, 4 edges, 4 features, 2 classes, 4 labelled; accuracy; "
        "1 split of 2/1/1)"
    )
    single = nodes(x=torch.ones(4, 1), y=torch.rand(4), problem="regression", num_outputs=1, edge_index=EDGES[:, :1])
    assert "4 nodes, 1 edge, 1 feature, 1 target, 4 labelled" in repr(single)
    assert repr(SPLIT) == "Split('mine', 2 train, 1 valid, 1 test)"
