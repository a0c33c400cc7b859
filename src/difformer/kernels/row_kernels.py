"""Triton kernels that take many short rows at once: LayerNorm and rows of unit length. Imported on a GPU alone.

A program takes blocks of ROWS rows, D channels padded to the power of two WIDTH. LayerNorm's backward programs go on
from block to block and keep their own sums for weight and bias, so that only as many rows are left to be added as there
are programs.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def norm_forward(X, W, B, Y, MEAN, RSTD, N, D, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    inside = rows < N
    there = inside[:, None] & (c < D)
    place = rows[:, None].to(tl.int64) * D + c
    x = tl.load(X + place, there, 0.0).to(tl.float32)
    mean = tl.sum(x, 1) / D
    centred = tl.where(c < D, x - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
    w, b = tl.load(W + c, c < D, 0.0).to(tl.float32), tl.load(B + c, c < D, 0.0).to(tl.float32)
    tl.store(Y + place, centred * rstd[:, None] * w + b, there)
    tl.store(MEAN + rows, mean, inside)
    tl.store(RSTD + rows, rstd, inside)


@triton.jit
def norm_backward(G, X, W, MEAN, RSTD, DX, DW, DB, N, D, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    c = tl.arange(0, WIDTH)
    w = tl.load(W + c, c < D, 0.0).to(tl.float32)
    dw, db = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = rows < N
        there = inside[:, None] & (c < D)
        place = rows[:, None].to(tl.int64) * D + c
        g = tl.load(G + place, there, 0.0).to(tl.float32)
        mean, rstd = tl.load(MEAN + rows, inside, 0.0), tl.load(RSTD + rows, inside, 0.0)
        x = tl.load(X + place, there, 0.0).to(tl.float32)
        unit = tl.where(there, (x - mean[:, None]) * rstd[:, None], 0.0)
        dw += tl.sum(g * unit, 0)
        db += tl.sum(g, 0)
        g *= w
        along, level = tl.sum(g * unit, 1) / D, tl.sum(g, 1) / D
        tl.store(DX + place, (g - unit * along[:, None] - level[:, None]) * rstd[:, None], there)
    mine = tl.program_id(0).to(tl.int64) * D + c
    tl.store(DW + mine, dw, c < D)
    tl.store(DB + mine, db, c < D)


@triton.jit
def unit_forward(X, Y, NORM, N, D, smallest, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    inside = rows < N
    there = inside[:, None] & (c < D)
    place = rows[:, None].to(tl.int64) * D + c
    x = tl.load(X + place, there, 0.0).to(tl.float32)
    norm = tl.maximum(tl.sqrt(tl.sum(x * x, 1)), smallest)
    tl.store(Y + place, x / norm[:, None], there)
    tl.store(NORM + rows, norm, inside)


@triton.jit
def unit_backward(G, Y, NORM, DX, N, D, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    inside = rows < N
    there = inside[:, None] & (c < D)
    place = rows[:, None].to(tl.int64) * D + c
    g, y = tl.load(G + place, there, 0.0).to(tl.float32), tl.load(Y + place, there, 0.0).to(tl.float32)
    norm = tl.load(NORM + rows, inside, 1.0)
    tl.store(DX + place, (g - y * tl.sum(g * y, 1)[:, None]) / norm[:, None], there)
