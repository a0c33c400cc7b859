"""Goals name rows that there are, and are judged by the numbers."""

from __future__ import annotations

import dataclasses

import pytest
from scipy import stats
from small_experiment import BLOCKS, SMALL, line

from difformer.experiments import goals
from difformer.experiments.catalogue import find
from difformer.experiments.goals import Goal, judged, load_goals
from difformer.experiments.summary import summarise


def test_every_goal_is_of_a_row_that_there_is():
    for name, found in load_goals().items():
        experiment = find(name)
        systems = {system.key for system in experiment.systems}
        for goal in found:
            section = next(one for one in experiment.data if one.key == goal.data)
            assert goal.measure == "test" or goal.measure in section.measures
            assert not goal.system or goal.system in systems
            assert goal.over is None or goal.over.get("system", "gcn") in systems | {"gcn"}
            assert sum(value is not None for value in (goal.near, goal.at_least, goal.below)) == 1


def sentence(monkeypatch, goal, scores, **rest):
    monkeypatch.setattr(goals, "load_goals", lambda: {"citation": (goal,)})
    small = dataclasses.replace(SMALL, data=(BLOCKS,))
    lines = [line(s, seed, v, valid=v, **rest) for s, values in scores.items() for seed, v in enumerate(values)]
    (section,) = summarise(small, lines, (), quick=False).sections
    (said,) = judged("citation", section)
    return str(said)


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal("blocks", near=79.5, tolerance=1.0), True),
        (Goal("blocks", near=78.5, tolerance=1.0), False),
        (Goal("blocks", at_least=80.0), True),
        (Goal("blocks", at_least=80.1), False),
        (Goal("blocks", over={"system": "gcn"}, at_least=9.9), True),
        (Goal("blocks", over={"system": "gcn"}, at_least=10.1), False),
        (Goal("blocks", below=80.1), True),
        (Goal("blocks", over={"system": "gcn"}, below=0.0), False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else None,
)
def test_goals_by_hand(monkeypatch, goal, reached):
    said = sentence(monkeypatch, goal, {"difformer-s": (0.8, 0.8, 0.8), "gcn": (0.7, 0.7, 0.7)})
    assert ("**not reached**" in said) is not reached
    assert "80.00" in said


def test_rows_are_compared_over_the_runs_that_both_have(monkeypatch):
    goal = Goal("blocks", over={"system": "gcn"}, at_least=5.0)
    said = sentence(monkeypatch, goal, {"difformer-s": (0.7, 0.9, 0.9), "gcn": (0.69,)})
    assert "**not reached** with 70.00" in said  # 83.3 over all three would have been 14 above
    assert "over 1 of 3 seeds only" in said


def test_a_lead_that_may_be_chance_does_not_reach_a_tested_goal(monkeypatch):
    goal = Goal("blocks", over={"system": "gcn"}, at_least=1.0, tested=True, tried="Wider layers did not help.")
    scores = {"difformer-s": (0.80, 0.82, 0.70), "gcn": (0.70, 0.70, 0.71)}
    p = stats.ttest_rel(scores["difformer-s"], scores["gcn"]).pvalue
    said = sentence(monkeypatch, goal, scores)
    assert f"paired t-test p = {p:.2g}" in said
    assert "**not reached** with 77.33" in said
    assert said.endswith("Wider layers did not help.")
    said = sentence(monkeypatch, goal, {"difformer-s": (0.80, 0.81, 0.82), "gcn": (0.70, 0.71, 0.715)})
    assert ": reached with 81.00" in said
    assert "Wider" not in said
    assert "no test is possible" in sentence(monkeypatch, goal, {"difformer-s": (0.8,), "gcn": (0.7,)})


def test_a_goal_whose_row_is_missing_is_not_judged_and_few_seeds_are_said(monkeypatch):
    assert "cannot be judged" in sentence(monkeypatch, Goal("blocks", at_least=1.0), {"gcn": (0.7,)})
    goal = Goal("blocks", over={"system": "gcn"}, at_least=1.0)
    assert "cannot be judged" in sentence(monkeypatch, goal, {"difformer-s": (0.7,)})
    assert "over 1 of 3 seeds only" in sentence(monkeypatch, Goal("blocks", at_least=1.0), {"difformer-s": (0.7,)})
