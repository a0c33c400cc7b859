import pytest
import torch

from difformer import DIFFormer
from difformer.graph import GRAPH_NORMS, Graph, propagate_edges

every_norm = pytest.mark.parametrize("norm", GRAPH_NORMS)


def random_graph(nodes=30, edges=120, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, nodes - 2, (2, edges), generator=generator)  # the last two nodes stay isolated
    return Graph(index, nodes, torch.rand(edges, dtype=torch.float64, generator=generator))


def dense(graph, norm):
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    source, target = graph.edge_index
    adjacency.index_put_((target, source), graph.weights(torch.float64), accumulate=True)
    degree = adjacency.sum(1)
    inverse = torch.where(degree > 0, 1 / degree, 0.0)
    if norm == "gcn":
        return inverse.sqrt().unsqueeze(1) * adjacency * inverse.sqrt()
    return inverse.unsqueeze(1) * adjacency if norm == "random_walk" else adjacency


@every_norm
def test_propagation_is_the_matrix_of_the_formula(norm):
    graph = random_graph()
    z = torch.randn(30, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(30, 4, dtype=torch.float64)
    outputs = [graph.propagate(z, norm), propagate_edges(z, graph, norm), dense(graph, norm) @ z]
    gradients = [torch.autograd.grad((out * weight).sum(), z)[0] for out in outputs]
    for out, gradient in zip(outputs[:2], gradients[:2], strict=True):
        torch.testing.assert_close(out, outputs[2])
        torch.testing.assert_close(gradient, gradients[2])
    torch.testing.assert_close(graph.matrix(norm, torch.float64).to_dense(), dense(graph, norm))


def test_a_graph_is_normalised_once():
    graph = random_graph()
    assert graph.matrix("gcn") is graph.matrix("gcn")
    assert graph.matrix("gcn") is not graph.matrix("random_walk")


def test_every_input_form_gives_the_same_graph():
    index = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 3]])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    z = torch.randn(4, 3)
    expected = Graph(index, 4, weight).propagate(z)
    operator = torch.sparse_coo_tensor(index.flip(0), weight, (4, 4))  # row i: what node i receives
    for form in (operator, operator.coalesce().to_sparse_csr(), operator.coalesce().to_sparse_csc()):
        torch.testing.assert_close(Graph(form).propagate(z), expected)
    torch.testing.assert_close(Graph(index.int(), 4, weight, keep=False).propagate(z), expected)


def test_weights_that_are_trained_get_gradients():
    index = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    weight = torch.rand(4, dtype=torch.float64).add(0.5).requires_grad_()
    z = torch.randn(3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda w: Graph(index, 3, w).propagate(z), (weight,))


def test_duplicate_edges_add_up_and_isolated_nodes_receive_nothing():
    twice = Graph(torch.tensor([[0, 0], [1, 1]]), 3)
    once = Graph(torch.tensor([[0], [1]]), 3, torch.tensor([2.0]))
    z = torch.randn(3, 2)
    torch.testing.assert_close(twice.propagate(z, "none"), once.propagate(z, "none"))
    assert (twice.propagate(z)[2] == 0).all()
    assert (Graph(torch.empty(2, 0, dtype=torch.long), 3).propagate(z) == 0).all()


def test_self_loops_are_added_where_they_are_missing():
    graph = Graph(torch.tensor([[0, 1, 1], [0, 2, 0]]), 3, torch.tensor([5.0, 1.0, 1.0]))
    looped = graph.with_self_loops()
    matrix = looped.matrix("none").to_dense()
    torch.testing.assert_close(matrix.diagonal(), torch.tensor([5.0, 1.0, 1.0]))
    assert looped.num_edges == 5
    assert graph.with_self_loops() is looped


