"""What is said of how two rows were tuned, by settings, runs a setting and epochs a run."""

from __future__ import annotations

import dataclasses

import pytest
from small_experiment import BLOCKS, GCN, SMALL, line

from difformer.experiments.budgets import budgets
from difformer.experiments.choosing import Cell, choices
from difformer.experiments.performing import described, ready
from difformer.experiments.presets import Preset
from difformer.experiments.running import load_data
from difformer.experiments.summary import summarise
from difformer.experiments.verdicts import verdict

ONE = dataclasses.replace(SMALL, data=(BLOCKS,))


def rows(ours, theirs, presets=(), *, name=("best", "paper")):
    """Rows of DIFFormer-s and GCN with these budgets: trials, runs a setting (absent where None), epochs, patience."""
    lines = []
    for system, preset, (trials, runs, epochs, patience) in zip(
        ("difformer-s", "gcn"), name, (ours, theirs), strict=True
    ):
        told = {} if runs is None else {"tuning_runs": runs}
        settings = {} if epochs is None else {"epochs": epochs, "patience": patience, "dropout": 0.5}
        lines.append(line(system, 0, 0.8, preset=preset, trials=trials, settings=settings, **told))
    (section,) = summarise(ONE, lines, presets, quick=False).sections
    return [next(row for row in section.rows if row.system.key == key and row.lines) for key in ("difformer-s", "gcn")]


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (
            (16, 2, 500, 100),
            (16, 1, 300, 50),
            "Both tuned with 16 settings, ours each over 2 runs of up to 500 epochs (patience 100), GCN over 1 run of "
            "up to 300 epochs (patience 50): not quite the same budget.",
        ),
        (
            (16, 1, 300, None),
            (16, 1, 300, None),
            "Both tuned with 16 settings, each over 1 run of up to 300 epochs: the same budget.",
        ),
        (
            (16, 2, 300, 50),
            (16, 2, 300, 20),
            "(patience 50), GCN over 2 runs of up to 300 epochs (patience 20): not quite",
        ),
        ((16, 4, 300, None), (16, 2, 300, None), "ours each over 4 runs of up to 300 epochs, GCN over 2 runs of"),
        (
            (16, 2, None, None),
            (40, 1, None, None),
            "Not the same budget: 16 settings, each over 2 runs against 40, each over 1 run.",
        ),
        # What is known of one row alone is not compared, and nothing is said to be the same.
        ((16, 2, 300, None), (16, None, 300, None), "Both tuned with 16 settings, each with up to 300 epochs a run."),
        ((16, None, None, None), (16, None, None, None), "Both tuned with 16 settings."),
        (
            (None, None, 500, None),
            (16, 1, 300, 50),
            "GCN (paper's grid) was tuned with 16 settings, each over 1 run of up to 300 epochs (patience 50); how "
            "many settings competed for DIFFormer-s (best) is not known.",
        ),
        (
            (None, None, 500, None),
            (None, None, 500, None),
            "How many settings competed is known neither for DIFFormer-s (best) nor for GCN (paper's grid).",
        ),
    ],
)
def test_budgets_are_said(ours, theirs, said):
    assert said in budgets(*rows(ours, theirs))


def test_lines_that_do_not_tell_their_runs_are_looked_up():
    def preset(**rest):
        settings = {"epochs": 500, "dropout": 0.5}
        return Preset("best", "difformer-s", "sbm", **{"settings": settings, "trials": 16, "runs": 4, **rest})

    def runs(*presets):
        return rows((16, None, 500, None), (16, 1, 300, None), presets)[0].tuning_runs

    assert runs(preset()) == 4
    assert runs(preset(variant="per_class=5")) is None
    assert runs(preset(trials=40)) is None
    # Tuned anew since: its runs are not those of the settings that ran.
    assert runs(preset(settings={"dropout": 0.2})) is None
    assert runs() is None


@pytest.mark.parametrize(
    ("rest", "runs"),
    [
        ({"command": "python -m difformer.experiments.search cora --trials 16 --runs 3 --name best"}, 3),
        ({"command": "difformer tune cora --trials 20 --seeds 5"}, 5),
        ({"note": "validation: mean over 1 run"}, 1),
        ({"note": "mean over 7 split(s); a protocol"}, 7),
        ({"command": "difformer tune cora --runs 2", "runs": 9}, 9),
        ({"command": "difformer tune cora"}, None),
        ({"trials": None, "command": "difformer fit cora --seeds 3"}, None),
    ],
)
def test_runs_of_a_preset_stand_in_its_command_or_note(rest, runs):
    assert Preset("best", "gcn", "cora", **{"trials": 16, **rest}).runs == runs


def test_lines_tell_their_runs():
    preset = Preset("best", "gcn", "sbm", settings={"hidden_channels": 4}, trials=16, runs=4)
    (choice,) = choices(ONE, BLOCKS, GCN, [preset])
    assert described(ready(Cell(BLOCKS, GCN, choice), load_data(BLOCKS)), 0)["tuning_runs"] == 4


def test_the_best_with_the_same_budget_are_compared_where_the_best_of_all_were_not_tuned_alike():
    settings = {"epochs": 300, "patience": 50}

    def of(system, preset, valid, trials, runs):
        told = {"preset": preset, "valid": valid, "trials": trials, "tuning_runs": runs, "settings": settings}
        return [line(system, seed, 0.8 + 0.01 * seed, **told) for seed in range(3)]

    ours = [*of("difformer-s", "best", 0.9, 32, 3), *of("difformer-s", "paper", 0.7, 16, 1)]
    theirs = [*of("gcn", "paper", 0.6, 16, 1), *of("mlp", "untuned", 0.8, None, None)]
    (section,) = summarise(ONE, [*ours, *theirs], (), quick=False).sections
    first, second = verdict(section)[:2]
    assert first.startswith("Ours, best on validation: DIFFormer-s (best); the best rival: MLP (untuned). ")
    assert "DIFFormer-s (paper's grid); the best rival with the same budget: GCN (paper's grid). " in second
    assert second.endswith("the same budget.")
    alike = [*of("difformer-s", "paper", 0.7, 16, 1), *of("gcn", "paper", 0.6, 16, 1)]
    (section,) = summarise(ONE, alike, (), quick=False).sections
    assert len(verdict(section)) == 1
