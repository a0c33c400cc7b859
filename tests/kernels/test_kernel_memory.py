"""The memory that kernels are given, and the processes that they work in."""

import subprocess
import sys

import pytest
import torch

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.kernels.cpu import explain, library, passes
from difformer.kernels.cpu import layer as layer_module
from difformer.kernels.fused import fused_layer
from difformer.nn.context import as_structure
from difformer.nn.dropout import dropout_key

pytestmark = pytest.mark.skipif(library() is None, reason=explain())


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DIFFormer(5, 8, 3)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"transform": False, "qk_norm": "global"}])
def test_torch_default_dtype_and_device_do_not_matter(kind, options, monkeypatch):
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


def test_non_contiguous_parameters_and_states_are_accepted(monkeypatch, model):
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


def test_mismatched_sizes_are_refused_before_reading(monkeypatch):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    dropping = DIFFormer(5, 8, 3, dropout=0.5).train()
    with dropout_key(1, rows=torch.arange(10)), pytest.raises(ValueError, match=r"numbers has 10 .* 30 of torch.int32"):
        dropping(torch.randn(30, 5))
    layer, z = DIFFormerConv(8, 8, source_weight=0.5), torch.randn(30, 8)
    with pytest.raises(ValueError, match="source has 80"):
        fused_layer(layer, z, as_structure(30, None, None, None), torch.randn(10, 8))
    graph = Graph(torch.randint(0, 20, (2, 50)), 20)
    with pytest.raises(ValueError, match="crow has 21"):
        fused_layer(layer, z, as_structure(20, graph, None, None), z)


def test_gradients_are_finished_by_the_kernels_that_began(monkeypatch, model):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)
    x = torch.randn(30, 5, requires_grad=True)
    loss = model(x).square().sum()
    (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
    monkeypatch.setenv("DIFFORMER_NATIVE", "0")
    assert torch.equal(torch.autograd.grad(loss, x)[0], wanted)


@pytest.mark.parametrize("rows", [1, 300, 40_000, 10**7])
@pytest.mark.parametrize("channels", [1, 64, 128, 512])
def test_partial_sums_take_no_more_memory_than_the_rows(rows, channels):
    chunk = passes.chunk_of(rows, channels)
    chunks = -(-rows // chunk)
    assert chunk % passes.BLOCK == 0
    assert chunks <= passes.MOST_CHUNKS
    assert chunks == 1 or 2 * channels**2 * (chunks - 1) <= rows * channels


def test_kernels_work_in_a_forked_worker_with_one_thread():
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


def test_an_input_layer_keeps_nothing_where_no_gradient_is_asked_for(monkeypatch):
    taken = []
    monkeypatch.setattr(layer_module, "space", lambda *shape: taken.append(shape) or passes.space(*shape))
    layer, x = torch.nn.Linear(5, 7), torch.randn(30, 5)
    kept = layer_module.fused_input(layer, None, x, None)
    assert taken == [(30, 7), (30, 7), (30,)]
    taken.clear()
    with torch.no_grad():
        torch.testing.assert_close(layer_module.fused_input(layer, None, x, None), kept)
    assert taken == [(30, 7)]
