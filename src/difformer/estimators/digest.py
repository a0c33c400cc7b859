"""A fingerprint of every row: equal rows have equal ones, dense or sparse, in any order of columns' storage.

With b_ij the 64 bits of x_ij as a double and s_j a fixed number of column j,

    h_i = Σ_{j: x_ij ≠ 0} mix(b_ij ⊕ s_j)   mod 2^64,

once for each of two families of s_j: 128 bits in all, so that two different rows of a million agree with probability
10^-27. Zeros contribute nothing, which makes a sparse row and its dense copy one and the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

Array = np.ndarray[Any, Any]

ROWS_AT_ONCE = 4096


def mix(x: Array) -> Array:
    """A bijection of 64-bit numbers that leaves no bit of the result without a share of every bit of `x`."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _column_numbers(count: int, family: int) -> Array:
    return mix(mix(np.arange(1, count + 1, dtype=np.uint64)) + np.uint64(family * 0x9E3779B97F4A7C15 % 2**64))


def _bits(values: Array) -> Array:
    # Adding zero turns -0.0 into 0.0: numbers that are equal must have equal bits.
    return (np.ascontiguousarray(values, dtype=np.float64) + 0.0).view(np.uint64)


def row_digests(x: Any) -> Array:
    """``[N, 2]`` uint64 for the rows of a dense array or a scipy CSR matrix ``[N, F]``."""
    digests = np.zeros((x.shape[0], 2), dtype=np.uint64)
    numbers = [_column_numbers(x.shape[1], family) for family in (1, 2)]
    if sparse.issparse(x):
        rows = x.tocsr()
        row = np.repeat(np.arange(x.shape[0]), np.diff(rows.indptr))
        bits, filled = _bits(rows.data), rows.data != 0
        for family in (0, 1):
            each = np.where(filled, mix(bits ^ numbers[family][rows.indices]), np.uint64(0))
            np.add.at(digests[:, family], row, each)
        return digests
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        part = np.asarray(x[start : start + ROWS_AT_ONCE])
        bits, filled = _bits(part), part != 0
        for family in (0, 1):
            each = np.where(filled, mix(bits ^ numbers[family]), np.uint64(0))
            digests[start : start + ROWS_AT_ONCE, family] = each.sum(1, dtype=np.uint64)
    return digests


def find_rows(digests: Array, among: Array) -> Array:
    """``[M]``: for every digest the first row of `among` that has it, -1 where there is none."""
    order = np.lexsort((among[:, 1], among[:, 0]))
    known = among[order]
    # Two 64-bit halves as one sortable thing: structured arrays compare field by field.
    halves = np.dtype([("first", np.uint64), ("second", np.uint64)])
    known_pairs, pairs = (np.ascontiguousarray(part).view(halves).ravel() for part in (known, digests))
    place = np.minimum(np.searchsorted(known_pairs, pairs), len(known) - 1)
    return np.where((known[place] == digests).all(1), order[place], -1)
