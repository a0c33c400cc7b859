"""A module that was replaced, subclassed, hooked, pruned, parametrised or wrapped is called, for every input form."""

import copy

import pytest
import torch
from problems import ChangedLinear, ChangedModule, changed
from torch import nn
from torch.nn.utils import parametrizations, prune

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.kernels.fused import why_not_fused
from difformer.nn.context import Structure

N = 300  # enough rows of 64 channels for the kernels in C
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SETTINGS = [{}, {"transform": False, "qk_norm": "none"}, {"qk_norm": "none"}, {"diffusivity": "sigmoid"}]


def edges():
    return torch.randint(0, N, (2, 900), generator=torch.Generator().manual_seed(0))


def given(form, device):
    index = edges().to(device)
    return index if form == "edge_index" else Graph(index, N)


def made(device, **options):
    torch.manual_seed(0)
    return DIFFormer(8, 64, 3, num_layers=2, **options).to(device)


def features(device):
    return torch.randn(N, 8, generator=torch.Generator().manual_seed(1)).to(device)


class OwnLatent(DIFFormerConv):
    def latent(self, z, v, context):
        return changed(super().latent(z, v, context))


class OwnForward(DIFFormerConv):
    def forward(self, z, *args, **kwargs):
        return changed(super().forward(z, *args, **kwargs))


def as_class(layer, kind):
    new = kind.__new__(kind)
    new.__dict__ = copy.copy(layer.__dict__)
    return new


def scale_query(model):
    layer = model.layers[0]
    new = ChangedLinear(64, 64).to(layer.query.weight)
    new.load_state_dict(layer.query.state_dict())
    layer.query = new


def wrap_value(model):
    layer = model.layers[0]
    if layer.value is None:
        layer.key = ChangedModule(layer.key)
    else:
        layer.value = ChangedModule(layer.value)


def hook_query(model):
    model.layers[0].query.register_forward_hook(lambda module, args, out: changed(out))


def hook_key(model):
    model.layers[0].key.register_forward_pre_hook(lambda module, args: (changed(args[0]),))


def hook_layer(model):
    model.layers[0].register_forward_hook(lambda module, args, out: changed(out))


def hook_layer_input(model):
    model.layers[1].register_forward_pre_hook(lambda module, args: (changed(args[0]), *args[1:]))


def hook_norm(model):
    model.norms[0].register_forward_hook(lambda module, args, out: changed(out))


def prune_query(model):
    prune.ln_structured(model.layers[0].query, "weight", amount=0.9, n=2, dim=0)


def parametrise_key(model):
    parametrizations.weight_norm(model.layers[0].key)
    with torch.no_grad():
        model.layers[0].key.parametrizations.weight.original0.copy_(torch.linspace(0, 4, 64).view(-1, 1))


def remove_bias(model):
    with torch.no_grad():
        model.layers[0].query.weight.copy_(changed(model.layers[0].query.weight))
    model.layers[0].query.bias = None


def override_latent(model):
    model.layers[0] = as_class(model.layers[0], OwnLatent)


def override_forward(model):
    model.layers[0] = as_class(model.layers[0], OwnForward)


def set_forward(model):
    inner = model.layers[0].query.forward
    model.layers[0].query.forward = lambda x: changed(inner(x))


def wrap_layer(model):
    model.layers[0] = ChangedModule(model.layers[0])


