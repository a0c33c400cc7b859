"""Layers by kernels in C, in float32, against torch's operations in float64: outputs and every gradient."""

import pytest
import torch

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.kernels.cpu import explain, library, passes
from difformer.kernels.cpu import layer as layer_module
from difformer.nn.context import store
from difformer.nn.dropout import dropout_key

pytestmark = pytest.mark.skipif(library() is None, reason=explain())


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch):
    monkeypatch.setattr(passes, "FEWEST_ELEMENTS", 0)


@pytest.fixture
def passes_made(monkeypatch):
    """Names of the passes that kernels make."""
    made = []

    def run(name, *args, **given):
        made.append(name)
        return passes.run(name, *args, **given)

    monkeypatch.setattr(layer_module, "run", run)
    return made


def observed(kind, nodes):
    generator = torch.Generator().manual_seed(1)
    if kind == "none":
        return None
    if kind == "empty":
        return Graph(torch.empty(2, 0, dtype=torch.long), nodes)
    edges = torch.randint(0, max(nodes - nodes // 3, 1), (2, 4 * nodes), generator=generator)  # a third is isolated
    weight = torch.rand(edges.shape[1], generator=generator) + 0.1 if kind == "weighted" else None
    return Graph(edges, nodes, weight)


def outcome(channels, nodes, kind, options, dtype, *, loss="weighted", x=None, layers=2):
    """Outputs and the gradient of features and parameters, of a model that always has the same weights."""
    torch.manual_seed(0)
    model = DIFFormer(5, channels, 3, num_layers=layers, **options).to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():  # norms begin as ones and zeros, which would hide much
            parameter.add_(0.1 * torch.randn(parameter.shape).to(dtype))
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(nodes, 5, generator=generator) if x is None else x
    x = x.to(dtype).requires_grad_()
    with dropout_key(seed=3, step=4):
        out = model(x, observed(kind, nodes))
    weight = torch.randn(out.shape, generator=generator).to(dtype)
    score = (out * weight).sum() if loss == "weighted" else out.sum()
    names = ["x", *(name for name, _ in model.named_parameters())]
    grads = torch.autograd.grad(score, [x, *model.parameters()], allow_unused=True)
    return {"out": out, **{name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}}


def check(found, wanted, torch_says=None):
    """Each within 1e-4 of its size, or within four times what torch's own float32 is away: some are all rounding."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        allowed = 1e-4 * max(value.abs().max().item(), 1e-2)
        if torch_says is not None:
            allowed = max(allowed, 4 * (torch_says[name].double() - value).abs().max().item())
        assert (found[name].double() - value).abs().max().item() <= allowed, name


def all_ways(monkeypatch, *args, **kwargs):
    """By kernels, exactly, and by torch in float32."""
    found, wanted = (outcome(*args, dtype, **kwargs) for dtype in (torch.float32, torch.float64))
    with monkeypatch.context() as patch:
        patch.setenv("DIFFORMER_NATIVE", "0")
        return found, wanted, outcome(*args, torch.float32, **kwargs)


WAYS = {
    "unit rows": {},
    "unit rows, tied, source": {"tied_qk": True, "source_weight": 0.4, "activation": "relu", "dropout": 0.3},
    "unit rows, values are states": {"transform": False, "graph_weight": 0.3, "dropout": 0.3},
    "no residual": {"residual": False, "graph_weight": 0.7, "graph_norm": "random_walk"},
    "gram, scaled": {"transform": False, "qk_norm": "global", "dropout": 0.2},
    "gram, tied": {"transform": False, "qk_norm": "none", "tied_qk": True, "source_weight": 0.3, "activation": "relu"},
    "no norm": {"norm": False, "activation": "relu", "dropout": 0.3},
    "nothing follows": {"norm": False, "transform": False, "qk_norm": "global"},
    "another activation": {"activation": "gelu", "dropout": 0.1},
}


@pytest.mark.parametrize("channels", [1, 3, 33, 64, 65, 160])
@pytest.mark.parametrize("way", WAYS)
def test_kernels_equal_torch_with_every_gradient(way, channels, passes_made, monkeypatch):
    options = WAYS[way]
    if channels == 1:  # a norm of one channel is zero whatever comes in
        options = options | {"norm": False, "step_size": 0.1}
    found, wanted, torch_says = all_ways(monkeypatch, channels, 333, "weighted", options)
    counts = {name: passes_made.count(name) for name in set(passes_made)}  # of one pass in three
    assert counts == {
        "finish_rows": 1,
        "sum_rows": 2,
        "answer_rows": 2,
        "pull_answers": 2,
        "pull_keys": 2,
        "pull_finish": 1,
    }
    check(found, wanted, torch_says)


@pytest.mark.parametrize("kind", ["none", "empty", "plain", "weighted"])
@pytest.mark.parametrize("nodes", [1, 2, 63, 64, 65, 700])
@pytest.mark.parametrize("way", ["unit rows", "unit rows, tied, source", "gram, scaled"])
def test_kernels_equal_torch_for_any_number_of_rows(way, nodes, kind, monkeypatch):
    check(*all_ways(monkeypatch, 33, nodes, kind, WAYS[way] | {"dropout": 0.0}))


@pytest.mark.parametrize("way", ["unit rows", "gram, scaled"])
def test_non_contiguous_rows_and_gradients(way, monkeypatch):
    x = torch.randn(5, 200, generator=torch.Generator().manual_seed(5)).T
    assert not x.is_contiguous()
    check(*all_ways(monkeypatch, 24, 200, "plain", WAYS[way], x=x, loss="sum"))


@pytest.mark.parametrize("way", ["unit rows", "gram, scaled", "no norm"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_non_finite_values_propagate_as_in_torch(way, bad, monkeypatch):
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(5))
    x[7, 2] = bad
    found = outcome(16, 100, "plain", WAYS[way], torch.float32, x=x)
    monkeypatch.setenv("DIFFORMER_NATIVE", "0")
    wanted = outcome(16, 100, "plain", WAYS[way], torch.float32, x=x)
    assert not wanted["out"].isfinite().all()
    assert torch.equal(found["out"].isfinite(), wanted["out"].isfinite())


def with_threads(work, numbers=(1, 2, 3)):
    """What `work` gives with these numbers of threads."""
    before, results = torch.get_num_threads(), []
    try:
        for threads in numbers:
            torch.set_num_threads(threads)
            results.append(work())
    finally:
        torch.set_num_threads(before)
    return results


@pytest.fixture(scope="module")
def numbers_of_threads():
    """One, and those with which torch's own products, which go in and come out, are the same: not all everywhere."""
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (torch.randn(n, m, generator=generator) for n, m in ((5000, 5), (5, 33), (5000, 33)))
    found = with_threads(lambda: torch.cat([x @ weight, gradient.T @ gradient, gradient[:, :5] @ weight]))
    same = [number for number, product in enumerate(found, 1) if torch.equal(product, found[0])]
    return same if len(same) > 1 else pytest.skip("torch's products depend on the number of threads here")


@pytest.mark.parametrize("way", WAYS)
def test_number_of_threads_does_not_change_a_bit(way, numbers_of_threads):
    options = WAYS[way] | {"activation": None}
    results = with_threads(lambda: outcome(33, 5000, "weighted", options, torch.float32), numbers_of_threads)
    for other in results[1:]:
        # The output layer and the weights of the input are torch's products.
        for name in other.keys() - {"out", "x", "input.weight", "output.weight", "output.bias"}:
            assert torch.equal(results[0][name], other[name]), name


def test_sparse_features_agree_in_single_and_double_precision(passes_made):
    x = torch.randn(120, 5, generator=torch.Generator().manual_seed(5)).relu()
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        model = DIFFormer(5, 33, 3, dropout=0.3).to(dtype).train()
        with dropout_key(1):
            out = model(x.to(dtype).to_sparse_csr())
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        results.append({"out": out, **dict(zip(map(str, range(len(grads))), grads, strict=True))})
    check(*results)


@pytest.mark.parametrize("way", ["unit rows, tied, source", "gram, scaled"])
def test_a_pass_without_gradients_is_the_same_to_the_bit(way):
    torch.manual_seed(0)
    model, x = DIFFormer(5, 33, 3, **WAYS[way]), torch.randn(300, 5)
    for mode in (model.train(), model.eval()):
        outs = []
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients), dropout_key(2):
                outs.append(mode(x, observed("plain", 300)))
        assert torch.equal(*outs)


def test_second_backward_pass_works_and_second_derivative_is_refused():
    torch.manual_seed(0)
    model, x = DIFFormer(5, 33, 3), torch.randn(100, 5, requires_grad=True)
    loss = model(x).square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(first, torch.autograd.grad(loss, x, retain_graph=True)[0])
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        grad.sum().backward()


@pytest.mark.parametrize("options", [{}, {"diffusivity": None, "norm": False, "dropout": 0.4}])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_reference_differentiates_twice(options, sparse, passes_made):
    features = torch.randn(90, 5, generator=torch.Generator().manual_seed(5))
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        model = DIFFormer(5, 33, 3, backend="reference", **options).to(dtype).train()
        x = features.to(dtype).requires_grad_(not sparse)
        with dropout_key(1):
            out = model(x.relu().to_sparse_csr() if sparse else x * model.input.weight.sum(), observed("plain", 90))
        wanted = [*model.parameters(), *([] if sparse else [x])]
        first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), wanted)
        results.append({str(i): grad for i, grad in enumerate((*first, *second))})
    check(*results)
    assert not passes_made


