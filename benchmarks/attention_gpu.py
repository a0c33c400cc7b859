"""All-pair sigmoid on a GPU, forward and backward: exact at the size of ogbn-proteins and of Pokec, and by polynomial.

Targets are those of one H200; on another device they are printed, and not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.attention_cpu import both_ways, inputs
from benchmarks.measure import Cost, Row, measure
from difformer.attention import propagate

GROUP = "attention, GPU, bfloat16"
PROTEINS, POKEC = 132_608, 1_632_803


def _reached(cost: Cost, seconds: float, gigabytes: float | None = None) -> bool | None:
    if "H200" not in torch.cuda.get_device_name():
        return None
    return cost.seconds <= seconds and (gigabytes is None or (cost.peak or 0) <= gigabytes * 1e9)


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)


def _exact(repeats: int) -> Iterator[Row]:
    given = inputs(PROTEINS, 64, torch.bfloat16, "cuda")
    work = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid"), *given)
    mine, softmax = measure(work, both_ways(_softmax, *given), repeats=repeats, gpu=True)
    title, target = f"sigmoid, N = {PROTEINS:,}, d = 64, exact", "≤ 143 ms, goal 65 ms"
    yield Row(GROUP, title, mine, "torch's softmax (SDPA)", softmax, target, _reached(mine, 0.143))


def _pokec(repeats: int) -> Iterator[Row]:
    given = inputs(POKEC, 64, torch.bfloat16, "cuda")
    near = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid", backend="polynomial", tol=1e-3), *given)
    (mine,) = measure(near, repeats=min(repeats, 5), gpu=True)
    target = "≤ 3 s, ≤ 12 GB"
    yield Row(GROUP, f"sigmoid to 1e-3, N = {POKEC:,}, polynomial", mine, "", None, target, _reached(mine, 3, 12))
    (mine,) = measure(both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid"), *given), repeats=1, gpu=True)
    target = "≤ 25 s, ≤ 12 GB"
    yield Row(GROUP, f"sigmoid, N = {POKEC:,}, exact", mine, "", None, target, _reached(mine, 25, 12))


def rows(repeats: int) -> Iterator[Row]:
    if torch.cuda.is_available():
        yield from _exact(repeats)
        yield from _pokec(repeats)
