import pytest
import torch
from torch.nn import functional

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.attention.reference import propagate as dense_propagate
from difformer.diffusion import as_diffusivity

PAPER = {"graph_weight": None, "source_weight": 0.0, "initialisation": "torch"}


def states(nodes=12, channels=5):
    return torch.randn(nodes, channels, dtype=torch.float64)


def edges(nodes=12, count=40):
    return torch.randint(0, nodes, (2, count))


def literal(conv, z, edge_index=None, source=None):
    """The layer as Appendix C writes it, term by term, with dense matrices."""
    heads, d = conv.num_heads, conv.out_channels
    split = lambda x: x.view(len(z), heads, d)
    q = functional.normalize(split(conv.query(z)), dim=-1)
    k = functional.normalize(split(conv.key(z)), dim=-1)
    v = split(conv.value(z)) if conv.value is not None else z.unsqueeze(1).expand(-1, heads, -1)
    p = dense_propagate(q, k, v, conv.diffusivity)
    if edge_index is not None:
        adjacency = torch.zeros(len(z), len(z), dtype=z.dtype)
        adjacency.index_put_((edge_index[1], edge_index[0]), torch.ones(edge_index.shape[1], dtype=z.dtype), True)
        root = torch.where(adjacency.sum(1) > 0, adjacency.sum(1), torch.inf).pow(-0.5)
        graph = torch.einsum("nm,mhc->nhc", root.unsqueeze(1) * adjacency * root, v)
    w = conv.graph_weight
    if w is not None:
        p = (1 - w) * p + w * (v if edge_index is None else graph)  # without edges each node keeps its own value
    elif edge_index is not None:
        p = p + graph
    out = p.mean(1)
    if conv.residual:
        out = conv.step_size * out + (1 - conv.step_size) * z
    return out if source is None else out + conv.step_size * conv.source_weight * source


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "softmax", "gaussian"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        PAPER,
        {"graph_weight": 0.3},
        {"transform": False},
        {"residual": False},
        {"step_size": 0.2, "source_weight": 0.7},
        {**PAPER, "step_size": 0.2, "source_weight": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_graph", [False, True], ids=["alone", "graph"])
def test_layer_equals_the_equation_of_the_paper(diffusivity, heads, options, with_graph):
    conv = DIFFormerConv(5, 5, num_heads=heads, diffusivity=diffusivity, **options).double()
    z, source = states(), states()
    edge_index = edges() if with_graph else None
    expected = literal(conv, z, edge_index, source)
    torch.testing.assert_close(conv(z, edge_index, source=source), expected)


def test_constant_is_the_mean_of_the_graph():
    conv = DIFFormerConv(5, 5, diffusivity="constant", transform=False, step_size=1.0, graph_weight=None)
    z = states().float()
    torch.testing.assert_close(conv(z), z.mean(0, keepdim=True).expand_as(z))
    assert not list(conv.parameters())


def test_identity_keeps_states_and_none_leaves_only_the_graph():
    z = states()
    identity = DIFFormerConv(5, 5, diffusivity="identity", transform=False)
    torch.testing.assert_close(identity(z), z)
    off = DIFFormerConv(5, 5, diffusivity=None, transform=False, step_size=1.0, graph_weight=0.4)
    edge_index = edges()
    torch.testing.assert_close(off(z, edge_index), Graph(edge_index, 12).propagate(z))
    torch.testing.assert_close(off(z), z)  # nothing observed, nothing latent: each node by itself


def test_global_norm_is_one_number_for_nodes_and_heads():
    conv = DIFFormerConv(5, 5, num_heads=2, qk_norm="global").double()
    z = states()
    q, k = conv.queries_and_keys(z)
    torch.testing.assert_close(q, conv.query(z).view(12, 2, 5) / conv.query(z).norm())
    torch.testing.assert_close(k.norm(), torch.tensor(1.0, dtype=torch.float64))


def test_no_norm_leaves_scores_as_they_are():
    conv = DIFFormerConv(5, 5, diffusivity="sigmoid", qk_norm="none").double()
    z = states()
    q, k = conv.queries_and_keys(z)
    torch.testing.assert_close(q, conv.query(z).unsqueeze(1))
    torch.testing.assert_close(k, conv.key(z).unsqueeze(1))


def test_tied_queries_make_the_exchange_symmetric():
    conv = DIFFormerConv(5, 5, tied_qk=True).double()
    q, k = conv.queries_and_keys(states())
    assert q is k
    assert conv.key is None


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "softmax", "gaussian", "constant", "identity"])
def test_layer_passes_gradcheck(diffusivity):
    torch.manual_seed(0)
    conv = DIFFormerConv(3, 3, diffusivity=diffusivity, num_heads=2, source_weight=0.3).double()
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    graph = Graph(edges(6, 12), 6)
    assert torch.autograd.gradcheck(lambda z: conv(z, graph, source=z), (z,))


def test_custom_diffusivity():
    from difformer import Diffusivity

    cauchy = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
    conv = DIFFormerConv(5, 5, diffusivity=cauchy).double()
    z = states()
    torch.testing.assert_close(conv(z), literal(conv, z))


