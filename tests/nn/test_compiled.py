"""The encoder inside torch.compile and torch.export."""

import subprocess
import sys

import pytest
import torch

from difformer import DIFFormer, Graph
from difformer._compat import is_exporting
from difformer.attention import Segments, dispatch
from difformer.sparse import SparseMatrix

FIXED_BACKEND = [
    ("simple", "linear"),
    ("constant", "linear"),
    ("sigmoid", "reference"),
    ("identity", "linear"),
    (None, "linear"),
]


def problem():
    torch.manual_seed(0)
    return torch.randn(20, 5), torch.randint(0, 20, (2, 50))


@pytest.mark.parametrize(("diffusivity", "backend"), FIXED_BACKEND)
def test_exported_program_equals_the_model(diffusivity, backend):
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity, backend=backend).eval()
    x, edge_index = problem()
    program = torch.export.export(model, (x, edge_index))
    torch.testing.assert_close(program.module()(x, edge_index), model(x, edge_index))


def test_export_holds_no_operator_of_this_package():
    model = DIFFormer(5, 8, 3, backend="linear").eval()
    x, edge_index = problem()
    graph = torch.export.export(model, (x, edge_index)).graph
    assert not [node.target for node in graph.nodes if "difformer" in str(node.target)]


@pytest.mark.parametrize(("diffusivity", "backend"), FIXED_BACKEND)
def test_compiles_as_one_graph(diffusivity, backend):
    torch._dynamo.reset()
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity, backend=backend, num_layers=1)
    x, edge_index = problem()
    # `aot_eager` goes through capture, autograd and functionalisation; code generation is torch's own affair.
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    graph = Graph(edge_index, 20)
    model(x, graph)  # sorted now; a graph met first inside a compiled model goes edge by edge
    for form in (edge_index, graph, Graph(edge_index, 20)):
        expected, found = model(x, form), compiled(x, form)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (expected, found)]
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)


def test_export_needs_no_forward_pass_before():
    # Values cannot be looked at while a program is traced: in a fresh process nothing may be left to look up.
    program = """
import torch
from difformer import DIFFormer
for name in ("simple", "sigmoid", "softmax", "gaussian:0.5", "constant"):
    model = DIFFormer(5, 8, 3, diffusivity=name, num_layers=1).eval()
    x = torch.randn(20, 5)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_a_batch_compiles_where_its_graphs_are_known(diffusivity):
    torch._dynamo.reset()
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity, num_layers=1)
    x, _ = problem()
    batch = torch.arange(20) % 3
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, batch=Segments(batch)), model(x, batch=batch))
    with pytest.raises(Exception, match="must be known beforehand"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(x, batch=batch)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("any_number", [False, True])
def test_polynomial_attention_is_exported_and_compiled(grad, any_number):
    model = DIFFormer(5, 8, 3, diffusivity="sigmoid", backend="polynomial")
    x = torch.randn(30, 5)
    shapes = ({0: torch.export.Dim("n", min=2)},) if any_number else None
    with torch.set_grad_enabled(grad):
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    other = torch.randn(17, 5) if any_number else x
    torch.testing.assert_close(program.module()(other), model(other), atol=1e-5, rtol=1e-5)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


def test_a_compiled_program_is_not_taken_for_an_exported_one():
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x + (1.0 if is_exporting() else 0.0)

    x = torch.zeros(2)
    torch.compiler.reset()
    assert torch.compile(Asks(), fullgraph=True, backend="eager")(x).sum() == 0
    for strict in (False, True):
        assert torch.export.export(Asks(), (x,), strict=strict).module()(x).sum() == 2


def test_a_model_for_a_gpu_is_exported_for_any_number_of_rows():
    """The operator for all pairs on a GPU is not part of exported programs, whatever the number of rows."""
    model = DIFFormer(8, 8, 3, diffusivity="sigmoid", backend="fused").eval()
    rows = torch.export.Dim("rows", min=2, max=100_000)
    program = torch.export.export(model, (torch.randn(9, 8),), dynamic_shapes={"x": {0: rows}}, strict=False)
    x = torch.randn(40, 8)
    wanted = DIFFormer(8, 8, 3, diffusivity="sigmoid", backend="reference").eval()
    wanted.load_state_dict(model.state_dict())
    torch.testing.assert_close(program.module()(x), wanted(x))


@pytest.mark.parametrize("rows", [0, 1, 50])
@pytest.mark.parametrize("elements", [0, 1 << 22], ids=["operator", "plain operations"])
def test_compiled_simple_attention_equals_eager_with_gradients(monkeypatch, rows, elements):
    monkeypatch.setattr(dispatch, "FUSED_ELEMENTS", elements)
    torch.compiler.reset()
    model = DIFFormer(6, 8, 3, num_heads=2)
    x = torch.randn(rows, 6)
    edges = torch.randint(0, max(rows, 1), (2, 4 * rows))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(*(gradients(one, model, x, edges) for one in (compiled, model)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def gradients(call, model, x, edges):
    out = call(x, edges)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*model.parameters()], materialize_grads=True)]


def test_compiled_models_take_sparse_features_as_a_sparse_matrix():
    """torch compiles no program with CSR tensors as inputs; the page on speed says what to pass."""
    torch.compiler.reset()
    model = DIFFormer(5, 8, 3).eval()
    x = torch.rand(20, 5).round()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(SparseMatrix.from_tensor(x.to_sparse_csr())), model(x))
