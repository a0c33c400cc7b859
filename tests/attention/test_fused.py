"""The fused kernels: on a GPU themselves, and everywhere the code around them, with the kernels played by formulas."""

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs

from difformer.attention import Segments
from difformer.attention import pair_operator as fused
from difformer.diffusivity import SIGMOID, SIMPLE

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_gpu = pytest.mark.gpu
BATCH = torch.tensor([3, 0, 2, 2, 0, 3, 3, 0, 0, 2, 2, 2, 5, 0, 3])  # unsorted; graphs 1 and 4 have no rows


def masked(values, start, end, graph, batched):
    return values * (graph.unsqueeze(1) == graph) if batched else values


class Played:
    """What the kernels compute, in tensor operations, called as they are called."""

    class Kernel:
        def __init__(self, work):
            self.work = work

        def __getitem__(self, grid):
            assert all(isinstance(size, int) and size > 0 for size in grid)
            return self.work

    def __init__(self):
        for name in ("_forward", "_backward_keys", "_backward_queries"):
            setattr(self, name, self.Kernel(getattr(self, name[1:])))
        self.split = self.Kernel(self.split_into_parts)

    @staticmethod
    def split_into_parts(x, out, count, *, PARTS, BLOCK):
        assert count == x.numel()
        assert out.shape == (PARTS, *x.shape)
        rest = x.clone()
        for part in out:
            part.copy_(rest)
            rest -= part

    @staticmethod
    def exchange(q, k, form, graph, batched):
        x = q @ k.mT
        g, slope = (1 + x, torch.ones_like(x)) if form == 0 else (x.sigmoid(), x.sigmoid() * (-x).sigmoid())
        return masked(g, None, None, graph, batched), masked(slope, None, None, graph, batched)

    @staticmethod
    def whole(parts, step, *factors):
        """Factors from their parts, after a look at how they lie in memory."""
        factors = [x.unsqueeze(0) if parts == 1 else x for x in factors]
        for x in factors:
            assert x.is_contiguous()
            assert x.shape[0] == parts
            assert not x.isinf().any()
        assert step == factors[0][0].numel()
        return [x.double().sum(0) for x in factors]

    def forward(
        self, q, k, v, out, total, start, end, graph, n, d, c, least, sq, sv, pq, pv, *, FORM, BATCHED, PARTS, **_
    ):
        q, k = self.whole(PARTS, pq, q, k)
        (v,) = self.whole(PARTS, pv, v)
        assert (n, d, c, sq, sv) == (q.shape[1], q.shape[2], v.shape[2], n * d, n * c)
        g, _ = self.exchange(q, k, FORM, graph, BATCHED)
        floor = least * ((end - start).double() if BATCHED else n)
        r = g.sum(-1)
        r = torch.where(r.abs() < floor, torch.as_tensor(floor).to(r), r)
        total.copy_(r)
        out.copy_((g @ v) / r.unsqueeze(-1))

    def backward_keys(
        self, q, k, v, a, const, dk, dv, start, end, graph, n, d, c, sq, sv, pq, pv, *, FORM, BATCHED, PARTS, **_
    ):
        (q, k), (v, a) = self.whole(PARTS, pq, q, k), self.whole(PARTS, pv, v, a)
        g, slope = self.exchange(q, k, FORM, graph, BATCHED)
        ds = slope * (a @ v.mT - const.double().unsqueeze(-1))
        dv.copy_(g.mT @ a)
        dk.copy_(ds.mT @ q)

    def backward_queries(
        self, q, k, v, a, const, dq, start, end, graph, n, d, c, sq, sv, pq, pv, *, FORM, BATCHED, PARTS, **_
    ):
        (q, k), (v, a) = self.whole(PARTS, pq, q, k), self.whole(PARTS, pv, v, a)
        _, slope = self.exchange(q, k, FORM, graph, BATCHED)
        dq.copy_((slope * (a @ v.mT - const.double().unsqueeze(-1))) @ k)


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(fused, "kernels", Played())
    monkeypatch.setattr(fused, "serves", lambda *_: True)


