"""One graph in every form a user may have it: equal outputs, equal gradients, and the work is done once."""

import gc
import threading
import weakref

import pytest
import scipy.sparse
import torch

from difformer import DIFFormer, Graph
from difformer import graph as graph_module
from difformer.errors import UserError
from difformer.graph import as_graph

N = 300


def edges(seed=0, count=900):
    index = torch.randint(0, N, (2, count), generator=torch.Generator().manual_seed(seed))
    return torch.unique(index, dim=1).contiguous()  # a sparse matrix adds up edges that are given twice


def forms(index, weight):
    """Graph, edge_index, EdgeIndex and a sparse matrix whose row i says what node i receives."""
    from torch_geometric import EdgeIndex

    values = torch.ones(index.shape[1]) if weight is None else weight
    matrix = torch.sparse_coo_tensor(index.flip(0), values, (N, N))
    return {
        "Graph": (Graph(index, N, weight), None),
        "edge_index": (index, weight),
        "int32": (index.int(), weight),
        "EdgeIndex": (EdgeIndex(index, sparse_size=(N, N)), weight),
        "coo": (matrix, None),
        "csr": (matrix.to_sparse_csr(), None),
    }


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", None])
def test_outputs_and_gradients_are_equal_for_all_forms(diffusivity, weighted):
    pytest.importorskip("torch_geometric")
    torch.manual_seed(0)
    index = edges()
    weight = torch.rand(index.shape[1]) + 0.1 if weighted else None
    model, x = DIFFormer(8, 64, 3, diffusivity=diffusivity), torch.randn(N, 8)
    results = {}
    for name, given in forms(index, weight).items():
        leaf = x.clone().requires_grad_()
        for _ in range(2):  # once read, once kept
            out = model(leaf, *given)
        grads = torch.autograd.grad(out.square().mean(), [leaf, *model.parameters()], allow_unused=True)
        results[name] = out, [g for g in grads if g is not None]
    out, grads = results.pop("Graph")
    for name, (found, found_grads) in results.items():
        torch.testing.assert_close(found, out, msg=name)
        for a, b in zip(found_grads, grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


def test_an_edge_index_is_sorted_once_and_checked_once(monkeypatch):
    index, model, x = edges(), DIFFormer(8, 16, 3, num_layers=3), torch.randn(N, 8)
    made = []
    check = graph_module._check
    monkeypatch.setattr(graph_module, "_check", lambda *args: made.append(args) or check(*args))
    first = as_graph(index, N)
    for _ in range(3):
        model(x, index)
    assert len(made) == 1
    assert as_graph(index, N) is first
    assert len(first._matrices) == 1


@pytest.mark.parametrize("what", ["edge_index", "edge_weight"])
def test_an_in_place_change_is_noticed(what):
    index, weight = edges(), torch.rand(edges().shape[1]) + 0.1
    model, x = DIFFormer(8, 16, 3), torch.randn(N, 8)
    before = model(x, index, weight)
    if what == "edge_index":
        index[0] = index[0].roll(1)
    else:
        weight.mul_(torch.rand_like(weight))
    after = model(x, index, weight)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, model(x, Graph(index.clone(), N, weight.clone())))
    index[0, 0] = N
    with pytest.raises(ValueError, match=f"got values from 0 to {N}"):
        model(x, index, weight)


def test_cached_graph_is_dropped_with_the_tensor():
    model, x = DIFFormer(8, 16, 3), torch.randn(N, 8)
    index, weight = edges(), torch.rand(edges().shape[1])
    model(x, index, weight)
    kept = weakref.ref(as_graph(index, N, weight))
    assert kept() is not None
    del index
    gc.collect()
    assert kept() is None
    count = len(graph_module._GRAPHS)
    for seed in range(20):
        model(x, edges(seed))
    gc.collect()
    assert len(graph_module._GRAPHS) <= count + 1


def test_weights_that_are_trained_get_their_gradient_every_time():
    index, model, x = edges(), DIFFormer(8, 16, 3).double(), torch.randn(N, 8).double()
    weight = (torch.rand(index.shape[1]).double() + 0.1).requires_grad_()
    found = [torch.autograd.grad(model(x, index, weight).square().sum(), weight)[0] for _ in range(2)]
    torch.testing.assert_close(found[0], found[1])
    step = torch.zeros_like(weight)
    step[7] = 1e-6
    up, down = (model(x, index, (weight + sign * step).detach()).square().sum() for sign in (1, -1))
    assert found[0][7].item() == pytest.approx(((up - down) / 2e-6).item(), rel=1e-4)


def test_two_threads_get_the_same_result_as_one():
    model, x = DIFFormer(8, 64, 3, num_layers=2).eval(), torch.randn(N, 8)
    indices = [edges(seed) for seed in range(4)]
    with torch.no_grad():
        wanted = [model(x, index.clone()) for index in indices]
    failures = []

    def work(shift):
        with torch.no_grad():
            for i in range(40):
                at = (i + shift) % 4
                if not torch.allclose(model(x, indices[at]), wanted[at], atol=1e-5):
                    failures.append(at)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_batch_vector_is_laid_out_once_and_changes_are_noticed():
    model, x = DIFFormer(8, 16, 3), torch.randn(N, 8)
    batch = torch.arange(N) // 100
    index = torch.stack([torch.arange(0, 100), torch.arange(0, 100).roll(1)])
    first = model(x, index, batch=batch)
    torch.testing.assert_close(model(x, index, batch=batch), first)
    batch[200:] = 1
    merged = model(x, index, batch=batch)
    torch.testing.assert_close(merged, model(x, index.clone(), batch=batch.clone()))
    assert not torch.allclose(merged, first)
    index[0, 0] = 250
    with pytest.raises(ValueError, match="different graphs"):
        model(x, index, batch=batch)


def test_tensors_of_inference_mode_are_read_every_time():
    model = DIFFormer(8, 16, 3).eval()
    with torch.inference_mode():
        x, index = torch.randn(N, 8), edges()
        first = model(x, index)
        index[0] = index[0].roll(1)
        assert not torch.allclose(first, model(x, index))


def test_a_scipy_matrix_with_indices_outside_is_refused() -> None:
    matrix = scipy.sparse.random(6, 6, 0.5, random_state=0, format="csr")
    matrix.indices[0] = 2**30
    with pytest.raises(UserError, match="edge_index: the indices of a sparse matrix of shape"):
        Graph(matrix)
    with pytest.raises(UserError, match="edge_index: the indices of a sparse matrix of shape"):
        as_graph(matrix, 6)
