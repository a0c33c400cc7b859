"""The page: whole, offline, escaped, and sensible for every kind of task and every model."""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import replace

import pytest
from report_runs import EVIL, RUNS, Page, config, nodes_task

from difformer.report import write_report
from difformer.training import fit

LIMIT = 8_000_000
SECTIONS = (
    "results", "predictions", "errors", "columns", "map", "within", "energy", "explanations", "cost", "run", "use",
)  # fmt: skip


@pytest.mark.parametrize("name", list(RUNS))
def test_every_run_has_a_page_with_every_section(workshop, name):
    page = workshop.page(name)
    for section in SECTIONS:
        assert len(page.section(section)) > 60
    assert page.report.size == len(page.text.encode()) < LIMIT
    assert re.search(r"<script>.{4000000}", page.text, re.DOTALL)  # plotly itself
    for figure, line in (("loss-curves", "training loss"), ("metric-curves", "valid"), ("metric-curves", "kept epoch")):
        drawn = [one for one in page.data["figures"][figure]["data"] if one["name"] == line]
        assert len(drawn) == RUNS[name][2]
        assert {len(one["x"]) for one in drawn} == {1 if line == "kept epoch" else RUNS[name][1].epochs}
    for figure in page.data["figures"]:
        assert page.body.count(f'id="{figure}"') == 1


@pytest.mark.parametrize("name", list(RUNS))
def test_page_makes_no_network_requests(workshop, name):
    page = workshop.page(name)
    assert "default-src 'none'" in page.body
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page.body)
    assert "http" not in page.body.replace("http-equiv", "")


def test_names_from_data_are_text(workshop):
    page = workshop.page("nodes")
    assert EVIL not in page.body
    assert "<" not in page.raw
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.section("predictions")
    assert page.data["figures"]["confusion"]["layout"]["xaxis"]["ticktext"][0] == html.escape(EVIL)
    assert page.data["maps"][0]["titles"][-1] == f"{EVIL} & co"
    assert page.text.count("</script>") == 3 + page.text[len(page.body) + len(page.raw) :].count("<\\/script>")


