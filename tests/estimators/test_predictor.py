"""Rows never seen, in the context of a population that is not touched again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.neighbors import kneighbors_graph

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, base
from difformer.estimators.population import find_rows, row_digests
from difformer.estimators.predictor import Member, remember
from difformer.estimators.row_graph import RowEdges, as_matrix
from difformer.graph import Graph
from difformer.nn import DIFFormer
from difformer.nn.context import Structure, as_structure

DIFFUSIVITIES = ("simple", "constant", "sigmoid", "softmax:0.2", "gaussian:0.3", "identity")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"transform": False, "source_weight": 0.3, "step_size": 0.7},
    {"num_heads": 3, "graph_weight": 0.4, "activation": "relu"},
    {"residual": False, "norm": False, "tied_qk": True},
]


def random_graph(nodes: int, edges: int) -> Graph:
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    return Graph(index, nodes, torch.rand(edges, generator=generator, dtype=torch.float64) + 0.1)


def both_ways(matrix: Any) -> Any:
    return sparse.csr_array(matrix.maximum(matrix.T))


def edges_among(graph: Graph) -> RowEdges:
    (source, target), degree = graph.edge_index, graph.degree(torch.float64)
    return RowEdges.normalised(target, source, graph.weights(torch.float64), graph.num_nodes, degree)


@pytest.mark.parametrize("diffusivity", DIFFUSIVITIES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("with_graph", [False, True])
def test_the_population_has_the_states_of_a_forward_pass(
    diffusivity: str, options: dict[str, Any], with_graph: bool
) -> None:
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 2, num_layers=3, diffusivity=diffusivity, **options)
    x = torch.randn(30, 5, dtype=torch.float64)
    graph = random_graph(30, 80) if with_graph else None
    edges = None if graph is None else edges_among(graph)
    member = remember(model, [(x, edges)], torch.ones(30, dtype=torch.float64))
    states = member.states(x, edges)
    wanted = model.double().embed(x, graph)
    torch.testing.assert_close(states, wanted, rtol=1e-5, atol=1e-6)
    # A fitted row that is asked about again, by itself, gets the same answer.
    for row in (0, 17):
        own = None
        if edges is not None:
            mine = edges.row == row
            own = RowEdges(torch.zeros(int(mine.sum()), dtype=torch.long), edges.source[mine], edges.weight[mine], 1)
        torch.testing.assert_close(member.states(x[row : row + 1], own)[0], states[row], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("diffusivity", DIFFUSIVITIES)
def test_a_new_row_receives_from_the_population_only(diffusivity: str) -> None:
    """Layer by layer, as the formulas say it: P = Σ m g v / Σ m g over fitted rows, edges with s = a / √(d dⱼ)."""
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 2, num_layers=2, diffusivity=diffusivity, graph_weight=0.3, source_weight=0.2)
    x, new = torch.randn(20, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    mass = torch.rand(20, dtype=torch.float64) + 0.5
    graph = random_graph(20, 50)
    member = remember(model, [(x, edges_among(graph))], mass)
    weight = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)  # from fitted rows 4 and 9
    row, column = weight.nonzero().T
    fitted = torch.tensor([4, 9])[column]
    degree = graph.degree(torch.float64)
    found = member.states(new, RowEdges.normalised(row, fitted, weight[row, column], 3, degree))

    model = model.double().eval()
    everything = [model.encode(x)]
    z = source = model.encode(new)
    structure = Structure(graph)
    for k, layer in enumerate(model.layers):
        before: Any = everything[-1]
        own: Any = layer
        values = own.value(before)
        if own.query is not None:
            keys = torch.nn.functional.normalize(own.key(before), dim=-1)
            queries = torch.nn.functional.normalize(own.query(z), dim=-1)
            exchange = own.diffusivity.g(queries @ keys.T) * mass
            latent = exchange @ values / exchange.sum(1, keepdim=True)
        elif diffusivity == "constant":
            latent = (mass @ values / mass.sum()).expand(3, -1)
        else:
            latent = own.value(z)
        s = weight / (weight.sum(1, keepdim=True) * degree[[4, 9]]).sqrt()
        p = 0.7 * latent + 0.3 * s @ values[[4, 9]]
        z = model.norms[k](0.5 * z + 0.5 * p + 0.5 * 0.2 * source)
        everything.append(population_step(model, k, before, everything[0], structure, mass))
    torch.testing.assert_close(found, z, rtol=1e-5, atol=1e-6)


def population_step(
    model: DIFFormer, k: int, z: torch.Tensor, source: torch.Tensor, structure: Structure, mass: torch.Tensor
) -> torch.Tensor:
    """One layer over the population with mass, from the formulas."""
    layer: Any = model.layers[k]
    values = layer.value(z)
    if layer.query is not None:
        keys = torch.nn.functional.normalize(layer.key(z), dim=-1)
        queries = torch.nn.functional.normalize(layer.query(z), dim=-1)
        exchange = layer.diffusivity.g(queries @ keys.T) * mass
        latent = exchange @ values / exchange.sum(1, keepdim=True)
    else:
        latent = values if layer.diffusivity.name == "identity" else (mass @ values / mass.sum()).expand_as(values)
    assert structure.graph is not None
    p = 0.7 * latent + 0.3 * structure.graph.propagate(values)
    return model.norms[k](0.5 * z + 0.5 * p + 0.5 * 0.2 * source)


def test_memory_of_sums_does_not_grow_with_the_population() -> None:
    model = DIFFormer(5, 8, 2, diffusivity="simple")
    sizes = []
    for rows in (10, 1000):
        member = remember(model, [(torch.randn(rows, 5, dtype=torch.float64), None)], torch.ones(rows).double())
        sizes.append(sum(value.numel() for value in member.state_dict().values()))
    assert sizes[0] == sizes[1]


def test_landmarks_represent_the_population() -> None:
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 2, diffusivity="sigmoid", graph_weight=None)
    x = torch.randn(50, 5, dtype=torch.float64)
    mass = torch.ones(50, dtype=torch.float64)
    chosen = torch.arange(0, 50, 2)
    member = remember(model, [(x, None)], mass, landmarks=chosen)
    assert member.memories[0].keys.shape[0] == 25  # type: ignore[union-attr]
    first: Any = model.double().layers[0]
    z = model.encode(x)
    q, k = first.queries_and_keys(z)
    exchange = torch.sigmoid(torch.einsum("nhd,mhd->nm", q, k[chosen]))
    wanted = exchange @ first.value(z[chosen]) / exchange.sum(1, keepdim=True)
    context: Any = member.memories[0].context(None)  # type: ignore[operator]
    found = first.latent(z, first.values(z), context)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "polynomial"])
def test_polynomials_remember_within_their_tolerance(backend: str, wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(diffusivity="sigmoid", graph=None, backend=backend, **quick).fit(x, partly)
    member: Member = model.fitted_.members[0]  # type: ignore[assignment]
    kept = {name for name, _ in member.memories[0].named_buffers()}
    assert kept == ({"keys", "values"} if backend == "auto" else {"moments"})
    np.testing.assert_allclose(model.predict_proba(x), model.label_distributions_, atol=1e-9)


CASES = [
    {"graph": None},
    {"graph": None, "diffusivity": "constant", "backend": "polynomial"},
    {"graph": "knn"},
    {"graph": "knn", "diffusivity": "sigmoid", "num_heads": 2},
    {"graph": None, "diffusivity": "gaussian:0.3", "landmarks": 50},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("as_sparse", [False, True])
def test_prediction_of_a_row_does_not_depend_on_the_batch(
    options: dict[str, Any], as_sparse: bool, wine: Any, quick: dict[str, Any]
) -> None:
    x, _, partly = wine
    x = sparse.csr_array(x) if as_sparse else x
    model = DIFFormerClassifier(**quick, **options).fit(x, partly)
    np.testing.assert_allclose(model.predict_proba(x), model.label_distributions_, atol=1e-9)
    new = x[:30] * 1.01
    together = model.predict_proba(new)
    one_by_one = np.vstack([model.predict_proba(new[i : i + 1]) for i in range(30)])
    np.testing.assert_allclose(one_by_one, together, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(new[::-1]), together[::-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("form", ["none", "knn", "given", "empty", "weighted"])
def test_the_transductive_answer_is_that_of_the_trained_models(
    form: str, diffusivity: str, wine: Any, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass of the models as they were trained, over the whole table, in single precision."""
    x, _, partly = wine
    seen: dict[str, Any] = {}

    def captured(problem: Any, recipe: Any, sides: Any) -> Any:
        runs, side, judged = train_and_choose(problem, recipe, sides)
        seen.update(models=[run.model for run in runs], problem=problem, edges=sides[side])
        seen.update(temperature=judged.temperature)
        return runs, side, judged

    train_and_choose = base.train_and_choose
    monkeypatch.setattr(base, "train_and_choose", captured)
    graph = {"given": kneighbors_graph(x, 4), "empty": sparse.csr_array((178, 178))}.get(form)
    options = {
        **quick,
        "n_models": 2,
        "graph": "knn" if form == "knn" else None,
        "graph_weight": 0.4,
        "diffusivity": diffusivity,
    }
    weight = np.arange(1.0, 179) if form == "weighted" else None
    model = DIFFormerClassifier(**options).fit(x, partly, weight, graph=graph)
    problem = seen["problem"]
    context = as_structure(problem.x.shape[0], *seen["edges"], weight=problem.mass)
    with torch.no_grad():
        logits = [trained.eval()(problem.x, context=context) for trained in seen["models"]]
        outputs = [o.div(seen["temperature"]).softmax(1) for o in logits]
    wanted = torch.stack(outputs).mean(0).numpy()
    order = seen["problem"].y.numpy()  # the population has an order of its own where no graph was given
    found = model.label_distributions_
    if graph is None:
        place = find_rows(row_digests(seen["problem"].x.double().numpy()), row_digests(_as_trained(model, x)))
        assert (partly[place] == order).all()
        found = found[place]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def _as_trained(model: Any, x: np.ndarray) -> np.ndarray:
    """Features as the models saw them."""
    return model.fitted_.scaling(x).astype(np.float32).astype(np.float64)