def test_rows_without_any_exchange_stay_finite():
    # In one dimension unit keys are ±1: a lone node whose key opposes its query exchanges nothing, 0/0 in the formula.
    conv = DIFFormerConv(1, 1, transform=False)
    with torch.no_grad():
        conv.query.weight.fill_(1.0), conv.query.bias.zero_(), conv.key.weight.fill_(-1.0), conv.key.bias.zero_()
    z = torch.tensor([[2.0]], requires_grad=True)
    out = conv(z)
    out.sum().backward()
    assert out.isfinite().all()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"diffusivity": "sigmod"}, "did you mean 'sigmoid'"),
        ({"step_size": 0.0}, r"step_size must lie in \(0, 1\], got 0.0"),
        ({"graph_weight": 1.5}, r"graph_weight must lie in \[0, 1\].*got 1.5"),
        ({"qk_norm": "rows"}, "qk_norm must be one of row, global, none, got 'rows'"),
        ({"graph_norm": "sym"}, "graph_norm must be one of"),
        ({"backend": "fast"}, "backend must be one of"),
        ({"num_heads": 0}, "num_heads must be an integer of at least 1, got 0"),
        ({"source_weight": float("nan")}, "source_weight must be a finite number, got nan"),
    ],
)
def test_bad_options_are_explained(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        DIFFormerConv(4, 4, **options)


def test_unequal_channels_with_residual_are_refused():
    with pytest.raises(ValueError, match=r"in_channels 4 and out_channels 6 must be equal .* set residual=False"):
        DIFFormerConv(4, 6)
    assert DIFFormerConv(4, 6, residual=False)(torch.randn(3, 4)).shape == (3, 6)


def test_bad_shapes_are_explained():
    with pytest.raises(ValueError, match=r"z must have shape \[N, 4\], got \(3, 5\)"):
        DIFFormerConv(4, 4)(torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"got \(2, 3, 4\); a series \[T, N, F\] goes through the model DIFFormer"):
        DIFFormerConv(4, 4)(torch.randn(2, 3, 4))


def test_as_diffusivity_takes_its_temperature_from_the_channels():
    conv = DIFFormerConv(16, 16, diffusivity="softmax")
    x = torch.tensor(0.5)
    torch.testing.assert_close(conv.diffusivity.g(x), torch.exp(x / 4))
    assert as_diffusivity("softmax", channels=16).name == conv.diffusivity.name


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_attention_does_not_depend_on_the_scale_of_a_diffusivity(scale):
    from difformer import Diffusivity

    z = states()
    conv = DIFFormerConv(5, 5, diffusivity=Diffusivity("cauchy", f=lambda u: 1 / (1 + u))).double()
    scaled = DIFFormerConv(5, 5, diffusivity=Diffusivity("scaled", f=lambda u: scale / (1 + u))).double()
    scaled.load_state_dict(conv.state_dict())
    torch.testing.assert_close(scaled(z), conv(z))


def test_graph_cached_in_inference_mode_can_be_used_in_training():
    conv, z = DIFFormerConv(5, 5).double(), states()
    graph, batch = Graph(edges(), 12), torch.zeros(12, dtype=torch.long)
    with torch.inference_mode():
        conv(z, graph)
    conv(z, graph, batch=batch).square().sum().backward()
    found = [parameter.grad.clone() for parameter in conv.parameters()]
    conv.zero_grad()
    conv(z, Graph(graph.edge_index, 12), batch=batch).square().sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in conv.parameters()])
    assert all(grad.abs().max() > 0 for grad in found)


def test_repr_says_whether_the_graph_term_is_added_or_mixed():
    assert "graph term added" in repr(DIFFormerConv(4, 4, graph_weight=None))
    assert "graph term mixed in with weight 0.3" in repr(DIFFormerConv(4, 4, graph_weight=0.3))
    assert "graph term mixed in with weight 0.8" in repr(DIFFormer(4, 4, 2))


def test_values_start_near_the_states_themselves():
    torch.manual_seed(0)
    conv = DIFFormerConv(6, 6, num_heads=2)
    torch.manual_seed(0)
    plain = DIFFormerConv(6, 6, num_heads=2, initialisation="torch")
    wanted = torch.eye(6).repeat(2, 1) + 0.1 * plain.value.weight
    torch.testing.assert_close(conv.value.weight, wanted)
    assert not conv.value.bias.any()
    torch.testing.assert_close(conv.query.weight, plain.query.weight)
    with pytest.raises(ValueError, match="initialisation must be one of identity, torch, got 'xavier'"):
        DIFFormerConv(6, 6, initialisation="xavier")


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", None])
@pytest.mark.parametrize("graph_weight", [None, 0.3])
def test_graph_without_edges_is_the_same_in_a_batch_as_alone(diffusivity, graph_weight):
    conv = DIFFormerConv(5, 5, diffusivity=diffusivity, graph_weight=graph_weight).double()
    z, batch = states(), torch.arange(12) // 6
    index = edges(6, 15)  # the second graph has none
    both = conv(z, index, batch=batch)
    torch.testing.assert_close(both[:6], conv(z[:6], index))
    torch.testing.assert_close(both[6:], conv(z[6:]))
