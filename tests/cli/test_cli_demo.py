"""``difformer demo``: five systems, one table, and a next step that works."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

import difformer.experiments
from difformer.cli.demo import NEXT, SYSTEMS
from difformer.experiments import find_preset, load_presets


def test_the_demos_settings_were_chosen_on_validation():
    for model in SYSTEMS:
        preset = find_preset("best", model=model, dataset="digits")
        assert preset.command.startswith("difformer tune digits --data per_class=10")
        assert 0.8 < preset.validation < 1
        assert preset.trials >= 20


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


def test_one_table_and_a_next_step(call, brief):
    answer = call("demo", "--splits", 2)
    assert answer.code == 0, answer.err
    assert "1,797 handwritten digits, 10 labels a class (100 in all), no graph; 2 random splits" in answer.out
    rows = [line for line in answer.out.splitlines() if "±" in line and "%" in line]
    assert [row.split()[0] for row in rows] == ["DIFFormer-s", "DIFFormer-a", "MLP", "LabelSpreading", "GCN"]
    assert answer.out.splitlines()[-1].endswith(NEXT)
    assert "DIFFormer-a: seed 1 epoch 2/2" in answer.err


def test_demo_as_json(call, brief):
    document = json.loads(call("demo", "--splits", 1, "--json").out)
    assert [system["model"] for system in document["systems"]] == list(SYSTEMS)
    assert all(0 < system["test"] <= 1 for system in document["systems"])


def test_the_next_step_is_a_command_that_works(call):
    words = shlex.split(NEXT)
    answer = call(*words[1:], "--set", "epochs=1", "--seeds", "1")
    assert answer.code == 0, answer.err
    assert any(preset.name == "best" for preset in load_presets())


@pytest.mark.slow
def test_the_whole_demo(installed, tmp_path):
    answer = installed("demo", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    systems = {system["model"]: system for system in json.loads(answer.out)["systems"]}
    assert all(len(system["values"]) == 5 for system in systems.values())
    # With ten labels a class every system is far above chance.
    assert all(system["test"] > 0.8 for system in systems.values())
