"""Cutting a task into parts: few edges between them, equal sizes, and nothing lost on the way to disk and back."""

import importlib.util
import json
import shutil
import sys

import pytest
import torch
from ranks_work import parts_read
from safetensors import safe_open
from safetensors.torch import save_file

from difformer.data import Split, Task
from difformer.distributed import partition_folder
from difformer.distributed.graph_partition import cut, partition, quality
from difformer.distributed.partition_folder import Partition, write_partition
from difformer.errors import DataError

METHODS = ["stream", "metis"] if importlib.util.find_spec("pymetis") else ["stream"]


def grid(side=20):
    """A grid of side × side nodes: 2 side (side - 1) undirected edges, and a cut of `side` edges in the middle."""
    number = torch.arange(side * side).view(side, side)
    pairs = torch.cat([
        torch.stack([number[:, :-1].flatten(), number[:, 1:].flatten()]),
        torch.stack([number[:-1].flatten(), number[1:].flatten()]),
    ], 1)  # fmt: skip
    return torch.cat([pairs, pairs.flip(0)], 1)


def small(**changes):
    g = torch.Generator().manual_seed(0)
    n = 30
    given = {
        "name": "small", "kind": "nodes", "problem": "multiclass", "metric": "accuracy", "protocol": "made",
        "x": torch.randn(n, 4, generator=g), "y": torch.randint(0, 3, (n,), generator=g),
        "splits": (Split("a", torch.arange(10), torch.arange(10, 15), torch.arange(15, 20)),), "num_outputs": 3,
        "edge_index": torch.randint(0, n, (2, 80), generator=g), "edge_weight": torch.rand(80, generator=g),
        "instance_names": tuple(f"node {i}" for i in range(n)),
    }  # fmt: skip
    return Task(**{**given, **changes})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [2, 4, 7])
def test_a_grid_is_cut_across_few_edges(method, parts):
    edges = grid()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(3))  # numbers say nothing of places
    edges = order[edges]
    assignment, used = partition(edges, 400, parts, method=method)
    found = quality(edges, assignment, parts)
    assert used == method
    assert found.edges == 1520
    assert found.balance <= 1.05
    assert torch.bincount(assignment, minlength=parts).min() > 0
    random = quality(edges, torch.arange(400) % parts, parts)
    # Straight cuts would take 40 (p - 1) directed edges; twice that is still a fraction of what chance gives.
    assert found.cut <= 80 * (parts - 1)
    assert found.cut < random.cut / 3
    assert found.boundary <= found.cut


def test_quality_counts_by_hand():
    # 0 → 1, 0 → 2, 0 → 2 again, 2 → 2: node 0 in part 0, the others in part 1.
    edges = torch.tensor([[0, 0, 0, 2], [1, 2, 2, 2]])
    found = quality(edges, torch.tensor([0, 1, 1]), 2)
    assert (found.cut, found.edges, found.boundary) == (3, 3, 1)  # row 0 is sent once
    assert found.balance == pytest.approx(2 / 1.5)
    assert "0 of 0 edges (0.0%)" in quality(None, torch.tensor([0, 1]), 2).describe()


def test_without_edges_rows_are_cut_into_runs():
    assert partition(None, 5, 2)[0].tolist() == [0, 0, 0, 1, 1]
    assert partition(torch.empty(2, 0, dtype=torch.long), 3, 5)[0].tolist() == [0, 1, 3]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="method must be one of auto, metis, stream, got 'best'"):
        partition(grid(), 400, 2, method="best")
    with pytest.raises(ValueError, match="parts must be at least 1, got 0"):
        partition(grid(), 400, 0)


def test_metis_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'difformer\[partition\]'"):
        partition(grid(), 400, 2, method="metis")


@pytest.mark.parametrize("sparse", [False, True])
def test_parts_come_back_from_disk_as_they_were(tmp_path, sparse):
    task = small(**({"x": small().x.to_sparse_csr()} if sparse else {}))
    made = write_partition(task, tmp_path / "parts", 3, method="stream", source={"name": "small"})
    assignment, _ = partition(task.edge_index, task.num_nodes, 3, method="stream")
    edges, x, y = [], torch.empty(30, 4), torch.empty(30, dtype=torch.long)
    owners = [part.nodes for part in cut(task, assignment, 3)]
    for number in range(3):
        part = made.read(number)
        n = part.nodes.numel()
        x[part.nodes] = part.x.to_dense() if sparse else part.x
        y[part.nodes] = part.y
        halo = torch.stack([owners[p][r] for p, r in zip(part.halo_part, part.halo_row, strict=True)])
        source = torch.cat([part.nodes, halo])[part.source]
        edges += zip(source.tolist(), part.nodes[part.target].tolist(), part.edge_weight.tolist(), strict=True)
        assert torch.isin(part.nodes[part.splits[0][0]], task.splits[0].train).all()
        assert list(part.names) == [f"node {i}" for i in part.nodes]
        assert (part.source < n + halo.numel()).all()
    assert torch.equal(x, task.x.to_dense() if sparse else task.x)
    assert torch.equal(y, task.y)
    assert sorted(edges) == sorted(zip(*task.edge_index.tolist(), task.edge_weight.tolist(), strict=True))
    assert made.about["fingerprint"] == task.fingerprint()
    assert made.quality == quality(task.edge_index, assignment, 3)


