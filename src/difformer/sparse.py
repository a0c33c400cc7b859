"""A constant sparse matrix that multiplies dense ones, forward and backward, without ever being sorted again.

Autograd's own product with a sparse matrix transposes it in every backward pass. A matrix that does not change (a
normalised graph, a bag of words) is sorted once by rows and once by columns, and the product is one operator with a
backward of its own:

    Y = S X,   ∂X = Sᵀ ∂Y.

The operator is known to `torch.compile` and `torch.vmap`; plain tensors take the same product without its overhead,
which is as long as the product itself on a small graph. `reference_matmul` says the same in plain tensor operations.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from difformer._compat import is_exporting, is_transformed
from difformer.errors import UserError
from difformer.result_cache import ResultCache
from difformer.shortcut import is_eager


def check_scipy(matrix: Any, name: str = "") -> None:
    """Refuse a scipy matrix whose indices point outside of it, before anything follows them; `name` is for errors."""
    said = f"{name}: " if name else ""
    if hasattr(matrix, "check_format"):
        try:
            matrix.check_format(full_check=True)
            if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # scipy does not look where the last pointer is 0
                raise ValueError("index pointer values must not decrease")
        except ValueError as error:
            problem = f"{said}the indices of a sparse matrix of shape {tuple(matrix.shape)} do not fit it ({error})"
            advice = "make it from its entries: scipy.sparse.csr_array((values, (rows, columns)), shape)"
            raise UserError(f"{problem}; {advice}") from error
    elif hasattr(matrix, "row") and matrix.nnz:
        for axis, index, size in (("row", matrix.row, matrix.shape[0]), ("column", matrix.col, matrix.shape[1])):
            if index.min() < 0 or index.max() >= size:
                raise UserError(f"{said}{axis} indices must lie in 0 … {size - 1}, got {index.min()} … {index.max()}")


@dataclass(frozen=True)
class CSR:
    """Compressed rows: the entries of row i are ``crow[i]:crow[i + 1]`` of `col` and `value`.

    `longest` is the largest number of entries of a row; 0 if it is not known.
    """

    crow: Tensor
    col: Tensor
    value: Tensor
    longest: int = 0

    def as_tensor(self, size: tuple[int, int]) -> Tensor:
        """A view as torch's own sparse matrix, made once: making it takes as long as a small product."""
        known = self.__dict__.get("_tensor")
        if known is None or known.shape != size or torch.compiler.is_compiling():
            _silence_notice()
            with torch.inference_mode(False):
                known = torch.sparse_csr_tensor(self.crow, self.col, self.value, size, check_invariants=False)
            object.__setattr__(self, "_tensor", known)
        return known

    def row(self) -> Tensor:
        """The row of each entry."""
        count = (self.crow[1:] - self.crow[:-1]).long()
        rows = torch.arange(count.numel(), device=count.device)
        return rows.repeat_interleave(count, output_size=self.col.numel())

    def __getstate__(self) -> dict[str, Any]:
        return {"crow": self.crow, "col": self.col, "value": self.value, "longest": self.longest}

    def to(self, *args: Any, **kwargs: Any) -> CSR:
        value = self.value.to(*args, **kwargs)  # indices follow its device, not its dtype
        return CSR(self.crow.to(value.device), self.col.to(value.device), value, self.longest)


