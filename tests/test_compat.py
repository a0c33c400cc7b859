"""The package runs, with the same results, on a torch that lacks the private parts it uses."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad

from difformer import DIFFormer, _compat

PRIVATE = (
    (torch._C._functorch, "is_functorch_wrapped_tensor"),
    (torch._C._functorch, "is_batchedtensor"),
    (torch._C, "_len_torch_dispatch_stack"),
)


def results(diffusivity):
    """Output and gradients of a model, and those of two stacked runs."""
    torch.manual_seed(0)
    model = DIFFormer(8, 64, 3, diffusivity=diffusivity)
    x, edges = torch.randn(300, 8), torch.randint(0, 300, (2, 900))
    out = model(x, edges)
    grads = torch.autograd.grad(out.square().mean(), list(model.parameters()))
    stacked = {name: torch.stack([value, 0.9 * value]) for name, value in model.named_parameters()}
    runs = torch.vmap(lambda p: torch.func.functional_call(model, p, (x, edges)))(stacked)
    return [out, *grads, runs]


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_results_do_not_depend_on_private_parts_of_torch(diffusivity, monkeypatch):
    wanted = results(diffusivity)
    for owner, name in PRIVATE:
        monkeypatch.delattr(owner, name)
    monkeypatch.setattr(_compat.nn.modules, "module", object())
    for found, right in zip(results(diffusivity), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_fallbacks_give_the_same_answers(monkeypatch):
    x, seen = torch.randn(3, 2), []

    def look(y):
        seen.append((_compat.is_transformed(y), _compat.is_stacked(y)))
        return y.sum()

    torch.vmap(look)(x)
    look(x)
    before = list(seen)
    seen.clear()
    for owner, name in PRIVATE:
        monkeypatch.delattr(owner, name)
    torch.vmap(look)(x)
    look(x)
    assert seen == before == [(True, True), (False, False)]
    assert _compat.is_watched()  # unknown, so that the plain formula is used


def test_forward_mode_is_noticed():
    x = torch.randn(2)
    with forward_ad.dual_level():
        assert _compat.is_forward_mode(forward_ad.make_dual(x, torch.ones(2)))
    assert not _compat.is_forward_mode(x)


def test_importing_changes_no_warnings_and_no_precision():
    code = (
        "import warnings, torch; before, precision = list(warnings.filters), torch.get_float32_matmul_precision();"
        "import difformer.nn, difformer.attention, difformer.graph, difformer.kernels.fused;"
        "assert list(warnings.filters) == before; assert torch.get_float32_matmul_precision() == precision"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_first_product_with_a_graph_is_silent():
    code = (
        "import warnings; warnings.simplefilter('error'); import torch; from difformer import Graph;"
        "Graph(torch.tensor([[0, 1], [1, 2]]), 3).propagate(torch.randn(3, 4))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