def test_control_characters_of_labels_are_written_out(tmp_path):
    bad = "\x1b[31mred\x9b2J\u202e"
    task = nodes_task(splits=1)
    task = replace(task, class_names=(bad, "b", "c"), instance_names=tuple(f"{bad}{i}" for i in range(60)))
    fit(task, config(num_layers=1), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    for char in "\x1b\x9b\u202e":
        assert char not in page.body
        assert char not in json.dumps(page.data, ensure_ascii=False)
    assert r"\x1b[31mred\x9b2J\u202e" in page.body


def test_numbers_of_the_page_are_those_of_the_run(workshop):
    import numpy as np

    from difformer.training import RunFolder

    page, (path, task) = workshop.page("nodes"), workshop.run("nodes")
    folder = RunFolder.open(path)
    confusion = np.array(page.data["figures"]["confusion"]["data"][0]["text"])
    right = sum(round(r["test"] * folder.split_of(task, r["seed"]).test.numel()) for r in folder.results())
    assert confusion.trace() == right
    assert confusion.sum() == sum(folder.split_of(task, seed).test.numel() for seed in folder.seeds)
    summary = folder.summary()
    assert f"{summary.mean():.4f} ± {summary.std():.4f}" in page.body
    world = page.data["maps"][0]
    assert world["layers"] == ["input", "layer 1", "layer 2", "layer 3"]
    assert [c["name"] for c in world["colourings"]] == ["class", "prediction", "correctness", "part"]
    assert len(world["x"]) == 4
    assert {len(row) for row in world["x"] + world["y"]} == {60}
    assert world["colourings"][0]["values"] == task.y.tolist()
    assert len(world["pairs"]) == 3
    for pairs in world["pairs"]:
        assert pairs["weight"] == sorted(pairs["weight"], reverse=True)
        assert all(s != t for s, t in zip(pairs["source"], pairs["target"], strict=True))
    edges = {tuple(e) for e in task.edge_index.T.tolist()}
    first = world["pairs"][0]
    for s, t, seen in zip(first["source"], first["target"], first["observed"], strict=True):
        assert seen == ((s, t) in edges or (t, s) in edges)


def test_cards_name_the_columns_that_stand_out(workshop):
    text = workshop.page("nodes").data["maps"][0]["texts"][0]
    assert any(name in text for name in ("<b>u</b>", "v ", "w "))


@pytest.mark.parametrize("name", ["gcn", "gcn on graphs", "mlp on series", "lp"])
def test_models_without_diffusion_say_so(workshop, name):
    page = workshop.page(name)
    for section, what in (("within", "no attention"), ("energy", "no energy")):
        assert f"there is {what} to show" in page.section(section)
    assert "no latent structure to show" in page.section("map")
    assert "energy-plot" not in page.data["figures"]
    assert page.report.verdict == ""
    assert page.data["maps"][0]["pairs"] == []


def test_models_without_latent_pairs_say_why(workshop):
    assert "gives every pair the same weight" in workshop.page("constant").section("map")
    assert "exchanges nothing" in workshop.page("no latent").section("within")
    assert "energy-plot" in workshop.page("no latent").data["figures"]


def test_regression_shows_residuals(workshop):
    import torch

    from difformer.training import predict

    page, (path, task) = workshop.page("regression"), workshop.run("regression")
    assert [c["name"] for c in page.data["maps"][0]["colourings"]] == ["target 0", "prediction 0", "error 0", "part"]
    errors = []
    for seed in (0, 1):
        outputs, test = predict(path, seed=seed, task=task).outputs, task.splits[0].test
        gap = (outputs - task.y)[test]
        errors.append(gap[~gap.isnan()])
    assert f"has mean {float(torch.cat(errors).mean()):.3g}"[:-1] in page.section("predictions")
    assert sum(page.data["figures"]["error-histogram"]["data"][0]["y"]) == sum(map(len, errors))
    assert "R²" in page.section("predictions")


def test_series_and_graphs(workshop):
    series, graphs = workshop.page("series"), workshop.page("graphs")
    assert "Nodes at snapshot 15" in series.section("map")
    assert series.data["figures"]["over-time"]["data"][0]["x"] == [12, 13, 14, 15]
    assert len(series.data["maps"][0]["titles"]) == 8
    assert len(graphs.data["maps"][0]["titles"]) == 30
    assert graphs.data["maps"][1]["colourings"][0]["name"] == "effect on the output"
    assert "Measured on graph" in graphs.section("energy")


def test_multilabel_has_one_row_per_column(workshop):
    page = workshop.page("multilabel")
    assert page.data["figures"]["confusion"]["layout"]["xaxis"]["ticktext"] == ["no", "yes"]
    assert page.section("predictions").count("<tr>") == 4
    assert "auc" in page.section("predictions")


def test_requested_instances_are_explained_besides_the_chosen_ones(workshop, tmp_path):
    path, task = workshop.run("nodes")
    out = tmp_path / "here.html"
    report = write_report(path, out, task=task, nodes=["p5"], seed=1)
    assert report.path == out
    text = out.read_text(encoding="utf-8")
    assert "<summary>p5: predicted" in text
    assert text.count("with average features") == text.count("<summary>p") == 4
    assert "task=task" in text


def test_folders_with_any_name_can_be_copied_into_a_shell(tmp_path):
    import shlex

    from difformer.training import TrainConfig, fit
    from difformer.training.run_folder import TaskSource

    path = tmp_path / 'it\'s a "run" & more'
    source = TaskSource("iris")
    fit(source.load(), TrainConfig(options={"hidden_channels": 4}, epochs=1), seeds=1, out=path, source=source)
    report = write_report(path)
    page = Page(report)
    shell = html.unescape(re.findall(r"<pre><code>(.*?)</code></pre>", page.section("use"), re.DOTALL)[1])
    assert shlex.split(shell.splitlines()[1]) == ["difformer", "evaluate", str(path)]
    python = html.unescape(re.findall(r"<pre><code>(.*?)</code></pre>", page.section("use"), re.DOTALL)[0])
    space: dict[str, object] = {}
    exec(python, space)
    assert len(space["rows"]) == 150


@pytest.mark.parametrize("library", ["plotly.offline", "jinja2"])
def test_a_missing_library_is_named_with_the_pip_command(workshop, monkeypatch, library):
    path, task = workshop.run("nodes")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"needs {library}, which is not installed: .*difformer\[report\]"):
        write_report(path, task=task)


def test_a_run_without_results_is_refused(workshop, tmp_path, monkeypatch):
    import shutil

    import numpy as np

    from difformer.training import RunFolder, RunFolderError

    path, task = workshop.run("gcn")
    copy = tmp_path / "run"
    shutil.copytree(path, copy)
    (copy / "seed-1" / "predictions.npz").write_bytes(b"broken")
    with pytest.raises(RunFolderError, match=r"predictions\.npz cannot be read"):
        write_report(copy, task=task)
    with np.load(path / "seed-1" / "predictions.npz") as file:
        np.savez(copy / "seed-1" / "predictions.npz", outputs=file["outputs"][:-1], part=file["part"][:-1])
    with pytest.raises(RunFolderError, match="does not hold the predictions that seed 1"):
        write_report(copy, task=task)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "check_hash", lambda *_: None)  # as for runs of earlier versions, which wrote none
        with pytest.raises(RunFolderError, match=r"outputs of shape \(59, 3\) for 59 instances, expected \(60, 3\)"):
            write_report(copy, task=task)
    for result in copy.glob("seed-*/result.json"):
        result.unlink()
    with pytest.raises(RunFolderError, match="no results yet"):
        write_report(copy, task=task)


@pytest.mark.slow
def test_a_hundred_thousand_nodes_stay_below_eight_megabytes(tmp_path):
    import time

    from difformer.data import load
    from difformer.training import TrainConfig, fit

    task = load("random-graph", num_nodes=100_000)
    fit(task, TrainConfig(options={"num_layers": 3}, epochs=2), seeds=1, out=tmp_path / "run")
    begun = time.perf_counter()
    report = write_report(tmp_path / "run", task=task)
    assert report.size < LIMIT
    assert any("of 100,000 instances are shown" in note for note in report.notes)
    assert time.perf_counter() - begun < 120
