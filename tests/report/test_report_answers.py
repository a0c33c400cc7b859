"""The answers on top of the page and the sentence of an explanation, against plain formulas."""

from __future__ import annotations

import base64
import csv
import html
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from report_runs import RUNS, Page, config, drawn_split, nodes_task

from difformer.data import Task
from difformer.report import explain_node, write_report
from difformer.report.explanation import Attribution, explain_nodes, sentence
from difformer.report.gather import gather, original_cells
from difformer.report.quality import baselines, calibration, column_importance, errors
from difformer.training import fit
from difformer.training.record import Predictions
from difformer.training.trained_run import load_run


def test_baselines_are_those_of_scikit_learn(workshop):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    path, task = workshop.run("nodes")
    constant, linear = baselines(gather(path, task=task))
    x, y = task.x.numpy(), task.y.numpy()
    for split, value, other in zip(task.splits, linear.values, constant.values, strict=True):
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(x[split.train], y[split.train])
        assert value == pytest.approx(model.score(x[split.test], y[split.test]))
        most = np.bincount(y[split.train]).argmax()
        assert other == pytest.approx((y[split.test] == most).mean())
    page = workshop.page("nodes")
    assert f"always predicting the most frequent class gives {constant.mean:.4f}" in page.report.answer
    assert f"a logistic regression gives {linear.mean:.4f}" in page.report.answer
    assert html.escape(page.report.answer) in page.body


