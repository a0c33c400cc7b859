"""FlexAttention as an operator: on a GPU output and gradients, elsewhere what it is asked to compute."""

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs

from difformer.attention import Segments, flex, propagate
from difformer.diffusion import Diffusivity, gaussian

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ALL = ["simple", "sigmoid", "softmax", gaussian(0.4), CAUCHY]
diffusivities = pytest.mark.parametrize("diffusivity", ALL, ids=lambda x: getattr(x, "name", x))


@diffusivities
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_what_is_asked_for(monkeypatch, diffusivity, batched):
    """Without a compiler FlexAttention computes all pairs, on a CPU too: the same scores and the same mask."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "serves", lambda *_: True)
    monkeypatch.setattr(flex, "_compiled", lambda *_: flex_attention)
    batch = torch.randint(0, 4, (300,), generator=torch.Generator().manual_seed(0)) if batched else None
    q, k, v = (x.detach() for x in make_inputs(300, 2, 5, 3, dtype=torch.float32))
    found = flex.propagate(q, k, v, diffusivity, None if batch is None else Segments(batch))
    wanted = propagate(q, k, v, diffusivity, batch=batch, backend="reference")
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_blocks_that_a_batch_visits():
    graph = torch.repeat_interleave(torch.arange(5), torch.tensor([100, 300, 50, 1, 400]))
    mask = flex._mask(Segments(graph))
    assert flex._mask(ready := Segments(graph)) is flex._mask(ready)
    blocks = torch.nn.functional.pad(graph, (0, -len(graph) % 128), value=-1).view(-1, 128)
    needed = torch.tensor([[bool(torch.isin(a[a >= 0], b).any()) for b in blocks] for a in blocks])
    visited = mask.to_dense()[0, 0].bool()
    assert (visited | ~needed).all(), "a block of pairs is left out"
    assert visited.sum() <= needed.sum() + 2, "blocks are visited in vain"


def test_a_cpu_is_told_what_to_do():
    q, k, v = make_inputs(4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"'flex' needs a CUDA device.* got cpu, torch.float32.*backend='auto'"):
        propagate(q, k, v, "sigmoid", backend="flex")


@pytest.mark.gpu
@needs_gpu
@diffusivities
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("n", "heads", "d", "c"), [(130, 2, 16, 8), (1000, 1, 64, 64), (515, 2, 33, 20)])
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_output_and_gradients(diffusivity, dtype, tolerance, n, heads, d, c, batched):
    batch = torch.randint(0, 9, (n,), generator=torch.Generator().manual_seed(0)).cuda() if batched else None
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(n, heads, d, c, dtype=dtype)]
    found = answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=batch, backend="flex"), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), tolerance)


@pytest.mark.parametrize(("dtype", "widest"), [(torch.float32, 128), (torch.bfloat16, 256)])
def test_rows_that_no_block_can_hold_are_left_to_others(dtype, widest):
    cuda = torch.device("cuda")
    assert flex.serves(cuda, dtype, widest, 1000)
    assert not flex.serves(cuda, dtype, widest + 1, 1000)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("width", [128, 200, 256])
def test_wide_rows_of_a_batch(dtype, tolerance, width):
    batch = torch.randint(0, 9, (300,), generator=torch.Generator().manual_seed(0)).cuda()
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(300, 1, width, width, dtype=dtype)]
    found = answer_and_gradients(lambda *x: propagate(*x, "sigmoid", batch=batch), *inputs)
    assert_near(found, expected("sigmoid", *inputs, batch=batch), tolerance)