def test_a_folder_is_new_whole_and_readable(tmp_path):
    write_partition(small(), tmp_path / "parts", 2)
    with pytest.raises(FileExistsError, match="already exists"):
        write_partition(small(), tmp_path / "parts", 2)
    assert sorted(file.name for file in (tmp_path / "parts").iterdir()) == [
        "part-00000.safetensors", "part-00001.safetensors", "partition.json",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]  # nothing half-made beside it


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    write = partition_folder.save_file

    def full(tensors, path, metadata):
        if metadata["part"] == "1":
            raise OSError("no room")
        write(tensors, path, metadata)

    monkeypatch.setattr(partition_folder, "save_file", full)
    with pytest.raises(OSError, match="no room"):
        write_partition(small(), tmp_path / "parts", 2)
    assert not list(tmp_path.iterdir())


def test_damaged_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no partitioned task"):
        Partition.open(tmp_path)
    made = write_partition(small(), tmp_path / "parts", 2)
    (made.path / "part-00001.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"part-00001.*damaged"):
        made.read(1)
    (made.path / "part-00001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"part-00001\.safetensors is missing"):
        Partition.open(made.path)
    (made.path / "partition.json").write_text(json.dumps({**made.about, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        Partition.open(made.path)


def test_only_nodes_are_cut(tmp_path):
    task = Task(
        "sets", "graphs", "multilabel", "rocauc", "made", torch.randn(4, 2), torch.tensor([[0.0], [1.0]]),
        (Split("s", torch.tensor([0]), torch.tensor([1]), torch.empty(0, dtype=torch.long)),), 1,
        node_ptr=torch.tensor([0, 2, 4]),
    )  # fmt: skip
    with pytest.raises(ValueError, match="only nodes are cut"):
        write_partition(task, tmp_path / "parts", 2)


def test_a_rank_reads_only_its_own_parts(groups, tmp_path):
    made = write_partition(small(), tmp_path / "parts", 5)
    (first, rows), (second, others) = groups(2)(parts_read, made.path)
    assert (first, second) == ([0, 1], [2, 3, 4])
    assert sorted(rows + others) == list(range(30))
    one = write_partition(small(), tmp_path / "one", 1)
    found = groups(2)(parts_read, one.path)
    assert [rows for _, rows in found] == [[], list(range(30))]  # a rank without a part reads one for its layout


def rewritten(path, metadata=None, **changes):
    """The file of a part with some tensors replaced, by a function of the old one."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kept = file.metadata() or {}
    for name, change in changes.items():
        key = name.replace("__", ".")
        tensors[key] = change(tensors[key].clone())
    save_file(tensors, path, metadata={**kept, **(metadata or {})})


def at(place, value):
    def change(tensor):
        tensor[place] = value
        return tensor

    return change


WRONG_INDICES = {
    "nodes": ("nodes", at(0, -1)),
    "nodes, too large": ("nodes", at(-1, 30)),
    "nodes, twice": ("nodes", lambda t: at(0, int(t[1]))(t)),
    "source": ("source", at(0, -1)),
    "source, too large": ("source", at(0, 10_000)),
    "target": ("target", at(0, -1)),
    "target, too large": ("target", at(0, 10_000)),
    "source, other length than target": ("target", lambda t: t[:-1].clone()),
    "halo_part": ("halo_part", at(0, -1)),
    "halo_part, too large": ("halo_part", at(-1, 2)),
    "halo_row": ("halo_row", at(0, -1)),
    "halo_row, too large": ("halo_row", at(0, 10_000)),
    "split.0.train": ("split__0__train", at(0, -1)),
    "split.0.test, too large": ("split__0__test", at(0, 10_000)),
    "split.0.valid, not whole": ("split__0__valid", lambda t: t.float()),
    "y": ("y", lambda t: t[:-1].clone()),
    "y, classes": ("y", at(0, 3)),
    "edge_weight": ("edge_weight", lambda t: t[:-1].clone()),
    "edge_weight, not finite": ("edge_weight", at(0, torch.inf)),
    "x, not finite": ("x", at((0, 0), torch.nan)),
    "split.0, a row twice": ("split__0__test", lambda t: torch.zeros(2, dtype=t.dtype)),
    "split.0, a row in two parts": ("split__0__train", lambda t: torch.arange(10, dtype=t.dtype)),
    "x": ("x", lambda t: t[:, :-1].clone()),
}


@pytest.mark.parametrize("what", WRONG_INDICES)
def test_a_part_with_indices_out_of_range_is_refused(tmp_path, what):
    made = write_partition(small(), tmp_path / "parts", 2)
    name, change = WRONG_INDICES[what]
    rewritten(made.path / "part-00001.safetensors", **{name: change})
    said = rf"part-00001\.safetensors: {what.partition(',')[0]}.*partition the task again"
    with pytest.raises(ValueError, match=said):
        made.read(1)


@pytest.mark.parametrize("name", ["crow", "col"])
def test_sparse_features_with_columns_out_of_range_are_refused(tmp_path, name):
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).relu().to_sparse_csr()
    made = write_partition(small(x=x), tmp_path / "parts", 2)
    rewritten(made.path / "part-00001.safetensors", **{f"x__{name}": at(1, 2**30)})
    with pytest.raises(ValueError, match=rf"part-00001\.safetensors: x\.{name}.*partition the task again"):
        made.read(1)


def test_a_part_without_one_of_its_tensors_is_refused(tmp_path):
    made = write_partition(small(), tmp_path / "parts", 2)
    path = made.path / "part-00001.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, kept = {n: file.get_tensor(n) for n in file.keys() if n != "target"}, file.metadata()  # noqa: SIM118
    save_file(tensors, path, metadata=kept)
    with pytest.raises(ValueError, match=r"part-00001\.safetensors: target is missing"):
        made.read(1)


def test_a_part_of_another_partition_is_refused(tmp_path):
    made = write_partition(small(), tmp_path / "parts", 2)
    write_partition(small(x=small().x + 1), tmp_path / "other", 2)
    shutil.copy(tmp_path / "other" / "part-00001.safetensors", made.path)
    with pytest.raises(ValueError, match=r"part-00001\.safetensors: belongs to another partition"):
        made.read(1)


def test_parts_in_each_others_place_are_refused(tmp_path):
    made = write_partition(small(), tmp_path / "parts", 2)
    shutil.copy(made.path / "part-00000.safetensors", made.path / "part-00001.safetensors")
    with pytest.raises(ValueError, match=r"part-00001\.safetensors: is part 0 .* not part 1"):
        made.read(1)


def test_a_folder_of_the_first_format_is_refused_with_what_to_do(tmp_path):
    made = write_partition(small(), tmp_path / "parts", 2)
    (made.path / "partition.json").write_text(json.dumps({**made.about, "format": 1}))
    with pytest.raises(ValueError, match=r"format 1.*partition the task again"):
        Partition.open(made.path)


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"format": 2}', "{", '{"format": "x", "sizes": []}', "\xff"])
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path, text):
    made = write_partition(small(), tmp_path / "parts", 2)
    (made.path / "partition.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"partition\.json is damaged"):
        Partition.open(made.path)


def nested(name, value):
    """A manifest with one entry replaced; a dot leads into a table."""

    def change(about):
        table, _, key = name.rpartition(".")
        (about[table] if table else about)[key] = value
        return about

    return change


WRONG_ENTRIES = [
    ("num_nodes", 10**9),
    ("num_nodes", "many"),
    ("num_nodes", 30.0),
    ("num_features", "abc"),
    ("num_features", -1),
    ("num_outputs", None),
    ("num_outputs", 10**12),
    ("num_edges", [1]),
    ("sizes", [15, -15]),
    ("sizes", "ab"),
    ("sizes", 2),
    ("splits", [1, 2]),
    ("splits", "a"),
    ("layout.x", "Tensor"),
    ("layout.x", "load"),
    ("layout.x", ["float32"]),
    ("layout.y", "__name__"),
    ("layout.columns", [-1]),
    ("layout.columns", 3),
    ("layout.sparse", "no"),
    ("layout", []),
    ("source", 3),
    ("source", {"files": 3}),
    ("preprocessing", {"version": 99}),
    ("class_names", 5),
    ("problem", "riddle"),
    ("metric", 4),
    ("fingerprint", None),
    ("partition", {}),
    ("quality", {"cut": "a", "edges": 1, "balance": 1.0, "boundary": 2}),
    ("method", 1),
]


@pytest.mark.parametrize(("name", "value"), WRONG_ENTRIES, ids=lambda value: str(value)[:20])
def test_a_manifest_with_a_wrong_entry_is_named(tmp_path, name, value):
    made = write_partition(small(), tmp_path / "parts", 2)
    path = made.path / "partition.json"
    path.write_text(json.dumps(nested(name, value)(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=rf"partition\.json is damaged: .*{name}"):
        Partition.open(made.path)


def test_an_unknown_entry_of_the_quality_is_ignored(tmp_path):
    made = write_partition(small(), tmp_path / "parts", 2)
    path = made.path / "partition.json"
    path.write_text(json.dumps(nested("quality.x", 1)(json.loads(path.read_text()))))
    assert Partition.open(made.path).quality == made.quality


def test_features_that_are_not_finite_are_not_partitioned(tmp_path):
    x = small().x.clone()
    x[3, 1] = torch.nan
    with pytest.raises(ValueError, match="features must be finite"):
        write_partition(small(x=x), tmp_path / "parts", 2)
    assert not (tmp_path / "parts").exists()


def test_a_manifest_without_the_number_of_edges_is_refused(tmp_path):
    write_partition(small(), tmp_path / "parts", 2)
    path = tmp_path / "parts" / "partition.json"
    about = json.loads(path.read_text())
    del about["num_edges"]
    path.write_text(json.dumps(about))
    with pytest.raises(DataError, match=r"partition\.json is damaged: num_edges must be a count"):
        Partition.open(tmp_path / "parts")
