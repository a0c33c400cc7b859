"""Single passes, and where kernels must keep away."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.native import explain, library, passes
from difformer.nn import dropout as dropout_module
from difformer.nn import native_input, native_step
from difformer.nn.dropout import dropout_key, dropout_keys, keep_mask, next_mask
from difformer.nn.native_step import Tail
from difformer.nn.structure import as_structure
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
            mask = next_mask(rate, training=True)
            assert place.site == site + 1
        out = torch.empty(70, columns)
        passes.run("finish_rows", 70, columns, columns, z=ones, out=out, **Tail(mask=mask).fields(None, None))
        key = dropout_keys([seed], [9])[0, 0]
        assert torch.equal(out, keep_mask(ones, rate, dropout_module._Place(key, rows, site)))


@pytest.mark.parametrize("channels", [1, 3, 33, 64, 65, 200])
@pytest.mark.parametrize(("beta", "alpha"), [(0.0, 1.0), (1.0, 0.5), (0.3, -2.0)])
def test_products_with_a_sparse_matrix(channels, beta, alpha, monkeypatch):
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
    for module in (native_step, native_input):
        monkeypatch.setattr(module, "run", run)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DIFFormer(5, 8, 3)


def test_kernels_are_called_at_all(forbidden, model):
    with pytest.raises(AssertionError, match="finish_rows was called"):
        model(torch.randn(30, 5))


def test_not_inside_torch_func(forbidden, model):
    x = torch.randn(4, 30, 5)
    torch.vmap(model)(x)
    torch.func.grad(lambda x: model(x).sum())(x[0])


def test_not_for_forward_mode_derivatives():
    """Tangents travel with plain tensors; a kernel would lose them without a word."""
    x = torch.zeros(1)
    assert passes.serves(10**4, 64, x)
    with torch.autograd.forward_ad.dual_level():
        assert not passes.serves(10**4, 64, x)


def test_not_under_other_modes(forbidden, model):
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
def test_not_when_traced(forbidden, model):
    assert torch.jit.trace(model, (torch.randn(30, 5),), check_trace=False)(torch.randn(30, 5)).shape == (30, 3)


def test_not_when_exported(forbidden, model):
    program = torch.export.export(model.eval(), (torch.randn(30, 5),))
    assert program.module()(torch.randn(30, 5)).shape == (30, 3)


def test_small_ones_are_left_to_torch(monkeypatch, model):
    assert not passes.serves(passes.FEWEST_ELEMENTS // 64 - 1, 64)
    assert passes.serves(passes.FEWEST_ELEMENTS // 64, 64)
    assert not passes.serves(10**6, passes.LONGEST + 1)


def test_whoever_listens_to_a_norm_hears_it(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    heard = []
    for norm in (model.input_norm, model.norms[1]):
        norm.register_forward_hook(lambda module, given, out: heard.append(out))
    x = torch.randn(30, 5)
    out = model(x)
    assert len(heard) == 2
    assert torch.equal(heard[1], model.embed(x))
    torch.testing.assert_close(out, model.decode(heard[1]))


def test_whoever_listens_to_the_input_or_to_all_modules_hears_them(monkeypatch, model):
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


def test_a_map_of_another_kind_is_called(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    x, before = torch.randn(30, 5), model.input
    model.input_norm = torch.nn.Identity()
    model.input = Doubled(5, 8)
    model.input.load_state_dict(before.state_dict())
    found = model._encode(x)
    model.input = before
    torch.testing.assert_close(found, 2 * model._encode(x))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"transform": False, "qk_norm": "global"}])
def test_defaults_of_torch_do_not_matter(kind, options, monkeypatch):
    """A kernel that wrote float32 to room for bfloat16 would write to the memory of others."""
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    layer, z = DIFFormerConv(24, 24, **options), torch.randn(100, 24)
    wanted = torch.autograd.grad(layer(z).square().sum(), list(layer.parameters()))
    torch.set_default_dtype(kind)
    try:
        with torch.device("meta"):
            out = layer(z)
            found = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.dtype == torch.float32
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_parameters_and_states_may_lie_anywhere(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    x = torch.randn(30, 5)
    wanted = model(x)
    for name, value in list(model.named_parameters()):
        module = model.get_submodule(name.rpartition(".")[0])
        spread = torch.stack([value.detach(), torch.full_like(value, 9.0)], dim=-1)[..., 0]
        assert not spread.is_contiguous()
        setattr(module, name.rpartition(".")[2], torch.nn.Parameter(spread))
    torch.testing.assert_close(model(x), wanted)
    layer, z = DIFFormerConv(8, 8), torch.complex(torch.randn(30, 8), torch.randn(30, 8)).conj().imag
    assert z.is_neg()
    torch.testing.assert_close(layer(z), layer(z.resolve_neg().clone()))


def test_sizes_that_do_not_fit_are_told_not_read(monkeypatch):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    dropping = DIFFormer(5, 8, 3, dropout=0.5).train()
    with dropout_key(1, rows=torch.arange(10)), pytest.raises(ValueError, match=r"numbers has 10 .* 30 of torch.int32"):
        dropping(torch.randn(30, 5))
    layer, z = DIFFormerConv(8, 8, source_weight=0.5), torch.randn(30, 8)
    with pytest.raises(ValueError, match="source has 80"):
        layer.step(z, as_structure(30, None, None, None), torch.randn(10, 8))
    graph = Graph(torch.randint(0, 20, (2, 50)), 20)
    with pytest.raises(ValueError, match="crow has 21"):
        layer.step(z, as_structure(20, graph, None, None), z)


def test_gradients_are_finished_by_the_kernels_that_began(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    x = torch.randn(30, 5, requires_grad=True)
    loss = model(x).square().sum()
    (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
    monkeypatch.setenv("DIFFORMER_NATIVE", "0")
    assert torch.equal(torch.autograd.grad(loss, x)[0], wanted)


@pytest.mark.parametrize("rows", [1, 300, 40_000, 10**7])
@pytest.mark.parametrize("channels", [1, 64, 128, 512])
def test_sums_of_chunks_take_no_more_room_than_the_rows(rows, channels):
    chunk = passes.chunk_of(rows, channels)
    chunks = -(-rows // chunk)
    assert chunk % passes.BLOCK == 0
    assert chunks <= passes.MOST_CHUNKS
    assert chunks == 1 or 2 * channels**2 * (chunks - 1) <= rows * channels


def test_a_forked_worker_with_one_thread_goes_on():
    """As workers that load data do: threads do not live on in the child of a process."""
    code = """
import os, signal, torch
from difformer import DIFFormer
torch.set_num_threads(2)
model, x = DIFFormer(5, 64, 3).eval(), torch.randn(5000, 5)
wanted = model.embed(x)
child = os.fork()
if not child:
    signal.alarm(60)
    torch.set_num_threads(1)
    os._exit(0 if torch.allclose(model.embed(x), wanted, atol=1e-5) else 7)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


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