@pytest.mark.parametrize("diffusivity", [SIMPLE, SIGMOID], ids=lambda d: d.name)
@pytest.mark.parametrize("batch", [None, BATCH], ids=["one graph", "batch"])
@pytest.mark.parametrize("shared", [False, True])
def test_fused_wrapper_equals_the_dense_formula_with_gradients(played, diffusivity, batch, shared):
    inputs = make_inputs(len(BATCH), 2, 5, 3, shared=shared, dtype=torch.float32)
    segments = None if batch is None else Segments(batch)
    found = answer_and_gradients(lambda *x: fused.propagate(*x, diffusivity, segments), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), 2e-6)


@pytest.mark.parametrize("batch", [None, BATCH], ids=["one graph", "batch"])
def test_rows_that_exchange_nothing(played, batch):
    q = torch.zeros(len(BATCH), 1, 4)
    q[..., 0] = 1
    inputs = [q.requires_grad_(), (-q).detach().requires_grad_(), make_inputs(len(BATCH), dtype=torch.float32)[2]]
    segments = None if batch is None else Segments(batch)
    found = answer_and_gradients(lambda *x: fused.propagate(*x, SIMPLE, segments), *inputs)
    assert_near(found, expected(SIMPLE, *inputs, batch=batch), 1e-6)


@pytest.mark.parametrize("batch", [None, BATCH], ids=["one graph", "batch"])
def test_transforms_around_the_kernels(played, batch):
    segments = None if batch is None else Segments(batch)
    each = [make_inputs(len(BATCH), 2, 5, 3, dtype=torch.float32, seed=s) for s in range(3)]
    inputs = [torch.stack(x).detach() for x in zip(*each, strict=True)]
    one = lambda *x: fused.propagate(*x, SIGMOID, segments)
    torch.testing.assert_close(torch.vmap(one)(*inputs), torch.stack([one(*run) for run in zip(*inputs, strict=True)]))
    gradient = torch.func.grad(lambda *x: one(*x).square().sum(), (0, 1, 2))
    together = torch.vmap(gradient)(*inputs)
    for run in range(3):
        for a, b in zip(together, gradient(*(x[run] for x in inputs)), strict=True):
            torch.testing.assert_close(a[run], b)
    torch.compiler.reset()
    by_name = lambda *x: fused.propagate(*x, "sigmoid", segments)
    compiled = torch.compile(by_name, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*each[0]), one(*each[0]))


@pytest.fixture
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("precision", "parts"), [("highest", 3), ("high", 1), ("medium", 1)], indirect=["precision"])
def test_float32_is_multiplied_as_precisely_as_torch_is_asked_to(precision, parts):
    assert fused.parts_of(torch.float32, "sigmoid") == parts
    assert fused.parts_of(torch.float32, "simple") == 3  # scores without a bound
    assert fused.parts_of(torch.bfloat16, "sigmoid") == 1


