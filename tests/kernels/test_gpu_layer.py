"""A layer by row kernels: outputs and every gradient against the formula in float64.

The kernels run on a GPU, or on a CPU under Triton's interpreter (``TRITON_INTERPRET=1``). Where Triton is installed and
there is no GPU, the last test runs this file again under the interpreter.
"""

import copy
import importlib.util
import itertools
import os
import subprocess
import sys

import pytest
import torch
from problems import ChangedLinear, ChangedModule, changed
from torch import nn
from torch.nn.utils import parametrize, prune

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.kernels import gpu_layer, rows
from difformer.kernels.fused import fused_tail
from difformer.nn.dropout import LayerDropout, dropout_key
from difformer.sparse import CSR, SparseMatrix

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
with_kernels = pytest.mark.skipif(
    rows.kernels is None or (DEVICE == "cpu" and not INTERPRETED), reason="needs Triton and a GPU, or its interpreter"
)
CHUNKS = pytest.mark.parametrize("chunked", [False, True], ids=["kept", "in chunks"])


@pytest.fixture
def calls(monkeypatch):
    """Counts the layers that kernels compute."""
    made, apply = [], gpu_layer.GPULayer.apply
    monkeypatch.setattr(gpu_layer.GPULayer, "apply", lambda *given: made.append(1) or apply(*given))
    monkeypatch.setattr(rows, "DEVICE", DEVICE)
    monkeypatch.setattr("difformer.kernels.fused._in_c", lambda *_: False)
    return made


@pytest.fixture
def in_chunks(monkeypatch):
    """Chunks of 20 rows of so many channels."""

    def work(chunked, channels):
        if chunked:
            monkeypatch.setattr(gpu_layer, "MOST_ELEMENTS", 0)
            monkeypatch.setattr(gpu_layer, "CHUNK", 20 * channels)

    return work


def edges_of(kind, n):
    index = torch.randint(0, n, (2, 3 * n), generator=torch.Generator().manual_seed(0))
    return {"graph": Graph(index, n), "edge_index": index, "none": None}[kind]


def model_of(channels, **options):
    torch.manual_seed(0)
    model = DIFFormer(4, channels, 3, **{"num_layers": 2, **options})
    for norm in (model.input_norm, *model.norms):
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    return model


def results(model, x, edges, formula, key=None):
    leaf = x.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if formula:
            patch.setattr("difformer.nn.difformer.why_not_fused", lambda *_: "asked for the formula")
            patch.setattr("difformer.nn.conv.why_not_fused", lambda *_: "asked for the formula")
            patch.setattr("difformer.nn.difformer.fused_tail", lambda *_, **__: None)
        torch.manual_seed(5)
        if key is None:
            out = model(leaf, edges)
        else:
            with dropout_key(key):
                out = model(leaf, edges)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), [leaf, *model.parameters()])]


