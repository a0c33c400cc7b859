"""Exponentials by torch's scaled dot product: on a GPU output and gradients, elsewhere what it is asked to compute."""

import dataclasses

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs

from difformer.attention import dispatch, propagate
from difformer.attention.scores import slope_of
from difformer.diffusion import gaussian

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
exponentials = pytest.mark.parametrize("diffusivity", ["softmax", gaussian(0.4), "sharp"], ids=str)


@exponentials
@pytest.mark.parametrize(("heads", "d", "c"), [(2, 5, 3), (1, 16, 16)])
def test_scaled_dot_product_is_the_row_normalised_exponential(diffusivity, heads, d, c):
    from difformer.attention.scores import score_key

    inputs = make_inputs(60, heads, d, c)
    slope = slope_of(score_key(diffusivity, d))
    found = answer_and_gradients(lambda *x: dispatch.softmax_attention(*x, slope), *inputs)
    assert_near(found, expected(diffusivity, *inputs), 1e-9)


@pytest.mark.parametrize("batch", [None, torch.zeros(4, dtype=torch.long)], ids=["one graph", "batch"])
@pytest.mark.parametrize("diffusivity", ["sigmoid", "softmax"])
def test_softmax_backend_refuses_unsupported_input_with_advice(diffusivity, batch):
    q, k, v = make_inputs(4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"'softmax' needs an exponential.* got .*cpu, torch.float32.*backend='auto'"):
        propagate(q, k, v, diffusivity, backend="softmax", batch=batch)


@pytest.mark.parametrize(("dtype", "widest"), [(torch.float32, 128), (torch.bfloat16, 256)])
def test_rows_too_wide_for_the_softmax_kernel_use_another_backend(dtype, widest):
    situation = dispatch.Situation(1000, widest, widest, 1, torch.device("cuda"), dtype)
    assert dispatch.softmax_serves(situation, "exponential")
    assert not dispatch.softmax_serves(dataclasses.replace(situation, c=widest + 1), "exponential")
    assert not dispatch.softmax_serves(situation, "sigmoid")
    assert not dispatch.softmax_serves(dataclasses.replace(situation, batched=True), "exponential")


@pytest.mark.gpu
@needs_gpu
@exponentials
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("n", "heads", "d", "c"), [(130, 2, 16, 8), (1000, 1, 64, 64), (515, 2, 33, 20)])
def test_output_and_gradients_on_a_gpu(diffusivity, dtype, tolerance, n, heads, d, c):
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(n, heads, d, c, dtype=dtype)]
    found = answer_and_gradients(lambda *x: propagate(*x, diffusivity, backend="softmax"), *inputs)
    assert_near(found, expected(diffusivity, *inputs), tolerance)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("diffusivity", ["sigmoid", "softmax"])
@pytest.mark.parametrize("width", [128, 200, 256])
def test_wide_rows_of_a_batch_equal_the_dense_formula(diffusivity, dtype, tolerance, width):
    batch = torch.randint(0, 9, (300,), generator=torch.Generator().manual_seed(0)).cuda()
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(300, 1, width, width, dtype=dtype)]
    found = answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=batch), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), tolerance)