@pytest.mark.parametrize("precision", ["high"], indirect=True)
@pytest.mark.parametrize("batch", [None, BATCH], ids=["one graph", "batch"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_values_and_gradients_of_any_size_fit_into_float16(played, precision, batch, size):
    """Values are `size`, gradients of the answers 1 / `size`: neither overflows, and none is lost to underflow."""
    segments = None if batch is None else Segments(batch)
    rows = make_inputs(len(BATCH), 2, 5, 3, dtype=torch.float32)
    q, k, v = rows[0], rows[1], (rows[2].detach() * size).requires_grad_()
    found = answer_and_gradients(lambda *x: fused.propagate(*x, SIGMOID, segments) / size, q, k, v)
    wanted = [x / y for x, y in zip(expected(SIGMOID, *rows, batch=batch), (1, 1, 1, size), strict=True)]
    for mine, exact in zip(found, wanted, strict=True):
        assert (mine.double() - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_problems_and_graphs_in_float16_do_not_affect_each_other(played, precision):
    """Values 1e9 times as large, or not a number, in one run or graph leave the others as they are alone."""
    each = [make_inputs(len(BATCH), 2, 5, 3, dtype=torch.float32, seed=s) for s in range(3)]
    runs = [torch.stack(x).detach() for x in zip(*each, strict=True)]
    runs[2][0] *= 1e9
    runs[2][2, 0, 0] = torch.nan
    found = torch.vmap(lambda *x: fused.propagate(*x, SIGMOID))(*runs)
    torch.testing.assert_close(found[1], fused.propagate(*(x[1] for x in runs), SIGMOID), rtol=0, atol=0)
    q, k, v = (x.detach() for x in each[0])
    v[BATCH == 0] *= 1e9
    graph = [x.requires_grad_() for x in (q, k, v)]
    alone = [x.detach()[BATCH == 2].requires_grad_() for x in graph]
    weight = torch.randn(len(BATCH), 2, 3, generator=torch.Generator().manual_seed(1)) / (1 + 1e9 * (BATCH == 0)).view(
        -1, 1, 1
    )
    together = torch.autograd.grad(fused.propagate(*graph, SIGMOID, Segments(BATCH)), graph, weight)
    single = torch.autograd.grad(fused.propagate(*alone, SIGMOID), alone, weight[BATCH == 2])
    for mine, other in zip(together, single, strict=True):
        torch.testing.assert_close(mine[BATCH == 2], other, rtol=2e-3, atol=1e-3 * float(other.abs().max()))


@pytest.mark.parametrize("precision", ["high"], indirect=True)
@pytest.mark.parametrize("size", [0.0, 1e-8, 1e-35])
@pytest.mark.parametrize("slope", [0.0, 1e-10])
def test_no_value_and_no_gradient_of_float16_is_lost(played, precision, size, slope):
    q, k, v = make_inputs(len(BATCH), dtype=torch.float32)
    given = [q, k, (v.detach() * size).requires_grad_()]
    found = answer_and_gradients(lambda *x: slope * fused.propagate(*x, SIGMOID), *given)
    exact = slope * expected(SIGMOID, *given)[3]  # the gradient of the values does not depend on their size
    assert all(x.isfinite().all() for x in found)
    assert (found[3] - exact).norm() <= 1e-3 * exact.norm()


def test_float16_inputs_whose_gradients_are_small(played):
    inputs = [x.detach().half().requires_grad_() for x in make_inputs(len(BATCH), 2, 5, 3, dtype=torch.float32)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    found = answer_and_gradients(lambda *x: 1e-4 * fused.propagate(*x, SIGMOID).float(), *inputs)
    for mine, exact in zip(found, expected(SIGMOID, *wide), strict=True):
        assert (1e4 * mine.double() - exact).norm() < 1e-2 * exact.norm()


def test_fused_backend_refuses_the_cpu():
    q, k, v = make_inputs(4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"'fused' needs CUDA .* got cpu"):
        fused.propagate(q, k, v, SIGMOID)
    assert not fused.serves("exponential", torch.device("cuda"), torch.float32, 64)


@on_gpu
@needs_gpu
@pytest.mark.parametrize("diffusivity", [SIMPLE, SIGMOID], ids=lambda d: d.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    ("n", "heads", "d", "c"),
    [(1, 1, 4, 4), (130, 2, 16, 8), (1000, 1, 64, 64), (515, 3, 33, 20), (400, 1, 128, 128), (90, 2, 20, 100)],
)
@pytest.mark.parametrize("batched", [False, True])
def test_fused_kernels_equal_the_dense_formula_with_gradients(diffusivity, dtype, tolerance, n, heads, d, c, batched):
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 9, (n,), generator=generator).cuda() if batched else None
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(n, heads, d, c, dtype=dtype)]
    segments = None if batch is None else Segments(batch)
    found = answer_and_gradients(lambda *x: fused.propagate(*x, diffusivity, segments), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), tolerance)


@on_gpu
@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 2e-6), ("high", 1e-3)], indirect=["precision"])
@pytest.mark.parametrize(("n", "d"), [(515, 48), (3000, 64), (130, 128)])
def test_float32_on_tensor_cores(precision, tolerance, n, d):
    """Of every result and gradient the relative error in the Euclidean norm."""
    inputs = [x.detach().cuda().requires_grad_() for x in make_inputs(n, 1, d, d, dtype=torch.float32)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    found = answer_and_gradients(lambda *x: fused.propagate(*x, SIGMOID), *inputs)
    for mine, exact in zip(found, expected(SIGMOID, *wide), strict=True):
        assert (mine.double() - exact).norm() < tolerance * exact.norm()


@on_gpu
@needs_gpu
def test_kernels_under_vmap():
    each = [[x.detach().cuda() for x in make_inputs(200, 2, 16, 16, dtype=torch.float32, seed=s)] for s in range(3)]
    inputs = [torch.stack(x) for x in zip(*each, strict=True)]
    one = lambda *x: fused.propagate(*x, SIGMOID)
    torch.testing.assert_close(torch.vmap(one)(*inputs), torch.stack([one(*run) for run in zip(*inputs, strict=True)]))