@with_kernels
@pytest.mark.parametrize("width", [1, 7, 64, 200])
@pytest.mark.parametrize(("beta", "alpha"), [(0, 1.0), (1.0, 0.5), (0.25, -1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_with_a_sparse_matrix(width, beta, alpha, dtype, monkeypatch):
    monkeypatch.setattr(rows, "DEVICE", DEVICE)
    row, column = torch.randint(0, 50, (2, 300)), torch.randint(0, 40, (2, 300))
    row[1, :100], row[0][row[0] == 3] = 7, 4  # a long row, and one without entries
    made = SparseMatrix.from_entries(row[0], column[0], torch.randn(300), (50, 40)).to(DEVICE)
    long = SparseMatrix.from_entries(row[1], column[1], torch.randn(300), (50, 40)).to(DEVICE)
    x, out = torch.randn(40, width, device=DEVICE).to(dtype), torch.randn(50, width, device=DEVICE)
    for matrix in (made, long):
        wanted = beta * out.double() + alpha * matrix.to_dense().double() @ x.double()
        found = torch.full_like(out, torch.nan) if beta == 0 else out.clone()
        assert rows.multiply(matrix.rows, x, found, beta, alpha)
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
        assert not rows.multiply(matrix.rows, x.double(), found, beta, alpha)
    monkeypatch.setattr(rows, "LONGEST_SPARSE_ROW", 99)
    assert rows.multiply(made.rows, x, out, beta, alpha)
    assert not rows.multiply(long.rows, x, out, beta, alpha)
    assert not rows.multiply(CSR(made.rows.crow, made.rows.col, made.rows.value), x, out, beta, alpha)


def moved(edges):
    return None if edges is None else edges.to(DEVICE)


def close(found, wanted, part=3e-4):
    """Equal to a part of the largest entry: a gradient that is zero, stale or of another scale is far off."""
    largest = max(b.abs().max().item() for b in wanted)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        scale = b.abs().max().item()
        error = (a.double() - b.double()).abs().max().item()
        rounding = min(1e-6 * largest, 0.1 * scale)  # of a small difference of large terms
        assert error <= max(part * scale, rounding) if scale > 1e-7 * largest else error <= part * largest, (i, error)


def check(model, n, edges, key=None, part=3e-4):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(3))
    wide = copy.deepcopy(model).double()
    on_device = copy.deepcopy(model).to(DEVICE)
    wanted = results(wide.to(DEVICE), x.double().to(DEVICE), moved(edges), formula=True, key=key)
    close(results(on_device, x.to(DEVICE), moved(edges), formula=False, key=key), wanted, part)


SETTINGS = [
    {"tied_qk": tied, "transform": transform, "residual": residual, "graph_weight": weight}
    for tied, transform, residual, weight in itertools.product([False, True], [True, False], [True, False], [0.3, None])
]


@with_kernels
@CHUNKS
@pytest.mark.parametrize("edges", ["graph", "none"])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_model_equals_the_formula(diffusivity, edges, options, chunked, calls, in_chunks):
    in_chunks(chunked, 48)
    check(model_of(48, diffusivity=diffusivity, **options), 45, edges_of(edges, 45))
    assert len(calls) == 2


@with_kernels
@CHUNKS
@pytest.mark.parametrize(("n", "channels"), [(1, 16), (2, 64), (33, 1), (70, 17), (21, 130)])
@pytest.mark.parametrize("options", [{}, {"transform": False, "tied_qk": True}, {"diffusivity": "sigmoid"}], ids=str)
def test_any_number_of_rows_and_channels(n, channels, options, chunked, calls, in_chunks):
    in_chunks(chunked, channels)
    norm = channels > 1  # rows of one channel have nothing left after a norm
    check(model_of(channels, norm=norm, **options), n, edges_of("graph", n))
    assert len(calls) == 2


@with_kernels
@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_programs_that_take_several_blocks(programs, diffusivity, calls, monkeypatch):
    monkeypatch.setattr(rows, "PROGRAMS", programs)
    monkeypatch.setattr(rows, "COLUMNS", 16)
    check(model_of(64, diffusivity=diffusivity), 150, edges_of("graph", 150))
    assert len(calls) == 2


TAILS = [
    {"dropout": 0.4},
    {"dropout": 0.4, "activation": "relu"},
    {"activation": "relu", "norm": False},
    {"norm": False, "dropout": 0.2, "source_weight": 0.0},
    {"source_weight": 1e-5, "dropout": 0.3},
]


@with_kernels
@CHUNKS
@pytest.mark.parametrize("key", [None, 7])
@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("options", TAILS, ids=str)
def test_norm_activation_and_dropout_are_those_of_the_formula(options, mode, key, chunked, calls, in_chunks):
    in_chunks(chunked, 24)
    if DEVICE == "cuda" and key is None and mode == "training":
        pytest.skip("torch draws other masks for float64; the next test compares float32")
    check(model_of(24, **options).train(mode == "training"), 45, edges_of("edge_index", 45), key=key)
    assert len(calls) == 2


@with_kernels
@CHUNKS
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_dropout_of_torchs_generator_is_that_of_the_formula(diffusivity, chunked, calls, in_chunks):
    in_chunks(chunked, 64)
    model = model_of(64, diffusivity=diffusivity, dropout=0.4, activation="relu").to(DEVICE)
    x, edges = torch.randn(200, 4).to(DEVICE), moved(edges_of("graph", 200))
    close(results(model, x, edges, formula=False), results(model, x, edges, formula=True), 1e-3)
    assert len(calls) == 2


@with_kernels
@CHUNKS
def test_bool_and_float_masks_agree(chunked, calls, in_chunks, monkeypatch):
    """A GPU draws the first, a CPU the second."""
    in_chunks(chunked, 16)
    model = model_of(16, dropout=0.4).to(DEVICE)
    x, edges, found = torch.randn(45, 4).to(DEVICE), moved(edges_of("graph", 45)), []
    for dtype in (torch.bool, torch.float32):

        def drop(x, rate, dtype=dtype):
            kept = torch.rand(x.shape, device=x.device) >= rate
            return x * kept / (1 - rate), kept if dtype == torch.bool else kept / (1 - rate)

        monkeypatch.setattr(rows, "drop", drop)
        monkeypatch.setattr(gpu_layer, "drop", drop)
        found.append(results(model, x, edges, formula=False))
    close(*found, 1e-6)
    assert len(calls) == 4


@with_kernels
@CHUNKS
def test_one_clamped_total_among_others(chunked, calls, in_chunks):
    """All keys but one are opposite to the query: the gradient of the keys comes through the numerator alone."""
    in_chunks(chunked, 2)
    conv = DIFFormerConv(2, 2)
    with torch.no_grad():
        conv.query.weight.zero_()
        conv.query.bias.copy_(torch.tensor([1.0, 0.0]))
        conv.key.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        conv.key.bias.copy_(torch.tensor([-1.0, 0.0]))
        conv.value.bias.fill_(1)
    conv, z = conv.to(DEVICE), torch.zeros(1000, 2, device=DEVICE)
    z[0, 1] = 0.01
    z.requires_grad_()
    found = torch.autograd.grad(conv(z).sum(), [z, *conv.key.parameters()])
    assert len(calls) == 1
    wide, z = copy.deepcopy(conv).double(), z.detach().double().requires_grad_()
    wanted = torch.autograd.grad(wide(z).sum(), [z, *wide.key.parameters()])
    assert wanted[1].abs().max() > 0.1
    close(found, wanted, 1e-2)


@with_kernels
@CHUNKS
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("sizes", [(4, 7), (7, 4), (5, 5)])
def test_layer_alone_equals_the_formula(diffusivity, sizes, chunked, calls, in_chunks):
    before, after = sizes
    in_chunks(chunked, after)
    torch.manual_seed(0)
    layer = DIFFormerConv(before, after, diffusivity=diffusivity, residual=before == after).to(DEVICE)
    x, source, given = torch.randn(30, before), torch.randn(30, after), moved(edges_of("graph", 30))
    found = []
    for dtype in (torch.float32, torch.float64):
        conv = copy.deepcopy(layer).to(dtype)
        z, start = (value.to(DEVICE, dtype).requires_grad_() for value in (x, source))
        out = conv(z, given, source=start)
        found.append([out, *torch.autograd.grad(out.square().sum(), [z, start, *conv.parameters()])])
    assert len(calls) == 1
    close(*found)


@with_kernels
@CHUNKS
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_a_second_backward_pass_and_frozen_maps(diffusivity, chunked, calls, in_chunks):
    in_chunks(chunked, 16)
    model = model_of(16, diffusivity=diffusivity, dropout=0.3, tied_qk=True).to(DEVICE)
    model.layers[1].query.requires_grad_(False)
    wanted = [p for p in model.parameters() if p.requires_grad]
    out = model(torch.randn(45, 4).to(DEVICE), moved(edges_of("graph", 45))).square().sum()
    first = torch.autograd.grad(out, wanted, retain_graph=True)
    second = torch.autograd.grad(out, wanted)
    assert all(torch.equal(*pair) and pair[0].abs().sum() > 0 for pair in zip(first, second, strict=True))
    assert len(calls) == 2


@with_kernels
def test_any_strides_and_alignment(calls):
    conv = DIFFormerConv(8, 8).to(DEVICE)
    z = torch.complex(torch.randn(30, 8), torch.randn(30, 8)).to(DEVICE).conj().imag
    assert z.is_neg()
    torch.testing.assert_close(conv(z, source=z), conv(z.resolve_neg().clone(), source=z))
    across = torch.randn(8, 30, device=DEVICE)
    torch.testing.assert_close(conv(across.T, source=across.T), conv(across.T.contiguous(), source=across.T))
    assert len(calls) == 4
    wanted = conv(across.T)
    for part in (conv.query, conv.value):
        part.bias = nn.Parameter(torch.stack([part.bias.detach(), torch.full((8,), 9.0, device=DEVICE)], -1)[:, 0])
    torch.testing.assert_close(conv(across.T), wanted)
    assert len(calls) == 5
    leaf = across.T.clone().requires_grad_()
    (found,) = torch.autograd.grad(conv(leaf).sum(), leaf)  # of an expanded gradient
    (right,) = torch.autograd.grad((conv(leaf) * torch.ones_like(leaf)).sum(), leaf)
    torch.testing.assert_close(found, right)


@with_kernels
def test_second_derivatives_are_refused(calls):
    model, x = model_of(16).to(DEVICE), torch.randn(30, 4, device=DEVICE, requires_grad=True)
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        first.sum().backward()
    assert len(calls) == 2


@with_kernels
@pytest.mark.parametrize("edges", ["graph", "edge_index"])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@CHUNKS
@pytest.mark.parametrize("gathered", [False, True], ids=["float32", "bfloat16 gathered"])
def test_mixed_precision_is_closer_than_the_formula(
    edges, diffusivity, chunked, gathered, calls, in_chunks, monkeypatch
):
    in_chunks(chunked, 32)
    if gathered:
        monkeypatch.setattr(gpu_layer, "MOST_ENTRIES", 0)
    model, x, given = (
        model_of(32, diffusivity=diffusivity).to(DEVICE),
        torch.randn(200, 4).to(DEVICE),
        moved(edges_of(edges, 200)),
    )
    wanted = results(model, x, given, formula=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = results(model, x, given, formula=False)
    assert len(calls) == 2
    assert all(grad.dtype == torch.float32 for grad in found[1:])
    close(found, wanted, 0.1)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        plain = results(model, x, given, formula=True)
    error = lambda given: sum(((a - b).norm() / b.norm()).item() for a, b in zip(given, wanted, strict=True))
    assert error(found) <= error(plain)


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("key", [None, 3])
def test_norm_relu_and_dropout_at_once(dtype, rate, key, calls):
    norm = model_of(40).input_norm.to(DEVICE)
    x = (3 * torch.randn(50, 40) + 1).to(DEVICE, dtype).requires_grad_()
    given, found = torch.randn(50, 40).to(DEVICE), []
    for fused in (True, False):
        torch.manual_seed(0)
        with dropout_key(key or 0) if key else torch.enable_grad():
            drop = LayerDropout(rate, True)
            if fused:
                out = fused_tail(norm, x, relu=True, dropout=drop)
            else:
                normed = nn.functional.layer_norm(x.float(), (40,), norm.weight, norm.bias, norm.eps)
                out = drop.apply(normed.relu())
        found.append([out, *torch.autograd.grad((out * given).sum(), [x, norm.weight, norm.bias])])
    assert found[0][0].dtype == torch.float32
    assert found[0][1].dtype == dtype
    close(found[0][:1] + found[0][2:], found[1][:1] + found[1][2:], 1e-5)
    close(found[0][1:2], found[1][1:2], 1e-5 if dtype == torch.float32 else 1e-2)


@with_kernels
def test_modified_norm_or_dropout_is_called(calls):
    norm, x, drop = rows.LayerNorm(8).to(DEVICE), torch.randn(20, 8, device=DEVICE), LayerDropout(0.0, True)
    assert fused_tail(norm, x, relu=True, dropout=drop) is not None
    assert fused_tail(nn.LayerNorm(8).to(DEVICE), x, relu=True, dropout=drop) is None
    assert fused_tail(norm, x.double(), relu=True, dropout=drop) is None
    handle = norm.register_forward_hook(lambda module, args, out: 2 * out)
    assert fused_tail(norm, x, relu=True, dropout=drop) is None
    handle.remove()
    assert fused_tail(norm, x, relu=True, dropout=drop) is not None


class OtherLayer(DIFFormerConv):
    def values(self, z):
        return changed(super().values(z))


def subclass_a_map(model):
    model.layers[0].value.__class__ = ChangedLinear


def subclass_the_layer(model):
    model.layers[0].__class__ = OtherLayer


def replace_a_map(model):
    model.layers[0].value = nn.Sequential(model.layers[0].value, nn.Tanh())


def wrap_a_map(model):
    model.layers[0].value = ChangedModule(model.layers[0].value)


def wrap_the_layer(model):
    model.layers[0] = ChangedModule(model.layers[0])


def hook_a_map(model):
    model.layers[0].value.register_forward_hook(lambda module, args, out: changed(out))


def hook_the_layer(model):
    model.layers[0].register_forward_pre_hook(lambda module, args: (changed(args[0]), *args[1:]))


def hook_the_norm(model):
    model.norms[0].register_forward_hook(lambda module, args, out: changed(out))


def hook_the_input_norm(model):
    model.input_norm.register_forward_hook(lambda module, args, out: changed(out))


def prune_a_map(model):
    prune.l1_unstructured(model.layers[0].value, "weight", amount=0.5)


def parametrise_a_map(model):
    parametrize.register_parametrization(model.layers[0].value, "weight", nn.Softplus())


# How many of the two layers are left to the kernels: one that is wrapped, or whose norm is called, without its tail.
CHANGES = {
    subclass_a_map: 1, subclass_the_layer: 1, replace_a_map: 1, wrap_a_map: 1, wrap_the_layer: 2, hook_a_map: 1,
    hook_the_layer: 1, hook_the_norm: 2, hook_the_input_norm: 2, prune_a_map: 1, parametrise_a_map: 1,
}  # fmt: skip


@with_kernels
@pytest.mark.parametrize("edges", ["graph", "edge_index"])
@pytest.mark.parametrize(("change", "left"), list(CHANGES.items()), ids=lambda x: getattr(x, "__name__", ""))
def test_changed_modules_are_called(change, left, edges, calls):
    given, x = moved(edges_of(edges, 30)), torch.randn(30, 4).to(DEVICE)
    model = model_of(16, dropout=0.0).to(DEVICE)
    before = model(x, given)
    change(model)
    calls.clear()
    found = results(model, x, given, formula=False)
    assert len(calls) == left
    assert (found[0] - before).abs().max() > 1e-3
    close(found, results(model, x, given, formula=True), 1e-3)


@with_kernels
@pytest.mark.parametrize("edges", ["graph", "edge_index"])
def test_programs_that_are_recorded_or_transformed_take_the_formula(edges, calls):
    given, x = moved(edges_of(edges, 30)), torch.randn(30, 4).to(DEVICE)
    model = model_of(16).to(DEVICE).requires_grad_(False)
    wanted = model(x, given)
    assert len(calls) == 2
    stacked = torch.vmap(lambda x: model(x, given))(x.expand(2, -1, -1))
    torch.testing.assert_close(stacked[1], wanted, rtol=1e-4, atol=1e-5)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        model(x, given)
    finally:
        handle.remove()
    assert len(calls) == 2
    wanted = model(x)
    assert len(calls) == 4
    traced = torch.jit.trace(model, (x,), check_trace=False)
    torch.testing.assert_close(traced(x), wanted, rtol=1e-4, atol=1e-5)
    assert len(calls) == 4


@with_kernels
def test_transforms_of_the_source_or_a_norm_alone_take_the_formula(calls):
    layer, z, source = DIFFormerConv(16, 16).to(DEVICE), *torch.randn(2, 30, 16, device=DEVICE)
    wanted = layer(z, source=source)
    stacked = torch.vmap(lambda s: layer(z, source=s))(source.expand(2, -1, -1))
    torch.testing.assert_close(stacked[1], wanted, rtol=1e-4, atol=1e-5)
    model, x = model_of(16).to(DEVICE), torch.randn(30, 4, device=DEVICE)
    weight, wanted = model.norms[0].weight, model(x)
    run = lambda w: torch.func.functional_call(model, {"norms.0.weight": w}, (x,))
    torch.testing.assert_close(torch.vmap(run)(weight.expand(2, -1))[1], wanted, rtol=1e-4, atol=1e-5)


def test_kernels_that_cannot_be_compiled_are_not_used(calls, monkeypatch):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(rows, "kernels", object())
    monkeypatch.setattr(rows, "_run", fail)
    rows._runs_on.cache_clear()
    try:
        with pytest.warns(UserWarning, match="cannot compile this package's kernels.*C compiler"):
            model_of(16).to(DEVICE)(torch.randn(30, 4, device=DEVICE)).sum().backward()
    finally:
        rows._runs_on.cache_clear()
    assert calls == []


class Compiled:
    """Stands for a kernel that Triton has compiled: takes pointers, numbers and constants in order."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, log):
        self.log = log

    def run(self, *given):
        *grid, stream, function, metadata, launch_metadata, enter, leave = given[:9]
        assert (stream, function, metadata) == ("stream", "function", "metadata")
        assert launch_metadata is enter is leave is None
        self.log.append(("again", tuple(grid), given[9:]))


class Kernel(Compiled):
    arg_names = ("X", "Y", "N", "scale", "D", "FLAG", "ROWS", "WIDTH")

    def __getitem__(self, grid):
        return lambda *given, **constants: self.log.append(("first", grid, given, constants)) or Compiled(self.log)


def test_a_compiled_kernel_is_found_by_all_that_it_depends_on(monkeypatch):
    log = []
    monkeypatch.setattr(rows, "kernels", type("Kernels", (), {"work": Kernel(log)}))
    monkeypatch.setattr(rows, "_stream", lambda place: "stream")
    monkeypatch.setattr(rows, "_COMPILED", {})
    x = torch.zeros(100, 8)
    block, padded = rows._rows(8)
    for _ in range(2):
        rows.launch("work", x, 8, (x, None), (2.0,), FLAG=3)
    assert log[0] == ("first", (1,), (x, None, 100, 2.0), {"FLAG": 3, "D": 8, "ROWS": block, "WIDTH": padded})
    assert log[1] == ("again", (1, 1, 1), (x.data_ptr(), None, 100, 2.0, 8, 3, block, padded))
    rows.launch("work", x[:50], 8, (x[:50], None), (4.0,), FLAG=3)
    assert log[2] == ("again", (1, 1, 1), (x.data_ptr(), None, 50, 4.0, 8, 3, block, padded))
    shifted = torch.zeros(801)[1:].view(100, 8)  # does not begin on a multiple of 16 bytes
    others = [((shifted, None), 3), ((x, x), 3), ((x > 0, None), 3), ((x, None), 4)]
    for tensors, flag in others:
        rows.launch("work", x, 8, tensors, (2.0,), FLAG=flag)
    assert [entry[0] for entry in log[3:]] == ["first"] * len(others)


def test_few_launches_and_operations_per_layer(calls, monkeypatch):
    """The bounds are the point of the kernels; launches are counted, not made, so that no Triton is needed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    launches = []
    monkeypatch.setattr(rows, "kernels", object())
    monkeypatch.setattr(rows, "_run", lambda name, *_: launches.append(name))
    products = 2 if DEVICE == "cuda" else 0  # with the graph
    for diffusivity, most in (("simple", 5 + products), ("sigmoid", 7 + products)):
        counts = []
        for layers in (1, 3):
            model = model_of(64, num_layers=layers, diffusivity=diffusivity, dropout=0.2).to(DEVICE)
            x, given = torch.randn(30, 4, device=DEVICE), moved(edges_of("graph", 30))
            model(x, given).sum().backward()
            launches.clear()
            with Count() as counter:
                model(x, given).sum().backward()
            counts.append((counter.calls, len(launches)))
        assert (counts[1][1] - counts[0][1]) / 2 == most
        assert (counts[1][0] - counts[0][0]) / 2 < 62


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the tests above have run")
def test_kernels_agree_under_the_triton_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
