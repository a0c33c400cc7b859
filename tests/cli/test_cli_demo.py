"""``difformer demo``: six systems, one table, and a report at the end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import difformer.experiments
from difformer.cli.demo import SYSTEMS
from difformer.experiments import find_preset


def test_settings_of_the_demo_were_chosen_on_validation_with_equal_budgets():
    for model in SYSTEMS:
        preset = find_preset("best", model=model, dataset="digits")
        assert preset.command.startswith("difformer tune digits --data per_class=10 --data num_splits=5 ")
        assert "--data standardize=false --seeds 3 --trials 40" in preset.command
        assert 0.8 < preset.validation < 1
        assert preset.trials == 40


@pytest.fixture
def brief(monkeypatch):
    """Shipped presets, with two epochs."""
    monkeypatch.setattr(
        difformer.experiments,
        "find_preset",
        lambda name, *, model, dataset: replace(
            (found := find_preset(name, model=model, dataset=dataset)), settings={**found.settings, "epochs": 2}
        ),
    )


def test_demo_prints_one_table_and_ends_with_the_report(call, brief, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("demo", "--splits", 1)
    assert answer.code == 0, answer.err
    assert "1,797 handwritten digits, 10 labels per class, 1 random split." in answer.out
    rows = [line for line in answer.out.splitlines() if line.strip(" 0123456789.").endswith("%")]
    assert [row.split("  ")[0].strip() for row in rows] == [label for label, _ in SYSTEMS.values()]
    (page,) = tmp_path.glob("runs/demo-difformer-*/report.html")
    assert answer.out.splitlines()[-1] == f"Report: {page.relative_to(tmp_path)}"
    assert page.stat().st_size > 10_000
    # Without a terminal: a handful of lines, and no test score while models train.
    assert len(answer.err.splitlines()) <= 8
    assert "test" not in answer.err


def test_demo_refuses_a_taken_folder_before_it_trains(call, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "difformer.training.fit", lambda *given, **more: pytest.fail("trained before the folder was checked")
    )
    (tmp_path / "file").touch()
    answer = call("demo", "--out", tmp_path)
    assert answer.code != 0
    assert "already exists and is not empty" in answer.err


def test_demo_as_json(call, brief, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = json.loads(call("demo", "--splits", 1, "--json", "--out", tmp_path / "kept").out)
    assert [system["model"] for system in document["systems"]] == list(SYSTEMS)
    assert all(0 < system["test"] <= 1 for system in document["systems"])
    assert document["run"] == str(tmp_path / "kept")


@pytest.mark.slow
def test_whole_demo_ranks_systems_far_above_chance(installed, tmp_path):
    answer = installed("demo", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    systems = {system["model"]: system for system in json.loads(answer.out)["systems"]}
    assert all(len(system["values"]) == 3 for system in systems.values())
    assert all(system["test"] > 0.8 for system in systems.values())
