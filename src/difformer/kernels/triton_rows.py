"""Triton kernels that take many short rows at once, in float32. Imported where Triton is installed.

A program takes blocks of ROWS rows, D channels padded to the power of two WIDTH, and moves from block to block; sums
over rows are left as one row of ``PART`` per program, to be added by the caller. Arguments that are None are left out
of the compiled kernel. ``X_ROW`` is the distance between rows of X; a row's total is the last of its T_ROW numbers.
`difformer.kernels.gpu_layer` has the equations.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _block(first, N, real, ROWS: tl.constexpr):
    """Of the rows from `first` on: which exist, which of their padded channels exist, and their numbers."""
    rows = first + tl.arange(0, ROWS)
    inside = rows < N
    return inside, inside[:, None] & real, rows.to(tl.int64)


@triton.jit
def _deviation(x, real, D: tl.constexpr, eps):
    """x̂ = (x - μ) / √(σ² + ε) and 1 / √(σ² + ε), over the channels of each row."""
    centred = tl.where(real, x - (tl.sum(x, 1) / D)[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
    return centred * rstd[:, None], rstd


@triton.jit
def _pull_unit(g, y, norm):
    """The gradient of rows from that of their unit rows y."""
    return (g - y * tl.sum(g * y, 1)[:, None]) / norm[:, None]


@triton.jit(do_not_specialize=["N"])
def unit_forward(
    H, Z, VB, KB, QB, V, Y, NORM, PART, N, smallest,
    D: tl.constexpr, VALUES: tl.constexpr, UNITS: tl.constexpr, NORM_ROW: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, WIDTH)
    real = c < D
    v_sum, k_sum = tl.full((WIDTH,), 0.0, tl.float32), tl.full((WIDTH,), 0.0, tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        inside, there, row = _block(first, N, real, ROWS)
        start = row[:, None] * ((VALUES + UNITS) * D) + c
        if VALUES:
            v = tl.load(H + start, there, 0.0) + tl.load(VB + c, real, 0.0)
            tl.store(V + row[:, None] * D + c, v, there)
        elif PART is not None:
            v = tl.load(Z + row[:, None] * D + c, there, 0.0)
        for unit in tl.static_range(UNITS):
            place = start + (VALUES + unit) * D
            x = tl.load(H + place, there, 0.0)
            if unit == UNITS - 1:
                if QB is not None:
                    x += tl.load(QB + c, real, 0.0)
            else:
                x += tl.load(KB + c, real, 0.0)
            norm = tl.maximum(tl.sqrt(tl.sum(x * x, 1)), smallest)
            y = x / norm[:, None]
            tl.store(Y + place, y, there)
            if NORM is not None:
                tl.store(NORM + row * NORM_ROW + unit, norm, inside)
            if PART is not None and unit == 0:
                v_sum += tl.sum(tl.where(there, v, 0.0), 0)
                k_sum += tl.sum(tl.where(there, y, 0.0), 0)
    if PART is not None:
        mine = tl.program_id(0).to(tl.int64) * (2 * D) + c
        tl.store(PART + mine, v_sum, real)
        tl.store(PART + mine + D, k_sum, real)


@triton.jit(do_not_specialize=["N"])
def tail_forward(
    R, Q, SUMS, TOTAL, OBSERVED, Z, SOURCE, W, B, MASK, STEP, OUT, N, count, floor, a, b, c, s, eps,
    D: tl.constexpr, Q_ROW: tl.constexpr, T_ROW: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDTH)
    real = channel < D
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        inside, there, row = _block(first, N, real, ROWS)
        place = row[:, None] * D + channel
        x = tl.full((ROWS, WIDTH), 0.0, tl.float32)
        if R is not None:
            x = tl.load(R + place, there, 0.0)
            if SUMS is not None:
                x += tl.load(SUMS + channel, real, 0.0)
                q = tl.load(Q + row[:, None] * Q_ROW + channel, there, 0.0)
                total = count + tl.sum(q * tl.load(SUMS + D + channel, real, 0.0), 1)
                total = tl.where(tl.abs(total) < floor, floor, total)
                tl.store(TOTAL + row * T_ROW + T_ROW - 1, total, inside)
            else:
                total = tl.load(TOTAL + row * T_ROW + T_ROW - 1, inside, 1.0)
            x *= (b / total)[:, None]
        if OBSERVED is not None:
            x += c * tl.load(OBSERVED + place, there, 0.0).to(tl.float32)
        if Z is not None:
            x += a * tl.load(Z + place, there, 0.0)
        if SOURCE is not None:
            x += s * tl.load(SOURCE + place, there, 0.0)
        if STEP is not None:
            tl.store(STEP + place, x, there)
        if W is not None:
            x, _ = _deviation(tl.where(there, x, 0.0), real, D, eps)
            x = x * tl.load(W + channel, real, 0.0) + tl.load(B + channel, real, 0.0)
        if RELU:
            x = tl.where(x <= 0, 0.0, x)
        if MASK is not None:
            x *= tl.load(MASK + place, there, 0.0)
        tl.store(OUT + place, x, there)


@triton.jit(do_not_specialize=["N"])
def tail_backward(
    GRAD, MASK, STEP, W, B, R, TOTAL, G, A, INNER, PART, N, scale, eps, b, s,
    D: tl.constexpr, PARTS: tl.constexpr, T_ROW: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, WIDTH)
    real = c < D
    w_sum, b_sum = tl.full((WIDTH,), 0.0, tl.float32), tl.full((WIDTH,), 0.0, tl.float32)
    a_sum = tl.full((WIDTH,), 0.0, tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        inside, there, row = _block(first, N, real, ROWS)
        place = row[:, None] * D + c
        g = tl.load(GRAD + place, there, 0.0)
        if MASK is not None:
            g *= tl.load(MASK + place, there, 0).to(tl.float32) * scale
        if W is not None:
            unit, rstd = _deviation(tl.load(STEP + place, there, 0.0).to(tl.float32), real, D, eps)
            unit = tl.where(there, unit, 0.0)
            w = tl.load(W + c, real, 0.0)
            if RELU:
                g = tl.where(unit * w + tl.load(B + c, real, 0.0) <= 0, 0.0, g)
            w_sum += tl.sum(g * unit, 0)
            b_sum += tl.sum(g, 0)
            g *= w
            along, level = tl.sum(g * unit, 1) / D, tl.sum(g, 1) / D
            g = tl.where(there, (g - unit * along[:, None] - level[:, None]) * rstd[:, None], 0.0)
        elif RELU:
            g = tl.where(tl.load(STEP + place, there, 0.0) <= 0, 0.0, g)
        tl.store(G + place, s * g, there)
        if A is not None:
            total = tl.load(TOTAL + row * T_ROW + T_ROW - 1, inside, 1.0)
            g *= (b / total)[:, None]
            tl.store(A + place, g, there)
            a_sum += tl.sum(g, 0)
            if R is not None:
                tl.store(INNER + row, tl.sum(g * tl.load(R + place, there, 0.0), 1) / total, inside)
    if PART is not None:
        mine = tl.program_id(0).to(tl.int64) * (PARTS * D) + c
        tl.store(PART + mine, w_sum, real)
        tl.store(PART + mine + D, b_sum, real)
        if A is not None:
            tl.store(PART + mine + 2 * D, a_sum, real)


@triton.jit(do_not_specialize=["N"])
def query_backward(
    GRAD, A, Q, NORM, TOTAL, SUMS, H, PART, N, floor,
    D: tl.constexpr, PARTS: tl.constexpr, Q_ROW: tl.constexpr, H_ROW: tl.constexpr, NORM_ROW: tl.constexpr,
    UNIT: tl.constexpr, T_ROW: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, WIDTH)
    real = c < D
    k_sum, h_sum = tl.full((WIDTH,), 0.0, tl.float32), tl.full((WIDTH,), 0.0, tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        inside, there, row = _block(first, N, real, ROWS)
        g = tl.load(GRAD + row[:, None] * D + c, there, 0.0)
        q = tl.load(Q + row[:, None] * Q_ROW + c, there, 0.0)
        if SUMS is not None:
            a = tl.load(A + row[:, None] * D + c, there, 0.0)
            total = tl.load(TOTAL + row * T_ROW + T_ROW - 1, inside, 1.0)
            inner = (tl.sum(a * tl.load(SUMS + c, real, 0.0), 1) + tl.sum(q * g, 1)) / total
            inner = tl.where(total == floor, 0.0, inner)  # a total that was clamped depends on nothing
            g -= inner[:, None] * tl.load(SUMS + D + c, real, 0.0)
            k_sum -= tl.sum(inner[:, None] * q, 0)
        h = _pull_unit(g, q, tl.load(NORM + row * NORM_ROW + UNIT, inside, 1.0))
        tl.store(H + row[:, None] * H_ROW + (H_ROW - D) + c, h, there)
        h_sum += tl.sum(h, 0)
    if PART is not None:
        mine = tl.program_id(0).to(tl.int64) * (PARTS * D) + c
        tl.store(PART + mine + 3 * D, k_sum, real)
        tl.store(PART + mine + 4 * D, h_sum, real)


@triton.jit(do_not_specialize=["N"])
def sender_backward(
    K_GRAD, V_GRAD, OBSERVED, K, NORM, SUMS, EARLIER, G, H, Z_GRAD, PART, N, a, c,
    D: tl.constexpr, PARTS: tl.constexpr, VALUES: tl.constexpr, K_ROW: tl.constexpr, H_ROW: tl.constexpr,
    NORM_ROW: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDTH)
    real = channel < D
    v_sum, k_sum = tl.full((WIDTH,), 0.0, tl.float32), tl.full((WIDTH,), 0.0, tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        inside, there, row = _block(first, N, real, ROWS)
        place, start = row[:, None] * D + channel, row[:, None] * H_ROW + channel
        g, v = tl.load(K_GRAD + place, there, 0.0), tl.load(V_GRAD + place, there, 0.0)
        if SUMS is not None:
            v += tl.load(SUMS + 2 * D + channel, real, 0.0)
            g += tl.load(SUMS + 3 * D + channel, real, 0.0)
        k = tl.load(K + row[:, None] * K_ROW + channel, there, 0.0)
        h = _pull_unit(g, k, tl.load(NORM + row * NORM_ROW, inside, 1.0))
        if EARLIER is not None:
            h += tl.load(EARLIER + row[:, None] * D + channel, there, 0.0)
        tl.store(H + start + VALUES * D, h, there)
        k_sum += tl.sum(tl.where(there, h, 0.0), 0)
        if OBSERVED is not None:
            v += c * tl.load(OBSERVED + place, there, 0.0)
        if VALUES:
            tl.store(H + start, v, there)
            v_sum += tl.sum(tl.where(there, v, 0.0), 0)
        else:
            if G is not None:
                v += a * tl.load(G + place, there, 0.0)
            tl.store(Z_GRAD + place, v, there)
    mine = tl.program_id(0).to(tl.int64) * (PARTS * D) + channel
    tl.store(PART + mine, v_sum, real)
    tl.store(PART + mine + D, k_sum, real)


@triton.jit
def sparse_rows(
    CROW, COL, VALUE, X, OUT, alpha, beta,
    D: tl.constexpr, ADD: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    real = channel < D
    end = tl.load(CROW + row + 1)
    total = tl.full((EDGES, WIDTH), 0.0, tl.float32)
    for first in range(tl.load(CROW + row), end, EDGES):
        edge = first + tl.arange(0, EDGES)
        there = edge < end
        column = tl.load(COL + edge, there, 0).to(tl.int64)
        x = tl.load(X + column[:, None] * D + channel, there[:, None] & real, 0.0).to(tl.float32)
        total += tl.load(VALUE + edge, there, 0.0)[:, None] * x
    out = alpha * tl.sum(total, 0)
    if ADD:
        out += beta * tl.load(OUT + row * D + channel, real, 0.0)
    tl.store(OUT + row * D + channel, out, real)


@triton.jit(do_not_specialize=["N"])
def logistic_forward(X, TOTAL, N, T_ROW: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.full((COLUMNS,), 0.0, tl.float32)
    for first in range(0, N, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        y = 1 / (1 + tl.exp(-tl.load(X + row * N + column, column < N, 0.0)))
        tl.store(X + row * N + column, y, column < N)
        total += tl.where(column < N, y, 0.0)
    tl.store(TOTAL + row * T_ROW + T_ROW - 1, tl.sum(total, 0))


@triton.jit(do_not_specialize=["N"])
def logistic_backward(X, Y, INNER, N, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    inner = tl.load(INNER + row)
    for first in range(0, N, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        y = tl.load(Y + row * N + column, column < N, 0.0)
        x = tl.load(X + row * N + column, column < N, 0.0)
        tl.store(X + row * N + column, (x - inner) * y * (1 - y), column < N)
