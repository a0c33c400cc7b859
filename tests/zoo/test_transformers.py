"""Graph transformers: each against the dense formula it stands for."""

import math
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from problems import adjacency, points, some_edges
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path
from torch.nn import functional

from difformer import Graph, zoo
from difformer.attention import Segments
from difformer.nn.dropout import dropout_key, dropout_keys
from difformer.zoo.encoder import Observed
from difformer.zoo.graphormer import attend
from difformer.zoo.node_pairs import (
    draw_projection,
    key_features,
    linear_attention,
    orthonormal,
    relative_features,
)
from difformer.zoo.nodeformer import attend_drawn, edge_loss, gumbel
from difformer.zoo.polynormer import GlobalLayer, LocalLayer
from difformer.zoo.sgformer import simple_attention
from difformer.zoo.structure_encodings import hop_distances, laplacian_eigenvectors, return_probabilities

CPU = torch.device("cpu")


def made(name, **options):
    torch.manual_seed(0)
    return zoo.build(name, 6, 3, hidden_channels=8, **options).eval()


# ---- random features and NodeFormer


def heads(nodes=40, d=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(nodes, 2, d, generator=g) for _ in range(3))


def test_random_features_estimate_the_exponential_without_bias():
    torch.manual_seed(0)
    q, k, _ = (x[:6] * 0.2 for x in heads())
    exact = torch.exp(torch.einsum("nhd,mhd->hnm", q, k))
    found = torch.zeros_like(exact)
    for _ in range(200):
        omega = draw_projection(64, 8)
        log_q, log_k = (x @ omega.T - x.square().sum(-1, keepdim=True) / 2 for x in (q, k))
        found += torch.einsum("nhm,lhm->hnl", log_q.exp(), log_k.exp()) / 64 / 200
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0)


@pytest.mark.parametrize("keyed", [False, True], ids=["torch", "key"])
@pytest.mark.parametrize(("features", "channels"), [(30, 64), (64, 64), (100, 16), (1, 5)])
def test_projections_are_orthogonal_in_blocks(features, channels, keyed):
    torch.manual_seed(0)
    with dropout_key(4, 2) if keyed else nullcontext():
        omega = draw_projection(features, channels)
    assert omega.shape == (features, channels)
    assert omega.dtype == torch.float32
    for block in functional.normalize(omega.double()).split(channels):
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)).double(), rtol=0, atol=1e-6)


def test_projections_are_gaussian_by_direction_and_length():
    drawn = []
    for step in range(400):
        with dropout_key(0, step):
            drawn.append(draw_projection(12, 8).double())
    omega = torch.stack(drawn)
    directions = functional.normalize(omega, dim=-1)
    # Every entry of every row: mean 0 and variance 1/8, five deviations of 400 draws; so no sign is preferred.
    assert float(directions.mean(0).abs().max()) < 5 * (1 / 8 / 400) ** 0.5
    assert float(directions.square().mean((0, 1)).sub(1 / 8).abs().max()) < 0.01
    assert float(omega.square().sum(-1).mean()) == pytest.approx(8, abs=5 * (16 / 4800) ** 0.5)  # χ² of 8 degrees
    assert float(omega.mean()) == pytest.approx(0, abs=5 / omega.numel() ** 0.5)


