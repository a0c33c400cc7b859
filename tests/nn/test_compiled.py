"""The encoder inside torch.compile and torch.export."""

import pytest
import torch

from difformer import DIFFormer, Graph

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
def test_export(diffusivity, backend):
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
