import copy

import pytest
import torch
from torch.nn import functional

from difformer import DIFFormer
from difformer.attention.reference import attention_matrix
from difformer.nn import inspection


def literal_pairs(model, x, layer, batch=None):
    """All off-diagonal pairs of one layer, strongest first, from the dense matrix."""
    z = model.trajectory(x, batch=batch)[layer]
    conv = model.layers[layer]
    matrix = attention_matrix(*conv.queries_and_keys(z), conv.diffusivity, batch).mean(0).fill_diagonal_(-1)
    if batch is not None:
        matrix[batch.unsqueeze(1) != batch] = -1
    value, place = matrix.flatten().sort(descending=True)
    return value, place // len(x), place % len(x)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "softmax", "gaussian:0.1"])
def test_strongest_pairs_are_those_of_the_dense_matrix(diffusivity, monkeypatch):
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity, num_heads=2).double().eval()
    x = torch.randn(40, 5, dtype=torch.float64)
    through_model = model.attention(x, layer=-1, top_k=30)
    monkeypatch.setattr(inspection, "PAIRS_OF_A_BLOCK", 7 * len(x))  # several blocks
    found = model.attention(x, layer=-1, top_k=30)
    value, target, source = literal_pairs(model, x, 1)
    torch.testing.assert_close(found.weight, value[:30])
    assert torch.equal(found.target, target[:30])
    assert torch.equal(found.source, source[:30])
    assert torch.equal(through_model.source, found.source)


def test_pairs_of_one_head_are_those_of_its_dense_matrix():
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 3, diffusivity="sigmoid", num_heads=2).double().eval()
    x = torch.randn(20, 5, dtype=torch.float64)
    conv, states = model.layers[0], model.trajectory(x)
    for head, matrix in enumerate(attention_matrix(*conv.queries_and_keys(states[0]), conv.diffusivity)):
        value, place = matrix.detach().clone().fill_diagonal_(-1).flatten().sort(descending=True)
        found = model.attention(x, layer=0, head=head, top_k=30)
        torch.testing.assert_close(found.weight, value[:30])
        assert torch.equal(found.target * 20 + found.source, place[:30])
    with pytest.raises(ValueError, match=r"head must lie in 0 … 1, got 2"):
        model.attention(x, head=2)


def test_pairs_stay_within_a_graph():
    model = DIFFormer(5, 8, 3).double().eval()
    x = torch.randn(12, 5, dtype=torch.float64)
    batch = torch.tensor([0, 1] * 6)
    found = model.attention(x, batch=batch, top_k=1000)
    assert found.weight.shape == (2 * 6 * 5,)
    assert torch.equal(batch[found.source], batch[found.target])
    value, *_ = literal_pairs(model, x, 1, batch)
    torch.testing.assert_close(found.weight, value[: 2 * 6 * 5])


def test_constant_attention_is_equal_for_all_pairs_of_a_graph():
    model = DIFFormer(5, 8, 3, diffusivity="constant").eval()
    batch = torch.tensor([0, 1, 0, 1, 1, 1])
    found = model.attention(torch.randn(6, 5), batch=batch, top_k=36)
    assert found.weight.shape == (2 * 1 + 4 * 3,)  # without pairs of a node with itself
    torch.testing.assert_close(found.weight, torch.where(batch[found.target] == 0, 1 / 2, 1 / 4))


@pytest.mark.parametrize("diffusivity", [None, "identity"])
def test_attention_of_a_model_without_latent_pairs_is_refused(diffusivity):
    with pytest.raises(ValueError, match="propagates over no latent pairs"):
        DIFFormer(5, 8, 3, diffusivity=diffusivity).attention(torch.randn(6, 5))


def test_a_layer_that_does_not_exist_is_explained():
    with pytest.raises(ValueError, match=r"layer must lie in -2 … 1, got 2"):
        DIFFormer(5, 8, 3).attention(torch.randn(6, 5), layer=2)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", None])
def test_energy_is_the_sum_over_pairs(diffusivity):
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity, dropout=0.5).double().train()
    x = torch.randn(15, 5, dtype=torch.float64)
    edge_index = torch.randint(0, 15, (2, 30))
    profile = model.energy(x, edge_index)
    assert model.training  # looking does not change the model
    states = functional.normalize(model.eval().trajectory(x, edge_index), dim=-1)
    delta = (lambda u: u) if diffusivity is None else model.layers[0].diffusivity.delta
    for k, z in enumerate(states):
        u = torch.cdist(z, z) ** 2
        torch.testing.assert_close(profile.energy[k], delta(u).mean())
        torch.testing.assert_close(profile.dirichlet[k], u[edge_index[1], edge_index[0]].mean())
    assert profile.energy.shape == (3,)
    assert model.energy(x).dirichlet is None


def test_deep_diffusion_without_a_source_smooths_and_a_source_holds_it_back():
    torch.manual_seed(0)
    x = torch.randn(60, 8)
    ranks = {}
    for beta in (0.0, 1.0):
        model = DIFFormer(8, 16, 3, num_layers=16, transform=False, norm=False, graph_weight=None, source_weight=beta)
        ranks[beta] = model.energy(x).effective_rank
    assert ranks[0.0][-1] < 1.1 < ranks[0.0][0]
    assert ranks[1.0][-1] > ranks[0.0][-1]


def test_a_copied_model_can_be_looked_into():
    model = copy.deepcopy(DIFFormer(5, 8, 3, diffusivity="constant"))
    assert model.attention(torch.randn(6, 5), top_k=3).weight.shape == (3,)


@pytest.mark.parametrize("ask", ["energy", "attention"])
@pytest.mark.parametrize("training", [True, False])
def test_frozen_parts_keep_their_mode(ask, training):
    model = DIFFormer(5, 8, 3).train(training)
    model.layers[0].train(not training)
    model.input_norm.train(not training)
    before = {name: module.training for name, module in model.named_modules()}
    getattr(model, ask)(torch.randn(10, 5))
    assert {name: module.training for name, module in model.named_modules()} == before


def test_a_model_explains_which_layers_are_fused_and_why_not():
    x, edges = torch.randn(300, 5), torch.randint(0, 300, (2, 60))  # enough rows of 64 channels for the kernels in C
    assert DIFFormer(5, 64, 3).explain(x, edges) == ["layer 0: a fused kernel", "layer 1: a fused kernel"]
    small = DIFFormer(5, 64, 3).explain(x[:30])[0]
    assert small.startswith("layer 0: the formula, because kernels take float32")
    assert "at least 16,384 numbers (rows × channels), here 1,920" in small
    model = DIFFormer(5, 8, 3, diffusivity="sigmoid", num_layers=1)
    assert model.explain(x)[0].startswith(
        "layer 0: the formula, because diffusivity 'sigmoid' is fused on a GPU only; all pairs by blockwise:"
    )
    model = DIFFormer(5, 8, 3)
    model.layers[1].register_forward_hook(lambda *_: None)
    assert model.explain(x)[1].startswith("layer 1: the formula, because the layer has hooks")
    model.layers[0] = torch.nn.Identity()
    assert "the layer is of class Identity" in model.explain(x)[0]