@pytest.mark.parametrize("nodes", [200, 20_000])
def test_gradients_through_global_norms_exceed_rounding(nodes, monkeypatch):
    """U is small beside the sums that it is added to; its gradient must not be the difference of two such sums."""
    options = WAYS["gram, scaled"] | {"dropout": 0.0}
    found, wanted, _ = all_ways(monkeypatch, 24, nodes, "none", options, loss="sum", layers=1)
    for name in ("query.weight", "query.bias", "key.weight", "key.bias"):
        exact = wanted[f"layers.0.{name}"]
        assert (found[f"layers.0.{name}"].double() - exact).abs().max() <= 1e-4 * exact.abs().max(), name


def test_a_frozen_model_keeps_nothing_and_frozen_parts_get_no_gradient(passes_made):
    torch.manual_seed(0)
    model, x = DIFFormer(5, 33, 3), torch.randn(100, 5)
    whole = model(x)
    model.requires_grad_(False)
    frozen = model(x)
    assert not frozen.requires_grad
    assert torch.equal(whole, frozen)
    model.norms[0].weight.requires_grad_(True)
    (grad,) = torch.autograd.grad(model(x).square().sum(), model.norms[0].weight)
    model.requires_grad_(True)
    assert torch.equal(grad, torch.autograd.grad(model(x).square().sum(), model.norms[0].weight)[0])
    assert "pull_answers" in passes_made


