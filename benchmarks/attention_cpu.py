"""All-pair propagation on a CPU, forward and backward, against the literal formulas and torch's own softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import literal
from benchmarks.measure import Row, Work, measure
from difformer.attention import Segments, explain, propagate

GROUP = "attention, CPU"
Operator = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(n: int, d: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, ...]:
    """q and k with unit rows, v, and a gradient of the output: ``[n, 1, d]`` each."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, grad = (torch.randn(n, 1, d, generator=generator, device=device) for _ in range(4))
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    return *(x.to(dtype).requires_grad_() for x in (q, k, v)), grad.to(dtype)


def both_ways(operator: Operator, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Work:
    """Forward and backward of one operator."""
    return lambda: torch.autograd.grad(operator(q, k, v), (q, k, v), grad)


def _linear(repeats: int) -> Iterator[Row]:
    given = inputs(200_000, 64)
    ours = both_ways(lambda q, k, v: propagate(q, k, v, "simple"), *given)
    mine, theirs = measure(ours, both_ways(literal.simple, *given), repeats=repeats)
    yield Row(GROUP, "simple, N = 200,000, d = 64", mine, "literal sums", theirs)


def _blockwise(repeats: int) -> Iterator[Row]:
    given = inputs(10_000, 64)
    ours = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid"), *given)
    mine, theirs = measure(ours, both_ways(literal.sigmoid, *given), repeats=min(repeats, 3))
    row = Row(GROUP, "sigmoid, N = 10,000, d = 64", mine, "literal, all pairs stored", theirs)
    reached = row.speedup is not None and row.speedup >= 2 and (row.memory_ratio is None or row.memory_ratio <= 1 / 20)
    yield Row(GROUP, row.work, mine, row.against, theirs, "≥ 2 × faster, ≤ 1/20 of the memory", reached)

    def torch_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)

    ours = both_ways(lambda q, k, v: propagate(q, k, v, "softmax"), *given)
    mine, theirs = measure(ours, both_ways(torch_softmax, *given), repeats=min(repeats, 3))
    yield Row(GROUP, "softmax, N = 10,000, d = 64", mine, "torch scaled_dot_product_attention", theirs)


def _large(repeats: int) -> Iterator[Row]:
    given = inputs(50_000, 64)
    (mine,) = measure(both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid"), *given), repeats=1, warm_up=False)
    reached = None if mine.peak is None else mine.peak < 1e9
    yield Row(GROUP, "sigmoid, N = 50,000, d = 64, exact", mine, target="< 1 GB (all pairs: > 40 GB)", reached=reached)


def _molecules(repeats: int) -> Iterator[Row]:
    sizes = torch.randint(10, 33, (8192,), generator=torch.Generator().manual_seed(0))
    batch = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    given, segments = inputs(len(batch), 64), Segments(batch)
    ours = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid", batch=segments), *given)
    padded = both_ways(lambda q, k, v: literal.sigmoid_padded(q, k, v, batch), *given)
    mine, theirs = measure(ours, padded, repeats=repeats)
    yield Row(GROUP, f"sigmoid, 8,192 graphs of 10 to 32 nodes ({len(batch):,} rows)", mine, "literal, padded", theirs)


def _growth(repeats: int) -> Iterator[Row]:
    for name, d, tol in (("simple", 64, None), ("sigmoid", 16, 1e-3)):
        few, many = (
            both_ways(lambda q, k, v: propagate(q, k, v, name, tol=tol), *inputs(n, d))  # noqa: B023
            for n in (50_000, 400_000)
        )
        small, large = measure(few, many, repeats=min(repeats, 5))
        ratio = large.fastest / small.fastest
        work = f"{name}, d = {d}, N = 400,000 by {explain(400_000, d, diffusivity=name, tol=tol).backend}"
        target = f"≤ 8.8 × the time of N = 50,000: {ratio:.1f} ×"
        yield Row(GROUP, work, large, "N = 50,000", small, target, ratio <= 8.8)


def _polynomial(repeats: int) -> Iterator[Row]:
    given = inputs(20_000, 16)
    near = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid", tol=1e-3), *given)
    exact = both_ways(lambda q, k, v: propagate(q, k, v, "sigmoid"), *given)
    mine, theirs = measure(near, exact, repeats=min(repeats, 3))
    yield Row(GROUP, "sigmoid to 1e-3, N = 20,000, d = 16, polynomial", mine, "exact, blockwise", theirs)


def rows(repeats: int) -> Iterator[Row]:
    for part in (_linear, _blockwise, _molecules, _polynomial, _growth, _large):
        yield from part(repeats)
