"""Figures of the page, `explain` and `certify` mean what their captions say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from report_runs import Page, columns_task, config, drawn_split, nodes_task

from difformer import DIFFormer
from difformer.data import Task
from difformer.diffusion import Certificate
from difformer.report import write_report
from difformer.training import TrainConfig, fit, load_run


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html))


def test_heading_and_table_of_facts_name_the_same_metric(tmp_path):
    task = columns_task()
    fit(task, config(epochs=2).replace(metric="accuracy"), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    assert "test accuracy" in text_of(page.body)
    assert "rocauc" not in text_of(page.section("run"))


def test_the_protocol_names_the_metric_that_was_used(tmp_path):
    task = replace(attention_task(), protocol="random: 50/25/25; accuracy")
    fit(task, config(epochs=1).replace(metric="rocauc"), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    assert "random: 50/25/25; rocauc" in text_of(page.section("run"))
    assert "accuracy" not in text_of(page.section("run"))


@pytest.mark.parametrize(("splits", "said"), [(1, "split"), (3, "splits"), (7, "first 5 splits")])
def test_the_answer_says_on_how_many_splits_simple_models_were_fitted(tmp_path, splits, said):
    task = nodes_task(splits=splits)
    fit(task, config(epochs=1), seeds=splits, out=tmp_path / "run")
    assert write_report(tmp_path / "run", task=task).answer.endswith(f" on the same {said}.")


def test_edges_that_join_one_class_are_counted_over_all_edges_not_the_shown_ones(tmp_path, monkeypatch):
    from difformer.report import maps

    monkeypatch.setattr(maps, "POINTS", 20)
    monkeypatch.setattr(maps, "EDGES", 5)
    task = nodes_task(60)
    fit(task, config(epochs=2), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    a, b = task.edge_index[:, task.edge_index[0] < task.edge_index[1]]
    known = (task.y[a] >= 0) & (task.y[b] >= 0)
    share = float((task.y[a] == task.y[b])[known].float().mean())
    drawn = next(one for one in page.data["figures"]["within-plot"]["data"] if one["name"] == "observed edges")
    assert drawn["y"][0] == pytest.approx(share, abs=1e-6)
    assert f"{int(known.sum()):,} observed edges" in text_of(page.section("within"))


def test_latent_pairs_with_an_unknown_label_do_not_count_in_the_share(workshop):
    page, (_, task) = workshop.page("nodes"), workshop.run("nodes")
    pairs = page.data["maps"][0]["pairs"][0]
    ends = [(int(task.y[s]), int(task.y[t])) for s, t in zip(pairs["source"], pairs["target"], strict=True)]
    assert pairs["same"] == [-1 if min(pair) < 0 else int(pair[0] == pair[1]) for pair in ends]
    assert -1 in pairs["same"]


def test_precision_says_in_how_many_seeds_a_class_was_predicted(workshop):
    from difformer.report.quality import quality
    from difformer.training.record import Predictions

    task = nodes_task(9, splits=1)
    task = replace(task, y=torch.arange(9) % 3)
    part = ("test",) * 9
    usual = torch.nn.functional.one_hot(torch.tensor([0] * 9), 3).float()
    once = torch.nn.functional.one_hot(torch.tensor([0, 0, 2, 0, 0, 0, 0, 0, 0]), 3).float()
    seeds = [Predictions("multiclass", outputs, (), (), task.y, part) for outputs in (usual, once, usual)]
    rows = quality(task, seeds, "test")["table"]
    assert rows[0]["predicted_in"] == 3
    assert rows[1]["predicted_in"] == 0
    assert rows[2]["predicted_in"] == 1
    assert rows[1]["precision"] is None
    assert rows[2]["precision"] == (1.0, None)  # one seed has no deviation
    said = text_of(workshop.page("nodes").section("predictions"))
    assert "predicted in" in said
    assert "of 3 seeds" in said


def test_certificates_count_proofs_and_measurements_apart():
    from difformer.diffusion.certificates import certificate_summary

    def one(verdict: str) -> Certificate:
        return Certificate(
            "x", "y", "z", condition_met=verdict != "not covered", violation=float(verdict == "fails"),
            proved=verdict != "measured",
        )  # fmt: skip

    proven = [one("holds")] * 16
    assert certificate_summary([*proven, one("measured")]) == (
        "16 of 16 proven statements hold; 1 is measured only, without a proof."
    )
    assert certificate_summary([*proven, one("fails"), one("not covered")]) == (
        "16 of 17 proven statements hold; for 1 the condition is not met."
    )
    assert certificate_summary([one("measured")] * 2) == (
        "No proven statement was checked; 2 are measured only, without a proof."
    )
    failed = replace(one("measured"), violation=1.0)
    assert certificate_summary([*proven, failed]) == (
        "16 of 16 proven statements hold; 1 of 1 statements without a proof does not hold here."
    )


def attention_task() -> Task:
    """Two classes of different sizes and features that say nothing, so that attention has nothing to find."""
    g = torch.Generator().manual_seed(5)
    x = 0.01 * torch.randn(120, 4, generator=g)
    y = (torch.rand(120, generator=g) < 0.3).long()
    return Task("noise", "nodes", "multiclass", "accuracy", "noise", x, y, (drawn_split(120, 0),), 2)


def test_attention_at_chance_is_said_and_not_drawn(tmp_path):
    task = attention_task()
    fit(task, config(epochs=1), seeds=1, out=tmp_path / "run")
    page = Page(write_report(tmp_path / "run", task=task))
    assert all(page.data["maps"][0]["uniform"])
    for section in ("map", "within"):
        assert "close to uniform" in text_of(page.section(section))
    # With a simple diffusivity it is so for every model: a fact about the form, not a warning about the run.
    assert not any("close to uniform" in note for note in page.report.warnings)
    assert "--with attention-off` compares the two" in text_of(page.section("within"))
    off = config(epochs=1).replace(model="difformer", options={"hidden_channels": 8, "diffusivity": None})
    fit(task, off, seeds=1, out=tmp_path / "run-attention-off")
    said = text_of(Page(write_report(tmp_path / "run", task=task)).section("within"))
    assert "With attention off, test accuracy is " in said
    assert "--with attention-off" not in said


def test_attention_that_finds_classes_is_not_called_uniform():
    from difformer.report.gather import Scene
    from difformer.report.layers import latent_layers, near_uniform
    from difformer.training.feeds import Inputs

    classes = torch.arange(60) % 2
    x = torch.nn.functional.one_hot(classes, 4).float() * 6
    model = DIFFormer(4, 4, 2, num_layers=1, diffusivity="softmax", qk_norm="none").eval()
    with torch.no_grad():
        for linear in (model.input, model.layers[0].query, model.layers[0].key):
            linear.weight.copy_(torch.eye(4))
            linear.bias.zero_()
        states = model.trajectory(x).detach()
    (layer,) = latent_layers(Scene(model, Inputs(x, None), None, states), torch.arange(60), classes)
    assert layer.within > 0.7
    assert not near_uniform(layer, 0.5, 60)
    assert near_uniform(replace(layer, within=0.52, entropy=0.9), 0.5, 60)  # two standard errors are 0.13
    assert near_uniform(replace(layer, entropy=0.995), 0.5, 60)
    assert not near_uniform(replace(layer, within=None, entropy=0.98), None, 60)


def test_collapsed_states_are_a_warning_of_the_page(tmp_path):
    g = torch.Generator().manual_seed(0)
    x = torch.ones(40, 3) + 0.1 * torch.randn(40, 3, generator=g)
    y = torch.arange(40) % 2
    task = Task("flat", "nodes", "multiclass", "accuracy", "flat", x, y, (drawn_split(40, 0),), 2)
    fit(task, TrainConfig(options={"hidden_channels": 16}, epochs=1), seeds=1, out=tmp_path / "run")
    report = write_report(tmp_path / "run", task=task)
    assert "alike" in report.verdict
    loaded = load_run(tmp_path / "run", task=task, device="cpu")
    unit = torch.nn.functional.normalize(loaded.model.trajectory(task.x)[0].double(), dim=-1)
    measured = (unit[:, None] - unit).square().sum(-1).mean().item()
    assert 0.001 < measured < 0.02
    assert f"mean squared distance {measured:.3f} of at most 2" in report.verdict
    assert any(report.verdict in note for note in report.warnings)
