"""A whole layer as one node: outputs and every gradient against the formula."""

import itertools

import pytest
import torch

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.kernels import layer_nodes as node_module
from difformer.nn.dropout import dropout_key

N, D = 30, 6
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])


@pytest.fixture
def calls(monkeypatch):
    """Counts the nodes that are made."""
    made = []
    apply = node_module.LayerNode.apply
    monkeypatch.setattr(node_module.LayerNode, "apply", lambda *given: made.append(1) or apply(*given))
    return made


def results(model, x, edges, formula, key=None, mode="training"):
    leaf = x.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if formula:
            patch.setattr("difformer.nn.difformer.why_not_fused", lambda *_: "asked for the formula")
            patch.setattr("difformer.nn.conv.why_not_fused", lambda *_: "asked for the formula")
        model.train(mode == "training")
        torch.manual_seed(5)
        if key is None:
            out = model(leaf, edges)
        else:
            with dropout_key(key):
                out = model(leaf, edges)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
        grads = torch.autograd.grad((out * weights).sum(), [leaf, *model.parameters()])
    return [out.detach(), *grads]


def edges_of(kind, device="cpu", n=N):
    index = torch.randint(0, n, (2, 70), generator=torch.Generator().manual_seed(0)).to(device)
    return {"graph": Graph(index, n), "edge_index": index, "none": None}[kind]


def compare(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * max(1.0, b.abs().max().item()))


SETTINGS = [
    {"tied_qk": tied, "transform": transform, "residual": residual, "graph_weight": weight}
    for tied, transform, residual, weight in itertools.product([False, True], [True, False], [True, False], [0.3, None])
]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("edges", ["graph", "none"])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_model_equals_the_formula(diffusivity, edges, options, device, calls):
    torch.manual_seed(0)
    model = DIFFormer(4, D, 3, num_layers=2, diffusivity=diffusivity, **options).double().to(device)
    x, given = torch.randn(N, 4, dtype=torch.float64).to(device), edges_of(edges, device)
    found = results(model, x, given, formula=False)
    assert len(calls) == 2
    compare(found, results(model, x, given, formula=True))
    assert len(calls) == 2


@pytest.mark.parametrize("key", [None, 7])
@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.4},
        {"dropout": 0.4, "activation": "relu"},
        {"activation": "relu", "norm": False},
        {"norm": False, "dropout": 0.2, "source_weight": 0.0},
    ],
    ids=str,
)
def test_norm_activation_and_dropout_are_those_of_the_formula(options, mode, key, calls):
    torch.manual_seed(0)
    model = DIFFormer(4, D, 3, num_layers=3, **options).double()
    for norm in model.norms:
        for parameter in norm.parameters():
            torch.nn.init.normal_(parameter)
    x, given = torch.randn(N, 4, dtype=torch.float64), edges_of("edge_index")
    found = results(model, x, given, formula=False, key=key, mode=mode)
    assert len(calls) == 3
    compare(found, results(model, x, given, formula=True, key=key, mode=mode))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_dropout_of_torchs_generator_on_a_gpu_is_that_of_the_formula(diffusivity, calls):
    model = DIFFormer(4, 64, 3, num_layers=2, diffusivity=diffusivity, dropout=0.4).double().cuda()
    x, given = torch.randn(500, 4, dtype=torch.float64).cuda(), edges_of("graph", "cuda", 500)
    found = results(model, x, given, formula=False)
    assert len(calls) == 2
    compare(found, results(model, x, given, formula=True))


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("sizes", [(4, 7), (7, 4), (5, 5)])
def test_layer_alone_equals_the_formula(diffusivity, sizes, calls):
    torch.manual_seed(0)
    before, after = sizes
    layer = DIFFormerConv(before, after, diffusivity=diffusivity, residual=before == after).double()
    x, source = torch.randn(N, before).double(), torch.randn(N, after).double().requires_grad_()
    given, found = edges_of("graph"), []
    for formula in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if formula:
                patch.setattr("difformer.nn.conv.why_not_fused", lambda *_: "asked for the formula")
            leaf = x.clone().requires_grad_()
            out = layer(leaf, given, source=source)
            found.append([out, *torch.autograd.grad(out.square().sum(), [leaf, source, *layer.parameters()])])
    assert len(calls) == 1
    compare(*found)


@pytest.mark.parametrize("tilt", [0.0, 1.7e-3])
def test_rows_without_exchange_get_no_gradient_through_their_total(tilt, calls):
    """Keys (nearly) opposite to every query: the mean of 1 + q·k is below 1e-6 and clamped, as in the formula."""
    model = DIFFormer(4, D, 3, num_layers=1, norm=False).double()
    layer = model.layers[0]
    with torch.no_grad():
        for part, sign in ((layer.query, 1.0), (layer.key, -1.0)):
            part.weight.zero_()
            part.bias.fill_(sign)
        layer.key.bias[0] += tilt
        layer.key.bias[1] -= tilt
    x = torch.randn(N, 4, dtype=torch.float64)
    found, wanted = (results(model, x, None, formula) for formula in (False, True))
    assert len(calls) == 1
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * max(1.0, b.abs().max().item()))


def test_large_graphs_use_another_path_and_second_derivatives_are_refused(calls):
    limit = node_module.MOST_ELEMENTS["cpu"]
    model = DIFFormer(4, 64, 3, num_layers=1).double()
    model(torch.randn(limit // 64, 4).double())
    assert len(calls) == 1
    model(torch.randn(limit // 64 + 1, 4).double())
    assert len(calls) == 1
    x = torch.randn(N, 4, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        first.sum().backward()


def test_few_operations_per_layer():
    """The bound is the point of the node: a step of the formula takes more than twice as many."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    for diffusivity in ("simple", "sigmoid"):
        counts = []
        for layers in (1, 3):
            model, x = DIFFormer(4, 64, 3, num_layers=layers, diffusivity=diffusivity, dropout=0.2), torch.randn(N, 4)
            given = edges_of("graph")
            model(x, given).sum().backward()
            with Count() as counter:
                model(x, given).sum().backward()
            counts.append(counter.calls)
        assert (counts[1] - counts[0]) / 2 < 100
