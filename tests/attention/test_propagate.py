"""Every operator against the formulas: output and every gradient, in every precision, with and without a batch."""

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs

from difformer.attention import Segments, propagate
from difformer.attention.reference import attention_matrix
from difformer.diffusion import Diffusivity, gaussian, softmax

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ALL = ["simple", "constant", "sigmoid", "softmax", gaussian(0.4), CAUCHY]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}

cases = pytest.mark.parametrize(
    ("backend", "diffusivity"),
    [("linear", d) for d in ALL[:2]] + [("blockwise", d) for d in ALL],
    ids=lambda x: getattr(x, "name", x),
)
precisions = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float64", "float32", "bfloat16"])
shapes = pytest.mark.parametrize(
    ("n", "heads", "d", "c", "shared"),
    [(1, 1, 4, 4, False), (2, 3, 5, 2, False), (97, 1, 8, 8, False), (130, 2, 8, 6, False), (130, 3, 16, 5, True)],
)


@cases
@precisions
@shapes
def test_one_graph_equals_the_dense_formula_with_gradients(backend, diffusivity, dtype, n, heads, d, c, shared):
    inputs = make_inputs(n, heads, d, c, shared=shared, dtype=dtype)
    actual = answer_and_gradients(lambda *x: propagate(*x, diffusivity, backend=backend), *inputs)
    assert_near(actual, expected(diffusivity, *inputs), TOLERANCE[dtype])


@cases
@precisions
@pytest.mark.parametrize("shared", [False, True], ids=["own values", "shared values"])
def test_batch_in_any_order(backend, diffusivity, dtype, shared):
    sizes = torch.tensor([1, 2, 0, 3, 40, 7, 7, 1, 65, 33])  # graph 2 has no rows
    batch = torch.repeat_interleave(torch.arange(10), sizes)
    batch = batch[torch.randperm(len(batch), generator=torch.Generator().manual_seed(2))]
    inputs = make_inputs(len(batch), 2, 6, 5, shared=shared, dtype=dtype)
    actual = answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=batch, backend=backend), *inputs)
    assert_near(actual, expected(diffusivity, *inputs, batch=batch), TOLERANCE[dtype])


@cases
def test_a_graph_in_a_batch_gets_its_answer_alone(backend, diffusivity):
    sizes = torch.tensor([1, 500, 2, 19, 118, 20, 1, 64])
    batch = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    batch = batch[torch.randperm(len(batch), generator=torch.Generator().manual_seed(3))]
    q, k, v = make_inputs(len(batch), 1, 8, 8, dtype=torch.float32)
    together = propagate(q, k, v, diffusivity, batch=batch, backend=backend)
    for graph in range(len(sizes)):
        mine = batch == graph
        alone = propagate(q[mine], k[mine], v[mine], diffusivity, backend=backend)
        torch.testing.assert_close(together[mine], alone, rtol=2e-5, atol=2e-6)


@cases
def test_what_is_not_finite_stays_in_its_graph(backend, diffusivity):
    batch = torch.repeat_interleave(torch.arange(6), torch.tensor([5, 3, 7, 3, 4, 9]))
    q, k, v = (x.detach() for x in make_inputs(len(batch), 1, 8, 8))
    healthy = propagate(q, k, v, diffusivity, batch=batch, backend=backend)
    v[0] = torch.nan
    sick = propagate(q, k, v, diffusivity, batch=batch, backend=backend)
    assert sick[batch == 0].isnan().all()
    torch.testing.assert_close(sick[batch != 0], healthy[batch != 0])


@cases
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_every_backend_passes_gradcheck(backend, diffusivity, batched):
    batch = torch.tensor([0, 1, 1, 0, 1, 2]) if batched else None
    inputs = make_inputs(6, 2, 3, 2, shared=True)
    assert torch.autograd.gradcheck(lambda *x: propagate(*x, diffusivity, batch=batch, backend=backend), inputs)


@pytest.mark.parametrize("backend", ["reference", "linear", "blockwise"])
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_rows_that_exchange_nothing_receive_nothing(backend, batched):
    # Every key opposite to every query: all exchanges 1 + x vanish, and 0/0 must be 0, not NaN.
    q = torch.zeros(6, 1, 4, dtype=torch.float64)
    q[..., 0] = 1
    k = (-q).requires_grad_()
    q.requires_grad_()
    v = torch.randn(6, 1, 3, dtype=torch.float64, requires_grad=True)
    batch = torch.tensor([0, 1, 0, 1, 1, 0]) if batched else None
    found = answer_and_gradients(lambda *x: propagate(*x, "simple", batch=batch, backend=backend), q, k, v)
    assert found[0].abs().max() < 1e-8
    assert_near(found, expected("simple", q, k, v, batch=batch), 1e-7)  # what is left of sums that cancel


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_exponentials_of_large_scores_stay_finite(backend, batched):
    q, k, v = (x.detach() for x in make_inputs(40, 1, 8, 5, dtype=torch.float32))
    q, k = (60 * q).requires_grad_(), (60 * k).requires_grad_()  # scores up to 3,600: e^x has long overflowed
    v.requires_grad_()
    batch = torch.arange(40) % 3 if batched else None
    operator = lambda *x: propagate(*x, softmax(1.0), batch=batch, backend=backend)
    found = answer_and_gradients(operator, q, k, v)
    assert all(x.isfinite().all() for x in found)
    assert_near(found, expected(softmax(1.0), q, k, v, batch=batch), 1e-3)