def test_rows_of_counts_are_brought_to_unit_length_for_the_baseline(tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    g = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    chance = 0.05 + 0.15 * (torch.arange(60) // 20 == y.unsqueeze(1))
    x = (torch.rand(90, 60, generator=g) < chance).float().to_sparse_csr()
    task = Task("words", "nodes", "multiclass", "accuracy", "p", x, y, (drawn_split(90, 0),), 3)
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "run")
    _, linear = baselines(gather(tmp_path / "run", task=task))
    rows, split = normalize(x.to_dense().numpy()), task.splits[0]
    model = LogisticRegression(max_iter=200).fit(rows[split.train], y[split.train])
    assert linear.mean == pytest.approx(model.score(rows[split.test], y[split.test]))


def test_baselines_of_values_are_mean_and_ridge(workshop):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    path, task = workshop.run("regression")
    constant, linear = baselines(gather(path, task=task))
    x, y, split = task.x.numpy(), task.y.numpy(), task.splits[0]
    gaps, flat = [], []
    for c in range(2):
        train = [i for i in split.train.tolist() if y[i, c] == y[i, c]]
        test = [i for i in split.test.tolist() if y[i, c] == y[i, c]]
        gaps += list(make_pipeline(StandardScaler(), Ridge()).fit(x[train], y[train, c]).predict(x[test]) - y[test, c])
        flat += list(y[train, c].mean() - y[test, c])
    assert linear.mean == pytest.approx(np.square(gaps).mean(), rel=1e-4)
    assert constant.mean == pytest.approx(np.square(flat).mean(), rel=1e-4)


@pytest.mark.parametrize("name", ["series", "graphs", "multilabel", "no edges"])
def test_every_kind_of_task_has_baselines(workshop, name):
    assert name in RUNS
    path, task = workshop.run(name)
    found = baselines(gather(path, task=task))
    assert found
    assert all(math.isfinite(one.mean) for one in found)


def test_calibration_error_is_the_formula():
    task = nodes_task(10, splits=1)
    chance = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    rest = (1 - chance) / 2
    outputs = torch.stack([chance, rest, rest], 1).log()
    y = torch.tensor([0, 0, 0, 1, 0, 1])
    one = Predictions("multiclass", outputs, (), (), y, ("test",) * 6)
    found = calibration(task, [one], "test")
    assert found.count == [2, 4]
    assert found.confidence == pytest.approx([0.55, 0.95])
    assert found.accuracy == pytest.approx([0.5, 0.75])
    assert found.error == pytest.approx((2 * 0.05 + 4 * 0.2) / 6)


def informed_task(n: int = 90) -> Task:
    """One column that decides, one that is noise, in units of their own."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    x = torch.stack([100 + 30 * (2.0 * y - 1) + 8 * torch.randn(n, generator=g), torch.randn(n, generator=g)], 1)
    from difformer.data.scaling import Scaling

    scaling = Scaling.of(x)
    return Task(
        "informed", "nodes", "multiclass", "accuracy", "p", scaling(x), y, (drawn_split(n, 0),), 2,
        feature_names=("amount", "noise"), class_names=("low", "high"), scaling=scaling,
    )  # fmt: skip


@pytest.fixture(scope="module")
def informed(tmp_path_factory):
    path, task = tmp_path_factory.mktemp("informed") / "run", informed_task()
    fit(task, config(epochs=60).replace(learning_rate=0.05), seeds=1, out=path)
    return path, task


def test_the_column_that_decides_is_the_important_one(informed):
    path, task = informed
    found = column_importance(gather(path, task=task))
    assert found.names[0] == "amount"
    assert found.losses[0] > 0.2
    assert abs(found.losses[1]) < 0.1


def test_columns_that_are_tried_follow_from_the_size_of_the_task(workshop, monkeypatch):
    from difformer.report import quality

    path, task = workshop.run("nodes")
    material = gather(path, task=task)
    numbers = 60 * 5 + 60**2  # features, and the pairs that difformer-a compares
    for affordable, tried in ((1, 4), (5 * 3 * numbers - 1, 4), (5 * 3 * numbers, 5)):
        monkeypatch.setattr(quality, "SHUFFLED", affordable)
        found = column_importance(material)
        assert len(found.names) == tried
        assert found.note == ("4 of 5 columns were tried, those with the largest gradients." if tried < 5 else "")


def test_rows_come_back_in_original_units(informed):
    path, task = informed
    (cells,) = original_cells(task, torch.tensor([3]), [["noise", "amount"]])
    raw = task.x[3].double() * task.scaling.scale + task.scaling.shift
    assert cells == pytest.approx([float(raw[1]), float(raw[0])], rel=1e-3)
    texts = Page(write_report(path, task=task)).data["maps"][0]["texts"]
    assert f"amount {cells[1]}" in texts[3]


@pytest.fixture(scope="module")
def customers(tmp_path_factory):
    """A table with numbers, categories and gaps, whose category decides."""
    pd = pytest.importorskip("pandas")
    from difformer.data import from_frame

    g = np.random.default_rng(0)
    n = 120
    y = np.arange(n) % 2
    plan = np.where(g.random(n) < 0.9, np.where(y == 1, "gold", "basic"), "trial")
    spend = g.normal(50, 10, n).round(2)
    frame = pd.DataFrame({"plan": plan, "spend": np.where(g.random(n) < 0.1, np.nan, spend), "churned": y})
    frame["churned"] = frame["churned"].map({0: "stays", 1: "churns"})
    task = from_frame(frame, label="churned")
    path = tmp_path_factory.mktemp("customers") / "run"
    fit(task, config(epochs=60).replace(learning_rate=0.05), seeds=1, out=path)
    return path, task, frame


def test_encoded_columns_are_shown_as_the_columns_of_the_table(customers):
    path, task, frame = customers
    assert task.num_features > 2
    found = column_importance(gather(path, task=task))
    assert set(found.names) == {"plan", "spend"}
    assert found.names[0] == "plan"
    gold = int((frame["plan"] == "gold").to_numpy().argmax())
    explained = explain_node(path, gold, task=task)
    assert explained.prediction == "churns"
    assert set(explained.attribution.columns) == {"plan", "spend"}
    assert "plan (+" in explained.sentence
    listed = errors(gather(path, task=task), found.names)
    assert listed.headings[4:] == ["plan", "spend"]
    assert listed.rows
    for row in listed.rows:
        assert row[4] == frame["plan"][int(row[0])]
    (cells,) = original_cells(task, torch.tensor([7]), [["plan", "spend"]])
    assert cells[0] == frame["plan"][7]
    if frame["spend"][7] == frame["spend"][7]:
        assert float(cells[1]) == pytest.approx(frame["spend"][7], rel=1e-2)


def test_errors_are_listed_with_their_columns(workshop):
    path, task = workshop.run("nodes")
    material = gather(path, task=task)
    found = errors(material, ["w", "v"])
    rows, outputs = material.rows, material.outputs
    wrong = rows[outputs[rows].argmax(1) != task.y[rows]]
    assert len(found.rows) == wrong.numel() > 0
    assert {row[0] for row in found.rows} == {task.instance_names[i] for i in wrong.tolist()}
    assert found.headings == ["instance", "target", "prediction", "probability", "w", "v"]
    first = found.rows[0]
    i = task.instance_names.index(first[0])
    assert first[3] == max(row[3] for row in found.rows)
    assert first[4:] == pytest.approx([float(task.x[i, 2]), float(task.x[i, 1])], rel=1e-3)


def test_the_csv_of_errors_holds_no_formula(tmp_path):
    task = nodes_task(30, splits=1)
    task = replace(task, instance_names=tuple(f"=1+{i}" for i in range(30)), class_names=("@a", "+b", "c"))
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', page.body)[1]
    rows = list(csv.reader(io.StringIO(base64.b64decode(link).decode())))
    assert rows[0][:3] == ["instance", "target", "prediction"]
    assert len(rows) > 1
    assert all(row[0].startswith("'=") for row in rows[1:])
    assert not any(cell.startswith(("@", "+")) for row in rows[1:] for cell in row)


@pytest.fixture(scope="module")
def balances(tmp_path_factory):
    """A table with zeros, debts, large numbers, a category, and a copy of the label."""
    pd = pytest.importorskip("pandas")
    from difformer.data import from_frame

    g = np.random.default_rng(3)
    y = g.integers(0, 2, 90)
    balance = g.normal(0, 80, 90).round(2)
    balance[::3] = 0.0
    frame = pd.DataFrame(
        {"balance": balance, "turnover": g.integers(1, 9_999_999, 90), "plan": g.choice(["a", "b"], 90)}
    )
    frame["group"], frame["code"] = np.where(y == 1, "x", "y"), np.where(y == 1, "A17", "B4")
    task = from_frame(frame, label="group")
    path = tmp_path_factory.mktemp("balances") / "run"
    fit(task, config("mlp", epochs=1), seeds=1, out=path)
    return frame, task, write_report(path, task=task)


def test_original_values_are_written_as_in_the_table(balances):
    frame, task, _ = balances
    names = ["balance", "turnover"]
    cells = original_cells(task, torch.arange(90), [names] * 90)
    expected = [[f"{value:.2f}".rstrip("0").rstrip(".") for value in row] for row in frame[names].to_numpy()]
    assert cells == expected
    plain = replace(
        task, preprocessing=None, scaling=None, x=torch.tensor([[6689143.0, -0.1]] * 90), feature_names=("a", "b")
    )
    assert original_cells(plain, torch.tensor([0]), [["a", "b"]]) == [[6689143, -0.1]]


def test_negative_numbers_of_the_csv_stay_numbers(balances):
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', Page(balances[2]).body)[1]
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(link).decode())))
    found = [float(row["balance"]) for row in rows]  # an apostrophe would be an error
    assert min(found) < 0
    assert 0.0 in found


def test_a_column_that_determines_the_label_is_a_warning_at_the_top(balances):
    assert balances[2].warnings[0].startswith("Column 'code' determines the label in all 90 labelled rows; ")
    assert "determines the label" in Page(balances[2]).body.partition("<main>")[0]


def test_no_better_than_a_constant_is_a_warning(tmp_path):
    g = torch.Generator().manual_seed(1)
    y = (torch.rand(80, generator=g) < 0.2).long()
    task = Task(
        "noise", "nodes", "multiclass", "accuracy", "p", torch.randn(80, 3, generator=g), y, (drawn_split(80, 0),), 2
    )
    fit(task, config(epochs=2), seeds=1, out=tmp_path / "run")
    report = write_report(tmp_path / "run", task=task)
    assert any("No better than a constant" in one for one in report.warnings)
    assert "Before you rely on this" in Page(report).body


def test_a_good_run_has_no_warning_about_constants(informed):
    path, task = informed
    assert not any("constant" in one for one in write_report(path, task=task).warnings)


@pytest.mark.parametrize("name", ["nodes", "no edges", "regression", "multilabel", "series", "graphs", "gcn"])
def test_attributed_effects_add_up_to_the_prediction(workshop, name):
    path, task = workshop.run(name)
    found = explain_node(path, 4 if task.kind != "series" else "15:4", task=task).attribution
    total = sum(found.columns.values()) + sum(found.neighbours.values()) + found.others
    assert total + found.gap == pytest.approx(found.value - found.base, abs=1e-5)
    assert abs(found.gap) < 0.01 * max(1.0, abs(found.value - found.base))
    assert len(found.columns) == task.num_features


def steep(workshop, factor):
    """The run of nodes with outputs so large that probabilities rise on a small piece of the path."""
    path, task = workshop.run("nodes")
    loaded = load_run(path, task=task, device="cpu")
    with torch.no_grad():
        for parameter in loaded.model.output.parameters():
            parameter *= factor
    return loaded


@pytest.mark.parametrize("factor", [1, 10])
def test_attributed_effects_add_up_where_probabilities_rise_steeply(workshop, factor):
    for one in explain_nodes(steep(workshop, factor), [0, 1, 9, 10]):
        found = one.attribution
        total = sum(found.columns.values()) + sum(found.neighbours.values()) + found.others
        assert total == pytest.approx(found.value - found.base, abs=0.005)
        assert one.remainder == ""


def test_what_cannot_be_attributed_is_said(workshop, monkeypatch, capsys):
    from difformer.cli import main

    monkeypatch.setattr("difformer.report.explanation.INTERVALS", 1)
    one = explain_nodes(steep(workshop, 10), [9])[0]
    assert abs(one.attribution.gap) > 0.1
    assert f"Not attributed: {one.attribution.gap:+.3g}" in one.remainder
    monkeypatch.setattr("difformer.report.explain_node", lambda *_, **__: one)
    with pytest.raises(SystemExit):
        main(["explain", "run", "--node", "9"])
    assert one.remainder in capsys.readouterr().out.splitlines()


def test_neighbours_are_ends_of_edges_without_the_instance_itself(workshop):
    path, task = workshop.run("nodes")
    found = explain_node(path, 7, task=task).attribution
    source, target = task.edge_index
    assert set(found.neighbours) == {task.instance_names[j] for j in source[target == 7].tolist() if j != 7}
    assert "p7" not in found.neighbours


def test_the_sentence_names_what_matters_and_sums_up_the_rest():
    columns = {"late_payments": 0.31, "support_calls": 0.12, "a": 0.001, "b": 0.002}
    neighbours = {"Ewa Silva": 0.1, "Ivan Rossi": 0.08, "Jo": -0.05, "x": 0.0}
    found = Attribution(0.71, 0.15, columns, neighbours, 0.0, 0.0)
    assert sentence(nodes_task(), "churns", found) == (
        "Predicted churns (0.71; 0.15 with average features): late_payments (+0.31), support_calls (+0.12), 2 other "
        "columns (0.00); neighbours Ewa Silva and Ivan Rossi (+0.18), Jo (-0.05), 1 other (0.00)."
    )
    alone = Attribution(0.71, 0.65, {"age": 0.02}, {}, 0.04, 0.0)
    assert sentence(nodes_task(), "churns", alone) == (
        "Predicted churns (0.71; 0.65 with average features): age (+0.02); all other instances (+0.04)."
    )
    assert sentence(nodes_task(), "churns", None) == "Predicted churns."
    many = sentence(
        nodes_task(), "churns", Attribution(0.7, 0.1, {f"c{i}": 0.2 - i / 100 for i in range(10)}, {}, 0.0, 0.0)
    )
    assert "c7 (+0.13), 2 other columns (+0.23)" in many
    eight = sentence(nodes_task(), "churns", Attribution(0.7, 0.1, {f"c{i}": 0.1 for i in range(8)}, {}, 0.0, 0.0))
    assert "other column" not in eight


def test_a_sampled_baseline_is_named_as_such(workshop, monkeypatch):
    from difformer.report import quality

    monkeypatch.setattr(quality, "FIT_WORK", 0)
    monkeypatch.setattr(quality, "LEAST_ROWS", 10)
    path, task = workshop.run("nodes")
    _, linear = quality.baselines(gather(path, task=task))
    assert linear.name == "a logistic regression on 10 of the training instances"
