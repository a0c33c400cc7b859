"""The Triton kernels of `difformer.attention.pair_operator`: one forward, two backward. Imported only with a GPU.

Programs run over blocks of BM queries or BN keys (first axis of the grid) and heads (second). ``START``, ``END`` and
``GRAPH`` say, for rows sorted by graph, where a row's graph begins and ends and which it is; of a single graph
(``BATCHED`` false) they are not looked at. Channels are padded to BD and BC, powers of two, with zeros.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _exchange(s, FORM: tl.constexpr, FAST: tl.constexpr):
    """g(s) and g'(s)."""
    if FORM == 0:
        return 1.0 + s, tl.full(s.shape, 1.0, tl.float32)
    if FAST:  # one instruction of the special function unit, accurate to 2⁻¹¹: no less than bfloat16 inputs are
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [s * 0.5], tl.float32, True, 1)
        g = 0.5 * t + 0.5
    else:
        g = tl.sigmoid(s)
    return g, g * (1.0 - g)


@triton.jit
def _forward(
    Q, K, V, OUT, R, START, END, GRAPH, N, D, C, floor, stride_q, stride_v,
    FORM: tl.constexpr, FAST: tl.constexpr, BATCHED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    inside = rows < N
    q = tl.load(Q + head * stride_q + rows[:, None].to(tl.int64) * D + d, inside[:, None] & (d < D), 0.0)
    low, high = 0, N
    if BATCHED:
        own = tl.load(GRAPH + rows, inside, -1)
        low = tl.min(tl.load(START + rows, inside, N))
        high = tl.max(tl.load(END + rows, inside, 0))
        low = (low // BN) * BN
    acc = tl.zeros((BM, BC), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for first in range(low, high, BN):
        keys = first + tl.arange(0, BN)
        there = keys < N
        k = tl.load(K + head * stride_q + keys[None, :].to(tl.int64) * D + d[:, None], there & (d[:, None] < D), 0.0)
        g, _ = _exchange(tl.dot(q, k, input_precision=PRECISION), FORM, FAST)
        if BATCHED:
            other = tl.load(GRAPH + keys, there, -2)
            g = tl.where(own[:, None] == other[None, :], g, 0.0)
        elif first + BN > N:
            g = tl.where(there[None, :], g, 0.0)
        v = tl.load(V + head * stride_v + keys[:, None].to(tl.int64) * C + c, there[:, None] & (c < C), 0.0)
        total += tl.sum(g, 1)
        acc = tl.dot(g.to(v.dtype), v, acc, input_precision=PRECISION)
    least = floor * N
    if BATCHED:
        size = tl.load(END + rows, inside, 1) - tl.load(START + rows, inside, 0)
        total = tl.where(tl.abs(total) < floor * size, floor * size, total)
    else:
        total = tl.where(tl.abs(total) < least, least, total)
    out = acc / total[:, None]
    place = rows[:, None].to(tl.int64) * C + c
    tl.store(OUT + head * stride_v + place, out.to(OUT.dtype.element_ty), inside[:, None] & (c < C))
    tl.store(R + head * N + rows, total, inside)


@triton.jit
def _backward_keys(
    Q, K, V, A, CC, DK, DV, START, END, GRAPH, N, D, C, stride_q, stride_v,
    FORM: tl.constexpr, FAST: tl.constexpr, BATCHED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    there = keys < N
    k = tl.load(K + head * stride_q + keys[:, None].to(tl.int64) * D + d, there[:, None] & (d < D), 0.0)
    v = tl.load(V + head * stride_v + keys[:, None].to(tl.int64) * C + c, there[:, None] & (c < C), 0.0)
    low, high = 0, N
    if BATCHED:
        own = tl.load(GRAPH + keys, there, -1)
        low = tl.min(tl.load(START + keys, there, N))
        high = tl.max(tl.load(END + keys, there, 0))
        low = (low // BM) * BM
    dk = tl.zeros((BN, BD), tl.float32)
    dv = tl.zeros((BN, BC), tl.float32)
    for first in range(low, high, BM):
        rows = first + tl.arange(0, BM)
        inside = rows < N
        q = tl.load(Q + head * stride_q + rows[None, :].to(tl.int64) * D + d[:, None], inside & (d[:, None] < D), 0.0)
        a = tl.load(A + head * stride_v + rows[:, None].to(tl.int64) * C + c, inside[:, None] & (c < C), 0.0)
        const = tl.load(CC + head * N + rows, inside, 0.0)
        g, slope = _exchange(tl.dot(k, q, input_precision=PRECISION), FORM, FAST)  # [keys, rows]
        if BATCHED:
            other = tl.load(GRAPH + rows, inside, -2)
            same = own[:, None] == other[None, :]
            g = tl.where(same, g, 0.0)
            slope = tl.where(same, slope, 0.0)
        # Rows beyond the last have a = 0 and const = 0, so that they add nothing.
        dv = tl.dot(g.to(a.dtype), a, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(a), input_precision=PRECISION) - const[None, :]
        ds = (slope * dp).to(q.dtype)
        dk = tl.dot(ds, tl.trans(q), dk, input_precision=PRECISION)
    tl.store(
        DK + head * stride_q + keys[:, None].to(tl.int64) * D + d, dk.to(DK.dtype.element_ty),
        there[:, None] & (d < D),
    )  # fmt: skip
    tl.store(
        DV + head * stride_v + keys[:, None].to(tl.int64) * C + c, dv.to(DV.dtype.element_ty),
        there[:, None] & (c < C),
    )  # fmt: skip


@triton.jit
def _backward_queries(
    Q, K, V, A, CC, DQ, START, END, GRAPH, N, D, C, stride_q, stride_v,
    FORM: tl.constexpr, FAST: tl.constexpr, BATCHED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    inside = rows < N
    q = tl.load(Q + head * stride_q + rows[:, None].to(tl.int64) * D + d, inside[:, None] & (d < D), 0.0)
    a = tl.load(A + head * stride_v + rows[:, None].to(tl.int64) * C + c, inside[:, None] & (c < C), 0.0)
    const = tl.load(CC + head * N + rows, inside, 0.0)
    low, high = 0, N
    if BATCHED:
        own = tl.load(GRAPH + rows, inside, -1)
        low = tl.min(tl.load(START + rows, inside, N))
        high = tl.max(tl.load(END + rows, inside, 0))
        low = (low // BN) * BN
    dq = tl.zeros((BM, BD), tl.float32)
    for first in range(low, high, BN):
        keys = first + tl.arange(0, BN)
        there = keys < N
        k = tl.load(K + head * stride_q + keys[:, None].to(tl.int64) * D + d, there[:, None] & (d < D), 0.0)
        v = tl.load(V + head * stride_v + keys[None, :].to(tl.int64) * C + c[:, None], there & (c[:, None] < C), 0.0)
        _, slope = _exchange(tl.dot(q, tl.trans(k), input_precision=PRECISION), FORM, FAST)
        if BATCHED:
            other = tl.load(GRAPH + keys, there, -2)
            slope = tl.where(own[:, None] == other[None, :], slope, 0.0)
        # Keys beyond the last are zero vectors, so that their share of dq is zero.
        dp = tl.dot(a, v, input_precision=PRECISION) - const[:, None]
        dq = tl.dot((slope * dp).to(k.dtype), k, dq, input_precision=PRECISION)
    tl.store(
        DQ + head * stride_q + rows[:, None].to(tl.int64) * D + d, dq.to(DQ.dtype.element_ty),
        inside[:, None] & (d < D),
    )  # fmt: skip
