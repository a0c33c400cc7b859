import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from difformer.data.knn import knn_edges, knn_graph, nearest

metrics = pytest.mark.parametrize("metric", ["cosine", "euclidean"])

# Small whole numbers make ties and copies common; points far from the origin make rounding matter.
points = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 30), st.integers(1, 4)),
    elements=st.integers(-3, 3).map(float) | st.integers(-(10**6), 10**6).map(lambda v: v / 1000),
)


def slow_but_sure(x, k, metric):
    """Every distance in double precision, then the k smallest (distance, index) of each row."""
    x = x.astype(np.float64)
    if metric == "cosine":
        norm = np.sqrt((x * x).sum(1, keepdims=True))
        x = np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)
        length = np.maximum(1 - (x[:, None] * x[None]).sum(-1), 0)
    else:
        length = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    np.fill_diagonal(length, np.inf)
    index = np.argsort(length, axis=1, kind="stable")[:, :k]
    return index, np.take_along_axis(length, index, 1)


@metrics
@given(x=points, data=st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_the_k_nearest_and_the_smaller_index_where_distances_tie(metric, x, data):
    k = data.draw(st.integers(1, x.shape[0] - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("difformer.data.knn.BLOCK_BYTES", 8 * x.shape[0] * data.draw(st.integers(1, x.shape[0])))
        found, length = nearest(torch.from_numpy(x), k, metric)
    index, expected = slow_but_sure(x, k, metric)
    np.testing.assert_allclose(length, expected, rtol=1e-12, atol=1e-12)
    # Sums of two roundings may order a near-tie either way; where distances differ, so must the neighbours agree.
    clear = np.abs(expected - length.numpy()) == 0
    assert (found.numpy() == index)[clear.all(1)].all()
    np.testing.assert_allclose(
        pairwise_distances(x, metric=metric)[np.arange(len(x))[:, None], found], expected, rtol=1e-6, atol=1e-6
    )


@metrics
@pytest.mark.parametrize("form", ["float32", "float64", "numpy", "scipy", "csr"])
def test_against_scikit_learn_in_every_form(metric, form):
    x = torch.randn(700, 40, generator=torch.Generator().manual_seed(0)).relu() + (0.1 if metric == "euclidean" else 0)
    given_as = {
        "float32": x,
        "float64": x.double(),
        "numpy": x.numpy(),
        "scipy": scipy.sparse.csr_matrix(x.numpy()),
        "csr": x.to_sparse_csr(),
    }[form]
    edge_index, length = knn_edges(given_as, 7, metric=metric)
    searcher = NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(x.double().numpy())
    expected, index = searcher.kneighbors()
    np.testing.assert_array_equal(edge_index[0].view(700, 7), index)
    np.testing.assert_array_equal(edge_index[1], np.repeat(np.arange(700), 7))
    np.testing.assert_allclose(length.view(700, 7), expected, rtol=1e-6, atol=1e-7)


@metrics
@pytest.mark.parametrize("sparse", [False, True])
def test_the_size_of_the_blocks_changes_nothing(metric, sparse, monkeypatch):
    x = (
        torch.rand(300, 12, generator=torch.Generator().manual_seed(1)) < 0.3
    ).float()  # ties everywhere, empty rows too
    x = x.to_sparse_csr() if sparse else x
    whole = knn_edges(x, 5, metric=metric)
    for block in (1, 7, 299):
        monkeypatch.setattr("difformer.data.knn.BLOCK_BYTES", 8 * 300 * block)
        parts = knn_edges(x, 5, metric=metric)
        assert torch.equal(whole[0], parts[0])
        assert torch.equal(whole[1], parts[1])


@metrics
def test_copies_are_at_distance_zero_and_come_in_order(metric):
    x = torch.tensor([[1.0, 2.0]]).repeat(40, 1)
    x[20:] = torch.tensor([-3.0, 0.1])
    index, length = nearest(x, 19, metric)
    assert index[0].tolist() == list(range(1, 20))
    assert index[39].tolist() == list(range(20, 39))
    torch.testing.assert_close(length, torch.zeros_like(length), rtol=0, atol=1e-15)


def test_single_precision_alone_would_be_wrong_here():
    # A thousand units from the origin, neighbours a ten-thousandth apart, and one point very far away.
    line = (
        1e3
        + 1e-4 * torch.arange(200, dtype=torch.double)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    )
    x = torch.stack([line, torch.zeros_like(line)], 1)
    x = torch.cat([x, torch.tensor([[1e9, 0.0]], dtype=torch.double)])
    index, length = nearest(x, 4, "euclidean")
    expected, distance = slow_but_sure(x.numpy(), 4, "euclidean")
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_allclose(length, distance)


def test_large_norms_do_not_cancel_in_sparse_points(monkeypatch):
    monkeypatch.setattr("difformer.data.knn.BLOCK_BYTES", 8 * 60 * 7)
    # A million units from the origin, where products lose what tells the points apart, and some copies.
    rng = np.random.default_rng(0)
    x = 1e6 + rng.normal(size=(60, 3))
    x[40:] = x[:20]
    index, length = nearest(torch.from_numpy(x).to_sparse_csr(), 5, "euclidean")
    expected, distance = slow_but_sure(x, 5, "euclidean")
    np.testing.assert_allclose(length, distance, rtol=1e-9)
    np.testing.assert_array_equal(index, expected)


def test_lowered_precision_of_products_does_not_matter():
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(2))
    usual = nearest(x, 6, "cosine")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        lowered = nearest(x, 6, "cosine")
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(usual[0], lowered[0])
    assert torch.equal(usual[1], lowered[1])


@metrics
def test_the_node_itself_may_count_as_its_first_neighbour(metric):
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    with_self = knn_graph(x, 5, metric=metric, include_self=True)[0].view(30, 5)
    without = knn_graph(x, 4, metric=metric)[0].view(30, 4)
    assert torch.equal(with_self[:, 0], torch.arange(30))
    assert torch.equal(with_self[:, 1:], without)
    assert torch.equal(knn_graph(x, 1, metric=metric, include_self=True), torch.arange(30).repeat(2, 1))


def test_both_directions_each_once():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    one_way, length = knn_edges(x, 4, metric="euclidean")
    both, lengths = knn_edges(x, 4, metric="euclidean", symmetric=True)
    pairs = {tuple(e) for e in one_way.T.tolist()}
    assert [tuple(e) for e in both.T.tolist()] == sorted(pairs | {(j, i) for i, j in pairs})
    torch.testing.assert_close(lengths, (x[both[0]] - x[both[1]]).double().norm(dim=1), rtol=1e-5, atol=1e-6)
    assert length.numel() == 240


@metrics
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_many_point_sets_are_searched_one_by_one(metric, sparse, include_self, ties, monkeypatch):
    monkeypatch.setattr("difformer.data.knn.SMALL_SET", 48)  # so that some sets are large
    sizes = torch.tensor([6, 0, 1, 2, 8, 70, 3, 3, 49, 48])
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(int(ptr[-1]), 3, generator=generator)
    x = x.round() if ties else x
    points = x.to_sparse_csr() if sparse else x
    edge_index, length = knn_edges(points, 4, metric=metric, node_ptr=ptr, include_self=include_self)
    alone = []
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        most = min(4, end - start - (0 if include_self else 1))
        if most > 0:
            part = points.to_dense()[start:end]
            edges, lengths = knn_edges(
                part.to_sparse_csr() if sparse else part, most, metric=metric, include_self=include_self
            )
            alone.append((edges + start, lengths))
    assert torch.equal(edge_index, torch.cat([edges for edges, _ in alone], 1))
    assert torch.equal(length, torch.cat([lengths for _, lengths in alone]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"k": 0}, "got k = 0"),
        ({"k": 4}, "4 points have at most 3 neighbours each, got k = 4"),
        ({"k": 5, "include_self": True}, "at most 4"),
        ({"k": 1, "metric": "manhattan"}, "'cosine' or 'euclidean', got 'manhattan'"),
        ({"k": 1.5}, "k: expected a whole number, got 1.5"),
        ({"k": True}, "k: expected a whole number, got True"),
        ({"k": 1, "node_ptr": [0, 2]}, "node_ptr: expected whole numbers that rise from 0 to the 4 points"),
        ({"k": 1, "node_ptr": [0, 3, 2, 4]}, "node_ptr"),
        ({"k": 1, "node_ptr": [0.0, 4.0]}, "node_ptr"),
        ({"k": 1, "x": [["a"], ["b"]]}, "x: expected a matrix of numbers"),
        ({"k": 1, "x": torch.zeros(3)}, r"matrix \[N, F\]"),
        ({"k": 1, "x": torch.tensor([[float("nan")], [1.0]])}, "NaN"),
    ],
)
def test_invalid_neighbour_searches_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        knn_graph(**{"x": torch.zeros(4, 2), **options})