@pytest.mark.parametrize("backend", ["reference", "linear", "blockwise", "auto"])
def test_empty_input_gives_empty_output(backend):
    q, k, v = make_inputs(0, 2, 4, 3)
    assert propagate(q, k, v, "simple", backend=backend).shape == (0, 2, 3)
    empty = torch.empty(0, dtype=torch.long)
    assert propagate(q, k, v, "simple", batch=empty, backend=backend).shape == (0, 2, 3)


def test_propagation_without_a_head_axis_and_with_identity():
    q, k, v = (x.detach().squeeze(1) for x in make_inputs(9))
    torch.testing.assert_close(
        propagate(q, k, v, "sigmoid"), propagate(q[:, None], k[:, None], v[:, None], "sigmoid")[:, 0]
    )
    torch.testing.assert_close(propagate(q, k, v, "identity"), v)


def test_mixed_precision_meets_at_the_widest():
    q, k, v = make_inputs(20)
    assert propagate(q.float(), k.float(), v.bfloat16(), "sigmoid").dtype == torch.float32


def test_second_derivatives_say_where_to_get_them():
    q, k, v = make_inputs(5)
    for diffusivity in ("simple", "sigmoid"):
        (first,) = torch.autograd.grad(propagate(q, k, v, diffusivity).sum(), v, create_graph=True)
        with pytest.raises(RuntimeError, match="reference"):
            first.sum().backward()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda q, k, v: (q[:3], k, v, {}), r"q and k must both be"),
        (lambda q, k, v: (q, k, v[:3], {}), r"v must be \[9, 2 or 1, c\]"),
        (lambda q, k, v: (q, k, v, {"backend": "fast"}), r"backend must be one of auto, .* got 'fast'"),
        (lambda q, k, v: (q, k, v, {"batch": torch.zeros(4, dtype=torch.long)}), "batch names 4 rows, but q has 9"),
        (lambda q, k, v: (q, k, v, {"batch": torch.zeros(9)}), "batch must be a one-dimensional integer tensor"),
        (lambda q, k, v: (q, k, v, {"batch": torch.full((9,), -1)}), "graph numbers from 0, got -1"),
        (lambda q, k, v: (q, k, v, {"backend": "linear"}), "'linear' is for .* not 'sigmoid'"),
    ],
)
def test_errors_name_the_given_and_the_expected_value(change, complaint):
    q, k, v, options = change(*make_inputs(9, 2))
    with pytest.raises(ValueError, match=complaint):
        propagate(q, k, v, "sigmoid", **options)


def test_ready_segments_serve_every_layer():
    batch = torch.tensor([1, 0, 1, 1, 2, 0])
    q, k, v = make_inputs(6)
    torch.testing.assert_close(
        propagate(q, k, v, "sigmoid", batch=Segments(batch)), propagate(q, k, v, "sigmoid", batch=batch)
    )


def test_the_identity_is_one_matrix_per_head():
    q, k, v = make_inputs(5, 3, 4, 6)
    matrix = attention_matrix(q, k, "identity")
    assert torch.equal(matrix, torch.eye(5, dtype=q.dtype).expand(3, 5, 5))
    torch.testing.assert_close(propagate(q, k, v, "identity", backend="reference"), v)


@cases
@pytest.mark.parametrize("shared", [False, True])
def test_padding_of_a_block_sends_and_receives_nothing(backend, diffusivity, shared, monkeypatch):
    """Graphs of 8, 9 and 10 rows lie in one block of 10: output and every gradient are those of the formula."""
    monkeypatch.setattr("difformer.attention.dispatch.pairs_are_cheaper", lambda *_: False)
    sizes = torch.tensor([8, 10, 9, 8, 10])
    batch = torch.arange(5).repeat_interleave(sizes)[torch.randperm(45, generator=torch.Generator().manual_seed(3))]
    segments = Segments(batch)
    assert any(block.place is not None for block in segments.blocks)
    inputs = make_inputs(45, 2, 5, 3, shared=shared)
    found = answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=segments, backend=backend), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), 1e-11)
