"""The Triton kernels of `difformer.attention.pair_operator`: one forward, two backward. Imported only with a GPU.

Programs run over blocks of BM queries or BN keys (first axis of the grid) and heads (second). ``START``, ``END`` and
``GRAPH`` say, for rows sorted by graph, where a row's graph begins and ends and which it is; for a single graph
(``BATCHED`` false) they are not read. Channels are padded to BD and BC, powers of two, with zeros.

Tensor cores multiply numbers of 8 bits (bfloat16) or 11 (float16). A float32 of 24 bits is the sum of three bfloat16,
and a product is the sum of the six products of its parts that matter. Factors have PARTS = 1 or 3, ``step`` elements
apart.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def split(X, OUT, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the parts of ``X [count]`` to ``OUT [PARTS, count]``."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = tl.load(X + place, place < count, 0.0)
    for _ in tl.static_range(PARTS):
        found = rest.to(OUT.dtype.element_ty)
        tl.store(OUT + place, found, place < count)
        OUT += count  # part * count may exceed 32 bits
        rest -= found.to(tl.float32)


@triton.jit
def _parts(x, like, PARTS: tl.constexpr):
    """The parts of a tile of float32, in the type of `like`; those beyond PARTS repeat the first and are not used."""
    first = x.to(like.dtype)
    second, third = first, first
    if PARTS > 1:
        rest = x - first.to(tl.float32)
        second = rest.to(like.dtype)
        third = (rest - second.to(tl.float32)).to(like.dtype)
    return first, second, third


@triton.jit
def _load(X, step, rows, inside, c, C, TURNED: tl.constexpr, PARTS: tl.constexpr):
    """The parts of some rows of ``X [N, C]``: ``[rows, channels]``, or ``[channels, rows]`` if TURNED."""
    if TURNED:
        place, there = rows[None, :].to(tl.int64) * C + c[:, None], inside[None, :] & (c[:, None] < C)
    else:
        place, there = rows[:, None].to(tl.int64) * C + c[None, :], inside[:, None] & (c[None, :] < C)
    first = tl.load(X + place, there, 0.0)
    second, third = first, first
    if PARTS > 1:
        second = tl.load(X + step + place, there, 0.0)
        third = tl.load(X + step + step + place, there, 0.0)  # 2 * step may exceed 32 bits
    return first, second, third


@triton.jit
def _dot(a, b, acc, PARTS: tl.constexpr):
    """acc + A B from the parts of both factors, the smallest products first."""
    if PARTS > 1:
        acc = tl.dot(a[2], b[0], acc)
        acc = tl.dot(a[0], b[2], acc)
        acc = tl.dot(a[1], b[1], acc)
        acc = tl.dot(a[1], b[0], acc)
        acc = tl.dot(a[0], b[1], acc)
    return tl.dot(a[0], b[0], acc)


@triton.jit
def _add(acc, a, b, PARTS: tl.constexpr):
    """acc + A B, for sums over all blocks."""
    # Tensor cores cut off what they add to a sum instead of rounding it, and the bias grows with the number of blocks.
    if PARTS > 1:
        return acc + _dot(a, b, tl.zeros(acc.shape, tl.float32), PARTS)
    return _dot(a, b, acc, PARTS)


@triton.jit
def _turn(x):
    return tl.trans(x[0]), tl.trans(x[1]), tl.trans(x[2])


@triton.jit
def _exchange(s, FORM: tl.constexpr, NEAR: tl.constexpr):
    """g(s) and g'(s)."""
    if FORM == 0:
        return 1.0 + s, tl.full(s.shape, 1.0, tl.float32)
    if NEAR:  # one instruction of the special function unit, accurate to 2⁻¹¹: no less than bfloat16 inputs are
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [s * 0.5], tl.float32, True, 1)
        g = 0.5 * t + 0.5
    else:
        g = tl.sigmoid(s)
    return g, g * (1.0 - g)


@triton.jit
def _range(START, END, rows, inside, N, BLOCK: tl.constexpr, BATCHED: tl.constexpr):
    """Which rows the graphs of a block span, from a multiple of BLOCK on."""
    low, high = 0, N
    if BATCHED:
        low = tl.min(tl.load(START + rows, inside, N)) // BLOCK * BLOCK
        high = tl.max(tl.load(END + rows, inside, 0))
    return low, high