CHANGES = [
    scale_query, wrap_value, hook_query, hook_key, hook_layer, hook_layer_input, hook_norm, prune_query,
    parametrise_key, remove_bias, override_latent, override_forward, set_forward, wrap_layer,
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_module_counts_with_a_graph_as_with_an_edge_index(change, options, device, monkeypatch):
    results = []
    for form in ("Graph", "edge_index", "formula"):
        model = made(device, **options)
        change(model)
        with monkeypatch.context() as patch:
            if form == "formula":
                patch.setattr("difformer.nn.conv.why_not_fused", lambda *_: "asked for the formula")
                patch.setattr("difformer.nn.conv.why_not_gram", lambda *_: "asked for the formula")
                patch.setattr("difformer.nn.difformer.fused_layer", lambda *_, **__: None)
            for _ in range(2):  # pruned weights once were stale in the second pass
                out = model(features(device), given(form, device))
                model.zero_grad()
                out.square().mean().backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((out, grads))
    plain = made(device, **options)(features(device), given("Graph", device))
    effect = (results[2][0] - plain).abs().max().item()
    assert effect > 1e-4  # a module that is ignored would be this far off
    for out, grads in results[:2]:
        torch.testing.assert_close(out, results[2][0], rtol=1e-4, atol=max(1e-5, 1e-3 * effect))
        assert set(grads) == set(results[2][1])
        for name, grad in grads.items():
            scale = results[2][1][name].abs().max().item()
            torch.testing.assert_close(grad, results[2][1][name], rtol=1e-2, atol=2e-3 * scale + 1e-9, msg=name)


@pytest.mark.parametrize("form", ["Graph", "edge_index", "none"])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_hooks_of_every_module_fire(form, options):
    model, called = made("cpu", **options), []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    model(features("cpu"), None if form == "none" else given(form, "cpu"))
    expected = {name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)}
    expected -= {f"layers.{k}.edge_mask" for k in range(len(model.layers))}  # holds masks of explainers, is not called
    assert expected - set(called) == set()


@pytest.mark.parametrize("form", ["Graph", "edge_index"])
def test_global_hooks_fire(form):
    model, called = made("cpu"), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module)))
    try:
        model(features("cpu"), given(form, "cpu"))
    finally:
        handle.remove()
    assert called.count(DIFFormerConv) == 2
    assert called.count(nn.Linear) == 2 + 2 * 3


@pytest.mark.parametrize("form", ["Graph", "edge_index"])
def test_backward_hooks_fire(form):
    model, called = made("cpu"), []
    model.layers[0].query.register_full_backward_hook(lambda *_: called.append("query"))
    model.layers[1].register_full_backward_hook(lambda *_: called.append("layer"))
    model(features("cpu"), given(form, "cpu")).sum().backward()
    assert sorted(called) == ["layer", "query"]


@pytest.mark.parametrize("form", ["Graph", "edge_index"])
def test_a_layer_of_another_class_is_called_as_a_layer_is(form):
    class Mean(nn.Module):
        def forward(self, z, edge_index, edge_weight, batch, *, source):
            assert isinstance(edge_index, Graph)
            assert (edge_weight, batch) == (None, None)
            return z.mean(0).expand_as(z) + source

    model = made("cpu")
    model.layers[1] = Mean()
    assert model(features("cpu"), given(form, "cpu")).isfinite().all()


def test_the_reason_is_given_in_words():
    model = made("cpu")
    layer, z = model.layers[0], torch.randn(N, 64)
    assert why_not_fused(layer, z, Structure()) is None
    hook_query(model)
    assert "query is not a plain nn.Linear" in why_not_fused(layer, z, Structure())
    assert "diffusivity 'sigmoid'" in why_not_fused(made("cpu", diffusivity="sigmoid").layers[0], z, Structure())
    override_forward(model)
    assert "OwnForward" in why_not_fused(model.layers[0], z, Structure())


@pytest.mark.parametrize("sparse", [False, True])
def test_a_replaced_or_hooked_input_layer_is_called_with_dense_and_sparse_features(sparse):
    x = features("cpu").relu()
    given = x.to_sparse() if sparse else x
    model = made("cpu")
    before = model.encode(x)
    model.input.register_forward_hook(lambda module, args, out: changed(out))
    hooked = model(given)
    assert not torch.allclose(before, model.encode(x))
    model = made("cpu")
    model.input = nn.Sequential(model.input, nn.Identity())
    torch.testing.assert_close(model(given), made("cpu")(x), rtol=1e-4, atol=1e-5)
    assert len(model.explain(given)) == 2
    model = made("cpu")
    model.input = ChangedModule(model.input)
    torch.testing.assert_close(model(given), hooked, rtol=1e-4, atol=1e-5)
