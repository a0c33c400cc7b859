import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.data import load
from difformer.data.generators import block_edges, distinct_edges, flow

sbm, two_moons, heat, random_graph = (partial(load, name) for name in ("sbm", "two-moons", "heat", "random-graph"))
every_generator = pytest.mark.parametrize("generate", [sbm, two_moons, heat, random_graph])


def assert_simple_and_symmetric(edge_index, num_nodes):
    code = edge_index[0] * num_nodes + edge_index[1]
    assert (code.diff() > 0).all()  # sorted, each directed edge once
    assert torch.equal((edge_index[1] * num_nodes + edge_index[0]).sort().values, code)


@every_generator
def test_a_seed_is_all_that_a_task_depends_on(generate):
    np.random.seed(0)  # noqa: NPY002  the global generators must not matter
    torch.manual_seed(0)
    assert generate(seed=3).fingerprint() == generate(seed=3).fingerprint()
    assert generate(seed=3).fingerprint() != generate(seed=4).fingerprint()


@every_generator
def test_splits_are_numbered_by_seed(generate):
    splits = generate(num_splits=3).splits
    assert [split.name.rsplit("/", 1)[1] for split in splits] == ["seed=0", "seed=1", "seed=2"]
    assert not splits[0].same_as(splits[1])


@given(n=st.integers(1, 60), share=st.floats(0, 1), seed=st.integers(0, 99))
@settings(deadline=None)
def test_exactly_as_many_distinct_edges_as_asked_for(n, share, seed):
    count = int(share * n * (n - 1) / 2)
    low, high = distinct_edges(n, count, rng=np.random.default_rng(seed))
    assert low.size == count
    assert (np.diff(low * n + high) > 0).all()
    assert (low < high).all()
    assert (high < n).all()


def test_every_pair_is_drawn_alike():
    rng = np.random.default_rng(0)
    for count in (3, 12):  # few edges and many take different ways
        drawn = np.concatenate([distinct_edges(6, count, rng=rng) for _ in range(1500)], axis=1)
        seen = np.unique(drawn, axis=1, return_counts=True)[1]
        assert seen.size == 15
        np.testing.assert_allclose(seen, 1500 * count / 15, rtol=0.2)


def test_too_many_edges_are_refused():
    with pytest.raises(ValueError, match=r"5 nodes have 10 pairs, so there cannot be 11 edges"):
        random_graph(num_nodes=5, num_edges=11)
    with pytest.raises(ValueError, match="inside classes, but there are 10 pairs"):
        sbm(num_nodes=20, num_classes=10, average_degree=19, homophily=1)  # twenty nodes, pairs of them
    assert random_graph(num_nodes=5, num_edges=10).num_edges == 20


def test_a_random_graph_has_the_sizes_asked_for():
    task = random_graph(num_nodes=300, num_edges=2000, num_features=7, num_classes=3, self_loops=True)
    assert (task.num_nodes, task.num_edges, task.num_features, task.num_outputs) == (300, 4300, 7, 3)
    assert_simple_and_symmetric(task.edge_index, 300)
    assert task.splits[0].sizes() == (150, 75, 75)


def test_a_block_model_has_its_degree_and_homophily():
    task = sbm(num_nodes=3000, num_classes=3, average_degree=12, homophily=0.7, self_loops=False, signal=3)
    assert_simple_and_symmetric(task.edge_index, 3000)
    same = task.y[task.edge_index[0]] == task.y[task.edge_index[1]]
    assert task.num_edges / 3000 == pytest.approx(12, rel=0.05)
    assert same.float().mean() == pytest.approx(0.7, abs=0.02)
    assert task.y.bincount().tolist() == [1000, 1000, 1000]
    assert (task.y.diff() != 0).float().mean() > 0.5  # the order of nodes does not tell their class
    means = torch.stack([task.x[task.y == c].mean(0) for c in range(3)])
    torch.testing.assert_close(means.norm(dim=1), torch.full((3,), 3.0), rtol=0.1, atol=0)


def test_blocks_of_uneven_sizes():
    pairs = block_edges(np.array([5, 1, 9]), average_degree=6, homophily=0.0, rng=np.random.default_rng(0))
    block = np.repeat([0, 1, 2], [5, 1, 9])
    assert (block[pairs[0]] != block[pairs[1]]).all()
    assert np.unique(pairs, axis=1).shape == pairs.shape


def test_two_moons_lie_on_their_circles():
    task = two_moons(num_nodes=200, noise=0.0)
    first, second = task.x[task.y == 0], task.x[task.y == 1]
    torch.testing.assert_close(first.norm(dim=1), torch.ones(100))
    torch.testing.assert_close((second - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(100))
    assert (first[:, 1] >= 0).all()
    assert (second[:, 1] <= 0.5).all()
    assert task.splits[0].sizes() == (20, 20, 160)
    assert task.y[task.splits[0].train].bincount().tolist() == [10, 10]
    assert task.edge_index is None


def test_a_wave_on_a_ring_decays_at_the_rate_of_its_eigenvalue():
    n, m, time = 24, 3, 0.7
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    edge_index = torch.cat([ring, ring.flip(0)], 1)
    wave = torch.cos(2 * torch.pi * m * torch.arange(n, dtype=torch.double) / n)[:, None]
    eigenvalue = 1 - np.cos(2 * np.pi * m / n)
    exact = flow(edge_index, wave, time=time)
    torch.testing.assert_close(exact, np.exp(-time * eigenvalue) * wave, rtol=1e-12, atol=1e-12)


def test_targets_are_the_exponential_of_the_laplacian():
    task = heat(num_nodes=49, num_features=2, time=1.5)
    assert_simple_and_symmetric(task.edge_index, 49)
    adjacency = torch.zeros(49, 49, dtype=torch.double)
    adjacency[task.edge_index[1], task.edge_index[0]] = 1
    degree = adjacency.sum(1)
    operator = (torch.diag(degree) - adjacency) / degree[:, None]
    exact = flow(task.edge_index, task.x, time=1.5)
    torch.testing.assert_close(
        exact, torch.linalg.matrix_exp(-1.5 * operator) @ task.x.double(), rtol=1e-10, atol=1e-10
    )
    assert torch.equal(task.y, exact.float())
    assert (task.problem, task.metric, task.num_outputs) == ("regression", "mse", 2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_nodes": 10}, "square number"),
        ({"num_nodes": -1}, "num_nodes: expected at least 1, got -1"),
        ({"time": float("nan")}, "time: expected a finite number"),
        ({"time": -1.0}, "time: expected a finite number ≥ 0, got -1"),
    ],
)
def test_heat_refuses_what_it_cannot_make(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        heat(**options)


@pytest.mark.slow
def test_pokec_size_in_a_minute_and_six_gigabytes():
    script = (
        "import resource, time\n"
        "from difformer.data import load\n"
        "start = time.process_time()\n"
        "task = load('random-graph', num_nodes=1_632_803, num_edges=30_622_564, num_features=65)\n"
        "assert task.num_edges == 2 * 30_622_564\n"
        "print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, kilobytes = (float(part) for part in done.stdout.split())
    assert seconds < 60
    assert kilobytes < 6 * 2**20