@triton.jit
def _forward(
    Q, K, V, OUT, R, START, END, GRAPH, N, D, C, floor, stride_q, stride_v, step_q, step_v,
    FORM: tl.constexpr, PARTS: tl.constexpr, BATCHED: tl.constexpr, NEAR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    inside = rows < N
    q = _load(Q + head * stride_q, step_q, rows, inside, d, D, False, PARTS)
    low, high = _range(START, END, rows, inside, N, BN, BATCHED)
    if BATCHED:
        own = tl.load(GRAPH + rows, inside, -1)
    acc = tl.zeros((BM, BC), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for first in range(low, high, BN):
        keys = first + tl.arange(0, BN)
        there = keys < N
        k = _load(K + head * stride_q, step_q, keys, there, d, D, True, PARTS)
        g, _ = _exchange(_dot(q, k, tl.zeros((BM, BN), tl.float32), PARTS), FORM, NEAR)
        if BATCHED:
            other = tl.load(GRAPH + keys, there, -2)
            g = tl.where(own[:, None] == other[None, :], g, 0.0)
        elif first + BN > N:
            g = tl.where(there[None, :], g, 0.0)
        v = _load(V + head * stride_v, step_v, keys, there, c, C, False, PARTS)
        total += tl.sum(g, 1)
        acc = _add(acc, _parts(g, v[0], PARTS), v, PARTS)
    size = N
    if BATCHED:
        size = tl.load(END + rows, inside, 1) - tl.load(START + rows, inside, 0)
    total = tl.where(tl.abs(total) < floor * size, floor * size, total)
    out = acc / total[:, None]
    place = rows[:, None].to(tl.int64) * C + c
    tl.store(OUT + head * stride_v + place, out.to(OUT.dtype.element_ty), inside[:, None] & (c < C))
    tl.store(R + head * N + rows, total, inside)


@triton.jit
def _backward_keys(
    Q, K, V, A, CC, DK, DV, START, END, GRAPH, N, D, C, stride_q, stride_v, step_q, step_v,
    FORM: tl.constexpr, PARTS: tl.constexpr, BATCHED: tl.constexpr, NEAR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    there = keys < N
    k = _load(K + head * stride_q, step_q, keys, there, d, D, False, PARTS)
    v = _load(V + head * stride_v, step_v, keys, there, c, C, False, PARTS)
    low, high = _range(START, END, keys, there, N, BM, BATCHED)
    if BATCHED:
        own = tl.load(GRAPH + keys, there, -1)
    dk = tl.zeros((BN, BD), tl.float32)
    dv = tl.zeros((BN, BC), tl.float32)
    for first in range(low, high, BM):
        rows = first + tl.arange(0, BM)
        inside = rows < N
        q = _load(Q + head * stride_q, step_q, rows, inside, d, D, True, PARTS)
        a = _load(A + head * stride_v, step_v, rows, inside, c, C, False, PARTS)
        const = tl.load(CC + head * N + rows, inside, 0.0)
        g, slope = _exchange(_dot(k, q, tl.zeros((BN, BM), tl.float32), PARTS), FORM, NEAR)  # [keys, rows]
        if BATCHED:
            other = tl.load(GRAPH + rows, inside, -2)
            same = own[:, None] == other[None, :]
            g = tl.where(same, g, 0.0)
            slope = tl.where(same, slope, 0.0)
        # Rows beyond the last have a = 0 and const = 0, so that they add nothing.
        dv = _add(dv, _parts(g, a[0], PARTS), a, PARTS)
        dp = _dot(v, _turn(a), tl.zeros((BN, BM), tl.float32), PARTS) - const[None, :]
        dk = _add(dk, _parts(slope * dp, q[0], PARTS), _turn(q), PARTS)
    place_k, place_v = keys[:, None].to(tl.int64) * D + d, keys[:, None].to(tl.int64) * C + c
    tl.store(DK + head * stride_q + place_k, dk.to(DK.dtype.element_ty), there[:, None] & (d < D))
    tl.store(DV + head * stride_v + place_v, dv.to(DV.dtype.element_ty), there[:, None] & (c < C))


@triton.jit
def _backward_queries(
    Q, K, V, A, CC, DQ, START, END, GRAPH, N, D, C, stride_q, stride_v, step_q, step_v,
    FORM: tl.constexpr, PARTS: tl.constexpr, BATCHED: tl.constexpr, NEAR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d, c = tl.arange(0, BD), tl.arange(0, BC)
    inside = rows < N
    q = _load(Q + head * stride_q, step_q, rows, inside, d, D, False, PARTS)
    a = _load(A + head * stride_v, step_v, rows, inside, c, C, False, PARTS)
    const = tl.load(CC + head * N + rows, inside, 0.0)
    low, high = _range(START, END, rows, inside, N, BN, BATCHED)
    if BATCHED:
        own = tl.load(GRAPH + rows, inside, -1)
    dq = tl.zeros((BM, BD), tl.float32)
    for first in range(low, high, BN):
        keys = first + tl.arange(0, BN)
        there = keys < N
        k = _load(K + head * stride_q, step_q, keys, there, d, D, False, PARTS)
        v = _load(V + head * stride_v, step_v, keys, there, c, C, True, PARTS)
        _, slope = _exchange(_dot(q, _turn(k), tl.zeros((BM, BN), tl.float32), PARTS), FORM, NEAR)
        if BATCHED:
            other = tl.load(GRAPH + keys, there, -2)
            slope = tl.where(own[:, None] == other[None, :], slope, 0.0)
        # Keys beyond the last are zero vectors, so that their share of dq is zero.
        dp = _dot(a, v, tl.zeros((BM, BN), tl.float32), PARTS) - const[:, None]
        dq = _add(dq, _parts(slope * dp, k[0], PARTS), k, PARTS)
    place = rows[:, None].to(tl.int64) * D + d
    tl.store(DQ + head * stride_q + place, dq.to(DQ.dtype.element_ty), inside[:, None] & (d < D))