def test_no_gradient_flows_through_a_clamped_total(passes_made):
    """Row 0 of z = (1, -3) receives with weights 1 + 1 and 1 - 3: they add up to zero, what they weigh does not."""
    results = []
    for dtype in (torch.float32, torch.float64):
        conv = DIFFormerConv(1, 1, transform=False, qk_norm="none").to(dtype)
        with torch.no_grad():
            for layer in (conv.query, conv.key):
                layer.weight.fill_(1)
                layer.bias.zero_()
        z = torch.tensor([[1.0], [-3.0]], dtype=dtype, requires_grad=True)
        out = conv(z)
        names = ["out", "z", *(name for name, _ in conv.named_parameters())]
        results.append(dict(zip(names, (out, *torch.autograd.grad(out.sum(), [z, *conv.parameters()])), strict=True)))
    assert passes_made == ["sum_rows", "answer_rows", "pull_answers", "pull_keys"]
    assert results[1]["out"].abs().max() > 1e4  # the clamp is reached
    check(*results)


@pytest.mark.parametrize("zero", ["query", "key"])
def test_queries_or_keys_of_length_zero_stay_zero(zero, passes_made):
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        conv = DIFFormerConv(3, 3).to(dtype)
        with torch.no_grad():
            for parameter in getattr(conv, zero).parameters():
                parameter.zero_()
        z = torch.linspace(-1, 2, 12).view(4, 3).to(dtype).requires_grad_()
        out = conv(z)
        others = [parameter for name, parameter in conv.named_parameters() if not name.startswith(zero)]
        names = ["out", "z", *map(str, range(len(others)))]
        found = (out, *torch.autograd.grad(out.square().sum(), [z, *others]))
        results.append(dict(zip(names, found, strict=True)))
    assert "pull_keys" in passes_made
    assert all(value.isfinite().all() for value in results[0].values())
    check({"out": results[0]["out"]}, {"out": results[1]["out"]})


def test_no_gradient_flows_through_a_clamped_norm():
    """‖Q‖ of about 5e-13 is taken for 1e-12, which depends on nothing."""
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        conv = DIFFormerConv(3, 3, transform=False, qk_norm="global").to(dtype)
        with torch.no_grad():
            for parameter in conv.query.parameters():
                parameter.mul_(2e-13)
        z = torch.linspace(-1, 2, 12).view(4, 3).to(dtype).requires_grad_()
        assert 1e-13 < conv.query(z).norm() < 1e-12
        out = conv(z)
        found = (out, *torch.autograd.grad(out.square().sum(), [z, *conv.query.parameters()]))
        results.append(dict(zip(["out", "z", "weight", "bias"], found, strict=True)))
    assert results[1]["weight"].abs().max() > 1e6
    check(*results)


def test_a_custom_context_disables_the_kernel(passes_made):
    torch.manual_seed(0)
    model = DIFFormer(3, 4, 2, num_layers=1, norm=False)
    senders, z = torch.randn(9, 4), torch.randn(5, 4)
    with torch.no_grad():
        found = model.advance(0, z, z, context=store(model.layers[0], senders))
        assert "answer_rows" not in passes_made
        exact = model.double().advance(0, z.double(), z.double(), context=store(model.layers[0], senders.double()))
        alone = model.advance(0, z.double(), z.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    assert (found.double() - alone).abs().max() > 0.01