def test_propagation_under_vmap_equals_separate_runs():
    graph = random_graph()
    z = torch.randn(5, 30, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(z)
    together = torch.vmap(graph.propagate)(z)
    alone = torch.stack([graph.propagate(run) for run in z])
    torch.testing.assert_close(together, alone)
    first, second = (torch.autograd.grad((out * weight).sum(), z)[0] for out in (together, alone))
    torch.testing.assert_close(first, second)


def test_low_precision_is_summed_in_float32():
    graph = random_graph()
    z = torch.randn(30, 4)
    out = graph.propagate(z.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), graph.propagate(z.bfloat16().float()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((torch.zeros(3, 4, dtype=torch.long),), r"edge_index must have shape \[2, E\], got \(3, 4\)"),
        ((torch.zeros(2, 4),), "edge_index must hold integers, got torch.float32"),
        ((torch.tensor([[0], [7]]), 5), r"must lie in 0 … 4 \(5 nodes\), got values from 0 to 7"),
        ((torch.tensor([[-1], [0]]), 5), "got values from -1 to 0"),
        ((torch.tensor([[0], [1]]), 5, torch.ones(2)), r"one entry per edge, shape \(1,\), got \(2,\)"),
        ((torch.eye(3).to_sparse(), 5), r"must be \[5, 5\], one row and column per node, got \(3, 3\)"),
    ],
)
def test_bad_input_is_explained(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Graph(*arguments)


def test_unknown_norm_is_explained():
    with pytest.raises(ValueError, match="graph norm must be one of gcn, random_walk, none, got 'sym'"):
        random_graph().propagate(torch.randn(30, 2), "sym")


@pytest.mark.parametrize("norm", ["gcn", "random_walk", "none"])
def test_weights_changed_in_place_are_noticed(norm):
    index = torch.randint(0, 20, (2, 60))
    weight, z = torch.rand(60) + 0.1, torch.randn(20, 3)
    graph = Graph(index, 20, weight)
    before = graph.propagate(z, norm), graph.with_self_loops().propagate(z, norm)
    weight[:30] *= 3
    after = graph.propagate(z, norm), graph.with_self_loops().propagate(z, norm)
    fresh = Graph(index, 20, weight)
    wanted = fresh.propagate(z, norm), fresh.with_self_loops().propagate(z, norm)
    for old, new, right in zip(before, after, wanted, strict=True):
        torch.testing.assert_close(new, right)
        assert not torch.allclose(old, new)


def test_edges_changed_in_place_are_noticed_and_checked():
    index, z = torch.randint(0, 20, (2, 60)), torch.randn(20, 3)
    graph = Graph(index, 20)
    graph.propagate(z)
    index[0] = index[0].flip(0)
    torch.testing.assert_close(graph.propagate(z), Graph(index, 20).propagate(z))
    index[1, 0] = 20
    with pytest.raises(ValueError, match="20"):
        graph.propagate(z)


@pytest.mark.parametrize("attribute", ["edge_index", "edge_weight", "no weight"])
def test_assigned_edges_and_weights_are_noticed(attribute):
    torch.manual_seed(0)
    edges, z = torch.randint(6, (2, 20)), torch.randn(6, 3)
    graph = Graph(edges, 6, torch.rand(20))
    before = graph.propagate(z)
    if attribute == "edge_index":
        graph.edge_index = torch.randint(6, (2, 20))
    else:
        graph.edge_weight = None if attribute == "no weight" else torch.rand(20)
    after = graph.propagate(z)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, Graph(graph.edge_index, 6, graph.edge_weight).propagate(z))
    graph.edge_weight = torch.rand(3)
    with pytest.raises(ValueError, match="one entry per edge"):
        graph.propagate(z)


def test_a_model_notices_weights_that_change_in_place():
    model, x = DIFFormer(4, 64, 2), torch.randn(300, 4)
    index, weight = torch.randint(0, 300, (2, 900)), torch.rand(900) + 0.1
    graph = Graph(index, 300, weight)
    before = model(x, graph)
    weight[:400] = 0
    after = model(x, graph)
    torch.testing.assert_close(after, model(x, Graph(index, 300, weight)))
    assert not torch.allclose(before, after)