def test_orthonormal_rows_equal_gram_schmidt():
    a = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, r = torch.linalg.qr(a.mT)
    expected = (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT
    torch.testing.assert_close(orthonormal(a), expected)
    torch.testing.assert_close(torch.vmap(orthonormal)(a), expected)
    a[:, 5] = a[:, 0] + 1e-9 * a[:, 5]  # as good as dependent
    q = orthonormal(a)
    torch.testing.assert_close(q @ q.mT, torch.eye(6).double().expand(3, 6, 6), rtol=0, atol=1e-6)


def test_nodeformer_follows_its_key_and_leaves_torchs_generator_alone():
    model, x, edges = made("nodeformer").train(), points(), some_edges()
    outputs = {}
    for seed, step, generator in ((1, 1, 0), (1, 1, 9), (1, 2, 0), (2, 1, 0)):
        torch.manual_seed(generator)
        before = torch.get_rng_state()
        with dropout_key(seed, step):
            outputs[seed, step, generator] = model(x, edges)
        assert torch.equal(torch.get_rng_state(), before)
    first, again, *others = outputs.values()
    assert torch.equal(first, again)
    assert not any(torch.allclose(first, other, atol=1e-4) for other in others)
    torch.manual_seed(0)
    alone = model(x, edges)  # without a key, by torch's generator
    torch.manual_seed(0)
    assert torch.equal(model(x, edges), alone)
    assert not torch.equal(model(x, edges), alone)


def test_nodeformers_draws_do_not_depend_on_dropout():
    # A run without dropout draws as it does in a stack whose other runs have some.
    model, x = made("nodeformer").train(), points()
    keys = dropout_keys([3, 4], [1])[0]

    def one(rate, key):
        model.dropout = rate
        with dropout_key(key):
            return model(x)

    together = torch.vmap(one)(torch.tensor([0.0, 0.5]), keys)
    for run, rate in enumerate((0.0, 0.5)):
        torch.testing.assert_close(together[run], one(rate, keys[run]), rtol=1e-4, atol=1e-5)


def test_kernelised_attention_converges_to_softmax_attention():
    q, k, v = heads()
    q, k = q / 2, k / 2  # the variance of the estimate grows as e^(‖q + k‖²)
    scale = 8**-0.25
    exact = torch.einsum("hnm,mhc->nhc", torch.softmax(torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(8), -1), v)
    errors = []
    for features in (16, 256, 4096, 65536):
        torch.manual_seed(1)
        omega = draw_projection(features, 8)
        phi_q, phi_k = relative_features(q * scale @ omega.T), key_features(k * scale, omega, None)
        errors.append(float((linear_attention(phi_q, phi_k, v, None) - exact).norm() / exact.norm()))
    # √m faster with every sixteenfold m, to within a factor of two.
    assert all(after < before / 2 for before, after in pairwise(errors)), errors
    assert errors[-1] < 0.02


def test_nodeformer_without_noise_is_softmax_attention_and_its_bias():
    model = made("nodeformer", num_layers=1, random_features=50_000, temperature=1.0, norm=False, residual=False)
    x, edges = points(), some_edges()
    layer, z = model.layers[0], functional.elu(model.input(x))
    q, k, v = (part(z).unflatten(1, (4, 8)) for part in (layer.query, layer.key, layer.value))
    weights = torch.softmax(torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(8), -1)
    graph = Graph(edges, 24).with_self_loops()
    hop = graph.propagate(v)
    first, second = torch.sigmoid(layer.bias).unsqueeze(-1)
    expected = torch.einsum("hnm,mhc->nhc", weights, v) + first * hop + second * graph.propagate(hop)
    torch.testing.assert_close(model.embed(x, edges), layer.join(expected.flatten(1)), rtol=0.02, atol=0.02)
    source, target = graph.edge_index
    degree = torch.bincount(target, minlength=24)[target]
    likely = weights[:, target, source].log() / degree
    torch.testing.assert_close(model.penalty(), -likely.sum() / (24 * 4), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("keyed", [False, True], ids=["torch", "key"])
def test_gumbel_noise_has_the_distribution_of_gumbel(keyed):
    torch.manual_seed(0)
    with dropout_key(4, 2) if keyed else nullcontext():
        g = gumbel((20_000, 4), torch.empty(0)).double()
    for at in (-1.0, 0.0, 1.0, 3.0):  # five deviations of a share of 80,000
        assert float((g <= at).double().mean()) == pytest.approx(math.exp(-math.exp(-at)), abs=0.009)


def test_random_features_are_the_same_whatever_nodes_a_process_holds():
    with dropout_key(4, 2):
        whole = draw_projection(12, 8)
    with dropout_key(4, 2, rows=torch.tensor([3, 5])):
        assert torch.equal(draw_projection(12, 8), whole)


def test_gumbel_noise_averages_draws_of_single_nodes():
    # Where the temperature is low, a draw picks one node, with the probabilities of softmax attention.
    torch.manual_seed(0)
    k = torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1)
    omega, q = torch.zeros(5, 1), torch.ones(3, 1, 5)  # features that do not look at queries
    noise = -torch.empty(3, 1, 4000).exponential_().log()
    drawn = (noise + k) / 0.01
    drawn = (drawn - drawn.amax(0)).exp().transpose(1, 2).unsqueeze(0)
    keys, values, maps = key_features(torch.zeros(3, 1, 1), omega, None).unsqueeze(0), torch.eye(3), torch.eye(3)
    found = attend_drawn(maps.unsqueeze(0), None, q.unsqueeze(0), keys, values.unsqueeze(0), drawn).squeeze(0)
    torch.testing.assert_close(found, torch.softmax(k.flatten(), 0).expand(3, 3), rtol=0, atol=0.03)
    one = attend_drawn(maps.unsqueeze(0), None, q.unsqueeze(0), keys, values.unsqueeze(0), drawn[:, :, :1])
    assert (one.amax(-1) > 0.99).all()


def test_nodeformers_draws_are_gumbel_softmax_of_the_kernel_estimate():
    # Against the definition: one softmax a draw over the kernel's estimate and noise, values and heads one by one.
    model = made("nodeformer", num_layers=1, samples=3, norm=False, residual=False, redraw=False, temperature=0.6)
    x, edges = points(), some_edges()
    layer = model.layers[0]
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value, layer.join):
            part.bias.normal_(std=0.3)
    torch.manual_seed(5)
    found = model.train().embed(x, edges)
    torch.manual_seed(5)
    noise = -torch.empty(24, 4, 3).exponential_().log()
    z = functional.elu(model.input(x))
    q, k, v = (part(z).unflatten(1, (4, 8)) for part in (layer.query, layer.key, layer.value))
    scale = model.layers[0].temperature ** -0.5 * 8**-0.25
    logs = [scale * y @ layer.projection.T - (scale * y).square().sum(-1, keepdim=True) / 2 for y in (q, k)]
    kernel = torch.einsum("nhm,lhm->hnl", *(y.exp() for y in logs))
    weights = kernel.unsqueeze(-1) * (noise / layer.temperature).exp().permute(1, 0, 2).unsqueeze(1)
    p = torch.einsum("hnls,lhc->nhc", weights / weights.sum(2, keepdim=True), v) / 3
    graph = Graph(edges, 24).with_self_loops()
    hop = graph.propagate(v)
    first, second = torch.sigmoid(layer.bias).unsqueeze(-1)
    p = p + first * hop + second * graph.propagate(hop)
    torch.testing.assert_close(found, layer.join(p.flatten(1)), rtol=1e-3, atol=1e-4)
    likely = (kernel / kernel.sum(2, keepdim=True))[:, graph.edge_index[1], graph.edge_index[0]].log()
    degree = torch.bincount(graph.edge_index[1], minlength=24)[graph.edge_index[1]]
    torch.testing.assert_close(model.penalty(), -(likely / degree).sum() / (24 * 4), rtol=1e-4, atol=1e-4)


