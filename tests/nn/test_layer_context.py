"""Contexts: the same layer over weighted rows, chunks of rows, rows on ranks, and rows that were never seen."""

import dataclasses

import pytest
import torch

from difformer import DIFFormer, DIFFormerConv, Graph
from difformer.attention import restore, summarise
from difformer.diffusion import Diffusivity
from difformer.nn.context import Stored, Structure, as_structure, store

DIFFUSIVITIES = ["simple", "sigmoid", "gaussian:0.1", "constant", "identity", None]
NORMS = ["row", "global", "none"]
N = 40


def graph():
    return Graph(torch.randint(0, N, (2, 150), generator=torch.Generator().manual_seed(0)), N)


def layer(diffusivity, **options):
    torch.manual_seed(0)
    return DIFFormerConv(6, 6, diffusivity=diffusivity, **options).double()


def states(n=N, seed=1):
    return torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows_of(observed, conv, rows):
    matrix = observed.matrix(conv.graph_norm, torch.float64).to_dense()
    return lambda sent: matrix[rows] @ sent


@pytest.mark.parametrize("options", [{}, {"num_heads": 2, "graph_weight": 0.3, "source_weight": 0.5}], ids=str)
@pytest.mark.parametrize("qk_norm", NORMS)
@pytest.mark.parametrize("diffusivity", DIFFUSIVITIES)
@pytest.mark.parametrize("with_graph", [False, True])
def test_rows_in_chunks_receive_what_they_receive_at_once(diffusivity, qk_norm, options, with_graph):
    conv, z, observed = layer(diffusivity, qk_norm=qk_norm, **options), states(), graph() if with_graph else None
    whole = conv(z, observed, source=z)
    with torch.no_grad():
        senders = store(conv, z, size=7, observed=with_graph)
        for rows in (slice(0, 13), slice(13, 40)):
            context = dataclasses.replace(senders, edges=rows_of(observed, conv, rows)) if with_graph else senders
            torch.testing.assert_close(conv(z[rows], source=z[rows], context=context), whole[rows].detach())


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "constant"])
@pytest.mark.parametrize("options", [{}, {"transform": False}, {"num_heads": 2}, {"qk_norm": "none"}], ids=str)
def test_senders_with_weights_are_rows_that_occur_more_than_once(diffusivity, options):
    conv, z = layer(diffusivity, **options), states()
    weight = torch.arange(N, dtype=torch.float64) % 3
    found = conv(z, context=as_structure(N, weight=weight))
    rows = torch.arange(N).repeat_interleave(weight.long())
    unseen = store(conv, z[rows])
    torch.testing.assert_close(found, conv(z, context=unseen))


def test_weights_and_parameters_are_trained_through_a_context():
    conv, z = layer("sigmoid", graph_weight=None), states().requires_grad_()
    weight = (torch.rand(N, dtype=torch.float64) + 0.1).requires_grad_()
    found = torch.autograd.grad(conv(z, context=Structure(weight=weight)).square().sum(), [z, weight, conv.query.bias])
    q, k = (torch.nn.functional.normalize(m(z), dim=-1) for m in (conv.query, conv.key))
    exchange = torch.sigmoid(q @ k.T) * weight
    p = exchange / exchange.sum(1, keepdim=True) @ conv.value(z)
    wanted = torch.autograd.grad((0.5 * z + 0.5 * p).square().sum(), [z, weight, conv.query.bias])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_unseen_rows_receive_from_the_population_alone(diffusivity):
    conv, z, new = layer(diffusivity), states(), states(5, seed=2)
    population = store(conv, z)
    together = conv(new, context=population)
    for i in range(5):
        torch.testing.assert_close(conv(new[i : i + 1], context=population), together[i : i + 1])
    saved = population.summary.state()
    again = Stored(restore(saved, conv.diffusivity))
    torch.testing.assert_close(conv(new, context=again), together)


