"""A prediction taken apart: the parts are the step, the effects are the score."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from report_runs import RUNS, config, graphs_task, nodes_task, series_task

from difformer import DIFFormer
from difformer.report import explain_node, explanation
from difformer.report.explanation import PARTS, pass_through, take_apart
from difformer.report.gather import Scene
from difformer.report.layers import attention_of
from difformer.training import fit
from difformer.training.feeds import Inputs, graph_of

CASES = {
    "simple": {},
    "sigmoid, heads, mixed": {"diffusivity": "sigmoid", "num_heads": 3, "graph_weight": 0.3},
    "source, random walk": {"source_weight": 0.7, "graph_norm": "random_walk", "step_size": 0.2},
    "values as they are": {"transform": False, "tied_qk": True, "qk_norm": "global"},
    "no residual, no norm": {"residual": False, "norm": False, "diffusivity": "softmax"},
    "edges alone": {"diffusivity": None},
    "sharp": {"diffusivity": "sharp", "tied_qk": True},
    "identity": {"diffusivity": "identity", "num_heads": 2},
    "constant": {"diffusivity": "constant", "activation": "gelu"},
    "attention off": {"graph_weight": 1.0},
}


def made(options, edges):
    torch.manual_seed(0)
    task = nodes_task(30)
    model = DIFFormer(5, 6, 3, num_layers=2, **options).double().eval()
    graph = graph_of(task.edge_index, None, 30, torch.device("cpu")) if edges else None
    return model, Scene(model, Inputs(task.x.double(), graph), None, None), task.x.double()


@pytest.mark.parametrize("edges", [True, False], ids=["edges", "no edges"])
@pytest.mark.parametrize("name", list(CASES))
def test_parts_add_up_to_the_step_and_effects_to_the_score(name, edges):
    model, scene, x = made(CASES[name], edges)
    i = 7
    passage = pass_through(scene)
    states = [state.detach() for state in passage.states]
    assert torch.allclose(torch.stack(states), model.trajectory(x, scene.graph))
    slope = (model.output.weight[1] - model.output.weight[0]).detach()
    step = take_apart(passage, 1, slope, i, str, 5)
    assert step.residue < 1e-12
    assert step.effects["latent"] + step.effects["observed"] == pytest.approx(
        sum(one.effect for one in step.influences) + step.others
    )
    if model.activation is None:
        score = model.decode(states[-1])[i]
        bias = model.output.bias[1] - model.output.bias[0]
        if model.config["norm"]:
            bias = bias + model.norms[1].bias @ slope
        assert sum(step.effects.values()) == pytest.approx(float((score[1] - score[0] - bias).detach()), abs=1e-10)


def test_weights_are_those_of_attention_and_graph():
    model, scene, x = made({"diffusivity": "sigmoid", "num_heads": 2}, True)
    z = model.trajectory(x, scene.graph).detach()
    step = take_apart(pass_through(scene), 0, torch.ones(6, dtype=torch.float64), 4, str, 1000)
    with torch.no_grad():
        attention = attention_of(model.layers[0], z[0])(torch.tensor([4])).mean(0)[0]
    assert float(attention.sum()) == pytest.approx(1)
    dense = torch.zeros(30, 30, dtype=torch.float64)
    dense[scene.graph.edge_index[1], scene.graph.edge_index[0]] = scene.graph.normalised_weights("gcn", torch.float64)
    for one in step.influences:
        expected = attention[one.node] if one.through == "latent" else dense[4, one.node]
        assert one.weight == pytest.approx(float(expected))
    assert sum(one.through == "latent" for one in step.influences) == 30
    assert step.others == pytest.approx(0, abs=1e-12)


def test_effects_before_the_last_layer_are_derivatives():
    """Scaling what one instance gives changes the score at the rate of its effect (without a LayerNorm)."""
    model, scene, x = made({"norm": False, "diffusivity": "sigmoid", "graph_weight": None}, True)
    i, h = 3, 1e-5
    slope_out = (model.output.weight[2] - model.output.weight[1]).detach()
    z0 = model.encode(x).detach()
    with torch.no_grad():
        p = model.layers[0](z0, scene.graph, source=z0)

    def score(z1):
        return model.advance(1, z1, z0, scene.graph)[i] @ slope_out

    at = p.clone().requires_grad_()
    (slope,) = torch.autograd.grad(score(at), at)
    step = take_apart(pass_through(scene), 0, slope[i], i, str, 3)
    with torch.no_grad():
        one = next(one for one in step.influences if one.through == "observed")
        v = model.layers[0].value(z0)[one.node]
        given = 0.5 * one.weight * v
        moved = p.clone()
        moved[i] += h * given
        rate = (score(moved) - score(p)) / h
    assert one.effect == pytest.approx(float(rate), rel=1e-3)


def test_a_run_is_explained_by_name_and_number(workshop):
    path, task = workshop.run("nodes")
    by_name, by_number = (explain_node(path, node, task=task) for node in ("p5", 5))
    assert by_name == by_number
    assert by_name.name == "p5"
    assert len(by_name.steps) == 3
    assert by_name.score >= 0
    assert all(step.residue < 1e-5 for step in by_name.steps)
    assert set(by_name.steps[0].effects) == set(PARTS)
    from difformer.training import predict

    outputs = predict(path, task=task).outputs[5]
    top = outputs.topk(2)
    assert by_name.prediction == task.class_names[int(top.indices[0])]
    assert by_name.score == pytest.approx(float(top.values[0] - top.values[1]), abs=1e-4)


def test_one_class_alone_has_no_runner_up(tmp_path):
    task = replace(nodes_task(30), y=torch.zeros(30, dtype=torch.long), num_outputs=1, class_names=("all",))
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "run")
    found = explain_node(tmp_path / "run", 3, task=task)
    assert (found.meaning, found.prediction) == ("output of 'all', the only class", "all")


def test_series_and_graphs(workshop):
    path, task = workshop.run("series")
    last, named = explain_node(path, "3", task=task), explain_node(path, "15:3", task=task)
    assert replace(last, title="") == replace(named, title="")
    assert last.title == "node 3 of snapshot 15, the last of the test part"
    assert named.title == "node 3 of snapshot 15"
    assert (last.number, last.node) == (15, 3)
    early = explain_node(path, (2, 3), task=task)
    assert early.target == f"{float(task.y[2, 3]):.4g}"
    from difformer.training import predict

    assert early.score == pytest.approx(float(predict(path, task=task).outputs[2, 3, 0]), abs=1e-4)
    path, task = workshop.run("graphs")
    whole, node = explain_node(path, "4", task=task), explain_node(path, "4:1", task=task)
    assert whole.number == node.number == 4
    assert whole.score == pytest.approx(node.score)
    assert node.node == 1
    chosen = f"node {whole.node} of graph 4, the node with the largest effect"
    assert (whole.title, node.title) == (chosen, "node 1 of graph 4")


def test_names_of_nodes_and_graphs_stand_beside_their_numbers(tmp_path):
    towns = tuple(f"town {i}" for i in range(series_task().num_nodes))
    fit(replace(series_task(), instance_names=towns), config(epochs=1), seeds=1, out=tmp_path / "series")
    found = explain_node(tmp_path / "series", "2:town 3", task=replace(series_task(), instance_names=towns))
    assert found.title == "town 3 (node 3 of snapshot 2)"
    task = graphs_task()
    task = replace(task, instance_names=tuple(f"ring {i}" for i in range(task.num_instances)))
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "graphs")
    assert explain_node(tmp_path / "graphs", "ring 4:1", task=task).title == "node 1 of graph 4, ring 4"


@pytest.mark.parametrize(
    ("name", "node", "said"),
    [
        ("nodes", "nobody", "no instance 'nobody'; expected names such as 'p0', or a number from 0 to 59"),
        ("nodes", 60, "no instance 60"),
        ("series", "99:1", "no snapshot '99'"),
        ("graphs", "4:50", "no node '50'"),
        ("gcn", 1, "takes no diffusion steps"),
    ],
)
def test_what_is_not_there_is_said(workshop, name, node, said):
    assert name in RUNS
    path, task = workshop.run(name)
    with pytest.raises(ValueError, match=said):
        explain_node(path, node, task=task)


def test_a_name_that_several_have_is_refused_with_their_numbers():
    with pytest.raises(ValueError, match=r"2 have the name 'Paris'; give the number of one of them: 0, 2"):
        explanation.find("Paris", 3, ("Paris", "Rome", "Paris"), "instance")
    assert explanation.find("Rome", 3, ("Paris", "Rome", "Paris"), "instance") == 1
