import pytest
import torch

from difformer.data import ENTRIES, load

TABLES = ["digits", "wine", "breast-cancer", "iris"]


@pytest.fixture(autouse=True)
def no_files_at_all(cache, monkeypatch):
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    yield
    assert not cache.exists()


@pytest.mark.parametrize("name", TABLES)
def test_built_in_tables_match_their_entries(name):
    task = load(name, num_splits=3)
    one = ENTRIES[name]
    assert (task.num_instances, task.num_features, task.num_outputs) == (one.nodes, one.features, one.outputs)
    assert len(task.class_names) == one.outputs
    assert len(task.feature_names) == one.features
    assert task.edge_index is None
    spread = task.x.std(0, unbiased=False)
    assert ((spread - 1).abs() < 1e-3).logical_or(spread == 0).all()
    assert len({tuple(split.train.tolist()) for split in task.splits}) == 3
    for split in task.splits:
        assert torch.bincount(task.y[split.train]).tolist() == [5] * one.outputs
        assert sum(split.sizes()) == one.nodes


def test_equal_seeds_give_equal_tasks():
    assert load("wine", seed=4).fingerprint() == load("wine", seed=4).fingerprint()
    assert load("wine", seed=4).fingerprint() != load("wine", seed=5).fingerprint()


def test_tables_as_they_are():
    assert load("digits", standardize=False).x.max() == 16
    assert load("digits", standardize=False).scaling is None


@pytest.mark.parametrize("name", TABLES)
def test_rows_as_they_come_are_brought_to_the_scale_of_the_table(name):
    task, raw = load(name), load(name, standardize=False).x
    torch.testing.assert_close(task.scaled(raw), task.x, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(raw, task.x)


def test_neighbour_graph_of_a_table_is_exact():
    task = load("iris", knn=5)
    distance = torch.cdist(task.x.double(), task.x.double())
    joined = torch.zeros(150, 150, dtype=torch.bool)
    joined[task.edge_index[0], task.edge_index[1]] = True
    assert joined.diagonal().all()
    assert (joined == joined.T).all()
    fifth = distance.sort(1).values[:, 4]
    # Flowers that are equally far differ by rounding, on each kind of processor in another way.
    near = (distance < fifth[:, None] - 1e-5) | torch.eye(150, dtype=torch.bool)
    far = distance > fifth[:, None] + 1e-5
    assert (joined | ~(near | near.T)).all()  # whoever is nearer than the fifth is joined
    assert not (joined & far & far.T).any()  # and nobody farther
    assert "5 nearest" in task.protocol


def test_karate_equals_networkx():
    networkx = pytest.importorskip("networkx")
    task, club = load("karate"), networkx.karate_club_graph()
    mine = {tuple(sorted(edge)) for edge in task.edge_index.t().tolist() if edge[0] != edge[1]}
    assert mine == {tuple(sorted(edge)) for edge in club.edges()}
    assert [task.class_names[c] for c in task.y] == [club.nodes[i]["club"] for i in range(34)]
    assert task.splits[0].train.tolist() == [0, 33]
    assert task.y[task.splits[0].valid].tolist() == [0, 1]
    assert load("karate", protocol="random").splits[0].sizes() == (6, 6, 22)
    assert load("karate", self_loops=False).num_edges == 156


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sbm", {"num_nodes": 60, "num_classes": 3}),
        ("two-moons", {"num_nodes": 50}),
        ("heat", {"num_nodes": 25}),
        ("random-graph", {"num_nodes": 40, "num_edges": 100}),
    ],
)
def test_generators_have_names_too(name, options):
    task = load(name, **options)
    assert task.name == name
    assert task.num_nodes == options["num_nodes"]
    assert (task.kind, task.metric) == (ENTRIES[name].kind, ENTRIES[name].metric)
