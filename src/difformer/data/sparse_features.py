"""Sparse feature matrices: to and from scipy, and selecting rows without making anything dense."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.errors import UserError
from difformer.sparse import check_scipy

# Below this share of non-zero entries features stay sparse. An entry takes three times the memory of a dense one, and a
# sparse product has to be several times smaller before it is faster.
SPARSE_BELOW = 0.1


def segments(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of chosen segments ``ptr[i]:ptr[i + 1]`` of a flat array, and where each begins and ends among them.

    For ``index = [i, j, …]`` the positions are ``ptr[i], …, ptr[i + 1] - 1, ptr[j], …``, found without a loop.
    """
    start, length = ptr[index], ptr[index + 1] - ptr[index]
    new_ptr = torch.cat([length.new_zeros(1), length.cumsum(0)])
    total = int(new_ptr[-1])
    shift = torch.repeat_interleave(start - new_ptr[:-1], length, output_size=total)
    return torch.arange(total, device=ptr.device) + shift, new_ptr


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of a dense or sparse CSR matrix; a CSR matrix stays one."""
    if x.layout != torch.sparse_csr:
        return x.index_select(0, index)
    positions, ptr = segments(x.crow_indices().long(), index)
    return csr(ptr, x.col_indices()[positions], x.values()[positions], (index.numel(), x.shape[1]))


def stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Rows of matrices below each other: CSR if the first is, which makes all of them sparse, otherwise dense."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].layout == torch.strided:
        return torch.cat([part if part.layout == torch.strided else part.to_dense() for part in parts])
    return from_scipy(sparse.vstack([to_scipy(part) for part in parts]))


def csr(ptr: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR matrix from indices that are known to be valid, without torch's notice that the layout is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Sparse CSR tensor support is in beta.*")
        return torch.sparse_csr_tensor(ptr, columns.to(ptr.dtype), values, size=shape, check_invariants=False)


def checked_csr(data: Any, indices: Any, ptr: Any, shape: Any) -> Any:
    """A scipy CSR matrix from unchecked arrays: scipy and torch would follow a wrong index."""
    shape = np.asarray(shape)
    for name, part in (("data", data), ("indices", indices), ("indptr", ptr)):
        if part.ndim != 1 or part.dtype.kind not in ("biuf" if name == "data" else "iu"):
            raise UserError(f"{name}: expected one row of numbers, got {part.dtype} of shape {list(part.shape)}")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise UserError(f"shape: expected two whole numbers, got {shape.tolist()}")
    try:
        matrix = sparse.csr_matrix((data, indices, ptr), shape=tuple(shape.tolist()))
    except ValueError as error:  # arrays of lengths that do not fit each other
        raise UserError(f"the arrays of a sparse matrix do not fit each other ({error})") from error
    check_scipy(matrix)
    return matrix


def from_scipy(matrix: Any) -> Tensor:
    """A scipy sparse matrix as torch CSR of float32 (float64 stays): columns sorted, each once, no zeros kept."""
    check_scipy(matrix)
    rows = matrix.tocsr(copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    values = rows.data if rows.data.dtype == np.float64 else rows.data.astype(np.float32)
    ptr, columns = (torch.from_numpy(part.astype(np.int64)) for part in (rows.indptr, rows.indices))
    return csr(ptr, columns, torch.from_numpy(np.array(values)), (rows.shape[0], rows.shape[1]))


def to_scipy(x: Tensor) -> Any:
    """A dense tensor as a scipy CSR array; a sparse one as CSR, its indices checked, or COO, not checked."""
    x = x.detach()
    if x.layout == torch.strided:
        return sparse.csr_array(x.numpy(force=True))
    if x.layout == torch.sparse_csr:
        parts = tuple(part.numpy(force=True) for part in (x.values(), x.col_indices(), x.crow_indices()))
        matrix = sparse.csr_array(parts, shape=tuple(x.shape))
        matrix.check_format(full_check=True)
        return matrix
    index = x.to_sparse_coo().coalesce()
    row, column = index.indices().numpy(force=True)
    return sparse.coo_array((index.values().numpy(force=True), (row, column)), shape=tuple(x.shape))


def feature_tensor(x: Any, *, as_sparse: bool | None = None) -> Tensor:
    """Features ``[N, F]`` as float32; with `as_sparse` None CSR if fewer than one entry in ten is not zero."""
    if as_sparse is None:
        filled = x.nnz if sparse.issparse(x) else int(np.count_nonzero(x))
        as_sparse = filled < SPARSE_BELOW * x.shape[0] * x.shape[1]
    if not as_sparse:
        dense = x.toarray() if sparse.issparse(x) else np.asarray(x)
        return torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32))
    return from_scipy(sparse.csr_matrix(x, dtype=np.float32))