def test_rows_fitted_with_a_graph_keep_their_edges(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    graph = both_ways(kneighbors_graph(x, 4, mode="distance"))
    model = DIFFormerClassifier(**quick).fit(x, partly, graph=graph)
    assert model.graph_ == "given"
    np.testing.assert_allclose(model.predict_proba(x), model.label_distributions_, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(x, graph=graph), model.label_distributions_, atol=1e-9)
    # A new row with the features and edges of a fitted one is that row; without edges it is not.
    new = x[10:11] * (1 + 1e-9)
    joined = model.predict_proba(new, graph=graph[10:11])[0]
    np.testing.assert_allclose(joined, model.label_distributions_[10], atol=1e-5)
    with pytest.warns(UserWarning, match="1 of 1 rows are new and have no edges"):
        alone = model.predict_proba(new)[0]
    assert np.abs(alone - model.label_distributions_[10]).max() > 1e-4


def test_rows_with_the_features_of_several_fitted_rows_are_warned_about(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    x = x.copy()
    x[10] = x[50]  # two nodes with equal features and edges of their own
    graph = both_ways(kneighbors_graph(x, 4))
    model = DIFFormerClassifier(**quick).fit(x, partly, graph=graph)
    with pytest.warns(UserWarning, match="2 rows have the features of more than one fitted row"):
        again = model.predict_proba(x)
    others = np.arange(len(x)) != 50
    np.testing.assert_allclose(again[others], model.label_distributions_[others], atol=1e-9)
    np.testing.assert_allclose(again[50], again[10])
    np.testing.assert_allclose(model.predict_proba(x, graph=graph), model.label_distributions_, atol=1e-9)


@pytest.mark.parametrize("directed", [False, True])
def test_every_form_of_a_graph_gives_the_same_model(directed: bool, wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    matrix = kneighbors_graph(x, 4)  # entry i, j: from i to j
    coo = matrix.tocoo()
    index = np.stack([coo.row, coo.col]).astype(np.int64)
    tensor = torch.from_numpy(matrix.toarray())
    forms = [matrix, matrix.toarray(), index, torch.from_numpy(index), Graph(torch.from_numpy(index), len(x))]
    forms += [tensor, tensor.to_sparse(), tensor.to_sparse_csr(), index.T, index.T.tolist()]
    options = {**quick, "directed": directed}
    found = [DIFFormerClassifier(**options).fit(x, partly, graph=form).label_distributions_ for form in forms]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)
    model = DIFFormerClassifier(**options).fit(x, partly, graph=matrix)
    edges = np.array([[3, 8, 8], [0, 0, 1]])  # from fitted rows 3 and 8 to the first new row, from 8 to the second
    rows = sparse.csr_array((np.ones(3), ([0, 0, 1], [3, 8, 8])), shape=(2, len(x)))
    np.testing.assert_allclose(model.predict_proba(x[:2], graph=edges), model.predict_proba(x[:2], graph=rows))


def test_list_of_two_pairs_is_read_as_pairs() -> None:
    with pytest.warns(UserWarning, match="was read as two pairs: 0 → 1 and 2 → 3"):
        pairs = as_matrix([(0, 1), (2, 3)], 5)
    assert [ends.tolist() for ends in pairs.nonzero()] == [[0, 2], [1, 3]]
    assert as_matrix([(0, 1), (2, 3), (3, 0)], 5).nonzero()[1].tolist() == [1, 3, 0]
    with pytest.warns(UserWarning, match="was read as sources above targets"):
        index = as_matrix(np.array([[0, 1], [2, 3]]), 5)
    assert [ends.tolist() for ends in index.nonzero()] == [[0, 1], [2, 3]]


def test_repeated_pairs_and_self_loops_change_nothing() -> None:
    index = np.array([[0, 1, 4], [1, 2, 0]])
    plain = as_matrix(index, 5)
    loops = np.tile(np.arange(5), (2, 1))
    for same in (
        np.hstack([index, index]),
        np.hstack([index, loops]),
        plain + sparse.eye_array(5),
        Graph(torch.from_numpy(np.hstack([index, loops])), 5),
    ):
        assert (as_matrix(same, 5) != plain).nnz == 0
    repeated = sparse.coo_array(([0.5, 0.25], ([0, 0], [1, 1])), shape=(5, 5))
    assert as_matrix(repeated, 5)[0, 1] == 0.75  # weights that were given add up
    # Between new rows and fitted ones equal numbers are two rows, and no self-loop.
    assert as_matrix(np.array([[1, 1], [1, 1]]), 2, 5).toarray().tolist() == [[0] * 5, [0, 1, 0, 0, 0]]


def test_an_edge_goes_both_ways_unless_it_is_directed(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    rng = np.random.RandomState(0)
    index = rng.randint(0, len(x), (2, 300))
    options = {**quick, "dropout": 0.0}
    plain = DIFFormerClassifier(**options).fit(x, partly, graph=index)
    turned = DIFFormerClassifier(**options).fit(x, partly, graph=index[::-1].copy())
    np.testing.assert_allclose(plain.label_distributions_, turned.label_distributions_, atol=1e-6)
    directed = [
        DIFFormerClassifier(**options, directed=True).fit(x, partly, graph=each) for each in (index, index[::-1].copy())
    ]
    assert np.abs(directed[0].label_distributions_ - directed[1].label_distributions_).max() > 1e-3


def test_an_edge_whose_sender_receives_nothing_is_not_lost(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    index = np.stack([np.arange(0, 178, 2), np.arange(1, 178, 2)])  # even rows send, odd ones receive
    model = DIFFormerClassifier(**quick, directed=True).fit(x, partly, graph=index)
    edges = model.fitted_.given.edges(model.fitted_.given.matrix)
    assert edges.weight.tolist() == [1.0] * 89
    assert edges.row.tolist() == index[1].tolist()
    np.testing.assert_allclose(model.predict_proba(x), model.label_distributions_, atol=1e-9)
    trained = DIFFormerClassifier(**quick, directed=True).fit(x, partly)  # the latent structure alone, or neighbours
    assert np.abs(trained.label_distributions_ - model.label_distributions_).max() > 1e-4


def test_the_order_of_rows_changes_nothing(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    order = np.random.RandomState(3).permutation(len(x))
    first = DIFFormerClassifier(graph="knn", **quick).fit(x, partly).label_distributions_
    second = DIFFormerClassifier(graph="knn", **quick).fit(x[order], partly[order]).label_distributions_
    assert (second == first[order]).all()


def test_sample_weight_equals_repetition(wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    times = np.random.RandomState(4).randint(0, 3, len(x))
    target = x[:, 0].copy()
    target[::3] = np.nan
    for kind, labels in ((DIFFormerClassifier, np.where(np.arange(len(y)) % 4, -1, y)), (DIFFormerRegressor, target)):
        options = {**quick, "graph": "knn"}
        weighted = kind(**options).fit(x, labels, sample_weight=times)
        repeated = kind(**options).fit(x.repeat(times, 0), labels.repeat(times))
        assert (weighted.predict(x) == repeated.predict(x)).all()
        plain = kind(**options).fit(x, labels)
        assert np.abs(plain.fitted_.predict(x) - weighted.fitted_.predict(x)).max() > 1e-6