def test_nodeformers_penalty_is_that_of_a_pass_with_gradients():
    model, x, edges = made("nodeformer"), points(), some_edges()
    with torch.no_grad():
        model(x, edges)  # nothing is worked out that nobody can train on
    with pytest.raises(ValueError, match="has no penalty yet"):
        model.penalty()
    model(x, edges)
    assert float(model.penalty().detach()) > 0


@pytest.mark.parametrize("heads", [2, 12], ids=["few", "many"])
def test_linear_attention_is_its_dense_form(heads):
    q, k = (points(features=heads * 3, seed=s).unflatten(1, (heads, 3)).exp() for s in (0, 1))
    v = points(features=heads * 5, seed=2).unflatten(1, (heads, 5))
    weights = torch.einsum("nhm,lhm->hnl", q, k)
    expected = torch.einsum("hnl,lhc->nhc", weights / weights.sum(2, keepdim=True), v)
    torch.testing.assert_close(linear_attention(q, k, v, None), expected)


@pytest.mark.parametrize(
    "options", [{}, {"samples": 0}, {"num_heads": 2, "num_layers": 1}, {"random_features": 64, "samples": 10}], ids=str
)
def test_nodeformer_estimates_its_memory(options, monkeypatch):
    from difformer.training.devices import saved_bytes
    from difformer.zoo import encoder as inputs

    torch.manual_seed(0)
    model, x, edges = zoo.build("nodeformer", 6, 3, **options).train(), points(500), some_edges(500, 1000)
    assert saved_bytes(lambda: model(x, edges)) == pytest.approx(model._bytes(500), rel=0.35)
    monkeypatch.setattr(inputs, "WORTH_A_LOOK", 0)
    monkeypatch.setattr(inputs, "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"nodeformer on 500 nodes needs about .* GiB are free on cpu; train with"):
        model(x, edges)
    with torch.no_grad():
        model(x, edges)


def test_nodeformer_trains_on_many_small_graphs():
    # The largest noise of a large batch lies far above that of a small graph, which must not vanish beside it.
    torch.manual_seed(0)
    model = zoo.build("nodeformer", 6, 3, hidden_channels=8).train()
    sizes = torch.arange(2000) % 3 + 2  # some of them padded
    out = model(points(int(sizes.sum())), batch=torch.arange(2000).repeat_interleave(sizes))
    out.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_the_edge_loss_is_least_where_attention_meets_the_edges():
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    graph = Graph(edges, 4)
    on_edges = torch.eye(4).unsqueeze(1)[[1, 0, 3, 2]]
    keys = torch.eye(4).unsqueeze(1)
    assert float(edge_loss(on_edges, keys, graph, None)) == pytest.approx(0, abs=1e-6)
    uniform = edge_loss(torch.ones(4, 1, 4), keys, graph, None)
    torch.testing.assert_close(uniform, torch.tensor(4.0).log())


# ---- structure


@pytest.mark.parametrize("directed", [False, True])
def test_hop_distances_equal_scipy(directed, monkeypatch):
    from difformer.zoo import structure_encodings

    monkeypatch.setattr(structure_encodings, "ENTRIES", 100)  # a few columns at a time
    edges = some_edges(directed=directed, count=26)
    exact = shortest_path(coo_array(([1.0] * edges.shape[1], edges.tolist()), shape=(24, 24)).tocsr(), unweighted=True)
    expected = torch.from_numpy(exact).T.clone()  # from j to i
    expected = torch.where(expected.isinf(), 6, expected.clamp(max=5)).to(torch.uint8)
    found = hop_distances(Observed(24, CPU, Graph(edges, 24), None), 5)
    assert torch.equal(found, expected)
    assert {0, 1, 2, 5, 6} <= set(found.unique().tolist())
    batch = Segments(torch.arange(2).repeat_interleave(24))
    twice = hop_distances(Observed(48, CPU, Graph(torch.cat([edges, edges + 24], 1), 48), batch), 5)
    assert torch.equal(twice, found.repeat(2, 1))


def test_return_probabilities_equal_powers_of_the_walk_matrix():
    edges = some_edges()
    weight = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(0)) + 0.1
    a = torch.zeros(24, 24)
    a[edges[0], edges[1]] = weight
    walk = a / a.sum(1, keepdim=True).clamp_min(1e-12)
    expected = torch.stack([torch.linalg.matrix_power(walk, s).diagonal() for s in range(1, 6)], 1)
    found = return_probabilities(Observed(24, CPU, Graph(edges, 24, weight), None), 5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dense", [1500, 1])
def test_positions_are_eigenvectors_of_the_laplacian(dense, monkeypatch):
    from difformer.zoo import structure_encodings

    monkeypatch.setattr(structure_encodings, "DENSE", dense)
    edges = torch.cat([some_edges(count=60), torch.stack([torch.arange(24), (torch.arange(24) + 1) % 24])], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    found = laplacian_eigenvectors(Observed(24, CPU, Graph(edges, 24), None), 4).double()
    a = adjacency(edges, 24).double()
    scale = a.sum(1).rsqrt()
    laplacian = torch.eye(24, dtype=torch.float64) - scale[:, None] * a * scale
    values = torch.linalg.eigvalsh(laplacian)[1:5]
    torch.testing.assert_close(laplacian @ found, found * values, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.T @ found, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)


# ---- Graphormer


def test_graphormer_reads_its_tables_as_defined():
    model = made("graphormer", num_layers=1, num_heads=2, max_distance=3, max_degree=4)
    with torch.no_grad():
        model.distance.weight.normal_()
        model.in_degree.weight.normal_()
        model.out_degree.weight.normal_()
    x, edges = points(), some_edges(directed=True, count=40)
    others = edges[:, edges[0] != edges[1]]
    degrees = [torch.bincount(others[end], minlength=24).clamp(max=4) for end in (1, 0)]
    z = model.input_norm(x @ model.input.weight.T)
    z = z + model.in_degree.weight[degrees[0]] + model.out_degree.weight[degrees[1]]
    layer = model.layers[0]
    q, k, v = layer.qkv(layer.norm(z)).unflatten(1, (3, 2, 4)).unbind(1)
    hops = hop_distances(Observed(24, CPU, Graph(edges, 24), None), 3).long()
    scores = torch.einsum("nhd,mhd->hnm", q, k) / 2 + model.distance.weight[hops].permute(2, 0, 1)
    z = z + layer.join(torch.einsum("hnm,mhc->nhc", torch.softmax(scores, -1), v).flatten(1))
    z = z + layer.second(functional.gelu(layer.first(layer.second_norm(z))))
    torch.testing.assert_close(model.embed(x, edges), model.norm(z), rtol=1e-4, atol=1e-5)


def words_of_few(nodes=200, words=1433, each=18):
    """A bag of words whose rows sum to one, as the citation graphs have it: entries of 1/18 among zeros."""
    g = torch.Generator().manual_seed(0)
    chosen = torch.rand(nodes, words, generator=g).topk(each).indices
    return torch.zeros(nodes, words).scatter_(1, chosen, 1 / each)


def test_row_normalised_features_outweigh_biases_and_degrees():
    """What tells nodes apart before the first layer is their features, not a bias or a degree that they share."""
    x = words_of_few()
    torch.manual_seed(0)
    node, graph = (zoo.build(name, x.shape[1], 7, hidden_channels=64) for name in ("nodeformer", "graphormer"))
    seen = node.norms[0](node.input(x))
    assert seen.std(0).mean() > 4 * seen.mean(0).abs().mean()
    features, degrees = graph.input_norm(graph.input(x)), graph.in_degree.weight + graph.out_degree.weight
    assert features.std(0).mean() > 10 * degrees.std(0).mean()


def test_graphormer_is_permutation_equivariant():
    model, x, edges = made("graphormer"), points(), some_edges()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order)
    torch.testing.assert_close(model(x[order], place[edges]), model(x, edges)[order], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(x, edges), model(x, edges[:, :10]), atol=1e-3)


def test_graphormers_attention_has_the_gradients_of_the_plain_formula():
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 5, 3, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))
    table = torch.randn(4, generator=g, dtype=torch.float64, requires_grad=True)
    hops = torch.randint(0, 4, (2, 5, 5), generator=g).to(torch.uint8)
    inputs = (q, k, v, table)
    plain = torch.softmax(q @ k.mT / math.sqrt(3) + table[hops.long()], -1) @ v
    found = attend(None, hops, *inputs)
    torch.testing.assert_close(found, plain)
    probe = torch.randn(plain.shape, generator=g, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad((y * probe).sum(), inputs) for y in (found, plain)), strict=True):
        torch.testing.assert_close(a, b)
    # Heads are worked out again in the backward pass: the gradients are those of a pass that keeps everything.
    model, x, edges = made("graphormer", dropout=0.0), points(), some_edges()
    model(x, edges).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_attention_dropout_of_graphormer_scales_what_is_kept():
    """Weights are dropped after the softmax, and what is kept is scaled: the mean over masks is the whole."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 6, 3, generator=g) for _ in range(3))
    table, hops = torch.randn(4, generator=g), torch.randint(0, 4, (1, 6, 6), generator=g).to(torch.uint8)
    whole = attend(None, hops, q, k, v, table)
    torch.testing.assert_close(attend(None, hops, q, k, v, table, torch.ones(1, 6, 6)), whole)
    with dropout_key(0):
        masks = [functional.dropout(torch.ones(1, 6, 6), 0.3) for _ in range(4000)]
    mean = torch.stack([attend(None, hops, q, k, v, table, mask) for mask in masks]).mean(0)
    torch.testing.assert_close(mean, whole, rtol=0.1, atol=0.05)
    model, x, edges = made("graphormer", dropout=0.0, attention_dropout=0.5).train(), points(), some_edges()
    outs = []
    for step in (0, 0, 1):
        with dropout_key(0, step):
            outs.append(model(x, edges))
        outs[-1].sum().backward()  # heads are computed again here, with the masks of the pass
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_graphs_too_large_for_pairs_are_refused(monkeypatch):
    from difformer.zoo import encoder as inputs

    monkeypatch.setattr(inputs, "free_bytes", lambda device: 2**30)
    with pytest.raises(MemoryError, match=r"graphormer, which looks at 400,000,000 pairs, needs about [\d.]+ GiB"):
        zoo.build("graphormer", 3, 2, hidden_channels=4)(torch.zeros(20_000, 3))


# ---- GraphGPS


@pytest.mark.parametrize("local", ["gcn", "gin"])
@pytest.mark.parametrize("encoding", ["random_walk", "laplacian", "none"])
def test_graphgps_adds_messages_and_attention(local, encoding):
    options = {"local": local, "encoding": encoding, "attention": "softmax", "num_heads": 2, "encoding_steps": 3}
    model, x, edges = made("graphgps", num_layers=1, **options), points(), some_edges()
    graph = Graph(edges, 24)
    z = model.input(x)
    if encoding != "none":
        make = return_probabilities if encoding == "random_walk" else laplacian_eigenvectors
        z = z + model.position(make(Observed(24, CPU, graph), 3))
    layer = model.layers[0]
    if local == "gcn":
        passed = torch.relu(graph.with_self_loops().propagate(layer.message(z)))
    else:
        passed = layer.message_second(torch.relu(layer.message((1 + layer.epsilon) * z + adjacency(edges, 24) @ z)))
    q, k, v = layer.qkv(z).unflatten(1, (3, 2, 4)).unbind(1)
    weights = torch.softmax(torch.einsum("nhd,mhd->hnm", q, k) / 2, -1)
    attended = layer.join(torch.einsum("hnm,mhc->nhc", weights, v).flatten(1))
    both = layer.norms[0](z + passed) + layer.norms[1](z + attended)
    expected = layer.norms[2](both + layer.narrow(torch.relu(layer.wide(both))))
    torch.testing.assert_close(model.embed(x, edges), expected, rtol=1e-4, atol=1e-5)


def test_graphgps_performer_estimates_its_softmax():
    exact = made("graphgps", attention="softmax", num_layers=1)
    rough = made("graphgps", attention="performer", num_layers=1, random_features=50_000)
    rough.load_state_dict(exact.state_dict(), strict=False)
    x, edges = points(), some_edges()
    torch.testing.assert_close(rough(x, edges), exact(x, edges), rtol=0, atol=0.01)


# ---- SGFormer


def test_sgformers_attention_is_its_dense_form():
    q, k, v = heads(nodes=15)
    batch = torch.tensor([0] * 6 + [1] * 9)
    for segments, rows in ((None, [slice(0, 15)]), (Segments(batch), [slice(0, 6), slice(6, 15)])):
        found = simple_attention(q, k, v, segments)
        for part in rows:
            a, b, c = q[part], k[part], v[part]
            n = a.shape[0]
            dense = torch.einsum("nhd,mhd->hnm", a / a.norm(), b / b.norm()) / n
            weights = torch.eye(n) + dense
            weights = weights / (1 + dense.sum(-1, keepdim=True))
            torch.testing.assert_close(found[part], torch.einsum("hnm,mhc->nhc", weights, c), rtol=1e-4, atol=1e-5)


def test_sgformer_adds_its_branches():
    model, x, edges = made("sgformer", num_layers=1, graph_weight=0.3, norm=False), points(), some_edges()
    z = torch.relu(model.input(x))
    q, k, v = (layer(z).unsqueeze(1) for layer in model.attention[0])
    everywhere = 0.5 * simple_attention(q, k, v, None).squeeze(1) + 0.5 * z
    local = torch.relu(Graph(edges, 24).with_self_loops().propagate(x @ model.local[0].weight.T) + model.local[0].bias)
    torch.testing.assert_close(model.embed(x, edges), 0.7 * everywhere + 0.3 * local, rtol=1e-4, atol=1e-5)


# ---- Polynormer


def test_polynormers_local_attention_is_its_dense_form():
    torch.manual_seed(0)
    layer, z, edges = LocalLayer(8, 2, 0.0).eval(), points(features=8), some_edges()
    with torch.no_grad():
        layer.beta.normal_()
        layer.bias.normal_()
    joined = adjacency(torch.cat([edges, torch.arange(24).expand(2, -1)], 1), 24)
    values = (z @ layer.attention.linear.weight.T).unflatten(1, (2, 4))
    u, w = (values * layer.attention.to_target).sum(-1), (values * layer.attention.to_source).sum(-1)
    scores = functional.leaky_relu(u[:, None] + w[None], 0.2).masked_fill(joined[..., None] == 0, -torch.inf)
    attended = torch.einsum("nmh,mhc->nhc", torch.softmax(scores, 1), values).flatten(1) + layer.bias
    messages = torch.relu(attended + layer.direct(z))
    beta = torch.sigmoid(layer.beta)
    expected = (1 - beta) * layer.norm(torch.relu(layer.gate(z)) * messages) + beta * messages
    torch.testing.assert_close(layer(z, Graph(edges, 24).with_self_loops()), expected, rtol=1e-4, atol=1e-5)


def test_polynormers_global_attention_is_its_dense_form():
    torch.manual_seed(0)
    layer, z = GlobalLayer(8, 2).eval(), points(features=8)
    q, k, v = (part(z).unflatten(1, (2, 4)) for part in (layer.query, layer.key, layer.value))
    weights = torch.einsum("nhd,mhd->hnm", torch.sigmoid(q), torch.sigmoid(k))
    attended = torch.einsum("hnm,mhc->nhc", weights / weights.sum(-1, keepdim=True), v).flatten(1)
    joining = torch.nn.Linear(8, 8)
    expected = torch.relu(joining(layer.norm(attended) * (layer.gate(z) + torch.sigmoid(layer.beta))))
    torch.testing.assert_close(layer(z, None, joining), expected, rtol=1e-4, atol=1e-5)


def test_polynormer_drops_where_its_authors_do(monkeypatch):
    from difformer.zoo import linear_maps as inputs
    from difformer.zoo import polynormer

    calls = []

    def counted(x, rate, training):
        calls.append(rate)
        return x

    monkeypatch.setattr(polynormer, "dropout", counted)
    monkeypatch.setattr(inputs, "dropout", counted)
    model = made("polynormer", num_layers=3, global_layers=2, local_passes=0, dropout=0.4, input_dropout=0.1).train()
    model(points(), some_edges())
    # The features, what they are mapped to, once in each local layer and once after each global one.
    assert calls == [0.1, *[0.4] * (1 + 3 + 2)]


def test_polynormer_switches_from_local_to_global_layers():
    model, x, edges = made("polynormer", local_passes=2, dropout=0.0, input_dropout=0.0), points(), some_edges()
    alone = model(x, edges)
    torch.testing.assert_close(alone, model.local_output(model.embed(x, edges)))
    model.train()
    for _ in range(2):
        torch.testing.assert_close(model(x, edges), alone)
    later = model(x, edges)
    assert not torch.allclose(later, alone)
    torch.testing.assert_close(model.eval()(x, edges), later)
    saved = made("polynormer", local_passes=2)
    saved.load_state_dict(model.state_dict())
    torch.testing.assert_close(saved(x, edges), later)


# ---- options that their authors tune


def test_sgformer_concatenates_branches_with_norm_and_residual():
    options = {"join": "cat", "local_norm": "batch", "local_residual": True, "num_layers": 3, "attention_dropout": 0.0}
    model, x, edges = made("sgformer", dropout=0.0, **options), points(), some_edges()
    for _ in range(3):
        model.train()(x, edges)
    model.eval()
    graph, z = Graph(edges, 24).with_self_loops(), x
    for k, (layer, norm) in enumerate(zip(model.local, model.local_norms, strict=True)):
        new = torch.relu(norm(graph.propagate(z @ layer.weight.T) + layer.bias))
        z = new + z if k else new
    states = model.embed(x, edges)
    assert states.shape == (24, 2 * z.shape[1])
    torch.testing.assert_close(states[:, z.shape[1] :], z, rtol=1e-4, atol=1e-5)


def test_jumping_nodeformer_decodes_the_states_of_all_layers():
    options = {"num_layers": 2, "samples": 0, "redraw": False}
    model, x, edges = made("nodeformer", jumping=True, activation=True, **options), points(), some_edges()
    states = model.embed(x, edges)
    first = functional.elu(model.norms[0](model.input(x)))
    torch.testing.assert_close(states[:, : first.shape[1]], first, rtol=1e-4, atol=1e-5)
    assert states.shape[1] == 3 * first.shape[1]
    assert states.min() > -1  # after an ELU


def test_polynormer_starts_from_the_given_beta():
    torch.testing.assert_close(torch.sigmoid(made("polynormer", beta=0.3).local[0].beta), torch.full((8,), 0.3))
    with pytest.raises(ValueError, match=r"beta must lie in \(0, 1\), got 1"):
        made("polynormer", beta=1.0)
