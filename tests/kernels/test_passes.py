"""Single passes, and where kernels must keep away."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from difformer import DIFFormer, Graph
from difformer.kernels import Tail
from difformer.kernels.cpu import explain, library, passes
from difformer.kernels.cpu import layer as layer_module
from difformer.kernels.cpu.layer import tail_fields
from difformer.nn.dropout import LayerDropout, dropout_key, dropout_keys
from difformer.sparse import SparseMatrix, add_product, reference_matmul

pytestmark = pytest.mark.skipif(library() is None, reason=explain())


@pytest.mark.parametrize("columns", [1, 2, 3, 33, 64, 65, 512])
@pytest.mark.parametrize("rate", [0.0001, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("numbered", [False, True])
def test_masks_are_those_of_torch_to_the_bit(columns, rate, numbered):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 2**40, (70,), generator=generator) if numbered else None
    ones = torch.ones(70, columns)
    for seed, site in ((0, 0), (7, 3), (2**63 + 5, 11)):
        with dropout_key(seed, step=9, rows=rows, site=site) as place:
            mask = LayerDropout(rate, training=True).key()
            assert place.site == site + 1
        out = torch.empty(70, columns)
        passes.run("finish_rows", 70, columns, columns, z=ones, out=out, **tail_fields(Tail(mask=mask), None, None))
        key = dropout_keys([seed], [9])[0, 0]
        assert torch.equal(out, dropout_key(key, rows=rows, site=site).keep_mask(ones, rate))


@pytest.mark.parametrize("channels", [1, 3, 33, 64, 65, 200])
@pytest.mark.parametrize(("beta", "alpha"), [(0.0, 1.0), (1.0, 0.5), (0.3, -2.0)])
def test_sparse_product_equals_the_reference(channels, beta, alpha, monkeypatch):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 40, (2, 300), generator=generator)
    matrix = SparseMatrix.from_entries(index[0], index[1], torch.randn(300, generator=generator), (50, 40))
    x, out = torch.randn(channels, 40, generator=generator).T, torch.randn(50, channels, generator=generator)
    wanted = beta * out.double() + alpha * reference_matmul(matrix.rows.to(torch.float64), x.double())
    if beta == 0:
        out.fill_(torch.nan)
    torch.testing.assert_close(
        add_product(matrix.rows, x, out, beta=beta, alpha=alpha).double(), wanted, rtol=0, atol=1e-4
    )


@pytest.fixture
def forbidden(monkeypatch):
    """Kernels that must not be called."""

    def run(name, *_, **__):
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    monkeypatch.setattr(layer_module, "run", run)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DIFFormer(5, 8, 3)


def test_kernels_are_used_for_plain_modules(forbidden, model):
    with pytest.raises(AssertionError, match="finish_rows was called"):
        model(torch.randn(30, 5))


def test_kernels_are_not_used_inside_torch_func(forbidden, model):
    x = torch.randn(4, 30, 5)
    torch.vmap(model)(x)
    torch.func.grad(lambda x: model(x).sum())(x[0])


def test_kernels_are_not_used_for_forward_mode_derivatives():
    """Tangents travel with plain tensors; a kernel would lose them without a word."""
    x = torch.zeros(1)
    assert passes.serves(10**4, 64, x)
    with torch.autograd.forward_ad.dual_level():
        assert not passes.serves(10**4, 64, x)


def test_kernels_are_not_used_under_autocast_dispatch_modes_or_double(forbidden, model):
    x = torch.randn(30, 5)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert counter.get_total_flops() > 0
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(x)).shape == (30, 3)
    model.double()(x.double())


@pytest.mark.filterwarnings("ignore")  # tracing warns of every size that is looked at
def test_kernels_are_not_used_when_traced(forbidden, model):
    assert torch.jit.trace(model, (torch.randn(30, 5),), check_trace=False)(torch.randn(30, 5)).shape == (30, 3)


def test_kernels_are_not_used_when_exported(forbidden, model):
    program = torch.export.export(model.eval(), (torch.randn(30, 5),))
    assert program.module()(torch.randn(30, 5)).shape == (30, 3)


def test_small_inputs_are_left_to_torch(monkeypatch, model):
    assert not passes.serves(passes.FEWEST_ELEMENTS // 64 - 1, 64)
    assert passes.serves(passes.FEWEST_ELEMENTS // 64, 64)
    assert not passes.serves(10**6, passes.LONGEST + 1)


def test_hooks_on_a_norm_are_called(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    heard = []
    for norm in (model.input_norm, model.norms[1]):
        norm.register_forward_hook(lambda module, given, out: heard.append(out))
    x = torch.randn(30, 5)
    out = model(x)
    assert len(heard) == 2
    assert torch.equal(heard[1], model.embed(x))
    torch.testing.assert_close(out, model.decode(heard[1]))


def test_hooks_on_the_input_layer_and_global_hooks_are_called(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    heard, x = [], torch.randn(30, 5)
    handle = model.input.register_forward_hook(lambda module, given, out: heard.append(module))
    wanted = model(x)
    handle.remove()
    assert heard == [model.input]
    heard.clear()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, out: heard.append(module))
    try:
        torch.testing.assert_close(model(x), wanted)
    finally:
        handle.remove()
    assert {model.input, model.input_norm, model.norms[0], model.norms[1]} <= set(heard)


def test_pruned_weights_are_followed(monkeypatch, model):
    """Pruning works out the weights anew before every call."""
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    prune.l1_unstructured(model.input, "weight", 0.5)
    x, outs = torch.randn(30, 5), []
    for _ in range(2):
        outs.append(model(x))
        outs[-1].sum().backward()
        with torch.no_grad():
            model.input.weight_orig.mul_(2).add_(0.1)
    assert not torch.allclose(*outs)


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_replaced_linear_map_is_called(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    x, before = torch.randn(30, 5), model.input
    model.input_norm = torch.nn.Identity()
    model.input = Doubled(5, 8)
    model.input.load_state_dict(before.state_dict())
    found = model.encode(x)
    model.input = before
    torch.testing.assert_close(found, 2 * model.encode(x))


def test_without_a_key_dropout_is_drawn_from_torch(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    dropping = DIFFormer(5, 64, 3, dropout=0.5).train()
    x, edges = torch.randn(300, 5), Graph(torch.randint(0, 300, (2, 900)), 300)
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(dropping(x, edges))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