@pytest.mark.parametrize("diffusivity", ["simple", "constant"])
@pytest.mark.parametrize("qk_norm", NORMS)
def test_a_context_of_several_ranks_sums_over_them(diffusivity, qk_norm):
    """Two halves of the rows, each with the other's sums added: what an all-reduce does, gradients included."""
    conv, z = layer(diffusivity, qk_norm=qk_norm), states().requires_grad_()

    @dataclasses.dataclass
    class Rank:
        """Its own rows, and those of the other rank as messages bring them."""

        other: torch.Tensor
        has_edges = None

        def norms(self, q, k):
            others = conv._queries_and_keys(self.other)
            return tuple((x.square().sum() + y.square().sum()).sqrt() for x, y in zip((q, k), others, strict=True))

        def latent(self, q, k, v, diffusivity, backend):
            values = conv.values(self.other)
            keys = values if conv.query is None else conv.queries_and_keys(self.other, Whole())[1]
            return (summarise(k, v, diffusivity) + summarise(keys, values, diffusivity)).answer(q)

        def observed(self, v, norm):
            return None

    class Whole(Structure):
        def norms(self, q, k):
            return super().norms(*conv._queries_and_keys(z))

    first, second = z[:20], z[20:]
    found = torch.cat([conv(first, context=Rank(second)), conv(second, context=Rank(first))])
    wanted = conv(z)
    torch.testing.assert_close(found, wanted)
    slope = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    inputs = [z, *conv.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * slope).sum(), inputs),
        torch.autograd.grad((wanted * slope).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_a_model_takes_one_context_or_one_per_layer():
    model = DIFFormer(4, 6, 3, diffusivity="sigmoid").double().eval()
    x = torch.randn(N, 4, dtype=torch.float64)
    with torch.no_grad():
        states = model.trajectory(x)
        contexts = [store(conv, z) for conv, z in zip(model.layers, states, strict=False)]
        torch.testing.assert_close(model(x[:9], context=contexts), model(x)[:9])
        torch.testing.assert_close(model(x, context=Structure(weight=torch.full((N,), 2.0))), model(x))
    with pytest.raises(ValueError, match="context already defines the senders"):
        model(x, graph(), context=contexts)
    with pytest.raises(ValueError, match="context already defines the senders"):
        model.embed(x, batch=torch.zeros(N, dtype=torch.long), context=contexts)
    with pytest.raises(ValueError, match="context already defines the senders"):
        model.layers[0](torch.randn(N, 6).double(), graph(), context=contexts[0])


def test_a_global_norm_needs_the_norms_of_the_senders():
    conv = layer("simple", qk_norm="global")
    with pytest.raises(ValueError, match="holds no norms"):
        conv(states(), context=Stored(None))


def test_a_layer_evaluates_a_diffusivity_named_simple_as_it_is():
    own = Diffusivity("simple", f=lambda u: torch.exp(-3 * u))
    conv, z = layer(own, graph_weight=None), states()
    q, k = conv.queries_and_keys(z)
    exchange = own.g(torch.einsum("nhd,mhd->nm", q, k))
    wanted = 0.5 * z + 0.5 * (exchange / exchange.sum(1, keepdim=True) @ conv.value(z))
    torch.testing.assert_close(conv(z), wanted)
    torch.testing.assert_close(conv(z, context=store(conv, z, size=9)), wanted)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid", "constant"])
def test_a_stored_population_counts_its_weights(diffusivity):
    conv, z, new = layer(diffusivity), states(), states(5, seed=2)
    weight = torch.arange(N, dtype=torch.float64) % 3
    rows = torch.arange(N).repeat_interleave(weight.long())
    for size in (None, 7):
        weighted = store(conv, z, weight=weight, size=size)
        torch.testing.assert_close(conv(new, context=weighted), conv(new, context=store(conv, z[rows])))


@pytest.mark.parametrize("missing", ["query_norm", "key_norm"])
def test_a_context_without_one_of_its_norms_says_so(missing):
    norms = {"query_norm": torch.ones(()), "key_norm": torch.ones(())}
    q = torch.randn(3, 1, 2)
    assert [x.item() for x in Stored(None, **norms).norms(q, q)] == [1.0, 1.0]
    with pytest.raises(ValueError, match="holds no norms of its senders"):
        Stored(None, **{**norms, missing: None}).norms(q, q)


@pytest.mark.parametrize("count", [1, 3])
def test_contexts_that_are_not_one_per_layer_are_refused(count):
    model, x = DIFFormer(6, 6, 2, num_layers=2), torch.randn(N, 6)
    with pytest.raises(ValueError, match=f"one per layer: 2, got {count}"):
        model(x, context=[as_structure(N)] * count)
    torch.testing.assert_close(model.eval()(x, context=[as_structure(N)] * 2), model(x))