@dataclass(frozen=True)
class SparseMatrix:
    """A constant matrix, compressed by rows and by columns.

    Make one with `SparseMatrix.from_entries` or `SparseMatrix.from_tensor`; multiply with ``matrix @ dense``.
    """

    shape: tuple[int, int]
    rows: CSR
    columns: CSR

    @staticmethod
    def from_entries(row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> SparseMatrix:
        """Entries in any order; those that are given twice add up."""
        return SparseMatrix(shape, _compress(row, col, value, shape[0]), _compress(col, row, value, shape[1]))

    @staticmethod
    def from_tensor(matrix: Tensor) -> SparseMatrix:
        """From a torch sparse tensor of any layout."""
        coo = matrix.to_sparse_coo().coalesce()
        row, col = coo.indices()
        return SparseMatrix.from_entries(row, col, coo.values(), (matrix.shape[0], matrix.shape[1]))

    @staticmethod
    def of(matrix: Tensor) -> SparseMatrix:
        """`from_tensor`, computed once per tensor and dropped with it; an in-place change is noticed."""
        if not is_eager(matrix) or matrix.is_inference() or matrix.requires_grad:
            return SparseMatrix.from_tensor(matrix)
        return _MATRICES.of(matrix, (), lambda: SparseMatrix.from_tensor(matrix.detach()))

    @property
    def T(self) -> SparseMatrix:
        """The transpose; nothing is copied."""
        return SparseMatrix((self.shape[1], self.shape[0]), self.columns, self.rows)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.value.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.value.device

    def dim(self) -> int:
        return 2

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        return SparseMatrix(self.shape, self.rows.to(*args, **kwargs), self.columns.to(*args, **kwargs))

    def to_dense(self) -> Tensor:
        return reference_matmul(self.rows, torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    def __matmul__(self, x: Tensor) -> Tensor:
        """``S X`` for dense ``X [columns, …]``; low precision is summed in the matrix's own.

        Raises:
            ValueError: If X has another number of rows than the matrix has columns.
        """
        if x.shape[0] != self.shape[1]:
            raise UserError(f"a matrix of shape {self.shape} takes {self.shape[1]} rows, got {tuple(x.shape)}")
        # No -1: of a matrix without rows, as a rank may hold one, it could be any number.
        flat = (x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)).to(self.dtype)
        if is_exporting():  # an exported program must run where this package is not installed
            out = reference_matmul(self.rows, flat)
        elif not torch.compiler.is_compiling() and (is_eager(flat) or is_transformed(flat)):
            out = _Product.apply(self, flat)
        else:
            out = _matmul(*(x for csr in (self.rows, self.columns) for x in (csr.crow, csr.col, csr.value)), flat)
        return out.reshape(self.shape[0], *x.shape[1:]).to(x.dtype)


_MATRICES: ResultCache[SparseMatrix] = ResultCache()


def _compress(row: Tensor, col: Tensor, value: Tensor, num_rows: int) -> CSR:
    order = torch.argsort(row, stable=True)
    count = torch.bincount(row, minlength=num_rows)
    crow = torch.zeros(num_rows + 1, dtype=torch.long, device=row.device)
    crow[1:] = count.cumsum(0)  # fails for rows beyond the shape, which no kernel would notice
    # 32-bit indices are what the vendors' sparse products take without a conversion.
    index = torch.int32 if max(row.numel(), num_rows) < 2**31 else torch.int64
    longest = int(count.max()) if num_rows else 0
    return CSR(crow.to(index), col[order].to(index), value[order].contiguous(), longest)


def reference_matmul(matrix: CSR, x: Tensor) -> Tensor:
    """``S X`` in plain tensor operations: gather, scale, add up."""
    out = x.new_zeros(matrix.crow.numel() - 1, x.shape[1])
    return out.index_add(0, matrix.row(), matrix.value.unsqueeze(1) * x[matrix.col.long()])


# Kernels that may compute ``out ← β out + α S X`` in place of torch, and say whether they did, by the type of device;
# `difformer.kernels.cpu` and `difformer.kernels.rows` put them here.
fast_products: dict[str, Callable[[CSR, Tensor, Tensor, float, float], bool]] = {}


def add_product(matrix: CSR, x: Tensor, out: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """``out ← β out + α S X`` in one pass and in place; what `out` holds does not matter where β is 0. No gradients."""
    if matrix.value.numel() == 0 or x.numel() == 0:
        return out.zero_() if beta == 0 else out.mul_(beta)
    fast_product = fast_products.get(x.device.type)
    if fast_product is not None and fast_product(matrix, x, out, beta, alpha):
        return out
    rows = matrix.crow.numel() - 1
    if x.is_cuda and matrix.value.numel() > rows * x.shape[0]:  # repeated entries: more than the vendor's library takes
        start = out.zero_() if beta == 0 else out.mul_(beta)
        return start.add_(reference_matmul(matrix, x.to(matrix.value.dtype)), alpha=alpha)
    csr, x = matrix.as_tensor((rows, x.shape[0])), x.to(matrix.value.dtype).contiguous()
    if not torch.is_autocast_enabled(x.device.type):
        return torch.addmm(out, csr, x, beta=beta, alpha=alpha, out=out)  # half the time of `@` on a CPU
    with torch.autocast(x.device.type, enabled=False):  # mixed precision would cast one factor and not the other
        return torch.addmm(out, csr, x, beta=beta, alpha=alpha, out=out)


@functools.cache
def _silence_notice() -> None:
    """torch announces once per process that its CSR layout is in beta: not to our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


def _side_by_side(multiply: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> tuple[Tensor, int]:
    """Columns of all runs side by side: one product for all of them."""
    runs = x.movedim(dim, 1)
    out = multiply(runs.reshape(runs.shape[0], -1))
    return out.reshape(out.shape[0], *runs.shape[1:]), 1


class _Product(torch.autograd.Function):
    """``S X`` of plain tensors, and inside `torch.func`."""

    @staticmethod
    def forward(matrix: SparseMatrix, x: Tensor) -> Tensor:
        return add_product(matrix.rows, x, x.new_empty(matrix.shape[0], x.shape[1]), beta=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[SparseMatrix, Tensor], output: Tensor) -> None:
        ctx.matrix = inputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[None, int], matrix: SparseMatrix, x: Tensor) -> tuple[Tensor, int]:
        return _side_by_side(lambda columns: _Product.apply(matrix, columns), x, in_dims[1])

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor) -> Tensor:
        return ctx.matrix @ tangent

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.T @ grad


@torch.library.custom_op("difformer::sparse_matmul", mutates_args=())
def _matmul(
    crow: Tensor, col: Tensor, value: Tensor, crow_t: Tensor, col_t: Tensor, value_t: Tensor, x: Tensor
) -> Tensor:
    return add_product(CSR(crow, col, value), x, x.new_empty(crow.numel() - 1, x.shape[1]), beta=0)


@_matmul.register_fake
def _(crow: Tensor, col: Tensor, value: Tensor, crow_t: Tensor, col_t: Tensor, value_t: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(crow.shape[0] - 1, x.shape[1])


def _vmap(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, int]:
    *matrix, x = tensors
    if any(dim is not None for dim in in_dims[:6]):
        raise NotImplementedError("vmap over the sparse matrix itself: only the dense factor may carry a run axis")
    return _side_by_side(lambda columns: _matmul(*matrix, columns), x, in_dims[6])


_matmul.register_autograd(
    lambda ctx, grad: (None,) * 6 + (_matmul(*ctx.saved_tensors, grad),),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[3:6], *inputs[:3]),
)
_matmul.register_vmap(_vmap)
