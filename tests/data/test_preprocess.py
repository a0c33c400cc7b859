import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from difformer.data import DataError
from difformer.data.archives import number_blocks
from difformer.data.datasets.common import csr_arrays, csr_of, row_normalised
from difformer.data.edges import tidy_edges, undirected
from difformer.data.sparse_features import feature_tensor


@given(
    n=st.integers(1, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40),
    loops=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_undirected_edges_are_sorted_and_unique(n, pairs, loops):
    edges = np.array([p for p in pairs if max(p) < n], dtype=np.int32).reshape(-1, 2).T
    got = undirected(edges, n, self_loops=loops)
    wanted = {(a, b) for a, b in edges.T.tolist() if a != b} | {(b, a) for a, b in edges.T.tolist() if a != b}
    wanted |= {(i, i) for i in range(n)} if loops else set()
    assert got.t().tolist() == sorted(list(edge) for edge in wanted)
    tidy, _ = tidy_edges(torch.tensor(edges).long(), num_nodes=n, self_loops="add" if loops else "remove")
    assert torch.equal(got, tidy)


def test_rows_sum_to_one_and_empty_rows_stay():
    x = sparse.csr_matrix(np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.2]]))
    kept = x.copy()
    assert row_normalised(x).toarray() == pytest.approx(np.array([[0.25, 0.75, 0], [0, 0, 0], [0, 0, 1]]))
    assert (x != kept).nnz == 0


def test_normalised_rows_are_the_same_to_the_bit_on_every_machine():
    """Each entry is the double quotient, rounded once: no sum in single precision, whose order machines choose."""
    x = sparse.random(50, 400, density=0.3, random_state=0, dtype=np.float32, format="csr")
    found = row_normalised(x)
    for row in range(50):
        part = slice(x.indptr[row], x.indptr[row + 1])
        values = [float(value) for value in x.data[part]]
        total = 0.0
        for value in values:
            total += value
        assert found.data[part].tolist() == [float(np.float32(value / total)) for value in values]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)], ids=["rows", "columns", "both"])
def test_there_may_be_no_rows_or_no_columns_to_normalise(shape):
    assert row_normalised(np.zeros(shape)).shape == shape


def test_rows_whose_sum_is_zero_stay_whatever_stands_in_them():
    stored = sparse.csr_matrix(([0.0, 0.0, 3, 1], [0, 1, 0, 1], [0, 2, 4]), shape=(2, 2))  # zeros that are stored
    assert row_normalised(stored).toarray().tolist() == [[0, 0], [0.75, 0.25]]
    assert row_normalised(np.array([[2, -2], [3, -1]])).toarray().tolist() == [[2, -2], [1.5, -0.5]]


def test_features_are_sparse_where_it_pays():
    thin, thick = sparse.random(50, 40, 0.05, random_state=0), sparse.random(50, 40, 0.4, random_state=0)
    assert feature_tensor(thin).layout == torch.sparse_csr
    assert feature_tensor(thick).layout == torch.strided
    for x in (thin, thick, thin.toarray()):
        for choice in (True, False):
            tensor = feature_tensor(x, as_sparse=choice)
            assert tensor.layout == (torch.sparse_csr if choice else torch.strided)
            dense = x.toarray() if sparse.issparse(x) else x
            torch.testing.assert_close(tensor.to_dense(), torch.tensor(dense).float())


def test_sparse_matrices_survive_being_stored():
    x = sparse.random(7, 5, 0.3, format="csr", random_state=1, dtype=np.float32)
    assert (csr_of(csr_arrays(x)) != x).nnz == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that torch has to say of this layout is the user's concern
        torch.testing.assert_close(feature_tensor(x, as_sparse=True).to_dense(), torch.from_numpy(x.toarray()))


@pytest.mark.parametrize(("part", "value"), [("indices", 5), ("indices", -1), ("indptr", 99)])
def test_an_index_outside_a_stored_matrix_is_refused(part, value):
    arrays = csr_arrays(sparse.random(7, 5, 0.3, format="csr", random_state=1, dtype=np.float32))
    arrays[f"x_{part}"][-1] = value
    with pytest.raises(ValueError, match=r"(?i)ind(ex|ices|ptr)"):
        csr_of(arrays)


@given(
    rows=st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 99)), min_size=1, max_size=50),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    block=st.integers(1, 80),
)
@settings(max_examples=60, deadline=None)
def test_numbers_are_read_across_block_boundaries(rows, ending, last, block):
    text = ending.join(f"{a},{b}" for a, b in rows) + (ending if last else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("difformer.data.archives.BLOCK_BYTES", block)
        blocks = list(number_blocks(io.BytesIO(text.encode()), columns=2, dtype=np.int64))
    assert np.concatenate(blocks).tolist() == [list(row) for row in rows]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"1,2\n3,x\n", "f, line 2, column 2: expected a number, got 'x'"),
        (b"1,2\n3\n", "f, line 2: expected 2 numbers, got 1"),
        (b"1,2\n3,4,5\n", "f, line 2: expected 2 numbers, got 3"),
        (b"1,\n3,4\n", "f, line 1, column 2: expected a number, got ''"),
        (b"1,2\n\xff,4\n", "f, line 2, column 1: expected a number"),
        (b"1,2\n3,4.5\n", "f, line 2, column 2: expected a number, got '4.5'"),
        (b"1,2\n3,99999999999999999999\n", "f, line 2, column 2: expected a number, got '9"),
        (b"1,2\n3,1_000\n", "f: expected lines of 2 numbers from line 1 on"),
        (b"# 1\n", "f, line 1, column 1: expected a number, got '# 1'"),
        (b"1,2\n\n3,4\n", "f, line 2: expected 2 numbers, got 0"),
    ],
)
def test_cells_that_are_not_numbers_are_refused(text, complaint):
    with pytest.raises(DataError, match=complaint):
        list(number_blocks(io.BytesIO(text), columns=2, dtype=np.int64, path="f"))
