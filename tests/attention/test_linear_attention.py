"""What is particular to the linear operator: its sums, its memory, and where pairs are cheaper."""

import pytest
import torch
from attention_cases import make_inputs, peak_bytes

from difformer.attention import Segments, dispatch, linear, propagate


@pytest.mark.parametrize("elements", [1, 100, 4096])
def test_parts_of_any_size(monkeypatch, elements):
    monkeypatch.setattr(linear, "CPU_PART", elements)
    q, k, v = make_inputs(300, 2, shared=True)
    torch.testing.assert_close(
        propagate(q, k, v, "simple", backend="linear"), propagate(q, k, v, "simple", backend="reference")
    )


def test_nothing_of_the_size_of_the_rows_is_kept_but_results():
    n, d = 100_000, 32
    inputs = make_inputs(n, 1, d, d, dtype=torch.float32)
    rows = 4 * n * d
    weight = torch.randn(n, 1, d)
    # The output and three gradients, the totals, and parts in the cache.
    used = peak_bytes(lambda: torch.autograd.grad(propagate(*inputs, "simple"), inputs, weight))
    assert used < 4.6 * rows + 16 * 2**20


def test_values_that_heads_share_are_not_repeated():
    n, d, heads = 20_000, 16, 8
    q, k, v = make_inputs(n, heads, d, 4 * d, shared=True, dtype=torch.float32)
    repeated = 4 * n * heads * 4 * d  # the output has this size, and its gradient
    weight = torch.randn(n, heads, 4 * d)
    used = peak_bytes(lambda: torch.autograd.grad(propagate(q, k, v, "simple"), (q, k, v), weight))
    assert used < 2 * repeated


def test_small_graphs_go_pair_by_pair_and_large_ones_by_sums():
    q, _, v = make_inputs(1, 1, 64, 64)
    assert dispatch.pairs_are_cheaper(q, v, Segments(torch.arange(210) // 21))
    assert not dispatch.pairs_are_cheaper(q, v, Segments(torch.arange(4000) // 400))


def test_totals_of_many_rows_are_exact_in_low_precision():
    n = 70_000  # as a bfloat16, 70,000 is 70,144, and its square root of rounding errors would show
    q, k, v = (x.detach().bfloat16() for x in make_inputs(n, 1, 4, 4))
    wide = propagate(*(x.double() for x in (q, k, v)), "simple")
    assert (propagate(q, k, v, "simple").double() - wide).abs().max() <= 0.01 * wide.abs().max()
