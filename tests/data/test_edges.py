import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from difformer.data.edges import tidy_edges
from difformer.data.sparse_features import from_scipy, segments, take_rows, to_scipy
from difformer.errors import DataError

edge_lists = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=25)


def as_index(edges):
    return torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T


@given(edges=edge_lists, directed=st.booleans(), self_loops=st.sampled_from(["add", "remove", "keep"]))
def test_tidy_edges_returns_the_requested_set_of_edges(edges, directed, self_loops):
    out, weight = tidy_edges(as_index(edges), num_nodes=6, directed=directed, self_loops=self_loops)
    expected = set(edges) if directed else set(edges) | {(j, i) for i, j in edges}
    if self_loops == "remove":
        expected = {(i, j) for i, j in expected if i != j}
    if self_loops == "add":
        expected |= {(i, i) for i in range(6)}
    assert [tuple(edge) for edge in out.T.tolist()] == sorted(expected)
    assert weight is None


@given(edges=edge_lists, directed=st.booleans(), self_loops=st.sampled_from(["add", "remove", "keep"]))
def test_weights_stay_with_their_edges(edges, directed, self_loops):
    index = as_index(edges)
    weight = (1 + index.amin(0) + 10 * index.amax(0)).float() if edges else torch.empty(0)
    out, weights = tidy_edges(index, weight, num_nodes=6, directed=directed, self_loops=self_loops)
    same, _ = tidy_edges(index, num_nodes=6, directed=directed, self_loops=self_loops)
    assert torch.equal(out, same)
    given_weight = {tuple(sorted(edge)): 1 + min(edge) + 10 * max(edge) for edge in edges}
    assert weights.tolist() == [given_weight.get(tuple(sorted(edge)), 1.0) for edge in out.T.tolist()]


@pytest.mark.parametrize(("how", "expected"), [("sum", 7.0), ("mean", 3.5), ("max", 4.0)])
def test_directions_that_disagree(how, expected):
    index, weight = torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    with pytest.raises(DataError, match=r"between nodes 0 and 1 .* different weights \(3, 4\).*directed=true"):
        tidy_edges(index, weight, num_nodes=3)
    _, merged = tidy_edges(index, weight, num_nodes=3, self_loops="keep", duplicates=how)
    assert merged.tolist() == [expected, expected, 5.0]
    kept, weights = tidy_edges(index, weight, num_nodes=3, directed=True, self_loops="keep")
    assert torch.equal(kept, index)
    assert torch.equal(weights, weight)


def test_repeated_lines_are_summed_but_the_other_direction_is_not_a_repetition():
    index, weight = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]), torch.tensor([2.0, 2.0, 2.0, 2.0])
    _, once = tidy_edges(index, weight, num_nodes=2, self_loops="keep")
    assert once.tolist() == [2.0, 2.0]
    _, summed = tidy_edges(index, weight, num_nodes=2, self_loops="keep", duplicates="sum")
    assert summed.tolist() == [4.0, 4.0]


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8), data=st.data())
def test_segments_are_those_that_slicing_gives(lengths, data):
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=10))
    positions, new_ptr = segments(ptr, torch.tensor(chosen, dtype=torch.long))
    flat = torch.arange(int(ptr[-1]))
    pieces = [flat[ptr[i] : ptr[i + 1]].tolist() for i in chosen]
    assert positions.tolist() == [i for piece in pieces for i in piece]
    assert new_ptr.diff().tolist() == [len(piece) for piece in pieces]


def test_rows_of_a_sparse_matrix_are_those_of_the_dense_one():
    dense = torch.rand(9, 5, generator=torch.Generator().manual_seed(0))
    dense[dense < 0.6] = 0
    sparse = dense.to_sparse_csr()
    index = torch.tensor([8, 0, 0, 3])
    taken = take_rows(sparse, index)
    assert taken.layout == torch.sparse_csr
    assert torch.equal(taken.to_dense(), dense[index])
    assert torch.equal(take_rows(dense, index), dense[index])
    assert torch.equal(from_scipy(to_scipy(sparse)).to_dense(), dense)
    assert torch.equal(torch.from_numpy(to_scipy(dense).toarray()), dense)


def test_scipy_matrices_of_any_make():
    coo = scipy.sparse.coo_matrix((np.array([1, 2, 4, 0]), ([0, 0, 1, 1], [2, 2, 0, 1])), shape=(2, 3))
    tensor = from_scipy(coo)
    assert tensor.values().tolist() == [3.0, 4.0]  # summed where given twice, dropped where zero
    assert tensor.dtype == torch.float32
    assert tensor.to_dense().tolist() == [[0, 0, 3], [4, 0, 0]]
