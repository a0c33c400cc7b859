"""Which instance is explained, and what it is called; effects are tested in test_report_answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import RUNS, config, graphs_task, series_task

from difformer.report import explain_node, explanation
from difformer.training import fit, predict


@pytest.mark.parametrize("name", ["nodes", "gcn"])
def test_a_run_is_explained_by_name_and_number(workshop, name):
    path, task = workshop.run(name)
    by_name, by_number = (explain_node(path, node, task=task) for node in ("p5", 5))
    assert by_name == by_number
    assert by_name.name == by_name.title == "p5"
    outputs = predict(path, task=task).outputs[5]
    assert by_name.prediction == task.class_names[int(outputs.argmax())]
    assert by_name.target == task.class_names[int(task.y[5])]
    assert by_name.attribution.value == pytest.approx(float(outputs.softmax(-1).max()), abs=1e-5)


def test_a_model_that_does_not_use_the_features_has_no_effects(workshop):
    path, task = workshop.run("lp")
    found = explain_node(path, 5, task=task)
    assert found.attribution is None
    assert found.sentence == f"Predicted {found.prediction}."
    assert "does not use the features" in found.remainder


def test_nodes_of_series_and_whole_graphs(workshop):
    path, task = workshop.run("series")
    last, named = explain_node(path, "3", task=task), explain_node(path, "15:3", task=task)
    assert replace(last, title="") == replace(named, title="")
    assert last.title == "node 3 of snapshot 15, the last of the test part"
    assert named.title == "node 3 of snapshot 15"
    assert (last.number, last.node) == (15, 3)
    early = explain_node(path, (2, 3), task=task)
    assert early.target == f"{float(task.y[2, 3]):.4g}"
    assert early.prediction == f"{float(predict(path, task=task).outputs[2, 3, 0]):.4g}"
    path, task = workshop.run("graphs")
    whole = explain_node(path, "4", task=task)
    assert (whole.title, whole.number, whole.node) == ("graph 4", 4, None)
    assert whole.prediction == str(int(predict(path, task=task).outputs[4].argmax()))


def test_of_several_targets_the_explained_one_is_named(workshop):
    path, task = workshop.run("regression")
    outputs = predict(path, task=task).outputs[5].tolist()
    first, second = (explain_node(path, 5, task=task, target=target) for target in (None, "target 1"))
    said = f"target 0 {outputs[0]:.4g}, target 1 {outputs[1]:.4g}"
    for column, found in enumerate((first, second)):
        assert found.prediction == said
        assert found.sentence.startswith(
            f"Predicted {said}; target {column} ({found.attribution.base:.3g} with average"
        )
        assert found.attribution.value == pytest.approx(outputs[column], abs=1e-5)
    assert explain_node(path, 0, task=task).target == f"target 0 {float(task.y[0, 0]):.4g}"  # the other is unknown
    with pytest.raises(ValueError, match=r"target: there is no target 'age'; expected names such as 'target 0'"):
        explain_node(path, 5, task=task, target="age")
    path, task = workshop.run("multilabel")
    found = explain_node(path, 5, task=task, target=2)
    assert found.attribution.explained == "target 2"
    assert found.attribution.value == pytest.approx(float(predict(path, task=task).outputs[5, 2].sigmoid()), abs=1e-5)
    path, task = workshop.run("nodes")
    with pytest.raises(ValueError, match="target: the run predicts one label"):
        explain_node(path, 5, task=task, target="d")


def test_a_new_row_is_explained_as_it_is_predicted(workshop):
    path, task = workshop.run("nodes")
    new = {"features": task.x[:2] + 0.5, "edges": [[7, 61], [61, 7]]}
    outputs = predict(path, task=task, **new).outputs
    found = explain_node(path, "NEW-1", task=task, names=("p7", "NEW-1"), **new)
    assert (found.title, found.target) == ("NEW-1", "")
    assert found.attribution.value == pytest.approx(float(outputs[1].softmax(-1).max()), abs=1e-5)
    assert "p7" in found.attribution.neighbours
    assert explain_node(path, 1, task=task, **new).title == "new row 1"
    with pytest.raises(
        ValueError, match="no new row 'p5'; expected names such as 'new row 0', or a number from 0 to 1"
    ):
        explain_node(path, "p5", task=task, **new)


def test_names_of_nodes_and_graphs_stand_beside_their_numbers(tmp_path):
    towns = tuple(f"town {i}" for i in range(series_task().num_nodes))
    fit(replace(series_task(), instance_names=towns), config(epochs=1), seeds=1, out=tmp_path / "series")
    found = explain_node(tmp_path / "series", "2:town 3", task=replace(series_task(), instance_names=towns))
    assert found.title == "town 3 (node 3 of snapshot 2)"
    task = graphs_task()
    task = replace(task, instance_names=tuple(f"ring {i}" for i in range(task.num_instances)))
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "graphs")
    assert explain_node(tmp_path / "graphs", "ring 4", task=task).title == "ring 4 (graph 4)"


@pytest.mark.parametrize(
    ("name", "node", "said"),
    [
        ("nodes", "nobody", "no instance 'nobody'; expected names such as 'p0', or a number from 0 to 59"),
        ("nodes", 60, "no instance 60"),
        ("nodes", (2, 3), "'blocks' has no snapshots"),
        ("series", "99:1", "no snapshot '99'"),
        ("series", (1, 2, 3), "expected 2"),
        ("graphs", "50", "no graph '50'"),
    ],
)
def test_unknown_nodes_are_refused(workshop, name, node, said):
    assert name in RUNS
    path, task = workshop.run(name)
    with pytest.raises(ValueError, match=said):
        explain_node(path, node, task=task)


def test_an_ambiguous_name_is_refused_with_the_matching_numbers():
    with pytest.raises(ValueError, match=r"2 have the name 'Paris'; give the number of one of them: 0, 2"):
        explanation.find("Paris", 3, ("Paris", "Rome", "Paris"), "instance")
    assert explanation.find("Rome", 3, ("Paris", "Rome", "Paris"), "instance") == 1


def test_where_ids_are_numbers_a_number_is_an_id_and_not_a_position():
    ids = ("3", "17", "0")
    assert [explanation.find(word, 3, ids, "instance") for word in ("0", "3", 0)] == [2, 0, 0]
    expected = (
        "node: there is no instance '1'; expected names such as '3'; the instance at position 1, counted from 0, is"
    )
    with pytest.raises(ValueError, match=f"{expected} '17'$"):
        explanation.find("1", 3, ids, "instance")
    with pytest.raises(ValueError, match=r"there is no instance '5'; expected names such as '3'$"):
        explanation.find("5", 3, ids, "instance")
    assert explanation.find("1", 3, ("a", "b", "c"), "instance") == explanation.find("1", 3, (), "instance") == 1
    assert explanation.find("1", 3, ("7", "8", "8"), "instance") == 1  # the number of one of several with a name