@pytest.mark.slow
@metrics
def test_the_approximate_search_finds_nearly_all(metric):
    pytest.importorskip("pynndescent")
    x = torch.randn(2000, 16, generator=torch.Generator().manual_seed(0))
    exact, length = knn_edges(x, 8, metric=metric)
    for points in (x, x.to_sparse_csr()):
        close, lengths = knn_edges(points, 8, metric=metric, approximate=True, seed=1)
        shared = len({tuple(e) for e in exact.T.tolist()} & {tuple(e) for e in close.T.tolist()})
        assert shared > 0.95 * exact.shape[1]
        assert (close[0] != close[1]).all()
        assert (lengths >= length - 1e-9).all()


def test_without_pynndescent_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynndescent", None)
    with pytest.raises(ImportError, match=r"difformer\[neighbours\]"):
        knn_graph(torch.randn(10, 2), 2, approximate=True)


@pytest.mark.slow
def test_fifty_thousand_points_within_two_gigabytes():
    import subprocess
    import sys

    script = (
        "import resource, torch\n"
        "from difformer.data.knn import knn_graph\n"
        "x = torch.randn(50_000, 512, generator=torch.Generator().manual_seed(0))\n"
        "assert knn_graph(x, 5).shape == (2, 250_000)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * 2**20  # kilobytes
